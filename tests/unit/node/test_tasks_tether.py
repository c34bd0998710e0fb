"""Finding supervisors again: locks that cannot lie, exit files, re-attaching."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from mesh.base.errors import OurFault
from node.tasks.ending import sweep
from node.tasks.tether import (
    Work,
    has_birth,
    is_supervised,
    launch,
    prepare_folder,
    read_exit,
    reattach,
)

DEADLINE_S = 20


def work(folder: Path, script: str) -> Work:
    env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": folder.name}
    return Work((b"sh", b"-c", script.encode()), env, folder / "tree", 60, 0.3, 0.3, 1 << 24)


async def test_a_living_supervisor_is_found_again_and_obeys(tmp_path: Path):
    """O-X29: the second node of a home finds the first one's task by its lock."""
    folder = tmp_path / "t"
    prepare_folder(folder)
    assert not is_supervised(folder)
    assert reattach(folder) is None
    with trio.fail_after(DEADLINE_S):
        tether = await launch(folder, work(folder, "echo up; sleep 300"))
        assert is_supervised(folder), "from before the process could run"
        await tether.aclose()
        again = reattach(folder)
        assert again is not None
        while not has_birth(folder):  # noqa: ASYNC110 - a file wakes nobody
            await trio.sleep(0.01)
        again.cancel()
        while await again.wait_news() is not None:
            continue
        await again.aclose()
        await tether.reap()
    exit_ = read_exit(folder)
    assert exit_ is not None
    assert exit_.code == 130
    assert not is_supervised(folder)
    assert reattach(folder) is None


async def test_the_supervisor_outlives_who_started_it(tmp_path: Path):
    """A node that is killed takes no task with it."""
    folder = tmp_path / "t"
    prepare_folder(folder)
    code = f"""
import trio, os
from pathlib import Path
from node.tasks.tether import launch, Work
folder = Path({str(folder)!r})
async def main():
    await launch(folder, Work((b"sh", b"-c", b"sleep 0.3; echo done"), {{"PATH": os.environ["PATH"]}}, folder / "tree", 60, 1, 1, 1 << 24))
    os.kill(os.getpid(), 9)
trio.run(main)
"""
    import sys

    root = Path(__file__).parents[3]
    node = await trio.run_process([sys.executable, "-c", code], check=False, cwd=root)
    assert node.returncode == -9
    with trio.fail_after(DEADLINE_S):
        tether = reattach(folder)
        while tether is not None and await tether.wait_news() is not None:
            continue
        if tether is not None:
            await tether.aclose()
    exit_ = read_exit(folder)
    assert exit_ is not None
    assert (exit_.code, exit_.output_bytes) == (0, 5)


async def test_a_node_that_stops_while_it_launches_lets_the_order_through(tmp_path: Path):
    """The start is written down before; an order cut by an orderly stop would make the task lost."""
    folder = tmp_path / "t"
    prepare_folder(folder)
    with trio.fail_after(DEADLINE_S):
        with trio.CancelScope() as scope:
            scope.cancel()
            tether = await launch(folder, work(folder, "echo up; exit 4"))
        while await tether.wait_news() is not None:
            continue
        await tether.aclose()
        await tether.reap()
    exit_ = read_exit(folder)
    assert exit_ is not None
    assert (exit_.code, exit_.output_bytes) == (4, 3)


def test_a_folder_is_made_once(tmp_path: Path):
    prepare_folder(tmp_path / "t")
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o700
    with pytest.raises(OurFault):
        prepare_folder(tmp_path / "t")
    assert not is_supervised(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["", "outcome exited\n", "garbage", "outcome exited\nstatus x\n", "\0" * 10])
def test_an_exit_file_that_is_not_whole_is_none(tmp_path: Path, text: str):
    (tmp_path / "exit").write_text(text)
    assert read_exit(tmp_path) is None


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("name", ["exit", "birth", "lock", "news", "orders"])
@pytest.mark.parametrize("put", [_fifo, _link, Path.mkdir, Path.touch])
def test_whatever_stands_in_a_files_place_is_neither_waited_for_nor_believed(tmp_path: Path, name: str, put: Callable[[Path], None]):
    """A task runs in a folder below, so it may put anything there; a blocking open would stop the whole node."""
    folder = tmp_path / "t"
    prepare_folder(folder)
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    assert not is_supervised(folder)
    assert reattach(folder) is None
    assert read_exit(folder) is None
    assert not has_birth(folder)


def test_another_folder_in_its_place_is_not_it(tmp_path: Path):
    folder = tmp_path / "t"
    prepare_folder(folder)
    inode = folder.stat().st_ino
    (folder / "birth").write_text("1 2 3 4")
    assert has_birth(folder, inode)
    folder.rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "birth").write_text("1 2 3 4")
    folder.symlink_to(tmp_path / "other")
    assert not has_birth(folder)
    folder.unlink()
    (tmp_path / "other").rename(folder)
    assert has_birth(folder)
    assert not has_birth(folder, inode)


async def test_orders_go_into_a_pipe_and_nothing_else(tmp_path: Path):
    folder, kept = tmp_path / "t", tmp_path / "kept"
    prepare_folder(folder)
    kept.write_text("precious")
    with trio.fail_after(DEADLINE_S):
        tether = await launch(folder, work(folder, "sleep 300"))
        while b"s" not in (await tether.wait_news() or b"s"):
            continue
        (folder / "orders").unlink()
        os.link(kept, folder / "orders")
        tether.cancel()
        os.kill(tether.pid, 9)
        while await tether.wait_news() is not None:
            continue
        await tether.aclose()
        await tether.reap()
        assert sweep(folder, folder.name) >= 1
    assert kept.read_text() == "precious"


async def test_a_folder_that_was_used_or_changed_is_not_launched_in(tmp_path: Path):
    folder = tmp_path / "t"
    prepare_folder(folder)
    (folder / "trouble").symlink_to(tmp_path / "victim")
    with pytest.raises(OurFault):
        await launch(folder, work(folder, "true"))
    assert not (tmp_path / "victim").exists()
