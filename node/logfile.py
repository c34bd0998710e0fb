"""The log of the node: JSON lines in files that together never outgrow their cap, without floods and without secrets.

Rooms log through the standard library; this room decides what reaches the disk.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from mesh.base.clock import rfc3339
from mesh.base.errors import OurFault

BACKUPS = 3
"""Older files kept beside the current one; each may hold a quarter of the cap."""
LINE_BYTES_MAX = 16 * 1024
"""A longer line (a deep traceback) is cut; its head and its tail stay."""
BURST = 3
"""How often one message is written within a window before it is only counted."""
WINDOW_S = 60.0
KINDS_MAX = 256
"""How many different messages are counted at once; beyond it the one quiet for longest is settled early."""

_SECRETS = re.compile(r"\b(hm[a-z]_)[A-Za-z0-9_\-]{6,}|(?i:\b(bearer )\s*)[A-Za-z0-9._~+/\-]{8,}=*")


def without_secrets(text: str) -> str:
    """Replace whatever looks like a token, an invite or a bearer of ours: the last line of defence, not the first."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[2]}[removed]", text)


@dataclass(slots=True)
class _Seen:
    """How often one message came within the present window."""

    since_s: float
    written: int = 0
    held: int = 0


class Floods:
    """Decides which of many repeated messages are written; a pure rule fed with the time.

    A retry loop that fails every second for a week writes BURST lines a window and one line that says how many more
    there were.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int, str], _Seen] = OrderedDict()

    def admit(self, key: tuple[str, int, str], now_s: float) -> tuple[bool, list[tuple[tuple[str, int, str], int]]]:
        """Judge one message.

        Args:
            key: Its logger, level and template; arguments do not tell messages apart.
            now_s: A steady clock.

        Returns:
            Whether to write it, and what must be summed up first: messages with how often they were held back.
        """
        due: list[tuple[tuple[str, int, str], int]] = []
        seen = self._seen.get(key)
        if seen is None or now_s - seen.since_s >= WINDOW_S:
            if seen is not None and seen.held:
                due.append((key, seen.held))
            seen = self._seen[key] = _Seen(now_s)
        self._seen.move_to_end(key)
        while len(self._seen) > KINDS_MAX:
            gone, old = self._seen.popitem(last=False)
            if old.held:
                due.append((gone, old.held))
        if seen.written < BURST:
            seen.written += 1
            return True, due
        seen.held += 1
        return False, due

    def settle(self) -> list[tuple[tuple[str, int, str], int]]:
        """Take out everything that was held back, for the end of the log."""
        due = [(key, seen.held) for key, seen in self._seen.items() if seen.held]
        self._seen.clear()
        return due


class JsonLines(logging.Formatter):
    """Writes a record as one JSON line without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; a line over LINE_BYTES_MAX loses its middle."""
        line: dict[str, object] = {
            "at": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "room": record.name,
            "text": _cut(without_secrets(record.getMessage())),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = _cut(without_secrets(self.formatException(record.exc_info)))
        return json.dumps(line)


def _cut(text: str) -> str:
    half = LINE_BYTES_MAX // 4
    return text if len(text) <= 2 * half else f"{text[:half]} [...] {text[-half:]}"


class LogFile(logging.handlers.RotatingFileHandler):
    """The file itself: 0600 from its start, turned over at a quarter of the cap, silent when the disk is full."""

    def __init__(self, path: Path, bytes_max: int, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._floods = Floods()
        self._steady_s = steady_s
        super().__init__(path, maxBytes=bytes_max // (BACKUPS + 1), backupCount=BACKUPS, encoding="utf-8")
        self.setFormatter(JsonLines())

    def _open(self) -> TextIOWrapper:
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record unless it floods; sums up what was held back before."""
        write, due = self._floods.admit((record.name, record.levelno, str(record.msg)[:200]), self._steady_s())
        for key, count in due:
            self._sum_up(key, count, record.created)
        if write:
            super().emit(record)

    def _sum_up(self, key: tuple[str, int, str], count: int, created: float) -> None:
        name, level, template = key
        record = logging.LogRecord(name, level, "", 0, "%d more like: %s", (count, template), None)
        record.created = created
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the record: a full disk must not stop the node, and there is nowhere to say so."""

    def close(self) -> None:
        """Sum up what was held back, and close."""
        for key, count in self._floods.settle():
            self._sum_up(key, count, time.time())
        super().close()


@contextmanager
def open_log(path: Path, level: str, bytes_max: int) -> Iterator[LogFile]:
    """Send everything this process logs to the log file, until left.

    Args:
        path: The file; its folder exists.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        bytes_max: The cap of all files together.

    Raises:
        OurFault: The file cannot be opened.
    """
    try:
        handler = LogFile(path, bytes_max)
    except OSError as error:
        raise OurFault(f"the log {path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from None
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()
