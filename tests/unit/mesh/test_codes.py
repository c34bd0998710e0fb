"""Codes a person types: every typo shows, every way of writing them reads alike."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.codes import (
    ADDRESS_SLOT,
    SLOTS,
    Code,
    address_payload,
    code_of,
    read_code_untrusted,
    slot_payload,
    write_code,
    write_words,
)
from mesh.invites import BadInvite

SHORT = st.builds(slot_payload, st.integers(0, SLOTS - 1), st.integers(0, 2**32 - 1))
LONG = st.builds(address_payload, st.ip_addresses(v=4).map(str), st.integers(1, 65535), st.integers(0, 2**32 - 1))
FORMS = st.one_of(st.tuples(SHORT, st.just(False)), st.tuples(LONG, st.just(True)))
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@given(FORMS)
def test_what_is_written_is_read(form: tuple[int, bool]):
    payload, long = form
    expected = code_of(payload, long=long)
    assert read_code_untrusted(write_code(payload, long=long)) == expected
    assert read_code_untrusted(write_words(payload, long=long)) == expected


def test_a_code_says_where_it_is_for():
    assert code_of(slot_payload(7, 12345), long=False) == Code(7, None, (7 << 25 | 12345).to_bytes(10, "big"))
    found = code_of(address_payload("192.168.7.9", 9847, 1), long=True)
    assert (found.slot, found.address) == (ADDRESS_SLOT, "192.168.7.9:9847")


def test_the_forms_are_as_short_as_they_should_be():
    code = write_code(slot_payload(1023, 2**25 - 1), long=False)
    assert [len(part) for part in code.split("-")] == [2, 5, 1]
    assert len(write_code(address_payload("255.255.255.255", 65535, 2**27 - 1), long=True).replace("-", "")) == 16
    assert len(write_words(slot_payload(0, 0), long=False).split()) == 4
    assert len(write_words(address_payload("0.0.0.0", 1, 0), long=True).split()) == 8


@settings(max_examples=30, deadline=None)
@given(FORMS)
def test_every_single_character_that_is_wrong_shows(form: tuple[int, bool]):
    """O-P3: found here, before anything is sent."""
    code = write_code(form[0], long=form[1])
    for at, right in enumerate(code):
        for wrong in ALPHABET if right != "-" else "":
            if wrong != right:
                with pytest.raises(BadInvite, match="typo"):
                    read_code_untrusted(code[:at] + wrong + code[at + 1 :])


@settings(max_examples=50, deadline=None)
@given(FORMS)
def test_two_neighbours_exchanged_show(form: tuple[int, bool]):
    code = write_code(form[0], long=form[1]).replace("-", "")
    for at in range(len(code) - 1):
        if code[at] != code[at + 1]:
            with pytest.raises(BadInvite):
                read_code_untrusted(code[:at] + code[at + 1] + code[at] + code[at + 2 :])


@pytest.mark.parametrize("way", [str.lower, " {} \n".format, '"{}"'.format, "\u201c{}\u201d".format, lambda c: c.replace("-", "\u2013"), lambda c: c.replace("-", ""), lambda c: c.replace("-", "\n"), lambda c: "\u00a0" + c])
def test_how_it_was_pasted_does_not_matter(way):
    """O-P4."""
    payload = slot_payload(600, 31_000_000)
    assert read_code_untrusted(way(write_code(payload, long=False))) == code_of(payload, long=False)
    assert read_code_untrusted(way(write_words(payload, long=False)).replace("\u2013", " ")) == code_of(payload, long=False)


def test_letters_that_look_like_digits_are_read_as_those():
    payload = slot_payload(0, 1 << 5)
    code = write_code(payload, long=False)
    assert "0" in code
    assert read_code_untrusted(code.replace("0", "o").replace("1", "l")) == code_of(payload, long=False)


@pytest.mark.parametrize("text", ["", " ", "-", "a" * 1_000_000, "7K", "hello", "U" * 9, "\u0664" * 8, "7K-Q4T9F-M-7K", "\0" * 8, "!!!!!!!!"])
def test_anything_else_is_one_line_that_says_so(text: str):
    """O-P4: no traceback, the text is not echoed."""
    with pytest.raises(BadInvite) as caught:
        read_code_untrusted(text)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 100


def test_a_misspelt_word_is_named_by_its_place_and_what_it_may_be():
    words = write_words(slot_payload(5, 77), long=False).split()
    words[2] = words[2][:-1] + "qq"
    with pytest.raises(BadInvite, match=f"after '{words[1]}'"):
        read_code_untrusted(" ".join(words))


@settings(deadline=None)
@given(SHORT, st.integers(0, 3), st.integers(1, 2047))
def test_another_word_of_the_list_is_nearly_always_noticed(payload: int, place: int, shift: int):
    """Nine bits of check: one wrong word in about five hundred gets through, as another code that is wrong at the issuer."""
    from mesh.codes import _words

    words = write_words(payload, long=False).split()
    words[place] = _words()[(_words().index(words[place]) + shift) % 2048]
    with suppress(BadInvite):
        assert read_code_untrusted(" ".join(words)) != code_of(payload, long=False)
