"""Appending to a task's log: segments, limits, torn ends, full disks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.tasks.log import (
    FRAME_BYTES_MAX,
    SEGMENTS_MAX,
    STDERR,
    STDOUT,
    LogWriter,
    segment_starts,
    whole_frames,
)
from node.tasks.place import open_folder

BIG = 1 << 30
SMALL = 17 * FRAME_BYTES_MAX


@pytest.fixture
def at(tmp_path: Path) -> Iterator[int]:
    fd = open_folder(tmp_path)
    yield fd
    os.close(fd)


def starts_in(folder: Path) -> list[int]:
    if not folder.exists():
        return []
    fd = os.open(folder, os.O_RDONLY)
    try:
        return segment_starts(fd)
    finally:
        os.close(fd)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_nothing_printed_makes_no_file(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    writer.sync()
    writer.close()
    assert not (tmp_path / "log").exists()
    assert starts_in(tmp_path / "log") == []


def test_offsets_count_payload_of_both_streams(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"abc")
    writer.append(STDERR, b"de")
    writer.append(STDOUT, b"")
    assert writer.end == 5
    assert (tmp_path / "log" / ("0" * 16)).read_bytes() == b"\1\0\0\0\3abc\2\0\0\0\2de"


def test_a_torn_end_is_dropped_when_the_log_is_taken_up(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"whole")
    writer.close()
    with (tmp_path / "log" / ("0" * 16)).open("ab") as file:
        file.write(b"\1\0\0\0\5to")
    again = LogWriter(at, BIG)
    assert again.end == 5
    again.append(STDERR, b"next")
    assert (tmp_path / "log" / ("0" * 16)).read_bytes() == b"\1\0\0\0\5whole\2\0\0\0\4next"


def test_the_limit_keeps_head_and_tail_and_is_never_passed(tmp_path: Path, at: int):
    """O-X10: disk use stays under the limit at every moment, and what was cut is counted."""
    folder = tmp_path / "log"
    writer = LogWriter(at, SMALL)
    for n in range(200):
        writer.append(STDOUT, b"%06d" % n + b"x" * 20_000)
        assert size_of(folder) <= SMALL
    starts = starts_in(folder)
    assert starts[0] == 0
    assert writer.end == 200 * 20_006
    kept = sum(path.stat().st_size - 5 * path.read_bytes().count(b"\1\0\0") for path in folder.iterdir())
    assert writer.cut_bytes == writer.end - kept > 0
    assert (folder / f"{starts[0]:016x}").read_bytes()[5:11] == b"000000"
    assert b"000199" in (folder / f"{starts[-1]:016x}").read_bytes()


def test_there_is_one_hole_whatever_the_sizes(tmp_path: Path, at: int):
    folder = tmp_path / "log"
    writer = LogWriter(at, SMALL)
    for n in range(300):
        writer.append(STDOUT, b"x" * (40_000 if n % 3 else 500 + n))
        writer.close()
    starts = starts_in(folder)
    ends = [start + whole_frames((folder / f"{start:016x}").read_bytes())[1] for start in starts]
    assert sum(end != start for end, start in zip(ends, starts[1:], strict=False)) == 1
    assert ends[-1] == writer.end


def test_a_tiny_write_costs_its_head_too(tmp_path: Path, at: int):
    writer = LogWriter(at, SMALL)
    for _ in range(SMALL // 3):
        writer.append(STDOUT, b"x")
    assert size_of(tmp_path / "log") <= SMALL


def test_a_full_disk_leaves_a_gap_and_no_half_frame(tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch):
    """O-X13: the program goes on, the log says what it lost."""
    folder = tmp_path / "log"
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"before")
    real = os.write
    budget = [4]

    def scarce(fd: int, data: bytes) -> int:
        if not budget[0]:
            raise OSError(errno.ENOSPC, "full")
        written = real(fd, data[: budget[0]])
        budget[0] -= written
        return written

    monkeypatch.setattr(os, "write", scarce)
    writer.append(STDOUT, b"lost")
    writer.append(STDOUT, b"lost too")
    budget[0] = 1_000
    writer.append(STDERR, b"after")
    monkeypatch.undo()
    assert (writer.lost_bytes, writer.end) == (12, 23)
    assert starts_in(folder) == [0, 18]
    assert (folder / ("0" * 16)).read_bytes() == b"\1\0\0\0\6before"
    assert (folder / f"{18:016x}").read_bytes() == b"\2\0\0\0\5after"


def test_a_gap_begins_a_new_segment(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"abc")
    writer.skip_to(2)
    assert writer.end == 3
    writer.skip_to(100)
    writer.append(STDOUT, b"def")
    writer.sync()
    assert starts_in(tmp_path / "log") == [0, 100]
    assert writer.end == 103


def test_whole_frames_stop_at_the_first_unsound_one():
    frame = b"\1\0\0\0\2ab"
    assert whole_frames(frame * 2 + b"\1\0\0") == (14, 4)
    assert whole_frames(frame + b"\3\0\0\0\1a") == (7, 2)
    assert whole_frames(frame + b"\1\0\0\0\0") == (7, 2)
    assert whole_frames(frame + b"\1\xff\xff\xff\xff" + b"a" * 100) == (7, 2)


def test_a_crowd_of_holes_leaves_few_files_and_one_more_hole(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    for n in range(1_000):
        writer.append(STDOUT, b"x")
        writer.skip_to(2 * n + 2)
    starts = starts_in(tmp_path / "log")
    assert len(starts) == SEGMENTS_MAX
    assert starts[: SEGMENTS_MAX // 2] == list(range(0, SEGMENTS_MAX, 2)), "the head stays"
    assert starts[-1] == 1_998
    assert writer.end == 2_000


@pytest.mark.parametrize("attack", ["file", "fifo", "gone", "link"])
def test_a_log_that_is_taken_away_counts_as_lost_and_never_raises(tmp_path: Path, at: int, attack: str):
    writer = LogWriter(at, SMALL)
    writer.append(STDOUT, b"before")
    log, victim = tmp_path / "log", tmp_path / "victim"
    log.rename(tmp_path / "moved")
    victim.mkdir()
    if attack == "file":
        log.touch()
    elif attack == "fifo":
        os.mkfifo(log)
    elif attack == "link":
        log.symlink_to(victim)
    for path in (tmp_path / "moved").iterdir():
        path.unlink()
    (tmp_path / "moved").rmdir()
    for _ in range(3 * SMALL // 40_000):
        writer.append(STDOUT, b"x" * 40_000)
    writer.sync()
    writer.close()
    assert writer.lost_bytes > 0
    assert list(victim.iterdir()) == []
    if attack != "gone":
        with pytest.raises(OSError, match=r"Not a directory|symbolic"):
            LogWriter(at, SMALL)
    assert segment_starts(-1) == []


def test_a_file_that_stands_in_a_segments_place_is_not_written_into(tmp_path: Path, at: int):
    """It may be another name of any file of this user."""
    kept = tmp_path / "kept"
    kept.write_text("precious")
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"ab")
    writer.skip_to(10)
    os.link(kept, tmp_path / "log" / f"{10:016x}")
    writer.append(STDOUT, b"cd")
    writer.append(STDOUT, b"ef")
    assert kept.read_text() == "precious"
    assert (writer.lost_bytes, writer.end) == (2, 14)
