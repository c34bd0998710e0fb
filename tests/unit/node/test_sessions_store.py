import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.db import Database
from node.sessions import store
from node.sessions.cost import ModelTotal
from node.sessions.fold import FoldState
from node.sessions.formats import Usage
from node.sessions.store import DAY_MS, KEEP_D, Decision, Mark, Reading, SessionRow


@pytest.fixture
def database(tmp_path):
    database = Database(tmp_path / "sessions.db", store.SCHEMA)
    yield database
    database.close()


def mark(path="/p/s.jsonl", session="s", **more):
    values = {
        "path": path, "agent": "claude", "session": session, "helper": False, "device": 1, "inode": 2, "size": 10,
        "mtime_ns": 3, "offset": 10, "skipping": False, "head_bytes": 5, "head": b"h", "tail": b"t", "bad": 0,
        "oversized": 0, "last_ms": 1_000, "fold": FoldState(cwd="/srv/demo"),
    }  # fmt: skip
    return Mark(**(values | more))


def usage(message_id="m", output=5, model="x"):
    return Usage(message_id, model, 10, output, 0, 0, 0)


def decision(number=1, **more):
    values = {
        "source_id": store.source_id("claude", f"call-{number}"), "agent": "claude", "session": "s", "project": "demo",
        "cwd": "/srv/demo", "tool": "Bash", "subject": f"make {number}", "verdict": "approve", "at_ms": 5,
    }  # fmt: skip
    return Decision(**(values | more))


def commit(database, *readings):
    return database.write_now(lambda connection: store.commit_readings(connection, readings, 77))


def totals(database, session="s"):
    return {row.model: (row.input, row.output) for row in store.totals_of(database.reader, "claude", session)}


def test_a_mark_comes_back_as_it_was(database):
    commit(database, Reading(mark(skipping=True, helper=True), True, (), ()))
    assert store.mark_of(database.reader, "/p/s.jsonl") == mark(skipping=True, helper=True)
    assert store.mark_by_inode(database.reader, 1, 2) == mark(skipping=True, helper=True)
    assert store.mark_of(database.reader, "/p/other") is None
    assert store.known_files(database.reader) == [("/p/s.jsonl", 10, 3, 2)]


def test_a_fold_that_cannot_be_read_starts_its_file_over(database):
    commit(database, Reading(mark(), True, (), ()))
    database.write_now(lambda connection: connection.execute("UPDATE files SET fold=x'ff'"))
    found = store.mark_of(database.reader, "/p/s.jsonl")
    assert (found.offset, found.fold) == (0, FoldState())


def test_a_reply_counts_once_wherever_it_stands(database):
    """O-S6, and a fork copies its parent's replies"""
    commit(database, Reading(mark(), True, (usage("m", 1), usage("n", 2)), ()))
    commit(database, Reading(mark(), False, (usage("m", 100),), ()))
    commit(database, Reading(mark("/p/fork.jsonl", "fork"), True, (usage("m", 100), usage("o", 3)), ()))
    assert totals(database) == {"x": (20, 102)}
    assert totals(database, "fork") == {"x": (10, 3)}


def test_a_reply_whose_model_changes_moves_its_tokens(database):
    commit(database, Reading(mark(), True, (usage("m", 1, "x"),), ()))
    commit(database, Reading(mark(), False, (usage("m", 2, "y"),), ()))
    assert totals(database) == {"x": (0, 0), "y": (10, 2)}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.sampled_from("xy")), max_size=8), st.randoms())
def test_the_order_of_reading_does_not_matter(tmp_path_factory, records, random):
    def summed(order):
        database = Database(tmp_path_factory.mktemp("store") / "sessions.db", store.SCHEMA, durable=False)
        for message_id, output, model in order:
            commit(database, Reading(mark(), False, (usage(message_id, output, model),), ()))
        found = {model: counts for model, counts in totals(database).items() if counts != (0, 0)}
        database.close()
        return found

    shuffled = list(records)
    random.shuffle(shuffled)
    assert summed(records) == summed(shuffled)


def test_a_replaced_file_takes_back_what_it_counted(database):
    commit(database, Reading(mark(bad=3), True, (usage("m"), usage("n")), ()))
    commit(database, Reading(mark(bad=1), True, (usage("n", 7),), ()))
    assert totals(database) == {"x": (10, 7)}
    assert store.session_row(database.reader, "claude", "s") == SessionRow("claude", "s", 1_000, 0, 1)


def test_a_running_sum_belongs_to_its_session(database):
    commit(database, Reading(mark(), True, (usage("total", 5),), ()))
    commit(database, Reading(mark("/p/b.jsonl", "b"), True, (usage("total", 6),), ()))
    assert (totals(database), totals(database, "b")) == ({"x": (10, 5)}, {"x": (10, 6)})


