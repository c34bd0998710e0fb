"""What is removed, and above all what never."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import trio

from mesh.base.names import NodeId, TaskId
from node.messages import STATES, Hop, TaskSpec
from node.tasks.ports import RunSettings
from node.tasks.sweeping import DAY_MS, sweep_old, sweep_strays
from node.tasks.task import WORKED, Key, Task, folder_name
from node.tasks.tether import Work, launch, prepare_folder
from tests.fakes.machines import Fleet

SPEC = TaskSpec(1, (b"true",), "", None, None, 60)


def task(number: int, state: str, ended_ms: int | None) -> Task:
    key = Key(WORKED, NodeId(b"q" * 16), TaskId(number.to_bytes(2, "big") * 8), 1)
    return Task(key, NodeId(b"w" * 16), SPEC, 0, state, 1, ended_ms=ended_ms, hops=(Hop(STATES.index(state), 1),))


async def test_old_tasks_go_whole_and_young_and_living_ones_stay(tmp_path: Path):
    mini = Fleet(tmp_path).machine("mini", settings=RunSettings(runs="mine", keep_d=7))
    async with mini.up() as works:
        ground = works._ground
        now_ms = ground.now_ms()
        old, young, live = task(1, "done", now_ms - 8 * DAY_MS), task(2, "done", now_ms - 6 * DAY_MS), task(3, "asking", None)
        await ground.ledger.put(old, young, live)
        for each in (old, young, live):
            (ground.folder_of(each.key) / "log").mkdir(parents=True)
        await sweep_old(ground)
        assert [ground.ledger.get(each.key) is not None for each in (old, young, live)] == [False, True, True]
        assert [ground.folder_of(each.key).exists() for each in (old, young, live)] == [False, True, True]


async def test_a_folder_in_use_is_never_touched_whatever_the_ledger_says(tmp_path: Path):
    """O-X15: the lock a task's supervisor holds decides, not age and not records."""
    mini = Fleet(tmp_path).machine("mini", settings=RunSettings(runs="mine", keep_d=1))
    async with mini.up() as works:
        ground = works._ground
        known, unknown = task(1, "done", 1), task(2, "done", 1)
        await ground.ledger.put(known)
        tethers = []
        for each in (known, unknown):
            folder = ground.folder_of(each.key)
            prepare_folder(folder)
            env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": each.text_id}
            tethers.append(await launch(folder, Work((b"sleep", b"300"), env, folder / "tree", 60, 0.2, 0.2, 1 << 24)))
        for _ in range(3):
            await sweep_old(ground)
            await sweep_strays(ground)
        for each, tether in zip((known, unknown), tethers, strict=True):
            assert (ground.folder_of(each.key) / "tree").is_dir()
            with trio.fail_after(20):
                while b"s" not in (await tether.wait_news() or b"s"):
                    continue
                tether.cancel()
                while await tether.wait_news() is not None:
                    continue
                await tether.reap()
            await tether.aclose()
        await sweep_old(ground)
        await sweep_strays(ground)
        assert not list(ground.folder.iterdir())


async def test_strays_of_a_crash_are_removed_at_the_start(tmp_path: Path):
    mini = Fleet(tmp_path).machine("mini")
    over, live = task(1, "done", 1 << 45), task(2, "asking", None)
    async with mini.up() as works:
        await works._ground.ledger.put(over, dataclasses.replace(live, until_ms=1 << 46, request=b"r" * 16))
    folder = mini.folder / "tasks"
    for name in (folder_name(over.key), folder_name(live.key), "nobodys"):
        for part in ("tree", "repo", "home", "log"):
            (folder / name / part).mkdir(parents=True)
    (folder / "a-file").touch()
    async with mini.up():
        assert {path.name for path in (folder / folder_name(over.key)).iterdir()} == {"log"}
        assert {"tree", "repo", "home", "log"} <= {path.name for path in (folder / folder_name(live.key)).iterdir()}
        assert not (folder / "nobodys").exists()
        assert (folder / "a-file").exists()
