"""Every door of the hive, with anything thrown at it: a value, a typed refusal, or nothing; never another exception.

Invariant: whatever comes in is in range, holds no secret that our rules know, and makes no fold raise.
"""

from __future__ import annotations

import cbor2
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.distil import distil, evidence_untrusted
from hive.patterns import matches, pattern_of, pattern_problem
from hive.redact import contains_secret, redact
from hive.unit import (
    ACCEPTANCE_KIND,
    LESSON_KIND,
    Acceptance,
    Observation,
    Unit,
    decode_acceptance_untrusted,
    decode_unit_untrusted,
    encode_unit,
    topic_problem,
)
from hive.view import Contribution, Viewpoint, acceptance_untrusted, contribution_untrusted, fold
from mesh.base.codec import Malformed
from mesh.base.names import NodeId, OwnerId
from mesh.base.ports import Entry

NOW_MS = 1_800_000_000_000
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(scalars, inner, max_size=2), max_leaves=8)
GOOD = Unit("global", "permission", "Bash", "pytest *", "deny", 1, 2, NOW_MS, "x")
FIELDS = [getattr(GOOD, name) for name in GOOD.__dataclass_fields__]


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Random bytes, random CBOR, and units with one or two fields replaced by anything."""
    choice = draw(st.integers(0, 3))
    if choice == 0:
        return draw(st.binary(max_size=300))
    if choice == 1:
        return cbor2.dumps(draw(trees))
    fields = list(FIELDS)
    for _ in range(choice - 1):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(trees)
    return cbor2.dumps(fields)


@st.composite
def flipped(draw: st.DrawFn) -> bytes:
    body = bytearray(encode_unit(GOOD))
    body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
    return bytes(body)


def entry(kind: int, key: bytes, version: int) -> Entry:
    return Entry(NodeId(b"m" * 16), OwnerId(b"o" * 16), kind, key, version, b"r" * 32, b"sealed", NOW_MS)


@settings(max_examples=150, deadline=None)
@given(bodies() | flipped(), st.integers(0, (1 << 63) - 1))
def test_units_come_in_sound_or_not_at_all_and_no_fold_raises(body: bytes, version: int) -> None:
    """SECURITY 17."""
    try:
        unit = decode_unit_untrusted(body, version >> 16)
    except Malformed:
        assert contribution_untrusted(entry(LESSON_KIND, b"k" * 16, version), body) is None
        return
    assert topic_problem(unit.topic) is None
    found = contribution_untrusted(entry(LESSON_KIND, unit.topic.key, version), body)
    assert isinstance(found, Contribution)
    for now_ms in (0, NOW_MS, 1 << 60):
        view = Viewpoint(NodeId(b"x" * 16), OwnerId(b"o" * 16), now_ms, lambda owner: 0.25, lambda owner: "o")
        (lesson,) = fold([found], view)
        assert abs(lesson.score) <= 5


@settings(max_examples=300, deadline=None)
@given(bodies())
def test_acceptances_come_in_sound_or_not_at_all(body: bytes) -> None:
    found = acceptance_untrusted(entry(ACCEPTANCE_KIND, b"k" * 16, 0), body)
    try:
        assert decode_acceptance_untrusted(body) == found
    except Malformed:
        assert found is None
    assert found is None or isinstance(found, Acceptance)


texts = st.text(st.characters(), max_size=60) | st.sampled_from(
    ["Bash", "Edit", "app", "git push -f", "ghp_" + "a1B2" * 9, "password=hunter2", "https://a:b@c.dev/", "cat <<EOF\n$(", "'", "/home/a/x.py"]
)


@settings(max_examples=150, deadline=None)
@given(
    st.builds(
        Observation, source_id=st.binary(min_size=15, max_size=17), agent=texts, session=texts, project=texts, tool=texts,
        subject=texts, folder=texts, verdict=st.sampled_from(["approve", "deny", "ask"]), at_ms=st.integers(-(2**70), 2**70),
    )
)
def test_observations_become_clean_evidence_or_nothing(observation: Observation) -> None:
    piece = evidence_untrusted(observation, NOW_MS)
    if piece is None:
        return
    for text in (piece.agent, piece.session, piece.subject, piece.topic.scope, piece.topic.tool, piece.topic.pattern):
        assert not contains_secret(text)
        assert redact(text) == text
    (unit,) = distil([piece]).values()
    assert decode_unit_untrusted(encode_unit(unit), NOW_MS) == unit


@settings(max_examples=150, deadline=None)
@given(texts, texts, texts, texts)
def test_patterns_and_subjects_of_anybody_never_raise(pattern: str, tool: str, subject: str, folder: str) -> None:
    made = pattern_of(tool, subject, folder=folder)
    assert made is None or made == pattern_of(tool, subject, folder=folder)
    if matches(pattern, tool, subject, folder=folder):
        assert made is not None
    pattern_problem(tool, pattern)
