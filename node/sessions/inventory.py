"""What of a session travels to the owner's other machines, and how one is shown.

Every text passes one place on its way out, where secrets are redacted and the bound is kept: title, branch and folder
names leak as well as commands do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from mesh.base.clock import rfc3339
from mesh.base.codec import Count, Range, Size, decode_untrusted
from node.sessions.cost import ModelTotal, PriceTable, cost_of
from node.sessions.fold import FoldState, Quota, Redact
from node.sessions.formats import one_line
from node.sessions.status import STATUSES, Status

BODY_BYTES_MAX = 2_048
"""The largest encoded body; the bounds of the fields add up to less."""
HEALTH_MAX = 8
ENDED_LISTED_MAX = 50
"""Ended sessions listed, newest first."""
LISTED_MAX = 200
"""Sessions listed in all, newest first."""

_TIME = Range(0, (1 << 47) - 1)
_TOKENS = Range(0, 1 << 53)
_BOUNDS = {"session": 64, "agent": 16, "project": 64, "cwd": 256, "branch": 128, "model": 64, "title": 120, "waiting": 240}


@dataclass(frozen=True, slots=True)
class SessionBody:
    """One session as other machines of the same owner hear of it; sealed before it leaves. None is unknown.

    Attributes:
        session: The agent's own id of the session.
        status: One of :data:`node.sessions.status.STATUSES`; a word of a newer version is shown as ``unknown``.
        waiting_for: What a person is asked, one line.
        input: Tokens neither read from nor written to a cache.
        cost_micro: Millionths of a dollar.
        context_pct: How full the model's context is.
        task: The delegated run this session belongs to.
    """

    session: Annotated[str, Size(1, 64)]
    agent: Annotated[str, Size(1, 16)]
    project: Annotated[str, Size(1, 64)]
    cwd: Annotated[str, Size(0, 256)] | None
    branch: Annotated[str, Size(0, 128)] | None
    model: Annotated[str, Size(0, 64)] | None
    title: Annotated[str, Size(0, 120)] | None
    status: Annotated[str, Size(1, 16)]
    since_ms: Annotated[int, _TIME] | None
    waiting_for: Annotated[str, Size(0, 240)] | None
    input: Annotated[int, _TOKENS] | None
    output: Annotated[int, _TOKENS] | None
    cache_read: Annotated[int, _TOKENS] | None
    cache_write: Annotated[int, _TOKENS] | None
    cost_micro: Annotated[int, _TOKENS] | None
    context_pct: Annotated[int, Range(0, 100)] | None
    limit: Quota | None
    health: Annotated[tuple[Annotated[str, Size(1, 32)], ...], Count(HEALTH_MAX)]
    task: Annotated[str, Size(1, 64)] | None
    last_active_ms: Annotated[int, _TIME]


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session of this machine.

    Attributes:
        body: What is published.
        alive: Whether its process is known to live.
        source: What decided the status.
        helpers: How many transcripts of its own helpers it has.
        bad_lines: Unreadable lines in its transcripts.
        unpriced: Models without a price.
    """

    body: SessionBody
    alive: bool
    source: str
    helpers: int
    bad_lines: int
    unpriced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session works.

    Attributes:
        project: A project's name; the folder's own where there is no repository.
        branch: The branch checked out there now, or None.
    """

    project: str
    branch: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the body of one session is made from."""

    session: str
    agent: str
    project: str
    branch: str | None
    seen: FoldState
    status: Status
    totals: tuple[ModelTotal, ...]
    last_active_ms: int
    title: str | None
    helpers: int
    bad_lines: int
    deleted: bool
    alive: bool


def state_of(facts: Facts, prices: PriceTable, redact: Redact) -> SessionState:
    """Make a session's published state: the one place where its texts are redacted and bounded.

    Args:
        facts: What is known.
        prices: The table of prices.
        redact: Takes secrets out of a text.

    Returns:
        The state; every field within its bound.
    """

    def text(value: str | None, bound: str) -> str | None:
        return None if value is None else one_line(redact(value), _BOUNDS[bound])

    totals = facts.totals
    cost = cost_of(totals, prices)
    body = SessionBody(
        session=text(facts.session, "session") or "unknown",
        agent=facts.agent,
        project=text(facts.project, "project") or "project",
        cwd=text(facts.seen.cwd, "cwd"),
        branch=text(facts.branch, "branch"),
        model=text(facts.seen.model, "model"),
        title=text(facts.title, "title"),
        status=facts.status.word,
        since_ms=_time(facts.status.since_ms),
        waiting_for=text(facts.status.waiting_for, "waiting"),
        input=_sum(total.input for total in totals) if totals else None,
        output=_sum(total.output for total in totals) if totals else None,
        cache_read=_sum(total.cache_read for total in totals) if totals else None,
        cache_write=_sum(total.write_5m + total.write_1h for total in totals) if totals else None,
        cost_micro=None if not totals or cost.micro is None else min(cost.micro, _TOKENS.high),
        context_pct=_context_pct(facts.seen, prices),
        limit=facts.seen.quota,
        health=_health(facts),
        task=None,
        last_active_ms=_time(facts.last_active_ms) or 0,
    )
    return SessionState(body, facts.alive, facts.status.source, facts.helpers, facts.bad_lines, cost.unpriced)


