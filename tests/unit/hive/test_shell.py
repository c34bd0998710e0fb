"""A line is split as a shell would split it, or not at all."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hive.shell import COMMANDS_MAX, LINE_CHARS_MAX, WORDS_MAX, Command, Line, Redirect, split_line


def words(line: str) -> list[tuple[str, ...]]:
    parsed = split_line(line)
    assert parsed is not None
    return [command.words for command in parsed.commands]


@pytest.mark.parametrize(
    ("line", "commands", "operators"),
    [
        ("ls", [("ls",)], ()),
        ("a b  c", [("a", "b", "c")], ()),
        ("a && b || c; d | e |& f & g", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",)], ("&&", "||", ";", "|", "|", "&")),
        ("a\nb\n\nc", [("a",), ("b",), ("c",)], (";", ";")),
        ("a &&\n b", [("a",), ("b",)], ("&&",)),
        ("ls;", [("ls",)], ()),
        ("sleep 9 &", [("sleep", "9")], ("&",)),
        ("echo 'a && b' \"c | d\" e\\;f", [("echo", "a && b", "c | d", "e;f")], ()),
        ("echo 'it'\\''s' \"\" x", [("echo", "it's", "", "x")], ()),
        ('echo "a\\"b\\d"', [("echo", 'a"b\\d')], ()),
        ("a \\\n b", [("a", "b")], ()),
        ("ls # rm -rf /", [("ls",)], ()),
        ("echo '$HOME ${X}' '{}' '`x`'", [("echo", "$HOME ${X}", "{}", "`x`")], ()),
        ("echo \\$HOME \"\\$X\" \\{a,b\\}", [("echo", "$HOME", "$X", "{a,b}")], ()),
    ],
)
def test_what_is_understood(line: str, commands: list[tuple[str, ...]], operators: tuple[str, ...]) -> None:
    parsed = split_line(line)
    assert parsed is not None
    assert [command.words for command in parsed.commands] == commands
    assert parsed.operators == operators


@pytest.mark.parametrize(
    "line",
    [
        "", "   ", "# only a remark", "echo $(id)", "echo `id`", 'echo "$(id)"', 'echo "`id`"', "diff <(a) <(b)", "(ls)",
        "{ ls; }", "for f in *; do rm $f; done", "if true; then x; fi", "f() { x; }", "! x", "[[ -f x ]]", "echo 'x",
        'echo "x', "a &&", "&& a", "a ;; b", "| a", "a | | b", "$CMD x", "${CMD} x", "echo $((1+1))", "echo ${x:-$(y)}",
        "echo $'a'", "cat <<EOF\n$(x)\nEOF", "cat <<EOF\nno end", "cat <<EOF", "a >", "a > &", "ls >&2file",
        "git commit -m \"$(cat <<'EOF'\nx\nEOF\nrm -rf /\nEOF\n)\"", "echo {a,b}",
        "echo $HOME", 'echo "$HOME"', "echo ${X}", "echo $1", "echo $@", "ls $@-x", "ls $IFS-x", 'ls $"-x"', "ls a$", "find . -exec rm {} \\;",
        "x{,/}*", "cat <<'EOF'\nx\nEOF", "cat <<< x", "cat <<-EOF",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_opaque(line: str) -> None:
    assert split_line(line) is None


def test_assignments_and_redirections_stand_apart() -> None:
    assert split_line("A=1 B='x y' run a=b > out 2>> log < in 2>&1 > /dev/null") == Line(
        (
            Command(
                ("A=1", "B=x y"),
                ("run", "a=b"),
                (Redirect(">", "out"), Redirect("2>>", "log"), Redirect("<", "in")),
            ),
        ),
        (),
    )


def test_bounds_make_a_line_opaque() -> None:
    assert split_line("a" * LINE_CHARS_MAX) is not None
    assert split_line("a" * (LINE_CHARS_MAX + 1)) is None
    assert split_line("; ".join(["a"] * COMMANDS_MAX)) is not None
    assert split_line("; ".join(["a"] * (COMMANDS_MAX + 1))) is None
    assert split_line(" ".join(["a"] * WORDS_MAX)) is not None
    assert split_line(" ".join(["a"] * (WORDS_MAX + 1))) is None


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12), min_size=1, max_size=8))
def test_quoted_words_come_back_as_they_were(plain: list[str]) -> None:
    assert words("run " + " ".join(shlex.quote(word) for word in plain)) == [("run", *plain)]


_PIECES = st.sampled_from(["a", "rm", " ", "'", '"', "\\", "$", "(", ")", "{", "}", "`", "&", "|", ";", "<", ">", "\n", "EOF", "<<EOF\n", "=", "#"])


@settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, max_size=40).map("".join) | st.text(max_size=60))
def test_any_line_is_split_or_opaque_and_loses_no_command(line: str) -> None:
    parsed = split_line(line)
    if parsed is not None:
        assert len(parsed.commands) - len(parsed.operators) in (0, 1)
        assert all(command.words or command.assignments or command.redirects for command in parsed.commands)
        plain = line.split("'")[0].split("\\")[0].split("#")[0].split('"')[0]
        assert not set("`$(){}") & set(plain)
