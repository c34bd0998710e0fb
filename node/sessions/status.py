"""Evidence to one word: what a session is doing, since when, and what tells us.

In this order: is its process alive, what does the agent itself say, what does the transcript say. Without evidence the
word is ``unknown``; processor use alone never decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.sessions.fold import FoldState, Pending
from node.sessions.formats import Kind

UNKNOWN_MS = 10 * 60_000
"""Without process evidence a session is ``unknown`` this long after its last line, then ``ended``."""
STUCK_MS = 5 * 60_000
"""Busy without growth, child or processor use for this long is ``stuck``."""
SETTLE_MS = 3_000
"""A tool call younger than this may still be starting; a quiet reply younger than three times this may go on."""
LIMIT_UNKNOWN_MS = 5 * 3_600_000
"""A used-up quota that did not say when it starts again is believed this long."""

STATUSES = ("needs_you", "your_turn", "working", "limited", "stuck", "ended", "unknown")


@dataclass(frozen=True, slots=True)
class Life:
    """What the system says about a session's process.

    Attributes:
        state: ``alive``, ``gone`` (it was seen, or said to be, and is not there any more), or ``none`` (no evidence).
        why: Where the evidence came from, or why there is none.
        word: The agent's own word: ``busy``, ``idle``, ``waiting``, another, or None.
        waiting_for: The agent's own words for what it waits for.
        word_ms: Since when the word holds.
        newest_child_ms: When the youngest process it started began; None where there is none or it cannot be known.
        children_known: Whether its child processes could be listed.
        quiet_since_ms: Since when it has used no processor time worth the name; None where it did or it is unknown.
        gone_ms: When it was noticed to be gone.
    """

    state: str = "none"
    why: str = ""
    word: str | None = None
    waiting_for: str | None = None
    word_ms: int | None = None
    newest_child_ms: int | None = None
    children_known: bool = False
    quiet_since_ms: int | None = None
    gone_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A session's state.

    Attributes:
        word: One of STATUSES.
        since_ms: Since when, or None.
        waiting_for: What a person is asked, one line, unredacted, or None.
        health: Words for what is wrong or odd.
        source: What decided: ``process``, ``agent``, ``transcript`` or ``age``.
    """

    word: str
    since_ms: int | None
    waiting_for: str | None = None
    health: tuple[str, ...] = ()
    source: str = "transcript"


def judge(seen: FoldState, life: Life, last_active_ms: int, now_ms: int) -> Status:
    """Say what a session is doing.

    Args:
        seen: What its transcript says.
        life: What the system says about its process.
        last_active_ms: When anything of it, a helper included, last grew.
        now_ms: This machine's clock.

    Returns:
        The word with its reasons.
    """
    if life.state == "gone":
        health = ("died",) if is_mid_turn(seen) else ()
        return Status("ended", life.gone_ms or last_active_ms, health=health, source="process")
    if life.state == "none":
        old = now_ms - last_active_ms >= UNKNOWN_MS
        return Status("ended" if old else "unknown", last_active_ms, source="age")
    if limit_reached(seen, now_ms) and life.word != "busy":
        return Status("limited", seen.event_ms or last_active_ms)
    status = _by_agent(seen, life) if life.word else _by_transcript(seen, life, last_active_ms, now_ms)
    if status.word == "working":
        return _checked(status, seen, life, last_active_ms, now_ms)
    return status


def is_mid_turn(seen: FoldState) -> bool:
    """Say whether the transcript stops in the middle of a turn."""
    if seen.event in ("", Kind.ENDED.value, Kind.INTERRUPTED.value, Kind.LIMIT.value):
        return False
    return not (seen.event == Kind.REPLY.value and not seen.pending)


def limit_reached(seen: FoldState, now_ms: int) -> bool:
    """Say whether a quota is used up and has not started again."""
    quota = seen.quota
    if quota is None or (quota.used_pct or 0) < 100:
        return False
    if quota.resets_at_ms is not None:
        return now_ms < quota.resets_at_ms
    return seen.event == Kind.LIMIT.value and now_ms - (seen.event_ms or 0) < LIMIT_UNKNOWN_MS


def _by_agent(seen: FoldState, life: Life) -> Status:
    since_ms = life.word_ms if life.word_ms is not None else seen.event_ms
    if life.word == "waiting":
        return Status("needs_you", since_ms, _asked(life.waiting_for, seen.pending), source="agent")
    if life.word == "idle":
        return Status("your_turn", since_ms, source="agent")
    return Status("working", since_ms, source="agent")


def _asked(said: str | None, pending: tuple[Pending, ...]) -> str:
    """Name what a person is asked: the agent's words, and the newest call it may be about."""
    words = said or "an answer"
    if not pending:
        return words
    return f"{words}: {pending[-1].tool} {pending[-1].subject}"


def _by_transcript(seen: FoldState, life: Life, last_active_ms: int, now_ms: int) -> Status:
    since_ms = seen.event_ms if seen.event_ms is not None else last_active_ms
    if seen.pending:
        return _by_pending(seen.pending, life, now_ms)
    if seen.event in ("", Kind.ENDED.value, Kind.INTERRUPTED.value):
        return Status("your_turn", since_ms)
    if seen.event == Kind.REPLY.value and (seen.final or now_ms - last_active_ms > 3 * SETTLE_MS):
        return Status("your_turn", since_ms)
    return Status("working", since_ms)


def _by_pending(pending: tuple[Pending, ...], life: Life, now_ms: int) -> Status:
    """Judge a tool call without an answer: it may run, or wait for leave."""
    call = pending[-1]
    if call.question:
        return Status("needs_you", call.at_ms, f"question: {call.tool} {call.subject}")
    if now_ms - call.at_ms < SETTLE_MS:
        return Status("working", call.at_ms)
    if life.newest_child_ms is not None and life.newest_child_ms >= call.at_ms - SETTLE_MS:
        return Status("working", call.at_ms)
    if call.asks and life.children_known:
        return Status("needs_you", call.at_ms, f"permission: {call.tool} {call.subject}")
    return Status("unknown", call.at_ms, health=("tool_or_permission",))


def _checked(status: Status, seen: FoldState, life: Life, last_active_ms: int, now_ms: int) -> Status:
    """Doubt the word ``working`` where nothing moves."""
    health = ("retrying",) if seen.event == Kind.RETRY.value else ()
    started_ms = max(last_active_ms, status.since_ms or 0)
    young = life.newest_child_ms is not None and life.newest_child_ms >= started_ms - SETTLE_MS
    quiet_ms = None if life.quiet_since_ms is None else now_ms - life.quiet_since_ms
    still = life.children_known and not young and quiet_ms is not None and quiet_ms >= STUCK_MS
    if still and now_ms - started_ms >= STUCK_MS:
        return Status("stuck", started_ms, health=(*health, "no_growth"), source=status.source)
    return Status(status.word, status.since_ms, health=health, source=status.source)
