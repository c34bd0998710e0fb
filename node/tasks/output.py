"""Reading a task's log from any offset, while it grows or long after.

A reader never trusts the folder: a torn last frame is simply not there yet, and a hole between two segments is
reported as a gap, so that nobody takes cut output for whole output.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from node.tasks.log import (
    HEAD_BYTES,
    PAYLOAD_BYTES_MAX,
    SEGMENT_BYTES_MAX,
    STDERR,
    STDOUT,
    segment_name,
    segment_starts,
)
from node.tasks.place import open_file, open_inner

READ_BYTES = 256 * 1024
"""Read from disk in one go: several frames, and little enough to do on the event loop."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of output of one stream, at most 48 KiB."""

    offset: int
    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Output that is nowhere kept, from one offset up to another."""

    start: int
    end: int


Piece = Frame | Gap


class _Growing:
    """A frame that adjacent ones may still join; many programs write a byte at a time."""

    __slots__ = ("data", "offset", "stream")

    def __init__(self, offset: int, stream: int, data: bytearray) -> None:
        self.offset = offset
        self.stream = stream
        self.data = data


class LogReader:
    """Reads forward through a log.

    Args:
        at: The open folder that holds the log's folder, kept open by the caller, or -1 where there is none; the log need
            not exist yet.
        offset: Where to start, in payload bytes.
    """

    def __init__(self, at: int, offset: int = 0) -> None:
        self.offset = offset
        self._at = at
        self._fd = -1
        self._start = -1
        self._file_at = 0
        self._payload_at = 0

    def read(self) -> list[Piece]:
        """Read what is there, up to about 256 KiB.

        Returns:
            Pieces in order, adjacent frames of one stream joined; empty where the log ends for now.
        """
        pieces: list[_Growing | Gap] = []
        while not pieces:
            if self._fd < 0 and not self._enter(pieces):
                break
            if pieces or self._fd < 0 or self._read_segment(pieces):
                continue
            if not self._has_successor():
                break
            # The writer begins a segment only once the one before is whole: what is not there now never comes.
            if not self._read_segment(pieces):
                self.close()
        return [piece if isinstance(piece, Gap) else Frame(piece.offset, piece.stream, bytes(piece.data)) for piece in pieces]

    def read_to(self, end: int) -> list[Piece]:
        """Read on in a log that is complete and ends at an offset; what is missing at its end is a gap."""
        pieces = self.read()
        if not pieces and self.offset < end:
            pieces = [Gap(self.offset, end)]
            self.offset = end
        return pieces

    def close(self) -> None:
        """Close the open segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _enter(self, pieces: list[_Growing | Gap]) -> bool:
        """Open the segment that holds the offset, or the next one behind a gap."""
        folder = _open_log(self._at)
        if folder < 0:
            return False
        try:
            starts = segment_starts(folder)
            before = [start for start in starts if start <= self.offset and start > self._start]
            behind = [start for start in starts if start > self.offset]
            if before:
                return self._open(folder, before[-1])
            if not behind:
                return False
            pieces.append(Gap(self.offset, behind[0]))
            self.offset = behind[0]
            return self._open(folder, behind[0])
        finally:
            os.close(folder)

    def _open(self, folder: int, start: int) -> bool:
        try:
            self._fd = open_file(folder, segment_name(start))
        except OSError:
            return self._pass_over(start)
        self._start = self._payload_at = start
        self._file_at = 0
        return True

    def _pass_over(self, gone: int) -> bool:
        """Go on behind a segment that was cut between the look at the folder and the open, or cannot be read."""
        self._start = gone
        return True

    def _read_segment(self, pieces: list[_Growing | Gap]) -> bool:
        """Read whole frames of the open segment; whether there was one."""
        try:
            data = os.pread(self._fd, READ_BYTES, self._file_at)
        except OSError:
            return False
        at = 0
        while at + HEAD_BYTES <= len(data):
            stream, size = data[at], int.from_bytes(data[at + 1 : at + HEAD_BYTES], "big")
            if stream not in (STDOUT, STDERR) or not 0 < size <= PAYLOAD_BYTES_MAX or at + HEAD_BYTES + size > len(data):
                break
            self._take(stream, data[at + HEAD_BYTES : at + HEAD_BYTES + size], pieces)
            at += HEAD_BYTES + size
        self._file_at += at
        return at > 0

    def _take(self, stream: int, payload: bytes, pieces: list[_Growing | Gap]) -> None:
        """Add one frame's payload, without what lies before the offset asked for."""
        skip = max(0, self.offset - self._payload_at)
        self._payload_at += len(payload)
        data = payload[skip:]
        if not data:
            return
        last = pieces[-1] if pieces else None
        if isinstance(last, _Growing) and last.stream == stream and len(last.data) + len(data) <= PAYLOAD_BYTES_MAX:
            last.data += data
        else:
            pieces.append(_Growing(self.offset, stream, bytearray(data)))
        self.offset += len(data)

    def _has_successor(self) -> bool:
        return any(start > self._start for start in _starts(self._at))


def _open_log(at: int) -> int:
    """Open the folder of a log; -1 where there is none."""
    try:
        return open_inner(at, "log")
    except OSError:
        return -1


def _starts(at: int) -> list[int]:
    folder = _open_log(at)
    if folder < 0:
        return []
    try:
        return segment_starts(folder)
    finally:
        os.close(folder)


def log_end(at: int) -> int:
    """Find the offset behind a log's last whole frame; 0 without a log. Of a last segment that is too long a part counts.

    Args:
        at: The open folder that holds the log's folder, or -1 where there is none.
    """
    starts = _starts(at)
    if not starts:
        return 0
    reader = LogReader(at, starts[-1])
    try:
        for _ in range(2 * SEGMENT_BYTES_MAX // READ_BYTES):
            if not reader.read():
                break
    finally:
        reader.close()
    return reader.offset
