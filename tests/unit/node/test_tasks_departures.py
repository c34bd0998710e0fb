"""What an expelled machine has to do with tasks here ends, in both directions and after a restart."""

from __future__ import annotations

from pathlib import Path

import trio

from mesh.kinds import CERTIFICATE, EXPULSION
from node.tasks.departures import MEMBERSHIP_KINDS, is_out
from node.tasks.ports import RunSettings
from tests.fakes.machines import Fleet
from tests.fakes.overlays import until


def test_it_looks_when_membership_changes():
    assert set(MEMBERSHIP_KINDS) == {CERTIFICATE, EXPULSION}


async def test_what_an_expelled_machine_asked_for_ends_also_where_it_is_found_out_at_a_start(tmp_path: Path):
    """SECURITY 6: running ones and open questions of the expelled, and what was asked of it."""
    fleet = Fleet(tmp_path)
    asker, worker = fleet.machine("asker"), fleet.machine("worker", settings=RunSettings(runs="ask"))
    async with asker.up() as asked:
        async with worker.up() as works:
            await asked.start(worker.node, ["true"], tree=False)
            await until(works.inbox)
            assert not is_out(works._ground, asker.node)
        asker.state = "expelled"
        async with worker.up() as works:
            assert is_out(works._ground, asker.node)
            await until(lambda: not works.inbox())
            assert {task.state for task in works.tasks()} == {"cancelled"}


async def test_what_was_asked_of_an_expelled_machine_is_lost_or_was_never_sent(tmp_path: Path):
    fleet = Fleet(tmp_path)
    asker, worker = fleet.machine("asker"), fleet.machine("worker", settings=RunSettings(runs="ask"))
    async with asker.up() as asked:
        unsent = await asked.start(worker.node, ["true"], tree=False, detach=True)
        async with worker.up() as works:
            sent = await asked.start(worker.node, ["true"], tree=False)
            await until(lambda: len(works.inbox()) == 2)
    worker.state = "expelled"
    async with asker.up() as asked:
        with trio.fail_after(10):
            states = [await asked.wait_final(begun.task.key) for begun in (unsent, sent)]
        assert {(task.state, task.reason) for task in states} == {("lost", "expelled")}
