"""The end of a circuit as a pipe: whole messages in pieces, bounds, and every ending."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from mesh.base.errors import PeerFault, Unreachable
from mesh.base.names import NodeId
from mesh.circuitpipe import PIECE_BYTES_MAX, CircuitPipe
from mesh.pipe import MESSAGE_BYTES_MAX
from tests.fakes.channels import FakeChannel, FakeNetwork

A, B = NodeId(b"a" * 16), NodeId(b"b" * 16)


async def two() -> tuple[CircuitPipe, CircuitPipe, FakeChannel]:
    network = FakeNetwork()
    here, there = network.join(A), network.join(B)
    inbox = there.incoming(range(64))
    channel = await here.open_channel(B, 20, b"")
    far = (await inbox.receive()).channel
    return CircuitPipe(channel, is_client=True, remote="via b"), CircuitPipe(far, is_client=False, remote="via b"), channel


@pytest.mark.parametrize("size", [1, PIECE_BYTES_MAX - 1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, MESSAGE_BYTES_MAX])
async def test_messages_arrive_whole_and_in_order(size: int):
    one, other, _ = await two()
    messages = [bytes((number,)) * size for number in range(3)]
    got = []
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for message in messages:
                    await one.send(message)

            nursery.start_soon(send)
            for _ in messages:
                got.append(await other.receive())
    assert got == messages


@pytest.mark.parametrize("pieces", [[b""], [b"\0"], [b"\1"], [b"\2x"], [b"\1" + b"x" * PIECE_BYTES_MAX] * 5], ids=["none", "empty", "empty more", "unknown", "too much"])
async def test_what_is_no_message_is_a_fault_of_the_peer(pieces: list[bytes]):
    _, other, channel = await two()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                for piece in pieces:
                    await channel.send(piece)

            nursery.start_soon(send)
            with pytest.raises(PeerFault):
                await other.receive()
            nursery.cancel_scope.cancel()


async def test_an_end_in_order_comes_behind_what_was_sent_and_a_drop_at_once():
    one, other, _ = await two()
    await one.send(b"last")
    await one.aclose()
    assert await other.receive() == b"last"
    with pytest.raises(Unreachable):
        await other.receive()
    one, other, _ = await two()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:

            async def wait(pipe: CircuitPipe) -> None:
                with pytest.raises(Unreachable):
                    await pipe.receive()

            nursery.start_soon(wait, one)
            nursery.start_soon(wait, other)
            await trio.testing.wait_all_tasks_blocked()
            one.abort()
    with pytest.raises(Unreachable):
        await one.send(b"x")
