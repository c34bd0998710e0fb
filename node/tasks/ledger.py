"""The durable record of every task, on both sides: SQL and nothing else.

Every write is committed to the disk before anybody is told. A task and its transitions are written in one
transaction, so a state never stands without the time it was reached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mesh.base.codec import decode_untrusted, encode
from mesh.base.db import Connection, Database
from mesh.base.names import NodeId, TaskId
from node.messages import KIND_RUN, STATES, Hop, TaskSpec
from node.tasks.task import WORKED, Key, Task, spec_digest

SCHEMA = (
    """
    CREATE TABLE task (
        side TEXT NOT NULL CHECK (side IN ('requested', 'worked')),
        requester BLOB NOT NULL, task BLOB NOT NULL, attempt INTEGER NOT NULL,
        text_id TEXT NOT NULL, worker BLOB NOT NULL,
        spec BLOB NOT NULL, spec_digest BLOB NOT NULL, pack_bytes INTEGER NOT NULL,
        state TEXT NOT NULL, final INTEGER NOT NULL, cancel_asked INTEGER NOT NULL,
        exit_code INTEGER, reason TEXT NOT NULL, detail TEXT NOT NULL,
        created_ms INTEGER NOT NULL, started_ms INTEGER, ended_ms INTEGER,
        output_bytes INTEGER NOT NULL, until_ms INTEGER NOT NULL, offer BLOB NOT NULL, request BLOB NOT NULL,
        PRIMARY KEY (side, requester, task, attempt)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX task_live ON task (side, created_ms) WHERE final = 0;
    CREATE INDEX task_text ON task (text_id);
    CREATE INDEX task_age ON task (created_ms);
    CREATE INDEX task_request ON task (request) WHERE request <> x'';
    CREATE TABLE hop (
        side TEXT NOT NULL, requester BLOB NOT NULL, task BLOB NOT NULL, attempt INTEGER NOT NULL,
        state TEXT NOT NULL, at_ms INTEGER NOT NULL, place INTEGER NOT NULL,
        PRIMARY KEY (side, requester, task, attempt, state),
        FOREIGN KEY (side, requester, task, attempt) REFERENCES task ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID;
    """,
    "ALTER TABLE task ADD COLUMN inode INTEGER NOT NULL DEFAULT 0;",
)
SPEC_BYTES_MAX = 60 * 1024
LISTED_MAX = 1_000

NEVER_SPEC = TaskSpec(KIND_RUN, (), "", None, None, 1)
"""Stands for what would have run in the record of a task that was cancelled before it came."""
_NEVER = spec_digest(NEVER_SPEC)

_COLUMNS = (
    "side, requester, task, attempt, worker, spec, pack_bytes, state, created_ms, cancel_asked, exit_code, reason, detail,"
    " started_ms, ended_ms, output_bytes, until_ms, offer, request, inode"
)


def put_task(connection: Connection, task: Task) -> None:
    """Write a task and the transitions it has."""
    key = task.key
    connection.execute(
        f"INSERT INTO task ({_COLUMNS}, text_id, spec_digest, final) VALUES ({', '.join('?' * 23)})"
        " ON CONFLICT DO UPDATE SET state = excluded.state, final = excluded.final, cancel_asked = excluded.cancel_asked,"
        " exit_code = excluded.exit_code, reason = excluded.reason, detail = excluded.detail,"
        " started_ms = excluded.started_ms, ended_ms = excluded.ended_ms, output_bytes = excluded.output_bytes,"
        " until_ms = excluded.until_ms, offer = excluded.offer, request = excluded.request,"
        " pack_bytes = excluded.pack_bytes, inode = excluded.inode",
        (
            *(key.side, key.requester, key.task, key.attempt, task.worker, encode(task.spec), task.pack_bytes, task.state),
            *(task.created_ms, int(task.cancel_asked), task.exit_code, task.reason, task.detail, task.started_ms),
            *(task.ended_ms, task.output_bytes, task.until_ms, task.offer, task.request, _signed(task.inode)),
            *(task.text_id, spec_digest(task.spec), int(task.final)),
        ),
    )
    connection.executemany(
        "INSERT INTO hop (side, requester, task, attempt, state, at_ms, place) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (key.side, key.requester, key.task, key.attempt, STATES[hop.state], hop.at_ms, place)
            for place, hop in enumerate(task.hops)
        ],
    )


def put_tasks(connection: Connection, tasks: Iterable[Task]) -> None:
    """Write several tasks."""
    for task in tasks:
        put_task(connection, task)


def forget_tasks(connection: Connection, keys: list[Key]) -> None:
    """Delete tasks with their transitions."""
    connection.executemany(
        "DELETE FROM task WHERE side = ? AND requester = ? AND task = ? AND attempt = ? AND final = 1",
        [(key.side, key.requester, key.task, key.attempt) for key in keys],
    )


def read_task(connection: Connection, key: Key) -> Task | None:
    """Read one task."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM task WHERE side = ? AND requester = ? AND task = ? AND attempt = ?",
        (key.side, key.requester, key.task, key.attempt),
    )
    return next((_task(connection, row) for row in rows), None)


def find_tasks(connection: Connection, prefix: str) -> list[Task]:
    """Read the tasks, at most twenty, whose id starts with a prefix of base32 characters."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM task WHERE text_id >= ? AND text_id < ? AND spec_digest <> ? ORDER BY created_ms DESC LIMIT 20",
        (prefix, prefix + "{", _NEVER),
    )
    return [_task(connection, row) for row in rows]


def task_by_request(connection: Connection, request: bytes) -> Task | None:
    """Read the task a person is asked about under this id."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM task WHERE request = ? AND request <> x''", (request,))
    return next((_task(connection, row) for row in rows), None)


