from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from query.audit import FIRST_LINK, QUESTION_BYTES_MAX, Row, escaped, first_break, link

KEY = bytes(range(32))


def chain(count: int) -> list[tuple[Row, bytes]]:
    rows = []
    before = FIRST_LINK
    for number in range(1, count + 1):
        row = Row(number, number * 10, b"g" * 10, "p", "ask", "done", "", f"question {number}", b"r", 0)
        before = link(KEY, before, row)
        rows.append((row, before))
    return rows


def test_an_untouched_chain_holds():
    assert first_break(KEY, FIRST_LINK, chain(5)) is None
    assert first_break(KEY, FIRST_LINK, []) is None
    rows = chain(5)
    assert first_break(KEY, rows[1][1], rows[2:]) is None


def test_another_key_breaks_it_at_once():
    assert first_break(bytes(32), FIRST_LINK, chain(3)) == 1


@given(st.integers(0, 4), st.sampled_from(["at_ms", "grant", "project", "operation", "outcome", "reason", "question", "remote", "quiet"]))
def test_any_changed_field_shows(at, name):
    rows = chain(5)
    row, stated = rows[at]
    value = getattr(row, name)
    rows[at] = (replace(row, **{name: value + 1 if isinstance(value, int) else value + value[:1] + type(value)(b"x") if isinstance(value, bytes) else value + "x"}), stated)
    assert first_break(KEY, FIRST_LINK, rows) == at + 1


@given(st.integers(0, 3))
def test_a_missing_row_shows(at):
    rows = chain(5)
    del rows[at]
    assert first_break(KEY, FIRST_LINK, rows) == at + 2


@given(st.text(max_size=600))
def test_escaped_text_is_plain_bounded_and_whole(text):
    shown = escaped(text)
    assert len(shown) <= QUESTION_BYTES_MAX
    assert shown.isascii()
    assert shown.isprintable()
    assert '"' not in shown.replace('\\"', "")


def test_nobody_writes_into_the_log_through_a_question():
    assert escaped('a\r\n\x1b[2J"\u202e\x7f') == 'a\\r\\n\\u001b[2J\\"\\u202e\\u007f'


def test_a_long_question_is_cut_between_escapes():
    assert escaped("\0" * 600) == "\\u0000" * (QUESTION_BYTES_MAX // 6)
    assert escaped("a" * 600) == "a" * QUESTION_BYTES_MAX
