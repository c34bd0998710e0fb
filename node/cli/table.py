"""Tables and ages for people to read; plain text, and colour only where a terminal wants it."""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Sequence
from itertools import zip_longest

from node.cli.console import Console, shown

GAP = "  "
COLOURS = {"needs_you": "1;31", "your_turn": "33", "working": "32", "limited": "35", "stuck": "31", "live": "32", "gone": "2", "failed": "31", "lost": "31"}
"""What a cell that holds exactly this word is painted with."""


def size(count: int | None) -> str:
    """Write a number of bytes or tokens shortly: ``812``, ``12k``, ``3.4M``; unknown is a dash."""
    if count is None:
        return "-"
    for length, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= length:
            value = count / length
            return f"{value:.1f}{unit}" if value < 10 else f"{value:.0f}{unit}"
    return str(count)


def width_of(text: str) -> int:
    """Count the columns a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def table_lines(heads: Sequence[str], rows: Sequence[Sequence[object]], *, columns: int | None = None, colour: bool = False) -> list[str]:
    """Lay out a table.

    Args:
        heads: The column heads.
        rows: A cell for each head; None is a dash.
        columns: The width of the terminal, to which the last column is cut; None cuts nothing.
        colour: Whether words with a meaning are painted.

    Returns:
        The lines, without trailing space.
    """
    texts = [[_cell(head, cell) for head, cell in zip(heads, row, strict=True)] for row in rows]
    widths = [max(width_of(row[at]) for row in [list(heads), *texts]) for at in range(len(heads))]
    return [_line(row, widths, columns, colour and at > 0) for at, row in enumerate([list(heads), *texts])]


def _line(row: Sequence[str], widths: Sequence[int], columns: int | None, colour: bool) -> str:
    cells: list[str] = []
    used = 0
    for at, text in enumerate(row):
        last = at == len(row) - 1
        if last and columns is not None:
            text = _cut(text, max(4, columns - used))
        pad = "" if last else " " * (widths[at] - width_of(text)) + GAP
        used += widths[at] + len(GAP)
        painted = f"\x1b[{COLOURS[text]}m{text}\x1b[0m" if colour and text in COLOURS else text
        cells.append(painted + pad)
    return "".join(cells).rstrip()


def _cut(text: str, columns: int) -> str:
    if width_of(text) <= columns:
        return text
    while text and width_of(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def print_table(
    console: Console, heads: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str, below: Sequence[Sequence[str]] = ()
) -> None:
    """Print a table, or on stderr what its absence means.

    Args:
        console: Where.
        heads: The column heads.
        rows: A cell for each head.
        empty: What to say where there are no rows.
        below: For each row the lines that stand under it, indented. With them nothing is cut, neither a row nor a line:
            it is for what a person must read whole.
    """
    if not rows:
        console.note(empty)
        return
    columns = shutil.get_terminal_size().columns if console.on_terminal and not below else None
    head, *lines = table_lines(heads, rows, columns=columns, colour=console.coloured)
    console.line(head)
    for line, more in zip_longest(lines, below, fillvalue=()):
        console.line(str(line))
        for one in more:
            console.line(f"    {shown(one)}")


def _cell(head: str, cell: object) -> str:
    """Write one cell; nothing known is a dash, except in a column without a head, which is only for remarks."""
    if cell is None or cell == "":
        return "-" if head else ""
    return shown(cell)
