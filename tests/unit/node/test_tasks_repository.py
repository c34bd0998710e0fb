"""The requester's side of a tree, with real repositories: what is sent, what is refused, and that nothing is touched."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from mesh.base.errors import Refused
from node.tasks.git import Git
from node.tasks.repository import Repository, Snapshot, find_repository, take_snapshot

ENV = {
    **os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "t",
    "GIT_AUTHOR_EMAIL": "t@example.invalid", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@example.invalid",
}  # fmt: skip


def sh(folder: Path, *args: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *args], cwd=folder, env=ENV, input=stdin, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def make(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    sh(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    sh(folder, "add", "-A")
    sh(folder, "commit", "-qm", "one")
    return folder


def own_git(home: Path) -> Git:
    return Git({"PATH": os.environ["PATH"], "HOME": str(home)}, time_limit_s=30, trusted_home=True)


async def find(folder: Path) -> Repository:
    found = await find_repository(own_git(folder.parent), folder)
    assert found is not None
    return found


async def snap(folder: Path, *, yes: bool = False) -> Snapshot:
    place = folder.parent / f"out-{folder.name}"
    place.mkdir(exist_ok=True)
    (place / "pack").unlink(missing_ok=True)
    return await take_snapshot(own_git(folder.parent), await find(folder), place / "pack", yes=yes)


def unpack(snapshot: Snapshot, into: Path) -> dict[str, str]:
    """Lay the snapshot out in an empty repository and read its files."""
    into.mkdir()
    sh(into, "init", "-q")
    with snapshot.pack.open("rb") as pack:
        subprocess.run(["git", "index-pack", "--stdin", "--strict"], cwd=into, env=ENV, stdin=pack, check=True, capture_output=True)
    sh(into, "fsck", "--connectivity-only", snapshot.commit)
    names = sh(into, "ls-tree", "-r", "-z", "--name-only", snapshot.commit).rstrip("\0").split("\0")
    return {name: sh(into, "cat-file", "blob", f"{snapshot.commit}:{name}") for name in names}


def state_of(folder: Path) -> str:
    """Everything about a repository and its work tree, as one hash: names, bytes, times."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        kind = path.lstat()
        digest.update(f"{path} {kind.st_mode} {kind.st_mtime_ns if not path.is_dir() else 0}".encode())
        digest.update(path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return digest.hexdigest()


async def test_local_edits_are_there_and_the_repository_is_untouched(tmp_path: Path):
    """O-X16: an unpushed commit, a changed, a deleted, a staged and an untracked file; ignored ones stay home."""
    folder = make(tmp_path / "r", {"a": "1\n", "gone": "x\n", "staged": "s\n", ".gitignore": "*.log\n"})
    (folder / "a").write_text("2\n")
    sh(folder, "commit", "-qam", "unpushed")
    (folder / "a").write_text("3\n")
    (folder / "gone").unlink()
    (folder / "staged").write_text("staged\n")
    sh(folder, "add", "staged")
    (folder / "new dir").mkdir()
    (folder / "new dir" / "ü\tx").write_text("new\n")
    (folder / "noise.log").write_text("secret\n")
    before = state_of(folder)
    snapshot = await snap(folder)
    assert state_of(folder) == before
    files = unpack(snapshot, tmp_path / "there")
    shown = sh(tmp_path / "there", "log", "--format=%s", snapshot.commit).splitlines()
    assert shown == ["the work tree as it was sent", "unpushed", "one"]
    assert files.pop("a") == "3"
    assert files.pop("staged") == "staged"
    assert "gone" not in files
    assert "noise.log" not in files
    assert [file.path for file in snapshot.untracked] == ["new dir/ü\tx"]
    assert snapshot.untracked[0].size_bytes == 4


async def test_a_clean_tree_is_sent_as_the_commit_it_is(tmp_path: Path):
    folder = make(tmp_path / "r", {"a": "1\n"})
    snapshot = await snap(folder)
    assert snapshot.commit == sh(folder, "rev-parse", "HEAD")
    assert snapshot.untracked == ()


async def test_a_repository_without_commits_is_sent(tmp_path: Path):
    folder = tmp_path / "r"
    folder.mkdir()
    sh(folder, "init", "-q")
    (folder / "a").write_text("1\n")
    snapshot = await snap(folder)
    assert unpack(snapshot, tmp_path / "there") == {"a": "1"}
    assert snapshot.repository.repository_id is None
    assert snapshot.repository.head is None
    assert not list((folder / ".git" / "objects").glob("??/*"))


async def test_a_shallow_clone_is_sent_without_its_cut_history(tmp_path: Path):
    """O-X17."""
    source = make(tmp_path / "src", {"a": "1\n"})
    for n in range(2, 6):
        (source / "a").write_text(f"{n}\n")
        sh(source, "commit", "-qam", str(n))
    sh(tmp_path, "clone", "-q", "--depth", "2", f"file://{source}", "thin")
    snapshot = await snap(tmp_path / "thin")
    assert unpack(snapshot, tmp_path / "there") == {"a": "5"}
    assert "history here is cut" in snapshot.notes[0]
    assert snapshot.repository.repository_id is None


async def test_an_index_lock_of_the_users_is_no_obstacle_and_stays(tmp_path: Path):
    """O-X26."""
    folder = make(tmp_path / "r", {"a": "1\n"})
    (folder / ".git" / "index.lock").touch()
    (folder / "a").write_text("2\n")
    assert unpack(await snap(folder), tmp_path / "there") == {"a": "2"}
    assert (folder / ".git" / "index.lock").exists()


async def test_submodules_and_nested_repositories_are_refused_by_name(tmp_path: Path):
    """O-X18."""
    library = make(tmp_path / "lib", {"lib.txt": "lib\n"})
    app = make(tmp_path / "app", {"build.sh": "test -f vendor/lib.txt\n"})
    sh(app, "submodule", "add", "-q", str(library), "vendor")
    sh(app, "commit", "-qm", "sub")
    with pytest.raises(Refused, match="submodule vendor cannot be provided") as refused:
        await snap(app, yes=True)
    assert refused.value.reason == "submodule"
    assert "--no-tree" in refused.value.hint
    outer = make(tmp_path / "outer", {"a": "1\n"})
    make(outer / "inner", {"b": "2\n"})
    with pytest.raises(Refused, match="nested repository inner"):
        await snap(outer, yes=True)


async def test_lfs_pointers_are_stated(tmp_path: Path):
    """O-X19: one stated outcome, with or without git-lfs."""
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 63}1\nsize 12\n"
    folder = make(tmp_path / "r", {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n", "w.bin": pointer, "x": "1\n"})
    snapshot = await snap(folder)
    assert snapshot.notes == ("1 files are Git LFS pointers, not content: w.bin",)


async def test_names_that_differ_by_case_are_stated(tmp_path: Path):
    """O-X20."""
    folder = make(tmp_path / "r", {"README": "1\n", "readme": "2\n", "pkg/X.py": "3\n", "pkg/x.py": "4\n"})
    assert "pkg/x.py, readme" in (await snap(folder)).notes[0]


async def test_nothing_a_repository_configures_is_run(tmp_path: Path):
    """O-X23: fsmonitor, filters, hooks, external diff, pager, ssh, promisor remotes; also in names with an equals sign."""
    folder = make(tmp_path / "r", {"ok.txt": "ok\n", ".gitattributes": "*.txt filter=evil\n*.dat filter=e=vil\n"})
    evil = folder / ".git" / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\ncat\n")
    evil.chmod(0o755)
    for name in ("core.fsmonitor", "core.sshCommand", "filter.evil.smudge", "filter.evil.clean", "filter.evil.process",
                 "filter.e=vil.clean", "diff.external", "core.pager", "core.askPass", "core.editor", "gpg.program",
                 "core.alternateRefsCommand"):  # fmt: skip
        sh(folder, "config", name, f"{evil} x")
    for name, value in (("filter.evil.required", "true"), ("commit.gpgSign", "true"), ("protocol.ext.allow", "always"),
                        ("index.recordEndOfIndexEntries", "true"), ("core.splitIndex", "true")):  # fmt: skip
        sh(folder, "config", name, value)
    for hook in ("pre-commit", "post-index-change", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
        path = folder / ".git" / "hooks" / hook
        path.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
        path.chmod(0o755)
    (folder / "ok.txt").write_text("changed\n")
    (folder / "new.txt").write_text("new\n")
    (folder / "new.dat").write_text("new\n")
    (folder / "link.txt").symlink_to("/etc/passwd")
    before = sorted(path.name for path in (folder / ".git").iterdir())
    snapshot = await snap(folder, yes=True)
    assert not (tmp_path / "PWNED").exists()
    assert sorted(path.name for path in (folder / ".git").iterdir()) == before
    files = unpack(snapshot, tmp_path / "there")
    assert (files["ok.txt"], files["new.txt"], files["link.txt"]) == ("changed", "new", "/etc/passwd")


async def test_a_work_tree_that_points_elsewhere_is_refused(tmp_path: Path):
    elsewhere = tmp_path / "private"
    elsewhere.mkdir()
    (elsewhere / "diary").write_text("x")
    folder = make(tmp_path / "r", {"a": "1\n"})
    sh(folder, "config", "core.worktree", str(elsewhere))
    with pytest.raises(Refused) as refused:
        await find_repository(own_git(tmp_path), folder)
    assert refused.value.reason in ("work_tree", "bare")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give files away")
async def test_somebody_elses_repository_is_not_called_none(tmp_path: Path):
    """O-X21: ownership is said, the way out too, and no configuration is written."""
    folder = make(tmp_path / "r", {"a": "1\n"})
    await trio.run_process(["chown", "-R", "nobody", str(folder)])
    with pytest.raises(Refused, match="belongs to nobody and hivemesh runs as root") as refused:
        await find_repository(own_git(tmp_path), folder)
    assert refused.value.reason == "ownership"
    assert "safe.directory" in refused.value.hint
    assert not (tmp_path / ".gitconfig").exists()


async def test_outside_of_any_repository(tmp_path: Path):
    assert await find_repository(own_git(tmp_path), tmp_path) is None
    with pytest.raises(Refused) as refused:
        await find_repository(own_git(tmp_path), tmp_path / "nowhere")
    assert refused.value.reason == "no_folder"
    sh(tmp_path, "init", "-q", "--bare", "b.git")
    with pytest.raises(Refused) as refused:
        await find_repository(own_git(tmp_path), tmp_path / "b.git")
    assert refused.value.reason == "bare"


async def test_many_untracked_files_and_secrets_want_a_yes(tmp_path: Path):
    folder = make(tmp_path / "r", {"a": "1\n"})
    (folder / ".env").write_text("TOKEN=canary\n")
    with pytest.raises(Refused, match=r"\.env") as refused:
        await snap(folder)
    assert refused.value.reason == "untracked"
    assert ".env" in unpack(await snap(folder, yes=True), tmp_path / "there")
    (folder / ".env").unlink()
    for n in range(51):
        (folder / f"f{n}").write_text("x")
    with pytest.raises(Refused, match="51 untracked files"):
        await snap(folder)
    assert not (tmp_path / "out-r" / "pack").exists()
    assert not list((tmp_path / "out-r").iterdir())


async def test_a_users_own_global_ignore_rules_count(tmp_path: Path):
    folder = make(tmp_path / "r", {"a": "1\n"})
    (tmp_path / "ignore").write_text("*.private\n")
    (tmp_path / ".gitconfig").write_text(f"[core]\n\texcludesFile = {tmp_path}/ignore\n")
    (folder / "x.private").write_text("x")
    assert (await snap(folder)).untracked == ()


async def test_a_merge_in_the_middle_is_sent_as_it_lies_there(tmp_path: Path):
    folder = make(tmp_path / "r", {"a": "1\n"})
    sh(folder, "checkout", "-qb", "other")
    (folder / "a").write_text("2\n")
    sh(folder, "commit", "-qam", "two")
    sh(folder, "checkout", "-q", "main")
    (folder / "a").write_text("3\n")
    sh(folder, "commit", "-qam", "three")
    await trio.run_process(["git", "merge", "other"], cwd=folder, env=ENV, capture_stdout=True, capture_stderr=True, check=False)
    assert "<<<<<<<" in unpack(await snap(folder), tmp_path / "there")["a"]


async def test_a_missing_object_is_said(tmp_path: Path):
    folder = make(tmp_path / "r", {"a": "1\n", "b": "2\n"})
    blob = sh(folder, "rev-parse", "HEAD:b")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(Refused) as refused:
        await snap(folder)
    assert refused.value.reason in ("incomplete", "git")


async def test_names_of_project_and_repository(tmp_path: Path):
    folder = make(tmp_path / "My Shop", {"a": "1\n"})
    (folder / "sub").mkdir()
    found = await find(folder / "sub")
    assert found.project == "my-shop"
    assert found.top == folder
    sh(tmp_path, "clone", "-q", str(folder), "other")
    assert (await find(tmp_path / "other")).repository_id == found.repository_id is not None
    sh(folder, "config", "hivemesh.project", "shop")
    assert (await find(folder)).project == "shop"
    sh(folder, "worktree", "add", "-q", str(tmp_path / "wt"))
    (tmp_path / "wt" / "a").write_text("in the worktree\n")
    assert (await find(tmp_path / "wt")).project == "shop"
    assert unpack(await snap(tmp_path / "wt"), tmp_path / "there") == {"a": "in the worktree"}


async def test_sha256_repositories_travel(tmp_path: Path):
    folder = tmp_path / "r"
    folder.mkdir()
    sh(folder, "init", "-q", "--object-format=sha256")
    (folder / "a").write_text("1\n")
    snapshot = await snap(folder)
    assert len(snapshot.commit) == 64


def test_the_suite_uses_a_real_git():
    assert json.dumps(sh(Path(sys.prefix), "--version")).startswith('"git version 2.')
