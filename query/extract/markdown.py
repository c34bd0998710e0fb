"""Markdown to spans: sections under their headings, cut at block borders.

Only the block half of the parser runs: inline text is never parsed, which is where Markdown parsers meet input built to
slow them down, and a span is cut out of the file's own bytes anyway.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token

from query.spans import Outline, Range, Span, gather, heading_text

_FRONT_MATTER = re.compile(rb"\A---[ \t]*\r?\n(?:[^\n]{0,4000}\n){0,200}?---[ \t]*\r?(?:\n|\Z)")
_HTML_HEADING = re.compile(r"<h([1-6])(?:\s[^>]{0,400})?>(.{1,2000}?)</h\1\s*>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]{0,400}>")
_LINK = re.compile(r"!?\[([^\]]{0,300})\]\([^)]{0,600}\)")
_ANCHOR = re.compile(r"\{#[\w:.-]{1,100}\}\s*\Z")
_MARKS = re.compile(r"[*`]+|(?<!\w)_+|_+(?!\w)")


def extract_untrusted(data: bytes, text: str) -> list[Span]:
    """Find the sections of a Markdown file.

    Args:
        data: The blob, at most 1 MiB, UTF-8.
        text: The same, decoded.

    Returns:
        Spans in the file's order, kind ``section``; what stands before the first heading has an empty heading.
    """
    offsets, source = _lines(data, text)
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return list(_sections(data, offsets, parser.parse(source)))


def _lines(data: bytes, text: str) -> tuple[list[int], str]:
    """Give the byte offset of every line as the parser counts lines, and the text to parse.

    A carriage return alone ends a line for the parser but not for a citation, so it becomes a space here; front
    matter becomes empty lines, or its closing rule would make the last of it a heading.
    """
    front = _FRONT_MATTER.match(data)
    if front:
        head = front.group()
        text = "\n" * head.count(b"\n") + data[len(head) :].decode()
    offsets = [0, *(found.end() for found in re.finditer(rb"\n", data)), len(data)]
    return offsets, re.sub(r"\r(?!\n)", " ", text)


def _sections(data: bytes, offsets: list[int], tokens: list[Token]) -> Iterator[Span]:
    outline = Outline()
    blocks: list[Range] = []
    has_body = False
    for at, token in enumerate(tokens):
        if token.level or not token.map or token.nesting < 0:
            continue
        block = (offsets[token.map[0]], offsets[min(token.map[1], len(offsets) - 1)])
        found = _heading_of(tokens, at)
        if found:
            yield from _spans(data, outline, blocks if has_body else [])
            outline.enter(*found)
            blocks, has_body = [block], False
        else:
            blocks.append(block)
            has_body = True
    yield from _spans(data, outline, blocks if has_body else [])


def _heading_of(tokens: list[Token], at: int) -> tuple[int, str] | None:
    """Read a heading's level and text, whether it is written in Markdown or in HTML."""
    token = tokens[at]
    if token.type == "heading_open":
        return int(token.tag[1]), plain_heading(tokens[at + 1].content)
    if token.type == "html_block" and (found := _HTML_HEADING.search(token.content)):
        heading = plain_heading(found[2])
        return (int(found[1]), heading) if heading else None
    return None


def _spans(data: bytes, outline: Outline, blocks: list[Range]) -> Iterator[Span]:
    for start, end in gather(data, blocks):
        yield Span("section", outline.heading, outline.trail, start, end)


def plain_heading(raw: str) -> str:
    """Take the marks of Markdown and HTML out of a heading, for showing and for matching."""
    text = _LINK.sub(r"\1", raw[:2_000])
    text = _ANCHOR.sub("", _TAG.sub("", text))
    return heading_text(html.unescape(_MARKS.sub("", text)))
