"""reStructuredText to spans: sections under their titles and described objects, by a scanner of lines.

The full parser of the format reads other files (``include``, ``raw``) and runs directives; quoting needs only where
sections begin and end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from query.spans import Outline, Range, Span, gather, heading_text

_RULE = re.compile(r"([!-/:-@\[-`{-~])\1*\s*\Z")
_OBJECT = re.compile(
    r"( {0,40})\.\. (?:[a-z]{1,8}:)?(?:auto)?(?:function|method|class|exception|attribute|data|decorator|module|option|setting"
    r"|classmethod|staticmethod|property|envvar|describe)(?:::) +(\S.{0,300})"
)
_COMMENT = re.compile(r"( {0,40})\.\.(?: (?!\S{1,80}::|_|\[|\|)|\s*\Z)")
_MARKUP = re.compile(r"\s{0,200}(?:\.\. |:[\w-]{1,40}:(?:\s|\Z))")
_ROLE = re.compile(r":[a-z:+-]{1,40}:`~?\.?([^`<]{1,300})(?:<[^`]{0,300}>)?`")
_MARKS = re.compile(r"[`*|]+|(?<=\w)__?(?=\s|\Z)")
_OBJECT_LEVEL = 100
"""Described objects lie under every title; a more indented one lies deeper."""

_Line = tuple[int, int, str]
"""First byte, byte behind the line, its text without the line end."""


def extract_untrusted(data: bytes, text: str) -> list[Span]:
    """Find the sections and described objects of a reStructuredText file.

    Args:
        data: The blob, at most 1 MiB, UTF-8.
        text: The same, decoded; the scanner reads the bytes.

    Returns:
        Spans in the file's order, kind ``section``; comments are left out.
    """
    del text
    return list(_Scanner(data).run())


class _Scanner:
    """One pass over the lines of a file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.lines = _split(data)
        self._outline = Outline()
        self._levels: list[str] = []
        self._blocks: list[Range] = []
        self._objects: list[int] = []
        self._body = False

    def run(self) -> Iterator[Span]:
        at = 0
        while at < len(self.lines):
            title = _title_at(self.lines, at)
            if title:
                height, style, words = title
                yield from self._flush()
                self._objects.clear()
                self._outline.enter(self._level(style), words)
                self._take(at, at + height, body=False)
                at += height
                continue
            if self._closes(at):
                yield from self._flush()
                self._outline.leave(_OBJECT_LEVEL + self._objects.pop())
                continue
            comment = _COMMENT.match(self.lines[at][2])
            if comment:
                at = self._behind(at, len(comment[1]))
                continue
            found = _OBJECT.match(self.lines[at][2])
            if found:
                yield from self._flush()
                self._objects.append(len(found[1]))
                self._outline.enter(_OBJECT_LEVEL + len(found[1]), _object_name(found[2]))
            at = self._paragraph(at)
        yield from self._flush()

    def _level(self, style: str) -> int:
        """Titles rank by the order in which their styles first appear, as the format says."""
        if style not in self._levels:
            self._levels.append(style)
        return self._levels.index(style) + 1

    def _closes(self, at: int) -> bool:
        """Whether a line stands at or left of the innermost described object, and so ends it."""
        line = self.lines[at][2]
        return bool(self._objects) and bool(line.strip()) and _indent(line) <= self._objects[-1]

    def _behind(self, at: int, indent: int) -> int:
        """Find the line behind the indented block that begins at a line."""
        at += 1
        while at < len(self.lines) and (not self.lines[at][2].strip() or _indent(self.lines[at][2]) > indent):
            at += 1
        return at

    def _paragraph(self, at: int) -> int:
        """Take lines up to and with the next blank one; at least one line."""
        start = at
        at += 1
        while at < len(self.lines) and self.lines[at - 1][2].strip() and not self._begins(at):
            at += 1
        self._take(start, at, body=True)
        return at

    def _begins(self, at: int) -> bool:
        line = self.lines[at][2]
        return bool(_title_at(self.lines, at) or _OBJECT.match(line) or _COMMENT.match(line) or self._closes(at))

    def _take(self, first: int, behind: int, *, body: bool) -> None:
        block = (self.lines[first][0], self.lines[behind - 1][1])
        if self._blocks and self._blocks[-1][1] != block[0]:
            self._blocks.append((block[0], block[0]))
        self._blocks.append(block)
        self._body = self._body or (body and any(_is_prose(line[2]) for line in self.lines[first:behind]))

    def _flush(self) -> Iterator[Span]:
        blocks, self._blocks = self._blocks, []
        body, self._body = self._body, False
        for run in _unbroken(blocks) if body else ():
            for start, end in gather(self.data, run):
                yield Span("section", self._outline.heading, self._outline.trail, start, end)


def _unbroken(blocks: list[Range]) -> Iterator[list[Range]]:
    """Split blocks where something was left out between them, so that no span holds it."""
    run: list[Range] = []
    for block in blocks:
        if run and run[-1][1] != block[0]:
            yield run
            run = []
        if block[0] != block[1]:
            run.append(block)
    if run:
        yield run


def _is_prose(line: str) -> bool:
    """Whether a line says something: not blank, not a directive, target or option alone."""
    return bool(line.strip()) and not _MARKUP.match(line)


def _split(data: bytes) -> list[_Line]:
    lines: list[_Line] = []
    start = 0
    while start < len(data):
        end = data.find(b"\n", start) + 1 or len(data)
        lines.append((start, end, data[start:end].decode(errors="replace").rstrip("\r\n").expandtabs(8)))
        start = end
    return lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _title_at(lines: list[_Line], at: int) -> tuple[int, str, str] | None:
    """Recognise a title that begins at a line.

    Returns:
        How many lines it takes, its style (the mark, doubled if there is one above too), and its text; or None.
    """
    text = lines[at][2]
    below = lines[at + 1][2] if at + 1 < len(lines) else ""
    rule = _RULE.match(text)
    if rule and len(text.strip()) >= 3:
        third = lines[at + 2][2] if at + 2 < len(lines) else ""
        if below.strip() and third.strip() == text.strip() and len(text.strip()) >= len(below.strip()):
            return 3, rule[1] * 2, plain_title(below)
        return None
    under = _RULE.match(below)
    if under and text.strip() and not text.startswith(" ") and len(below.strip()) >= max(3, len(text.rstrip()) - 1):
        return 2, under[1], plain_title(text)
    return None


def plain_title(raw: str) -> str:
    """Take roles and marks out of a title, for showing and for matching."""
    return heading_text(_MARKS.sub("", _ROLE.sub(r"\1", raw[:2_000])))


def _object_name(signature: str) -> str:
    """Name a described object: what stands before its arguments."""
    return heading_text(re.split(r"[(\s=]", signature.strip(), maxsplit=1)[0] or signature)
