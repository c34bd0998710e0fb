import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.rank import ABSENT_SHARE, JUDGED, PER_SECTION_MAX, Place, claim, order, prior, rarity, scale

SCORES = st.dictionaries(st.integers(1, 40), st.dictionaries(st.integers(0, 3), st.floats(0.1, 9), min_size=1), max_size=25)


def place(span: int) -> Place:
    return Place((span % 5, ""), 0.6 if span % 3 else 1.0)


def everywhere(span: int) -> Place:
    return Place((span, ""), 1.0)


def test_more_of_the_question_beats_more_of_one_word():
    scores = {1: {0: 3.0}, 2: {0: 1.6, 1: 1.6}}
    assert [span for span, _ in order(scores, {}, [2.0, 2.0], [2.0, 2.0], lambda span: Place((span, ""), 1.0), 2)] == [2, 1]


def test_words_that_stand_together_add_a_little():
    scores = {1: {0: 2.0, 1: 2.0}, 2: {0: 2.0, 1: 2.0}}
    assert order(scores, {2: 1.0}, [2.0, 2.0], [2.0, 2.0], lambda span: Place((span, ""), 1.0), 1)[0][0] == 2


def test_nothing_is_said_where_little_of_the_question_is_found():
    assert order({1: {0: 2.0}}, {}, [2.0, 7.0], [2.0, 7.0], everywhere, 5) == []
    assert order({1: {0: 0.1, 1: 0.1}}, {}, [2.0, 7.0], [2.0, 7.0], everywhere, 5) == []
    assert order({}, {}, [3.0], [3.0], place, 5) == []
    assert order({}, {}, [], [], place, 5) == []


def test_a_word_that_only_frames_the_question_neither_vetoes_nor_answers():
    assert order({1: {0: 2.0}}, {}, [2.0, 7.0], [2.0, 0.0], everywhere, 5)[0][0] == 1
    assert order({1: {1: 7.0}}, {}, [2.0, 7.0], [2.0, 0.0], everywhere, 5) == []


@given(st.integers(1, 100_000))
def test_one_unknown_word_does_not_outweigh_a_known_rare_one(spans):
    known, unknown = claim(spans, 1), claim(spans, 0)
    assert unknown == ABSENT_SHARE * known < known
    assert order({1: {0: known}}, {}, [known, rarity(spans, 0)], [known, unknown], everywhere, 5)
    assert order({1: {0: known}}, {}, [known, 9.0, 9.0], [known, unknown, unknown], everywhere, 5) == []


@given(SCORES)
def test_asking_for_fewer_quotes_does_not_change_whether_there_are_any(scores):
    found = [order(scores, {}, [1.0] * 4, [1.0, 1.0, 1.0, 0.0], place, limit) for limit in (1, 2, JUDGED, 20)]
    assert all(few == found[-1][: len(few)] and bool(few) == bool(found[-1]) for few in found)


@given(SCORES, st.integers(1, 10))
def test_looking_up_few_places_finds_the_same_as_looking_up_all(scores, limit):
    weights = [1.0, 1.0, 1.0, 1.0]
    chosen = order(scores, {}, weights, weights, place, limit)
    if not chosen:
        return
    everything = []
    sections: dict[tuple[int, str], int] = {}
    ranked = sorted(
        ((sum(held.values()) * (len(held) / 4) ** 0.5 * place(span).prior, span) for span, held in scores.items()),
        key=lambda entry: (-entry[0], entry[1]),
    )
    for score, span in ranked:
        section = place(span).section
        sections[section] = sections.get(section, 0) + 1
        if sections[section] <= PER_SECTION_MAX:
            everything.append(round(score, 4))
    assert [score for _, score in chosen] == pytest.approx(everything[:limit], abs=2e-4)


@given(SCORES, st.integers(1, 10))
def test_no_section_crowds_out_the_others(scores, limit):
    chosen = order(scores, {}, [1.0] * 4, [1.0] * 4, place, limit)
    counts: dict[tuple[int, str], int] = {}
    for span, _ in chosen:
        counts[place(span).section] = counts.get(place(span).section, 0) + 1
    assert all(count <= PER_SECTION_MAX for count in counts.values())
    assert [score for _, score in chosen] == sorted((score for _, score in chosen), reverse=True)


@pytest.mark.parametrize(
    ("path", "kind", "lower"),
    [
        ("docs/guide.md", "section", False),
        ("CHANGELOG.md", "section", True),
        ("docs/migration-v5.md", "section", True),
        ("docs/source/history.rst", "section", True),
        ("tests/test_x.py", "docstring", True),
        ("CODE_OF_CONDUCT.md", "section", True),
        ("src/x.py", "signature", True),
        ("docs/upgrading.md", "section", True),
        ("src/contest.py", "docstring", False),
    ],
)
def test_what_explains_counts_more_than_what_lists(path, kind, lower):
    assert (prior(path, kind, "some words that explain how the thing is done from start to end today") < 1) is lower


def test_a_page_of_links_counts_less():
    links = "\n".join(f"- [part {n}](part{n}.md)" for n in range(12))
    assert prior("docs/index.md", "section", links) < 1


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_rarity_is_never_negative_and_falls(spans, holding):
    holding = min(holding, spans)
    assert rarity(spans, holding) > 0
    if holding:
        assert rarity(spans, holding) < rarity(spans, holding - 1)
        assert scale(spans, holding) > 0
