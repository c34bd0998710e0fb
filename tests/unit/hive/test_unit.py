"""The door: only units in range come in, and equal topics have equal keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.unit import (
    COUNT_MAX,
    TEXT_BYTES_MAX,
    TIME_MS_MAX,
    UNIT_BYTES_MAX,
    Acceptance,
    Topic,
    Unit,
    decode_acceptance_untrusted,
    decode_unit_untrusted,
    encode_unit,
    topic_problem,
)
from mesh.base.clock import FUTURE_MS_MAX
from mesh.base.codec import Malformed, encode

NOW_MS = 1_800_000_000_000
GOOD = Unit("project:app", "permission", "Bash", "git push --force *", "deny", 0, 3, NOW_MS, "not here")

units = st.builds(
    Unit,
    scope=st.sampled_from(["global", "project:app", "project:a-b.c_1"]),
    category=st.sampled_from(["permission", "fix"]),
    tool=st.just("Bash"),
    pattern=st.sampled_from(["git push --force *", "pytest *", "rm -rf *", "echo * & ls *"]),
    stance=st.sampled_from(["approve", "deny"]),
    positive=st.integers(0, COUNT_MAX),
    negative=st.integers(0, COUNT_MAX),
    last_observed_ms=st.integers(0, NOW_MS + FUTURE_MS_MAX),
    text=st.sampled_from(["", "why: grüße ✓"]),
)


@given(units)
def test_a_sound_unit_comes_through_unchanged(unit: Unit) -> None:
    body = encode_unit(unit)
    assert len(body) <= UNIT_BYTES_MAX
    assert decode_unit_untrusted(body, NOW_MS) == unit


@pytest.mark.parametrize(
    "change",
    [
        {"positive": -1}, {"negative": COUNT_MAX + 1}, {"positive": True}, {"positive": 1.5}, {"positive": None},
        {"last_observed_ms": -1}, {"last_observed_ms": NOW_MS + FUTURE_MS_MAX + 1}, {"last_observed_ms": TIME_MS_MAX + 1},
        {"stance": "allow"}, {"stance": "ask"}, {"scope": "project:"}, {"scope": "project:A b"}, {"scope": "everywhere"},
        {"scope": "node:app"}, {"category": "Per mission"}, {"category": "permission\n"}, {"tool": "Ba\u202esh"},
        {"tool": ""}, {"pattern": "*"}, {"pattern": "bash *"}, {"pattern": "ls \x1b[31m*"}, {"pattern": "x" * 513},
        {"pattern": "cafe\u0301 x"}, {"text": "a\x1b[0m"}, {"text": "a\u202eb"}, {"text": "a\nb"}, {"text": "a\u200bb"},
        {"text": "x" * (TEXT_BYTES_MAX + 1)}, {"text": b"x"}, {"scope": 3},
    ],
)  # fmt: skip
def test_anything_out_of_range_stays_outside(change: dict[str, object]) -> None:
    """SECURITY 17."""
    import cbor2

    fields = {name: getattr(GOOD, name) for name in GOOD.__dataclass_fields__} | change
    with pytest.raises(Malformed):
        decode_unit_untrusted(cbor2.dumps(list(fields.values())), NOW_MS)


def test_the_body_has_a_bound_and_later_fields_are_passed_over() -> None:
    import cbor2

    fields = [getattr(GOOD, name) for name in GOOD.__dataclass_fields__]
    assert decode_unit_untrusted(cbor2.dumps([*fields, 7, [1]]), NOW_MS) == GOOD
    assert decode_unit_untrusted(cbor2.dumps(fields[:-1]), NOW_MS) == replace(GOOD, text="")
    with pytest.raises(Malformed):
        decode_unit_untrusted(cbor2.dumps([*fields, b"x" * UNIT_BYTES_MAX]), NOW_MS)
    with pytest.raises(Malformed):
        decode_unit_untrusted(cbor2.dumps(fields[:4]), NOW_MS)


def test_the_largest_unit_fits() -> None:
    largest = Unit(
        "project:" + "a" * 64, "a" * 32, "B" * 64, "x" * 512, "approve", COUNT_MAX, COUNT_MAX, NOW_MS, "t" * TEXT_BYTES_MAX
    )
    assert len(encode_unit(largest)) <= UNIT_BYTES_MAX
    assert decode_unit_untrusted(encode_unit(largest), NOW_MS) == largest


def test_keys_are_of_the_topic_alone_and_have_not_changed() -> None:
    """The last line is a golden vector: another key would part every lesson from its older witnesses."""
    assert GOOD.topic.key == replace(GOOD, positive=9, stance="approve", text="").topic.key
    topics = [Topic("global", "a", "B", "c"), Topic("global", "aB", "", "c"), Topic("global", "a", "Bc", "")]
    assert len({topic.key for topic in topics}) == 3
    assert Topic("global", "a", "B", "caf\u00e9").key == Topic("global", "a", "B", "cafe\u0301").key
    assert GOOD.topic.key.hex() == "377f1d0e9b139938cb48e6bfed062b52"


def test_a_topic_says_its_kind_and_its_problem() -> None:
    assert GOOD.topic.kind == "command"
    assert topic_problem(GOOD.topic) is None
    assert topic_problem(replace(GOOD.topic, pattern="git *")) == "its program, verb or option is not one whose arguments may be left open"


def test_acceptances_come_through_or_stay_outside() -> None:
    acceptance = Acceptance(b"r" * 32, b"a" * 16, NOW_MS)
    assert decode_acceptance_untrusted(encode(acceptance)) == acceptance
    for body in (b"", b"\x83", encode(GOOD), b"x" * 200):
        with pytest.raises(Malformed):
            decode_acceptance_untrusted(body)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, TIME_MS_MAX))
def test_any_bytes_are_a_unit_or_malformed(body: bytes, version_ms: int) -> None:
    try:
        unit = decode_unit_untrusted(body, version_ms)
    except Malformed:
        return
    assert topic_problem(unit.topic) is None
