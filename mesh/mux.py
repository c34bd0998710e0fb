"""Many conversations over one link: lanes, channels, priorities, credits.

A DATA frame costs its body and FRAME_COST_BYTES in credit, so that even empty messages are bounded; credit is the
receiver's promise of memory and comes back as the application takes messages out. The other frames cost none: each is
bounded by the number of flows, or only the newest is kept.

A CLOSE ends both directions. The flow is free again once each side has sent one; the receiver of the first answers
after its application took out what had arrived, and what it still wanted to send is dropped.

Order of sending: frames without credit, then the control lane, gossip, channels, bulk; while a lower class waits it
gets one byte in eight, so that nothing starves. Everything that arrives is checked; any breach is a PeerFault and
ends the link.

Source: docs/PROTOCOL.md, section 4.
"""

from __future__ import annotations

from collections import deque

from mesh.base.errors import PeerFault, Refused
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX
from mesh.flows import BULK_RANK, CHANNEL_RANK, Flow, Turns
from mesh.frames import (
    CONTROL_LANE,
    FLOW_MAX,
    FRAME_COST_BYTES,
    GOSSIP_LANE,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    PING_BYTES,
    PURPOSE_MAX,
    ChannelEnded,
    ChannelMessage,
    ChannelOpened,
    Event,
    Kind,
    MessageArrived,
    PeerLeft,
    Pong,
    credit_frame,
    end_frame,
    open_frame,
    read_u16,
    read_u32,
    reason_untrusted,
    small_frame,
    split_untrusted,
)

WINDOW_BYTES = 256 * 1024
BULK_WINDOW_BYTES = 1024 * 1024
WINDOWS_BYTES_MAX = 32 * 1024 * 1024
"""The sum of the windows of a link's open channels; the next one is refused."""
CHANNELS_EACH_MAX = 128
"""Channels each side may have opened at a time: 256 a link."""
LANE_QUEUE_BYTES_MAX = 2 * 1024 * 1024


