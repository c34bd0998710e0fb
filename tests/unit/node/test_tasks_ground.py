"""Wakes and locks of tasks, and what one channel's end says."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import trio

from mesh.base.codec import Malformed
from mesh.base.errors import OurFault, PeerFault
from mesh.base.names import NodeId, TaskId
from node.messages import TASK_MESSAGES, WantPack
from node.tasks.ground import Locks, Pulses, closing, receive_message
from node.tasks.task import WORKED, Key

KEY = Key(WORKED, NodeId(b"q" * 16), TaskId(b"t" * 16), 1)
PEER = NodeId(b"p" * 16)


@dataclass
class Quiet:
    """A channel that only remembers how it was closed."""

    peer: NodeId = PEER
    messages: list[bytes] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    async def send(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        return self.messages.pop(0) if self.messages else None

    async def aclose(self, reason: str = "") -> None:
        self.reasons.append(reason)
        await trio.lowlevel.checkpoint()


def test_a_wake_reaches_everybody_who_waits_and_nobody_later():
    pulses = Pulses()
    first = pulses.next(KEY)
    assert pulses.next(KEY) is first
    pulses.wake(KEY)
    assert first.is_set()
    assert not pulses.next(KEY).is_set()
    pulses.wake(Key(WORKED, KEY.requester, KEY.task, 2))


async def test_one_holds_a_task_at_a_time_and_locks_do_not_pile_up():
    locks, inside, most = Locks(), 0, 0

    async def hold() -> None:
        nonlocal inside, most
        async with locks.hold(KEY):
            inside += 1
            most = max(most, inside)
            await trio.lowlevel.checkpoint()
            inside -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(hold)
    assert most == 1
    assert locks._locks == {}


@pytest.mark.parametrize(("fault", "reason"), [(PeerFault("bad"), "bad"), (OurFault("full"), "full")])
async def test_a_fault_is_told_to_the_peer(fault: Exception, reason: str):
    channel = Quiet()

    async def use() -> None:
        async with closing(channel):
            raise fault

    with pytest.raises(type(fault)):
        await use()
    assert channel.reasons == [reason]


async def test_an_end_in_order_and_a_cancel_close_without_a_reason():
    channel = Quiet()
    async with closing(channel):
        pass
    with trio.move_on_after(0.01):
        async with closing(channel):
            await trio.sleep_forever()
    assert channel.reasons == ["", ""]


async def test_unknown_messages_are_passed_over_and_garbage_is_not():
    channel = Quiet(messages=[b"\x81\x18\x7f", TASK_MESSAGES.encode(WantPack()), b"garbage"])
    assert await receive_message(channel) == WantPack()
    with pytest.raises(Malformed):
        await receive_message(channel)
    assert await receive_message(channel) is None
