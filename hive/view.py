"""Everybody's units -> what we believe: a pure fold, the same for the same units, weights and clock, in any order.

For each topic the evidence of one owner's machines is added up before it saturates, so ten machines of one person are
one voice. What came from one's own person weighs 1, anything else at most a quarter. The fold is total: no unit that
passed the door makes it raise, whatever its counters and times say.

States, the first that fits: *muted* (forgotten here), *accepted* (by hand, these very bytes), *contested*, *stale*
(nothing seen for 90 days), *mine* (a machine of mine saw it), *suggested*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from hive.unit import (
    ACCEPTANCE_KIND,
    APPROVE,
    DENY,
    LESSON_KIND,
    SHORT_CHARS,
    Acceptance,
    Topic,
    Unit,
    Verdict,
    decode_acceptance_untrusted,
    decode_unit_untrusted,
)
from mesh.base.clock import version_ms
from mesh.base.codec import Malformed
from mesh.base.names import NodeId, OwnerId, base32
from mesh.base.ports import Entry

HALF_LIFE_MS = 30 * 86_400_000
STALE_MS = 90 * 86_400_000
MASS_MAX = 5.0
OWN_WEIGHT = 1.0
OTHER_WEIGHT = 0.25
CONTESTED_MASS = 1.5
CONTESTED_SHARE = 1 / 3

Weigh = Callable[[OwnerId], float]
"""How much an owner's evidence counts, 0 (frozen: not at all) to 1."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One machine's unit, as the mesh holds it.

    Attributes:
        record_id: 32 bytes, or empty for an own unit that is not published yet.
        version: Of the record, or 0.
    """

    author: NodeId
    owner: OwnerId
    record_id: bytes
    version: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Lesson:
    """One topic as this machine sees it.

    Attributes:
        lesson: The short id: the first characters of the key in base32.
        key: 16 bytes.
        score: Approval minus denial, weighed, decayed and saturated; above 0 speaks for, below 0 against.
        state: ``mine``, ``accepted``, ``suggested``, ``contested``, ``muted`` or ``stale``.
        owners: Names of the people whose machines saw it, sorted.
        last_observed: Milliseconds since 1970.
    """

    lesson: str
    key: bytes
    scope: str
    category: str
    kind: str
    tool: str
    pattern: str
    stance: str
    positive: int
    negative: int
    score: float
    state: str
    owners: tuple[str, ...]
    last_observed: int

    def shown(self) -> dict[str, object]:
        """List the fields people and scripts see, in order; the time stays in milliseconds."""
        return {
            "lesson": self.lesson, "scope": self.scope, "category": self.category, "kind": self.kind, "tool": self.tool,
            "pattern": self.pattern, "stance": self.stance, "positive": self.positive, "negative": self.negative,
            "score": self.score, "state": self.state, "owners": list(self.owners), "last_observed": self.last_observed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """From where, and when, the fold looks.

    Attributes:
        me: This machine.
        owner: This machine's person.
        now_ms: This machine's clock.
        weigh: How much each owner counts.
        name_of: An owner's name for display.
        named: Owners the user has named; only they, and the own owner, can make a lesson contested.
        accepted: Key to the record ids accepted by hand on this machine.
        muted: Keys forgotten on this machine.
    """

    me: NodeId
    owner: OwnerId
    now_ms: int
    weigh: Weigh
    name_of: Callable[[OwnerId], str]
    named: frozenset[OwnerId] = frozenset()
    accepted: Mapping[bytes, frozenset[bytes]] | None = None
    muted: Collection[bytes] = frozenset()


def contribution_untrusted(entry: Entry, plain: bytes) -> Contribution | None:
    """Read a lesson record whose body was unsealed.

    Args:
        entry: The register.
        plain: The unsealed body, anything.

    Returns:
        The contribution, or None where it is no sound lesson, or kept under another topic's key.
    """
    if entry.kind != LESSON_KIND:
        return None
    try:
        unit = decode_unit_untrusted(plain, version_ms(entry.version))
    except Malformed:
        return None
    if unit.topic.key != entry.key:
        return None
    return Contribution(entry.author, entry.owner, entry.record_id, entry.version, unit)


def acceptance_untrusted(entry: Entry, plain: bytes) -> Acceptance | None:
    """Read an acceptance record whose body was unsealed; None where it is none."""
    if entry.kind != ACCEPTANCE_KIND:
        return None
    try:
        return decode_acceptance_untrusted(plain)
    except Malformed:
        return None


def mass(counts: Iterable[tuple[int, int]]) -> float:
    """Weigh one owner's evidence for one side.

    Args:
        counts: Count and age in milliseconds of each of the owner's machines; a negative age counts as 0.

    Returns:
        0 to MASS_MAX; halves its count every 30 days, saturates by logarithm.
    """
    decayed = math.fsum(count * 2.0 ** (-max(0, age_ms) / HALF_LIFE_MS) for count, age_ms in counts if count > 0)
    return min(MASS_MAX, math.log2(1.0 + decayed))


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both sides of one topic, by owner, weighed."""

    approve: dict[OwnerId, float]
    deny: dict[OwnerId, float]

    def side(self, side: Verdict) -> dict[OwnerId, float]:
        return self.approve if side == APPROVE else self.deny

    def total(self, side: Verdict) -> float:
        return math.fsum(self.side(side).values())

    def backed(self, side: Verdict, view: Viewpoint) -> float:
        """What stands behind a side for certain: the own person, and others only if the user named two of them."""
        named = [weight for owner, weight in self.side(side).items() if owner in view.named - {view.owner} and weight > 0]
        return self.side(side).get(view.owner, 0.0) + (math.fsum(named) if len(named) > 1 else 0.0)


