"""Processes by number, parent and start time, as the kernel tells them; never by name.

The supervisor imports this room at its start, so it imports ``os`` and ``sys`` and nothing else.
"""

from __future__ import annotations

import os
import sys

LINUX = sys.platform == "linux"
STAT_BYTES_MAX = 1_024


def parents() -> dict[int, int]:
    """Read every process's parent from /proc; empty where there is none."""
    found: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            fields = stat_fields(int(name))
            if len(fields) > 1:
                found[int(name)] = int(fields[1])
    return found


def stat_fields(pid: int) -> list[bytes]:
    """Read the fields of a process's stat file from its state on (the parent is next, the start time the 20th)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return []
    try:
        return os.read(fd, STAT_BYTES_MAX).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(fd)


def start_time(pid: int) -> int:
    """Read when a process started, in ticks since boot; 0 where that cannot be known."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def descendants(root: int) -> list[int]:
    """List the living descendants of a process, zombies left out."""
    above = parents()
    found, below = [], {root}
    while below:
        below = {pid for pid, parent in above.items() if parent in below}
        found += [pid for pid in below if stat_fields(pid)[:1] != [b"Z"]]
    return found


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone or not ours."""
    try:
        os.kill(pid, number)
    except OSError:
        return
