"""Whom to dial, and the dialling: members that are due, sightings nobody has proved, and whom a person asked for.

Whatever is dialled, the handshake alone says who answered; a link that stands is handed to ``keep``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.db import Database
from mesh.base.errors import MeshError, OurFault, Refused
from mesh.base.names import NodeId
from mesh.base.ports import Member
from mesh.dialer import ADDRESSES_MAX, Initiator, run_dial
from mesh.handshake import TurnedDown
from mesh.link import Link
from mesh.replica import Replica
from mesh.topology import ADDRESS_BACKOFF_S_MAX, Schedule, dialable

DIALS_AT_ONCE_MAX = 8
GATES_A_DIAL_MAX = 8
"""Gate keys tried in one dial, newest first; the next dial of that machine goes on with older ones."""
FULL_MESH_MAX = 12
LOOK_S = 1.0
"""How often the node looks whom to dial, when nothing wakes it earlier."""
SIGHTED_MAX = 256
"""Announcers on the LAN that are kept to be tried; one more makes the first one forgotten."""

log = logging.getLogger("hivemesh.dialling")


class Initiators(Protocol):
    """Makes the dialling side of handshakes; ``node.app`` supplies it."""

    def __call__(self, expected: NodeId | None, older: int) -> Initiator:
        """Make one, which accepts only the expected machine, or any member; with the gate key so many before the newest."""
        ...


class Kept(Protocol):
    """What the dialling looks at of a link that stands."""

    @property
    def address(self) -> str | None:
        """Where it was dialled; None where the peer dialled, and for a circuit."""
        ...

    @property
    def is_direct(self) -> bool:
        """Whether it is no circuit; a circuit never keeps from dialling."""
        ...


@dataclass(slots=True)
class _Wanted:
    """A dial somebody waits for."""

    addresses: Sequence[str]
    expected: NodeId
    over: trio.Event
    link: Link | None = None
    fault: MeshError | None = None


class Dialling:
    """Dials the machines this one wants links to.

    Args:
        replica: This machine's copy of the mesh.
        database: ``mesh.db``, for the addresses that proved a key.
        initiators: Makes the dialling side of handshakes.
        read_clock: Reads both clocks.
        draw: A number in [0, 1) from the node's randomness.
        gates: How many gate keys there are to try.
        loopback: Whether other machines' loopback addresses are this host's own.
        links: The links that stand.
        keep: Keeps a fresh link to its end.
    """

    def __init__(
        self,
        replica: Replica,
        database: Database,
        initiators: Initiators,
        read_clock: Callable[[], Now],
        draw: Callable[[], float],
        *,
        gates: Callable[[], int],
        loopback: bool,
        links: Mapping[NodeId, Kept],
        keep: Callable[[Link], Awaitable[None]],
    ) -> None:
        self._replica = replica
        self._database = database
        self._initiators = initiators
        self._read_clock = read_clock
        self._draw = draw
        self._gates = gates
        self._loopback = loopback
        self._older: dict[NodeId, int] = {}
        self._links = links
        self._keep = keep
        self._members = Schedule()
        self._addresses = Schedule(backoff_s_max=ADDRESS_BACKOFF_S_MAX)
        self._dialling: set[object] = set()
        self._sighted: dict[str, tuple[str, ...]] = {}
        self._look_now = trio.Event()
        self._want, self._wanted = trio.open_memory_channel[_Wanted](0)

    async def run(self) -> None:
        """Dial until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_wanted, nursery)
            await self._run_looking(nursery)

    def look(self) -> None:
        """Look again whom to dial: something changed."""
        self._look_now.set()

    def lived(self, node: NodeId, lived_s: float) -> None:
        """Note the end of a link to a machine that stood so many seconds."""
        self._members.lived(node, lived_s, self._read_clock().steady_s, self._draw())

    def look_for(self, node: NodeId) -> None:
        """Try a machine soon: somebody wants it now."""
        self._members.sighted(node, self._read_clock().steady_s)
        self._look_now.set()

    def sighted(self, instance: str, addresses: tuple[str, ...]) -> None:
        """Note a machine of this mesh (as its tag claims) seen on the LAN; an empty tuple forgets it."""
        if addresses:
            if instance not in self._sighted and len(self._sighted) >= SIGHTED_MAX:
                del self._sighted[next(iter(self._sighted))]
            self._sighted[instance] = addresses
            self._addresses.sighted(addresses, self._read_clock().steady_s)
            self._look_now.set()
        else:
            self._sighted.pop(instance, None)

    async def connect(self, addresses: Sequence[str], expected: NodeId) -> Link:
        """Dial addresses a person gave, now.

        Raises:
            Unreachable, Refused: None proved the expected key.
        """
        wanted = _Wanted(addresses, expected, trio.Event())
        await self._want.send(wanted)
        await wanted.over.wait()
        if wanted.fault is not None:
            raise wanted.fault
        assert wanted.link is not None
        return wanted.link

    async def _run_wanted(self, nursery: trio.Nursery) -> None:
        async for wanted in self._wanted:
            nursery.start_soon(self._connect, nursery, wanted)

    async def _connect(self, nursery: trio.Nursery, wanted: _Wanted) -> None:
        try:
            wanted.link = await self._dial(nursery, wanted.addresses, wanted.expected)
        except MeshError as fault:
            wanted.fault = fault
        else:
            nursery.start_soon(self._keep, wanted.link)
        finally:
            wanted.over.set()

    async def _dial(self, nursery: trio.Nursery, addresses: Sequence[str], expected: NodeId | None) -> Link:
        """Dial with the newest gate key, and with older ones where that is met with silence: the other may have slept."""
        first = self._older.pop(expected, 0) if expected is not None else 0
        for older in range(first, first + GATES_A_DIAL_MAX):
            initiator = partial(self._initiators, expected, older)
            try:
                link: Link = await nursery.start(partial(run_dial, addresses, initiator, clock=self._read_clock))
            except Refused as refused:
                if refused.reason != "not_let_in" or older + 1 >= self._gates():
                    raise
                silence = refused
            else:
                return link
        if expected is not None:
            self._older[expected] = first + GATES_A_DIAL_MAX  # The next dial goes on where this one stopped.
        raise silence

    async def _take_proof(self, error: MeshError) -> None:
        """Keep the record by which this machine was turned down: then it knows why, also without a link."""
        if isinstance(error, TurnedDown) and error.proof:
            try:
                await self._replica.take_untrusted([error.proof], error.peer)
            except OurFault as fault:
                log.error("why this machine is not let in could not be stored: %s", fault.message)

    async def _run_looking(self, nursery: trio.Nursery) -> None:
        while True:
            self._look_now = trio.Event()
            now_s = self._read_clock().steady_s
            for what, addresses, expected in self._candidates(now_s):
                if len(self._dialling) >= DIALS_AT_ONCE_MAX:
                    break
                self._dialling.add(what)
                nursery.start_soon(self._try, nursery, what, addresses, expected)
            with trio.move_on_after(LOOK_S):
                await self._look_now.wait()

    def _candidates(self, now_s: float) -> list[tuple[object, tuple[str, ...], NodeId | None]]:
        """Whom to dial now: members without a link whose addresses are known, then sightings nobody has proved."""
        found: list[tuple[object, tuple[str, ...], NodeId | None]] = []
        left = self._replica.members_now.left
        others = [m for m in self._replica.members() if m.state != "expelled" and m.node not in left]
        direct = {node for node, held in self._links.items() if held.is_direct}
        if len(direct) < FULL_MESH_MAX:
            for member in others:
                addresses = self._addresses_of(member)
                free = member.node not in direct and member.node not in self._dialling
                if free and addresses and self._members.may_dial(member.node, now_s):
                    found.append((member.node, addresses, member.node))
        proved = {held.address for held in self._links.values()} | {
            address for member in others if member.node in direct for address in member.addresses
        }
        for addresses in self._sighted.values():
            fresh = addresses not in self._dialling and self._addresses.may_dial(addresses, now_s)
            if fresh and proved.isdisjoint(addresses):
                found.append((addresses, addresses, None))
        return found

    def _addresses_of(self, member: Member) -> tuple[str, ...]:
        proved = store.addresses(self._database.reader, member.node)
        stated = [a for a in member.addresses if dialable(a, loopback=self._loopback)]
        return tuple(dict.fromkeys((*proved[:2], *stated, *proved[2:])))[:ADDRESSES_MAX]

    async def _try(
        self, nursery: trio.Nursery, what: object, addresses: tuple[str, ...], expected: NodeId | None
    ) -> None:
        schedule = self._addresses if expected is None else self._members
        try:
            link = await self._dial(nursery, addresses, expected)
        except MeshError as error:
            log.debug("dialling %s failed: %s", ", ".join(addresses), error.message)
            await self._take_proof(error)
            schedule.failed(what, self._read_clock().steady_s, self._draw())
        else:
            if expected is None:
                schedule.failed(what, self._read_clock().steady_s, self._draw())
            nursery.start_soon(self._keep, link)
        finally:
            self._dialling.discard(what)
