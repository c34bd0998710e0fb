"""The multiplexer: every message once, in order, byte for byte; credit kept; every queue bounded; breaches named."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mesh.base.errors import PeerFault, Refused
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX
from mesh.frames import (
    CONTROL_LANE,
    FRAME_COST_BYTES,
    GOSSIP_LANE,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    ChannelEnded,
    ChannelMessage,
    ChannelOpened,
    Event,
    Kind,
    MessageArrived,
    PeerLeft,
    Pong,
    credit_frame,
    data_header,
    end_frame,
    open_frame,
    small_frame,
)
from mesh.mux import (
    BULK_WINDOW_BYTES,
    CHANNELS_EACH_MAX,
    LANE_QUEUE_BYTES_MAX,
    WINDOW_BYTES,
    WINDOWS_BYTES_MAX,
    Mux,
)


def pair() -> tuple[Mux, Mux]:
    return Mux(initiator=True), Mux(initiator=False)


def move(source: Mux, target: Mux, budget: int = PAYLOAD_BYTES_MAX) -> list[Event]:
    events: list[Event] = []
    while payload := source.next_payload(budget):
        assert len(payload) <= budget
        events += target.receive_untrusted(payload)
    return events


def settle(a: Mux, b: Mux) -> list[Event]:
    """Move everything both ways, taking every message out at once."""
    seen: list[Event] = []
    for _ in range(100):
        events = [(b, e) for e in move(a, b)] + [(a, e) for e in move(b, a)]
        if not events:
            return seen
        for side, event in events:
            take(side, event)
            seen.append(event)
    raise AssertionError("the two sides never come to rest")


def take(side: Mux, event: Event) -> None:
    if isinstance(event, MessageArrived):
        side.consume(event.lane, event.cost)
    elif isinstance(event, ChannelOpened | ChannelMessage):
        side.consume(event.channel, event.cost)


def test_messages_and_channels_cross() -> None:
    a, b = pair()
    assert a.send_message(b"hello")
    assert a.send_message(b"first", control=True)
    channel = a.open_channel(70, b"please")
    assert a.send_on(channel, b"")
    assert channel == 3
    events = move(a, b)
    assert [type(e) for e in events] == [MessageArrived, MessageArrived, ChannelOpened, ChannelMessage]
    assert events[0] == MessageArrived(CONTROL_LANE, b"first", FRAME_COST_BYTES + 5)
    assert events[1] == MessageArrived(GOSSIP_LANE, b"hello", FRAME_COST_BYTES + 5)
    assert events[2] == ChannelOpened(3, 70, b"please", False, FRAME_COST_BYTES + 6)
    assert events[3] == ChannelMessage(3, b"", FRAME_COST_BYTES)
    assert b.open_channel(1, b"") == 2


def test_small_messages_share_a_payload() -> None:
    a, b = pair()
    for n in range(500):
        assert a.send_message(b"%d" % n * 50)
    payload = a.next_payload(PAYLOAD_BYTES_MAX)
    assert payload is not None
    assert a.next_payload(PAYLOAD_BYTES_MAX) is None
    assert len(b.receive_untrusted(payload)) == 500


def test_large_messages_are_cut_and_come_back_whole() -> None:
    a, b = pair()
    message = bytes(range(256)) * (CHANNEL_MESSAGE_BYTES_MAX // 256)
    channel = a.open_channel(1, message)
    assert a.send_on(channel, message[::-1])
    events = move(a, b, PAYLOAD_BYTES_MIN)
    assert [e.request if isinstance(e, ChannelOpened) else e.message for e in events] == [message, message[::-1]]  # type: ignore[union-attr]


def test_a_full_window_stops_the_sender_until_the_reader_reads() -> None:
    """O-T9: a reader that does not take messages out costs one window of memory, no more."""
    a, b = pair()
    channel = a.open_channel(1, b"")
    arrived: list[Event] = []
    sent = 0
    while a.send_on(channel, bytes(8000)):
        sent += 1
        arrived += move(a, b)
    held = sum(e.cost for e in arrived)  # type: ignore[union-attr]
    assert held <= WINDOW_BYTES
    assert sent * 8000 <= 2 * WINDOW_BYTES
    assert a.next_payload(PAYLOAD_BYTES_MAX) is None
    for event in arrived:
        take(b, event)
    move(b, a)
    before = len(arrived)
    arrived += move(a, b)
    assert len(arrived) > before
    assert a.take_writable() == [channel]


def test_bulk_has_the_larger_window() -> None:
    a, b = pair()
    channel = a.open_channel(1, b"", bulk=True)
    arrived: list[Event] = []
    while a.send_on(channel, bytes(60_000)):
        arrived += move(a, b)
    assert WINDOW_BYTES < sum(e.cost for e in arrived) <= BULK_WINDOW_BYTES  # type: ignore[union-attr]


def test_overrun_is_the_peers_fault() -> None:
    _, b = pair()
    frame = data_header(GOSSIP_LANE, 60_000, more=False) + bytes(60_000)
    for _ in range(WINDOW_BYTES // (60_000 + FRAME_COST_BYTES)):
        b.receive_untrusted(frame)
    with pytest.raises(PeerFault, match="credit"):
        b.receive_untrusted(frame)


def test_lane_queue_is_bounded() -> None:
    a, _ = pair()
    queued = 0
    while a.send_message(bytes(1000)):
        queued += 1
    assert LANE_QUEUE_BYTES_MAX * 0.9 < queued * (1000 + FRAME_COST_BYTES) <= LANE_QUEUE_BYTES_MAX
    b = Mux(initiator=False)
    assert a.take_writable() == []
    while arrived := move(a, b):
        for event in arrived:
            take(b, event)
        move(b, a)
    assert a.take_writable() == [GOSSIP_LANE]


def test_at_most_half_of_the_channels_belong_to_each_side() -> None:
    a, b = pair()
    for _ in range(CHANNELS_EACH_MAX):
        a.open_channel(1, b"")
    with pytest.raises(Refused) as caught:
        a.open_channel(1, b"")
    assert caught.value.reason == "limit"
    settle(a, b)
    with pytest.raises(PeerFault, match="too many"):
        b.receive_untrusted(open_frame(3 + 2 * CHANNELS_EACH_MAX, 1, bulk=False))


def test_windows_together_are_bounded_and_the_next_channel_is_refused() -> None:
    a, b = pair()
    for _ in range(WINDOWS_BYTES_MAX // BULK_WINDOW_BYTES - 1):
        b.open_channel(1, b"", bulk=True)
    last = [a.open_channel(1, b"", bulk=True), a.open_channel(1, b"", bulk=True)]
    events = settle(a, b)
    ended = [e for e in events if isinstance(e, ChannelEnded)]
    assert [e.channel for e in ended if e.channel % 2] == last[1:]
    assert "too many" in ended[-1].reason


def test_close_in_order_comes_behind_the_last_message_and_frees_the_number() -> None:
    a, b = pair()
    channel = a.open_channel(1, b"request")
    a.send_on(channel, b"data")
    a.close_channel(channel)
    a.close_channel(channel, "twice does nothing")
    events = move(a, b)
    assert events[-1] == ChannelEnded(channel, "")
    assert move(b, a) == []
    for event in events:
        take(b, event)
    move(b, a)
    with pytest.raises(PeerFault, match="not open"):
        a.receive_untrusted(data_header(channel, 0, more=False))
    with pytest.raises(PeerFault, match="not open"):
        b.receive_untrusted(data_header(channel, 0, more=False))


def test_close_with_a_reason_drops_what_waits() -> None:
    a, b = pair()
    channel = a.open_channel(1, b"")
    while a.send_on(channel, bytes(50_000)):
        pass
    move(a, b)
    a.close_channel(channel, "not wanted")
    assert move(a, b)[-1] == ChannelEnded(channel, "not wanted")


def test_a_sender_blocked_on_credit_is_not_stuck_when_the_other_side_closes_in_order() -> None:
    a, b = pair()
    channel = a.open_channel(1, b"")
    move(a, b)
    while b.send_on(channel, bytes(50_000)):
        move(b, a)
    a.close_channel(channel)
    events = move(a, b)
    assert ChannelEnded(channel, "") in events
    for event in events:
        take(b, event)
    b.consume(channel, FRAME_COST_BYTES)
    settle(a, b)
    assert channel in b.take_writable()
    for _ in range(CHANNELS_EACH_MAX):
        a.open_channel(1, b"")


def test_data_on_a_channel_we_closed_is_dropped_and_its_credit_returned() -> None:
    a, b = pair()
    channel = a.open_channel(1, b"")
    take(b, move(a, b)[0])
    while a.send_on(channel, bytes(50_000)):
        pass
    b.close_channel(channel)
    total = 0
    while payload := a.next_payload(PAYLOAD_BYTES_MAX):
        total += len(payload)
        assert b.receive_untrusted(payload) == []
    assert total > WINDOW_BYTES * 0.7
    settle(a, b)


def test_ping_is_answered_and_only_the_newest_kept() -> None:
    a, b = pair()
    a.ping(b"11111111")
    a.ping(b"22222222")
    assert move(a, b) == []
    for n in range(1000):
        b.receive_untrusted(small_frame(Kind.PING, b"%08d" % n))
    assert move(b, a) == [Pong(b"00000999")]


def test_farewell() -> None:
    a, _ = pair()
    assert a.receive_untrusted(Mux.farewell("replaced")) == [PeerLeft("replaced")]


@pytest.mark.parametrize(
    "frame",
    [
        data_header(3, 0, more=False),
        data_header(GOSSIP_LANE, 0, more=True),
        open_frame(3, 1, bulk=False),
        open_frame(0, 1, bulk=False),
        open_frame(1, 1, bulk=False),
        open_frame(2, 1, bulk=False) + open_frame(2, 1, bulk=False),
        open_frame(4, 1, bulk=False) + open_frame(2, 1, bulk=False),
        end_frame(Kind.CLOSE, "", 0),
        end_frame(Kind.CLOSE, "", 3),
        open_frame(2, 1, bulk=False) + end_frame(Kind.CLOSE, "", 2) + data_header(2, 0, more=False),
        open_frame(2, 1, bulk=False) + end_frame(Kind.CLOSE, "", 2) + end_frame(Kind.CLOSE, "", 2),
        credit_frame(3, 1),
        credit_frame(GOSSIP_LANE, 1),
        data_header(1, 61_000, more=True) + bytes(61_000) + data_header(1, 441, more=False) + bytes(441),
    ],
)
def test_breaches_are_the_peers_fault(frame: bytes) -> None:
    with pytest.raises(PeerFault):
        Mux(initiator=True).receive_untrusted(frame)


SIZES = st.one_of(st.integers(0, 300), st.integers(0, 20_000), st.just(CHANNEL_MESSAGE_BYTES_MAX))


class Conversation(RuleBasedStateMachine):
    """Two sides, any interleaving: a model of plain lists must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = pair()
        self.wire: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self.sent: dict[tuple[int, int], list[bytes]] = {}
        self.got: dict[tuple[int, int], list[bytes]] = {}
        self.inbox: tuple[list[Event], list[Event]] = ([], [])
        self.open: tuple[set[int], set[int]] = (set(), set())
        self.serial = 0

    def body(self, size: int) -> bytes:
        self.serial += 1
        return (b"%09d" % self.serial * (size // 9 + 1))[:size]

    def keep(self, side: int, number: int, message: bytes) -> None:
        self.sent.setdefault((side, number), []).append(message)

    @rule(side=st.integers(0, 1), size=SIZES, control=st.booleans())
    def message(self, side: int, size: int, control: bool) -> None:
        body = self.body(size)
        if self.sides[side].send_message(body, control=control):
            self.keep(side, CONTROL_LANE if control else GOSSIP_LANE, body)

    @rule(side=st.integers(0, 1), size=SIZES, bulk=st.booleans())
    def open_channel(self, side: int, size: int, bulk: bool) -> None:
        body = self.body(size)
        number = self.sides[side].open_channel(9, body, bulk=bulk)
        self.keep(side, number, body)
        self.open[side].add(number)

    @precondition(lambda self: any(self.open))
    @rule(pick=st.randoms(use_true_random=False), size=SIZES, count=st.integers(1, 8))
    def send(self, pick, size: int, count: int) -> None:
        side, number = pick.choice([(s, n) for s in (0, 1) for n in sorted(self.open[s])])
        for _ in range(count):
            body = self.body(size)
            if self.sides[side].send_on(number, body):
                self.keep(side, number, body)

    @rule(side=st.integers(0, 1), budget=st.integers(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX))
    def transmit(self, side: int, budget: int) -> None:
        if payload := self.sides[side].next_payload(budget):
            assert len(payload) <= budget
            self.wire[side].append(payload)

    @rule(side=st.integers(0, 1))
    def deliver(self, side: int) -> None:
        if not self.wire[side]:
            return
        for event in self.sides[1 - side].receive_untrusted(self.wire[side].popleft()):
            self.inbox[1 - side].append(event)
            if isinstance(event, MessageArrived):
                self.got.setdefault((side, event.lane), []).append(event.message)
            elif isinstance(event, ChannelOpened):
                self.open[1 - side].add(event.channel)
                self.got.setdefault((side, event.channel), []).append(event.request)
            elif isinstance(event, ChannelMessage):
                self.got.setdefault((side, event.channel), []).append(event.message)

    @rule(side=st.integers(0, 1), count=st.integers(1, 40))
    def read(self, side: int, count: int) -> None:
        for event in self.inbox[side][:count]:
            take(self.sides[side], event)
        del self.inbox[side][:count]

    @invariant()
    def received_is_a_prefix_of_sent(self) -> None:
        for key, messages in self.got.items():
            assert messages == self.sent[key][: len(messages)]

    @invariant()
    def unread_fits_the_windows(self) -> None:
        for inbox in self.inbox:
            held: dict[int, int] = {}
            for event in inbox:
                if isinstance(event, MessageArrived):
                    held[event.lane] = held.get(event.lane, 0) + event.cost
                elif isinstance(event, ChannelOpened | ChannelMessage):
                    held[event.channel] = held.get(event.channel, 0) + event.cost
            assert all(cost <= BULK_WINDOW_BYTES for cost in held.values())

    def teardown(self) -> None:
        for _ in range(3000):
            moved = False
            for side in (0, 1):
                self.transmit(side, PAYLOAD_BYTES_MAX)
                moved = moved or bool(self.wire[side] or self.inbox[side])
                self.deliver(side)
                self.read(side, 1 << 30)
            if not moved:
                break
        assert self.got == self.sent


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_channels_that_open_and_close_in_any_order_free_their_places(data: st.DataObject) -> None:
    a, b = pair()
    sides = (a, b)
    opened: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 60))):
        if opened and data.draw(st.booleans()):
            _, number = opened.pop(data.draw(st.integers(0, len(opened) - 1)))
            sides[data.draw(st.integers(0, 1))].close_channel(number, data.draw(st.sampled_from(["", "why"])))
        else:
            side = data.draw(st.integers(0, 1))
            opened.append((side, sides[side].open_channel(1, b"x", bulk=data.draw(st.booleans()))))
        if data.draw(st.booleans()):
            settle(a, b)
    settle(a, b)
    for _, number in opened:
        a.close_channel(number)
    settle(a, b)
    for side in sides:
        for _ in range(CHANNELS_EACH_MAX // 2):
            side.open_channel(1, b"")
    settle(a, b)
