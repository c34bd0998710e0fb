import os

from node.sessions.survey import look, roots, walk
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
