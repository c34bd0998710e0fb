from query.extract.rst import extract_untrusted, plain_title


def sections(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    data = text.encode()
    return [(span.heading, span.trail, data[span.start : span.end].decode()) for span in extract_untrusted(data, text)]


def test_titles_rank_by_first_appearance():
    found = sections("====\nBook\n====\n\nwords one\n\nPart\n----\n\nwords two\n\nChapter\n~~~~~~~\n\nwords three\n\nPart two\n--------\n\nwords four\n")
    assert [(heading, trail) for heading, trail, _ in found] == [
        ("Book", ()), ("Part", ("Book",)), ("Chapter", ("Book", "Part")), ("Part two", ("Book",)),
    ]  # fmt: skip
    assert found[1][2] == "Part\n----\n\nwords two"


def test_comments_are_never_quoted():
    found = sections("Title\n=====\n\nbefore words\n\n.. a comment CANARY\n   with CANARY more\n\nafter words\n\n..\n   CANARY again\n\nend of it\n")
    assert found
    assert not any("CANARY" in text for _, _, text in found)
    assert {"before words", "after words", "end of it"} <= {line for _, _, text in found for line in text.split("\n")}


def test_described_objects_are_places_of_their_own():
    found = sections("Title\n=====\n\nintro words\n\n.. function:: boil(water, *, fast=False)\n\n   Heats it up.\n\nBack outside.\n")
    assert [(heading, trail) for heading, trail, _ in found] == [("Title", ()), ("boil", ("Title",)), ("Title", ())]


def test_a_directive_without_words_is_no_answer():
    assert sections("Title\n=====\n\n.. autofunction:: boil\n\n.. _anchor:\n\nNext\n----\n\nreal words\n") == [
        ("Next", ("Title",), "Next\n----\n\nreal words")
    ]


def test_rules_of_literal_text_are_no_titles():
    found = sections("Title\n=====\n\nlike this::\n\n    code\n    ====\n\nmore words\n")
    assert {heading for heading, _, _ in found} == {"Title"}


def test_roles_and_marks_go_out_of_titles():
    assert plain_title("Using :func:`trio.run` and ``x``") == "Using trio.run and x"
