"""``hive.db``: own observations, own counters, and what was forgotten here.

Observations are redacted before they come here. A counter is raised in the transaction that keeps the observation, so a
decision counts once however often it is read; counters live apart from observations and never shrink when old ones go.
Observations older than the oldest that was let go are not taken any more, for nobody could tell whether they were counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hive.distil import Evidence, Tally, added, joined, tally_of
from hive.unit import APPROVE, DENY, Topic, Verdict
from mesh.base.db import Connection
from mesh.base.errors import Refused

OBSERVATIONS_MAX = 50_000
UNITS_MAX = 10_000
"""Own units kept here; beyond it the one observed longest ago is dropped with its observations."""
FORGOTTEN_MAX = 10_000
EXAMPLES_MAX = 3

SCHEMA = (
    """
CREATE TABLE observations(
  source BLOB PRIMARY KEY, unit BLOB NOT NULL, verdict INTEGER NOT NULL, at_ms INTEGER NOT NULL,
  agent TEXT NOT NULL, session TEXT NOT NULL, subject TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX observations_by_time ON observations(at_ms);
CREATE INDEX observations_by_unit ON observations(unit, at_ms);
CREATE TABLE units(
  key BLOB PRIMARY KEY, scope TEXT NOT NULL, category TEXT NOT NULL, tool TEXT NOT NULL, pattern TEXT NOT NULL,
  stance INTEGER, text TEXT NOT NULL DEFAULT '',
  positive INTEGER NOT NULL, negative INTEGER NOT NULL, last_observed_ms INTEGER NOT NULL,
  stated_positive INTEGER NOT NULL DEFAULT 0, stated_negative INTEGER NOT NULL DEFAULT 0,
  changed INTEGER NOT NULL DEFAULT 1, published_ms INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE INDEX units_by_time ON units(last_observed_ms);
CREATE TABLE forgotten(key BLOB PRIMARY KEY, before_ms INTEGER NOT NULL, lifted_version INTEGER) WITHOUT ROWID;
CREATE TABLE marks(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
""",
)
"""``stated_*``: what this machine already said to the mesh; counters never go below it, also after a restore.
``lifted_version``: NULL while the key stays forgotten; else the tombstone's version that a lesson by hand lifted."""


@dataclass(frozen=True, slots=True)
class OwnUnit:
    """One own unit as it is kept here.

    Attributes:
        tally: The counters to publish.
        stance: What the user said by hand, or None.
        changed: Whether the mesh has not heard of its newest state.
        published_ms: When it was last published, or 0.
    """

    topic: Topic
    tally: Tally
    stance: Verdict | None
    text: str
    changed: bool
    published_ms: int


def add_evidence(connection: Connection, evidence: Iterable[Evidence], now_ms: int) -> int:
    """Keep new evidence and count it.

    Args:
        connection: The writer, in a transaction.
        evidence: Redacted; what is forgotten, known, or older than the horizon is left out.
        now_ms: This machine's clock.

    Returns:
        How many pieces were new.
    """
    horizon_ms = _mark(connection, "horizon_ms")
    new = 0
    for piece in evidence:
        key = piece.topic.key
        if piece.at_ms <= horizon_ms or not _may_learn(connection, key, piece.at_ms) or not _insert(connection, key, piece):
            continue
        known = unit(connection, key)
        _put_tally(connection, key, piece.topic, added(_counted(connection, key), tally_of(piece)), known is None)
        new += 1
    if new:
        _set_mark(connection, "last_learned_ms", now_ms)
        _let_go_of_observations(connection)
        _let_go_of_units(connection)
    return new


def _may_learn(connection: Connection, key: bytes, at_ms: int) -> bool:
    row = connection.execute("SELECT before_ms, lifted_version FROM forgotten WHERE key=?", (key,)).fetchone()
    return row is None or (row[1] is not None and at_ms > row[0])


def _insert(connection: Connection, key: bytes, piece: Evidence) -> bool:
    connection.execute(
        "INSERT OR IGNORE INTO observations VALUES(?,?,?,?,?,?,?)",
        (piece.source_id, key, int(piece.verdict == APPROVE), piece.at_ms, piece.agent, piece.session, piece.subject),
    )
    return connection.changes() == 1


def _counted(connection: Connection, key: bytes) -> Tally:
    row = connection.execute("SELECT positive, negative, last_observed_ms FROM units WHERE key=?", (key,)).fetchone()
    return Tally(*row) if row else Tally()


def _put_tally(connection: Connection, key: bytes, topic: Topic, tally: Tally, is_new: bool) -> None:
    if is_new:
        connection.execute(
            "INSERT INTO units(key, scope, category, tool, pattern, positive, negative, last_observed_ms) VALUES(?,?,?,?,?,?,?,?)",
            (key, topic.scope, topic.category, topic.tool, topic.pattern, tally.positive, tally.negative, tally.last_observed_ms),
        )
        return
    connection.execute(
        "UPDATE units SET positive=?, negative=?, last_observed_ms=?, changed=1 WHERE key=?",
        (tally.positive, tally.negative, tally.last_observed_ms, key),
    )


def _let_go_of_observations(connection: Connection) -> None:
    surplus = connection.execute("SELECT count(*) FROM observations").get - OBSERVATIONS_MAX
    if surplus <= 0:
        return
    horizon_ms = connection.execute(
        "SELECT at_ms FROM observations ORDER BY at_ms LIMIT 1 OFFSET ?", (surplus - 1,)
    ).get
    connection.execute("DELETE FROM observations WHERE at_ms<=?", (horizon_ms,))
    _set_mark(connection, "horizon_ms", horizon_ms)


def _let_go_of_units(connection: Connection) -> None:
    surplus = connection.execute("SELECT count(*) FROM units").get - UNITS_MAX
    if surplus <= 0:
        return
    keys = connection.execute("SELECT key FROM units ORDER BY last_observed_ms, key LIMIT ?", (surplus,)).fetchall()
    for (key,) in keys:
        connection.execute("DELETE FROM units WHERE key=?", (key,))


def teach(connection: Connection, piece: Evidence, text: str, lifted_version: int, now_ms: int) -> None:
    """Keep what the user said by hand: it counts once, decides the stance, and lifts a forgetting.

    Args:
        connection: The writer, in a transaction.
        piece: The decision as evidence, with a source of its own.
        text: The user's remark, redacted; empty keeps an earlier one.
        lifted_version: Version of this machine's tombstone for the key, or 0; only a newer one forgets again.
        now_ms: This machine's clock.
    """
    key = piece.topic.key
    connection.execute(
        "UPDATE forgotten SET lifted_version=?, before_ms=min(before_ms, ?) WHERE key=?", (lifted_version, piece.at_ms - 1, key)
    )
    if _insert(connection, key, piece):
        tally = added(_counted(connection, key), tally_of(piece))
        _put_tally(connection, key, piece.topic, tally, unit(connection, key) is None)
    connection.execute(
        "UPDATE units SET stance=?, text=CASE ? WHEN '' THEN text ELSE ? END, changed=1, published_ms=0 WHERE key=?",
        (int(piece.verdict == APPROVE), text, text, key),
    )
    _set_mark(connection, "last_learned_ms", now_ms)
    _let_go_of_units(connection)


def forget(connection: Connection, key: bytes, now_ms: int) -> None:
    """Forget a lesson: its counters and observations go, and no observation brings it back.

    Args:
        connection: The writer, in a transaction.
        key: The unit's key, own or a peer's.
        now_ms: This machine's clock.

    Raises:
        Refused: FORGOTTEN_MAX lessons are forgotten already.
    """
    known = connection.execute("SELECT 1 FROM forgotten WHERE key=?", (key,)).fetchone()
    if known is None and connection.execute("SELECT count(*) FROM forgotten").get >= FORGOTTEN_MAX:
        raise Refused(f"{FORGOTTEN_MAX} lessons are forgotten already", reason="limit", hint="learn one again by hand to make room")
    newest_ms = connection.execute("SELECT max(at_ms) FROM observations WHERE unit=?", (key,)).get or 0
    connection.execute(
        "INSERT INTO forgotten VALUES(?,?,NULL) ON CONFLICT(key) DO UPDATE SET before_ms=max(before_ms, excluded.before_ms), lifted_version=NULL",
        (key, max(now_ms, newest_ms)),
    )
    connection.execute("DELETE FROM units WHERE key=?", (key,))
    connection.execute("DELETE FROM observations WHERE unit=?", (key,))


def forget_all(connection: Connection, keys: Iterable[bytes], now_ms: int) -> None:
    """Forget several lessons in one transaction; as :func:`forget`."""
    for key in keys:
        forget(connection, key, now_ms)


def not_forgotten(connection: Connection, withdrawn: Mapping[bytes, int]) -> list[bytes]:
    """Find what this machine withdrew from the mesh and does not know to be forgotten: an older ``hive.db`` came back.

    Args:
        connection: Any.
        withdrawn: Key to the tombstone's version.

    Returns:
        Keys to forget; one that was learned again by hand after that very tombstone is not among them.
    """
    rows: list[tuple[Any, ...]] = connection.execute("SELECT key, lifted_version FROM forgotten").fetchall()
    known = dict(rows)
    return [
        key
        for key, version in withdrawn.items()
        if key not in known or (known[key] is not None and known[key] < version)
    ]


def adopt_stated(connection: Connection, key: bytes, topic: Topic, stated: Tally) -> None:
    """Never fall behind what this machine told the mesh before; units it told of and lost come back with it.

    Args:
        connection: The writer, in a transaction.
        key: The unit's key.
        topic: What it is about.
        stated: The counters of this machine's own published record.
    """
    known = unit(connection, key)
    if known is None:
        _put_tally(connection, key, topic, Tally(0, 0, stated.last_observed_ms), True)
        connection.execute("UPDATE units SET changed=0, published_ms=1 WHERE key=?", (key,))
    connection.execute(
        "UPDATE units SET stated_positive=max(stated_positive, ?), stated_negative=max(stated_negative, ?),"
        " last_observed_ms=max(last_observed_ms, ?) WHERE key=?",
        (stated.positive, stated.negative, stated.last_observed_ms, key),
    )


def mark_published(connection: Connection, key: bytes, tally: Tally, now_ms: int) -> None:
    """Note what the mesh was told; a change since stays marked as one."""
    connection.execute(
        "UPDATE units SET published_ms=?, stated_positive=max(stated_positive, ?), stated_negative=max(stated_negative, ?),"
        " changed=(max(positive, stated_positive)>? OR max(negative, stated_negative)>? OR last_observed_ms>?) WHERE key=?",
        (now_ms, tally.positive, tally.negative, tally.positive, tally.negative, tally.last_observed_ms, key),
    )


_COLUMNS = "scope, category, tool, pattern, stance, text, positive, negative, last_observed_ms, stated_positive, stated_negative, changed, published_ms"
_Row = tuple[str, str, str, str, int | None, str, int, int, int, int, int, int, int]


def _own_unit(row: _Row) -> OwnUnit:
    scope, category, tool, pattern, stance, text, positive, negative, last_ms, stated_positive, stated_negative, changed, published_ms = row
    by_hand: Verdict | None = None if stance is None else APPROVE if stance else DENY
    tally = joined(Tally(positive, negative, last_ms), Tally(stated_positive, stated_negative))
    return OwnUnit(Topic(scope, category, tool, pattern), tally, by_hand, text, bool(changed), published_ms)


def unit(connection: Connection, key: bytes) -> OwnUnit | None:
    """Read one own unit."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM units WHERE key=?", (key,)).fetchone()
    return None if row is None else _own_unit(row)


def newest_units(connection: Connection, units_max: int) -> list[OwnUnit]:
    """Read the own units observed last, newest first."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM units ORDER BY last_observed_ms DESC, key LIMIT ?", (units_max,))
    return [_own_unit(row) for row in rows]


def examples(connection: Connection, key: bytes) -> list[tuple[str, Verdict, int]]:
    """Read the newest observations of one unit: subject, verdict, time in ms."""
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT subject, verdict, at_ms FROM observations WHERE unit=? ORDER BY at_ms DESC LIMIT ?", (key, EXAMPLES_MAX)
    ).fetchall()
    return [(subject, APPROVE if verdict else DENY, at_ms) for subject, verdict, at_ms in rows]


def forgotten_keys(connection: Connection) -> set[bytes]:
    """List the keys that stay forgotten on this machine."""
    return {key for (key,) in connection.execute("SELECT key FROM forgotten WHERE lifted_version IS NULL")}


def counts(connection: Connection) -> tuple[int, int, int | None]:
    """Count observations and own units, and read when something was last learned, in ms."""
    observations = connection.execute("SELECT count(*) FROM observations").get
    units = connection.execute("SELECT count(*) FROM units").get
    return observations, units, _mark(connection, "last_learned_ms") or None


def _mark(connection: Connection, name: str) -> int:
    row = connection.execute("SELECT value FROM marks WHERE name=?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def _set_mark(connection: Connection, name: str, value: int) -> None:
    connection.execute("INSERT INTO marks VALUES(?,?) ON CONFLICT(name) DO UPDATE SET value=excluded.value", (name, value))
