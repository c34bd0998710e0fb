"""From what an outsider asks to the terms that are looked up. No text of a question is ever a search expression.

A question becomes at most TERMS_MAX words of letters and digits, each quoted for the full-text index, so operators,
column names, wildcards and quotes mean nothing.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any, NoReturn

from mesh.base.errors import Refused

QUESTION_BYTES_MAX = 8_192
"""A longer question is refused."""
TERMS_MAX = 24
"""Words looked up; the rest of a question is not."""
TERM_CHARS_MAX = 64
LIMIT_DEFAULT = 5
LIMIT_MAX = 20
"""Answers to one question."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STOP_WORD_TEXT = """
a about above after again all also am an and any are as at be because been before being below between both but by can
cannot could d did do does doing don down during each etc few for from further get gets getting give given go goes
going had has have having he her here hers him his how however i if in into is it its itself just know let ll m make
makes many may me might more most much must my myself need needs no nor not of off on once one only onto or other our
out over own please re s same shall she should so some such t than that the their them then there these they thing
things this those through to too under until up us use used using ve very want wants was way we well were what when
where whether which while who whom why will with within without would you your yours
"""
_STOP_WORDS = frozenset(_STOP_WORD_TEXT.split())
_FRAMING_TEXT = """
arranged built designed done handle handled handles happen happens implement implemented implements look looks organised
organized set setup structured work worked working works
describe explain find learn mean means see show tell understand
app application code codebase library package program project repo repository service software system tool
approach details kind overview part parts place purpose sort summary way ways
best currently different exactly new possible together
"""
_FRAMING = frozenset(_FRAMING_TEXT.split())
"""Words a question is put with, whatever it is about, by class and a line each: how something is arranged or done,
asking for it, the project as a whole, the form of the answer, and adverbs. They are looked up like every other word,
since a heading may be made of them, but a text that lacks them may still answer."""


class BadQuestion(Refused):
    """The question cannot be asked so."""

    kind = "bad_question"


@dataclass(frozen=True, slots=True)
class Term:
    """One word to look up.

    Attributes:
        word: Lower case, for people.
        expression: The same as a quoted full-text expression.
        is_framing: Whether the question is only put with it and asks for another word.
    """

    word: str
    expression: str
    is_framing: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """A question within its limits.

    Attributes:
        text: As it was asked, without characters that are no text.
        terms: What is looked up, at most TERMS_MAX; empty where it holds no word.
        limit: Answers wanted, 1 to LIMIT_MAX.
    """

    text: str
    terms: tuple[Term, ...]
    limit: int


def parse_untrusted(body: bytes) -> Question:
    """Read the JSON body of an ask.

    Args:
        body: Anything, at most the door's limit.

    Returns:
        The question.

    Raises:
        BadQuestion: Not one JSON object with ``question`` and perhaps ``limit``; the message says what to mend.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BadQuestion("the body is not one JSON object with each name once", reason="bad_json") from None
    if type(value) is not dict:
        raise BadQuestion("the body is not a JSON object", reason="bad_json")
    unknown = sorted(set(value) - {"question", "limit"})
    if unknown:
        raise BadQuestion(f"unknown field {json.dumps(unknown[0][:40])}", reason="unknown_field", hint="known are question and limit")
    return question_untrusted(value.get("question"), value.get("limit", LIMIT_DEFAULT))


def question_untrusted(text: object, limit: object = LIMIT_DEFAULT) -> Question:
    """Check a question and its limit, and find its terms.

    Args:
        text: What was asked; must be a text of 1 to QUESTION_BYTES_MAX bytes that is not blank.
        limit: How many answers; must be 1 to LIMIT_MAX.

    Returns:
        The question.

    Raises:
        BadQuestion: One of them is not.
    """
    if type(text) is not str:
        raise BadQuestion("question must be a text", reason="no_question")
    clean = text[: QUESTION_BYTES_MAX + 1].encode(errors="replace").decode().replace("\0", " ")
    if len(clean.encode()) > QUESTION_BYTES_MAX:
        raise BadQuestion(f"a question has at most {QUESTION_BYTES_MAX} bytes", reason="too_long")
    if not clean.strip():
        raise BadQuestion("the question is empty", reason="no_question")
    if type(limit) is not int or not 1 <= limit <= LIMIT_MAX:
        raise BadQuestion(f"limit must be a whole number from 1 to {LIMIT_MAX}", reason="bad_limit")
    return Question(clean, terms_of(clean), limit)


def terms_of(text: str) -> tuple[Term, ...]:
    """Find the words worth looking up.

    Words that carry no meaning are left out unless nothing else is there; words that only frame the question are marked,
    unless nothing else is left. A word in humps, such as a class name, also matches its parts written side by side.

    Args:
        text: At most QUESTION_BYTES_MAX bytes.

    Returns:
        At most TERMS_MAX terms, in order, each once.
    """
    words = [word[:TERM_CHARS_MAX] for word in _WORD.findall(folded(text))]
    chosen = [word for word in words if word.lower() not in _STOP_WORDS] or words
    is_all_framing = all(word.lower() in _FRAMING for word in chosen)
    terms: dict[str, Term] = {}
    for word in chosen:
        if len(terms) == TERMS_MAX:
            break
        lower = word.lower()
        parts = _HUMP.findall(word) if word.isascii() else []
        expression = f'"{lower}"'
        if len(parts) > 1 and "".join(parts) == word:
            expression += ' OR "' + " ".join(parts).lower() + '"'
        terms.setdefault(lower, Term(lower, expression, lower in _FRAMING and not is_all_framing))
    return tuple(terms.values())


def folded(text: str) -> str:
    """Bring text to one form, so that composed and decomposed letters and wide ones are the same to the index."""
    return unicodedata.normalize("NFKC", text)


def symbol_words(symbol: str) -> str:
    """Write a symbol beside the words it is made of, for the index: ``MockClock`` is found by ``clock``."""
    parts = [part for word in _WORD.findall(symbol) for part in _HUMP.findall(word)]
    return " ".join([symbol, *parts])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name twice")
    return names


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
