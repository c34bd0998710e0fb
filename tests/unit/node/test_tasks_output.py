"""Reading a log from any offset: whole, growing, cut and damaged ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.log import FRAME_BYTES_MAX, STDERR, STDOUT, LogWriter
from node.tasks.output import Frame, Gap, LogReader, Piece, log_end
from node.tasks.place import open_folder

BIG = 1 << 30


@pytest.fixture
def at(tmp_path: Path) -> Iterator[int]:
    fd = open_folder(tmp_path)
    yield fd
    os.close(fd)


def read_all(at: int, offset: int = 0, end: int | None = None) -> list[Piece]:
    reader = LogReader(at, offset)
    pieces: list[Piece] = []
    while more := (reader.read() if end is None else reader.read_to(end)):
        pieces += more
    reader.close()
    return pieces


def test_adjacent_frames_of_one_stream_are_joined(at: int):
    writer = LogWriter(at, BIG)
    for stream, data in ((1, b"ab"), (1, b"cd"), (2, b"e"), (1, b"f")):
        writer.append(stream, data)
    assert read_all(at) == [Frame(0, STDOUT, b"abcd"), Frame(4, STDERR, b"e"), Frame(5, STDOUT, b"f")]
    assert read_all(at, 3) == [Frame(3, STDOUT, b"d"), Frame(4, STDERR, b"e"), Frame(5, STDOUT, b"f")]
    assert read_all(at, 6) == []
    assert log_end(at) == 6


def test_a_log_that_does_not_exist_yet_is_empty_for_now(at: int):
    reader = LogReader(at)
    assert reader.read() == []
    assert log_end(at) == 0
    LogWriter(at, BIG).append(STDOUT, b"x")
    assert reader.read() == [Frame(0, STDOUT, b"x")]
    assert reader.read() == []


def test_a_torn_frame_is_not_there_yet(tmp_path: Path, at: int):
    path = tmp_path / "log" / ("0" * 16)
    path.parent.mkdir()
    path.write_bytes(b"\1\0\0\0\3ab")
    reader = LogReader(at)
    assert reader.read() == []
    path.write_bytes(b"\1\0\0\0\3abc")
    assert reader.read() == [Frame(0, STDOUT, b"abc")]


def test_a_hole_is_a_gap_with_its_bounds(at: int):
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"abc")
    writer.skip_to(10)
    writer.append(STDOUT, b"def")
    assert read_all(at) == [Frame(0, STDOUT, b"abc"), Gap(3, 10), Frame(10, STDOUT, b"def")]
    assert read_all(at, 5) == [Gap(5, 10), Frame(10, STDOUT, b"def")]
    assert read_all(at, end=20) == [Frame(0, STDOUT, b"abc"), Gap(3, 10), Frame(10, STDOUT, b"def"), Gap(13, 20)]


def test_a_segment_cut_under_a_reader_becomes_a_gap(at: int):
    writer = LogWriter(at, 17 * FRAME_BYTES_MAX)
    reader = LogReader(at)
    seen: list[Piece] = []
    for n in range(100):
        writer.append(STDOUT, bytes([n]) * 40_000)
        if n == 5:
            seen += reader.read()
    while more := reader.read():
        seen += more
    total = sum(len(p.data) if isinstance(p, Frame) else p.end - p.start for p in seen)
    assert total == writer.end == 100 * 40_000
    assert any(isinstance(piece, Gap) for piece in seen)
    ends = [p.offset + len(p.data) if isinstance(p, Frame) else p.end for p in seen]
    starts = [p.offset if isinstance(p, Frame) else p.start for p in seen]
    assert starts == [0, *ends[:-1]]


def test_a_damaged_segment_is_passed_over_as_a_gap(tmp_path: Path, at: int):
    writer = LogWriter(at, BIG)
    writer.append(STDOUT, b"abc")
    writer.skip_to(10)
    writer.append(STDOUT, b"def")
    (tmp_path / "log" / ("0" * 16)).write_bytes(b"\7garbage")
    (tmp_path / "log" / "0000000000000bad").mkdir()
    assert read_all(at)[:2] == [Gap(0, 10), Frame(10, STDOUT, b"def")]


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=40)), max_size=30),
    st.integers(0, 1200),
    st.lists(st.integers(0, 29), max_size=4),
)
def test_reading_from_any_offset_gives_exactly_the_rest(frames: list[tuple[int, bytes]], offset: int, pauses: list[int]):
    whole = b"".join(data for _, data in frames)
    with tempfile.TemporaryDirectory() as folder:
        at = open_folder(folder)
        writer = LogWriter(at, BIG)
        reader = LogReader(at, offset)
        pieces: list[Piece] = []
        for place, (stream, data) in enumerate(frames):
            writer.append(stream, data)
            if place in pauses:
                pieces += reader.read()
                writer.close()
        while more := reader.read():
            pieces += more
        reader.close()
        writer.close()
        assert all(isinstance(piece, Frame) for piece in pieces)
        assert b"".join(piece.data for piece in pieces if isinstance(piece, Frame)) == whole[offset:]
        by_stream = {1: b"", 2: b""}
        for piece in pieces:
            assert isinstance(piece, Frame)
            by_stream[piece.stream] += piece.data
        reached = 0
        expected = {1: b"", 2: b""}
        for stream, data in frames:
            expected[stream] += data[max(0, offset - reached) :]
            reached += len(data)
        assert by_stream == expected
        os.close(at)
