"""What one transcript says so far: a fold over its lines that is cheap to keep and to go on with.

The fold remembers only what the next line needs: where the session stands, which tool calls have no answer, how full
the context is. Texts are kept as they are while lines are read and are redacted when the fold is frozen to be stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from mesh.base.codec import Count, Range, Size
from node.sessions.formats import Call, Kind, Limit, Row, fit, one_line

Redact = Callable[[str], str]
"""Takes secrets and personal traces out of a text."""

PENDING_MAX = 32
"""Tool calls without an answer that are remembered; the oldest go."""
SUBJECT_BYTES_MAX = 2_048
STATE_BYTES_MAX = 128 << 10
WAITED_MS_MIN = 250
"""A Codex command that began sooner after it was called was let through by a rule, not by a person."""

TIME = Range(0, (1 << 47) - 1)
TOKENS = Range(0, 1 << 53)


@dataclass(frozen=True, slots=True)
class Pending:
    """A tool call without an answer."""

    call_id: Annotated[str, Size(1, 800)]
    tool: Annotated[str, Size(1, 800)]
    subject: Annotated[str, Size(0, SUBJECT_BYTES_MAX)]
    at_ms: Annotated[int, TIME]
    asks: bool
    question: bool
    ran: bool
    waited_ms: Annotated[int, TIME] | None


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota as it was last stated."""

    window: Annotated[str, Size(0, 16)] | None
    used_pct: Annotated[int, Range(0, 1_000)] | None
    resets_at_ms: Annotated[int, TIME] | None


@dataclass(frozen=True, slots=True)
class FoldState:
    """A fold at rest. None is unknown.

    Attributes:
        event: The newest :class:`Kind` that says where the session stands, or empty.
        event_ms: When that was.
        turns: Prompts and replies so far; a reply's further lines do not count.
        message_id: The newest reply.
        person: Whether a person sits at it.
        totals: Whether usage comes as sums (older Codex), as parts, or is not known yet.
        forked: Whether it began as a copy, so that sums are not its own.
    """

    session: Annotated[str, Size(0, 64)] | None = None
    parent: Annotated[str, Size(0, 64)] | None = None
    cwd: Annotated[str, Size(0, 4_096)] | None = None
    branch: Annotated[str, Size(0, 800)] | None = None
    model: Annotated[str, Size(0, 800)] | None = None
    title: Annotated[str, Size(0, 200)] | None = None
    first_ms: Annotated[int, TIME] | None = None
    last_ms: Annotated[int, TIME] | None = None
    event: Annotated[str, Size(0, 16)] = ""
    event_ms: Annotated[int, TIME] | None = None
    final: bool = False
    turns: Annotated[int, TOKENS] = 0
    message_id: Annotated[str, Size(0, 800)] | None = None
    person: bool | None = None
    pending: Annotated[tuple[Pending, ...], Count(PENDING_MAX)] = ()
    context_tokens: Annotated[int, TOKENS] | None = None
    window_tokens: Annotated[int, TOKENS] | None = None
    quota: Quota | None = None
    totals: bool | None = None
    forked: bool = False
    asked: Annotated[str, Size(0, 800)] | None = None
    reviewed: bool | None = None
    ruled: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """A person's yes or no at a prompt, as one line proved it.

    Attributes:
        call_id: The agent's own id of the tool call.
        subject: The command, the file or the address, unredacted.
        verdict: ``approve`` or ``deny``.
    """

    call_id: str
    tool: str
    subject: str
    verdict: str
    cwd: str | None
    at_ms: int


_STANDING = frozenset({Kind.PROMPT, Kind.REPLY, Kind.RESULTS, Kind.ENDED, Kind.INTERRUPTED, Kind.RETRY, Kind.LIMIT})


