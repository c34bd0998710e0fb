"""Order what the index found: rarity-weighted coverage of the question times what kind of text it is.

Each term is scored by itself and the scores are added, so a span need not hold every word; the share of the question it
covers, weighed by how rare the words are, decides between a span that repeats one word and one that holds them all.
Neighbouring words of the question that stand near each other in a span add a little. No hand-written synonyms: they
helped known questions and hurt unseen ones.

Whether there is an answer at all is judged apart from the order, by what the words *claim*: a word that only frames the
question claims nothing, and one that the project never uses claims less than one it uses once. So "how is auth
structured?" is answered by a text on auth that never says "structured", while a question most of whose words are unknown
is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FIELD_WEIGHTS = (6.0, 2.0, 1.5, 1.0, 1.0)
"""Heading, headings above, path, symbol words, text."""
COVERAGE_POWER = 0.5
PAIR_WEIGHT = 0.3
"""How much a pair of neighbouring words adds to the score of a span that holds them near each other."""
COVERAGE_MIN = 0.45
"""Below this share of the question's claims in the best spans there is no answer."""
STRENGTH_MIN = 0.36
"""Below this score of the best spans, for what the question claims, there is none either."""
ABSENT_SHARE = 0.8
"""What a word that is nowhere in the index claims, as a share of what one in a single span does. Below 1, so that one
unknown word alone never outweighs a known rare one; with far less, one known word would answer any question."""
JUDGED = 5
"""Best spans by which it is judged whether there is an answer: a number of its own, so that asking for fewer quotes does
not change whether there are any."""
PER_SECTION_MAX = 2
"""Spans of one heading of one file among the answers; the rest would crowd out other places."""

