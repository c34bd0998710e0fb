"""The dialling: members as ``mesh.degree`` chooses them, sightings nobody has proved, and whom a person asked for.

Whatever is dialled, the handshake alone says who answered; a link that stands is handed to ``keep``. An address that
another machine stated is tried with caution: never one that means something else here, rarely while it proved no key.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
from mesh.degree import Neighbour, Other, choose, full_reason, named_untrusted, spread, surplus, with_room
from mesh.dialer import ADDRESSES_MAX, Initiator, run_dial
from mesh.handshake import TurnedDown
from mesh.link import Link
from mesh.presence import links_stated
from mesh.replica import Replica
from mesh.topology import (
    ADDRESS_BACKOFF_S_MAX,
    ADDRESS_BACKOFF_S_MIN,
    UNPROVED_A_S_MAX,
    UNPROVED_BURST,
    Allowance,
    Schedule,
    dialable,
)

DIALS_AT_ONCE_MAX = 8
GATES_A_DIAL_MAX = 8
"""Gate keys tried in one dial, newest first; the next dial of that machine goes on with older ones."""
WANTED_S = 30.0
"""Somebody who wanted a machine wants it for so long: it is dialled beyond the bound, and its link is not let go."""
FULL_S_MIN = 5.0
FULL_S_MAX = 300.0
"""The ceilings of the pause after a machine had no room; of that for machines at large too, where two links stand."""
CHOSEN_LINKS_MIN = 2
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
    def since(self) -> Now:
        """When it began."""
        ...

    @property
    def address(self) -> str | None:
        """Where it was dialled; None where the peer dialled, and for a circuit."""
        ...

    @property
    def is_direct(self) -> bool:
        """Whether it is no circuit; a circuit never keeps from dialling."""
        ...

    @property
    def busy(self) -> bool:
        """Whether channels are open on it."""
        ...

    def let_go(self, reason: str) -> None:
        """Close it."""
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
        now_s = read_clock().steady_s
        self._members = Schedule()
        self._sightings = Schedule(backoff_s_min=ADDRESS_BACKOFF_S_MIN, backoff_s_max=ADDRESS_BACKOFF_S_MAX)
        self._unproved = Schedule(backoff_s_min=ADDRESS_BACKOFF_S_MIN, backoff_s_max=ADDRESS_BACKOFF_S_MAX)
        self._allowance = Allowance(UNPROVED_BURST, UNPROVED_A_S_MAX, now_s)
        self._full = Schedule(backoff_s_min=FULL_S_MIN, backoff_s_max=FULL_S_MAX)
        self._named: list[NodeId] = []
        self._wanted_until_s: dict[NodeId, float] = {}
        self._proved: dict[NodeId, list[str]] = {}
        self._seed = int(draw() * 2**32) << 96 | int(draw() * 2**32) << 64 | int(draw() * 2**32) << 32 | int(draw() * 2**32)
        self._order: tuple[frozenset[NodeId], list[NodeId]] = (frozenset(), [])
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

    def lived(self, node: NodeId, lived_s: float, reason: str) -> None:
        """Note the end of a link to a machine that stood so many seconds, and why it ended."""
        now_s = self._read_clock().steady_s
        named = named_untrusted(reason)
        if named is None:
            self._members.lived(node, lived_s, now_s, self._draw())
            self._full.lived(None, lived_s, now_s, self._draw())
            return
        for what in (node, None):
            self._full.failed(what, now_s, self._draw())
        self._named = named
        for other in named:
            self._members.sighted(other, now_s)

    async def remember(self, node: NodeId, address: str) -> None:
        """Keep an address at which a machine proved its key; it is tried first from now on."""
        self._unproved.proved(address)
        self._proved.pop(node, None)
        now_ms = self._read_clock().wall_ms
        try:
            await self._database.write(lambda connection: store.note_address(connection, node, address, now_ms))
        except OurFault as fault:
            log.warning("an address was not remembered: %s", fault.message)

    def look_for(self, node: NodeId) -> None:
        """Try a machine soon: somebody wants it now."""
        now_s = self._read_clock().steady_s
        self._wanted_until_s = {n: until_s for n, until_s in self._wanted_until_s.items() if until_s > now_s}
        self._wanted_until_s[node] = now_s + WANTED_S
        self._members.sighted(node, now_s)
        self._look_now.set()

    def network_changed(self) -> None:
        """Try everybody soon: this machine is somewhere else now."""
        now_s = self._read_clock().steady_s
        for node in self._replica.members_now.certificates:
            self._members.sighted(node, now_s)
        self._look_now.set()

    def sighted(self, instance: str, addresses: tuple[str, ...]) -> None:
        """Note a machine of this mesh (as its tag claims) seen on the LAN; an empty tuple forgets it."""
        if addresses:
            if instance not in self._sighted and len(self._sighted) >= SIGHTED_MAX:
                del self._sighted[next(iter(self._sighted))]
            self._sighted[instance] = addresses
            self._sightings.announced(addresses, self._read_clock().steady_s)
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
            # What a person gave is dialled as it is.
            wanted.link = await self._dial(nursery, wanted.addresses, wanted.expected, None)
        except MeshError as fault:
            wanted.fault = fault
        else:
            nursery.start_soon(self._keep, wanted.link)
        finally:
            wanted.over.set()

    async def _dial(
        self, nursery: trio.Nursery, addresses: Sequence[str], expected: NodeId | None, caution: _Caution | None
    ) -> Link:
        """Dial with the newest gate key, and with older ones where that is met with silence: the other may have slept."""
        first = self._older.pop(expected, 0) if expected is not None else 0
        for older in range(first, first + GATES_A_DIAL_MAX):
            initiator = partial(self._initiators, expected, older)
            try:
                link: Link = await nursery.start(
                    partial(run_dial, addresses, initiator, clock=self._read_clock, caution=caution)
                )
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
            members = self._current()
            links = self._neighbours(now_s)
            self._let_go(members, links)
            for what, addresses, expected in self._candidates(members, links, now_s):
                if len(self._dialling) >= DIALS_AT_ONCE_MAX:
                    break
                self._dialling.add(what)
                nursery.start_soon(self._try, nursery, what, addresses, expected)
            with trio.move_on_after(LOOK_S):
                await self._look_now.wait()

    def _current(self) -> list[Member]:
        """The members that may be linked to; one whose certificate ran out may still catch up."""
        left = self._replica.members_now.left
        return [m for m in self._replica.members() if m.state != "expelled" and m.node not in left]

    def _neighbours(self, now_s: float) -> dict[NodeId, Neighbour]:
        return {
            node: Neighbour(
                held.address is not None,
                held.busy or self._wanted_until_s.get(node, now_s) > now_s,
                now_s - held.since.steady_s,
                links_stated(self._replica.heard, node),
            )
            for node, held in self._links.items()
            if held.is_direct
        }

    def _let_go(self, members: Collection[Member], links: Mapping[NodeId, Neighbour]) -> None:
        for node in surplus(self._replica.me.node, [m.node for m in members], links):
            self._links[node].let_go(self.refusal(node))

    def refusal(self, asking: NodeId) -> str:
        """Say that this machine is full, and name others that are not."""
        now_s = self._read_clock().steady_s
        members = self._current()
        return full_reason(with_room(self._others(members, now_s), asking, self._links))

    def _others(self, members: Collection[Member], now_s: float) -> list[Other]:
        """The members in the order this machine tries them, with what the choice wants to know."""
        by_node = {member.node: member for member in members}
        if self._order[0] != by_node.keys():
            self._order = (frozenset(by_node), spread(by_node, self._seed))
        crowded = sum(held.is_direct for held in self._links.values()) >= CHOSEN_LINKS_MIN and not self._full.may_dial(None, now_s)
        first = [node for node in self._named if node in by_node]
        return [
            Other(
                node,
                bool(self._addresses_of(by_node[node], now_s)),
                self._is_due(node, now_s, crowded=crowded),
                by_node[node].state == "live",
                links_stated(self._replica.heard, node),
            )
            for node in dict.fromkeys((*first, *self._order[1]))
        ]

    def _is_due(self, node: NodeId, now_s: float, *, crowded: bool) -> bool:
        if not self._members.may_dial(node, now_s):
            return False
        return node in self._wanted_until_s or (not crowded and self._full.may_dial(node, now_s))

    def _candidates(
        self, members: Collection[Member], links: Mapping[NodeId, Neighbour], now_s: float
    ) -> list[tuple[object, tuple[str, ...], NodeId | None]]:
        """Whom to dial now: members as the degree wants it, then sightings nobody has proved."""
        by_node = {member.node: member for member in members}
        wanted = {node for node, until_s in self._wanted_until_s.items() if until_s > now_s}
        chosen = choose(self._replica.me.node, self._others(members, now_s), links, self._dialling, wanted)
        found: list[tuple[object, tuple[str, ...], NodeId | None]] = [
            (node, self._addresses_of(by_node[node], now_s), node) for node in chosen
        ]
        proved = {held.address for held in self._links.values()} | {
            address for member in members if member.node in links for address in member.addresses
        }
        for addresses in self._sighted.values():
            fresh = addresses not in self._dialling and self._sightings.may_dial(addresses, now_s)
            if fresh and proved.isdisjoint(addresses):
                found.append((addresses, addresses, None))
        return found

    def _addresses_of(self, member: Member, now_s: float) -> tuple[str, ...]:
        proved = self._proved_of(member.node)
        stated = [
            address
            for address in member.addresses
            if address in proved
            or (dialable(address, loopback=self._loopback, public=member.mine) and self._unproved.may_dial(address, now_s))
        ]
        return tuple(dict.fromkeys((*proved[:2], *stated, *proved[2:])))[:ADDRESSES_MAX]

    def _proved_of(self, node: NodeId) -> list[str]:
        if node not in self._proved:
            self._proved[node] = store.addresses(self._database.reader, node)
        return self._proved[node]

    async def _try(
        self, nursery: trio.Nursery, what: object, addresses: tuple[str, ...], expected: NodeId | None
    ) -> None:
        schedule = self._sightings if expected is None else self._members
        try:
            link = await self._dial(nursery, addresses, expected, self._caution_for(expected))
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

    def _caution_for(self, expected: NodeId | None) -> _Caution:
        """What was sighted has been judged on its way in, by the network it was heard on."""
        member = None if expected is None else self._replica.member(expected)
        proved = frozenset() if expected is None else frozenset(self._proved_of(expected))
        public = member is not None and member.mine
        return _Caution(self._unproved, self._allowance, self._read_clock, self._draw, proved, self._loopback, public, expected is None)


@dataclass(frozen=True, slots=True)
class _Caution:
    """With what care the addresses of one machine are tried; see ``mesh.dialer.Caution``."""

    unproved: Schedule
    allowance: Allowance
    read_clock: Callable[[], Now]
    draw: Callable[[], float]
    proved: frozenset[str]
    loopback: bool
    public: bool
    judged: bool

    def allows(self, address: str) -> bool:
        if address in self.proved:
            return True
        now_s = self.read_clock().steady_s
        sound = self.judged or dialable(address, loopback=self.loopback, public=self.public)
        return sound and self.unproved.may_dial(address, now_s) and self.allowance.take(now_s)

    def failed(self, address: str) -> None:
        if address not in self.proved:
            self.unproved.failed(address, self.read_clock().steady_s, self.draw())
