"""One session in full, for ``session show``: read from the end of its transcript when somebody asks.

Recent activity is not kept anywhere: a stored copy of what was said would be one more place for secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh.base.clock import rfc3339
from mesh.base.db import Connection
from mesh.base.errors import Usage
from node.sessions import claude, codex, store
from node.sessions.cost import ModelTotal, PriceTable, cost_of
from node.sessions.fold import Redact
from node.sessions.formats import BadLine, Kind, Row, one_line
from node.sessions.inventory import SessionState, fleet_row
from node.sessions.plain import read_plain
from node.sessions.status import Life

TAIL_BYTES_MAX = 512 << 10
"""Read of a transcript's end for its recent activity."""
EVENTS_MAX = 20
EVENT_BYTES_MAX = 200
FILES_MAX = 50
CANDIDATES_MAX = 5


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the database knows of one session."""

    row: store.SessionRow
    mark: store.Mark | None
    deleted: bool
    totals: tuple[ModelTotal, ...]
    files: list[tuple[str, bool, int, int, int, int, int | None]]


def pick(connection: Connection, prefix: str) -> store.SessionRow:
    """Find the one session whose id starts so.

    Args:
        connection: A reader.
        prefix: The id or its start.

    Returns:
        The session.

    Raises:
        Usage: None or several begin so.
    """
    rows = store.sessions_like(connection, prefix, CANDIDATES_MAX + 1) if prefix else []
    exact = [row for row in rows if row.session == prefix]
    if len(exact or rows) == 1:
        return (exact or rows)[0]
    shown = one_line(prefix, 40)
    if not rows:
        raise Usage(f"no session of this machine begins with {shown!r}", hint="list them: hivemesh fleet --all")
    names = ", ".join(row.session[:13] for row in rows[:CANDIDATES_MAX])
    raise Usage(f"several sessions begin with {shown!r}: {names}", hint="write more of the id")


def load(connection: Connection, row: store.SessionRow) -> Loaded:
    """Load what the database knows of a session."""
    mark = store.main_mark(connection, row.agent, row.session)
    deleted = mark is None or store.is_gone(connection, mark.path)
    totals = store.totals_of(connection, row.agent, row.session)
    return Loaded(row, mark, deleted, totals, store.files_of(connection, row.agent, row.session, FILES_MAX))


def describe(loaded: Loaded, state: SessionState | None, life: Life, prices: PriceTable, redact: Redact) -> dict[str, Any]:
    """Describe a session; blocks while it reads the end of its transcript.

    Args:
        loaded: What the database knows.
        state: Its listed state, or None for an old one.
        life: What is known of its process.
        prices: The table of prices.
        redact: Takes secrets out of a text.

    Returns:
        Everything ``session show --json`` prints; texts redacted.
    """
    row, seen = loaded.row, loaded.mark.fold if loaded.mark else None
    cost = cost_of(loaded.totals, prices)
    return {
        "session": row.session,
        "agent": row.agent,
        "state": state and fleet_row(state.body, node="", node_name="", heard_ms=None, stale=False, now_ms=0),
        "status_source": state.source if state else None,
        "process": {"state": life.state, "why": life.why, "word": life.word},
        "last_active": rfc3339(row.last_ms),
        "turns": seen.turns if seen else None,
        "helpers": row.helpers,
        "transcript": "deleted" if loaded.deleted else "present",
        "unreadable_lines": row.bad,
        "models": [_model(total, prices) for total in loaded.totals],
        "cost_known_usd": cost.known_micro / 1_000_000,
        "unpriced_models": [one_line(model, 64) for model in cost.unpriced],
        "prices_of": prices.dated,
        "files": [_file(file, redact) for file in loaded.files],
        "recent": [] if loaded.deleted or loaded.mark is None else recent_events(row.agent, loaded.mark.path, redact),
    }


def _model(total: ModelTotal, prices: PriceTable) -> dict[str, Any]:
    cost = cost_of([total], prices).micro
    return {
        "model": one_line(total.model, 64),
        "input": total.input,
        "output": total.output,
        "cache_read": total.cache_read,
        "cache_write": total.write_5m + total.write_1h,
        "cost_usd": None if cost is None else cost / 1_000_000,
    }


def _file(file: tuple[str, bool, int, int, int, int, int | None], redact: Redact) -> dict[str, Any]:
    path, helper, size, offset, bad, oversized, gone_ms = file
    return {
        "path": one_line(redact(path), 1_000),
        "helper": helper,
        "bytes": size,
        "read": offset,
        "unreadable_lines": bad,
        "oversized_lines": oversized,
        "gone_since": rfc3339(gone_ms),
    }


def recent_events(agent: str, path: str, redact: Redact) -> list[dict[str, Any]]:
    """Read the newest events of a transcript.

    Args:
        agent: ``claude`` or ``codex``.
        path: The transcript.
        redact: Takes secrets out of a text.

    Returns:
        At most EVENTS_MAX of ``{at, kind, text}``, oldest first; empty where the file cannot be read.
    """
    parse = claude.parse_line_untrusted if agent == "claude" else codex.parse_line_untrusted
    events: list[dict[str, Any]] = []
    for line in reversed(_last_lines(path)):
        try:
            row = parse(line)
        except BadLine:
            continue
        text = "" if row is None else _event_text(row)
        if row is not None and text:
            text = one_line(redact(text), EVENT_BYTES_MAX)
            events.append({"at": rfc3339(row.at_ms), "kind": row.kind.value, "text": text})
        if len(events) >= EVENTS_MAX:
            break
    return events[::-1]


def _last_lines(path: str) -> list[bytes]:
    """Read the whole lines at a file's end."""
    lines = (read_plain(path, TAIL_BYTES_MAX, from_end=True) or b"").split(b"\n")
    return lines[1:] if sum(map(len, lines)) + len(lines) - 1 == TAIL_BYTES_MAX else lines


_PLAIN = {
    Kind.ENDED: "the turn ended",
    Kind.INTERRUPTED: "stopped by the user",
    Kind.RETRY: "the model's API failed",
    Kind.LIMIT: "the quota is used up",
}


def _event_text(row: Row) -> str:
    """Say in one line what happened, or nothing where it is not worth a line."""
    if row.calls:
        return "; ".join(f"{call.tool}: {call.subject}" for call in row.calls)
    if row.results:
        verdicts = [result.verdict for result in row.results if result.verdict]
        return f"the user said {'yes' if verdicts[0] == 'approve' else 'no'}" if verdicts else ""
    if row.kind in (Kind.PROMPT, Kind.REPLY, Kind.TITLE):
        return row.text
    return row.text or _PLAIN.get(row.kind, "")
