"""A link to one member: a session's keys around a pipe, a multiplexer inside, one writer and one reader.

The reader never waits for whoever uses the link: a consumer that is behind gives no credit, and the peer then stops by
itself. The writer packs whatever waits into one payload, so small messages travel together. However the transport
fails, the outcome is one event: ``closed``, with one reason, the first.

Who the link belongs to comes only from the session, never from an address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from mesh.base.clock import Now, read_clock
from mesh.base.crypto import BadSeal, StreamOpener, StreamSealer
from mesh.base.errors import PeerFault, Refused, Unreachable
from mesh.base.ports import Channel, Incoming
from mesh.channels import Arrivals, LinkChannel, Messages
from mesh.frames import (
    CONTROL_LANE,
    GOSSIP_LANE,
    PING_BYTES,
    ChannelEnded,
    ChannelMessage,
    ChannelOpened,
    Event,
    MessageArrived,
    PeerLeft,
    Pong,
)
from mesh.handshake import Session
from mesh.mux import Mux
from mesh.pace import TICK_S, Liveness, PayloadBudget, Verdict
from mesh.pipe import CLOSE_S

INCOMING_MAX = 64
"""Channels a peer opened that nobody took yet; the next is refused."""


class MessagePipe(Protocol):
    """What a link runs over: a websocket (:class:`mesh.pipe.Pipe`), or a circuit through other machines."""

    @property
    def remote(self) -> str:
        """The peer's address, or the way to it, as text."""
        ...

    @property
    def is_client(self) -> bool:
        """Whether this side began."""
        ...

    @property
    def received_bytes(self) -> int:
        """How many bytes came so far, of whole messages or not."""
        ...

    async def send(self, message: bytes) -> None:
        """Send one message; raises Unreachable."""
        ...

    async def receive(self) -> bytes:
        """Wait for the next message; raises Unreachable, PeerFault."""
        ...

    async def aclose(self) -> None:
        """Close in order, within CLOSE_S."""
        ...

    def abort(self) -> None:
        """End it now."""
        ...


