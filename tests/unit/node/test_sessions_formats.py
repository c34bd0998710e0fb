import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.sessions.formats import (
    LINE_BYTES_MAX,
    SALVAGE_TRIES_MAX,
    BadLine,
    count,
    fit,
    instant_ms,
    load_object_untrusted,
    one_line,
    salvage,
    subject_of,
)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"3", b'{"a"', b"\0" * 4096, b'{"a":"\xff"}', b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"],
)
def test_what_is_not_a_record_is_a_bad_line(line):
    with pytest.raises(BadLine):
        load_object_untrusted(line)


def test_a_line_beyond_the_bound_is_refused_before_it_is_parsed():
    with pytest.raises(BadLine, match="too long"):
        load_object_untrusted(b'{"a":"' + b"x" * LINE_BYTES_MAX + b'"}')


def test_salvage_offers_the_record_behind_a_torn_one():
    whole = b'{"type":"user","n":1}'
    assert whole in list(salvage(b'{"type":"assistant","text":"cut he' + whole))


def test_salvage_tries_a_bounded_number_of_places():
    assert len(list(salvage(b'{"type"' * 100))) == SALVAGE_TRIES_MAX


@pytest.mark.parametrize("value", [-1, 1.5, True, "3", None, 1 << 60])
def test_a_count_that_is_not_one_is_unknown(value):
    assert count(value) is None


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "3", None, 1 << 60])
def test_an_instant_that_is_not_one_is_unknown(value):
    assert instant_ms(value, 1000) is None


def test_an_instant_is_scaled():
    assert instant_ms(1_796_000_000.5, 1000) == 1_796_000_000_500


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"command": "rm -rf x", "description": "clean"}, "rm -rf x"),
        ({"command": ["bash", "-lc", "ls"]}, "bash -lc ls"),
        ({"file_path": "/a/b"}, "/a/b"),
        ({"url": "https://example.invalid"}, "https://example.invalid"),
        ({"b": 1, "a": 2}, '{"a": 2, "b": 1}'),
        ({}, ""),
    ],
)
def test_the_subject_is_what_the_call_is_about(arguments, subject):
    assert subject_of(arguments) == subject


def test_one_line_drops_what_a_screen_must_not_get():
    assert one_line("a\x1b[31m\n b\u202e\u200bc\ud800d", 100) == "a [31m b c d"


@given(st.text(st.characters()), st.integers(3, 60))
def test_cut_texts_keep_their_bound_and_can_be_encoded(text, bytes_max):
    for cut in (one_line(text, bytes_max), fit(text, bytes_max)):
        assert len(cut.encode()) <= bytes_max
        json.dumps(cut)
