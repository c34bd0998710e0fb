"""The log of a task: what it printed, as bytes, in arrival order, in a folder of segments.

A segment is named by the payload offset it starts at (``%016x``), and holds frames: ``[stream 1][length 4][payload]``.
An offset counts payload bytes of both streams. Whatever a segment's name leaves out before it is a gap: cut because
the log was at its limit, or lost because the disk was full. The requester keeps what it followed in the same form.

A task reaches its own log and may replace any of it; so everything is opened as ``place`` opens it, and whatever is not
as it was left counts as lost.

The supervisor imports this room while a person waits for their command to start, so it imports as little as it can;
reading is in ``output``.
"""

from __future__ import annotations

import os

from node.tasks.place import open_file, open_inner

STDOUT = 1
STDERR = 2
HEAD_BYTES = 5
PAYLOAD_BYTES_MAX = 48 * 1024
FRAME_BYTES_MAX = HEAD_BYTES + PAYLOAD_BYTES_MAX
SEGMENT_BYTES_MAX = 8 << 20
SEGMENTS_OF_LIMIT = 16
SEGMENTS_MAX = 64
LISTED_MAX = 1_024
NAME_CHARS = 16


def segment_starts(at: int) -> list[int]:
    """List the offsets at which a log's segments start, in order, of the first LISTED_MAX names.

    Args:
        at: The log's open folder.
    """
    starts = []
    try:
        with os.scandir(at) as entries:
            for _, entry in zip(range(LISTED_MAX), entries, strict=False):
                if _is_segment(entry.name):
                    starts.append(int(entry.name, 16))
    except OSError:
        return []
    return sorted(starts)


def _is_segment(name: str) -> bool:
    return len(name) == NAME_CHARS and all(c in "0123456789abcdef" for c in name)


def segment_name(start: int) -> str:
    """Name the file of the segment that starts at an offset."""
    return f"{start:0{NAME_CHARS}x}"


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

    A full disk never raises here, and neither does a log that was tampered with: what could not be written is counted
    and leaves a gap, because the program that prints must not hang on our log.

    Args:
        at: The open folder that holds the log's folder, kept open by the caller; ``log`` is made in it on the first
            append, and an existing one is continued behind its last whole frame.
        bytes_max: Of all segments together, frame heads included; at least 17 frames (about 820 KiB).

    Raises:
        OSError: What stands there is no log.
    """

    def __init__(self, at: int, bytes_max: int) -> None:
        self.end = 0
        self.lost_bytes = 0
        self.cut_bytes = 0
        self._at = at
        self._folder = -1
        self._bytes_max = bytes_max
        self._segment_bytes = max(FRAME_BYTES_MAX, min(SEGMENT_BYTES_MAX, bytes_max // SEGMENTS_OF_LIMIT))
        self._fd = -1
        self._segments: list[list[int]] = []
        self._total_bytes = 0
        self._head_count: int | None = None
        self._continue()

    def _continue(self) -> None:
        """Take up an existing log, dropping a frame that was torn by a crash."""
        try:
            self._folder = open_inner(self._at, "log")
        except FileNotFoundError:
            return
        try:
            self._take_up(segment_starts(self._folder))
        except BaseException:
            self.close()
            raise

    def _take_up(self, starts: list[int]) -> None:
        if not starts:
            return
        for start in starts:
            size = os.stat(segment_name(start), dir_fd=self._folder, follow_symlinks=False).st_size
            self._segments.append([start, size])
            self._total_bytes += size
        self._fd = open_file(self._folder, segment_name(starts[-1]), os.O_RDWR | os.O_APPEND)
        content = os.pread(self._fd, SEGMENT_BYTES_MAX, 0)
        kept, payload = whole_frames(content)
        os.ftruncate(self._fd, kept)
        self._total_bytes += kept - self._segments[-1][1]
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
        self._total_bytes += len(frame)

    def _roll_for(self, frame_bytes: int) -> None:
        """Begin a new segment where the present one is full or absent."""
        if self._fd >= 0 and self._segments[-1][1] + frame_bytes <= self._segment_bytes:
            return
        self._leave()
        if self._folder < 0:
            self._make_folder()
        self._make_room()
        # Made anew always: a file that stands there already is a task's, and may be another name of any file.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._fd = open_file(self._folder, segment_name(self.end), flags)
        self._segments.append([self.end, 0])

    def _make_folder(self) -> None:
        try:
            self._folder = open_inner(self._at, "log")
        except FileNotFoundError:
            os.mkdir("log", 0o700, dir_fd=self._at)
            self._folder = open_inner(self._at, "log")

    def _leave(self) -> None:
        """Close the present segment; the next frame begins a new one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _drop_empty(self) -> None:
        """Remove a segment that a full disk left without a frame, so that a flood leaves no crowd of them."""
        if self._segments and self._segments[-1][1] == 0:
            start, _ = self._segments.pop()
            self._remove(start)

    def _remove(self, start: int) -> None:
        try:
            os.unlink(segment_name(start), dir_fd=self._folder)
        except OSError:
            return

    def _make_room(self) -> None:
        """Delete middle segments, oldest first, until one more fits, in bytes and in number."""
        while self._total_bytes + self._segment_bytes > self._bytes_max or len(self._segments) >= SEGMENTS_MAX:
            place = self._first_behind_head()
            if place is None:
                return
            start, size = self._segments.pop(place)
            following = self._segments[place][0] if place < len(self._segments) else self.end
            self._remove(start)
            self._total_bytes -= size
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
        if self._head_count is None and len(self._segments) >= SEGMENTS_MAX:
            self._head_count = SEGMENTS_MAX // 2
        if self._head_count is None or self._head_count >= len(self._segments):
            return None
        return self._head_count

    def skip_to(self, offset: int) -> None:
        """Leave a gap up to an offset; one at or before the end changes nothing."""
        if offset > self.end:
            self._leave()
            self.end = offset

    def sync(self) -> None:
        """Wait until everything appended is on the disk.

        Raises:
            OSError: It is not.
        """
        if not self._segments or self._folder < 0:
            return
        for start, _ in self._segments:
            try:
                fd = open_file(self._folder, segment_name(start))
            except OSError:
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self._folder)

    def close(self) -> None:
        """Let go of the log; a second call does nothing, and the next append takes it up again."""
        self._leave()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1
