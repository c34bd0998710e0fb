"""Tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.cli.table import size, table_lines, width_of


def test_columns_line_up_and_unknown_is_a_dash():
    assert table_lines(("A", "BB"), [("long", None), ("", "x")]) == ["A     BB", "long  -", "-     x"]


def test_wide_letters_take_two_columns():
    lines = table_lines(("A", "B"), [("한글", "x"), ("abcd", "y")])
    assert width_of(lines[1].split("x")[0]) == width_of(lines[2].split("y")[0]) == 6


def test_the_last_column_is_cut_to_the_terminal():
    assert table_lines(("A", "B"), [("a", "x" * 50)], columns=10)[1] == "a  " + "x" * 6 + "…"


def test_only_words_with_a_meaning_are_painted():
    lines = table_lines(("STATUS", "NAME"), [("needs_you", "working hard")], colour=True)
    assert lines[0] == "STATUS     NAME"
    assert lines[1] == "\x1b[1;31mneeds_you\x1b[0m  working hard"


@pytest.mark.parametrize(("count", "text"), [(None, "-"), (0, "0"), (999, "999"), (1000, "1.0k"), (12_345, "12k"), (3_400_000, "3.4M"), (5_000_000_000, "5.0G")])
def test_sizes_are_short(count, text):
    assert size(count) == text


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=200)), max_size=5), st.integers(8, 100))
def test_no_cell_breaks_out_of_its_line(rows, columns):
    lines = table_lines(("A", "B"), rows, columns=columns)
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)
