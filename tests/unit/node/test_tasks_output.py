"""Reading a log from any offset: whole, growing, cut and damaged ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from node.tasks.log import FRAME_BYTES_MAX, STDERR, STDOUT, LogWriter, segment_starts
from node.tasks.output import Frame, Gap, LogReader, Piece, log_end

BIG = 1 << 30


def read_all(folder: Path, offset: int = 0, end: int | None = None) -> list[Piece]:
    reader = LogReader(str(folder), offset)
    pieces: list[Piece] = []
    while more := (reader.read() if end is None else reader.read_to(end)):
        pieces += more
    reader.close()
    return pieces


def test_adjacent_frames_of_one_stream_are_joined(tmp_path: Path):
    writer = LogWriter(str(tmp_path), BIG)
    for stream, data in ((1, b"ab"), (1, b"cd"), (2, b"e"), (1, b"f")):
        writer.append(stream, data)
    assert read_all(tmp_path) == [Frame(0, STDOUT, b"abcd"), Frame(4, STDERR, b"e"), Frame(5, STDOUT, b"f")]
    assert read_all(tmp_path, 3) == [Frame(3, STDOUT, b"d"), Frame(4, STDERR, b"e"), Frame(5, STDOUT, b"f")]
    assert read_all(tmp_path, 6) == []
    assert log_end(str(tmp_path)) == 6


def test_a_log_that_does_not_exist_yet_is_empty_for_now(tmp_path: Path):
    reader = LogReader(str(tmp_path / "log"))
    assert reader.read() == []
    assert log_end(str(tmp_path / "log")) == 0
    LogWriter(str(tmp_path / "log"), BIG).append(STDOUT, b"x")
    assert reader.read() == [Frame(0, STDOUT, b"x")]
    assert reader.read() == []


def test_a_torn_frame_is_not_there_yet(tmp_path: Path):
    path = tmp_path / ("0" * 16)
    path.write_bytes(b"\1\0\0\0\3ab")
    reader = LogReader(str(tmp_path))
    assert reader.read() == []
    path.write_bytes(b"\1\0\0\0\3abc")
    assert reader.read() == [Frame(0, STDOUT, b"abc")]


def test_a_hole_is_a_gap_with_its_bounds(tmp_path: Path):
    writer = LogWriter(str(tmp_path), BIG)
    writer.append(STDOUT, b"abc")
    writer.skip_to(10)
    writer.append(STDOUT, b"def")
    assert read_all(tmp_path) == [Frame(0, STDOUT, b"abc"), Gap(3, 10), Frame(10, STDOUT, b"def")]
    assert read_all(tmp_path, 5) == [Gap(5, 10), Frame(10, STDOUT, b"def")]
    assert read_all(tmp_path, end=20) == [Frame(0, STDOUT, b"abc"), Gap(3, 10), Frame(10, STDOUT, b"def"), Gap(13, 20)]


def test_a_segment_cut_under_a_reader_becomes_a_gap(tmp_path: Path):
    writer = LogWriter(str(tmp_path), 17 * FRAME_BYTES_MAX)
    reader = LogReader(str(tmp_path))
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


def test_a_damaged_segment_is_passed_over_as_a_gap(tmp_path: Path):
    writer = LogWriter(str(tmp_path), BIG)
    writer.append(STDOUT, b"abc")
    writer.skip_to(10)
    writer.append(STDOUT, b"def")
    (tmp_path / ("0" * 16)).write_bytes(b"\7garbage")
    (tmp_path / "0000000000000bad").mkdir()
    assert read_all(tmp_path)[:2] == [Gap(0, 10), Frame(10, STDOUT, b"def")]


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(min_size=1, max_size=40)), max_size=30),
    st.integers(0, 1200),
    st.lists(st.integers(0, 29), max_size=4),
)
def test_reading_from_any_offset_gives_exactly_the_rest(frames: list[tuple[int, bytes]], offset: int, pauses: list[int]):
    whole = b"".join(data for _, data in frames)
    with tempfile.TemporaryDirectory() as folder:
        writer = LogWriter(folder, BIG)
        reader = LogReader(folder, offset)
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
        at = 0
        expected = {1: b"", 2: b""}
        for stream, data in frames:
            expected[stream] += data[max(0, offset - at) :]
            at += len(data)
        assert by_stream == expected
        assert segment_starts(folder) == sorted(segment_starts(folder))
