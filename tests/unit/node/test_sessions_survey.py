import os

from mesh.base.clock import Now
from node.sessions import survey
from node.sessions.survey import Survey, look, roots, walk
from tests.fakes.transcripts import Claude, Codex


def listed(tmp_path, agent="claude"):
    index = 0 if agent == "claude" else 1
    root = roots(tmp_path / "claude", tmp_path / "codex")[index][1]
    folders = {}
    return {os.path.relpath(found.path, root): (found.session, found.helper) for found in walk(agent, root, root, folders)}, folders


def test_claude_transcripts_and_their_helpers(tmp_path):
    Claude("s-1", "/srv/a-b").write(tmp_path / "claude")
    Claude("s-2", "/srv/a/b").write(tmp_path / "claude")
    Claude("s-1", "/srv/a-b", helper="h1").write(tmp_path / "claude")
    (tmp_path / "claude/projects/-srv-a-b/agent-old.jsonl").write_text("")
    found, folders = listed(tmp_path)
    assert found == {
        "-srv-a-b/s-1.jsonl": ("s-1", False),
        "-srv-a-b/s-2.jsonl": ("s-2", False),
        "-srv-a-b/s-1/subagents/agent-h1.jsonl": ("s-1", True),
        "-srv-a-b/agent-old.jsonl": ("", True),
    }
    assert len(folders) == 4


def test_codex_rollouts(tmp_path):
    session = Codex("a")
    session.write(tmp_path / "codex")
    (tmp_path / "codex/sessions/2026/notes.jsonl").write_text("")
    found, _ = listed(tmp_path, "codex")
    assert list(found.values()) == [(session.session, False)]


def test_nothing_but_transcripts_is_listed_and_no_link_is_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.jsonl").write_text("")
    folder = tmp_path / "claude/projects/-srv"
    (folder / "s/tool-results").mkdir(parents=True)
    (folder / "s/tool-results/x.jsonl").write_text("")
    (folder / "s.key").write_text("secret")
    (folder / "notes.txt").write_text("")
    os.symlink(outside / "x.jsonl", folder / "link.jsonl")
    os.symlink(outside, folder / "linked")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    with open(os.fsencode(folder) + b"/bad\xff.jsonl", "w"):
        pass
    assert listed(tmp_path)[0] == {}


def test_the_folder_itself_may_be_reached_by_a_link(tmp_path):
    Claude("s").write(tmp_path / "real")
    os.symlink(tmp_path / "real", tmp_path / "claude")
    assert list(listed(tmp_path)[0]) == ["-srv-demo/s.jsonl"]


def test_depth_is_bounded(tmp_path):
    deep = tmp_path / "claude/projects/a/b/subagents/c/d/e/f"
    deep.mkdir(parents=True)
    (deep / "x.jsonl").write_text("")
    assert listed(tmp_path)[0] == {}


def test_folders_that_are_missing_or_closed_are_passed_over(tmp_path):
    assert listed(tmp_path) == ({}, {})
    assert look("claude", str(tmp_path), str(tmp_path / "x/y.jsonl")) is None


def settled(tmp_path):
    watched = Survey(tmp_path / "claude", tmp_path / "codex", [])
    watched.look(Now(0, 0.0))
    for found in watched.next_files(1_000):
        watched.note_read(found.path, found.size, found.mtime_ns, found.inode, more=False)
    return watched


def names(watched):
    return [found.session for found in watched.next_files(1_000)]


def touch(path):
    with path.open("a") as file:
        file.write("{}")


def test_what_changed_waits_until_it_is_read_and_the_newest_comes_first(tmp_path):
    watched = Survey(tmp_path / "claude", tmp_path / "codex", [])
    for number in range(3):
        Claude(f"s-{number}", at_ms=1_796_000_000_000 + number * 60_000).write(tmp_path / "claude")
    watched.look(Now(0, 0.0))
    assert names(watched) == ["s-2", "s-1", "s-0"]
    first = watched.next_files(1)[0]
    watched.note_read(first.path, 0, first.mtime_ns, first.inode, more=True)
    assert names(watched) == ["s-2", "s-1", "s-0"]
    watched.note_read(first.path, first.size, first.mtime_ns, first.inode, more=False)
    assert names(watched) == ["s-1", "s-0"]
    assert watched.waiting


def test_files_that_did_not_change_lately_wait_for_a_whole_walk_unless_they_live(tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "HOT_FILES_MAX", 1)
    monkeypatch.setattr(survey, "WALK_REST", 0)
    paths = [Claude(f"s-{number}", at_ms=1_796_000_000_000 + number * 60_000).write(tmp_path / "claude") for number in range(3)]
    watched = settled(tmp_path)
    touch(paths[0])
    touch(paths[2])
    watched.look(Now(0, 1.0))
    assert names(watched) == ["s-2"]
    watched.live = [os.path.realpath(paths[0])]
    watched.look(Now(0, 2.0))
    assert set(names(watched)) == {"s-0", "s-2"}
    touch(paths[1])
    watched.look(Now(0, survey.WALK_PERIOD_S))
    assert set(names(watched)) == {"s-0", "s-1", "s-2"}


def test_new_folders_are_found_by_a_quick_look(tmp_path):
    Claude("s").write(tmp_path / "claude")
    watched = settled(tmp_path)
    Claude("t", "/srv/other").write(tmp_path / "claude")
    assert watched.look(Now(0, 1.0)) == []
    assert names(watched) == ["t"]


def test_only_a_whole_walk_says_what_is_gone(tmp_path):
    path = Claude("s").write(tmp_path / "claude")
    watched = settled(tmp_path)
    inode = path.stat().st_ino
    assert watched.stands(str(path), inode)
    assert not watched.stands(str(path), inode + 1)
    path.unlink()
    assert not watched.stands(str(path), inode)
    assert watched.look(Now(0, 1.0)) == []
    assert watched.look(Now(0, 1_000.0)) == [os.path.realpath(path)]
    watched.forget([os.path.realpath(path)])
    assert watched.look(Now(0, 9_000.0)) == []


def test_files_beyond_the_bound_are_not_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "FILES_MAX", 2)
    for number in range(4):
        Claude(f"s-{number}").write(tmp_path / "claude")
    watched = Survey(tmp_path / "claude", tmp_path / "codex", [])
    watched.look(Now(0, 0.0))
    assert len(names(watched)) == 2
