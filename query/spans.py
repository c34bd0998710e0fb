"""A span: one contiguous piece of a file that may be quoted, and the arithmetic of ranges that keeps it verbatim.

Everything is measured in bytes of the committed blob, so a citation can be checked by anyone with a clone: the bytes
``[start, end)`` of the blob are the text, and their SHA-256 is in the citation.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

SPAN_BYTES_MAX = 2_400
"""No span is longer; a longer piece is cut at line ends."""
SPAN_BYTES_GOAL = 1_200
"""Paragraphs are gathered until a span has about this many bytes."""
FILE_SPANS_MAX = 2_000
"""Spans of one file; the rest of the file is left out and counted."""
TRAIL_MAX = 6
"""Headings above a span that are kept."""
HEADING_CHARS_MAX = 200

Range = tuple[int, int]
"""Start and end in bytes, the end excluded."""

_COMMENT_OPEN = re.compile(rb"<!--")
_DATA_ADDRESS = re.compile(rb"data:[a-z0-9.+/-]{1,64}(?:;[a-z0-9=-]{1,32}){0,3};base64,[A-Za-z0-9+/=_-]+", re.IGNORECASE)
_WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]{2}")


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of a file.

    Attributes:
        kind: ``section``, ``docstring`` or ``signature``.
        heading: The nearest heading, or the symbol's qualified name.
        trail: The headings above it, outermost first, at most TRAIL_MAX.
        start: First byte.
        end: Byte behind the last one.
    """

    kind: str
    heading: str
    trail: tuple[str, ...]
    start: int
    end: int


class LineTable:
    """Where the lines of a blob begin; lines end at a line feed, as in every citation."""

    def __init__(self, data: bytes) -> None:
        self._ends = [found.end() for found in re.finditer(rb"\n", data)]

    def lines(self, start: int, end: int) -> tuple[int, int]:
        """Number the lines a range touches, counting from 1, both included.

        Args:
            start: First byte.
            end: Byte behind the last one; greater than ``start``.
        """
        return bisect.bisect_right(self._ends, start) + 1, bisect.bisect_right(self._ends, end - 1) + 1


def hidden_ranges(data: bytes) -> list[Range]:
    """Find what no quotation may hold: HTML comments and embedded ``data:`` addresses.

    Args:
        data: A whole file.

    Returns:
        Ranges in order; an unclosed comment reaches to the end of the file.
    """
    found: list[Range] = []
    at = 0
    while opening := _COMMENT_OPEN.search(data, at):
        close = data.find(b"-->", opening.end())
        at = len(data) if close < 0 else close + 3
        found.append((opening.start(), at))
    found.extend(match.span() for match in _DATA_ADDRESS.finditer(data))
    return sorted(found)


def trimmed(data: bytes, start: int, end: int) -> Range | None:
    """Cut blank space off both ends of a range; None if no word is left.

    Indentation of the first kept line stays out, so the range begins and ends at a visible character.
    """
    piece = data[start:end]
    if not _WORD.search(piece):
        return None
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))


def without(data: bytes, spans: Iterable[Span], hidden: Sequence[Range]) -> Iterator[Span]:
    """Cut spans around hidden ranges, keeping every remaining piece that has a word.

    Args:
        data: The file they lie in.
        spans: In any order.
        hidden: Sorted ranges; they may overlap each other.
    """
    for span in spans:
        at = span.start
        pieces: list[Range] = []
        for low, high in hidden:
            if high <= at or low >= span.end:
                continue
            if low > at:
                pieces.append((at, low))
            at = max(at, high)
        if at < span.end:
            pieces.append((at, span.end))
        for piece in pieces:
            kept = trimmed(data, *piece)
            if kept:
                yield replace(span, start=kept[0], end=kept[1])


def cut(data: bytes, start: int, end: int) -> Iterator[Range]:
    """Cut a range into pieces of at most SPAN_BYTES_MAX, at line ends where there are any.

    Args:
        data: The file.
        start: First byte.
        end: Byte behind the last one.

    Yields:
        Ranges in order that have a word; never in the middle of a UTF-8 character.
    """
    while end - start > SPAN_BYTES_MAX:
        edge = data.rfind(b"\n", start, start + SPAN_BYTES_MAX) + 1
        if edge <= start:
            edge = start + SPAN_BYTES_MAX
            while edge > start + 1 and data[edge] & 0xC0 == 0x80:
                edge -= 1
        kept = trimmed(data, start, edge)
        if kept:
            yield kept
        start = edge
    kept = trimmed(data, start, end)
    if kept:
        yield kept


def gather(data: bytes, blocks: Iterable[Range]) -> Iterator[Range]:
    """Join neighbouring blocks into ranges near SPAN_BYTES_GOAL, and cut blocks that are too long.

    Args:
        data: The file.
        blocks: Ranges in order that do not overlap; what lies between two of them belongs to the first.

    Yields:
        Ranges of at most SPAN_BYTES_MAX.
    """
    start = end = -1
    for low, high in blocks:
        if start >= 0 and (high - start > SPAN_BYTES_MAX or end - start >= SPAN_BYTES_GOAL):
            yield from cut(data, start, end)
            start = low
        elif start < 0:
            start = low
        end = high
    if start >= 0:
        yield from cut(data, start, end)


def heading_text(raw: str) -> str:
    """Make one line of a heading: white space folded, control characters gone, at most HEADING_CHARS_MAX."""
    clean = "".join(c if c.isprintable() else " " for c in raw[: 4 * HEADING_CHARS_MAX])
    return " ".join(clean.split())[:HEADING_CHARS_MAX]


class Outline:
    """The headings above the place a scanner has reached."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str) -> None:
        """Go under a heading; deeper and equal ones end.

        Args:
            level: 1 is the outermost.
            heading: As :func:`heading_text` made it.
        """
        self.leave(level)
        self._open.append((level, heading))

    def leave(self, level: int) -> None:
        """End the headings of this level and deeper ones."""
        while self._open and self._open[-1][0] >= level:
            self._open.pop()

    @property
    def heading(self) -> str:
        """The nearest heading, or empty."""
        return self._open[-1][1] if self._open else ""

    @property
    def trail(self) -> tuple[str, ...]:
        """The headings above the nearest one, the outermost first."""
        return tuple(heading for _, heading in self._open[:-1])[-TRAIL_MAX:]
