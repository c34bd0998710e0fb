import os
import subprocess

import pytest

from node.sessions.inventory import Place
from node.sessions.place import FILE_BYTES_MAX, read_place


def git(folder, *arguments):
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    subprocess.run(["git", *arguments], cwd=folder, check=True, env=environment, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "My Shop"
    (folder / "src/deep").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return folder


def test_the_main_work_trees_name_and_the_branch(repository):
    assert read_place(str(repository)) == Place("my-shop", "main")
    assert read_place(str(repository / "src/deep")) == Place("my-shop", "main")
    git(repository, "switch", "-q", "-c", "feature/x-1")
    assert read_place(str(repository)).branch == "feature/x-1"
    git(repository, "switch", "-q", "--detach")
    assert read_place(str(repository)).branch is None


def test_a_linked_work_tree_belongs_to_its_repository(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "elsewhere"))
    assert read_place(str(tmp_path / "elsewhere")) == Place("my-shop", "side")


def test_a_bare_repositorys_work_tree_is_named_by_it(repository, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(tmp_path / "shop.git"))
    git(tmp_path / "shop.git", "worktree", "add", "-q", str(tmp_path / "wt"), "main")
    assert read_place(str(tmp_path / "wt")) == Place("shop", "main")


def test_a_submodule_is_its_own_project(repository, tmp_path):
    other = tmp_path / "lib"
    other.mkdir()
    git(other, "init", "-q", "-b", "trunk")
    git(other, "commit", "-q", "--allow-empty", "-m", "x")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "vendor")
    assert read_place(str(repository / "vendor")) == Place("vendor", "trunk")


def test_the_name_in_the_configuration_wins(repository):
    git(repository, "config", "hivemesh.project", "the.shop")
    assert read_place(str(repository)).project == "the.shop"
    git(repository, "config", "hivemesh.project", ".Odd")
    assert read_place(str(repository)).project == "odd"
    (repository / ".git/config").write_text('[hivemesh "x"]\n project = no\n[other]\n project = no\n')
    assert read_place(str(repository)).project == "my-shop"


def test_without_a_repository_the_folder_names_it(tmp_path):
    (tmp_path / "Plain Folder").mkdir()
    assert read_place(str(tmp_path / "Plain Folder")) == Place("plain-folder", None)
    assert read_place(str(tmp_path / "gone")) == Place("gone", None)


@pytest.mark.parametrize("cwd", [None, "", "relative/x", "/a\0b", "/", "/" + "x/" * 3_000, "/\ud800"])
def test_any_text_has_a_place(cwd):
    assert read_place(cwd).project


def test_files_that_are_not_plain_do_not_hold_anything_up(tmp_path):
    for name, make in {
        "pipe": lambda path: os.mkfifo(path),
        "device": lambda path: os.symlink("/dev/zero", path),
        "huge": lambda path: path.write_text("gitdir: /nowhere" + "x" * FILE_BYTES_MAX * 3),
        "loop": lambda path: os.symlink(path, path),
        "binary": lambda path: path.write_bytes(b"gitdir: \xff\0\n"),
    }.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / ".git")
        assert read_place(str(tmp_path / name)).branch is None


def test_a_pipe_for_a_head_is_not_read(repository):
    (repository / ".git/HEAD").unlink()
    os.mkfifo(repository / ".git/HEAD")
    assert read_place(str(repository)) == Place("my-shop", None)


def test_git_is_never_run(repository, monkeypatch):
    """A repository can name programs that git would start."""
    git(repository, "config", "core.fsmonitor", str(repository / "evil"))
    (repository / "evil").write_text(f"#!/bin/sh\ntouch '{repository}/canary'\n")
    (repository / "evil").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_place(str(repository)).project == "my-shop"
    assert not (repository / "canary").exists()
