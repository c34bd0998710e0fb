"""The log of a task: what it printed, as bytes, in arrival order, in a folder of segments.

A segment is named by the payload offset it starts at (``%016x``), and holds frames: ``[stream 1][length 4][payload]``.
An offset counts payload bytes of both streams. Whatever a segment's name leaves out before it is a gap: cut because
the log was at its limit, or lost because the disk was full. The requester keeps what it followed in the same form.

The supervisor imports this room while a person waits for their command to start, so it imports ``os`` and nothing
else; reading is in ``output``.
"""

from __future__ import annotations

import os

STDOUT = 1
STDERR = 2
HEAD_BYTES = 5
PAYLOAD_BYTES_MAX = 48 * 1024
FRAME_BYTES_MAX = HEAD_BYTES + PAYLOAD_BYTES_MAX
SEGMENT_BYTES_MAX = 8 << 20
SEGMENTS_OF_LIMIT = 16
NAME_CHARS = 16


def segment_starts(folder: str) -> list[int]:
    """List the offsets at which a log's segments start, in order; empty where there is no log yet."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name, 16) for name in names if _is_segment(name))


def _is_segment(name: str) -> bool:
    return len(name) == NAME_CHARS and all(c in "0123456789abcdef" for c in name)


def segment_path(folder: str, start: int) -> str:
    """Name the file of the segment that starts at an offset."""
    return f"{folder}/{start:0{NAME_CHARS}x}"


def whole_frames(data: bytes) -> tuple[int, int]:
    """Measure the whole frames at the start of some bytes.

    Args:
        data: Content of a segment, perhaps torn at its end.

    Returns:
        How many bytes the whole frames take, and how much payload they hold.
    """
    at = payload = 0
    while at + HEAD_BYTES <= len(data):
        size = int.from_bytes(data[at + 1 : at + HEAD_BYTES], "big")
        if data[at] not in (STDOUT, STDERR) or not 0 < size <= PAYLOAD_BYTES_MAX or at + HEAD_BYTES + size > len(data):
            break
        at += HEAD_BYTES + size
        payload += size
    return at, payload


class LogWriter:
    """Appends to a log, keeping its head and its tail within a limit on disk.

    A full disk never raises here: what could not be written is counted and leaves a gap, because the program that
    prints must not hang on our log.

    Args:
        folder: Made on the first append; an existing log is continued behind its last whole frame.
        bytes_max: Of all segments together, frame heads included; at least 17 frames (about 820 KiB).
    """

    def __init__(self, folder: str, bytes_max: int) -> None:
        self.folder = folder
        self.end = 0
        self.lost_bytes = 0
        self.cut_bytes = 0
        self._bytes_max = bytes_max
        self._segment_bytes = max(FRAME_BYTES_MAX, min(SEGMENT_BYTES_MAX, bytes_max // SEGMENTS_OF_LIMIT))
        self._fd = -1
        self._segments: list[list[int]] = []
        self._head_count: int | None = None
        self._continue()

    def _continue(self) -> None:
        """Take up an existing log, dropping a frame that was torn by a crash."""
        starts = segment_starts(self.folder)
        for start in starts:
            self._segments.append([start, os.stat(segment_path(self.folder, start)).st_size])
        if not starts:
            return
        self._fd = os.open(segment_path(self.folder, starts[-1]), os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        content = os.pread(self._fd, self._segments[-1][1], 0)
        kept, payload = whole_frames(content)
        os.ftruncate(self._fd, kept)
        self._segments[-1][1] = kept
        self.end = starts[-1] + payload

    def append(self, stream: int, payload: bytes) -> None:
        """Append what a stream delivered.

        Args:
            stream: 1 or 2.
            payload: Any number of bytes; more than 48 KiB become several frames.
        """
        for at in range(0, len(payload), PAYLOAD_BYTES_MAX):
            self._append_frame(stream, payload[at : at + PAYLOAD_BYTES_MAX])

    def _append_frame(self, stream: int, payload: bytes) -> None:
        frame = bytes((stream,)) + len(payload).to_bytes(4, "big") + payload
        try:
            self._roll_for(len(frame))
            self._write_whole(frame)
        except OSError:
            self.lost_bytes += len(payload)
            self._leave()
            self._drop_empty()
        self.end += len(payload)

    def _write_whole(self, frame: bytes) -> None:
        """Write a frame, or nothing of it."""
        kept = self._segments[-1][1]
        try:
            written = os.write(self._fd, frame)
            while written < len(frame):
                written += os.write(self._fd, frame[written:])
        except OSError:
            os.ftruncate(self._fd, kept)
            raise
        self._segments[-1][1] = kept + len(frame)

    def _roll_for(self, frame_bytes: int) -> None:
        """Begin a new segment where the present one is full or absent."""
        if self._fd >= 0 and self._segments[-1][1] + frame_bytes <= self._segment_bytes:
            return
        self._leave()
        self._make_room()
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(segment_path(self.folder, self.end), flags, 0o600)
        self._segments.append([self.end, 0])

    def _leave(self) -> None:
        """Close the present segment; the next frame begins a new one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _drop_empty(self) -> None:
        """Remove a segment that a full disk left without a frame, so that a flood leaves no crowd of them."""
        if self._segments and self._segments[-1][1] == 0:
            start, _ = self._segments.pop()
            os.unlink(segment_path(self.folder, start))

    def _make_room(self) -> None:
        """Delete middle segments, oldest first, until one more fits."""
        while sum(size for _, size in self._segments) + self._segment_bytes > self._bytes_max:
            place = self._first_behind_head()
            if place is None:
                return
            start, _ = self._segments.pop(place)
            following = self._segments[place][0] if place < len(self._segments) else self.end
            os.unlink(segment_path(self.folder, start))
            self.cut_bytes += following - start

    def _first_behind_head(self) -> int | None:
        """Find the first segment that is not part of the head half.

        What the head is, is settled at the first cut and kept: else a short segment could join it behind the hole.
        """
        if self._head_count is None:
            total = 0
            for place, (_, size) in enumerate(self._segments):
                total += size
                if total > self._bytes_max // 2:
                    self._head_count = place
                    break
        if self._head_count is None or self._head_count >= len(self._segments):
            return None
        return self._head_count

    def skip_to(self, offset: int) -> None:
        """Leave a gap up to an offset; one at or before the end changes nothing."""
        if offset > self.end:
            self._leave()
            self.end = offset

    def sync(self) -> None:
        """Wait until everything appended is on the disk."""
        if not self._segments:
            return
        for start, _ in self._segments:
            _sync_path(segment_path(self.folder, start))
        _sync_path(self.folder)

    def close(self) -> None:
        """Close the open segment; a second call does nothing."""
        self._leave()


def _sync_path(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