class Fold:
    """One transcript as far as it has been read.

    Args:
        agent: ``claude`` or ``codex``.
        state: Where to go on from.
    """

    def __init__(self, agent: str, state: FoldState | None = None) -> None:
        state = state or FoldState()
        self.agent = agent
        self.session, self.parent, self.cwd, self.branch = state.session, state.parent, state.cwd, state.branch
        self.model, self.title, self.first_ms, self.last_ms = state.model, state.title, state.first_ms, state.last_ms
        self.event, self.event_ms, self.final, self.turns = state.event, state.event_ms, state.final, state.turns
        self.message_id, self.person = state.message_id, state.person
        self.pending = {call.call_id: call for call in state.pending}
        self.context_tokens, self.window_tokens, self.quota = state.context_tokens, state.window_tokens, state.quota
        self.totals, self.forked = state.totals, state.forked
        self.asked, self.reviewed, self.ruled = state.asked, state.reviewed, state.ruled

    def apply(self, row: Row) -> Label | None:
        """Take one more line in.

        Args:
            row: The line.

        Returns:
            A decision of the user's, where the line proves one.
        """
        self._take_place(row)
        self._take_usage(row)
        label = self._take_calls(row)
        if row.kind in _STANDING and not row.helper:
            self._take_standing(row)
        if row.kind is Kind.TITLE:
            self.title = row.text
        return label

    def _take_place(self, row: Row) -> None:
        """Remember who, where and when; a copy of the parent's first line does not rename a fork."""
        if row.at_ms is not None:
            self.first_ms = row.at_ms if self.first_ms is None else min(self.first_ms, row.at_ms)
            self.last_ms = row.at_ms if self.last_ms is None else max(self.last_ms, row.at_ms)
        if row.kind is Kind.START and self.session is not None:
            return
        self.session = self.session or row.session
        self.parent = self.parent or row.parent
        self.cwd = row.cwd or self.cwd
        self.branch = row.branch or self.branch
        self.model = self.model if row.helper else row.model or self.model
        self.person = self.person if row.person is None else row.person
        self.forked = self.forked or row.forked
        self.asked = row.asked or self.asked
        self.reviewed = self.reviewed if row.reviewed is None else row.reviewed
        self.ruled = self.ruled or bool(row.ruled)

    def _take_usage(self, row: Row) -> None:
        if row.context_tokens is not None and not row.helper:
            self.context_tokens = row.context_tokens
        self.window_tokens = self.window_tokens if row.window_tokens is None else row.window_tokens
        if row.usage is not None and self.totals is None:
            self.totals = row.total
        if row.limit is not None:
            self.quota = _quota(row.limit)
        elif row.kind is Kind.REPLY and self.agent == "claude":
            self.quota = None

    def counts(self, row: Row) -> bool:
        """Say whether a line's usage counts: sums only where there is nothing else, and never a copy's."""
        return row.usage is not None and row.total == bool(self.totals) and not (row.total and self.forked)

    def _take_calls(self, row: Row) -> Label | None:
        for call in row.calls:
            self._open(call, row.at_ms or 0)
        if row.kind is Kind.RAN:
            self._mark_ran(row)
            return None
        label = None
        for result in row.results:
            asked = self.pending.pop(result.call_id, None)
            if asked is not None and not asked.question:
                verdict = result.verdict if self.agent == "claude" else self._codex_verdict(asked, result.verdict)
                if verdict is not None:
                    at_ms = row.at_ms if row.at_ms is not None else asked.at_ms
                    label = Label(asked.call_id, asked.tool, asked.subject, verdict, row.cwd or self.cwd, at_ms)
        return label

    def _open(self, call: Call, at_ms: int) -> None:
        if call.call_id not in self.pending and len(self.pending) >= PENDING_MAX:
            self.pending.pop(next(iter(self.pending)))
        self.pending[call.call_id] = Pending(
            call.call_id, call.tool, call.subject, at_ms, call.asks, call.question, False, None
        )

    def _mark_ran(self, row: Row) -> None:
        for result in row.results:
            call = self.pending.get(result.call_id)
            if call is not None:
                self.pending[call.call_id] = replace(call, ran=True, waited_ms=row.waited_ms)

    @property
    def asks_person(self) -> bool:
        """Whether a call that needs leave is put before a person in this session (Codex)."""
        return self.person is True and self.reviewed is not False and self.asked not in (None, "never")

    def _codex_verdict(self, call: Pending, said: str | None) -> str | None:
        """Say what a person decided about one call, or None where it may have been a rule or an interruption."""
        if not self.asks_person or not (call.asks or self.asked == "untrusted"):
            return None
        if said == "deny":
            return None if call.ran else "deny"
        waited = call.waited_ms is not None and call.waited_ms >= WAITED_MS_MIN
        return "approve" if call.ran and waited and call.asks and not self.ruled else None

    def _take_standing(self, row: Row) -> None:
        if row.kind is Kind.RETRY and self.event == Kind.ENDED.value:
            return
        self._count_turn(row)
        self.event = row.kind.value
        self.event_ms = row.at_ms if row.at_ms is not None else self.event_ms
        self.final = row.final
        if row.kind in (Kind.ENDED, Kind.INTERRUPTED):
            self.pending.clear()

    def _count_turn(self, row: Row) -> None:
        if row.kind is Kind.REPLY and row.usage is not None:
            self.turns += row.usage.message_id != self.message_id
            self.message_id = row.usage.message_id
        elif row.kind in (Kind.PROMPT, Kind.REPLY) and row.text:
            self.turns += 1

    def freeze(self, redact: Redact) -> FoldState:
        """Make the fold a value that may be stored.

        Args:
            redact: Takes secrets out of the texts it keeps.
        """
        return FoldState(
            session=_fit(self.session, 64),
            parent=_fit(self.parent, 64),
            cwd=_fit(self.cwd, 4_096),
            branch=_fit(self.branch, 800),
            model=_fit(self.model, 800),
            title=None if self.title is None else one_line(redact(self.title), 200),
            first_ms=_time(self.first_ms),
            last_ms=_time(self.last_ms),
            event=self.event,
            event_ms=_time(self.event_ms),
            final=self.final,
            turns=self.turns,
            message_id=_fit(self.message_id, 800),
            person=self.person,
            pending=tuple(_frozen(call, redact) for call in self.pending.values()),
            context_tokens=self.context_tokens,
            window_tokens=self.window_tokens,
            quota=self.quota,
            totals=self.totals,
            forked=self.forked,
            asked=_fit(self.asked, 800),
            reviewed=self.reviewed,
            ruled=self.ruled,
        )


def _frozen(call: Pending, redact: Redact) -> Pending:
    subject = fit(redact(call.subject), SUBJECT_BYTES_MAX)
    return Pending(
        fit(call.call_id, 800) or "?",
        fit(call.tool, 800) or "?",
        subject,
        max(0, call.at_ms),
        call.asks,
        call.question,
        call.ran,
        _time(call.waited_ms),
    )


def _quota(limit: Limit) -> Quota:
    used = None if limit.used_pct is None else max(0, min(limit.used_pct, 1_000))
    return Quota(_fit(limit.window, 16), used, _time(limit.resets_at_ms))


def _fit(text: str | None, bytes_max: int) -> str | None:
    return None if text is None else fit(text, bytes_max)


def _time(value_ms: int | None) -> int | None:
    return None if value_ms is None else max(0, min(value_ms, TIME.high))