class Link:
    """A live connection to one member. Made by the listener and the dialer.

    Attributes:
        peer: The machine at the other end, proved by its key.
        session: What the handshake found.
        initiator: Whether this side dialled.
        remote: The peer's address and port, as text; proves nothing.
        opened_at: When the peer's first sealed payload opened.
        rtt_ms: The last measured round trip in milliseconds, or None.
        messages: What the peer sent on the lanes; at most a window of each waits.
        incoming: Channels the peer opened; at most INCOMING_MAX wait.
        closed: Set once, when nothing of the connection is left.
        close_reason: Why, for a person; empty while it is open.
    """

    def __init__(self, pipe: MessagePipe, session: Session, clock: Callable[[], Now]) -> None:
        self.peer = session.peer
        self.session = session
        self.initiator = pipe.is_client
        self.remote = pipe.remote
        self.opened_at = clock()
        self.rtt_ms: float | None = None
        self.closed = trio.Event()
        self.close_reason = ""
        self._pipe = pipe
        self._clock = clock
        self._mux = Mux(initiator=pipe.is_client)
        self._sealer = StreamSealer(session.send_key)
        self._opener = StreamOpener(session.receive_key)
        self._budget = PayloadBudget()
        self._lanes = Arrivals(self)
        self.messages = Messages(self._lanes)
        self._to_incoming, self.incoming = trio.open_memory_channel[Incoming](INCOMING_MAX)
        self._channels: dict[int, LinkChannel] = {}
        self._lane_room = trio.Event()
        self._something_to_send = trio.Event()
        self._ending = trio.Event()
        self._written = trio.Event()
        self._polite = False
        self._heard = False
        self._writing_since: float | None = None
        self._pinged: tuple[bytes, float] = (b"", 0.0)
        self._pings = 0
        self._ponged = trio.Event()

    def __repr__(self) -> str:
        return f"<Link to {self.peer.hex()[:8]} at {self.remote}>"

    @property
    def busy(self) -> bool:
        """Whether channels are open on it."""
        return bool(self._channels)

    def send_message_nowait(self, data: bytes, *, control: bool = False) -> bool:
        """Queue a message on a lane.

        Args:
            data: At most CHANNEL_MESSAGE_BYTES_MAX bytes.
            control: Goes before everything else.

        Returns:
            False, with nothing queued, where the queue is full (the peer is too slow) or the link has ended.
        """
        if self._ending.is_set() or not self._mux.send_message(data, control=control):
            return False
        self._wake()
        return True

    async def send_message(self, data: bytes, *, control: bool = False) -> None:
        """Queue a message on a lane; waits for room, for whoever has more to say than the queue holds.

        Args:
            data: At most CHANNEL_MESSAGE_BYTES_MAX bytes.
            control: Goes before everything else.

        Raises:
            Unreachable: The link ended.

        If cancelled: the message was not queued.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.send_message_nowait(data, control=control):
            if self._ending.is_set():
                raise Unreachable(f"the link ended: {self.close_reason}")
            if self._lane_room.is_set():
                self._lane_room = trio.Event()
            await self._lane_room.wait()

    async def open_channel(self, purpose: int, request: bytes, *, bulk: bool = False) -> Channel:
        """Open a channel; see :meth:`mesh.base.ports.Channels.open_channel`.

        Args:
            purpose: What for, 0 to PURPOSE_MAX.
            request: The first message, at most CHANNEL_MESSAGE_BYTES_MAX bytes.
            bulk: Much data, behind everything else.

        Raises:
            Unreachable: The link ended, or too many channels are open on it.
        """
        await trio.lowlevel.checkpoint()
        if self._ending.is_set():
            raise Unreachable(f"the link ended: {self.close_reason}")
        try:
            number = self._mux.open_channel(purpose, request, bulk=bulk)
        except Refused as refused:
            raise Unreachable(refused.message, hint=refused.hint) from None
        channel = self._channels[number] = LinkChannel(self, number)
        self._wake()
        return channel

    async def answers(self, within_s: float) -> bool:
        """Whether the peer still answers on this link.

        Args:
            within_s: How long it may take, in seconds.
        """
        self._ponged = trio.Event()
        self._ping()
        with trio.move_on_after(within_s):
            await self._ponged.wait()
        return self._ponged.is_set() and not self.closed.is_set()

    def close_nowait(self, reason: str) -> None:
        """End the link and tell the peer why; what is queued is dropped, only the first reason is kept.

        Args:
            reason: One line for a person; at most 200 bytes travel.
        """
        self._fail(reason, polite=True)

    # What the channels ask for.

    def _wake(self) -> None:
        self._something_to_send.set()

    def consume(self, flow: int, cost: int) -> None:
        """Give credit back for what was taken out; called by the channels and the messages of this link."""
        self._mux.consume(flow, cost)
        if self._mux.has_output():
            self._wake()

    def send_on(self, number: int, message: bytes) -> bool:
        """Queue a message on a channel; called by the channels of this link."""
        queued = self._mux.send_on(number, message)
        if queued:
            self._wake()
        return queued

    def close_channel(self, number: int, reason: str) -> None:
        """Close this side of a channel; called by the channels of this link."""
        self._channels.pop(number, None)
        self._mux.close_channel(number, reason)
        self._wake()

    # The three tasks of a running link.

    def _fail(self, reason: str, *, polite: bool = False) -> None:
        """Begin the end; ``polite`` where the peer is there and should be told."""
        if not self._ending.is_set():
            self.close_reason = reason
            self._polite = polite
            self._ending.set()
            self._wake()
            self._lane_room.set()

    def _ping(self) -> None:
        self._pings += 1
        self._pinged = (self._pings.to_bytes(PING_BYTES, "big"), trio.current_time())
        self._mux.ping(self._pinged[0])
        self._wake()

    async def _write(self) -> None:
        """Send what waits, as it comes; say farewell at the end where the peer should know why."""
        try:
            while not self._ending.is_set():
                payload = self._mux.next_payload(self._budget.bytes_max)
                if payload is None:
                    self._something_to_send = trio.Event()
                    await self._something_to_send.wait()
                else:
                    await self._send_payload(payload)
            if self._polite:
                await self._pipe.send(self._sealer.push(self._mux.farewell(self.close_reason), final=True))
        except Unreachable as lost:
            self._fail(lost.message)
        finally:
            self._written.set()

    async def _send_payload(self, payload: bytes) -> None:
        for number in self._mux.take_writable():
            self._give_room(number)
        started = self._writing_since = trio.current_time()
        await self._pipe.send(self._sealer.push(payload))
        self._writing_since = None
        self._budget.sent(len(payload), trio.current_time() - started)

    def _give_room(self, number: int) -> None:
        if number in (CONTROL_LANE, GOSSIP_LANE):
            self._lane_room.set()
        elif number in self._channels:
            self._channels[number].has_room()

    async def _confirm(self) -> None:
        """Exchange a first payload each, so that both sides have proved their keys."""
        self._ping()
        first = self._mux.next_payload(self._budget.bytes_max)
        assert first is not None, "the ping"
        await self._pipe.send(self._sealer.push(first))
        data = await self._pipe.receive()
        try:
            payload = self._opener.pull(data)
        except BadSeal:
            raise self.session.refused_untrusted(data) from None
        self._take_untrusted(payload)
        self.opened_at = self._clock()

    async def _read(self) -> None:
        """Take what comes; never waits for whoever uses it."""
        try:
            while not self._ending.is_set():
                self._take_untrusted(self._opener.pull(await self._pipe.receive()))
        except PeerFault as fault:
            self._fail(f"the peer broke the protocol: {fault.message}", polite=True)
        except Unreachable as lost:
            self._fail(lost.message)

    def _take_untrusted(self, payload: bytes) -> None:
        """Take one authenticated payload; the peer is a member, what it says is still unchecked."""
        self._heard = True
        for event in self._mux.receive_untrusted(payload):
            self._dispatch(event)
        if self._mux.has_output():
            self._wake()

    def _dispatch(self, event: Event) -> None:
        match event:
            case MessageArrived(lane, message, cost):
                self._lanes.put(lane, message, cost)
            case ChannelMessage(number, message, cost):
                if number in self._channels:
                    self._channels[number].put(message, cost)
            case ChannelOpened():
                self._offer(event)
            case ChannelEnded(number, reason):
                if number in self._channels:
                    self._channels.pop(number).end(reason)
            case Pong(token):
                self._ponged.set()
                if token == self._pinged[0]:
                    self.rtt_ms = (trio.current_time() - self._pinged[1]) * 1000
            case PeerLeft(reason):
                self._fail(f"the other side ended the link: {reason}")

    def _offer(self, opened: ChannelOpened) -> None:
        channel = LinkChannel(self, opened.channel)
        self.consume(opened.channel, opened.cost)
        try:
            self._to_incoming.send_nowait(Incoming(channel, opened.purpose, opened.request))
        except trio.WouldBlock:
            self._mux.close_channel(opened.channel, "too many channels wait there")
        else:
            self._channels[opened.channel] = channel

    async def _beat(self) -> None:
        """Watch both clocks and the peer's signs of life."""
        liveness = Liveness(self._clock(), initiator=self.initiator)
        received_bytes = 0
        while True:
            await trio.sleep(TICK_S)
            writing_s = 0.0 if self._writing_since is None else trio.current_time() - self._writing_since
            before, received_bytes = received_bytes, self._pipe.received_bytes
            verdict = liveness.tick(
                self._clock(), heard=self._heard, arriving=received_bytes > before, writing_s=writing_s
            )
            self._heard = False
            if verdict is Verdict.PING:
                self._ping()
            elif verdict is not Verdict.REST:
                self._fail(f"the other side is {verdict.value}")

    def _end(self) -> None:
        self._fail("this machine stopped the link")
        self._lanes.end(self.close_reason)
        self._to_incoming.close()
        for channel in self._channels.values():
            channel.end(f"the link ended: {self.close_reason}")
        self._channels.clear()
        self.closed.set()
        self._ponged.set()


async def confirm_link(pipe: MessagePipe, session: Session, *, clock: Callable[[], Now] = read_clock) -> Link:
    """Confirm the keys with the peer and make the link; :func:`run_link` must follow.

    Args:
        pipe: The handshake went over it; nothing was sent or received since.
        session: What the handshake found.
        clock: Reads both clocks.

    Raises:
        PeerFault: The peer does not hold the session's keys.
        Unreachable: The connection ended. There is no limit of time: the caller sets one.
    """
    link = Link(pipe, session, clock)
    await link._confirm()
    return link


async def run_link(link: Link) -> None:
    """Run a link until it ends; however that comes about, this returns and ``link.closed`` is set.

    The end takes at most twice CLOSE_S, whatever the peer does.

    If cancelled: the connection is reset at once, ``closed`` is set.
    """
    try:
        async with trio.open_nursery() as nursery:
            for task in (link._write, link._read, link._beat):
                nursery.start_soon(task)
            await link._ending.wait()
            with trio.move_on_after(CLOSE_S):
                await link._written.wait()
            nursery.cancel_scope.cancel()
        if link._polite:
            await link._pipe.aclose()
    finally:
        link._pipe.abort()
        link._end()
