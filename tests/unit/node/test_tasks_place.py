"""Opening what a task may have replaced: no link, no waiting, nothing of another kind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.tasks.place import inode_of, open_fifo, open_file, open_folder, open_inner, read_file

ANY_OF_THEM = "No such|Not a directory|symbolic|not the kind|another folder|Is a dir|No such device"


def test_files_are_read_up_to_a_bound(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"x" * 100)
    at = open_folder(tmp_path)
    assert read_file(at, "f", 10) == b"x" * 10
    assert read_file(at, "nowhere", 10) == b""
    os.close(at)


def test_only_what_was_asked_for_is_opened(tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("file", "folder", "fifo"):
        (tmp_path / f"{name}-link").symlink_to(tmp_path / name)
    at = open_folder(tmp_path)
    for name in ("folder", "fifo", "file-link", "folder-link", "fifo-link", "nowhere"):
        with pytest.raises(OSError, match=ANY_OF_THEM):
            open_file(at, name)
        assert read_file(at, name, 10) == b""
    for name in ("file", "fifo", "file-link", "folder-link", "fifo-link", "nowhere"):
        with pytest.raises(OSError, match=ANY_OF_THEM):
            open_inner(at, name)
    for name in ("file", "folder", "file-link", "folder-link", "fifo-link", "nowhere"):
        with pytest.raises(OSError, match=ANY_OF_THEM):
            open_fifo(at, name, os.O_RDONLY)
    for fd in (open_file(at, "file"), open_inner(at, "folder"), open_fifo(at, "fifo", os.O_RDONLY), at):
        os.close(fd)


def test_a_folder_is_known_by_its_inode_and_its_parent_is_no_link(tmp_path: Path):
    (tmp_path / "a" / "task").mkdir(parents=True)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    inode = inode_of(tmp_path / "a" / "task")
    os.close(open_folder(tmp_path / "a" / "task", inode))
    with pytest.raises(OSError, match=ANY_OF_THEM):
        open_folder(tmp_path / "a" / "task", inode + 1)
    with pytest.raises(OSError, match=ANY_OF_THEM):
        open_folder(tmp_path / "b" / "task")
    assert inode_of(tmp_path / "b" / "task") == 0
