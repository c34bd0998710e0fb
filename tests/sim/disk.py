"""A machine's database: real SQLite, in memory, written inline, and every way a disk can let a machine down.

What is committed with full durability survives a crash; what is committed without waits for the disk and may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from mesh.base import db
from mesh.base.db import Connection, Database, StorageFull

T = TypeVar("T")
SYNC_S = 20.0
"""How long the system may keep what was written without waiting for the disk."""


class Crash(BaseException):
    """The machine stops here; nothing it still wants to do happens."""


class Disk:
    """What survives a machine: the images of its databases, each as the last sync left it.

    Attributes:
        full: Every write fails.
        slow_s: Every write takes this much longer.
        crash_in: Writes until the machine stops, and whether that one still reaches the disk; None: it does not stop.
        crash_at: The database whose writes count for that; empty: any.
    """

    def __init__(self) -> None:
        self.connections: dict[str, Connection] = {}
        self.synced: dict[str, tuple[float, bytes]] = {}
        self.careless: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.full = False
        self.slow_s = 0.0
        self.crash_in: tuple[int, bool] | None = None
        self.crash_at = ""
        self.crashed: Callable[[], None] = lambda: None
        self.down = False
        self.writes = 0

    def image(self) -> dict[str, bytes]:
        """Copy the databases, as a backup would."""
        found = {name: bytes(held.serialize("main")) for name, held in self.connections.items()}
        return found

    def put_back(self, image: dict[str, bytes]) -> None:
        """Let an older copy take the place of what is there; the files beside them stay."""
        for name, data in image.items():
            held = apsw.Connection(":memory:")
            held.deserialize("main", data)
            self.connections[name] = held
            self.synced.pop(name, None)

    def power_off(self) -> None:
        """Lose what was not waited for."""
        for name in self.careless:
            if name in self.synced:
                held = apsw.Connection(":memory:")
                held.deserialize("main", self.synced[name][1])
                self.connections[name] = held

    def stop(self) -> None:
        """Stop the machine at once."""
        self.down = True
        self.crash_in = None
        self.crashed()


class InlineDatabase(Database):
    """``mesh.base.db.Database`` without threads and without a file.

    Args:
        disk: What survives.
        name: Which database of the disk.
        schema: As the real one takes it.
        durable: Whether commits wait for the disk.
    """

    def __init__(self, disk: Disk, name: str, schema: Sequence[str], *, durable: bool = True) -> None:
        self.path = Path(f"/simulated/{name}")
        self._disk, self._name = disk, name
        held = disk.connections.get(name)
        if held is None:
            held = disk.connections[name] = apsw.Connection(":memory:")
            db._migrate(held, self.path, schema)
        (disk.careless.discard if durable else disk.careless.add)(name)
        self.reader: Any = held

    def close(self) -> None:
        """Do nothing: the disk keeps what it holds."""

    def _commit(self, work: Callable[[Connection], T]) -> T:
        disk = self._disk
        if disk.down:
            raise Crash
        if disk.full:
            raise StorageFull(f"the disk is full: {self._name} could not be written", hint="free some space")
        if self._name in disk.careless:
            self._note_sync()
        disk.writes += 1
        ends = self._ends_here()
        if ends is False:
            disk.stop()
            raise Crash
        held = disk.connections[self._name]
        if held is not self.reader:
            raise Crash  # The copy this machine had open was taken away under it.
        with held:
            result = work(held)
        if ends is True:
            disk.stop()
            raise Crash
        return result

    def _ends_here(self) -> bool | None:
        """Whether the machine stops at this write, and whether the write still reaches the disk."""
        if self._disk.crash_in is None or self._disk.crash_at not in ("", self._name):
            return None
        left, after = self._disk.crash_in
        if left > 0:
            self._disk.crash_in = (left - 1, after)
            return None
        return after

    def _note_sync(self) -> None:
        now = trio.current_time()
        at, _ = self._disk.synced.get(self._name, (-1e9, b""))
        if now - at >= SYNC_S:
            self._disk.synced[self._name] = (now, bytes(self._disk.connections[self._name].serialize("main")))

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """Run one write in its own transaction."""
        return self._commit(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run one write; others may run before and after it, never in its middle."""
        await trio.lowlevel.checkpoint()
        if self._disk.slow_s:
            await trio.sleep(self._disk.slow_s)
        with trio.CancelScope(shield=True):
            result = self._commit(work)
            await trio.lowlevel.checkpoint()
        return result
