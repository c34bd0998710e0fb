"""Links to the other machines: forms them, keeps one a machine, and carries records and channels over them.

Satisfies ``mesh.base.ports.Channels``. Who is at the other end comes only from the handshake. Inbound channels are handed
out by memory channel, one a range of purposes, never by callback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.codec import encode
from mesh.base.crypto import Entropy
from mesh.base.db import Database
from mesh.base.errors import MeshError, OurFault, Unreachable
from mesh.base.names import NodeId, suffix
from mesh.base.ports import Channel, Incoming, Member
from mesh.dialer import ADDRESSES_MAX, Initiator, run_dial
from mesh.exchange import Exchange
from mesh.kinds import CERTIFICATE, EXPULSION, PRESENCE
from mesh.link import Link
from mesh.messages import MESSAGES
from mesh.presence import LINK_AGE_S_MIN, LINKS_MAX, Presence, link_mark, period_s
from mesh.reconcile import batches
from mesh.replica import Replica
from mesh.topology import ADDRESS_BACKOFF_S_MAX, LinkFacts, Schedule, dialable, newer_wins

INCOMING_WAITING_MAX = 64
DIALS_AT_ONCE_MAX = 8
FULL_MESH_MAX = 12
LOOK_S = 1.0
"""How often the node looks whom to dial, when nothing wakes it earlier."""
ADDRESS_BYTES_MAX = 80
"""A longer address (the name of a host, told by hand) does not fit into a presence and is left out."""
SIGHTED_MAX = 256
"""Announcers on the LAN that are kept to be tried; one more makes the first one forgotten."""
PRESENCE_BURST = 3
PRESENCE_REFILL_S = 2.0

log = logging.getLogger("hivemesh.overlay")


class Initiators(Protocol):
    """Makes the dialling side of handshakes; ``node.app`` supplies it."""

    def __call__(self, expected: NodeId | None) -> Initiator:
        """Make one, which accepts only the expected machine, or any member."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What this machine says of itself in its presence.

    Attributes:
        addresses: Where it can be dialled, at most four, ``host:port``.
        loopback: Whether this node listens on loopback only; then other machines' loopback addresses are its own host's.
        load: Tasks running here for others, and its slots.
    """

    name: Callable[[], str]
    software: str
    boot: bytes
    addresses: Callable[[], tuple[str, ...]]
    loopback: bool
    load: Callable[[], tuple[int, int]]


@dataclass(slots=True)
class Held:
    """A link this node keeps."""

    link: Link
    since: Now
    exchange: Exchange

    @property
    def address(self) -> str | None:
        """Where it was dialled; None where the peer dialled."""
        return self.link.remote if self.link.initiator else None


@dataclass(slots=True)
class _Wanted:
    """A dial somebody waits for."""

    addresses: Sequence[str]
    expected: NodeId
    over: trio.Event
    link: Link | None = None
    fault: MeshError | None = None


class Overlay:
    """Every link of this node.

    Args:
        replica: This machine's copy of the mesh.
        database: ``mesh.db``, for the addresses that proved a key.
        place: What to say of this machine.
        initiators: Makes the dialling side of handshakes.
        read_clock: Reads both clocks.
        entropy: Randomness.
        links: Where the links are kept, for the replica to look at.
    """

    def __init__(
        self,
        replica: Replica,
        database: Database,
        place: Place,
        initiators: Initiators,
        read_clock: Callable[[], Now],
        entropy: Entropy,
        links: dict[NodeId, Held],
    ) -> None:
        self._replica = replica
        self._me = replica.me.node
        self._database = database
        self._place = place
        self._initiators = initiators
        self._read_clock = read_clock
        self._entropy = entropy
        self.links = links
        self._routes: list[tuple[range, trio.MemorySendChannel[Incoming]]] = []
        self._members = Schedule()
        self._addresses = Schedule(backoff_s_max=ADDRESS_BACKOFF_S_MAX)
        self._dialling: set[object] = set()
        self._sighted: dict[str, tuple[str, ...]] = {}
        self._look_now = trio.Event()
        self._speak_now = trio.Event()
        self._want, self._wanted = trio.open_memory_channel[_Wanted](0)

    # Ports -----------------------------------------------------------------------------------------------------

    async def open_channel(self, node: NodeId, purpose: int, request: bytes, *, bulk: bool = False) -> Channel:
        """Open a channel over the link to a machine; see ``mesh.base.ports.Channels``."""
        held = self.links.get(node)
        if held is None:
            self.look_for(node)
            raise Unreachable("there is no link to that machine now", hint="see `hivemesh peers`")
        await held.exchange.settled.wait()
        return await held.link.open_channel(purpose, request, bulk=bulk)

    def incoming(self, purposes: range) -> trio.MemoryReceiveChannel[Incoming]:
        """Receive the channels others open for these purposes."""
        send, receive = trio.open_memory_channel[Incoming](INCOMING_WAITING_MAX)
        self._routes.append((purposes, send))
        return receive

    # Life ------------------------------------------------------------------------------------------------------

    async def run(self, arrivals: trio.MemoryReceiveChannel[Link]) -> None:
        """Form and keep links until cancelled.

        Args:
            arrivals: Links that others dialled, their handshake done.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_dialling, nursery)
            nursery.start_soon(self._run_pushes)
            nursery.start_soon(self._run_presence)
            nursery.start_soon(self._run_expulsions)
            nursery.start_soon(self._replica.run_sweep)
            nursery.start_soon(self._run_wanted, nursery)
            async for link in arrivals:
                nursery.start_soon(self._keep, link)

    def close_nowait(self, reason: str) -> None:
        """Say goodbye on every link."""
        for held in list(self.links.values()):
            held.link.close_nowait(reason)

    async def _keep(self, link: Link) -> None:
        """Keep one link to its end."""
        peer, now = link.peer, self._read_clock()
        fresh = Held(link, now, Exchange(link, self._replica, self.draw))
        old = self.links.get(peer)
        if old is not None and not old.link.closed.is_set():
            held = LinkFacts(old.link.session.peer_boot, old.link.initiator, now.steady_s - old.since.steady_s)
            if not newer_wins(self._me, peer, held, LinkFacts(link.session.peer_boot, link.initiator, 0)):
                link.close_nowait("replaced")
                return
            old.link.close_nowait("replaced")
        self.links[peer] = fresh
        log.info("link to %s is up%s", suffix(peer), f", dialled at {fresh.address}" if fresh.address else "")
        self._links_changed()
        try:
            await self._run_link(fresh)
        finally:
            if self.links.get(peer) is fresh:
                del self.links[peer]
            ended = self._read_clock()
            self._members.lived(peer, ended.steady_s - now.steady_s, ended.steady_s, self.draw())
            log.info("link to %s is down: %s", suffix(peer), link.close_reason)
            self._links_changed()

    async def _run_link(self, held: Held) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.exchange.run)
            nursery.start_soon(self._route, held)
            if held.address is not None:
                nursery.start_soon(self._remember, held.link.peer, held.address)
            await held.link.closed.wait()
            nursery.cancel_scope.cancel()

    async def _remember(self, peer: NodeId, address: str) -> None:
        now_ms = self._read_clock().wall_ms
        try:
            await self._database.write(lambda connection: store.note_address(connection, peer, address, now_ms))
        except OurFault as fault:
            log.warning("an address was not remembered: %s", fault.message)

    async def _route(self, held: Held) -> None:
        await held.exchange.settled.wait()
        async for incoming in held.link.incoming:
            target = next((send for purposes, send in self._routes if incoming.purpose in purposes), None)
            try:
                if target is None:
                    await incoming.channel.aclose("nobody serves that here")
                else:
                    target.send_nowait(incoming)
            except trio.WouldBlock:
                await incoming.channel.aclose("busy")
            except trio.BrokenResourceError:
                await incoming.channel.aclose("nobody serves that here")

    def _links_changed(self) -> None:
        self._speak_now.set()
        self._look_now.set()
        self._replica.wake({PRESENCE})

    def draw(self) -> float:
        """A number in [0, 1)."""
        return int.from_bytes(self._entropy(4), "big") / 2**32

    # Dialling --------------------------------------------------------------------------------------------------

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
        link: Link = await nursery.start(
            partial(run_dial, addresses, lambda: self._initiators(expected), clock=self._read_clock)
        )
        return link

    async def _run_dialling(self, nursery: trio.Nursery) -> None:
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
        others = [m for m in self._replica.members() if m.state not in ("expelled", "expired")]
        if len(self.links) < FULL_MESH_MAX:
            for member in others:
                addresses = self._addresses_of(member)
                free = member.node not in self.links and member.node not in self._dialling
                if free and addresses and self._members.may_dial(member.node, now_s):
                    found.append((member.node, addresses, member.node))
        proved = {held.address for held in self.links.values()} | {
            address for member in others if member.linked for address in member.addresses
        }
        for addresses in self._sighted.values():
            fresh = addresses not in self._dialling and self._addresses.may_dial(addresses, now_s)
            if fresh and proved.isdisjoint(addresses):
                found.append((addresses, addresses, None))
        return found

    def _addresses_of(self, member: Member) -> tuple[str, ...]:
        proved = store.addresses(self._database.reader, member.node)
        stated = [a for a in member.addresses if dialable(a, loopback=self._place.loopback)]
        return tuple(dict.fromkeys((*proved[:2], *stated, *proved[2:])))[:ADDRESSES_MAX]

    async def _try(
        self, nursery: trio.Nursery, what: object, addresses: tuple[str, ...], expected: NodeId | None
    ) -> None:
        schedule = self._addresses if expected is None else self._members
        try:
            link = await self._dial(nursery, addresses, expected)
        except MeshError as error:
            log.debug("dialling %s failed: %s", ", ".join(addresses), error.message)
            schedule.failed(what, self._read_clock().steady_s, self.draw())
        else:
            if expected is None:
                schedule.failed(what, self._read_clock().steady_s, self.draw())
            nursery.start_soon(self._keep, link)
        finally:
            self._dialling.discard(what)

    # Speaking --------------------------------------------------------------------------------------------------

    async def _run_pushes(self) -> None:
        async for push in self._replica.pushed:
            messages = [MESSAGES.encode(batch) for batch in batches([r.wire for r in push.records])]
            for peer, held in list(self.links.items()):
                if peer == push.source:
                    continue
                for message in messages:
                    if not held.link.send_message_nowait(message):
                        # The next comparison brings what did not fit; a push is only the fast way.
                        log.debug("a push to %s was skipped", suffix(peer))
                        break

    async def _run_presence(self) -> None:
        tokens, filled_at = float(PRESENCE_BURST), trio.current_time()
        while True:
            self._speak_now = trio.Event()
            tokens = min(PRESENCE_BURST, tokens + (trio.current_time() - filled_at) / PRESENCE_REFILL_S)
            filled_at = trio.current_time()
            if tokens < 1:
                await trio.sleep((1 - tokens) * PRESENCE_REFILL_S)
                tokens, filled_at = 1.0, trio.current_time()
            tokens -= 1
            members = len(self._replica.members_now.certificates)
            try:
                await self._replica.publish(PRESENCE, b"", encode(self._presence(members)))
            except OurFault as fault:
                log.error("presence was not published: %s", fault.message)
            with trio.move_on_after(period_s(members) * (0.9 + 0.1 * self.draw())):
                await self._speak_now.wait()
                await trio.sleep(LINK_AGE_S_MIN / 4)

    def speak(self) -> None:
        """Say soon what changed about this machine: its name, addresses or load."""
        self._speak_now.set()

    def _presence(self, members: int) -> Presence:
        running, slots = self._place.load()
        marks = tuple(link_mark(self._me, peer) for peer in sorted(self.links))[:LINKS_MAX]
        return Presence(
            self._place.boot,
            period_s(members),
            self._place.name(),
            self._place.software,
            tuple(a for a in self._place.addresses() if len(a.encode()) <= ADDRESS_BYTES_MAX)[:4],
            marks,
            running,
            slots,
        )

    async def _run_expulsions(self) -> None:
        """Close the link of a machine that is expelled, within one wake of knowing."""
        async for _ in self._replica.changes({CERTIFICATE, EXPULSION}):
            for peer, held in list(self.links.items()):
                # One whose certificate has not come by record yet has proved it in the handshake.
                member = self._replica.member(peer)
                if member is not None and member.state in ("expelled", "expired"):
                    held.link.close_nowait(member.state)
            self._look_now.set()
