"""Names: one id a key, what people type, what is safe to show."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Usage
from mesh.base.names import (
    NAME_BYTES_MAX,
    base32,
    clean_name,
    fingerprint,
    fingerprint_text,
    name_key,
    node_id,
    owner_id,
    project_from,
    project_name,
    suffix,
    unbase32,
)

KEY = bytes(range(32))


def test_one_hash_gives_fingerprint_id_suffix_and_prefix():
    """LAYOUT: a node has one name, no second hash."""
    whole = fingerprint(KEY)
    assert len(whole) == 20
    assert node_id(KEY) == owner_id(KEY) == whole[:16]
    text = fingerprint_text(KEY)
    assert [len(group) for group in text.split("-")] == [4] * 8
    assert unbase32(text) == whole
    assert text.startswith(suffix(node_id(KEY)))
    assert len(suffix(node_id(KEY))) == 4
    assert fingerprint(bytes(32)) != whole


@given(st.binary(max_size=40))
def test_base32_is_read_back_in_any_case_with_dashes_and_spaces(raw: bytes):
    text = base32(raw)
    assert unbase32(text) == raw
    assert unbase32(" - ".join(text.upper())) == raw


@pytest.mark.parametrize("text", ["a", "abc", "abcdef", "a1", "a0", "a8", "ä", "a=", "é" * 8, "a" * 65, "日本", "a_b", "\x00" * 8])
def test_what_is_no_identifier_says_so(text: str):
    with pytest.raises(Usage):
        unbase32(text)


@given(st.text(max_size=80))
def test_any_text_is_an_identifier_or_a_usage_error(text: str):
    try:
        assert len(unbase32(text)) <= 40
    except Usage:
        return


anything = st.text(max_size=90) | st.text(st.sampled_from("aé\u0301\u200b\u202e\u00a0\u0000 ~\t\u2028Ж가\u1100\u1161\U0001f600\ud800"), max_size=90)


@given(anything)
def test_a_name_is_safe_to_show_to_announce_and_to_clean_again(text: str):
    """O-D4, O-P6: at most 63 bytes, no control, bidi or zero-width characters, no suffix mark, no doubled spaces."""
    name = clean_name(text)
    assert 1 <= len(name.encode()) <= NAME_BYTES_MAX
    assert not [c for c in name if unicodedata.category(c)[0] == "C"]
    assert "~" not in name
    assert name == " ".join(name.split())
    assert clean_name(name) == name
    assert unicodedata.is_normalized("NFC", name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("box", "box"),
        ("  a\tb\n c ", "a b c"),
        ("a" * 200, "a" * 63),
        ("가" * 40, "가" * 21),
        ("box.with.dots", "box.with.dots"),
        ("", "machine"),
        ("\u200b\u202e", "machine"),
        ("mini~k7q2", "mini k7q2"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("e\u200b\u0301", "é"),
    ],
)
def test_names_are_cut_at_a_character_and_stripped_of_what_is_hidden(text: str, name: str):
    assert clean_name(text) == name


def test_a_huge_name_costs_nothing():
    assert clean_name("\u0301" * 10_000_000) != ""


@pytest.mark.parametrize(
    "other", ["b", "B ", " B", "B\u200b", "\u202eB", "Ｂ", "B\u00ad", "\ufeffB", "B\u2060", "B\ufe0f", "B\u034f", "\u115fB", "B\u3164", "B\U000e0100"]
)
def test_look_alikes_collide(other: str):
    """O-P6: case, width and hidden characters make no difference."""
    assert name_key(other) == name_key("B")


def test_different_letters_do_not_collide():
    assert len({name_key(name) for name in ("B", "C", "В", "b1", "b-2")}) == 5


@given(st.text(max_size=100))
def test_any_folder_name_gives_a_project_name(text: str):
    assert project_name(project_from(text)) == project_from(text)


@pytest.mark.parametrize(("text", "project"), [("My Repo", "my-repo"), ("..", "project"), ("", "project"), ("a" * 99, "a" * 64), ("Ünï", "n"), ("x_y.z-1", "x_y.z-1")])
def test_folder_names_become_projects(text: str, project: str):
    assert project_from(text) == project


@pytest.mark.parametrize("text", ["", ".", ".git", "A", "a b", "a/b", "../a", "a\n", "a\x00", "é", "a" * 65])
def test_what_is_no_project_name_says_so(text: str):
    with pytest.raises(Usage) as caught:
        project_name(text)
    assert "\n" not in caught.value.message
