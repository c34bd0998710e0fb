"""A link over a real socket: messages, channels, their ends, and every way the transport can fail."""

from __future__ import annotations

import pytest
import trio

from mesh.base.clock import Now
from mesh.base.errors import Unreachable
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel
from mesh.link import INCOMING_MAX, Link
from mesh.mux import CHANNELS_EACH_MAX, LANE_QUEUE_BYTES_MAX, WINDOW_BYTES
from tests.fakes.links import open_links, until


async def accept(link: Link) -> Channel:
    with trio.fail_after(5):
        return (await link.incoming.receive()).channel


async def test_both_sides_know_who_the_other_is_by_the_session() -> None:
    async with open_links() as (near, far):
        assert near.peer == near.session.peer != far.peer == far.session.peer
        assert near.initiator
        assert not far.initiator
        await until(lambda: near.rtt_ms is not None and far.rtt_ms is not None)
        assert near.rtt_ms is not None
        assert 0 < near.rtt_ms < 5000
        assert near.close_reason == ""


async def test_messages_arrive_in_order_on_each_lane() -> None:
    async with open_links() as (near, far):
        for n in range(500):
            assert near.send_message_nowait(b"%d" % n)
            assert near.send_message_nowait(b"c%d" % n, control=True)
        got = []
        with trio.fail_after(5):
            async for message in far.messages:
                got.append(message)
                if len(got) == 1000:
                    break
        assert [m for m in got if not m.startswith(b"c")] == [b"%d" % n for n in range(500)]
        assert [m for m in got if m.startswith(b"c")] == [b"c%d" % n for n in range(500)]
        assert got[0] == b"c0"
        with pytest.raises(trio.WouldBlock):
            far.messages.receive_nowait()


async def test_channel_carries_a_conversation_and_closes_in_order() -> None:
    async with open_links() as (near, far):
        channel = await near.open_channel(70, b"please")
        incoming = await far.incoming.receive()
        assert (incoming.purpose, incoming.request) == (70, b"please")
        assert incoming.channel.peer == far.peer
        whole = bytes(CHANNEL_MESSAGE_BYTES_MAX)
        await channel.send(b"")
        await channel.send(whole)
        await incoming.channel.send(b"answer")
        assert await incoming.channel.receive() == b""
        assert await incoming.channel.receive() == whole
        await channel.aclose()
        await channel.aclose("twice does nothing")
        assert await incoming.channel.receive() is None
        assert await incoming.channel.receive() is None
        with pytest.raises(Unreachable, match="closed it"):
            await incoming.channel.send(b"late")
        with pytest.raises(Unreachable, match="closed here"):
            await channel.receive()
        with pytest.raises(Unreachable, match="closed here"):
            await channel.send(b"late")


async def test_channel_closed_with_a_fault_says_so_behind_what_arrived() -> None:
    async with open_links() as (near, far):
        channel = await near.open_channel(1, b"")
        other = await accept(far)
        await other.send(b"partial")
        assert await channel.receive() == b"partial"
        await other.aclose("disk full")
        with pytest.raises(Unreachable, match="disk full"):
            await channel.receive()


async def test_much_data_crosses_both_ways_with_more_than_one_window() -> None:
    async with open_links() as (near, far):
        a = await near.open_channel(1, b"", bulk=True)
        b = await accept(far)
        piece, pieces = bytes(range(256)) * 200, 100

        async def push(channel: Channel) -> None:
            for n in range(pieces):
                await channel.send(n.to_bytes(2, "big") + piece)

        async def pull(channel: Channel) -> None:
            for n in range(pieces):
                assert await channel.receive() == n.to_bytes(2, "big") + piece

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for task in (push, pull):
                    nursery.start_soon(task, a)
                    nursery.start_soon(task, b)


async def test_a_consumer_that_does_not_read_stops_only_its_own_channel() -> None:
    """O-T9: bounded memory on both sides, and everything else goes on."""
    async with open_links() as (near, far):
        stuck = await near.open_channel(1, b"")
        unread = await accept(far)
        sent = 0
        with trio.move_on_after(0.5):
            while True:
                await stuck.send(bytes(10_000))
                sent += 10_000
        assert WINDOW_BYTES * 0.9 < sent < 2.2 * WINDOW_BYTES
        assert near.send_message_nowait(b"still alive")
        with trio.fail_after(2):
            assert await far.messages.receive() == b"still alive"
            for _ in range(sent // 10_000):
                assert await unread.receive() == bytes(10_000)
            await stuck.send(b"goes on")
            assert await unread.receive() == b"goes on"


async def test_a_full_lane_says_so_and_waiting_for_room_works() -> None:
    """O-T9: the queue towards a peer that does not take its messages is bounded."""
    async with open_links() as (near, far):
        message = bytes(50_000)
        queued = 0
        with trio.move_on_after(1):
            while near.send_message_nowait(message):
                queued += 1
                await trio.lowlevel.checkpoint()
        assert queued * len(message) <= LANE_QUEUE_BYTES_MAX + WINDOW_BYTES
        assert not near.send_message_nowait(message)
        taken = 0
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send_message, b"waited")
                async for got in far.messages:
                    if got == b"waited":
                        break
                    taken += 1
        assert taken == queued


async def test_channels_nobody_takes_are_refused_beyond_the_bound() -> None:
    async with open_links() as (near, far):
        channels = [await near.open_channel(1, b"x") for _ in range(INCOMING_MAX + 1)]
        with trio.fail_after(5), pytest.raises(Unreachable, match="too many"):
            await channels[-1].receive()
        assert far.incoming.statistics().current_buffer_used == INCOMING_MAX


