"""The worker's loop in the moments that are hard to hit from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh.base.errors import OurFault
from mesh.base.names import NodeId, TaskId
from node.messages import TaskSpec
from node.tasks import workshop as room
from node.tasks.delegation import CancelAsked, Judged
from node.tasks.policy import Allow
from node.tasks.ports import RunSettings
from node.tasks.runs import Runs
from node.tasks.task import WORKED, Key, Task
from node.tasks.tether import Exit, is_supervised, prepare_folder
from node.tasks.workshop import _exited
from tests.fakes.machines import Fleet

DEADLINE_S = 20


def offered(runs: Runs, number: int, *argv: bytes, tree: str | None = None) -> Task:
    key = Key(WORKED, NodeId(b"q" * 16), TaskId(bytes([number]) * 16), 1)
    return Task(key, runs._ground.me, TaskSpec(1, argv or (b"true",), "", None, tree, 60), 5 if tree else 0, "offered", number)


async def admit(runs: Runs, task: Task) -> Task:
    prepare_folder(runs._ground.folder_of(task.key))
    return await runs._workshop.admit(task, Judged(Allow(), b"", 0))


async def test_a_tree_that_cannot_be_laid_out_fails_the_task_and_frees_the_slot(tmp_path: Path):
    with trio.fail_after(DEADLINE_S):
        async with Fleet(tmp_path).machine("mini", settings=RunSettings(runs="mine", slots=1)).up() as works:
            bad = await admit(works, offered(works, 1, tree="ab" * 20))
            good = await admit(works, offered(works, 2))
            assert [bad.state, good.state] == ["starting", "accepted"]
            assert ((await works.wait_final(bad.key)).state, (await works.wait_final(good.key)).state) == ("failed", "done")


async def test_no_process_to_be_had_fails_that_task_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def fails(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        raise OurFault("no process could be made")

    with trio.fail_after(DEADLINE_S):
        async with Fleet(tmp_path).machine("mini").up() as works:
            with monkeypatch.context() as patch:
                patch.setattr(room, "launch", fails)
                over = await works.wait_final((await admit(works, offered(works, 1))).key)
                assert (over.state, over.reason, over.exit_code) == ("failed", "our_fault", None)
            assert (await works.wait_final((await admit(works, offered(works, 2))).key)).state == "done"


async def test_a_cancel_during_the_checkout_never_starts_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """O-X4 c: while git works, before there is a supervisor."""
    entered, go_on = trio.Event(), trio.Event()

    async def slow(*_: object) -> None:
        entered.set()
        await go_on.wait()

    monkeypatch.setattr(room, "lay_out", slow)
    with trio.fail_after(DEADLINE_S):
        async with Fleet(tmp_path).machine("mini").up() as works:
            task = await admit(works, offered(works, 1, b"touch", str(tmp_path / "ran").encode(), tree="ab" * 20))
            await entered.wait()
            await works._workshop.advance(task.key, CancelAsked())
            go_on.set()
            over = await works.wait_final(task.key)
            assert (over.state, over.exit_code) == ("cancelled", 130)
    assert not (tmp_path / "ran").exists()


async def test_a_crash_between_starting_and_the_supervisor_is_lost_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """O-X29: "starting" is on the disk, nothing runs, and nothing is started by the next run of the node."""
    machine = Fleet(tmp_path).machine("mini")

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    with trio.fail_after(DEADLINE_S):
        with monkeypatch.context() as patch:
            patch.setattr(room, "launch", never)
            async with machine.up() as works:
                task = await admit(works, offered(works, 1, b"touch", str(tmp_path / "ran").encode()))
                await trio.testing.wait_all_tasks_blocked()
        async with machine.up() as works:
            assert (await works.wait_final(task.key)).state == "lost"
    assert not (tmp_path / "ran").exists()


async def test_accepted_tasks_start_after_a_restart(tmp_path: Path):
    machine = Fleet(tmp_path).machine("mini", settings=RunSettings(runs="mine", slots=1))
    with trio.fail_after(DEADLINE_S):
        async with machine.up() as works:
            first = await admit(works, offered(works, 1, b"sleep", b"0.3"))
            second = await admit(works, offered(works, 2))
        async with machine.up() as works:
            assert (await works.wait_final(first.key)).state == "done"
            assert (await works.wait_final(second.key)).state == "done"
            with trio.fail_after(5):
                while is_supervised(works._ground.folder_of(second.key)):  # noqa: ASYNC110 - a file lock wakes nobody
                    await trio.sleep(0.005)


def test_what_else_happened_is_said():
    exit_ = Exit("exited", 0, 0, 1, 2, 9, 3, 4, 5, 6)
    note = _exited(exit_).note
    assert [word in note for word in ("5 processes it left", "6 processes could not", "3 bytes of output were lost", "4 bytes were cut")] == [True] * 4
    assert _exited(Exit("exited", 0, 0, 1, 2, 9, 0, 0, 0, 0)).note == ""
