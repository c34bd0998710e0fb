import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.question import (
    LIMIT_MAX,
    QUESTION_BYTES_MAX,
    TERMS_MAX,
    BadQuestion,
    parse_untrusted,
    question_untrusted,
    symbol_words,
    terms_of,
)


def words(text: str) -> list[str]:
    return [term.word for term in terms_of(text)]


def test_words_without_meaning_are_left_out_unless_nothing_else_is_there():
    assert words("How do I boil the water?") == ["boil", "water"]
    assert words("what is it") == ["what", "is", "it"]


def test_words_that_only_frame_a_question_are_looked_up_but_marked_unless_nothing_else_is_left():
    assert [(term.word, term.is_framing) for term in terms_of("How is auth structured here?")] == [("auth", False), ("structured", True)]
    assert [(term.word, term.is_framing) for term in terms_of("an overview of the project")] == [("overview", False), ("project", False)]


def test_no_character_of_a_question_is_an_operator():
    """O-Q1: quotes, operators, wildcards and columns are nothing but separators."""
    for term in terms_of('"unbalanced NEAR( title:x ^y a* OR -b \' C++ grammar::fa 2026-12-15'):
        assert term.word.isalnum()
        assert set(term.expression) <= set('" OR') | set("abcdefghijklmnopqrstuvwxyz0123456789")


def test_composed_and_decomposed_letters_are_one_word():
    """O-Q2."""
    assert words(unicodedata.normalize("NFD", "naïve façade")) == words(unicodedata.normalize("NFC", "naïve façade"))


def test_a_class_name_also_means_its_parts():
    (term,) = terms_of("MockClock")
    assert term.expression == '"mockclock" OR "mock clock"'
    assert symbol_words("MockClock.jump_now") == "MockClock.jump_now Mock Clock jump now"


def test_terms_are_bounded():
    """O-Q9: a long question costs no more than a short one."""
    assert len(terms_of(" ".join(f"word{n}" for n in range(500)))) == TERMS_MAX
    assert len(words("x" * 5000)[0]) == 64


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "bad_json"),
        (b"\xff", "bad_json"),
        (b"[1]", "bad_json"),
        (b"[" * 9000, "bad_json"),
        (b'{"question":"a","question":"b"}', "bad_json"),
        (b'{"question":"a","limit":NaN}', "bad_json"),
        (b'{"limit":3}', "no_question"),
        (b'{"question":null}', "no_question"),
        (b'{"question":["a"]}', "no_question"),
        (b'{"question":"  \\n"}', "no_question"),
        (b'{"question":"\\u0000"}', "no_question"),
        (json.dumps({"question": "a" * (QUESTION_BYTES_MAX + 1)}).encode(), "too_long"),
        (b'{"question":"a","limit":0}', "bad_limit"),
        (b'{"question":"a","limit":21}', "bad_limit"),
        (b'{"question":"a","limit":true}', "bad_limit"),
        (b'{"question":"a","limit":"5"}', "bad_limit"),
        (b'{"question":"a","limit":1e9}', "bad_limit"),
        (b'{"question":"a","project":"other"}', "unknown_field"),
    ],
)
def test_bad_questions_say_what_is_wrong(body, reason):
    with pytest.raises(BadQuestion) as caught:
        parse_untrusted(body)
    assert caught.value.reason == reason
    assert "\n" not in caught.value.message


def test_half_a_character_is_no_fault():
    question = parse_untrusted(b'{"question":"boil \\ud83d water"}')
    assert [term.word for term in question.terms] == ["boil", "water"]


@given(st.text(max_size=400), st.integers(1, LIMIT_MAX))
def test_every_text_is_a_question_or_empty(text, limit):
    if not text.replace("\0", " ").strip():
        with pytest.raises(BadQuestion):
            question_untrusted(text, limit)
        return
    question = question_untrusted(text, limit)
    question.text.encode()
    assert len(question.terms) <= TERMS_MAX
