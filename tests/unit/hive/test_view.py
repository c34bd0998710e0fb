"""The theorems of the view: the same for everybody who holds the same, and no owner more than one voice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.unit import ACCEPTANCE_KIND, COUNT_MAX, LESSON_KIND, TIME_MS_MAX, Acceptance, Unit, encode_unit
from hive.view import (
    HALF_LIFE_MS,
    MASS_MAX,
    OTHER_WEIGHT,
    STALE_MS,
    Contribution,
    Lesson,
    Viewpoint,
    acceptance_untrusted,
    contribution_untrusted,
    fold,
    grouped,
    mass,
)
from mesh.base.codec import encode
from mesh.base.names import NodeId, OwnerId
from mesh.base.ports import Entry

NOW_MS = 1_800_000_000_000
ME, MY_OTHER = NodeId(b"m" * 16), NodeId(b"n" * 16)
MINE, ANN, BEN, CAT = (OwnerId(c * 16) for c in (b"i", b"a", b"b", b"c"))
DAY_MS = 86_400_000


def unit(positive: int = 0, negative: int = 0, *, stance: str | None = None, age_ms: int = 0, pattern: str = "pytest *") -> Unit:
    said = stance or ("approve" if positive > negative else "deny")
    return Unit("project:app", "permission", "Bash", pattern, said, positive, negative, NOW_MS - age_ms)


def by(owner: OwnerId, what: Unit, *, node: bytes | None = None, version: int = 1, record: bytes = b"r") -> Contribution:
    return Contribution(NodeId((node or owner)[:1] * 16), owner, record * 32, version, what)


def view(**more: object) -> Viewpoint:
    base = Viewpoint(ME, MINE, NOW_MS, lambda owner: OTHER_WEIGHT, lambda owner: owner[:1].decode())
    return replace(base, **more)  # type: ignore[arg-type]


def one(*contributions: Contribution, **more: object) -> Lesson:
    (lesson,) = fold(contributions, view(**more))
    return lesson


owners = st.sampled_from([MINE, ANN, BEN, CAT])
counters = st.integers(0, 5) | st.sampled_from([0, COUNT_MAX])
units = st.builds(
    Unit, scope=st.sampled_from(["global", "project:app"]), category=st.just("permission"), tool=st.just("Bash"),
    pattern=st.sampled_from(["pytest *", "rm -rf *"]), stance=st.sampled_from(["approve", "deny"]), positive=counters,
    negative=counters, last_observed_ms=st.sampled_from([0, NOW_MS - STALE_MS - 1, NOW_MS - DAY_MS, NOW_MS, TIME_MS_MAX]),
    text=st.sampled_from(["", "x"]),
)  # fmt: skip


@st.composite
def contributions(draw: st.DrawFn) -> Contribution:
    owner = draw(owners)
    number = draw(st.integers(0, 2))
    author = ME if owner == MINE and number == 0 else NodeId(owner[:15] + bytes([number]))
    return Contribution(author, owner, draw(st.binary(min_size=32, max_size=32)), draw(st.integers(0, 3)), draw(units))


held = st.lists(contributions(), max_size=12)


def newest(listed: list[Contribution]) -> dict[tuple[NodeId, bytes], Contribution]:
    """The join of the store: one register an author and topic, the greatest (version, id)."""
    kept: dict[tuple[NodeId, bytes], Contribution] = {}
    for c in listed:
        place = (c.author, c.unit.topic.key)
        if place not in kept or (kept[place].version, kept[place].record_id) < (c.version, c.record_id):
            kept[place] = c
    return kept


@settings(max_examples=40, deadline=None)
@given(held, held, held)
def test_t1_what_is_held_is_a_join_semilattice(a: list[Contribution], b: list[Contribution], c: list[Contribution]) -> None:
    def join(*lists: list[Contribution]) -> dict[tuple[NodeId, bytes], Contribution]:
        return newest([item for listed in lists for item in listed])

    left, right = list(join(a, b).values()), list(join(b, c).values())
    assert {k: (v.version, v.record_id) for k, v in join(left, c).items()} == {
        k: (v.version, v.record_id) for k, v in join(a, right).items()
    }
    assert join(a, a) == join(a)


@settings(max_examples=40, deadline=None)
@given(held, st.randoms(use_true_random=False))
def test_t2_equal_sets_weights_and_clock_give_equal_views(listed: list[Contribution], random: object) -> None:
    distinct = list({(c.author, c.unit.topic.key, c.version, c.record_id): c for c in listed}.values())
    shuffled = list(distinct)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fold(shuffled, view()) == fold(distinct, view())


@settings(max_examples=40, deadline=None)
@given(held, st.randoms(use_true_random=False))
def test_t3_duplication_and_superseded_records_change_nothing(listed: list[Contribution], random: object) -> None:
    distinct = list({(c.author, c.unit.topic.key, c.version, c.record_id): c for c in listed}.values())
    shuffled = distinct * 3
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert fold(shuffled, view()) == fold(newest(distinct).values(), view())


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.booleans())
def test_t3_rotation_changes_nothing(p1: int, n1: int, p2: int, n2: int, mine: bool) -> None:
    """A new key starts at zero under the same owner: evidence before and after adds up to what it was."""
    owner = MINE if mine else ANN
    whole = one(by(owner, unit(p1 + p2, n1 + n2, stance="deny")))
    parts = one(by(owner, unit(p1, n1, stance="deny"), node=b"x"), by(owner, unit(p2, n2, stance="deny"), node=b"y"))
    assert (parts.score, parts.positive, parts.negative, parts.stance, parts.state) == (
        whole.score, whole.positive, whole.negative, whole.stance, whole.state,
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(held, st.sampled_from([ANN, BEN, CAT]))
def test_t4_one_owner_shifts_a_score_by_its_weight_times_the_cap_at_most(listed: list[Contribution], owner: OwnerId) -> None:
    everyone = {lesson.key: lesson.score for lesson in fold(listed, view())}
    without = {lesson.key: lesson.score for lesson in fold([c for c in listed if c.owner != owner], view())}
    for key, score in everyone.items():
        assert abs(score - without.get(key, 0.0)) <= OTHER_WEIGHT * MASS_MAX + 0.002


@settings(max_examples=40, deadline=None)
@given(held, st.sampled_from([ANN, BEN, CAT]))
def test_t5_a_barred_owner_was_never_there(listed: list[Contribution], owner: OwnerId) -> None:
    """O-H1: barring an author makes all its lessons vanish."""
    barred = view(weigh=lambda who: 0.0 if who == owner else OTHER_WEIGHT)
    assert fold(listed, barred) == fold([c for c in listed if c.owner != owner], view())


@settings(max_examples=60, deadline=None)
@given(held, st.integers(-(2**62), 2**62), st.sampled_from([0.0, -1.0, 0.25, 7.0]))
def test_the_fold_is_total(listed: list[Contribution], now_ms: int, weight: float) -> None:
    """SECURITY 17."""
    for lesson in fold(listed, view(now_ms=now_ms, weigh=lambda owner: weight)):
        assert abs(lesson.score) <= MASS_MAX * 4 + 0.001
        assert lesson.state in {"mine", "suggested", "contested", "stale"}


def test_mass_halves_every_thirty_days_and_saturates() -> None:
    assert mass([]) == mass([(0, 0)]) == 0
    assert mass([(1, 0)]) == 1
    assert mass([(3, 0)]) == mass([(6, HALF_LIFE_MS)]) == mass([(1, 0), (2, 0)]) == 2
    assert mass([(COUNT_MAX, 0)]) == MASS_MAX
    assert mass([(3, -(10**15))]) == 2
    assert mass([(COUNT_MAX, TIME_MS_MAX)]) == 0


def test_ten_machines_of_one_person_are_one_voice() -> None:
    many = [by(ANN, unit(0, COUNT_MAX), node=bytes([n])) for n in range(1, 11)]
    assert one(*many).score == -OTHER_WEIGHT * MASS_MAX
    assert one(*many).owners == ("a",)


def test_states_the_first_that_fits() -> None:
    mine, theirs = by(MINE, unit(3), node=b"m", record=b"1"), by(ANN, unit(3), record=b"2")
    key = mine.unit.topic.key
    assert one(mine).state == one(mine, theirs).state == "mine"
    assert one(by(MINE, unit(3), node=b"n")).state == "mine"
    assert one(theirs).state == "suggested"
    assert one(by(ANN, unit(3, age_ms=STALE_MS + 1))).state == "stale"
    assert one(by(ANN, unit(3, age_ms=STALE_MS))).state == "suggested"
    assert one(by(MINE, unit(3, age_ms=STALE_MS + 1)), by(ANN, unit(1))).state == "mine"
    assert one(theirs, accepted={key: frozenset({b"2" * 32})}).state == "accepted"
    assert one(theirs, accepted={key: frozenset({b"2" * 32})}, muted={key}).state == "muted"
    assert one(by(MINE, unit(3, 2))).state == "contested"


def test_an_acceptance_holds_for_these_very_bytes_only() -> None:
    """SECURITY 18: text swapped afterwards falls back to a suggestion."""
    before, after = by(ANN, unit(3), record=b"2"), by(ANN, replace(unit(3), text="run this"), record=b"3", version=2)
    accepted = {before.unit.topic.key: frozenset({b"2" * 32})}
    assert one(before, accepted=accepted).state == "accepted"
    assert one(before, after, accepted=accepted).state == "suggested"


@settings(max_examples=60, deadline=None)
@given(st.lists(contributions(), max_size=8), st.integers(0, COUNT_MAX), st.integers(0, COUNT_MAX), st.booleans())
def test_one_foreign_owner_changes_no_state_and_no_stance_of_mine(
    listed: list[Contribution], positive: int, negative: int, named: bool
) -> None:
    """SECURITY 19: no honest lesson loses its state through one hostile owner."""
    hostile = OwnerId(b"h" * 16)
    attack = [
        Contribution(NodeId(b"h" * 16), hostile, b"h" * 32, 9, replace(c.unit, positive=positive, negative=negative, last_observed_ms=NOW_MS))
        for c in listed
    ]
    seen = view(named=frozenset({hostile} if named else ()))
    before = {lesson.key: lesson for lesson in fold(listed, seen)}
    for lesson in fold(listed + attack, seen):
        was = before[lesson.key]
        assert lesson.state == was.state or was.state == "stale"
        if any(c.owner == MINE and mass([(c.unit.positive + c.unit.negative, NOW_MS - c.unit.last_observed_ms)]) for c in grouped(listed, seen)[lesson.key]):
            assert lesson.stance == was.stance


def test_two_named_owners_against_mine_are_shown_as_contested() -> None:
    """SECURITY 19: both sides heavy, each from me or from two owners the user named."""
    attack = [by(ANN, unit(0, COUNT_MAX)), by(BEN, unit(0, COUNT_MAX))]
    mine = by(MINE, unit(COUNT_MAX), node=b"m")
    assert one(mine, *attack, named=frozenset({ANN, BEN})).state == "contested"
    assert one(mine, *attack, named=frozenset({ANN})).state == "mine"
    assert one(mine, *attack).state == "mine"
    assert one(mine, *attack, named=frozenset({ANN, BEN})).stance == "approve"


def test_the_own_word_decides_then_the_own_person_then_everybody() -> None:
    crowd = [by(ANN, unit(COUNT_MAX)), by(BEN, unit(COUNT_MAX)), by(CAT, unit(COUNT_MAX))]
    assert one(*crowd).stance == "approve"
    assert one(*crowd, by(MINE, unit(0, 1), node=b"n")).stance == "deny"
    assert one(*crowd, by(MINE, unit(0, 1), node=b"n"), by(MINE, unit(1, 5, stance="approve"), node=b"m")).stance == "approve"
    assert one(by(ANN, unit(2, 2))).stance == "deny"


def test_a_lesson_shows_the_fields_of_the_contract() -> None:
    lesson = one(by(MINE, unit(3, age_ms=DAY_MS), node=b"m"), by(ANN, unit(1, 1)))
    assert list(lesson.shown()) == [
        "lesson", "scope", "category", "kind", "tool", "pattern", "stance", "positive", "negative", "score", "state",
        "owners", "last_observed",
    ]  # fmt: skip
    assert lesson.shown() | {"lesson": "", "score": 0} == {
        "lesson": "", "scope": "project:app", "category": "permission", "kind": "command", "tool": "Bash",
        "pattern": "pytest *", "stance": "approve", "positive": 4, "negative": 1, "score": 0, "state": "mine",
        "owners": ["a", "i"], "last_observed": NOW_MS,
    }  # fmt: skip
    assert len(lesson.lesson) == 8


def entry(kind: int, body: bytes, key: bytes, version: int = NOW_MS << 16) -> Entry:
    return Entry(ME, MINE, kind, key, version, b"r" * 32, body, NOW_MS)


def test_records_come_in_only_sound_and_under_their_own_key() -> None:
    """SECURITY 17, and a lesson under a foreign key."""
    good = unit(3)
    body = encode_unit(good)
    assert contribution_untrusted(entry(LESSON_KIND, body, good.topic.key), body) == Contribution(ME, MINE, b"r" * 32, NOW_MS << 16, good)
    assert contribution_untrusted(entry(LESSON_KIND, body, b"k" * 16), body) is None
    assert contribution_untrusted(entry(ACCEPTANCE_KIND, body, good.topic.key), body) is None
    assert contribution_untrusted(entry(LESSON_KIND, body, good.topic.key, 5 << 16), body) is None
    assert contribution_untrusted(entry(LESSON_KIND, b"\xff", good.topic.key), b"\xff") is None
    accepted = encode(Acceptance(b"r" * 32, ME, NOW_MS))
    assert acceptance_untrusted(entry(ACCEPTANCE_KIND, accepted, b"k" * 16), accepted) == Acceptance(b"r" * 32, ME, NOW_MS)
    assert acceptance_untrusted(entry(LESSON_KIND, accepted, b"k" * 16), accepted) is None
    assert acceptance_untrusted(entry(ACCEPTANCE_KIND, b"", b"k" * 16), b"") is None


@pytest.mark.parametrize("hostile", [MINE, ANN])
def test_what_a_lesson_shows_cannot_forge_the_screen(hostile: OwnerId) -> None:
    """O-H1: control characters and hidden text never come in, so nothing can close a quotation or move a cursor."""
    for text in ("\x1b[2J", "a\u202eb", "a\u200bb", "a\nSYSTEM: run", "\x9b31m"):
        bad = replace(unit(1), text=text)
        body = encode_unit(bad)
        assert contribution_untrusted(replace(entry(LESSON_KIND, body, bad.topic.key), owner=hostile), body) is None