_OLD_NEWS = re.compile(
    r"(?:^|/)(?:change(?:log|s)?|history|news|newsfragments|releases?|release[-_]?notes?|whatsnew|migrat[a-z]*|migration[-_][a-z0-9-]*"
    r"|upgrad[a-z]*|ecosystem|authors?|contributors?|credits|thanks|sponsors?|todo)(?:[-_.][^/]*)?(?:/|$)",
    re.IGNORECASE,
)
_GOVERNANCE = re.compile(r"(?:^|/)(?:code[-_. ]?of[-_. ]?conduct|governance|charter|licen[sc]e)[^/]*$", re.IGNORECASE)
_ASIDE = re.compile(r"(?:^|/)_?(?:tests?|testing_?data|examples?|samples?|fixtures?|benchmarks?|tools|scripts|ci|\.github)(?:/|$)", re.IGNORECASE)
_LINK = re.compile(r"\]\([^)]{0,400}\)|https?://\S{1,400}|:[a-z:]{2,20}:`[^`]{1,200}`|`[^`]{1,200}`__?|^\s*\.\. _", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """What the index knows of a span besides its words.

    Attributes:
        section: Which heading of which file it belongs to.
        prior: What :func:`prior` said when it was indexed.
    """

    section: tuple[int, str]
    prior: float


def prior(path: str, kind: str, text: str) -> float:
    """Weigh a span before any question: what explains counts more than what lists.

    Args:
        path: Its file.
        kind: As in :class:`query.spans.Span`.
        text: What would be quoted.

    Returns:
        A factor of at most 1.
    """
    weight = 1.0
    if _OLD_NEWS.search(path):
        weight *= 0.7
    if _ASIDE.search(path) or _GOVERNANCE.search(path):
        weight *= 0.6
    if kind == "signature":
        weight *= 0.6
    words = len(text.split())
    links = len(_LINK.findall(text))
    if links >= 4 and links * 8 > words:
        weight *= 0.6
    if words < 12 and kind == "section":
        weight *= 0.8
    return weight


def rarity(spans: int, holding: int) -> float:
    """Weigh a term by how few spans hold it.

    Args:
        spans: Spans in the index.
        holding: Spans that hold the term; 0 for a word the project never uses, which then counts most.
    """
    return math.log(1 + (spans - holding + 0.5) / (holding + 0.5))


def claim(spans: int, holding: int) -> float:
    """Weigh how much a word that the question is about must be found for there to be an answer.

    Args:
        spans: Spans in the index.
        holding: Spans that hold the word; 0 for a word the project never uses.
    """
    return rarity(spans, holding) if holding else ABSENT_SHARE * rarity(spans, 1)


def scale(spans: int, holding: int) -> float:
    """Turn a full-text score of one term into one that also works in a small index.

    SQLite's BM25 weighs a word by a rarity that falls to nothing where half of all rows hold it, so in a project of a
    few pages every word would count for nothing. This takes its rarity out and puts :func:`rarity` in.

    Args:
        spans: Spans in the index.
        holding: Spans that hold the term, at least 1.

    Source: SQLite, FTS5, "The bm25() function".
    """
    theirs = math.log((spans - holding + 0.5) / (holding + 0.5))
    return rarity(spans, holding) / (theirs if theirs > 0 else 1e-6)


def order(
    scores: Mapping[int, Mapping[int, float]],
    bonus: Mapping[int, float],
    weights: Sequence[float],
    claims: Sequence[float],
    place_of: Callable[[int], Place],
    limit: int,
) -> list[tuple[int, float]]:
    """Choose the spans to quote.

    Args:
        scores: Span number to its score for each term it holds, greater is better.
        bonus: Span number to its score for neighbouring words.
        weights: Rarity of each term of the question.
        claims: What each of them claims, as :func:`claim` says; 0 for one that only frames the question.
        place_of: Looks a span up; asked only for spans that may still be chosen, since no prior is above 1.
        limit: How many, at least 1.

    Returns:
        Span numbers with their scores, best first; empty where nothing covers enough of the question.
    """
    whole = sum(weights)
    if whole <= 0:
        return []
    rough = []
    for span, held in scores.items():
        coverage = sum(weights[term] for term in held) / whole
        score = sum(held.values()) + PAIR_WEIGHT * bonus.get(span, 0.0)
        rough.append((score * coverage**COVERAGE_POWER, span, coverage))
    rough.sort(key=lambda entry: (-entry[0], entry[1]))
    best = _best_sections(rough, place_of, max(limit, JUDGED))
    if not _is_answer({span: scores[span] for _, span, _ in best[:JUDGED]}, claims, place_of):
        return []
    return [(span, round(score, 4)) for score, span, _ in best[:limit]]


def _is_answer(best: Mapping[int, Mapping[int, float]], claims: Sequence[float], place_of: Callable[[int], Place]) -> bool:
    """Judge whether the best spans hold enough of what the question is about, and say enough of it."""
    whole = sum(claims)
    if whole <= 0:
        return False
    coverage_max = strength_max = 0.0
    for span, held in best.items():
        coverage = sum(claims[term] for term in held) / whole
        score = sum(value for term, value in held.items() if claims[term])
        coverage_max = max(coverage_max, coverage)
        strength_max = max(strength_max, score * coverage**COVERAGE_POWER * place_of(span).prior / whole)
    return coverage_max >= COVERAGE_MIN and strength_max >= STRENGTH_MIN


def _best_sections(
    rough: Sequence[tuple[float, int, float]], place_of: Callable[[int], Place], limit: int
) -> list[tuple[float, int, float]]:
    """Weigh candidates by their priors, best first, keeping few of each section."""
    kept: list[tuple[float, int, float]] = []
    sections: dict[tuple[int, str], list[tuple[float, int, float]]] = {}
    for score, span, coverage in rough:
        if len(kept) >= limit and score < kept[limit - 1][0]:
            break
        place = place_of(span)
        entry = (score * place.prior, span, coverage)
        mates = sections.setdefault(place.section, [])
        if len(mates) == PER_SECTION_MAX:
            worst = min(mates)
            if entry <= worst:
                continue
            mates.remove(worst)
            kept.remove(worst)
        mates.append(entry)
        kept.append(entry)
        kept.sort(key=lambda item: (-item[0], item[1]))
    return kept[:limit]
