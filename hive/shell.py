"""One command line, split the way a shell would, or not at all.

Only what is understood for certain is split: words, quotes, redirections, and the operators between simple commands.
A variable or substitution of any kind, a brace, a here-document, a control structure and anything unbalanced make the line
*opaque*: a caller may then compare it as a whole but conclude nothing from its parts, because a part could be a program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_CHARS_MAX = 8192
"""A longer line is opaque."""
COMMANDS_MAX = 16
WORDS_MAX = 256

_KEYWORDS = frozenset(
    (
        "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "function", "select",
        "coproc", "{", "}", "[[", "]]", "!", "in",
    )
)  # fmt: skip
_OPERATORS = ("&&", "||", "|&", ";", "|", "&", "\n")
_REDIRECTS = ("&>>", "2>&1", "1>&2", ">&2", ">&1", "2>>", ">>", ">|", "&>", "2>", "1>", "<>", "<", ">")
_STANDALONE = frozenset({"2>&1", "1>&2", ">&2", ">&1"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_ENDS_WORD = ("", " ", "\t", "\n", ";", "&", "|")
_ALIASES = {"1>": ">", "&>": ">", "&>>": ">>", ">|": ">", "|&": "|", "\n": ";"}


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection: its operator and its target."""

    operator: str
    target: str


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command.

    Attributes:
        assignments: ``NAME=value`` words in front.
        words: The command and its arguments, quotes resolved; may be empty.
        redirects: In order.
    """

    assignments: tuple[str, ...]
    words: tuple[str, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A whole line: commands, and the operator behind each but the last (``&& || ; | &``); a last ``&`` counts."""

    commands: tuple[Command, ...]
    operators: tuple[str, ...]


class _Opaque(Exception):
    """The line is beyond what this room understands."""


def split_line(line: str) -> Line | None:
    """Split a command line into simple commands.

    Args:
        line: As the agent wanted to run it; at most LINE_CHARS_MAX characters.

    Returns:
        The parts, or None where the line is opaque, empty or too long.
    """
    trimmed = line.strip(" \t\n")
    if len(line) > LINE_CHARS_MAX or not trimmed:
        return None
    try:
        return _Splitter(trimmed).run()
    except _Opaque:
        return None


class _Splitter:
    """One walk over the characters of one line; every method leaves ``at`` behind what it read."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0
        self.commands: list[Command] = []
        self.operators: list[str] = []
        self.assignments: list[str] = []
        self.words: list[str] = []
        self.redirects: list[Redirect] = []

    def run(self) -> Line:
        while self.at < len(self.line):
            self._step()
        if self.words or self.assignments or self.redirects:
            self._end_command()
        elif self.operators and self.operators[-1] == ";":
            self.operators.pop()
        elif not self.operators or self.operators[-1] != "&":
            raise _Opaque
        return Line(tuple(self.commands), tuple(self.operators))

    def _step(self) -> None:
        rest = self.line[self.at : self.at + 3]
        if rest[0] in " \t":
            self.at += 1
        elif rest[:2] == "\\\n":
            self.at += 2
        elif rest[0] == "#":
            self.at = _or_end(self.line.find("\n", self.at), self.line)
        elif self._is_redirect():
            self._redirect()
        elif rest[0] in ";&|\n":
            self._operator()
        elif rest[0] in "()":
            raise _Opaque
        else:
            self._take_word(self._word())

    def _take_word(self, word: str) -> None:
        if len(self.words) >= WORDS_MAX:
            raise _Opaque
        if not self.words and _ASSIGNMENT.match(word):
            self.assignments.append(word)
            return
        if not self.words and word in _KEYWORDS:
            raise _Opaque
        self.words.append(word)

    def _operator(self) -> None:
        operator = next(o for o in _OPERATORS if self.line.startswith(o, self.at))
        self.at += len(operator)
        if not (self.words or self.assignments or self.redirects):
            if operator == "\n":
                return  # an empty line, or a line end behind an operator
            raise _Opaque
        self._end_command()
        self.operators.append(_ALIASES.get(operator, operator))

    def _end_command(self) -> None:
        if len(self.commands) >= COMMANDS_MAX:
            raise _Opaque
        self.commands.append(Command(tuple(self.assignments), tuple(self.words), tuple(self.redirects)))
        self.assignments, self.words, self.redirects = [], [], []

    def _is_redirect(self) -> bool:
        return any(self.line.startswith(operator, self.at) for operator in _REDIRECTS)

    def _redirect(self) -> None:
        operator = next(r for r in _REDIRECTS if self.line.startswith(r, self.at))
        self.at += len(operator)
        if operator in _STANDALONE:
            if self.line[self.at : self.at + 1] not in _ENDS_WORD:
                raise _Opaque
            return
        while self.at < len(self.line) and self.line[self.at] in " \t":
            self.at += 1
        if self.at >= len(self.line) or self.line[self.at] in "()<>;&|\n":
            raise _Opaque
        target = self._word()
        if target != "/dev/null":
            self.redirects.append(Redirect(_ALIASES.get(operator, operator), target))

    def _word(self) -> str:
        pieces: list[str] = []
        while self.at < len(self.line):
            character = self.line[self.at]
            if character in " \t\n;&|<>()":
                break
            pieces.append(self._piece(character))
        return "".join(pieces)

    def _piece(self, character: str) -> str:
        if character == "'":
            return self._single()
        if character == '"':
            return self._double()
        if character in "`${}":
            raise _Opaque
        if character == "\\":
            self.at += 2
            return "" if self.line[self.at - 1 : self.at] == "\n" else self.line[self.at - 1 : self.at]
        self.at += 1
        return character

    def _single(self) -> str:
        end = self.line.find("'", self.at + 1)
        if end < 0:
            raise _Opaque
        text, self.at = self.line[self.at + 1 : end], end + 1
        return text

    def _double(self) -> str:
        pieces: list[str] = []
        self.at += 1
        while self.at < len(self.line):
            character = self.line[self.at]
            if character == '"':
                self.at += 1
                return "".join(pieces)
            if character in "`$":
                raise _Opaque
            if character == "\\":
                escaped = self.line[self.at + 1 : self.at + 2]
                pieces.append(escaped if escaped in '$`"\\' else "" if escaped == "\n" else "\\" + escaped)
                self.at += 2
            else:
                pieces.append(character)
                self.at += 1
        raise _Opaque


def _or_end(position: int, line: str) -> int:
    return len(line) if position < 0 else position
