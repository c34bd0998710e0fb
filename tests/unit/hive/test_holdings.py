"""What is held of everybody's units: only what unseals, is sound, and stands under its own key."""

from __future__ import annotations

import pytest

from hive import holdings
from hive.holdings import Holdings
from hive.unit import ACCEPTANCE_KIND, LESSON_KIND, Acceptance, Unit, encode_unit
from mesh.base.codec import encode
from mesh.base.names import OwnerId, base32, suffix
from tests.fakes.records import FakeMesh, FakeNode

GOOD = Unit("project:app", "permission", "Bash", "pytest *", "approve", 3, 1, 1_800_000_000_000, "quick")


def of(node: FakeNode) -> Holdings:
    return Holdings(node.records, node.directory, node.sealer)


async def test_units_of_own_machines_are_read_and_strangers_see_nothing() -> None:
    """SECURITY 33."""
    mesh = FakeMesh()
    a, b, stranger = mesh.node("a", "me"), mesh.node("b", "me"), mesh.node("s", "other")
    await a.records.publish(LESSON_KIND, GOOD.topic.key, a.sealer.seal(encode_unit(GOOD)))
    for node in (a, b):
        (held,) = of(node).published()
        assert (held.author, held.owner, held.unit) == (a.node, a.owner, GOOD)
    assert of(stranger).published() == []
    assert len(stranger.records.entries(LESSON_KIND)) == 1


async def test_unsound_records_are_passed_over() -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    await a.records.publish(LESSON_KIND, b"k" * 16, a.sealer.seal(encode_unit(GOOD)))
    await a.records.publish(LESSON_KIND, GOOD.topic.key, a.sealer.seal(b"\xff\xff"))
    await a.records.publish(LESSON_KIND, b"l" * 16, b"not sealed")
    assert of(b).published() == []


async def test_a_newer_record_replaces_what_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    monkeypatch.setattr(holdings, "DECODED_MAX", 1)
    held = of(a)
    for count in range(4):
        unit = Unit("global", "permission", "Bash", "pytest *", "approve", count, 0, 5)
        await a.records.publish(LESSON_KIND, unit.topic.key, a.sealer.seal(encode_unit(unit)))
        assert [c.unit.positive for c in held.published()] == [count] == [c.unit.positive for c in held.published()]


async def test_only_what_was_accepted_on_this_machine_counts() -> None:
    """SECURITY 12."""
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    acceptance = encode(Acceptance(b"r" * 32, b.node, 5))
    await a.records.publish(ACCEPTANCE_KIND, b"k" * 16, a.sealer.seal(acceptance))
    await a.records.publish(ACCEPTANCE_KIND, b"l" * 16, a.sealer.seal(b"junk"))
    assert of(a).accepted() == {b"k" * 16: frozenset({b"r" * 32})}
    assert of(b).accepted() == {}


async def test_names_of_people_and_machines() -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "ann")
    held = of(a)
    assert (held.owner_name(a.owner), held.owner_name(b.owner)) == ("me", "ann")
    assert held.owner_name(OwnerId(b"z" * 16)) == suffix(b"z" * 16)
    await a.records.publish(LESSON_KIND, GOOD.topic.key, a.sealer.seal(encode_unit(GOOD)))
    (contribution,) = held.published()
    assert held.machine(contribution) == {
        "node": base32(a.node), "name": "a", "owner": "me", "mine": True, "stance": "approve", "positive": 3, "negative": 1,
        "last_observed": GOOD.last_observed_ms, "record": base32(contribution.record_id), "text": "quick",
    }  # fmt: skip
