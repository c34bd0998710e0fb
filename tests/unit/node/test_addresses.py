"""Addresses as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Usage
from node.addresses import Endpoint, parse_endpoint, read_endpoint


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":9847", "", 9847), ("10.0.0.1:1", "10.0.0.1", 1), ("[::1]:80", "::1", 80), ("mini.local:0", "mini.local", 0), (" a:65535 ", "a", 65535)],
)
def test_whole_addresses(text, host, port):
    assert parse_endpoint(text) == (host, port)


@pytest.mark.parametrize(("text", "host"), [("mini", "mini"), ("::1", "::1"), ("[fe80::1]", "fe80::1"), ("1.2.3.4", "1.2.3.4")])
def test_a_port_is_added_where_none_is_written(text, host):
    assert parse_endpoint(text, port=7) == (host, 7)
    assert parse_endpoint("[::1]:80" if ":" in text else f"{text}:80", port=7).port == 80


@pytest.mark.parametrize("text", ["", "a", "a:", "a:-1", "a:65536", "a:1x", "::1:80", "[::1]", "[x]:1", "a b:1", "-a:1", "a/b:1", "a:١", "x" * 400 + ":1"])
def test_anything_else_is_a_usage_error_in_one_line(text):
    with pytest.raises(Usage) as error:
        parse_endpoint(text)
    assert "\n" not in error.value.message


@given(st.text(), st.one_of(st.none(), st.integers(1, 65535)))
def test_no_text_breaks_the_reader_and_what_it_reads_it_reads_again(text, port):
    found = read_endpoint(text, port=port)
    if found is not None:
        assert 0 <= found.port <= 65535
        assert read_endpoint(str(found)) == found


@given(st.one_of(st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)), st.integers(0, 65535))
def test_what_is_written_is_read(host, port):
    assert read_endpoint(str(Endpoint(host, port))) == (host, port)
