"""Evidence is counted once, in any order, and carries nothing it should not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.distil import (
    Evidence,
    Tally,
    added,
    distil,
    evidence_untrusted,
    joined,
    majority,
    one_each,
    tally_of,
    unit_of,
)
from hive.unit import COUNT_MAX, Observation, Topic, topic_problem
from tests.unit.hive.test_redact import MADE_UP, PARTS

NOW_MS = 1_800_000_000_000
PUSH = Topic("project:app", "permission", "Bash", "git push --force *")
TEST = Topic("project:app", "permission", "Bash", "pytest *")


def seen(number: int, subject: str = "pytest x", verdict: str = "approve", **more: object) -> Observation:
    values = {
        "source_id": number.to_bytes(16, "big"), "agent": "claude", "session": f"s{number}", "project": "app", "tool": "Bash",
        "subject": subject, "verdict": verdict, "at_ms": NOW_MS - number,
    }  # fmt: skip
    return Observation(**(values | more))  # type: ignore[arg-type]


def test_an_observation_becomes_evidence_of_its_pattern() -> None:
    assert evidence_untrusted(seen(1, "git push -f origin main", "deny"), NOW_MS) == Evidence(
        (1).to_bytes(16, "big"), PUSH, "deny", NOW_MS - 1, "claude", "s1", "git push -f origin main"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"subject": ""}, {"subject": "l\u200bs"}, {"tool": ""}, {"tool": "a b"}, {"tool": "x" * 400}, {"verdict": "maybe"},
        {"source_id": b"short"}, {"tool": "ghp_" + "a1B2" * 9}, {"subject": "x" * 100_000},
        {"subject": "ls a; rm -rf …"}, {"subject": "x" * 2_000_000},
    ],
)  # fmt: skip
def test_what_cannot_be_learned_from_is_no_evidence(change: dict[str, object]) -> None:
    assert evidence_untrusted(seen(1, **change), NOW_MS) is None


def test_a_subject_that_was_redacted_before_teaches_the_same() -> None:
    raw = evidence_untrusted(seen(1, "pytest /home/me/x"), NOW_MS)
    clean = evidence_untrusted(seen(1, "pytest ~/x"), NOW_MS)
    assert raw == clean
    assert raw is not None
    assert raw.topic.pattern == "pytest ~/x"
    for line in ("OPENAI_API_KEY=sk-abcdefghijklmnop1234 pytest x", "OPENAI_API_KEY=<api-key> pytest x"):
        assert evidence_untrusted(seen(1, line), NOW_MS) is None, "what held a secret teaches nothing"


def test_a_denial_is_broader_than_an_approval() -> None:
    found = [evidence_untrusted(seen(1, "git push -f a b", verdict), NOW_MS) for verdict in ("approve", "deny")]
    assert [piece and piece.topic.pattern for piece in found] == ["git push -f a b", "git push --force *"]


def test_times_ahead_count_as_now_and_no_project_is_everywhere() -> None:
    piece = evidence_untrusted(seen(1, at_ms=NOW_MS + 10**12, project=""), NOW_MS)
    assert piece is not None
    assert piece.at_ms == NOW_MS
    assert piece.topic.scope == "global"
    assert evidence_untrusted(seen(1, at_ms=-5), NOW_MS).at_ms == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("secret", MADE_UP)
@pytest.mark.parametrize("field", ["agent", "session", "project", "tool", "subject"])
@pytest.mark.parametrize("frame", ["{}", "echo {} x", "deploy --token {} x", "/srv/{}/x.py"])
def test_a_secret_in_any_field_vanishes(field: str, secret: str, frame: str) -> None:
    """O-H3, O-H4."""
    for tool in ("Bash", "Read"):
        piece = evidence_untrusted(seen(1, **({"tool": tool} | {field: frame.format(secret)})), NOW_MS)
        assert not any(part in repr(piece) or part.lower() in repr(piece) for part in PARTS)


evidence = st.builds(
    Evidence,
    source_id=st.integers(0, 12).map(lambda n: n.to_bytes(16, "big")),
    topic=st.sampled_from([PUSH, TEST]),
    verdict=st.sampled_from(["approve", "deny"]),
    at_ms=st.integers(0, 50),
    agent=st.just("a"),
    session=st.just("s"),
    subject=st.just("x"),
)
tallies = st.builds(Tally, st.integers(0, COUNT_MAX), st.integers(0, COUNT_MAX), st.integers(0, 99))


@given(st.lists(evidence, max_size=20), st.randoms(use_true_random=False), st.integers(1, 3))
def test_order_and_repetition_change_nothing(pieces: list[Evidence], random: object, times: int) -> None:
    shuffled = pieces * times
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert distil(shuffled) == distil(pieces)
    assert one_each(shuffled) == one_each(pieces)


@given(st.lists(evidence, max_size=20))
def test_each_source_counts_once(pieces: list[Evidence]) -> None:
    units = distil(pieces)
    assert sum(unit.positive + unit.negative for unit in units.values()) == len({piece.source_id for piece in pieces})
    for key, unit in units.items():
        assert unit.topic.key == key
        assert topic_problem(unit.topic) is None
        assert unit.stance == ("approve" if unit.positive > unit.negative else "deny")


@given(tallies, tallies, tallies)
def test_tallies_add_as_a_monoid_and_join_as_a_lattice(a: Tally, b: Tally, c: Tally) -> None:
    for combine in (added, joined):
        assert combine(a, b) == combine(b, a)
        assert combine(combine(a, b), c) == combine(a, combine(b, c))
        assert combine(a, Tally()) == a
    assert joined(a, a) == a
    assert joined(a, added(a, b)) == added(a, b)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["approve", "deny"]), min_size=1, max_size=9))
def test_more_evidence_never_shrinks_a_counter(verdicts: list[str]) -> None:
    tally = Tally()
    for number, verdict in enumerate(verdicts):
        piece = evidence_untrusted(seen(number, verdict=verdict), NOW_MS)
        assert piece is not None
        grown = added(tally, tally_of(piece))
        assert joined(tally, grown) == grown
        tally = grown
    assert (tally.positive, tally.negative) == (verdicts.count("approve"), verdicts.count("deny"))


def test_a_tie_says_deny_and_a_word_by_hand_decides() -> None:
    assert majority(Tally(2, 2)) == "deny"
    assert majority(Tally(3, 2)) == "approve"
    assert unit_of(TEST, Tally(0, 9, 5), stance="approve", text="ok").stance == "approve"


def test_one_transcript_under_fifty_session_names_is_one_lesson() -> None:
    """O-H2."""
    pieces = [
        evidence_untrusted(seen(session * 10 + turn, "pytest a" if turn else "  pytest -q  b "), NOW_MS)
        for session in range(50)
        for turn in range(2)
    ]
    units = distil(piece for piece in pieces if piece is not None)
    assert [(u.pattern, u.positive) for u in units.values()] == [("pytest *", 100)]


def test_a_lesson_that_is_shown_again_adds_nothing() -> None:
    """O-H5: only decisions count; reading a transcript again, longer by recalled text, repeats their sources."""
    decisions = [seen(number) for number in range(3)]
    first = distil(filter(None, (evidence_untrusted(o, NOW_MS) for o in decisions)))
    again = distil(filter(None, (evidence_untrusted(o, NOW_MS) for o in decisions * 30)))
    assert again == first
