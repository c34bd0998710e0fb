"""What the users of a link hold: waiting, credit, and ends, over a link made of lists."""

from __future__ import annotations

import pytest
import trio

from mesh.base.errors import Unreachable
from mesh.base.names import NodeId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel
from mesh.channels import Arrivals, LinkChannel, Messages


class Lists:
    """A carrier that takes a fixed number of messages and notes everything."""

    def __init__(self, room: int = 1000) -> None:
        self.peer = NodeId(bytes(16))
        self.room = room
        self.sent: list[tuple[int, bytes]] = []
        self.consumed: list[tuple[int, int]] = []
        self.closed: list[tuple[int, str]] = []

    def consume(self, flow: int, cost: int) -> None:
        self.consumed.append((flow, cost))

    def send_on(self, number: int, message: bytes) -> bool:
        if len(self.sent) >= self.room:
            return False
        self.sent.append((number, message))
        return True

    def close_channel(self, number: int, reason: str) -> None:
        self.closed.append((number, reason))


async def test_messages_come_out_in_order_and_give_their_credit_back() -> None:
    carrier = Lists()
    arrivals = Arrivals(carrier)
    messages = Messages(arrivals)
    arrivals.put(1, b"a", 65)
    arrivals.put(0, b"b", 66)
    assert [await messages.receive(), messages.receive_nowait()] == [b"a", b"b"]
    assert carrier.consumed == [(1, 65), (0, 66)]
    with pytest.raises(trio.WouldBlock):
        messages.receive_nowait()
    arrivals.put(1, b"last", 68)
    arrivals.end("over")
    arrivals.end("a second reason")
    assert [m async for m in messages] == [b"last"]
    assert arrivals.over == "over"
    with pytest.raises(trio.EndOfChannel):
        messages.receive_nowait()


async def test_every_waiting_receiver_and_sender_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    carrier = Lists(room=0)
    channel: Channel = LinkChannel(carrier, 3)
    got: list[bytes | None] = []

    async def receive() -> None:
        got.append(await channel.receive())

    async with trio.open_nursery() as nursery:
        for n in range(3):
            nursery.start_soon(receive)
            nursery.start_soon(channel.send, b"%d" % n)
        await trio.testing.wait_all_tasks_blocked()
        assert carrier.sent == []
        carrier.room = 3
        channel.has_room()  # type: ignore[attr-defined]
        for n in range(3):
            channel.put(b"in%d" % n, 64)  # type: ignore[attr-defined]
    assert sorted(carrier.sent) == [(3, b"0"), (3, b"1"), (3, b"2")]
    assert sorted(got) == [b"in0", b"in1", b"in2"]  # type: ignore[type-var]


async def test_cancelling_a_wait_queues_and_loses_nothing() -> None:
    carrier = Lists(room=0)
    channel = LinkChannel(carrier, 3)
    with trio.move_on_after(0.01):
        await channel.send(b"x")
    with trio.move_on_after(0.01):
        await channel.receive()
    carrier.room = 1
    channel.put(b"y", 64)
    assert await channel.receive() == b"y"
    assert carrier.sent == []


async def test_the_end_comes_behind_what_arrived() -> None:
    channel = LinkChannel(Lists(), 3)
    channel.put(b"x", 64)
    channel.end("")
    assert [await channel.receive(), await channel.receive()] == [b"x", None]
    with pytest.raises(Unreachable, match="closed it"):
        await channel.send(b"")
    channel = LinkChannel(Lists(), 3)
    channel.put(b"x", 64)
    channel.end("why")
    assert await channel.receive() == b"x"
    with pytest.raises(Unreachable, match="why"):
        await channel.receive()


async def test_closing_here_closes_once_and_drops_what_waits() -> None:
    carrier = Lists()
    channel = LinkChannel(carrier, 3)
    channel.put(b"x", 64)
    await channel.aclose("not wanted")
    await channel.aclose()
    assert carrier.closed == [(3, "not wanted")]
    with pytest.raises(Unreachable):
        await channel.receive()
    with pytest.raises(Unreachable):
        await channel.send(b"")


async def test_an_overlong_message_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        await LinkChannel(Lists(), 3).send(bytes(CHANNEL_MESSAGE_BYTES_MAX + 1))