class Mux:
    """The multiplexer of one link: events in, frames out. Pure; the shell moves the bytes.

    Args:
        initiator: Whether this side dialled.
    """

    def __init__(self, *, initiator: bool) -> None:
        self._next_own = 3 if initiator else 2
        self._last_peer = 0 if initiator else 1
        self._peer_parity = 0 if initiator else 1
        self._flows = {lane: self._new_flow(lane, lane, WINDOW_BYTES) for lane in (CONTROL_LANE, GOSSIP_LANE)}
        self._own_open = self._peer_open = self._windows_bytes = 0
        self._urgent: deque[bytes] = deque()
        self._grants: dict[int, int] = {}
        self._ping = self._pong = b""
        self._turns = Turns()
        self._writable: list[int] = []

    @staticmethod
    def _new_flow(number: int, rank: int, window: int) -> Flow:
        return Flow(number, rank, window, credit=window, granted=window)

    # What the application asks for.

    def send_message(self, message: bytes, *, control: bool = False) -> bool:
        """Queue a message on a lane.

        Args:
            message: At most CHANNEL_MESSAGE_BYTES_MAX bytes.
            control: The lane that goes before everything else.

        Returns:
            False, with nothing queued, where the lane holds LANE_QUEUE_BYTES_MAX already; :meth:`take_writable` says
            when there is room again.
        """
        flow = self._flows[CONTROL_LANE if control else GOSSIP_LANE]
        return self._queue(flow, message, LANE_QUEUE_BYTES_MAX)

    def open_channel(self, purpose: int, request: bytes, *, bulk: bool = False) -> int:
        """Open a channel.

        Args:
            purpose: 0 to PURPOSE_MAX.
            request: The first message, at most CHANNEL_MESSAGE_BYTES_MAX bytes.
            bulk: A larger window, behind everything else.

        Returns:
            The channel's number.

        Raises:
            Refused: Too many are open, or the link's numbers are used up.
        """
        assert 0 <= purpose <= PURPOSE_MAX
        window = BULK_WINDOW_BYTES if bulk else WINDOW_BYTES
        if self._own_open >= CHANNELS_EACH_MAX or self._windows_bytes + window > WINDOWS_BYTES_MAX:
            raise Refused(
                "too many channels are open to that machine", reason="limit", hint="try again later"
            )
        if self._next_own > FLOW_MAX:
            raise Refused("this link is used up", reason="limit", hint="link again")
        number, self._next_own = self._next_own, self._next_own + 2
        flow = self._new_flow(number, BULK_RANK if bulk else CHANNEL_RANK, window)
        self._flows[number] = flow
        self._own_open += 1
        self._windows_bytes += window
        self._urgent.append(open_frame(number, purpose, bulk=bulk))
        self._queue(flow, request, window)
        return number

    def send_on(self, channel: int, message: bytes) -> bool:
        """Queue a message on a channel.

        Args:
            channel: An open one; on a closed one the message is dropped.
            message: At most CHANNEL_MESSAGE_BYTES_MAX bytes.

        Returns:
            False, with nothing queued, where a window's worth is queued already; :meth:`take_writable` says when
            there is room again.
        """
        flow = self._flows.get(channel)
        if flow is None or flow.closing is not None or flow.ended:
            return True
        return self._queue(flow, message, flow.window)

    def consume(self, flow_number: int, cost: int) -> None:
        """Tell that the application took a message out, so that the peer may send more.

        Args:
            flow_number: The lane or channel it came on; a channel that is gone is ignored.
            cost: As in the event.
        """
        flow = self._flows.get(flow_number)
        if flow is None or flow.closing is not None:
            return
        flow.unread -= cost
        assert flow.unread >= 0, "more was consumed than arrived"
        self._owe(flow, cost)
        if flow.ended and flow.unread == 0:
            self._close(flow, "")

    def close_channel(self, channel: int, reason: str = "") -> None:
        """Close a channel; nothing happens where it is closed.

        Args:
            channel: Its number.
            reason: Empty means in order, behind what is queued; else what is queued is dropped.
        """
        flow = self._flows.get(channel)
        if flow is not None and flow.closing is None:
            self._close(flow, reason)

    def ping(self, token: bytes) -> None:
        """Ask the peer for a sign of life; a newer ping replaces one not yet sent.

        Args:
            token: 8 bytes.
        """
        assert len(token) == PING_BYTES
        self._ping = small_frame(Kind.PING, token)

    # What goes out.

    def has_output(self) -> bool:
        """Whether anything may be waiting to go out."""
        return bool(self._urgent or self._grants or self._ping or self._pong or self._turns.waiting())

    def next_payload(self, bytes_max: int) -> bytes | None:
        """Pack as many queued frames as fit into one payload.

        Args:
            bytes_max: PAYLOAD_BYTES_MIN to PAYLOAD_BYTES_MAX.

        Returns:
            The payload, or None where nothing can go.
        """
        assert PAYLOAD_BYTES_MIN <= bytes_max <= PAYLOAD_BYTES_MAX
        parts: list[bytes] = []
        room = bytes_max - self._pack_urgent(parts, bytes_max)
        while turn := self._turns.pack(parts, room):
            flow, used = turn
            room -= used
            self._after_turn(flow)
        return b"".join(parts) or None

    def take_writable(self) -> list[int]:
        """Take the flows whose queue has room again after a refused message."""
        if not self._writable:
            return []
        taken, self._writable = self._writable, []
        return taken

    @staticmethod
    def farewell(reason: str) -> bytes:
        """Make the last payload of a link."""
        return end_frame(Kind.BYE, reason)

    def _pack_urgent(self, parts: list[bytes], room: int) -> int:
        used = 0
        for small in (self._pong, self._ping):
            if small:
                parts.append(small)
                used += len(small)
        self._ping = self._pong = b""
        while self._grants and used + HEADER_BYTES + 4 <= room:
            number, amount = self._grants.popitem()
            parts.append(credit_frame(number, amount))
            used += HEADER_BYTES + 4
        while self._urgent and used + len(self._urgent[0]) <= room:
            used += len(self._urgent[0])
            parts.append(self._urgent.popleft())
        return used

    def _after_turn(self, flow: Flow) -> None:
        if flow.waited and flow.queued_bytes <= flow.window // 2:
            flow.waited = False
            self._writable.append(flow.number)
        self._release(flow)

    # What comes in.

    def receive_untrusted(self, payload: bytes) -> list[Event]:
        """Take one payload from the peer.

        Args:
            payload: Anything.

        Returns:
            What happened, in order.

        Raises:
            PeerFault: The peer broke the protocol; the link must end.
        """
        events: list[Event] = []
        for kind, flag, number, body in split_untrusted(payload):
            if kind is Kind.DATA:
                self._on_data(number, flag, body, events)
            elif kind is Kind.CREDIT:
                self._on_credit(number, read_u32(body))
            elif kind is Kind.OPEN:
                self._on_open(number, read_u16(body), bulk=flag)
            elif kind is Kind.CLOSE:
                self._on_close(number, reason_untrusted(body), events)
            elif kind is Kind.PING:
                self._pong = small_frame(Kind.PONG, body)
            elif kind is Kind.PONG:
                events.append(Pong(body))
            else:
                events.append(PeerLeft(reason_untrusted(body)))
        return events

    def _on_data(self, number: int, more: bool, body: bytes, events: list[Event]) -> None:
        flow = self._flows.get(number)
        if flow is None or flow.ended:
            raise PeerFault("the peer sent on a channel that is not open")
        cost = FRAME_COST_BYTES + len(body)
        if cost > flow.granted:
            raise PeerFault("the peer sent more than it had credit for")
        if more and not body:
            raise PeerFault("the peer sent an empty piece of a message")
        flow.granted -= cost
        if flow.closing is not None:
            self._owe(flow, cost)
            return
        flow.parts_bytes += len(body)
        flow.parts_cost += cost
        if flow.parts_bytes > CHANNEL_MESSAGE_BYTES_MAX:
            raise PeerFault("the peer sent an overlong message")
        flow.parts.append(body)
        if more:
            return
        message = b"".join(flow.parts) if len(flow.parts) > 1 else body
        cost, flow.parts, flow.parts_bytes, flow.parts_cost = flow.parts_cost, [], 0, 0
        flow.unread += cost
        if flow.rank <= GOSSIP_LANE:
            events.append(MessageArrived(number, message, cost))
        elif flow.opening is not None:
            events.append(ChannelOpened(number, flow.opening, message, flow.rank == BULK_RANK, cost))
            flow.opening = None
        else:
            events.append(ChannelMessage(number, message, cost))

    def _on_open(self, number: int, purpose: int, *, bulk: bool) -> None:
        if number <= self._last_peer or number % 2 != self._peer_parity:
            raise PeerFault("the peer opened a channel wrongly")
        if self._peer_open >= CHANNELS_EACH_MAX:
            raise PeerFault("the peer opened too many channels")
        self._last_peer = number
        self._peer_open += 1
        flow = self._new_flow(
            number, BULK_RANK if bulk else CHANNEL_RANK, BULK_WINDOW_BYTES if bulk else WINDOW_BYTES
        )
        flow.opening = purpose
        self._flows[number] = flow
        refused = self._windows_bytes + flow.window > WINDOWS_BYTES_MAX
        self._windows_bytes += flow.window
        if refused:
            self._close(flow, "too many channels are open")

    def _on_credit(self, number: int, amount_bytes: int) -> None:
        flow = self._flows.get(number)
        if flow is None:
            if not self._was_used(number):
                raise PeerFault("the peer gave credit for a channel that never was")
            return
        flow.credit += amount_bytes
        if flow.credit > flow.window:
            raise PeerFault("the peer gave more credit than a window")
        self._turns.touch(flow)

    def _on_close(self, number: int, reason: str, events: list[Event]) -> None:
        flow = self._flows.get(number)
        if flow is None or flow.ended or number <= GOSSIP_LANE:
            raise PeerFault("the peer closed a channel that is not open")
        flow.ended = True
        flow.drop_queue()
        self._writable.append(number)
        told = flow.closing is None and flow.opening is None
        if flow.closing is None and flow.unread == 0:
            self._close(flow, "")
        self._turns.touch(flow)
        self._release(flow)
        if told:
            events.append(ChannelEnded(number, reason))

    # Both directions.

    def _was_used(self, number: int) -> bool:
        if number % 2 == self._peer_parity:
            return number <= self._last_peer
        return 1 < number < self._next_own

    def _queue(self, flow: Flow, message: bytes, queued_bytes_max: int) -> bool:
        assert len(message) <= CHANNEL_MESSAGE_BYTES_MAX
        if flow.queued_bytes + len(message) + FRAME_COST_BYTES * (len(flow.queue) + 1) > queued_bytes_max:
            flow.waited = True
            return False
        flow.queue.append(message)
        flow.queued_bytes += len(message)
        self._turns.touch(flow)
        return True

    def _owe(self, flow: Flow, cost: int) -> None:
        """Give credit back in large steps, so that it costs few frames; half a window always stays with the peer."""
        flow.owed += cost
        if flow.owed >= flow.window // 2 and not flow.ended:
            flow.granted += flow.owed
            self._grants[flow.number] = self._grants.get(flow.number, 0) + flow.owed
            flow.owed = 0

    def _close(self, flow: Flow, reason: str) -> None:
        """Close this side: what arrives from now on is dropped, and its credit given back at once."""
        flow.closing = reason
        flow.opening = None
        if reason or flow.ended:
            flow.drop_queue()
        taken, flow.unread, flow.parts = flow.unread + flow.parts_cost, 0, []
        flow.parts_bytes = flow.parts_cost = 0
        self._owe(flow, taken)
        self._turns.touch(flow)

    def _release(self, flow: Flow) -> None:
        """Forget a channel that both sides have closed."""
        if not (flow.close_sent and flow.ended):
            return
        del self._flows[flow.number]
        self._grants.pop(flow.number, None)
        self._windows_bytes -= flow.window
        if flow.number % 2 == self._peer_parity:
            self._peer_open -= 1
        else:
            self._own_open -= 1
