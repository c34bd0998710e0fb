"""Own observations -> own units: count, decide the stance, forget nothing that was counted.

Evidence comes only from decisions a user made about a pending tool call. Text never counts: a lesson that was shown to
an agent and stands in a transcript again adds nothing, so the hive cannot teach itself. One decision counts once however
often it is read, by its source id. Tallies form a commutative monoid, so order and grouping change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hive.patterns import pattern_of, tool_name
from hive.redact import TEXT_CHARS_MAX, redact, redact_fields, strip_hidden
from hive.unit import (
    APPROVE,
    COUNT_MAX,
    DENY,
    GLOBAL,
    PERMISSION,
    TIME_MS_MAX,
    Observation,
    Topic,
    Unit,
    Verdict,
    topic_problem,
)
from mesh.base.names import project_from

SOURCE_BYTES = 16
CUT_MARK = "…"
"""A subject that ends with it was cut by whoever read it."""
FIELD_CHARS_MAX = 256
SUBJECT_CHARS_MAX = 1024
"""Characters of a subject that are kept as an example, after redaction."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation, redacted and put under its topic.

    Attributes:
        source_id: 16 bytes.
        subject: Redacted, cut to SUBJECT_CHARS_MAX; for people.
    """

    source_id: bytes
    topic: Topic
    verdict: Verdict
    at_ms: int
    agent: str
    session: str
    subject: str


@dataclass(frozen=True, slots=True)
class Tally:
    """How often one topic was approved and denied, and when last."""

    positive: int = 0
    negative: int = 0
    last_observed_ms: int = 0


def evidence_untrusted(observation: Observation, now_ms: int) -> Evidence | None:
    """Redact an observation and find its topic: the one way into the hive's memory.

    Args:
        observation: From an agent's files; its texts may hold anything, and may be redacted already.
        now_ms: This machine's clock; a later time of the observation counts as now.

    Returns:
        The evidence, or None where nothing can be learned: no pattern, no proper tool, verdict or source.
    """
    if len(observation.source_id) != SOURCE_BYTES or observation.verdict not in (APPROVE, DENY):
        return None
    if observation.subject.endswith(CUT_MARK) or len(observation.subject) > TEXT_CHARS_MAX:
        return None  # the end of a line may be the very thing that was decided
    project = project_from(redact_fields(observation.project[:FIELD_CHARS_MAX])) if observation.project.strip() else ""
    tool, subject = tool_name(observation.tool[:FIELD_CHARS_MAX]), redact(observation.subject)
    if strip_hidden(observation.subject) != observation.subject:
        return None
    pattern = pattern_of(tool, subject, folder=observation.folder, denied=observation.verdict == DENY)
    if pattern is None:
        return None
    topic = Topic(f"project:{project}" if project else GLOBAL, PERMISSION, tool, pattern)
    if topic_problem(topic) or redact_fields(topic) != topic:
        return None
    return Evidence(
        observation.source_id,
        topic,
        observation.verdict,
        max(0, min(observation.at_ms, now_ms, TIME_MS_MAX)),
        redact_fields(observation.agent[:FIELD_CHARS_MAX]),
        redact_fields(observation.session[:FIELD_CHARS_MAX]),
        " ".join(subject.split())[:SUBJECT_CHARS_MAX],
    )


def one_each(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Keep one piece of evidence of each source, the same one in whatever order they come."""
    kept: dict[bytes, Evidence] = {}
    for piece in evidence:
        known = kept.get(piece.source_id)
        if known is None or _rank(piece) < _rank(known):
            kept[piece.source_id] = piece
    return sorted(kept.values(), key=_rank)


def _rank(piece: Evidence) -> tuple[int, bytes, str, bytes]:
    return piece.at_ms, piece.source_id, piece.verdict, piece.topic.key


def tally_of(piece: Evidence) -> Tally:
    """Count one piece of evidence."""
    return Tally(int(piece.verdict == APPROVE), int(piece.verdict == DENY), piece.at_ms)


def added(one: Tally, other: Tally) -> Tally:
    """Add two tallies of different evidence; at COUNT_MAX a counter stays."""
    return Tally(
        min(COUNT_MAX, one.positive + other.positive),
        min(COUNT_MAX, one.negative + other.negative),
        max(one.last_observed_ms, other.last_observed_ms),
    )


def joined(one: Tally, other: Tally) -> Tally:
    """Join two states of the same growing tally: the greater of each counter."""
    return Tally(
        max(one.positive, other.positive),
        max(one.negative, other.negative),
        max(one.last_observed_ms, other.last_observed_ms),
    )


def majority(tally: Tally) -> Verdict:
    """Decide what a tally says; as many denials as approvals say deny, for caution."""
    return APPROVE if tally.positive > tally.negative else DENY


def unit_of(topic: Topic, tally: Tally, *, stance: Verdict | None = None, text: str = "") -> Unit:
    """Write a topic's tally as the unit to publish.

    Args:
        topic: What it is about.
        tally: This machine's own counters.
        stance: What the user said by hand, which stands whatever the counters say.
        text: The user's remark, redacted.

    Returns:
        The unit.
    """
    chosen = stance or majority(tally)
    return Unit(
        topic.scope, topic.category, topic.tool, topic.pattern, chosen,
        tally.positive, tally.negative, tally.last_observed_ms, text,
    )  # fmt: skip


def distil(evidence: Iterable[Evidence]) -> dict[bytes, Unit]:
    """Distil evidence to units.

    Args:
        evidence: Own evidence, in any order, with any repetition.

    Returns:
        Key to unit, one for each topic with at least one decision.
    """
    topics: dict[bytes, Topic] = {}
    tallies: dict[bytes, Tally] = {}
    for piece in one_each(evidence):
        key = piece.topic.key
        topics[key] = piece.topic
        tallies[key] = added(tallies.get(key, Tally()), tally_of(piece))
    return {key: unit_of(topics[key], tally) for key, tally in tallies.items()}

