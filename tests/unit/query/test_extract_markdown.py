from query.extract.markdown import extract_untrusted, plain_heading


def sections(text: str) -> list[tuple[str, tuple[str, ...], str]]:
    data = text.encode()
    return [(span.heading, span.trail, data[span.start : span.end].decode()) for span in extract_untrusted(data, text)]


def test_sections_know_their_headings():
    found = sections("intro words\n\n# One\n\nfirst\n\n## Two\n\nsecond\n\n# Three\n\nthird\n")
    assert found == [
        ("", (), "intro words"),
        ("One", (), "# One\n\nfirst"),
        ("Two", ("One",), "## Two\n\nsecond"),
        ("Three", (), "# Three\n\nthird"),
    ]


def test_a_heading_with_nothing_below_is_no_answer():
    assert sections("# One\n\n## Two\n\ntext here\n") == [("Two", ("One",), "## Two\n\ntext here")]


def test_underlined_and_html_headings_count():
    found = sections('Title\n=====\n\nwords\n\n<h3 id="x">Inner <b>part</b></h3>\n\nmore words\n')
    assert [entry[:2] for entry in found] == [("Title", ()), ("Inner part", ("Title",))]


def test_a_hash_inside_a_fence_is_no_heading():
    found = sections("# Run\n\n```sh\n# not a heading\nmake\n```\n")
    assert [entry[0] for entry in found] == ["Run"]


def test_front_matter_is_left_out():
    found = sections("---\ntitle: hidden\n---\n# One\n\nwords\n")
    assert found == [("One", (), "# One\n\nwords")]


def test_offsets_hold_with_carriage_returns_and_wide_letters():
    text = "# Öl\r\n\r\nwörter\rmehr\r\n\r\n## Zwei\r\n\r\nende hier\r\n"
    assert sections(text) == [("Öl", (), "# Öl\r\n\r\nwörter\rmehr"), ("Zwei", ("Öl",), "## Zwei\r\n\r\nende hier")]


def test_long_sections_are_cut_at_block_borders():
    paragraphs = [f"paragraph {number} " + "word " * 120 for number in range(6)]
    found = sections("# Long\n\n" + "\n\n".join(paragraphs) + "\n")
    assert len(found) > 1
    assert all(entry[0] == "Long" for entry in found)
    assert "".join(entry[2] for entry in found).count("paragraph") == 6


def test_marks_go_out_of_headings():
    assert plain_heading("The `run` [command](#run) & **all** of_its_names {#anchor}") == "The run command & all of_its_names"