def _sum(values: Iterable[int]) -> int:
    return min(sum(values), _TOKENS.high)


def _time(value_ms: int | None) -> int | None:
    return None if value_ms is None else max(0, min(value_ms, _TIME.high))


def _context_pct(seen: FoldState, prices: PriceTable) -> int | None:
    window = seen.window_tokens or prices.window(seen.model)
    if not window or seen.context_tokens is None or seen.context_tokens > window:
        return None
    return round(100 * seen.context_tokens / window)


def _health(facts: Facts) -> tuple[str, ...]:
    words = list(facts.status.health)
    if facts.deleted:
        words.append("transcript_deleted")
    if facts.bad_lines:
        words.append(f"unreadable_lines:{min(facts.bad_lines, 10**9)}")
    return tuple(words[:HEALTH_MAX])


def body_untrusted(data: bytes) -> SessionBody:
    """Read a session's body that came from another machine.

    Args:
        data: The opened bytes, anything.

    Returns:
        The body, every field in its range.

    Raises:
        Malformed: Not a body.
    """
    return decode_untrusted(SessionBody, data, bytes_max=BODY_BYTES_MAX)


def chosen(states: Sequence[SessionState], active_since_ms: int) -> list[SessionState]:
    """Choose the sessions that are listed.

    Args:
        states: Any, each session once.
        active_since_ms: A session without a living process must have been active since then.

    Returns:
        At most LISTED_MAX, at most ENDED_LISTED_MAX of them ended; living ones first, then the newest.
    """
    ranked = sorted(states, key=lambda s: (not s.alive, -s.body.last_active_ms, s.body.agent, s.body.session))
    listed: list[SessionState] = []
    ended = 0
    for state in ranked:
        if not state.alive and state.body.last_active_ms < active_since_ms:
            continue
        ended += state.body.status == "ended"
        if state.body.status != "ended" or ended <= ENDED_LISTED_MAX:
            listed.append(state)
    return listed[:LISTED_MAX]


def fleet_row(body: SessionBody, *, node: str, node_name: str, heard_ms: int | None, stale: bool, now_ms: int) -> dict[str, Any]:
    """Show one session as a row of ``fleet --json``.

    Texts are made safe for a screen again here, since they may come from another machine.

    Args:
        body: The session.
        node: The machine's id, as a person may type it.
        node_name: The machine's name, without a suffix.
        heard_ms: When this machine last heard of the session or its machine, by its own clock; None for never.
        stale: Whether the session's machine is not live for this one.
        now_ms: This machine's clock.

    Returns:
        One row of ``fleet --json``.
    """

    def text(value: str | None, bound: str) -> str | None:
        return None if value is None else one_line(value, _BOUNDS[bound])

    limit = body.limit
    return {
        "node": node,
        "name": node_name,
        "session": text(body.session, "session"),
        "agent": text(body.agent, "agent"),
        "project": text(body.project, "project"),
        "title": text(body.title, "title"),
        "cwd": text(body.cwd, "cwd"),
        "branch": text(body.branch, "branch"),
        "model": text(body.model, "model"),
        "status": body.status if body.status in STATUSES else "unknown",
        "since": rfc3339(body.since_ms),
        "waiting_for": text(body.waiting_for, "waiting"),
        "tokens": {
            "input": body.input,
            "output": body.output,
            "cache_read": body.cache_read,
            "cache_write": body.cache_write,
        },
        "cost_usd": None if body.cost_micro is None else body.cost_micro / 1_000_000,
        "context_pct": body.context_pct,
        "limit": limit and {"window": limit.window, "used_pct": limit.used_pct, "resets_at": rfc3339(limit.resets_at_ms)},
        "health": [one_line(word, 32) for word in body.health],
        "task": text(body.task, "session"),
        "age_s": None if heard_ms is None else max(0, (now_ms - heard_ms) // 1000),
        "stale": stale,
    }
