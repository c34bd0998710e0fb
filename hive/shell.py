"""One command line, split the way a shell would, or not at all.

Only what is understood for certain is split: words, quotes, plain variables, redirections, and the operators between
simple commands. Substitutions, control structures and anything unbalanced make the line *opaque*: a caller may then
compare it as a whole but conclude nothing from its parts, because a part could be a program.
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
_REDIRECTS = ("&>>", "<<<", "<<-", "2>&1", "1>&2", ">&2", ">&1", "2>>", "<<", ">>", ">|", "&>", "2>", "1>", "<>", "<", ">")
_STANDALONE = frozenset({"2>&1", "1>&2", ">&2", ">&1"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\}|[0-9?#@*!$-])")
_QUOTED_TEXT = re.compile(r"\$\(cat <<-? ?(['\"])([A-Za-z_]{1,32})\1\n")
_CLOSING = re.compile(r"[ \t]*\)")
_DELIMITER = re.compile(r"[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]{0,31})\1(?=[\s;&|)>]|\Z)")
_ENDS_WORD = ("", " ", "\t", "\n", ";", "&", "|")
_ALIASES = {"1>": ">", "&>": ">", "&>>": ">>", ">|": ">", "|&": "|", "\n": ";"}


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection: its operator and its target; a here-document or here-string has none."""

    operator: str
    target: str


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command.

    Attributes:
        assignments: ``NAME=value`` words in front.
        words: The command and its arguments, quotes resolved, variables as written; may be empty.
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
        self.documents: list[tuple[str, bool]] = []

    def run(self) -> Line:
        while self.at < len(self.line):
            self._step()
        if self.documents:
            raise _Opaque
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
        if not self.words and (word in _KEYWORDS or "$" in word):
            raise _Opaque
        self.words.append(word)

    def _operator(self) -> None:
        operator = next(o for o in _OPERATORS if self.line.startswith(o, self.at))
        self.at += len(operator)
        if operator == "\n" and self.documents:
            self._skip_documents()
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
        if operator in ("<<", "<<-"):
            self._document(operator)
            return
        while self.at < len(self.line) and self.line[self.at] in " \t":
            self.at += 1
        if self.at >= len(self.line) or self.line[self.at] in "()<>;&|\n":
            raise _Opaque
        target = self._word()
        if target != "/dev/null":
            self.redirects.append(Redirect(_ALIASES.get(operator, operator), "" if operator == "<<<" else target))

    def _document(self, operator: str) -> None:
        found = _DELIMITER.match(self.line, self.at)
        if not found:
            raise _Opaque
        self.at = found.end()
        self.documents.append((found[2], bool(found[1])))
        self.redirects.append(Redirect("<<", ""))

    def _skip_documents(self) -> None:
        """Read over the bodies; an unquoted one that substitutes a command is a program, not text."""
        for delimiter, quoted in self.documents:
            start = self.at
            while True:
                if self.at >= len(self.line):
                    raise _Opaque
                end = _or_end(self.line.find("\n", self.at), self.line)
                row, self.at = self.line[self.at : end], min(end + 1, len(self.line))
                if row.strip() == delimiter:
                    break
            body = self.line[start : self.at]
            if not quoted and ("$(" in body or "`" in body):
                raise _Opaque
        self.documents = []
        if self.at < len(self.line):
            self.at -= 1  # the line end behind the last delimiter separates commands

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
        if character == "`" or (character in "{}" and not self._brace_is_plain()):
            raise _Opaque
        if character == "$":
            return self._dollar()
        if character == "\\":
            self.at += 2
            return "" if self.line[self.at - 1 : self.at] == "\n" else self.line[self.at - 1 : self.at]
        self.at += 1
        return character

    def _brace_is_plain(self) -> bool:
        """``{}`` of find and a brace inside a word stay text; ``{`` as a word opens a group."""
        return self.line[self.at : self.at + 2] == "{}" or (
            self.at > 0 and self.line[self.at - 1] not in " \t\n;&|"
        )

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
            if character == "`":
                raise _Opaque
            if character == "$":
                pieces.append(self._dollar())
            elif character == "\\":
                escaped = self.line[self.at + 1 : self.at + 2]
                pieces.append(escaped if escaped in '$`"\\' else "" if escaped == "\n" else "\\" + escaped)
                self.at += 2
            else:
                pieces.append(character)
                self.at += 1
        raise _Opaque

    def _dollar(self) -> str:
        """Read a plain variable as it is written, or a quoted here-document as the text it is."""
        found = _VARIABLE.match(self.line, self.at)
        if found:
            self.at = found.end()
            return found[0]
        text = _QUOTED_TEXT.match(self.line, self.at)
        if text:
            return self._quoted_text(text.end(), text[2])
        if self.line[self.at + 1 : self.at + 2] in ("", " ", '"', "/", "|", ")", "\\"):
            self.at += 1
            return "$"
        raise _Opaque

    def _quoted_text(self, start: int, delimiter: str) -> str:
        """Read the text of ``$(cat <<'EOF'`` up to the first line that ends it, which must close the substitution."""
        at = start
        while at < len(self.line):
            end = _or_end(self.line.find("\n", at), self.line)
            if self.line[at:end].strip() == delimiter:
                closing = _CLOSING.match(self.line, end + 1)
                if not closing:
                    break
                self.at = closing.end()
                return self.line[start:at]
            at = end + 1
        raise _Opaque


def _or_end(position: int, line: str) -> int:
    return len(line) if position < 0 else position
