"""What runs need from outside, and the settings they obey."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mesh.base.names import NodeId

DISK_FREE_BYTES_MIN = 200 * 1_000_000
"""With less free space than this no task is taken on; running ones go on."""


class Sealer(Protocol):
    """Seals bodies for the machines of this machine's owner."""

    def seal(self, plain: bytes) -> bytes:
        """Seal at most 2 KiB."""
        ...

    def unseal(self, body: bytes, author: NodeId) -> bytes | None:
        """Open a body sealed by one of the owner's machines; None where it is not one, or not for us."""
        ...


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of runs, as ``node.config`` states and bounds them.

    Attributes:
        runs: ``mine``, ``ask`` or ``off``: what happens when one of my own machines wants to run something here.
        slots: Tasks that run at once; the others wait.
        timeout_s: The longest a task may run here, and what a request without a time limit gets.
        output_bytes_max: Of one task's log on disk; more and the middle is cut.
        keep_d: Days a finished task's log is kept.
        sandbox: ``auto``, ``require`` or ``off``.
    """

    runs: str = "ask"
    slots: int = 2
    timeout_s: int = 14_400
    output_bytes_max: int = 256 << 20
    keep_d: int = 7
    sandbox: str = "auto"


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Spans of time that tests shorten; the product uses the defaults.

    Attributes:
        reach_s: A run that is watched gives up reaching its machine after this.
        detached_s: A detached run at most waits this long for its machine.
        term_s: Between asking a task's processes to end and killing them.
        grace_s: After the main process ended: for the rest of its output, and for what it left behind.
        retry_s: The longest pause between two tries to reach a machine.
        ask_s: A request nobody answered is refused after this.
        refresh_s: How often an open request is published again; a third of the record's life.
        git_s: The longest one git command may take.
        slack_s: What a supervisor may take beyond its own time before it is told again, and once more before it is ended.
    """

    reach_s: float = 10.0
    detached_s: float = 7 * 86_400.0
    term_s: float = 10.0
    grace_s: float = 2.0
    retry_s: float = 2.0
    ask_s: float = 24 * 3600.0
    refresh_s: float = 300.0
    git_s: float = 300.0
    slack_s: float = 60.0


def free_bytes(path: Path) -> int:
    """Ask how much the file system of a folder still takes, in bytes, for this user."""
    import shutil

    return shutil.disk_usage(path).free


FreeBytes = Callable[[Path], int]
"""Returns the free space of the file system a folder lies on."""
