import os
import subprocess

import pytest

from mesh.base.errors import OurFault, Usage
from query import gitsource
from query.gitsource import (
    FILE_BYTES_MAX,
    find_repository,
    head_commit,
    list_tree,
    open_blobs,
    project_of,
    run_git,
)


def test_only_committed_bytes_are_seen(kettle, run_git):
    before = run_git(kettle, "rev-parse", "HEAD:README.md")
    (kettle / "README.md").write_text("CANARY edited")
    (kettle / "new.md").write_text("CANARY untracked")
    (kettle / "staged.md").write_text("CANARY staged")
    run_git(kettle, "add", "staged.md")
    entries = list_tree(kettle, head_commit(kettle))
    assert {entry.path for entry in entries} == {b"README.md", b"docs/guide.md", b"src/plate.py"}
    with open_blobs(kettle) as blobs:
        assert blobs.read(before) == b"# Kettle\n\nA kettle that talks.\n"


def test_a_folder_inside_means_the_whole_repository(kettle):
    assert len(list_tree(kettle / "docs", head_commit(kettle / "docs"))) == 3
    assert find_repository(kettle / "docs") == kettle / ".git"


def test_names_of_projects(kettle, run_git, tmp_path):
    assert project_of(kettle) == "kettle"
    run_git(kettle, "worktree", "add", "-q", str(tmp_path / "other"), "-b", "other")
    assert project_of(tmp_path / "other") == "kettle"
    run_git(tmp_path, "clone", "-q", "--bare", str(kettle), "Pot.git")
    assert project_of(tmp_path / "Pot.git") == "pot"
    run_git(kettle, "config", "hivemesh.project", "tea.maker")
    assert project_of(kettle) == "tea.maker"
    run_git(kettle, "config", "hivemesh.project", "../Tea")
    with pytest.raises(Usage):
        project_of(kettle)


def test_what_is_no_repository_is_said_so(tmp_path, run_git):
    with pytest.raises(Usage, match="not a folder"):
        find_repository(tmp_path / "none")
    with pytest.raises(Usage, match="not in a git repository"):
        find_repository(tmp_path)
    run_git(tmp_path, "init", "-q")
    with pytest.raises(Usage, match="no commits yet"):
        head_commit(tmp_path)


def test_a_repositorys_own_configuration_runs_nothing(kettle, run_git, tmp_path, monkeypatch):
    """QUERY.md section 3: hooks, monitors, filters, helpers and the environment of the caller have no say."""
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for key in ("core.fsmonitor", "core.sshCommand", "core.pager", "diff.x.textconv", "filter.x.smudge", "filter.x.clean", "credential.helper"):
        run_git(kettle, "config", key, str(trap))
    run_git(kettle, "config", "core.hooksPath", str(tmp_path))
    (kettle / ".git/info").mkdir(exist_ok=True)
    (kettle / ".git/info/attributes").write_text("* filter=x diff=x\n")
    for name, value in {"GIT_DIR": "/nowhere", "GIT_OBJECT_DIRECTORY": "/nowhere", "GIT_EXTERNAL_DIFF": str(trap), "GIT_PAGER": str(trap)}.items():
        monkeypatch.setenv(name, value)
    entries = list_tree(kettle, head_commit(kettle))
    with open_blobs(kettle) as blobs:
        assert all(blobs.read(entry.sha) for entry in entries)
    assert not (tmp_path / "sprung").exists()


def test_replacement_objects_have_no_effect(kettle, run_git):
    real = run_git(kettle, "rev-parse", "HEAD:README.md")
    fake = subprocess.run(
        ["git", "-C", str(kettle), "hash-object", "-w", "--stdin"], input=b"CANARY", capture_output=True, check=True
    ).stdout.decode().strip()  # fmt: skip
    run_git(kettle, "replace", real, fake)
    with open_blobs(kettle) as blobs:
        assert blobs.read(real) == b"# Kettle\n\nA kettle that talks.\n"


def test_big_missing_and_other_objects_are_none(tmp_path, commit, run_git):
    commit(tmp_path / "r", {"big.md": b"a" * (FILE_BYTES_MAX + 1), "small.md": "b\n"})
    entries = {entry.path: entry for entry in list_tree(tmp_path / "r", head_commit(tmp_path / "r"))}
    assert entries[b"big.md"].size == FILE_BYTES_MAX + 1
    with open_blobs(tmp_path / "r") as blobs:
        assert blobs.read(entries[b"big.md"].sha) is None
        assert blobs.read("0" * 40) is None
        assert blobs.read(run_git(tmp_path / "r", "rev-parse", "HEAD^{tree}")) is None
        assert blobs.read(entries[b"small.md"].sha) == b"b\n"


def test_without_git_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OurFault, match="git is not installed"):
        run_git(tmp_path, "version")


def test_too_many_entries_are_refused(kettle, monkeypatch):
    monkeypatch.setattr(gitsource, "ENTRIES_MAX", 2)
    with pytest.raises(OurFault, match="more than 2 files"):
        list_tree(kettle, head_commit(kettle))


def test_a_git_that_ends_is_a_fault_of_ours(kettle):
    with open_blobs(kettle) as blobs, open(os.devnull, "wb") as nowhere:
        blobs._input.close()
        blobs._input = nowhere
        with pytest.raises(OurFault, match="git ended"):
            blobs.read("0" * 40)
