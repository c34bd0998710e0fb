"""Read what is new in one transcript: from where the last reading stopped, in blocks, in bounded memory.

A file is told from another under the same name by its inode and by hashes of its first bytes and of the last bytes
that were read; any difference, or a file shorter than what was read, starts it over. Everything here blocks and runs
in a worker thread.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from mesh.base.clock import parse_rfc3339_ms
from node.sessions import claude, codex
from node.sessions.fold import Fold, FoldState, Label, Redact
from node.sessions.formats import LINE_BYTES_MAX, BadLine, Row, Usage, salvage
from node.sessions.plain import open_plain
from node.sessions.store import Mark

BLOCK_BYTES = 1 << 20
HEAD_BYTES = 1_024
TAIL_BYTES = 64
LABELS_MAX = 1_000
"""Decisions taken from one reading of one file; the rest of its lines waits for the next reading."""

_STAMP = re.compile(rb'"timestamp" ?: ?"([^"]{10,40})"')
_PARSERS: dict[str, Callable[[bytes], Row | None]] = {
    "claude": claude.parse_line_untrusted,
    "codex": codex.parse_line_untrusted,
}


@dataclass(frozen=True, slots=True)
class Found:
    """One transcript on disk.

    Attributes:
        session: The session its place says it belongs to, or empty.
        helper: Whether its place says it is a helper's.
    """

    path: str
    agent: str
    session: str
    helper: bool
    device: int
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Read:
    """What one reading of one file found.

    Attributes:
        bytes_read: Bytes read from the disk for it.
        more: Whether the budget ended before the file.
    """

    mark: Mark
    fresh: bool
    usages: tuple[Usage, ...]
    labels: tuple[Label, ...]
    bytes_read: int
    lines: int
    more: bool


@dataclass(slots=True)
class _Progress:
    """The state of one reading."""

    fold: Fold
    parse: Callable[[bytes], Row | None]
    usages: dict[str, Usage] = field(default_factory=dict)
    labels: list[Label] = field(default_factory=list)
    lines: int = 0
    bad: int = 0
    oversized: int = 0
    last_ms: int = 0

    def take(self, line: bytes) -> None:
        """Take one whole line in; a bad one is counted, and a whole record behind a torn one is used."""
        if not line.strip():
            return
        self.lines += 1
        try:
            row = self.parse(line)
        except BadLine:
            self.bad += 1
            row = self._salvaged(line)
        if row is not None:
            self._apply(row)

    def _salvaged(self, line: bytes) -> Row | None:
        for part in salvage(line):
            try:
                row = self.parse(part)
            except BadLine:
                continue
            if row is not None and row.at_ms is not None:
                return row
        return None

    def _apply(self, row: Row) -> None:
        label = self.fold.apply(row)
        if label is not None:
            self.labels.append(label)
        if self.fold.counts(row) and row.usage is not None:
            known = self.usages.get(row.usage.message_id)
            if known is None or row.usage.output >= known.output:
                self.usages[row.usage.message_id] = row.usage

    def skip(self, ends: bytes) -> None:
        """Count a line that is too long; its time is taken where it stands near its ends."""
        self.oversized += 1
        self.lines += 1
        for stamp in _STAMP.findall(ends):
            self.last_ms = max(self.last_ms, parse_rfc3339_ms(stamp.decode(errors="replace")) or 0)


def read_new(found: Found, mark: Mark | None, budget_bytes: int, redact: Redact) -> Read | None:
    """Read the new lines of one transcript.

    Args:
        found: The file as it was last seen.
        mark: How far it was read, or None.
        budget_bytes: Stop after about so many bytes, at a line's end.
        redact: Takes secrets out of what is kept.

    Returns:
        What it says now, or None where it cannot be opened or is not a plain file.
    """
    handle = open_plain(found.path)
    if handle is None:
        return None
    with open(handle, "rb", buffering=0) as file:
        try:
            return _read(file, os.fstat(handle), found, mark, budget_bytes, redact)
        except OSError:
            return None


def _read(
    file: BinaryIO, status: os.stat_result, found: Found, mark: Mark | None, budget_bytes: int, redact: Redact
) -> Read:
    head = _at(file, 0, HEAD_BYTES)
    checked = len(head)
    fresh = mark is None or not _continues(file, status, mark, head)
    if not fresh and mark is not None:
        checked += min(mark.offset, TAIL_BYTES)
    start = _start(found, None if fresh else mark)
    progress = _Progress(Fold(found.agent, start.fold), _PARSERS[found.agent])
    offset, skipping, count, more = _read_lines(file, start.offset, start.skipping, progress, budget_bytes)
    fold = progress.fold
    moment_ms = max(start.last_ms, progress.last_ms, fold.last_ms or 0) or status.st_mtime_ns // 1_000_000
    session, helper = _whose(found, fold)
    tail_bytes = min(offset, TAIL_BYTES)
    mark = Mark(
        path=found.path,
        agent=found.agent,
        session=session,
        helper=helper,
        device=status.st_dev,
        inode=_inode(status),
        size=offset if more else status.st_size,
        mtime_ns=status.st_mtime_ns,
        offset=offset,
        skipping=skipping,
        head_bytes=len(head),
        head=_hash(head),
        tail=_hash(_at(file, offset - tail_bytes, tail_bytes)),
        bad=start.bad + progress.bad,
        oversized=start.oversized + progress.oversized,
        last_ms=moment_ms,
        fold=fold.freeze(redact),
    )
    usages = tuple(_modelled(usage, fold.model) for usage in progress.usages.values())
    return Read(mark, fresh, usages, tuple(progress.labels), count + checked + tail_bytes, progress.lines, more)


def _start(found: Found, mark: Mark | None) -> Mark:
    """Say where to go on: at the mark, or at the start of an unknown file."""
    if mark is not None:
        return mark
    return Mark(
        found.path, found.agent, "", False, 0, 0, 0, 0, 0, False, 0, b"", b"", 0, 0, 0, FoldState()
    )  # fmt: skip


def _continues(file: BinaryIO, status: os.stat_result, mark: Mark, head: bytes) -> bool:
    """Say whether the file still begins with what was read of it."""
    if status.st_size < mark.offset or len(head) < mark.head_bytes or _inode(status) != mark.inode:
        return False
    if _hash(head[: mark.head_bytes]) != mark.head:
        return False
    tail_bytes = min(mark.offset, TAIL_BYTES)
    return _hash(_at(file, mark.offset - tail_bytes, tail_bytes)) == mark.tail


def _read_lines(
    file: BinaryIO, start: int, skipping: bool, progress: _Progress, budget_bytes: int
) -> tuple[int, bool, int, bool]:
    """Read blocks and hand whole lines on; at least one line, whatever the budget.

    Returns:
        The offset behind the last line taken, whether it stands inside a line being skipped, the bytes read, and
        whether the file goes on.
    """
    file.seek(start)
    offset, count, rest, more = start, 0, b"", True
    while offset == start or (count < budget_bytes and len(progress.labels) < LABELS_MAX):
        block = file.read(BLOCK_BYTES)
        if not block:
            more = False
            break
        count += len(block)
        if skipping:
            end = block.find(b"\n")
            if end < 0:
                offset += len(block)
                continue
            progress.skip(block[max(0, end - 4096) : end])
            offset += end + 1
            block, skipping = block[end + 1 :], False
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            offset += len(line) + 1
            if len(line) > LINE_BYTES_MAX:
                progress.skip(line[:4096] + line[-4096:])
            else:
                progress.take(line)
        if len(rest) > LINE_BYTES_MAX:
            offset += len(rest)
            rest, skipping = b"", True
    if not skipping and _take_last(rest, progress):
        offset += len(rest)
    return offset, skipping, count, more


def _take_last(rest: bytes, progress: _Progress) -> bool:
    """Take a last line without its newline if it is whole; a part of a record never parses as one."""
    if not rest.rstrip().endswith(b"}"):
        return False
    bad = progress.bad
    progress.take(rest)
    if progress.bad == bad:
        return True
    progress.bad, progress.lines = bad, progress.lines - 1
    return False


def _whose(found: Found, fold: Fold) -> tuple[str, bool]:
    """Say which session a file belongs to: its place says it for most, its lines for the others."""
    session = fold.parent or found.session or fold.session
    return (session or "unknown")[:64], found.helper or fold.parent is not None


def _modelled(usage: Usage, model: str | None) -> Usage:
    """Name the model of a usage whose line does not (Codex names it once a turn)."""
    if usage.model:
        return usage
    return Usage(
        usage.message_id, model or "unknown", usage.input, usage.output, usage.cache_read, usage.write_5m, usage.write_1h
    )


def _at(file: BinaryIO, offset: int, count: int) -> bytes:
    return os.pread(file.fileno(), count, offset)


def _hash(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _inode(status: os.stat_result) -> int:
    return status.st_ino & (1 << 63) - 1
