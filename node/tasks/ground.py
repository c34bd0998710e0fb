"""What both sides of runs stand on: the ledger and its locks, the folder, the keys, the clock, and who waits for what."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from mesh.base.clock import Now
from mesh.base.crypto import Entropy, SigningKey
from mesh.base.db import StorageFull
from mesh.base.errors import OurFault, PeerFault
from mesh.base.names import MeshId, NodeId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel, Channels, Directory, Records
from node.messages import TASK_MESSAGES
from node.tasks.delegation import RequesterEvent, Step, WorkerEvent, request, work
from node.tasks.git import Git
from node.tasks.ledger import Ledger
from node.tasks.place import open_folder
from node.tasks.ports import FreeBytes, RunSettings, RunTimes, Sealer
from node.tasks.task import Key, Task, folder_name

FULL_DISK_PAUSE_S = 1.0
CLOSE_S = 2.0


class Pulses:
    """Wakes everybody who waits for news of one task."""

    def __init__(self) -> None:
        self._events: dict[Key, trio.Event] = {}

    def next(self, key: Key) -> trio.Event:
        """Take the event that the next wake sets; look at the task after taking it, then wait."""
        return self._events.setdefault(key, trio.Event())

    def wake(self, key: Key) -> None:
        """Wake who waits now."""
        event = self._events.pop(key, None)
        if event is not None:
            event.set()


class Locks:
    """One lock a task, there only while somebody uses it."""

    def __init__(self) -> None:
        self._locks: dict[Key, trio.Lock] = {}

    @asynccontextmanager
    async def hold(self, key: Key) -> AsyncIterator[None]:
        """Hold a task's lock."""
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._locks.pop(key, None)


@dataclass(frozen=True, slots=True)
class Ground:
    """Everything runs need, handed in by who composes the node.

    Attributes:
        read_settings: Gives the settings of runs as they hold now; they may change while the node runs.
        folder: ``tasks``; one folder a task below it.
        own_git: For the user's repositories, with their global configuration.
        strange_git: For strangers' objects, with nobody's.
        started_ms: Wall clock when runs started here.
    """

    read_settings: Callable[[], RunSettings]
    times: RunTimes
    ledger: Ledger
    channels: Channels
    directory: Directory
    records: Records
    sealer: Sealer
    signing_key: SigningKey
    mesh: MeshId
    folder: Path
    environment: dict[str, str]
    user: str
    clock: Callable[[], Now]
    entropy: Entropy
    free_bytes: FreeBytes
    own_git: Git
    strange_git: Git
    started_ms: int
    pulses: Pulses = field(default_factory=Pulses)
    locks: Locks = field(default_factory=Locks)

    @property
    def settings(self) -> RunSettings:
        """The settings as they hold now."""
        return self.read_settings()

    @property
    def me(self) -> NodeId:
        """This machine."""
        return self.directory.me.node

    def now_ms(self) -> int:
        """Read the wall clock, in ms."""
        return self.clock().wall_ms

    def folder_of(self, key: Key) -> Path:
        """Name a task's folder."""
        return self.folder / folder_name(key)

    @contextmanager
    def opened(self, task: Task | None) -> Iterator[int]:
        """Open a task's folder for a block: its descriptor, or -1 where there is none or another one stands there."""
        at = -1
        if task is not None:
            try:
                at = open_folder(self.folder_of(task.key), task.inode)
            except OSError:
                at = -1
        try:
            yield at
        finally:
            if at >= 0:
                os.close(at)

    async def requested(self, key: Key, event: RequesterEvent) -> Step:
        """Advance a task this machine asked for; the step is on the disk when this returns.

        If cancelled: the step happened whole or not at all.
        """
        return await self._advance(key, lambda task: request(task, event, self.now_ms()))

    async def worked(self, key: Key, event: WorkerEvent) -> Step:
        """Advance a task this machine works on; the step is on the disk when this returns.

        If cancelled: the step happened whole or not at all.
        """
        return await self._advance(key, lambda task: work(task, event, self.now_ms()))

    async def _advance(self, key: Key, step_of: Callable[[Task], Step]) -> Step:
        async with self.locks.hold(key):
            task = self.ledger.get(key)
            assert task is not None, "only recorded tasks advance"
            step = step_of(task)
            if step.task != task:
                await self._put_patiently(step.task)
                self.pulses.wake(key)
        return step

    async def _put_patiently(self, task: Task) -> None:
        """Wait out a full disk: what happened has happened, and is recorded as soon as there is room."""
        while True:
            try:
                await self.ledger.put(task)
            except StorageFull:
                await trio.sleep(FULL_DISK_PAUSE_S)
            else:
                return


@asynccontextmanager
async def closing(channel: Channel) -> AsyncIterator[None]:
    """Close a channel however its use ends; where that is a fault, the peer is told."""
    reason = ""
    try:
        yield
    except (PeerFault, OurFault) as fault:
        reason = fault.message
        raise
    finally:
        with trio.move_on_after(CLOSE_S, shield=True):
            await channel.aclose(reason)


async def receive_message(channel: Channel) -> object:
    """Wait for a message of this package.

    Returns:
        The message, or None once the peer closed in order.

    Raises:
        Malformed: Something else came.
        Unreachable: The link ended.
    """
    while True:
        data = await channel.receive()
        if data is None:
            return None
        message: object = TASK_MESSAGES.decode_untrusted(data, bytes_max=CHANNEL_MESSAGE_BYTES_MAX)
        if message is not None:
            return message
