"""The drawn link: every module is where it belongs, and it fits the screen."""

from __future__ import annotations

import pytest
import segno

from node.cli.picture import COLUMNS_MAX, draw_link

MODULES = {"\u2588": (0, 0), "\u2580": (0, 1), "\u2584": (1, 0), " ": (1, 1)}


@pytest.mark.parametrize("chars", [60, 256, 330, 400])
def test_what_is_drawn_is_the_code_and_fits(chars: int):
    link = ("hmi_" + "aB3-_" * 100)[:chars]
    rows = draw_link(link, coloured=False)
    assert rows is not None
    assert len({len(row) for row in rows}) == 1
    assert len(rows[0]) <= COLUMNS_MAX
    drawn = [[MODULES[c][half] for c in row] for row in rows for half in (0, 1)]
    codes = [segno.make(link, error=level, micro=False, boost_error=False) for level in "qml"]
    wanted = [[list(map(int, row)) for row in code.matrix_iter(border=4)] for code in codes]
    assert any(drawn[: len(one)] == one for one in wanted)


def test_a_link_too_long_for_the_screen_is_not_drawn():
    assert draw_link("a" * 1000, coloured=False) is None


def test_colour_is_set_for_each_row_and_taken_back():
    rows = draw_link("hmi_a", coloured=True)
    assert rows is not None
    assert all(row.startswith("\x1b[97;40m") and row.endswith("\x1b[0m") for row in rows)
