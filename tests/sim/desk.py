"""Tasks over the simulated mesh: the real ledger and the real decisions, with a spawn that only counts.

What ``node.tasks.workshop`` and ``node.tasks.incoming`` do with processes and folders is left out; what they may do
and when is decided by ``node.tasks.delegation``, and stands in ``node.tasks.ledger`` before anything is started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trio

from mesh.base.errors import MeshError
from mesh.base.names import NodeId, TaskId
from mesh.base.ports import Incoming
from node.messages import TASK_MESSAGES, Offer, TaskReport, TaskSpec
from node.tasks.delegation import Exited, Judged, Launch, SlotFree, Started, Step, Vanished, work
from node.tasks.incoming import _fresh_task, _report_again, read_offer_untrusted
from node.tasks.ledger import Ledger
from node.tasks.policy import Allow
from node.tasks.task import WORKED, Key, Task, report_of

PURPOSES = range(64, 68)
RUNS_S = 3.0
Mark = tuple[bytes, bytes, int]


@dataclass
class Spawned:
    """What really ran, as somebody outside every machine would count it."""

    starts: dict[tuple[Mark, NodeId], int] = field(default_factory=dict)


class Desk:
    """The worker's and the requester's side of one machine's tasks."""

    def __init__(self, machine: Any, database: Any, spawned: Spawned) -> None:
        self._machine = machine
        self._ledger = Ledger(database)
        self._spawned = spawned
        self._incoming = machine.overlay.incoming(PURPOSES)
        self._lock = trio.Lock()
        self._launches: list[Key] = []

    def _now_ms(self) -> int:
        return self._machine.now().wall_ms

    async def run(self) -> None:
        """Settle what an earlier run left, then serve."""
        for task in self._ledger.live(WORKED):
            if task.state in ("starting", "running"):
                await self._advance(task.key, Vanished(0))  # Its process died with the machine; it never runs again.
        async with trio.open_nursery() as nursery:
            for task in self._ledger.live(WORKED):
                if task.state == "accepted":
                    nursery.start_soon(self._fill, task.key)
            async for incoming in self._incoming:
                nursery.start_soon(self._serve, incoming)

    async def _serve(self, incoming: Incoming) -> None:
        channel = incoming.channel
        try:
            message = TASK_MESSAGES.decode_untrusted(incoming.request, bytes_max=60 * 1024)
            member = self._machine.replica.member(channel.peer)
            if isinstance(message, Offer) and member is not None:
                identity = self._machine.identity
                body = read_offer_untrusted(message, identity.mesh, channel.peer, member.public_key, identity.node_id)
                key = Key(WORKED, channel.peer, TaskId(body.task), body.attempt)
                await channel.send(TASK_MESSAGES.encode(await self._admit(key, _fresh_task(key, body, self._now_ms()))))
            await channel.aclose()
        except MeshError:
            return

    async def _admit(self, key: Key, fresh: Task) -> TaskReport:
        async with self._lock:
            known = self._ledger.get(key)
            if known is not None:
                return _report_again(known, fresh)
            step = work(fresh, Judged(Allow(), b"", 0), self._now_ms())
            await self._ledger.put(step.task)
        await self._fill(key)
        found = self._ledger.get(key)
        assert found is not None
        return report_of(found)

    async def _fill(self, key: Key) -> None:
        await self.start(key)

    async def start(self, key: Key) -> None:
        """Start an accepted task: on the disk first, spawned after."""
        step = await self._advance(key, SlotFree())
        if Launch() in step.actions:
            self.spawn(key)
            self._machine.nursery.start_soon(self._see_through, key)

    def spawn(self, key: Key) -> None:
        """Start the process: here it is only counted."""
        mark = ((key.requester, key.task, key.attempt), self._machine.id)
        self._spawned.starts[mark] = self._spawned.starts.get(mark, 0) + 1

    async def _see_through(self, key: Key) -> None:
        started_ms = self._now_ms()
        await self._advance(key, Started())
        await trio.sleep(RUNS_S)
        await self._advance(key, Exited("exited", 0, started_ms, self._now_ms(), 0, ""))

    async def _advance(self, key: Key, event: Any) -> Step:
        async with self._lock:
            task = self._ledger.get(key)
            assert task is not None
            step = work(task, event, self._now_ms())
            if step.task != task:
                while True:
                    try:
                        await self._ledger.put(step.task)
                        break
                    except MeshError:
                        await trio.sleep(1.0)
        return step

    async def offer(self, offer: bytes, worker: NodeId) -> TaskReport | None:
        """Deliver an offer once; None where no answer came."""
        try:
            with trio.move_on_after(10):
                channel = await self._machine.overlay.open_channel(worker, 64, offer)
                answer = await channel.receive()
                await channel.aclose()
                message = None if answer is None else TASK_MESSAGES.decode_untrusted(answer, bytes_max=60 * 1024)
                return message if isinstance(message, TaskReport) else None
        except MeshError:
            return None
        return None


def sound_spec(number: int) -> TaskSpec:
    """Something to run."""
    return TaskSpec(1, (b"true", b"%d" % number), "", None, None, 60)

