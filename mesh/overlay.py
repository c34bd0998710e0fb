"""Links to the other machines: forms them, keeps one a machine, and carries records and channels over them.

Satisfies ``mesh.base.ports.Channels``. Who is at the other end comes only from the handshake. Inbound channels are handed
out by memory channel, one a range of purposes, never by callback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from mesh.base.clock import Now
from mesh.base.crypto import Entropy
from mesh.base.db import Database
from mesh.base.errors import Unreachable
from mesh.base.names import NodeId, suffix
from mesh.base.ports import Channel, Incoming
from mesh.certificates import certificate_body_untrusted
from mesh.circuits import Route
from mesh.degree import may_enter
from mesh.dialling import Dialling, Initiators
from mesh.duplicates import ANSWER_S, Duplicates
from mesh.exchange import Exchange, control_only
from mesh.keyring import Keyring
from mesh.kinds import CERTIFICATE, EXPULSION, LEAVING, PRESENCE, Lane, rule_of
from mesh.link import Link
from mesh.messages import CIRCUIT_PURPOSE, MESSAGES
from mesh.presence import states_link
from mesh.reconcile import batches
from mesh.relaying import Relaying, Responder
from mesh.replica import Replica
from mesh.speaking import Place, Speaking
from mesh.topology import Arrivals, LinkFacts, newer_wins

INCOMING_WAITING_MAX = 64
STANDING_S = 10.0
"""How often the certificates at both ends of every link are looked at, when nothing changes."""

log = logging.getLogger("hivemesh.overlay")


@dataclass(slots=True)
class Held:
    """A link this node keeps.

    Attributes:
        via: The relays it goes over, the nearest first; empty where it is direct.
    """

    link: Link
    since: Now
    exchange: Exchange
    via: Route = ()
    reduced: str = ""
    """Why only the control lane was open on it when that was last looked at."""

    @property
    def is_direct(self) -> bool:
        """Whether it is no circuit."""
        return not self.via

    @property
    def address(self) -> str | None:
        """Where it was dialled; None where the peer dialled, and for a circuit."""
        return self.link.remote if self.link.initiator and self.is_direct else None

    async def wait_settled(self) -> None:
        """Wait until channels may be opened on it."""
        await self.exchange.settled.wait()

    @property
    def busy(self) -> bool:
        """Whether channels are open on it."""
        return self.link.busy

    def let_go(self, reason: str) -> None:
        """Close it."""
        self.link.close_nowait(reason)


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
        responders: Makes the answering side of handshakes inside circuits.
        relays: Whether this machine's settings let it relay.
        keyring: The gate and fleet keys.
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
        responders: Callable[[], Responder],
        relays: Callable[[], bool],
        keyring: Keyring,
    ) -> None:
        self._replica = replica
        self._me = replica.me.node
        self._keyring = keyring
        self._read_clock = read_clock
        self._entropy = entropy
        self.links = links
        self._routes: list[tuple[range, trio.MemorySendChannel[Incoming]]] = []
        self._arrivals = Arrivals()
        self._speaking = Speaking(replica, place, self._since_s, read_clock, self.draw)
        self.duplicates = Duplicates(replica, database, place.boot, read_clock, self.draw, self._speaking.speak)
        self._dialling = Dialling(
            replica, database, initiators, read_clock, self.draw,
            gates=lambda: len(keyring.ring()), loopback=place.loopback, links=links, keep=self._keep,
        )
        self.relaying = Relaying(replica, lambda expected: initiators(expected, 0), responders, read_clock, self.draw, relays, links, self._keep)

    # Ports -----------------------------------------------------------------------------------------------------

    async def open_channel(self, node: NodeId, purpose: int, request: bytes, *, bulk: bool = False) -> Channel:
        """Open a channel over the link to a machine; see ``mesh.base.ports.Channels``."""
        held = self.links.get(node)
        if held is None:
            self.look_for(node)
            raise Unreachable("there is no link to that machine now", hint="see `hivemesh peers`")
        await held.wait_settled()
        if reduced := held.exchange.reduced:
            raise Unreachable(f"no work goes over that link: {reduced}", hint="see `hivemesh status` on both machines")
        return await held.link.open_channel(purpose, request, bulk=bulk)

    def incoming(self, purposes: range) -> trio.MemoryReceiveChannel[Incoming]:
        """Receive the channels others open for these purposes."""
        send, receive = trio.open_memory_channel[Incoming](INCOMING_WAITING_MAX)
        self._routes.append((purposes, send))
        return receive

    def look_for(self, node: NodeId) -> None:
        """Try a machine soon: somebody wants it now."""
        self._dialling.look_for(node)
        self.relaying.look_for(node)

    def sighted(self, instance: str, addresses: tuple[str, ...]) -> None:
        """Note a machine of this mesh (as its tag claims) seen on the LAN; an empty tuple forgets it."""
        self._dialling.sighted(instance, addresses)

    async def connect(self, addresses: Sequence[str], expected: NodeId) -> Link:
        """Dial addresses a person gave, now.

        Raises:
            Unreachable, Refused: None proved the expected key.
        """
        return await self._dialling.connect(addresses, expected)

    def network_changed(self) -> None:
        """This machine's own addresses changed: say so and dial anew; links that no longer carry end by themselves."""
        self._dialling.network_changed()
        self._speaking.speak()

    def speak(self) -> None:
        """Say soon what changed about this machine: its name, addresses or load."""
        self._speaking.speak()

    # Life ------------------------------------------------------------------------------------------------------

    async def run(self, arrivals: trio.MemoryReceiveChannel[Link]) -> None:
        """Form and keep links until cancelled.

        Args:
            arrivals: Links that others dialled, their handshake done.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dialling.run)
            nursery.start_soon(self.relaying.run)
            nursery.start_soon(self._speaking.run)
            nursery.start_soon(self.duplicates.run)
            nursery.start_soon(self._run_pushes)
            nursery.start_soon(self._run_standing)
            nursery.start_soon(self._replica.run_sweep)
            async for link in arrivals:
                nursery.start_soon(self._keep, link)

    def close_nowait(self, reason: str) -> None:
        """Say goodbye on every link."""
        for held in list(self.links.values()):
            held.link.close_nowait(reason)

    def _turn_away(self, link: Link, via: Route) -> str | None:
        """Why a machine that dialled gets no link now; None where it gets one."""
        if link.initiator or via:
            return None
        if not self._arrivals.let_in(link.peer, self._read_clock().steady_s):
            return "dialled too often; try again in a minute"
        inbound = sum(held.is_direct and not held.link.initiator for held in self.links.values())
        held = self.links.get(link.peer)
        if (held is not None and held.is_direct) or may_enter(len(self._replica.members_now.certificates) - 1, inbound):
            return None
        return self._dialling.refusal(link.peer)

    async def _keep(self, link: Link, via: Route = ()) -> None:
        """Keep one link to its end."""
        peer, now = link.peer, self._read_clock()
        self.duplicates.see(link)
        refusal = self._turn_away(link, via)
        if refusal is not None:
            link.close_nowait(refusal)
            return
        fresh = Held(link, now, Exchange(link, self._replica, self._keyring, self.draw, partial(self._reduced, link)), via)
        if not await self._takes_place(fresh):
            return
        fresh.reduced = fresh.exchange.reduced
        self.links[peer] = fresh
        way = f", {link.remote}" if via else f", dialled at {fresh.address}" if fresh.address else ""
        log.info("link to %s is up%s", suffix(peer), way)
        self._links_changed()
        # What was learned between the handshake and now has closed nothing: the link was not here yet.
        unwanted = self._unwanted(peer)
        if unwanted is not None:
            link.close_nowait(unwanted)
        try:
            await self._run_link(fresh)
        finally:
            if self.links.get(peer) is fresh:
                del self.links[peer]
                self.duplicates.ended(link)
                if fresh.is_direct:
                    self._speaking.ended(peer)
            if fresh.is_direct:
                self._dialling.lived(peer, self._read_clock().steady_s - now.steady_s, link.close_reason)
            log.info("link to %s is down: %s", suffix(peer), link.close_reason)
            self._links_changed()

    async def _takes_place(self, fresh: Held) -> bool:
        """Decide whether a fresh link is the one to its machine; where it is not, returns when it has ended."""
        link, peer = fresh.link, fresh.link.peer
        while True:
            held = self.links.get(peer)
            old = None if held is None or held.link.closed.is_set() else held.link
            if self.duplicates.is_second(old, link):
                if old is None or await old.answers(ANSWER_S):
                    await self.duplicates.keep_second(old, link)
                    return False
                old.close_nowait("replaced")
                if self.links.get(peer) is held or peer not in self.links:
                    return True
                continue
            if held is not None and old is not None:
                age_s = self._read_clock().steady_s - held.since.steady_s
                facts = LinkFacts(old.session.peer_boot, old.initiator, age_s, held.is_direct)
                if not newer_wins(self._me, peer, facts, LinkFacts(link.session.peer_boot, link.initiator, 0, fresh.is_direct)):
                    link.close_nowait("replaced")
                    return False
                old.close_nowait("replaced")
            return True

    async def _run_link(self, held: Held) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.exchange.run)
            nursery.start_soon(self._route, held)
            nursery.start_soon(self._run_told, held)
            if held.address is not None:
                nursery.start_soon(self._dialling.remember, held.link.peer, held.address)
            await held.link.closed.wait()
            nursery.cancel_scope.cancel()

    async def _run_told(self, held: Held) -> None:
        async for statement in held.exchange.copied:
            self.duplicates.told_untrusted(statement)

    def _since_s(self) -> dict[NodeId, float]:
        return {peer: held.since.steady_s for peer, held in self.links.items() if held.is_direct}

    async def _route(self, held: Held) -> None:
        await held.exchange.settled.wait()
        async for incoming in held.link.incoming:
            target = next((send for purposes, send in self._routes if incoming.purpose in purposes), None)
            try:
                if reduced := held.exchange.reduced:
                    await incoming.channel.aclose(f"no work goes over this link: {reduced}")
                elif incoming.purpose == CIRCUIT_PURPOSE:
                    self.relaying.take_nowait(incoming, direct=held.is_direct)
                elif target is None:
                    await incoming.channel.aclose("nobody serves that here")
                else:
                    target.send_nowait(incoming)
            except trio.WouldBlock:
                await incoming.channel.aclose("busy")
            except trio.BrokenResourceError:
                await incoming.channel.aclose("nobody serves that here")

    def _links_changed(self) -> None:
        self._speaking.speak()
        self._dialling.look()
        self._replica.wake({PRESENCE})

    def draw(self) -> float:
        """A number in [0, 1)."""
        return int.from_bytes(self._entropy(4), "big") / 2**32

    async def _run_pushes(self) -> None:
        async for push in self._replica.pushed:
            messages = [MESSAGES.encode(batch) for batch in batches([r.wire for r in push.records])]
            controls = [MESSAGES.encode(b) for b in batches(control_only([r.wire for r in push.records]))]
            # Who holds a link to where it came from has it from there; what revokes goes every way there is.
            urgent = any(rule_of(record.kind).lane is Lane.CONTROL for record in push.records)
            for peer, held in list(self.links.items()):
                if peer == push.source or (not urgent and push.source is not None and states_link(self._replica.heard, push.source, peer)):
                    continue
                for message in controls if held.exchange.reduced else messages:
                    if not held.link.send_message_nowait(message):
                        # The next comparison brings what did not fit; a push is only the fast way.
                        log.debug("a push to %s was skipped", suffix(peer))
                        break

    def _reduced(self, link: Link) -> str:
        """Why only the control lane is open on a link as far as certificates go; empty where all of it is."""
        if self._replica.me.state == "expired":
            return "this machine's certificate has expired"
        # One whose certificate has not come by record yet has proved it in the handshake.
        member = self._replica.member(link.peer)
        if member is not None:
            return f"the certificate of {member.name} has expired" if member.state == "expired" else ""
        shown = certificate_body_untrusted(link.session.peer_certificate)
        end_s = None if shown is None else shown.not_after_s
        return "" if end_s is None or self._read_clock().wall_ms // 1000 <= end_s else "its certificate has expired"

    def _unwanted(self, peer: NodeId) -> str | None:
        """Why there may be no link to a machine, by what is known now; None where there may."""
        member = self._replica.member(peer)
        if member is not None and member.state == "expelled":
            return "expelled"
        if peer in self._replica.members_now.left:
            return "left"
        return "this machine was expelled" if self._replica.me.state == "expelled" else None

    async def _run_standing(self) -> None:
        """Follow who is a member: close what an expulsion closes at once, and what runs out while a link stands."""
        changes = self._replica.changes({CERTIFICATE, EXPULSION, LEAVING})
        while True:
            for peer, held in list(self.links.items()):
                before, now = held.reduced, held.exchange.reduced
                held.reduced = now
                unwanted = self._unwanted(peer)
                if unwanted is not None:
                    held.link.close_nowait(unwanted)
                elif now and not before:
                    held.link.close_nowait(now)  # What is open on it ends; the next one begins with the control lane only.
                elif before and not now:
                    await held.exchange.compare()
            self._dialling.look()
            with trio.move_on_after(STANDING_S):
                await changes.receive()
