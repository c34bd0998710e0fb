import itertools

from hypothesis import given
from hypothesis import strategies as st

from query.spans import (
    SPAN_BYTES_MAX,
    LineTable,
    Outline,
    Span,
    cut,
    gather,
    heading_text,
    hidden_ranges,
    trimmed,
    without,
)

TEXTS = st.text(alphabet="ab é\n<!->:;,", max_size=400)


def test_lines_are_counted_as_an_editor_does():
    data = b"one\ntwo\nthree"
    table = LineTable(data)
    assert table.lines(0, 3) == (1, 1)
    assert table.lines(0, 4) == (1, 1)
    assert table.lines(4, 9) == (2, 3)
    assert table.lines(8, 13) == (3, 3)


def test_comments_and_embedded_addresses_are_hidden():
    data = b"a <!-- b --> c <!-- open to the end"
    assert [data[low:high] for low, high in hidden_ranges(data)] == [b"<!-- b -->", b"<!-- open to the end"]
    image = b"x ![p](data:image/png;base64,QUJD) y"
    assert [image[low:high] for low, high in hidden_ranges(image)] == [b"data:image/png;base64,QUJD"]


@given(TEXTS)
def test_cutting_around_leaves_out_exactly_what_is_hidden(text):
    data = text.encode()
    hidden = hidden_ranges(data)
    gone = {at for low, high in hidden for at in range(low, high)}
    pieces = list(without(data, [Span("section", "", (), 0, len(data))], hidden))
    covered = [at for piece in pieces for at in range(piece.start, piece.end)]
    assert not gone & set(covered)
    assert len(covered) == len(set(covered))
    for piece in pieces:
        data[piece.start : piece.end].decode()


@given(st.text(alphabet="wör\n ", min_size=1, max_size=9000))
def test_cut_pieces_are_in_order_bounded_and_whole_characters(text):
    data = text.encode()
    at = 0
    for start, end in cut(data, 0, len(data)):
        assert at <= start < end <= len(data)
        assert end - start <= SPAN_BYTES_MAX
        assert data[start:end].decode().strip() == data[start:end].decode()
        at = end


@given(st.lists(st.integers(1, 3000), max_size=12))
def test_gathered_blocks_cover_every_word_once(sizes):
    data = b"".join(b"w" * (size - 1) + b"\n" for size in sizes)
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    found = list(gather(data, itertools.pairwise(edges)))
    covered = [at for start, end in found for at in range(start, end)]
    assert len(covered) == len(set(covered))
    assert all(end - start <= SPAN_BYTES_MAX for start, end in found)
    words = sum(size - 1 for size in sizes if size > 2)
    assert sum(data[at : at + 1] == b"w" for at in covered) >= words - len(found) - len(sizes)


def test_a_range_without_a_word_is_no_span():
    assert trimmed(b"  -- ", 0, 5) is None
    assert trimmed(b"  ab ", 0, 5) == (2, 4)


def test_headings_nest_and_end():
    outline = Outline()
    outline.enter(1, "a")
    outline.enter(3, "b")
    outline.enter(2, "c")
    assert (outline.trail, outline.heading) == (("a",), "c")
    outline.leave(1)
    assert (outline.trail, outline.heading) == ((), "")


def test_a_heading_is_one_bounded_line():
    assert heading_text("a\x1b[31m\n b") == "a [31m b"
    assert len(heading_text("x" * 5000)) == 200


def test_a_long_line_is_cut_between_characters():
    data = "wö".encode() * 2000
    pieces = [data[start:end].decode() for start, end in cut(data, 0, len(data))]
    assert "".join(pieces) == data.decode()
    assert len(pieces) == 3