def test_helpers_count_under_their_session(database):
    """O-S8"""
    commit(database, Reading(mark(), True, (usage("m"),), ()))
    for number in range(3):
        helper = mark(f"/p/s/h{number}.jsonl", helper=True, last_ms=2_000 + number)
        commit(database, Reading(helper, True, (usage(f"h{number}"),), ()))
        commit(database, Reading(helper, False, (), ()))
    assert store.session_row(database.reader, "claude", "s") == SessionRow("claude", "s", 2_002, 3, 0)
    assert totals(database) == {"x": (40, 20)}
    assert store.main_mark(database.reader, "claude", "s").path == "/p/s.jsonl"
    assert len(store.files_of(database.reader, "claude", "s", 10)) == 4
    assert store.sessions_since(database.reader, 2_002, 5)[0].session == "s"
    assert store.sessions_since(database.reader, 2_003, 5) == []


def test_sessions_by_the_start_of_their_id(database):
    for session in ("abc-1", "abc-2", "x%"):
        commit(database, Reading(mark(f"/p/{session}", session), True, (), ()))
    assert [row.session for row in store.sessions_like(database.reader, "abc", 9)] == ["abc-1", "abc-2"]
    assert [row.session for row in store.sessions_like(database.reader, "%", 9)] == []
    assert [row.session for row in store.sessions_like(database.reader, "x%", 9)] == ["x%"]


def test_decisions_are_given_until_they_are_taken_and_never_again(database):
    assert commit(database, Reading(mark(), True, (), (decision(1), decision(2)))) == 2
    assert store.decisions_waiting(database.reader, 10) == [decision(1), decision(2)]
    database.write_now(lambda connection: store.take_decisions(connection, [decision(1).source_id], 9))
    assert store.decisions_waiting(database.reader, 10) == [decision(2)]
    assert commit(database, Reading(mark(), True, (), (decision(1), decision(2)))) == 0
    assert store.decisions_waiting(database.reader, 10) == [decision(2)]
    assert database.reader.execute("SELECT cwd, subject FROM decisions WHERE taken_ms IS NOT NULL").get == ("", "")


def test_decisions_beyond_the_bound_drop_the_oldest(database, monkeypatch):
    monkeypatch.setattr(store, "DECISIONS_MAX", 3)
    commit(database, Reading(mark(), True, (), tuple(decision(number) for number in range(5))))
    assert [found.subject for found in store.decisions_waiting(database.reader, 10)] == ["make 2", "make 3", "make 4"]


def test_a_renamed_file_keeps_its_session(database):
    """O-S9"""
    commit(database, Reading(mark(), True, (usage("m"),), ()))
    database.write_now(lambda connection: store.note_gone(connection, ["/p/s.jsonl"], 5))
    database.write_now(lambda connection: store.rename_file(connection, "/p/s.jsonl", "/q/s.jsonl"))
    assert not store.is_gone(database.reader, "/q/s.jsonl")
    assert store.mark_of(database.reader, "/q/s.jsonl").offset == 10


def test_a_deleted_transcript_stays_counted_until_its_time(database):
    """O-S9"""
    commit(database, Reading(mark(), True, (usage("m"),), (decision(1),)))
    commit(database, Reading(mark("/p/t.jsonl", "t", inode=9), True, (usage("n"),), ()))
    database.write_now(lambda connection: store.note_gone(connection, ["/p/s.jsonl"], 1_000))
    database.write_now(lambda connection: store.take_decisions(connection, [decision(1).source_id], 1_000))
    assert store.is_gone(database.reader, "/p/s.jsonl")
    assert [path for path, *_ in store.known_files(database.reader)] == ["/p/t.jsonl"]
    database.write_now(lambda connection: store.prune(connection, 1_000 + KEEP_D * DAY_MS))
    assert totals(database) == {"x": (10, 5)}
    database.write_now(lambda connection: store.prune(connection, 1_001 + KEEP_D * DAY_MS))
    assert (totals(database), totals(database, "t")) == ({}, {"x": (10, 5)})
    assert store.session_row(database.reader, "claude", "s") is None
    assert database.reader.execute("SELECT count(*) FROM decisions").get == 0
    assert database.reader.execute("SELECT count(*) FROM messages").get == 1


def test_a_failed_commit_keeps_nothing(database):
    bad = Reading(mark("/p/b.jsonl", fold=FoldState(session="x" * 100)), True, (), ())
    with pytest.raises(Exception, match="wrong length"):
        commit(database, Reading(mark(), True, (usage("m"),), (decision(1),)), bad)
    assert store.known_files(database.reader) == []
    assert totals(database) == {}
    assert store.decisions_waiting(database.reader, 10) == []


def test_names_of_replies_and_decisions():
    assert store.message_key("claude", "a", "m") == store.message_key("claude", "b", "m")
    assert store.message_key("claude", "a", "m") != store.message_key("codex", "a", "m")
    assert store.message_key("codex", "a", "total") != store.message_key("codex", "b", "total")
    assert len(store.source_id("claude", "c\ud800")) == 16


def test_totals_are_values(database):
    commit(database, Reading(mark(), True, (Usage("m", "x", 1, 2, 3, 4, 5),), ()))
    assert store.totals_of(database.reader, "claude", "s") == (ModelTotal("x", 1, 2, 3, 4, 5),)