async def test_too_many_channels_are_an_error_of_the_opener_and_closed_ones_free_their_place() -> None:
    async with open_links() as (near, far):
        opened = []
        for _ in range(CHANNELS_EACH_MAX):
            opened.append(await near.open_channel(1, b""))
            await far.incoming.receive()
        with pytest.raises(Unreachable, match="too many"):
            await near.open_channel(1, b"")
        for channel in opened:
            await channel.aclose()
        with trio.fail_after(5):
            while True:
                try:
                    await near.open_channel(1, b"")
                    break
                except Unreachable:
                    await trio.sleep(0.01)


async def test_closing_tells_the_peer_why_and_ends_everything() -> None:
    async with open_links() as (near, far):
        channel = await near.open_channel(1, b"")
        other = await accept(far)
        near.close_nowait("replaced by a newer link")
        near.close_nowait("a second reason")
        with trio.fail_after(4):
            await near.closed.wait()
            await far.closed.wait()
        assert near.close_reason == "replaced by a newer link"
        assert far.close_reason == "the other side ended the link: replaced by a newer link"
        for end in (channel, other):
            with pytest.raises(Unreachable):
                await end.receive()
            with pytest.raises(Unreachable):
                await end.send(b"")
        with pytest.raises(trio.EndOfChannel):
            await far.messages.receive()
        with pytest.raises(trio.EndOfChannel):
            await far.incoming.receive()
        assert not near.send_message_nowait(b"late")
        with pytest.raises(Unreachable):
            await near.send_message(b"late")
        with pytest.raises(Unreachable):
            await near.open_channel(1, b"")


async def test_a_reset_ends_the_link_with_one_reason() -> None:
    async with open_links() as (near, far):
        assert far.send_message_nowait(b"said before")
        with trio.fail_after(4):
            assert await near.messages.receive() == b"said before"
            far._pipe.abort()
            await near.closed.wait()
            await far.closed.wait()
        assert near.close_reason == far.close_reason == "the connection ended"


async def test_garbage_after_the_handshake_ends_the_link_and_names_the_peers_fault() -> None:
    """O-T5 at the frame level: bytes that are not sealed, and sealed bytes that are not frames."""
    for garble in (
        lambda link: b"not sealed with the session's key, but long enough to be",
        lambda link: link._sealer.push(b"\xff" * 40),
        lambda link: link._sealer.push(b""),
        lambda link: link._sealer.push(b"\1\0\0\0\0\0\0\7"),
    ):
        async with open_links() as (near, far):
            await near._pipe.send(garble(near))
            with trio.fail_after(5):
                await far.closed.wait()
            assert far.close_reason.startswith("the peer broke the protocol")


async def test_a_replayed_frame_ends_the_link() -> None:
    async with open_links() as (near, far):
        frame = near._sealer.push(b"\1\0\0\1\0\0\0\1a")
        await near._pipe.send(frame)
        await near._pipe.send(frame)
        with trio.fail_after(5):
            assert await far.messages.receive() == b"a"
            await far.closed.wait()
        assert "protocol" in far.close_reason


async def test_cancelling_a_link_leaves_it_closed() -> None:
    async with open_links() as (near, far):
        pass
    assert near.closed.is_set()
    assert near.close_reason == "this machine stopped the link"
    assert far.closed.is_set()


class SteppedClock:
    """A clock the test sets; both readings move together."""

    def __init__(self) -> None:
        self.steady_s = 1000.0

    def __call__(self) -> Now:
        return Now(int(self.steady_s * 1000), self.steady_s)


async def test_a_machine_that_slept_asks_at_once_and_keeps_a_link_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-T4: after a jump of the clocks a probe goes out at the next tick; an answer keeps the link."""
    monkeypatch.setattr("mesh.link.TICK_S", 0.02)
    clock = SteppedClock()
    async with open_links(clock=clock) as (near, _):
        await until(lambda: near.rtt_ms is not None)
        near.rtt_ms = None
        clock.steady_s += 300
        await until(lambda: near.rtt_ms is not None)
        clock.steady_s += 30
        await trio.sleep(0.1)
        assert not near.closed.is_set()


@pytest.mark.parametrize("watcher", ["dialling", "accepting"])
async def test_a_peer_that_went_silent_is_noticed(monkeypatch: pytest.MonkeyPatch, watcher: str) -> None:
    """O-T4: half-open; nothing comes any more, no error either. Time passes for the watching side only."""
    monkeypatch.setattr("mesh.link.TICK_S", 0.02)
    clock = SteppedClock()
    clocks = {"clock": clock, "far_clock": SteppedClock()}
    if watcher == "accepting":
        clocks = {"clock": SteppedClock(), "far_clock": clock}
    async with open_links(**clocks) as (near, far):
        watching, silent = (near, far) if watcher == "dialling" else (far, near)
        monkeypatch.setattr(silent._pipe, "send", swallow)
        with trio.fail_after(10):
            while not watching.closed.is_set():
                clock.steady_s += 1
                await trio.sleep(0.03)
        assert "silent" in watching.close_reason


async def swallow(message: bytes) -> None:
    await trio.lowlevel.checkpoint()


async def test_five_hundred_links_open_and_close_from_alternating_sides_under_traffic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O-T12, scaled: pings as the link closes, first reason kept, nothing left."""
    monkeypatch.setattr("mesh.link.TICK_S", 0.01)
    for round_number in range(20):
        async with open_links() as (near, far):
            closer = (near, far)[round_number % 2]
            for link in (near, far):
                link._ping()
                link.send_message_nowait(bytes(100))
            closer.close_nowait(f"round {round_number}")
            closer._ping()
            assert not closer.send_message_nowait(b"late")
            with trio.fail_after(4):
                await near.closed.wait()
                await far.closed.wait()
            assert closer.close_reason == f"round {round_number}"
