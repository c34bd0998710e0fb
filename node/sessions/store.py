"""sessions.db: how far each transcript is read, what each reply used, and the user's decisions nobody has stored yet.

One transaction carries a reading's new offset together with everything its lines meant, so a crash repeats a reading
or keeps it, never half of it. A reply counts once, under the session where it was read first, whatever files repeat
it; of several records of one reply the one with the most output counts, so the order of reading does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.db import Connection
from node.sessions.cost import ModelTotal
from node.sessions.fold import STATE_BYTES_MAX, FoldState
from node.sessions.formats import Usage

KEEP_D = 90
"""Sessions whose transcripts are gone, and decisions already taken, are kept this long."""
DECISIONS_MAX = 10_000
"""Decisions waiting to be taken; beyond it the oldest are dropped."""
DAY_MS = 86_400_000

SCHEMA = (
    """
    CREATE TABLE files(
        id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, agent TEXT NOT NULL, session TEXT NOT NULL,
        helper INTEGER NOT NULL, device INTEGER NOT NULL, inode INTEGER NOT NULL, size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL, offset INTEGER NOT NULL, skipping INTEGER NOT NULL, head_bytes INTEGER NOT NULL,
        head BLOB NOT NULL, tail BLOB NOT NULL, bad INTEGER NOT NULL, oversized INTEGER NOT NULL,
        last_ms INTEGER NOT NULL, gone_ms INTEGER, fold BLOB NOT NULL) STRICT;
    CREATE INDEX files_of_session ON files(agent, session, helper);
    CREATE INDEX files_by_inode ON files(inode);
    CREATE INDEX files_gone ON files(gone_ms) WHERE gone_ms IS NOT NULL;
    CREATE TABLE sessions(
        agent TEXT NOT NULL, session TEXT NOT NULL, last_ms INTEGER NOT NULL, helpers INTEGER NOT NULL,
        bad INTEGER NOT NULL, PRIMARY KEY(agent, session)) STRICT, WITHOUT ROWID;
    CREATE INDEX sessions_by_time ON sessions(last_ms);
    CREATE TABLE messages(
        id BLOB PRIMARY KEY, file INTEGER NOT NULL, agent TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL,
        input INTEGER NOT NULL, output INTEGER NOT NULL, cache_read INTEGER NOT NULL, write_5m INTEGER NOT NULL,
        write_1h INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE INDEX messages_of_file ON messages(file);
    CREATE TABLE totals(
        agent TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL, input INTEGER NOT NULL,
        output INTEGER NOT NULL, cache_read INTEGER NOT NULL, write_5m INTEGER NOT NULL, write_1h INTEGER NOT NULL,
        PRIMARY KEY(agent, session, model)) STRICT, WITHOUT ROWID;
    CREATE TABLE decisions(
        seq INTEGER PRIMARY KEY AUTOINCREMENT, source BLOB NOT NULL UNIQUE, agent TEXT NOT NULL, session TEXT NOT NULL,
        project TEXT NOT NULL, cwd TEXT NOT NULL, tool TEXT NOT NULL, subject TEXT NOT NULL, verdict TEXT NOT NULL,
        at_ms INTEGER NOT NULL, taken_ms INTEGER) STRICT;
    CREATE INDEX decisions_waiting ON decisions(seq) WHERE taken_ms IS NULL;
    """,
)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one transcript has been read, and how its file can be told from another under the same name.

    Attributes:
        size: The file's size when it was read to its end, else the offset, so that a rest is noticed.
        skipping: Whether the offset stands inside a line that is too long.
        head: Hash of the first ``head_bytes`` bytes.
        tail: Hash of the last bytes before the offset.
        last_ms: Newest time of a line, else of the file.
    """

    path: str
    agent: str
    session: str
    helper: bool
    device: int
    inode: int
    size: int
    mtime_ns: int
    offset: int
    skipping: bool
    head_bytes: int
    head: bytes
    tail: bytes
    bad: int
    oversized: int
    last_ms: int
    fold: FoldState


@dataclass(frozen=True, slots=True)
class Decision:
    """What a user approved or denied at a prompt of an agent on this machine.

    Attributes:
        source_id: 16 bytes; the same tool call always has the same.
        subject: The command, the file or the address, secrets redacted.
        verdict: ``approve`` or ``deny``.
    """

    source_id: bytes
    agent: str
    session: str
    project: str
    cwd: str
    tool: str
    subject: str
    verdict: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reading of one file found.

    Attributes:
        fresh: Whether the file was read from its start, because it is new or was replaced.
        usages: One for each reply, its best record.
    """

    mark: Mark
    fresh: bool
    usages: tuple[Usage, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What is known of one session, besides its main transcript."""

    agent: str
    session: str
    last_ms: int
    helpers: int
    bad: int


def source_id(agent: str, call_id: str) -> bytes:
    """Name a decision by its tool call, so that copies of a transcript state it once."""
    return hashlib.blake2b(f"{agent}\0{call_id}".encode(errors="replace"), digest_size=16).digest()


def message_key(agent: str, session: str, message_id: str) -> bytes:
    """Name a reply: its id is enough everywhere, except for a running sum, which is its session's own."""
    scope = session if message_id == "total" else ""
    return hashlib.blake2b(f"{agent}\0{scope}\0{message_id}".encode(errors="replace"), digest_size=16).digest()


_MARK = (
    "path, agent, session, helper, device, inode, size, mtime_ns, offset, skipping, head_bytes, head, tail, bad, "
    "oversized, last_ms, fold"
)


def _mark(row: Sequence[object]) -> Mark:
    values = list(row)
    values[3], values[9] = bool(values[3]), bool(values[9])
    assert isinstance(values[16], bytes)
    try:
        values[16] = decode_untrusted(FoldState, values[16], bytes_max=STATE_BYTES_MAX)
    except Malformed:
        values[16], values[8], values[10] = FoldState(), 0, 0
    return Mark(*values)  # type: ignore[arg-type]


def mark_of(connection: Connection, path: str) -> Mark | None:
    """Look up how far a file is read; a fold that cannot be decoded starts the file over."""
    row = connection.execute(f"SELECT {_MARK} FROM files WHERE path=?", (path,)).get
    return _mark(row) if row else None


def mark_by_inode(connection: Connection, device: int, inode: int) -> Mark | None:
    """Look up a file that may have been renamed."""
    row = connection.execute(f"SELECT {_MARK} FROM files WHERE inode=? AND device=? LIMIT 1", (inode, device)).get
    return _mark(row) if row else None


def known_files(connection: Connection) -> list[tuple[str, int, int, int]]:
    """List every file that is not gone: path, size, mtime_ns, inode."""
    return list(connection.execute("SELECT path, size, mtime_ns, inode FROM files WHERE gone_ms IS NULL"))


def main_mark(connection: Connection, agent: str, session: str) -> Mark | None:
    """Find a session's own transcript: one that is still there, else the newest."""
    row = connection.execute(
        f"SELECT {_MARK} FROM files WHERE agent=? AND session=? AND helper=0 ORDER BY gone_ms IS NULL DESC, last_ms DESC LIMIT 1",
        (agent, session),
    ).get
    return _mark(row) if row else None


def files_of(connection: Connection, agent: str, session: str, limit: int) -> list[tuple[str, bool, int, int, int, int, int | None]]:
    """List a session's files, its own first: path, helper, size, offset, bad, oversized, gone_ms."""
    rows = connection.execute(
        "SELECT path, helper, size, offset, bad, oversized, gone_ms FROM files WHERE agent=? AND session=? ORDER BY helper, path LIMIT ?",
        (agent, session, limit),
    )
    return [(row[0], bool(row[1]), *row[2:]) for row in rows]


def session_row(connection: Connection, agent: str, session: str) -> SessionRow | None:
    """Look up one session."""
    row = connection.execute(
        "SELECT agent, session, last_ms, helpers, bad FROM sessions WHERE agent=? AND session=?", (agent, session)
    ).get
    return SessionRow(*row) if row else None


def sessions_since(connection: Connection, since_ms: int, limit: int) -> list[SessionRow]:
    """List the sessions active since then, newest first."""
    rows = connection.execute(
        "SELECT agent, session, last_ms, helpers, bad FROM sessions WHERE last_ms>=? ORDER BY last_ms DESC LIMIT ?",
        (since_ms, limit),
    )
    return [SessionRow(*row) for row in rows]


def sessions_like(connection: Connection, prefix: str, limit: int) -> list[SessionRow]:
    """List the sessions whose id starts so, newest first."""
    rows = connection.execute(
        "SELECT agent, session, last_ms, helpers, bad FROM sessions WHERE substr(session, 1, ?)=? ORDER BY last_ms DESC, session LIMIT ?",
        (len(prefix), prefix, limit),
    )
    return [SessionRow(*row) for row in rows]


def totals_of(connection: Connection, agent: str, session: str) -> tuple[ModelTotal, ...]:
    """Sum a session's tokens by model."""
    rows = connection.execute(
        "SELECT model, input, output, cache_read, write_5m, write_1h FROM totals WHERE agent=? AND session=?", (agent, session)
    )
    return tuple(ModelTotal(*row) for row in rows)


def is_gone(connection: Connection, path: str) -> bool:
    """Say whether a file was noticed to be gone."""
    return bool(connection.execute("SELECT gone_ms IS NOT NULL FROM files WHERE path=?", (path,)).get)


def commit_readings(connection: Connection, readings: Iterable[Reading], now_ms: int) -> int:
    """Store what a pass found, all of it or nothing.

    Args:
        connection: The writer.
        readings: One for each file.
        now_ms: This machine's clock.

    Returns:
        How many new decisions there are.
    """
    found = 0
    for reading in readings:
        file_id = _put_file(connection, reading)
        for usage in reading.usages:
            _put_usage(connection, file_id, reading.mark, usage)
        for decision in reading.decisions:
            found += _put_decision(connection, decision)
    if found:
        _bound_decisions(connection, now_ms)
    return found


def _put_file(connection: Connection, reading: Reading) -> int:
    mark = reading.mark
    old = connection.execute("SELECT id, agent, session, helper, bad, oversized FROM files WHERE path=?", (mark.path,)).get
    if old and reading.fresh:
        _forget_usage(connection, old[0])
    if old:
        _count_session(connection, old[1], old[2], 0, -bool(old[3]), -(old[4] + old[5]))
    values = (
        mark.path, mark.agent, mark.session, int(mark.helper), mark.device, mark.inode, mark.size, mark.mtime_ns,
        mark.offset, int(mark.skipping), mark.head_bytes, mark.head, mark.tail, mark.bad, mark.oversized, mark.last_ms,
        encode(mark.fold),
    )  # fmt: skip
    file_id = connection.execute(
        f"INSERT INTO files({_MARK}) VALUES({','.join('?' * 17)}) ON CONFLICT(path) DO UPDATE SET "
        + ", ".join(f"{name}=excluded.{name}" for name in _MARK.split(", "))
        + ", gone_ms=NULL RETURNING id",
        values,
    ).get
    _count_session(connection, mark.agent, mark.session, mark.last_ms, int(mark.helper), mark.bad + mark.oversized)
    assert isinstance(file_id, int)
    return file_id


def _count_session(connection: Connection, agent: str, session: str, last_ms: int, helpers: int, bad: int) -> None:
    connection.execute(
        "INSERT INTO sessions VALUES(?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET last_ms=max(last_ms, ?3), "
        "helpers=helpers+?4, bad=bad+?5",
        (agent, session, last_ms, helpers, bad),
    )


def _put_usage(connection: Connection, file_id: int, mark: Mark, usage: Usage) -> None:
    key = message_key(mark.agent, mark.session, usage.message_id)
    new = (usage.input, usage.output, usage.cache_read, usage.write_5m, usage.write_1h)
    rows: list[Any] = connection.execute(
        "SELECT agent, session, model, input, output, cache_read, write_5m, write_1h FROM messages WHERE id=?", (key,)
    ).fetchall()
    old = rows[0] if rows else None
    if old is None:
        connection.execute(
            "INSERT INTO messages VALUES(?,?,?,?,?,?,?,?,?,?)", (key, file_id, mark.agent, mark.session, usage.model, *new)
        )
        _add_total(connection, (mark.agent, mark.session, usage.model), new)
    elif (usage.output, new, usage.model) > (old[4], tuple(old[3:]), old[2]):
        connection.execute(
            "UPDATE messages SET model=?, input=?, output=?, cache_read=?, write_5m=?, write_1h=? WHERE id=?",
            (usage.model, *new, key),
        )
        _add_total(connection, old[:3], [-count for count in old[3:]])
        _add_total(connection, (old[0], old[1], usage.model), new)


def _add_total(connection: Connection, key: Sequence[str], counts: Sequence[int]) -> None:
    connection.execute(
        "INSERT INTO totals VALUES(?1,?2,?3,?4,?5,?6,?7,?8) ON CONFLICT DO UPDATE SET input=input+?4, output=output+?5, "
        "cache_read=cache_read+?6, write_5m=write_5m+?7, write_1h=write_1h+?8",
        (*key, *counts),
    )


def _forget_usage(connection: Connection, file_id: int) -> None:
    """Take back what a file's earlier content counted."""
    rows: list[Any] = connection.execute(
        "SELECT agent, session, model, sum(input), sum(output), sum(cache_read), sum(write_5m), sum(write_1h) "
        "FROM messages WHERE file=? GROUP BY agent, session, model",
        (file_id,),
    ).fetchall()
    for row in rows:
        _add_total(connection, row[:3], [-count for count in row[3:]])
    connection.execute("DELETE FROM messages WHERE file=?", (file_id,))
    connection.execute("DELETE FROM totals WHERE input=0 AND output=0 AND cache_read=0 AND write_5m=0 AND write_1h=0")


def _put_decision(connection: Connection, decision: Decision) -> int:
    connection.execute(
        "INSERT OR IGNORE INTO decisions(source, agent, session, project, cwd, tool, subject, verdict, at_ms) "
        "VALUES(?,?,?,?,?,?,?,?,?)",
        (
            decision.source_id, decision.agent, decision.session, decision.project, decision.cwd, decision.tool,
            decision.subject, decision.verdict, decision.at_ms,
        ),
    )  # fmt: skip
    return connection.changes()


def _bound_decisions(connection: Connection, now_ms: int) -> None:
    """Drop the oldest beyond the bound, as taken, so that a copy of the transcript does not bring them back."""
    connection.execute(
        "UPDATE decisions SET taken_ms=?, subject='' WHERE taken_ms IS NULL AND seq NOT IN "
        "(SELECT seq FROM decisions WHERE taken_ms IS NULL ORDER BY seq DESC LIMIT ?)",
        (now_ms, DECISIONS_MAX),
    )


def decisions_waiting(connection: Connection, limit: int) -> list[Decision]:
    """List decisions nobody has taken yet, oldest first."""
    rows = connection.execute(
        "SELECT source, agent, session, project, cwd, tool, subject, verdict, at_ms FROM decisions "
        "WHERE taken_ms IS NULL ORDER BY seq LIMIT ?",
        (limit,),
    )
    return [Decision(*row) for row in rows]


def take_decisions(connection: Connection, source_ids: Iterable[bytes], now_ms: int) -> None:
    """Note that decisions are stored elsewhere; only their names stay, so that none is given twice."""
    connection.executemany(
        "UPDATE decisions SET taken_ms=?, cwd='', subject='' WHERE source=? AND taken_ms IS NULL",
        [(now_ms, source) for source in source_ids],
    )


def note_gone(connection: Connection, paths: Iterable[str], now_ms: int) -> None:
    """Note that files are not there any more; what they counted stays."""
    connection.executemany("UPDATE files SET gone_ms=? WHERE path=? AND gone_ms IS NULL", [(now_ms, path) for path in paths])


def rename_file(connection: Connection, old_path: str, new_path: str) -> None:
    """Follow a renamed file."""
    connection.execute("UPDATE files SET path=?, gone_ms=NULL WHERE path=?", (new_path, old_path))


def prune(connection: Connection, now_ms: int) -> None:
    """Drop sessions whose last transcript went KEEP_D days ago, and decisions taken so long ago."""
    limit_ms = now_ms - KEEP_D * DAY_MS
    old = connection.execute("SELECT DISTINCT agent, session FROM files WHERE gone_ms < ?", (limit_ms,)).fetchall()
    for agent, session in old:
        if connection.execute(
            "SELECT count(*) FROM files WHERE agent=? AND session=? AND (gone_ms IS NULL OR gone_ms>=?)", (agent, session, limit_ms)
        ).get:
            continue
        connection.execute(
            "DELETE FROM messages WHERE file IN (SELECT id FROM files WHERE agent=? AND session=?)", (agent, session)
        )
        for table in ("files", "sessions", "totals"):
            connection.execute(f"DELETE FROM {table} WHERE agent=? AND session=?", (agent, session))
    connection.execute("DELETE FROM decisions WHERE taken_ms < ?", (limit_ms,))
