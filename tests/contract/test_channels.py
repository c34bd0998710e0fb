"""What every implementation of the Channels port must do: the overlay over real links, and the fake.

Order and message boundaries are kept, an unread channel holds its sender back without holding others back, a close
says whether it was in order, and the peer at the other end is the one whose key proved it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from mesh.base.errors import Unreachable
from mesh.base.names import NodeId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel, Channels, Incoming
from tests.fakes.channels import FakeNetwork
from tests.fakes.overlays import open_two, until

PURPOSES = range(64, 68)
PURPOSE = 65
DEADLINE_S = 20
CREDIT_BYTES_MAX = 64 << 20
"""A sender whose peer reads nothing must be held back before this much."""


@dataclass(frozen=True)
class Linked:
    """Two machines with a link between them.

    Attributes:
        cut: Loses the link, with every channel on it.
        stranger: A machine there is no link to.
    """

    a: Channels
    b: Channels
    a_id: NodeId
    b_id: NodeId
    stranger: NodeId
    cut: Callable[[], Awaitable[None]]


Factory = Callable[[], AbstractAsyncContextManager[Linked]]


@asynccontextmanager
async def fake_linked() -> AsyncIterator[Linked]:
    network = FakeNetwork()
    a, b = NodeId(b"a" * 16), NodeId(b"b" * 16)

    async def cut() -> None:
        network.cut(a, b)
        await trio.lowlevel.checkpoint()

    yield Linked(network.join(a), network.join(b), a, b, NodeId(b"x" * 16), cut)


@asynccontextmanager
async def real_linked() -> AsyncIterator[Linked]:
    with TemporaryDirectory() as folder:
        async with open_two(Path(folder)) as (one, other):

            async def cut() -> None:
                one.cut()
                other.cut()
                await until(lambda: not one.overlay.links and not other.overlay.links)

            yield Linked(one.overlay, other.overlay, one.id, other.id, NodeId(b"x" * 16), cut)


FACTORIES: dict[str, Factory] = {"fake": fake_linked, "real": real_linked}
"""A factory opens two linked machines; another implementation adds itself here."""


@pytest.fixture(params=sorted(FACTORIES))
def linked(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


async def meet(world: Linked, request: bytes = b"hello", *, bulk: bool = False) -> tuple[Channel, Incoming]:
    """Open one channel from a to b and take it there."""
    inbox = world.b.incoming(PURPOSES)
    with trio.fail_after(DEADLINE_S):
        mine = await world.a.open_channel(world.b_id, PURPOSE, request, bulk=bulk)
        incoming = await inbox.receive()
    return mine, incoming


async def read_on(channel: Channel) -> None:
    """Read until a fault; an end in order is not one."""
    while True:
        assert await channel.receive() is not None, "the channel ended in order"


async def send_on(channel: Channel) -> None:
    while True:
        await channel.send(b"x" * 32_768)


async def test_the_first_message_and_the_proven_peer_arrive(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world, b"first")
        assert (incoming.request, incoming.purpose) == (b"first", PURPOSE)
        assert incoming.channel.peer == world.a_id
        assert mine.peer == world.b_id


async def test_messages_keep_their_order_and_their_boundaries_both_ways(linked: Factory) -> None:
    messages = [b"", b"x", b"\0" * 7, b"y" * CHANNEL_MESSAGE_BYTES_MAX, b"z" * 1000] + [bytes([n]) * n for n in range(1, 200)]
    async with linked() as world:
        mine, incoming = await meet(world)

        async def send(channel: Channel) -> None:
            for message in messages:
                await channel.send(message)

        with trio.fail_after(DEADLINE_S):
            for sender, receiver in ((mine, incoming.channel), (incoming.channel, mine)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(send, sender)
                    for message in messages:
                        assert await receiver.receive() == message


async def test_the_largest_request_is_taken(linked: Factory) -> None:
    async with linked() as world:
        request = b"r" * CHANNEL_MESSAGE_BYTES_MAX
        _, incoming = await meet(world, request)
        assert incoming.request == request


async def test_a_close_in_order_comes_after_everything_sent(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        with trio.fail_after(DEADLINE_S):
            for n in range(3):
                await mine.send(bytes([n]))
            await mine.aclose()
            assert [await incoming.channel.receive() for _ in range(4)] == [b"\0", b"\1", b"\2", None]
            assert await incoming.channel.receive() is None


async def test_a_close_with_a_reason_is_a_fault_at_the_other_end(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        with trio.fail_after(DEADLINE_S):
            await incoming.channel.aclose("that was not a message")
            with pytest.raises(Unreachable):
                await read_on(mine)


async def test_sending_into_a_closed_channel_fails_at_last(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        await incoming.channel.aclose()
        with trio.fail_after(DEADLINE_S), pytest.raises(Unreachable):
            await send_on(mine)


async def test_a_channel_closed_here_takes_nothing_more_and_closes_twice(linked: Factory) -> None:
    async with linked() as world:
        mine, _ = await meet(world)
        await mine.aclose()
        await mine.aclose("again")
        with pytest.raises(Unreachable):
            await mine.send(b"x")
        with pytest.raises(Unreachable):
            await mine.receive()


async def test_an_unread_channel_holds_its_sender_back(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world, bulk=True)
        sent = 0
        with trio.move_on_after(0.5) as limit:
            while sent <= CREDIT_BYTES_MAX:
                await mine.send(b"x" * 32_768)
                sent += 32_768
        assert limit.cancelled_caught, "the sender was never held back"
        with trio.fail_after(DEADLINE_S):
            received = 0
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mine.send, b"the rest")
                while (message := await incoming.channel.receive()) != b"the rest":
                    assert message == b"x" * 32_768
                    received += len(message)
        assert received >= sent


async def test_a_held_back_channel_does_not_hold_back_another(linked: Factory) -> None:
    async with linked() as world:
        stuck, _ = await meet(world, bulk=True)
        with trio.move_on_after(0.3):
            while True:
                await stuck.send(b"x" * 32_768)
        inbox = world.b.incoming(range(80, 82))
        with trio.fail_after(DEADLINE_S):
            other = await world.a.open_channel(world.b_id, 80, b"quick")
            incoming = await inbox.receive()
            await incoming.channel.send(b"answer")
            assert await other.receive() == b"answer"


async def test_no_link_is_said_at_once_and_nothing_is_sent(linked: Factory) -> None:
    async with linked() as world:
        with trio.fail_after(DEADLINE_S), pytest.raises(Unreachable):
            await world.a.open_channel(world.stranger, PURPOSE, b"hello")


async def test_a_lost_link_ends_channels_on_both_sides_and_is_never_an_end_in_order(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        await world.cut()
        for channel in (mine, incoming.channel):
            with trio.fail_after(DEADLINE_S), pytest.raises(Unreachable):
                await read_on(channel)
        with trio.fail_after(DEADLINE_S), pytest.raises(Unreachable):
            await world.a.open_channel(world.b_id, PURPOSE, b"hello")


async def test_a_waiting_receiver_and_a_held_back_sender_wake_when_the_link_is_lost(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        ended: list[str] = []

        async def receive() -> None:
            with pytest.raises(Unreachable):
                await mine.receive()
            ended.append("receive")

        async def send() -> None:
            with pytest.raises(Unreachable):
                await send_on(mine)
            ended.append("send")

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                nursery.start_soon(send)
                await trio.sleep(0.1)
                await world.cut()
        assert sorted(ended) == ["receive", "send"]
        assert incoming.channel.peer == world.a_id


async def test_a_purpose_nobody_serves_is_closed_with_a_fault(linked: Factory) -> None:
    async with linked() as world:
        with trio.fail_after(DEADLINE_S), pytest.raises(Unreachable):
            await read_on(await world.a.open_channel(world.b_id, 127, b"hello"))


async def test_only_so_many_channels_wait_to_be_taken(linked: Factory) -> None:
    async with linked() as world:
        inbox = world.b.incoming(PURPOSES)
        refused = 0
        channels = []
        with trio.fail_after(DEADLINE_S):
            for _ in range(80):
                try:
                    channels.append(await world.a.open_channel(world.b_id, PURPOSE, b"hello"))
                except Unreachable:
                    refused += 1
            await trio.sleep(0.2)
            for channel in channels:
                with trio.move_on_after(0.001):
                    try:
                        await channel.receive()
                    except Unreachable:
                        refused += 1
        assert refused == 80 - 64
        assert inbox.statistics().current_buffer_used == 64


async def test_a_cancelled_receive_loses_nothing(linked: Factory) -> None:
    async with linked() as world:
        mine, incoming = await meet(world)
        with trio.move_on_after(0.05):
            await incoming.channel.receive()
        with trio.fail_after(DEADLINE_S):
            await mine.send(b"kept")
            assert await incoming.channel.receive() == b"kept"
