"""What removal takes away, and above all what it never does."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from node.tasks.place import inode_of
from node.tasks.removal import remove_folder, remove_parts


def fill(folder: Path, outside: Path) -> None:
    """Make a folder as unpleasant as a task can: deep beyond any path, closed, linked, piped."""
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d" * 100, dir_fd=at)
        below = os.open("d" * 100, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.symlink(outside, "link", dir_fd=at)
    os.close(at)
    (folder / "link").symlink_to(outside)
    (folder / "wide").mkdir()
    for number in range(50):
        (folder / "wide" / str(number) / "x").mkdir(parents=True)
    (folder / "closed").mkdir()
    (folder / "closed" / "f").write_text("x")
    (folder / "closed").chmod(0)
    os.mkfifo(folder / "fifo")


async def test_a_folder_goes_whatever_is_in_it(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    task = tmp_path / "task"
    task.mkdir()
    fill(task / "tree", outside)
    (task / "log").mkdir()
    await remove_parts(task, ("tree", "home"))
    assert [path.name for path in task.iterdir()] == ["log"]
    fill(task / "tree", outside)
    task.chmod(0)
    await remove_folder(task, inode_of(task))
    assert not task.exists()
    await remove_folder(task)
    assert (outside / "kept").read_text() == "x"


@pytest.mark.parametrize("place", ["folder", "part", "above"])
async def test_a_link_is_never_followed(tmp_path: Path, place: str):
    """`mv $d $d.moved; ln -s /victim $d`: the victim has the very names that are removed."""
    victim = tmp_path / "victim"
    (victim / "task" / "tree" / "precious").mkdir(parents=True)
    (victim / "tree" / "precious").mkdir(parents=True)
    tasks = tmp_path / "tasks"
    if place == "above":
        tasks.symlink_to(victim)
    else:
        tasks.mkdir()
        if place == "folder":
            (tasks / "task").symlink_to(victim)
        else:
            (tasks / "task").mkdir()
            (tasks / "task" / "tree").symlink_to(victim / "tree")
    await remove_parts(tasks / "task", ("tree",))
    assert (victim / "tree" / "precious").is_dir()
    await remove_folder(tasks / "task")
    assert (victim / "tree" / "precious").is_dir()
    assert (victim / "task" / "tree" / "precious").is_dir()


async def test_another_folder_under_the_name_is_left_alone_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    task, inode = tmp_path / "task", 0
    task.mkdir()
    inode = inode_of(task)
    task.rename(tmp_path / "moved")
    (task / "tree").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        await remove_parts(task, ("tree",), inode)
        await remove_folder(task, inode)
    assert (task / "tree").is_dir()
    assert str(task) in caplog.text
