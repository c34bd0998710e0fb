"""The database: counted once, never shrinking, bounded, and what is forgotten stays forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hive import store
from hive.distil import Evidence, Tally, distil, one_each, unit_of
from hive.unit import Topic
from mesh.base.db import Database
from mesh.base.errors import Refused

NOW_MS = 1_800_000_000_000
TEST = Topic("project:app", "permission", "Bash", "pytest *")
PUSH = Topic("project:app", "permission", "Bash", "git push --force *")


def piece(number: int, topic: Topic = TEST, verdict: str = "approve", at_ms: int | None = None) -> Evidence:
    when = NOW_MS - 1000 + number if at_ms is None else at_ms
    return Evidence(number.to_bytes(16, "big"), topic, verdict, when, "claude", "s", f"run {number}")  # type: ignore[arg-type]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "hive.db", store.SCHEMA)
    yield opened
    opened.close()


def add(database: Database, *pieces: Evidence) -> int:
    return database.write_now(lambda c: store.add_evidence(c, pieces, NOW_MS))


def tally(database: Database, topic: Topic = TEST) -> Tally | None:
    own = store.unit(database.reader, topic.key)
    return None if own is None else own.tally


def test_a_decision_counts_once_however_often_it_is_read(database: Database) -> None:
    assert add(database, piece(1), piece(2, verdict="deny"), piece(1)) == 2
    assert add(database, piece(2, verdict="deny"), piece(3)) == 1
    assert tally(database) == Tally(2, 1, NOW_MS - 997)
    assert store.counts(database.reader) == (3, 1, NOW_MS)
    assert store.examples(database.reader, TEST.key)[0] == ("run 3", "approve", NOW_MS - 997)


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    for round_number in range(2):
        database = Database(tmp_path / "hive.db", store.SCHEMA)
        assert add(database, piece(1)) == (round_number == 0)
        assert tally(database) == Tally(1, 0, NOW_MS - 999)
        database.close()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.builds(piece, st.integers(0, 9), st.sampled_from([TEST, PUSH]), st.sampled_from(["approve", "deny"])), max_size=15
    ),
    st.integers(1, 4),
)
def test_batches_into_the_store_equal_one_pure_distillation(tmp_path_factory: pytest.TempPathFactory, pieces: list[Evidence], size: int) -> None:
    database = Database(tmp_path_factory.mktemp("hive") / "hive.db", store.SCHEMA)
    pieces = one_each(pieces)
    for start in range(0, len(pieces), size):
        add(database, *pieces[start : start + size], *pieces[:start])
    units = {own.topic.key: unit_of(own.topic, own.tally) for own in store.newest_units(database.reader, 99)}
    assert units == distil(pieces)
    database.close()


def test_old_observations_go_and_counters_stay(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OBSERVATIONS_MAX", 10)
    add(database, *(piece(number) for number in range(1, 16)))
    assert store.counts(database.reader)[0] == 10
    assert tally(database) == Tally(15, 0, NOW_MS - 985)
    assert add(database, *(piece(number) for number in range(1, 16))) == 0, "what was let go must not count again"
    assert add(database, piece(99, at_ms=NOW_MS)) == 1
    assert tally(database) == Tally(16, 0, NOW_MS)


def test_own_units_are_bounded_the_one_observed_longest_ago_goes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "UNITS_MAX", 3)
    topics = [Topic("global", "permission", "Bash", f"make t{number}") for number in range(5)]
    add(database, *(piece(number, topic) for number, topic in enumerate(topics)))
    assert [own.topic for own in store.newest_units(database.reader, 9)] == topics[:1:-1]


def test_what_is_forgotten_is_gone_and_no_observation_brings_it_back(database: Database) -> None:
    add(database, piece(1), piece(2, PUSH))
    database.write_now(lambda c: store.forget(c, TEST.key, NOW_MS))
    assert tally(database) is None
    assert store.examples(database.reader, TEST.key) == []
    assert store.forgotten_keys(database.reader) == {TEST.key}
    assert add(database, piece(1), piece(3), piece(4, at_ms=NOW_MS + 10**9)) == 0
    assert tally(database) is None
    assert tally(database, PUSH) == Tally(0 + 1, 0, NOW_MS - 998)


def test_a_lesson_by_hand_lifts_a_forgetting_but_not_for_older_observations(database: Database) -> None:
    add(database, piece(1))
    database.write_now(lambda c: store.forget(c, TEST.key, NOW_MS))
    database.write_now(lambda c: store.teach(c, piece(7, verdict="deny", at_ms=NOW_MS + 5), "flaky", 0, NOW_MS + 5))
    own = store.unit(database.reader, TEST.key)
    assert own == store.OwnUnit(TEST, Tally(0, 1, NOW_MS + 5), "deny", "flaky", True, 0)
    assert store.forgotten_keys(database.reader) == set()
    assert add(database, piece(1), piece(2), piece(8, at_ms=NOW_MS + 9)) == 1
    assert tally(database) == Tally(1, 1, NOW_MS + 9)
    database.write_now(lambda c: store.teach(c, piece(9, at_ms=NOW_MS + 11), "", 0, NOW_MS + 11))
    own = store.unit(database.reader, TEST.key)
    assert own is not None
    assert (own.stance, own.text) == ("approve", "flaky")


def test_a_tombstone_of_mine_forgets_unless_a_lesson_by_hand_lifted_that_very_one(database: Database) -> None:
    add(database, piece(1), piece(2, PUSH))
    withdrawn = {TEST.key: 50}
    assert store.not_forgotten(database.reader, withdrawn) == [TEST.key]
    database.write_now(lambda c: store.forget_all(c, [TEST.key], NOW_MS))
    assert store.not_forgotten(database.reader, withdrawn) == []
    database.write_now(lambda c: store.teach(c, piece(7, at_ms=NOW_MS + 5), "", 50, NOW_MS + 5))
    assert store.not_forgotten(database.reader, withdrawn) == []
    assert store.not_forgotten(database.reader, {TEST.key: 51}) == [TEST.key]


def test_forgetting_has_a_limit_that_is_stated(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FORGOTTEN_MAX", 2)
    for key in (b"a" * 16, b"b" * 16, b"a" * 16):
        database.write_now(lambda c, key=key: store.forget(c, key, NOW_MS))
    with pytest.raises(Refused, match="2 lessons") as caught:
        database.write_now(lambda c: store.forget(c, b"c" * 16, NOW_MS))
    assert caught.value.reason == "limit"


def test_counters_never_fall_behind_what_the_mesh_was_told(database: Database) -> None:
    """An older copy of the file came back; reading the same transcripts again counts nothing twice."""
    add(database, piece(1), piece(2))
    database.write_now(lambda c: store.adopt_stated(c, TEST.key, TEST, Tally(5, 1, NOW_MS)))
    assert tally(database) == Tally(5, 1, NOW_MS)
    add(database, *(piece(number) for number in range(3, 6)))
    assert tally(database) == Tally(5, 1, NOW_MS)
    add(database, piece(6))
    assert tally(database) == Tally(6, 1, NOW_MS)


def test_a_unit_that_only_the_mesh_remembers_comes_back(database: Database) -> None:
    database.write_now(lambda c: store.adopt_stated(c, TEST.key, TEST, Tally(5, 1, NOW_MS)))
    own = store.unit(database.reader, TEST.key)
    assert own is not None
    assert (own.tally, own.changed) == (Tally(5, 1, NOW_MS), False)


def test_a_change_during_a_publication_stays_marked(database: Database) -> None:
    add(database, piece(1))
    told = tally(database)
    assert told is not None
    add(database, piece(2))
    database.write_now(lambda c: store.mark_published(c, TEST.key, told, NOW_MS))
    own = store.unit(database.reader, TEST.key)
    assert own is not None
    assert (own.changed, own.published_ms) == (True, NOW_MS)
    database.write_now(lambda c: store.mark_published(c, TEST.key, own.tally, NOW_MS + 1))
    own = store.unit(database.reader, TEST.key)
    assert own is not None
    assert not own.changed
