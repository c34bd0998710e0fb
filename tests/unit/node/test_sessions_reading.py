import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.sessions import reading
from node.sessions.formats import LINE_BYTES_MAX
from node.sessions.reading import Found, read_new
from tests.fakes.transcripts import Claude, Codex, claude_usage, stamp

BUDGET = 64 << 20


def keep(text):
    return text


def found(path, agent="claude", session="s", *, helper=False):
    status = os.lstat(path)
    return Found(str(path), agent, session, helper, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def read(path, mark=None, budget=BUDGET, **more):
    return read_new(found(path, **more), mark, budget, keep)


def turns(count, name="s"):
    session = Claude(name)
    for index in range(count // 2):
        session.prompt(f"turn {index}")
        session.reply(f"turn {index}")
    return session


def test_a_bad_line_hides_nothing(tmp_path):
    """O-S1: junk in the middle, NULs after a crash, no newline at the end"""
    session = turns(10)
    session.lines[4] = '{"type":"assistant","mess'
    session.lines[6] = "\0" * 4096
    path = tmp_path / "s.jsonl"
    path.write_text(session.text.rstrip("\n"))
    done = read(path)
    assert (done.mark.fold.turns, done.mark.bad, done.mark.offset) == (8, 2, path.stat().st_size)


def test_lines_that_are_not_utf8_or_not_ours_are_counted(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xff\xfe\n[1]\n\n<html>\n" + turns(2).text.encode())
    done = read(path)
    assert (done.mark.fold.turns, done.mark.bad) == (2, 3)


def test_a_record_behind_a_torn_one_is_used(tmp_path):
    """O-S2"""
    session = turns(8)
    session.lines[3:5] = [session.lines[3][:70] + session.lines[4]]
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    done = read(path)
    assert (done.mark.fold.turns, done.mark.bad) == (7, 1)


def test_an_unfinished_line_is_not_bad_and_counts_once_when_it_is_whole(tmp_path):
    """O-S2, live"""
    session = turns(4)
    *before, line = session.lines
    path = tmp_path / "s.jsonl"
    path.write_text("".join(text + "\n" for text in before))
    mark = read(path).mark
    for part in (line[:50], line[50:200], line[200:]):
        with path.open("a") as file:
            file.write(part)
        mark = read(path, mark).mark
        assert mark.bad == 0
    assert mark.fold.turns == 4
    with path.open("a") as file:
        file.write("\n")
    again = read(path, mark)
    assert (again.mark.fold.turns, again.mark.bad, again.usages) == (4, 0, ())


def test_a_huge_line_is_skipped_and_counted_and_the_rest_is_seen(tmp_path):
    """O-S3"""
    session = turns(4)
    session.prompt("A" * (LINE_BYTES_MAX + 5))
    huge_ms = session.at_ms
    session.reply("last")
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    done = read(path)
    assert (done.mark.fold.turns, done.mark.bad, done.mark.oversized) == (5, 0, 1)
    path.write_text("".join(line + "\n" for line in session.lines[:-1]))
    assert read(path).mark.last_ms == huge_ms


def test_a_huge_line_arriving_in_parts_is_counted_once(tmp_path):
    """O-S3, live"""
    path = tmp_path / "s.jsonl"
    path.write_text(turns(2).text)
    mark = read(path).mark
    for _ in range(3):
        with path.open("a") as file:
            file.write("B" * (LINE_BYTES_MAX // 2))
        mark = read(path, mark).mark
    assert mark.skipping
    with path.open("a") as file:
        file.write("\n" + turns(2).text)
    mark = read(path, mark).mark
    assert (mark.oversized, mark.bad, mark.skipping, mark.offset) == (1, 0, False, path.stat().st_size)


def test_an_append_costs_the_new_bytes_only(tmp_path):
    """O-S4"""
    session = Claude("s")
    for _ in range(2_500):
        session.prompt("x" * 1_000)
        session.reply("y" * 1_000, usage=claude_usage(1, 1))
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    mark = read(path).mark
    assert mark.offset == path.stat().st_size > 6_000_000
    line = session.lines[-1] + "\n"
    count = 0
    for _ in range(100):
        with path.open("a") as file:
            file.write(line)
        done = read(path, mark)
        assert not done.fresh
        mark, count = done.mark, count + done.bytes_read
    assert count < 100 * (len(line) + 2_000)
    assert mark.offset == path.stat().st_size


@pytest.mark.parametrize("replace", ["truncate", "rename", "rewrite", "regrow"])
def test_another_file_under_the_same_name_is_read_from_its_start(tmp_path, replace):
    """O-S4"""
    path = tmp_path / "s.jsonl"
    path.write_text(turns(40).text)
    mark = read(path).mark
    other = turns(6, "other")
    if replace == "truncate":
        path.write_text(other.text)
    elif replace == "rename":
        (tmp_path / "new").write_text(other.text)
        (tmp_path / "new").rename(path)
    elif replace == "rewrite":
        path.write_text(turns(60, "other").text)
    else:
        first = turns(40).text[:2_000]
        path.write_text(first + "\n" + turns(80, "other").text)
    done = read(path, mark)
    assert done.fresh
    assert done.mark.fold.turns == {"truncate": 6, "rename": 6, "rewrite": 60}.get(replace, done.mark.fold.turns)
    assert done.mark.offset == path.stat().st_size


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4_000), max_size=12))
def test_reading_in_any_parts_finds_the_same(tmp_path_factory, parts):
    session = turns(6)
    session.lines.insert(3, "not a record")
    data = session.text.encode()
    path = tmp_path_factory.mktemp("parts") / "s.jsonl"
    path.write_bytes(b"")
    whole = tmp_path_factory.mktemp("whole") / "s.jsonl"
    whole.write_bytes(data)
    mark, at, usages = None, 0, {}
    for part in [*parts, len(data)]:
        with path.open("ab") as file:
            file.write(data[at : at + part])
        at += part
        done = read(path, mark)
        mark = done.mark
        usages |= {usage.message_id: usage for usage in done.usages}
    expected = read(whole)
    assert (mark.fold, mark.bad, mark.offset) == (expected.mark.fold, expected.mark.bad, expected.mark.offset)
    assert usages == {usage.message_id: usage for usage in expected.usages}


def test_a_budget_ends_a_reading_at_a_line_and_the_next_goes_on(tmp_path):
    session = turns(3_000)
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    mark, passes = None, 0
    while True:
        done = read(path, mark, budget=1)
        mark, passes = done.mark, passes + 1
        assert mark.size == (mark.offset if done.more else path.stat().st_size)
        if not done.more:
            break
    assert passes > 1
    assert mark.fold.turns == 3_000
    assert mark.bad == 0


def test_a_line_longer_than_the_budget_is_still_read(tmp_path):
    session = Claude("s")
    session.prompt("z" * (3 * reading.BLOCK_BYTES))
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    assert read(path, budget=1).mark.fold.turns == 1


def test_of_repeated_replies_the_best_record_is_handed_on(tmp_path):
    """O-S6"""
    session = Claude("s")
    for output in (1, 40, 100):
        session.reply(message_id="m1", usage=claude_usage(10, output, 1_000, 50))
    for output in (60, 2):
        session.reply(message_id="m2", usage=claude_usage(20, output, 1_000, 50))
    path = tmp_path / "s.jsonl"
    path.write_text(session.text)
    assert sorted((usage.message_id, usage.output) for usage in read(path).usages) == [("m1", 100), ("m2", 60)]


def test_codex_usage_gets_the_model_of_its_turn(tmp_path):
    session = Codex("a")
    session.start()
    session.usage(10, 1)
    path = tmp_path / "r.jsonl"
    path.write_text(session.text)
    assert [usage.model for usage in read(path, agent="codex").usages] == ["gpt-5-codex"]


def test_whose_a_file_is(tmp_path):
    path = tmp_path / "f.jsonl"
    path.write_text(turns(2, "from-the-lines").text)
    assert read(path, session="by-place").mark.session == "by-place"
    assert read(path, session="").mark.session == "from-the-lines"
    done = read(path, session="", helper=True)
    assert (done.mark.session, done.mark.helper) == ("from-the-lines", True)
    helper = Codex("a", session_id="the-parent", thread_source="subagent", source={})
    path.write_text(helper.text)
    done = read(path, agent="codex", session=helper.session)
    assert (done.mark.session, done.mark.helper) == ("the-parent", True)


def test_a_file_without_times_has_that_of_the_file(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"type":"mode"}\n')
    os.utime(path, (1_000, 1_000))
    assert read(path).mark.last_ms == 1_000_000
    assert stamp(1_000_000) == "1970-01-01T00:16:40.000Z"


def test_what_is_not_a_plain_file_is_not_read(tmp_path):
    (tmp_path / "real").write_text("x")
    os.symlink(tmp_path / "real", tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        assert read(tmp_path / name) is None
    gone = found(tmp_path / "real")
    (tmp_path / "real").unlink()
    assert read_new(gone, None, BUDGET, keep) is None