def live_tasks(connection: Connection, side: str) -> list[Task]:
    """Read the tasks of one side that are not over, oldest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM task WHERE side = ? AND final = 0 ORDER BY created_ms, task",
        (side,),
    )
    return [_task(connection, row) for row in rows]


def recent_tasks(connection: Connection, since_ms: int) -> list[Task]:
    """Read the newest tasks of both sides, at most a thousand: those not over, and those made since then."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM task WHERE (final = 0 OR created_ms >= ?) AND spec_digest <> ? ORDER BY created_ms DESC, task LIMIT ?",
        (since_ms, _NEVER, LISTED_MAX),
    )
    return [_task(connection, row) for row in rows]


def old_tasks(connection: Connection, before_ms: int) -> list[Task]:
    """Read tasks that were over before a time, at most a thousand, oldest first."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM task WHERE final = 1 AND ended_ms < ? ORDER BY created_ms LIMIT ?",
        (before_ms, LISTED_MAX),
    )
    return [_task(connection, row) for row in rows]


def put_never(connection: Connection, task: Task, *, before_ms: int, count_max: int) -> bool:
    """Record a task that was cancelled before it came, forgetting the requester's that are too old to matter.

    Args:
        connection: Writing.
        task: Final, with :data:`NEVER_SPEC`.
        before_ms: Those made before that go.
        count_max: Of one requester.

    Returns:
        Whether it is recorded; False where as many others are.
    """
    requester = task.key.requester
    connection.execute(
        "DELETE FROM task WHERE side = ? AND requester = ? AND spec_digest = ? AND created_ms < ?",
        (WORKED, requester, _NEVER, before_ms),
    )
    row = connection.execute(
        "SELECT count(*) FROM task WHERE side = ? AND requester = ? AND spec_digest = ?", (WORKED, requester, _NEVER)
    ).fetchone()
    assert row is not None
    if row[0] >= count_max:
        return False
    put_task(connection, task)
    return True


def count_waiting(connection: Connection, requester: NodeId) -> tuple[int, int]:
    """Count a requester's tasks here that are not over: all of them, and those that ask a person."""
    row = connection.execute(
        "SELECT count(*), coalesce(sum(state = 'asking'), 0) FROM task WHERE side = ? AND final = 0 AND requester = ?",
        (WORKED, requester),
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def count_tasks(connection: Connection, side: str, requester: NodeId) -> int:
    """Count the tasks of one side and one requester, over or not."""
    row = connection.execute("SELECT count(*) FROM task WHERE side = ? AND requester = ?", (side, requester)).fetchone()
    assert row is not None
    return int(row[0])


def _signed(inode: int) -> int:
    """Fit 64 bits without a sign into the numbers SQLite has."""
    return inode - (1 << 64) if inode >= 1 << 63 else inode


def _task(connection: Connection, row: tuple[Any, ...]) -> Task:
    (side, requester, task, attempt, worker, spec, pack_bytes, state, created_ms, cancel_asked, exit_code, *rest) = row
    reason, detail, started_ms, ended_ms, output_bytes, until_ms, offer, request, inode = rest
    key = Key(side, NodeId(requester), TaskId(task), attempt)
    return Task(
        key=key,
        worker=NodeId(worker),
        spec=decode_untrusted(TaskSpec, spec, bytes_max=SPEC_BYTES_MAX),
        pack_bytes=pack_bytes,
        state=state,
        created_ms=created_ms,
        cancel_asked=bool(cancel_asked),
        exit_code=exit_code,
        reason=reason,
        detail=detail,
        started_ms=started_ms,
        ended_ms=ended_ms,
        output_bytes=output_bytes,
        until_ms=until_ms,
        offer=offer,
        request=request,
        inode=inode % (1 << 64),
        hops=_hops(connection, key),
    )


def _hops(connection: Connection, key: Key) -> tuple[Hop, ...]:
    rows = connection.execute(
        "SELECT state, at_ms FROM hop WHERE side = ? AND requester = ? AND task = ? AND attempt = ? ORDER BY place",
        (key.side, key.requester, key.task, key.attempt),
    )
    return tuple(Hop(STATES.index(state), at_ms) for state, at_ms in rows)


class Ledger:
    """The tasks of this machine.

    Args:
        database: ``tasks.db``, opened with :data:`SCHEMA`, durable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, *tasks: Task) -> None:
        """Write tasks in one transaction; returns once they are on the disk.

        Raises:
            StorageFull, OurFault: They are not.
        """
        await self._database.write(lambda connection: put_tasks(connection, tasks))

    async def put_never(self, task: Task, *, before_ms: int, count_max: int) -> bool:
        """Record a task that was cancelled before it came; whether there was room for it."""
        return await self._database.write(
            lambda connection: put_never(connection, task, before_ms=before_ms, count_max=count_max)
        )

    async def forget(self, keys: list[Key]) -> None:
        """Delete tasks that are over."""
        await self._database.write(lambda connection: forget_tasks(connection, keys))

    def get(self, key: Key) -> Task | None:
        """Read one task."""
        return read_task(self._database.reader, key)

    def find(self, text: str) -> list[Task]:
        """Read the tasks whose id starts with what a person typed; case and dashes do not matter."""
        prefix = text.lower().replace("-", "").replace(" ", "")
        return find_tasks(self._database.reader, prefix) if prefix and _BASE32.issuperset(prefix) else []

    def by_request(self, request: bytes) -> Task | None:
        """Read the task that asks under an id."""
        return task_by_request(self._database.reader, request)

    def live(self, side: str) -> list[Task]:
        """Read the tasks of one side that are not over, oldest first."""
        return live_tasks(self._database.reader, side)

    def recent(self, since_ms: int) -> list[Task]:
        """Read the newest tasks of both sides."""
        return recent_tasks(self._database.reader, since_ms)

    def old(self, before_ms: int) -> list[Task]:
        """Read tasks that were over before a time."""
        return old_tasks(self._database.reader, before_ms)

    def waiting(self, requester: NodeId) -> tuple[int, int]:
        """Count a requester's live tasks here, and those of them that ask a person."""
        return count_waiting(self._database.reader, requester)

    def kept(self, side: str, requester: NodeId) -> int:
        """Count every task of a requester that is still recorded."""
        return count_tasks(self._database.reader, side, requester)


_BASE32 = frozenset("abcdefghijklmnopqrstuvwxyz234567")
