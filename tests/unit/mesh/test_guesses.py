"""A guesser gets few tries, and cannot use up everybody's."""

from __future__ import annotations

import pytest

from mesh.guesses import ALL_MAX, EACH_MAX, SOURCES_MAX, WINDOW_S, Guesses, source_of


def test_one_address_has_five_a_minute_whatever_its_port():
    guesses = Guesses()
    assert [guesses.admit(f"10.0.0.1:{port}", 1.0) for port in range(8)] == [True] * EACH_MAX + [False] * 3
    assert guesses.admit("10.0.0.2:1", 1.0)
    assert not guesses.admit("10.0.0.1:1", WINDOW_S)
    assert guesses.admit("10.0.0.1:1", 1.0 + WINDOW_S)


def test_one_guesser_refused_for_itself_uses_up_nothing_of_the_others():
    guesses = Guesses()
    for _ in range(1000):
        guesses.admit("10.0.0.1:1", 1.0)
    assert sum(guesses.admit(f"10.0.1.{n}:1", 1.0) for n in range(100)) == ALL_MAX - EACH_MAX


def test_what_is_remembered_is_bounded():
    guesses = Guesses()
    for n in range(3 * SOURCES_MAX):
        guesses.admit(f"10.0.{n // 256}.{n % 256}:1", n * 10.0)
    assert len(guesses._each) <= SOURCES_MAX


@pytest.mark.parametrize(
    ("remote", "source"),
    [
        ("10.0.0.1:5", "10.0.0.1"),
        ("[2001:db8::1]:5", "2001:db8::/64"),
        ("[2001:db8::ffff:1]:5", "2001:db8::/64"),
        ("[::ffff:10.0.0.1]:5", "10.0.0.1"),
        ("[fe80::1%eth0]:5", "fe80::/64"),
        ("unknown", ""),
    ],
)
def test_what_counts_as_one_source(remote: str, source: str):
    assert source_of(remote) == source
