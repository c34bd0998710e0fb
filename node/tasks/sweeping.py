"""Old tasks go: after ``tasks.keep_d`` their logs and records, and at the start whatever no record knows.

A folder whose lock a supervisor holds is never touched, whatever the ledger or the clock say.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import trio

from node.tasks.ground import Ground
from node.tasks.removal import remove_folder, remove_parts
from node.tasks.task import FOLDER_CHARS, REQUESTED, WORKED, folder_name
from node.tasks.tether import is_supervised

SWEEP_S = 3_600.0
DAY_MS = 86_400_000
BATCH = 100

_log = logging.getLogger(__name__)


async def run_sweeps(ground: Ground) -> None:
    """Sweep now and every hour.

    If cancelled: what was removed is removed; the next sweep does the rest.
    """
    while True:
        await sweep_old(ground)
        await trio.sleep(SWEEP_S)


async def sweep_old(ground: Ground) -> None:
    """Remove tasks that were over long ago: first the folder, then the record, so that none is forgotten half."""
    before_ms = ground.now_ms() - ground.settings.keep_d * DAY_MS
    old = [task for task in ground.ledger.old(before_ms) if not is_supervised(ground.folder_of(task.key), task.inode)]
    for at in range(0, len(old), BATCH):
        batch = old[at : at + BATCH]
        for task in batch:
            await remove_folder(ground.folder_of(task.key), task.inode)
        await ground.ledger.forget([task.key for task in batch])
    if old:
        _log.info("%d old tasks were removed", len(old))


async def sweep_strays(ground: Ground) -> None:
    """Remove folders of tasks that were never recorded, and what ended tasks worked with and a crash left.

    Only before anything is served: a task that is just arriving has a folder and no record.
    """
    live = {folder_name(task.key) for side in (REQUESTED, WORKED) for task in ground.ledger.live(side)}
    for name in _folder_names(ground.folder):
        folder = ground.folder / name
        if name in live or is_supervised(folder):
            continue
        if known := ground.ledger.find(name[:FOLDER_CHARS]):
            inode = next((task.inode for task in known if folder_name(task.key) == name), 0)
            await remove_parts(folder, ("tree", "repo", "home", "tmp", "pack"), inode)
        else:
            await remove_folder(folder)


def _folder_names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
