import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.ignore import PATTERNS_MAX, Exclusions, parse_pattern_untrusted


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.md", "a.md", True),
        ("*.md", "x/a.md", True),
        ("/a.md", "x/a.md", False),
        ("x/*.md", "x/a.md", True),
        ("x/*.md", "x/y/a.md", False),
        ("x/**/a.md", "x/a.md", True),
        ("x/**/a.md", "x/y/z/a.md", True),
        ("**/a.md", "x/a.md", True),
        ("x/**", "x/y/a.md", True),
        ("docs", "docs/a.md", True),
        ("docs/", "docs", False),
        ("docs/", "docs/a.md", True),
        ("doc", "docs/a.md", False),
        ("a[0-9].md", "a7.md", True),
        ("**", "any/thing", True),
    ],
)
def test_patterns_mean_what_git_means(pattern, path, matches):
    found = parse_pattern_untrusted(pattern)
    assert found is not None
    assert found.matches(tuple(path.split("/"))) is matches


@pytest.mark.parametrize("line", ["", "   ", "# words", "x" * 300, "a//b", "/".join("a" * 40)])
def test_lines_that_are_no_pattern(line):
    assert parse_pattern_untrusted(line) is None


def test_later_lines_and_deeper_files_win():
    exclusions = Exclusions({".queryignore": "docs/\n", "docs/.queryignore": "!open.md\n"})
    assert exclusions.reason("docs/a.md") == "ignored"
    assert exclusions.reason("docs/open.md") is None
    assert exclusions.reason("src/a.md") is None


def test_attributes_count_only_where_they_are_set():
    text = "*.gen.py linguist-generated\nout/* export-ignore=true\nhide.md query-ignore\nshow.gen.py -linguist-generated\nx.md linguist-generated=false\n"
    exclusions = Exclusions({".gitattributes": text})
    assert [exclusions.reason(path) for path in ("a.gen.py", "out/b.md", "hide.md", "show.gen.py", "x.md", "c.md")] == [
        "generated", "export_ignored", "ignored", None, None, None,
    ]  # fmt: skip


def test_a_file_beyond_the_limit_ignores_everything_beneath_it():
    exclusions = Exclusions({"a/.queryignore": "x\n" * (PATTERNS_MAX + 1)})
    assert exclusions.reason("a/b.md") == "ignored"
    assert exclusions.reason("b.md") is None


def test_a_hostile_pattern_costs_little():
    pattern = parse_pattern_untrusted("*a" * 100 + "b")
    assert pattern is not None
    began = time.process_time()
    assert not pattern.matches(("a" * 250,) * 4)
    assert time.process_time() - began < 1.0


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6))
def test_any_line_is_read_without_fault(line, path):
    pattern = parse_pattern_untrusted(line)
    assert pattern is None or pattern.matches(tuple(path)) in (True, False)
