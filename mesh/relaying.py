"""Circuits as they run: opens them, ends them here, and passes on what goes through. ``mesh.circuits`` decides.

At both ends the handshake and an ordinary link run inside the circuit, so everything above works over it unchanged. A
relay holds at most the windows of the two channels it joins, hands bytes on as their shares allow, and knows the way,
sizes and times, never what is inside.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

import trio

from mesh.base.clock import Now
from mesh.base.errors import MeshError, PeerFault, Refused, Unreachable
from mesh.base.names import NodeId, suffix
from mesh.base.ports import Channel, Incoming
from mesh.circuitpipe import CircuitPipe
from mesh.circuits import (
    WORDS,
    Circuit,
    Openings,
    Relay,
    Route,
    Surroundings,
    Why,
    choose_routes,
    false_link,
    read_answer_untrusted,
    read_open_untrusted,
)
from mesh.dialer import Initiator
from mesh.handshake import Session
from mesh.kinds import CERTIFICATE, EXPULSION, Role
from mesh.link import Link, confirm_link, run_link
from mesh.messages import CIRCUIT_MESSAGES, CIRCUIT_PURPOSE, CircuitAnswer, CircuitOpen, CircuitRefused
from mesh.replica import Replica

LOOK_S = 1.0
"""How often this machine looks to whom a circuit is due."""
WATCH_S = 10.0
"""How often it looks which circuits through it must end, when nothing wakes it earlier."""
OPEN_S = 10.0
"""One way to one machine, handshake included."""
OPENING_MAX = 4
"""Circuits being opened at a time; the next look takes the others."""
ASKING_MAX = 64
"""Requests of neighbours that wait to be judged; one more is closed unanswered."""
CIRCUIT_MESH_MAX = 12
"""In a mesh of up to so many machines circuits lead to all that dialling does not reach, else to those asked for."""

log = logging.getLogger("hivemesh.relaying")


class Responder(Protocol):
    """The answering side of one handshake; :class:`mesh.handshake.Responder` is the one."""

    def accept_untrusted(self, hello: bytes) -> bytes:
        """Take message 1; make message 2."""
        ...

    def finish_untrusted(self, closing: bytes) -> Session:
        """Take message 3; the session exists only now."""
        ...


class Carrying(Protocol):
    """What is looked at of a link that stands."""

    @property
    def link(self) -> Link:
        """The link."""
        ...

    @property
    def via(self) -> Route:
        """The relays it goes over; empty where it is direct."""
        ...

    async def wait_settled(self) -> None:
        """Wait until channels may be opened on it."""
        ...


class RefusedOnTheWay(Unreachable):
    """Somebody on the way, or the machine at its end, does not carry this circuit."""

    kind = "circuit_refused"


class Relaying:
    """The circuits of this machine.

    Args:
        replica: This machine's copy of the mesh.
        initiators: Makes the opening side of a handshake with one machine.
        responders: Makes the answering side of a handshake.
        read_clock: Reads both clocks.
        draw: A number in [0, 1) from the node's randomness.
        relays: Whether this machine's setting lets it relay.
        links: The links that stand.
        keep: Keeps a fresh link, and the relays it goes over, to its end.
    """

    def __init__(
        self,
        replica: Replica,
        initiators: Callable[[NodeId | None], Initiator],
        responders: Callable[[], Responder],
        read_clock: Callable[[], Now],
        draw: Callable[[], float],
        relays: Callable[[], bool],
        links: Mapping[NodeId, Carrying],
        keep: Callable[[Link, Route], Awaitable[None]],
    ) -> None:
        self._replica = replica
        self._me = replica.me.node
        self._initiators = initiators
        self._responders = responders
        self._read_clock = read_clock
        self._draw = draw
        self._relays = relays
        self._links = links
        self._keep = keep
        self._openings = Openings(self._me)
        self._opening: set[NodeId] = set()
        self.relay = Relay(self._me)
        self._ends: dict[int, Callable[[str], None]] = {}
        self._ask, self._asking = trio.open_memory_channel[tuple[Incoming, bool]](ASKING_MAX)

    async def run(self) -> None:
        """Open, end and relay circuits until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_openings, nursery)
            nursery.start_soon(self._run_watch)
            nursery.start_soon(self._run_news)
            async for incoming, direct in self._asking:
                nursery.start_soon(self._serve, incoming, direct)

    def look_for(self, node: NodeId) -> None:
        """Somebody wants this machine now."""
        self._openings.ask_for(node, self._now_s())

    def take_nowait(self, incoming: Incoming, *, direct: bool) -> None:
        """Take a channel a neighbour opened for a circuit; ``direct`` says whether its link is no circuit itself.

        Raises:
            trio.WouldBlock: ASKING_MAX wait already.
        """
        self._ask.send_nowait((incoming, direct))

    def _now_s(self) -> float:
        return self._read_clock().steady_s

    def _direct(self) -> set[NodeId]:
        return {node for node, held in self._links.items() if not held.via}

    def _around(self) -> Surroundings:
        def current(node: NodeId) -> bool:
            member = self._replica.member(node)
            return member is not None and member.state not in ("expelled", "expired")

        return Surroundings(self._direct(), current, self._relays() and self._replica.may(Role.RELAY))

    # Opening ---------------------------------------------------------------------------------------------------

    async def _run_openings(self, nursery: trio.Nursery) -> None:
        while True:
            now_s = self._now_s()
            for target in self._openings.due(self._apart(now_s), now_s):
                if target in self._opening or len(self._opening) >= OPENING_MAX:
                    continue
                routes = self._routes(target, now_s)
                if routes:
                    self._opening.add(target)
                    nursery.start_soon(self._open, target, routes)
                elif self._openings.asked(target, now_s):
                    self._openings.failed(target, now_s, self._draw())
            await trio.sleep(LOOK_S)

    def _apart(self, now_s: float) -> list[NodeId]:
        """The machines this one wants a link to and holds none."""
        current = [m.node for m in self._replica.members() if m.state not in ("expelled", "expired")]
        small = len(current) < CIRCUIT_MESH_MAX
        return [node for node in current if node not in self._links and (small or self._openings.asked(node, now_s))]

    def _routes(self, target: NodeId, now_s: float) -> list[Route]:
        members = self._replica.members()
        relays = [m.node for m in members if "relay" in m.roles and m.state not in ("expelled", "expired")]
        heard, false = self._replica.heard, self._openings.disbelieved(now_s)
        return choose_routes(self._me, target, heard, self._direct(), relays, now_s, false)

    async def _open(self, target: NodeId, routes: list[Route]) -> None:
        """Try the ways in turn; run the link of the first that holds."""
        opened: tuple[Link, Route] | None = None
        try:
            for route in routes:
                try:
                    opened = await self._open_one(target, route), route
                    break
                except MeshError as fault:
                    log.debug("no circuit to %s via %s: %s", suffix(target), _shown(route), fault.message)
                    if not isinstance(fault, (Unreachable, PeerFault)):
                        break
        finally:
            self._opening.discard(target)
        if opened is None:
            self._openings.failed(target, self._now_s(), self._draw())
            return
        since_s = self._now_s()
        await self._run_inside(*opened)
        now_s = self._now_s()
        self._openings.lived(target, now_s - since_s, now_s, self._draw())

    async def _open_one(self, target: NodeId, route: Route) -> Link:
        initiator = self._initiators(target)
        with trio.move_on_after(OPEN_S):
            request = CIRCUIT_MESSAGES.encode(CircuitOpen(route, 1, initiator.hello))
            channel = await self._onward(route[1], request)
            whole = False
            try:
                link = await self._prove(channel, route, initiator)
                whole = True
                return link
            finally:
                if not whole:
                    channel.close_nowait("the circuit was not made")
        raise Unreachable("no answer over that way")

    async def _prove(self, channel: Channel, route: Route, initiator: Initiator) -> Link:
        first = await channel.receive()
        answer = read_answer_untrusted(first if first is not None else b"")
        if isinstance(answer, CircuitRefused):
            link = false_link(route, answer)
            if link is not None:
                self._openings.disbelieve(link, self._now_s())
            raise RefusedOnTheWay(WORDS.get(answer.why, "a machine on the way refuses"))
        closing, session = initiator.answer_untrusted(answer.reply)
        pipe = CircuitPipe(channel, is_client=True, remote=f"via {_shown(route)}")
        await pipe.send(closing)
        return await confirm_link(pipe, session, clock=self._read_clock)

    async def _onward(self, neighbour: NodeId, request: bytes) -> Channel:
        """Open the channel of one hop; only over a direct link."""
        held = self._links.get(neighbour)
        if held is None or held.via:
            raise Unreachable("there is no direct link to that machine now")
        await held.wait_settled()
        return await held.link.open_channel(CIRCUIT_PURPOSE, request)

    async def _run_inside(self, link: Link, route: Route) -> None:
        """Run and keep the link inside a circuit to its end."""
        way = route[1:-1] if route[0] == self._me else route[-2:0:-1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_link, link)
            await self._keep(link, way)

    # Serving ---------------------------------------------------------------------------------------------------

    async def _serve(self, incoming: Incoming, direct: bool) -> None:
        """Judge one request, then end the circuit here or pass it on, until it is over."""
        channel = incoming.channel
        try:
            opened = read_open_untrusted(incoming.request)
        except PeerFault as fault:
            channel.close_nowait(fault.message)
            return
        verdict = self.relay.admit(opened, channel.peer, self._around(), self._now_s(), direct=direct)
        if isinstance(verdict, Why):
            log.info("a circuit asked for by %s is refused: %s", suffix(channel.peer), WORDS[verdict])
            await _refuse(channel, opened, verdict)
            return
        try:
            if verdict.after is None:
                await self._arrive(verdict, opened, channel)
            else:
                await self._pass_on(verdict, verdict.after, opened, channel)
        except MeshError as fault:
            log.debug("circuit %s ended: %s", _shown(verdict.route), fault.message)
        finally:
            self.relay.close(verdict)
            self._ends.pop(verdict.number, None)
            channel.close_nowait("the circuit ended")

    async def _arrive(self, circuit: Circuit, opened: CircuitOpen, channel: Channel) -> None:
        try:
            responder = self._responders()
            reply = responder.accept_untrusted(opened.hello)
        except MeshError:
            await _refuse(channel, opened, Why.NO_HANDSHAKE)
            return
        self._ends[circuit.number] = channel.close_nowait
        pipe = CircuitPipe(channel, is_client=False, remote=f"via {_shown(circuit.route)}")
        link: Link | None = None
        with trio.move_on_after(OPEN_S):
            await channel.send(CIRCUIT_MESSAGES.encode(CircuitAnswer(reply)))
            session = responder.finish_untrusted(await pipe.receive())
            if session.peer != circuit.route[0]:
                raise Refused("another machine opened the circuit than its route says", reason="other_machine")
            link = await confirm_link(pipe, session, clock=self._read_clock)
        if link is not None:
            await self._run_inside(link, circuit.route)

    async def _pass_on(self, circuit: Circuit, after: NodeId, opened: CircuitOpen, channel: Channel) -> None:
        try:
            onward = await self._onward(after, CIRCUIT_MESSAGES.encode(replace(opened, at=opened.at + 1)))
        except Unreachable:
            await _refuse(channel, opened, Why.NO_LINK)
            return

        def end(reason: str) -> None:
            channel.close_nowait(reason)
            onward.close_nowait(reason)

        self._ends[circuit.number] = end
        reason = "the relay stopped"

        async def run_way(source: Channel, sink: Channel) -> None:
            nonlocal reason
            reason = await self._carry(circuit, source, sink)
            nursery.cancel_scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_way, channel, onward)
                nursery.start_soon(run_way, onward, channel)
        finally:
            end(reason)

    async def _carry(self, circuit: Circuit, source: Channel, sink: Channel) -> str:
        """Pass on what comes from one side, as the shares allow; gives the reason of the end, empty for in order."""
        try:
            while (message := await source.receive()) is not None:
                wait_s = self.relay.passes(circuit, source.peer, len(message), self._now_s())
                if wait_s > 0:
                    await trio.sleep(wait_s)
                await sink.send(message)
        except Unreachable:
            return "a link on the way ended"
        return ""

    # Ending ----------------------------------------------------------------------------------------------------

    async def _run_watch(self) -> None:
        while True:
            self._end_overdue()
            await trio.sleep(WATCH_S)

    async def _run_news(self) -> None:
        async for _ in self._replica.changes({CERTIFICATE, EXPULSION}):
            self._end_overdue()

    def _end_overdue(self) -> None:
        for circuit, reason in self.relay.overdue(self._around(), self._now_s()):
            end = self._ends.get(circuit.number)
            if end is not None:
                log.info("circuit %s is closed: %s", _shown(circuit.route), reason)
                end(reason)


async def _refuse(channel: Channel, opened: CircuitOpen, why: Why) -> None:
    try:
        await channel.send(CIRCUIT_MESSAGES.encode(CircuitRefused(opened.at, int(why))))
    except Unreachable:
        return
    await channel.aclose()


def _shown(route: Route) -> str:
    return ">".join(suffix(node) for node in route)
