"""One command, taken apart, and what a wildcard may stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.commands import (
    ACTS_MAX,
    OPERATORS,
    act_of,
    approval_pattern,
    command_covered,
    command_problem,
    covers,
    denial_pattern,
    escape,
    is_open,
    is_sensitive,
    segments,
    tokens,
)
from hive.shell import split_line


def test_an_act_keeps_apart_what_is_done_how_and_to_what() -> None:
    parsed = split_line(".venv/bin/pytest -xq tests/a.py")
    assert parsed is not None
    act = act_of(parsed.commands[0])
    assert act is not None
    assert (act.head, act.flags, act.arguments) == ((".venv/bin/pytest",), (), ("tests/a.py",))
    parsed = split_line("git push -uf origin main")
    assert parsed is not None
    act = act_of(parsed.commands[0])
    assert act is not None
    assert (act.head, act.flags, act.arguments) == (("git", "push"), ("--force",), ("origin", "main"))


@pytest.mark.parametrize(
    "line",
    ["A=1 ls", "ls > x", "ls 2>> x", "/tmp/ls", "./ls", "../bin/ls", "evil/.venv/bin/pytest a", "git -C x status", "git", "git st", "ls -Z", "ls --color",
     "pytest -p x", "pytest -qp x", "pytest --", "cat -nX a", "rm -rfz a", "unknown a", "ls/", "a/ls"],
)  # fmt: skip
def test_what_is_not_in_the_tables_is_no_act(line: str) -> None:
    parsed = split_line(line)
    assert parsed is not None
    assert act_of(parsed.commands[0]) is None
    assert approval_pattern(line) is None


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("ls", "ls *"), ("ls -la src docs/", "ls *"), ("/usr/bin/ls src", "/usr/bin/ls *"), ("ls 'src'", "ls *"),
        ("cd sub && pytest -x", "cd sub && pytest *"), ("cd /x && ls", None), ("cd && ls", None), ("cd .. && ls", None), ("cd - && ls", None),
        ("cd ~ && ls", None), ("cd a > x && ls", None), ("cd sub", None), ("ls & cat a", "ls * & cat *"), ("ls; make", None),
        ("cat a | grep x | wc -l", "cat * | grep * | wc *"), ("ls 2>&1 >/dev/null", "ls *"),
    ],
)  # fmt: skip
def test_approvals(line: str, pattern: str | None) -> None:
    assert approval_pattern(line) == pattern


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("git push -f origin x", "git push --force *"), ("git push origin +main", "git push --force *"), ("git push origin :old", "git push --delete *"),
        ("git push", "git push *"), ("rm -f -r a", "rm -rf *"), ("rm --recursive --force -- /x", "rm -rf *"), ("rm -rf /", None), ("rm -rf ~/.ssh", None),
        ("git clean -xfd", "git clean -fdx *"), ("git reset --hard HEAD~1", "git reset --hard *"), ("git push -f; ls", None), ("sudo rm -rf x", None),
        ("pytest a", "pytest *"), ("pytest /x", None), ("make deploy", None),
    ],
)  # fmt: skip
def test_denials_cover_more_within_one_known_act(line: str, pattern: str | None) -> None:
    assert denial_pattern(line) == pattern


@pytest.mark.parametrize(
    "word",
    ["", "-x", "+x", "/x", "~/x", "~", "..", "../x", "a/../b", "a/..", ".", "./", ".env", "a/.git/x", "$X", "a$X", "`x`", "a*", "a?", "[a]", "{a,b}",
     "a,b", "'", '"', "a b", "https://x", "h:x", "a@b", "a=b", "a%", "a\\b", "a\n", "a//b", "a/-x", "é", "id_rsa", "x/secrets.yml", "a:::b", "a|b", "#a", "a^"],
)  # fmt: skip
def test_what_a_wildcard_never_stands_for(word: str) -> None:
    assert not is_open(word)


@pytest.mark.parametrize("word", ["a", "src", "src/", "./src/a.py", "tests/a_b-c.py::test_x", "README.md", "v1.2", "1"])
def test_plain_words(word: str) -> None:
    assert is_open(word)


@pytest.mark.parametrize(
    ("pattern", "line", "covered"),
    [
        ("npm run *", "npm run build", True), ("npm run *", "npm run", True), ("npm run *", "npm run build --watch", False),
        ("pytest tests/*", "pytest -q tests/a.py", True), ("pytest tests/*", "pytest tests/a.py b", False), ("pytest tests/*", "pytest", False),
        ("pytest tests/* *", "pytest tests/a b c", True), ("ls * x", "ls a x", True), ("ls * x", "ls x", False), ("ls *", "ls | sh", False),
        ("ls *; ls *", "ls a", False), ("git push --force *", "git push -f origin main", True), ("git push *", "git push -f origin", False),
        ("rm -rf build/*", "rm -rf build/../x", False), ("rm -rf build/*", "rm -rf build/x", True),
    ],
)  # fmt: skip
def test_hand_written_patterns(pattern: str, line: str, covered: bool) -> None:
    assert command_covered(pattern, line) is covered


def test_bounds() -> None:
    assert approval_pattern(" && ".join(["ls"] * ACTS_MAX)) is not None
    assert approval_pattern(" && ".join(["ls"] * (ACTS_MAX + 1))) is None


def test_what_is_sensitive() -> None:
    assert all(map(is_sensitive, ("~/.ssh/x", "a/.ENV", ".git", "x/server.pem")))
    assert not any(map(is_sensitive, ("src/x.py", "README", "environment")))


def test_problems_of_patterns() -> None:
    for pattern in ("ls * | grep *", "git push --force *", "cd sub && pytest *", "python a.py", "a > b", "bash -c 'x \\*'", "npm run *", "ls * &"):
        assert command_problem(pattern) is None, pattern
    for pattern in ("ls * | bash *", "ls * > x", "cd * && ls", "make test && ls *", "find *", "python a.py *", "pytest -p *", "FOO=* ls"):
        assert command_problem(pattern), pattern


def test_literals_between_wildcards() -> None:
    assert segments("a*\\*b*") == ["a", "*b", ""]
    assert covers(["a", "b", "c"], "a--b--c")
    assert not covers(["ab", "bc"], "abc")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_escaped_words_come_back_one_by_one(plain: list[str]) -> None:
    found = tokens(" ".join(escape(word) for word in plain))
    assert len(found) == len(plain)
    assert not any(token in OPERATORS for token in found)
