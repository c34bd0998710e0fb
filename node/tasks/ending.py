"""Ends what is left of a task whose supervisor is gone or no longer obeys.

Never by name: the processes of this user whose environment carries the task's mark (its supervisor's does), what
descends from them, and the main process by number and start time.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from node.tasks.processes import descendants, send_signal, start_time
from node.tasks.tether import MARK, read_birth

ENVIRON_BYTES_MAX = 1 << 20
ROUNDS_MAX = 20
ROUND_S = 0.02


def wake(task: str) -> None:
    """Let a supervisor go on that somebody stopped, with everything that carries its task's mark."""
    for pid in _marked(task):
        send_signal(pid, signal.SIGCONT)


def sweep(folder: Path, task: str, inode: int = 0, supervisor: int = 0) -> int:
    """Kill everything of a task, its supervisor last and only if it lives.

    Everything is stopped before anything is killed, and looked for again until nothing is found, so that nothing makes
    another meanwhile; after ROUNDS_MAX rounds what is left is left.

    Args:
        folder: The task's.
        task: The value of HIVEMESH_TASK in its environment.
        inode: The folder's, or 0.
        supervisor: Its supervisor, if that is a child of this process that nobody collected yet; else 0.

    Returns:
        How many processes were killed, the supervisor not counted.
    """
    killed: set[int] = set()
    born = _born(folder, inode)
    for _ in range(ROUNDS_MAX):
        found = _found(task, supervisor) | {pid for pid, started in born.items() if start_time(pid) == started}
        rest = found - {supervisor}
        if not rest:
            break
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in rest | (_found(task, supervisor) - {supervisor}):
                send_signal(pid, number)
                killed.add(pid)
        time.sleep(ROUND_S)
    if supervisor:
        send_signal(supervisor, signal.SIGKILL)
    return len(killed)


def _found(task: str, supervisor: int) -> set[int]:
    roots = _marked(task) | ({supervisor} if supervisor else set())
    return roots | {pid for root in roots for pid in descendants(root)}


def _born(folder: Path, inode: int) -> dict[int, int]:
    """Find the main process and what descends from it, if it still is that process, each with its start time."""
    pid, started = read_birth(folder, inode)
    if not started or start_time(pid) != started:
        return {}
    return {pid: started} | {below: start_time(below) for below in descendants(pid)}


def _marked(task: str) -> set[int]:
    """Find the living processes that carry a task's mark; never this one."""
    marker = f"{MARK}={task}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            with entry.open("rb") as file:
                if marker in file.read(ENVIRON_BYTES_MAX).split(b"\0"):
                    found.add(int(entry.parent.name))
        except OSError:
            continue
    return found - {os.getpid()}
