"""One call as a verb sees it: typed arguments, and requests from anybody."""

from __future__ import annotations

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Refused, Usage
from node.calls import (
    SIGNALS_MAX,
    Call,
    Caller,
    Request,
    error_line,
    parse_request_untrusted,
    post_signal_untrusted,
)
from node.wire import REQUEST_BYTES_MAX


def call_with(**args: object) -> Call:
    _, signals = trio.open_memory_channel[str](1)
    return Call(Request("verb", args), Caller(0, 0), None, signals)  # type: ignore[arg-type]


def test_a_request_is_a_verb_and_its_arguments():
    assert parse_request_untrusted(b'{"v":1,"verb":"status","args":{"a":1}}') == Request("status", {"a": 1})
    assert parse_request_untrusted(b'{"v":1,"verb":"status"}') == Request("status", {})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "garbage"), (b"null", "garbage"), (b"[]", "garbage"), (b"{", "garbage"), (b"\xff\xff", "garbage"), (b'{"v":1}', "garbage"),
        (b'{"v":1,"verb":"a","args":[]}', "garbage"), (b'{"v":1,"verb":""}', "garbage"), (b'{"v":1,"verb":"a","args":{"x":NaN}}', "garbage"),
        (b'{"v":1,"verb":"' + b"a" * 65 + b'"}', "garbage"), (b"[" * 100_000, "garbage"), (b"9" * 10_000, "garbage"),
        (b'{"verb":"a"}', "version"), (b'{"v":2,"verb":"a"}', "version"), (b'{"v":true,"verb":"a"}', "version"),
        (b" " * (REQUEST_BYTES_MAX + 1), "limit"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_reason(line, reason):
    with pytest.raises(Refused) as refusal:
        parse_request_untrusted(line)
    assert refusal.value.reason == reason


def test_arguments_are_taken_by_type_and_bound():
    call = call_with(t="é", n=5, f=True, l=["a", "b"], none=None)
    assert (call.text("t"), call.optional_text("none"), call.optional_text("absent")) == ("é", None, None)
    assert (call.integer("n", low=5, high=5), call.optional_integer("absent", low=0, high=1)) == (5, None)
    assert (call.flag("f"), call.flag("absent")) == (True, False)
    assert (call.texts("l", count_max=2), call.texts("absent", count_max=1)) == (["a", "b"], [])


@pytest.mark.parametrize(
    "take",
    [
        lambda c: c.text("absent"), lambda c: c.text("n"), lambda c: c.text("t", bytes_max=3), lambda c: c.integer("absent", low=0, high=9),
        lambda c: c.integer("n", low=6, high=9), lambda c: c.integer("n", low=0, high=4), lambda c: c.integer("f", low=0, high=9),
        lambda c: c.integer("t", low=0, high=9), lambda c: c.flag("n"), lambda c: c.texts("l", count_max=1), lambda c: c.texts("m", count_max=9),
        lambda c: c.texts("l", count_max=9, bytes_max=1), lambda c: c.texts("t", count_max=9),
    ],
)  # fmt: skip
def test_anything_else_is_a_usage_error(take):
    with pytest.raises(Usage):
        take(call_with(t="éé", n=5, f=True, l=["a", "b"], m=["a", 1]))


def test_a_name_that_is_no_text_for_utf8_can_be_an_argument():
    assert call_with(t="\udcff").text("t") == "\udcff"


def test_signals_are_bounded_and_the_rest_is_dropped():
    post, get = trio.open_memory_channel[str](SIGNALS_MAX)
    for _ in range(SIGNALS_MAX + 5):
        post_signal_untrusted(b'{"signal":"cancel"}', post)
    assert get.statistics().current_buffer_used == SIGNALS_MAX


@given(st.one_of(st.binary(max_size=300), st.recursive(st.one_of(st.none(), st.booleans(), st.floats(), st.text()), lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=10).map(lambda found: json.dumps(found).encode())))
def test_no_bytes_raise_anything_but_refused_and_no_signal_raises_at_all(line):
    try:
        request = parse_request_untrusted(line)
    except Refused:
        pass
    else:
        assert request.verb
    post, _ = trio.open_memory_channel[str](1)
    post_signal_untrusted(line, post)


def test_an_error_says_kind_message_hint_and_exit():
    assert error_line(Refused("no", hint="do")) == {"error": {"kind": "refused", "message": "no", "hint": "do", "exit": 5, "reason": "refused"}}
    assert error_line(Usage("no"))["error"] == {"kind": "usage", "message": "no", "hint": "", "exit": 2}