def _sides(contributions: list[Contribution], view: Viewpoint) -> _Sides:
    owners: dict[OwnerId, list[Unit]] = {}
    for contribution in contributions:
        owners.setdefault(contribution.owner, []).append(contribution.unit)
    approve: dict[OwnerId, float] = {}
    deny: dict[OwnerId, float] = {}
    for owner, units in owners.items():
        weight = _weight(owner, view)
        approve[owner] = weight * mass((u.positive, view.now_ms - u.last_observed_ms) for u in units)
        deny[owner] = weight * mass((u.negative, view.now_ms - u.last_observed_ms) for u in units)
    return _Sides(approve, deny)


def _weight(owner: OwnerId, view: Viewpoint) -> float:
    return OWN_WEIGHT if owner == view.owner else min(OWN_WEIGHT, max(0.0, view.weigh(owner)))


def is_contested(sides: _Sides, view: Viewpoint) -> bool:
    """Decide whether both sides stand: each backed by the own person or two named ones, and the smaller one heavy.

    One foreign owner, whatever it claims, neither makes a lesson contested nor settles a contest.
    """
    smaller, larger = sorted((sides.backed(APPROVE, view), sides.backed(DENY, view)))
    return smaller > 0 and (smaller >= CONTESTED_MASS or smaller >= larger * CONTESTED_SHARE)


def fold(contributions: Iterable[Contribution], view: Viewpoint) -> list[Lesson]:
    """Fold everybody's units into what this machine believes.

    Args:
        contributions: In any order, with any repetition; of one machine and topic the newest record counts.
        view: From where and when.

    Returns:
        One lesson a topic, heaviest first, then by key.
    """
    lessons = [_lesson(group, view) for group in grouped(contributions, view).values()]
    return sorted(lessons, key=lambda lesson: (-abs(lesson.score), lesson.key))


def grouped(contributions: Iterable[Contribution], view: Viewpoint) -> dict[bytes, list[Contribution]]:
    """Sort contributions by topic: one of each machine, frozen owners left out, in a fixed order."""
    newest: dict[tuple[bytes, NodeId], Contribution] = {}
    for contribution in contributions:
        if _weight(contribution.owner, view) <= 0:
            continue
        place = (contribution.unit.topic.key, contribution.author)
        known = newest.get(place)
        if known is None or (known.version, known.record_id) < (contribution.version, contribution.record_id):
            newest[place] = contribution
    groups: dict[bytes, list[Contribution]] = {}
    for (key, _), contribution in sorted(newest.items()):
        groups.setdefault(key, []).append(contribution)
    return groups


def _lesson(group: list[Contribution], view: Viewpoint) -> Lesson:
    topic: Topic = group[0].unit.topic
    key = topic.key
    sides = _sides(group, view)
    return Lesson(
        lesson=base32(key)[:SHORT_CHARS],
        key=key,
        scope=topic.scope,
        category=topic.category,
        kind=topic.kind,
        tool=topic.tool,
        pattern=topic.pattern,
        stance=_stance(group, sides, view),
        positive=sum(c.unit.positive for c in group),
        negative=sum(c.unit.negative for c in group),
        score=round(sides.total(APPROVE) - sides.total(DENY), 3),
        state=_state(key, group, sides, view),
        owners=tuple(sorted({view.name_of(c.owner) for c in group})),
        last_observed=max(c.unit.last_observed_ms for c in group),
    )


def _stance(group: list[Contribution], sides: _Sides, view: Viewpoint) -> str:
    """What this machine's own unit says; else what the own person's machines say; else everybody. A tie says deny.

    A machine of one's own is taken at its word, which its user may have given by hand; of others the counters speak.
    """
    own = [contribution.unit for contribution in group if contribution.owner == view.owner]
    for contribution in group:
        if contribution.author == view.me:
            return contribution.unit.stance
    said = {
        side: mass((u.positive + u.negative, view.now_ms - u.last_observed_ms) for u in own if u.stance == side)
        for side in (APPROVE, DENY)
    }
    if not any(said.values()):
        said = {APPROVE: sides.total(APPROVE), DENY: sides.total(DENY)}
    return APPROVE if said[APPROVE] > said[DENY] else DENY


def _state(key: bytes, group: list[Contribution], sides: _Sides, view: Viewpoint) -> str:
    accepted = (view.accepted or {}).get(key, frozenset())
    if key in view.muted:
        return "muted"
    if any(c.record_id in accepted for c in group):
        return "accepted"
    if is_contested(sides, view):
        return "contested"
    if view.now_ms - max(c.unit.last_observed_ms for c in group) > STALE_MS:
        return "stale"
    return "mine" if any(c.owner == view.owner for c in group) else "suggested"
