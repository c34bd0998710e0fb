"""Python to spans: docstrings and public signatures, never a line of a body.

A signature runs from ``def`` or ``class`` to its colon, found from the syntax tree, so a function written on one line
gives its head and not its body. Decorators, comments, private names and everything inside a function stay out.
"""

from __future__ import annotations

import ast
import itertools
import re
import warnings
from collections.abc import Iterator

from query.spans import SPAN_BYTES_GOAL, Range, Span, cut, gather, trimmed

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BLANK_LINE = re.compile(rb"\n[ \t]*\r?\n")
_MARK = b"\xef\xbb\xbf"
NESTING_MAX = 8

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_BRANCHES = (ast.If, ast.Try, ast.TryStar, ast.With)


class _Source:
    """A module's bytes with the arithmetic from the tree's positions to byte offsets."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        skip = len(_MARK) if data.startswith(_MARK) else 0
        self._starts = [skip, *(found.end() for found in _LINE_END.finditer(data))]

    def at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def start(self, node: ast.stmt | ast.expr | ast.arg | ast.keyword) -> int:
        return self.at(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        return self.at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def extract_untrusted(data: bytes, text: str) -> list[Span] | None:
    """Find the docstrings and public signatures of a Python module.

    Args:
        data: The blob, at most 1 MiB, UTF-8.
        text: The same, decoded. It is parsed as it is: a coding line cannot make it mean something else.

    Returns:
        Spans in the file's order, kinds ``docstring`` and ``signature``, or None if it is not Python this interpreter
        can parse.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.removeprefix("\ufeff"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    source = _Source(data)
    return [*_docstring(source, tree.body, "", ()), *_walk(source, tree.body, ())]


def _walk(source: _Source, body: list[ast.stmt], trail: tuple[str, ...]) -> Iterator[Span]:
    """Visit the definitions of a module or class, also those under ``if``, ``try`` and ``with``."""
    for at, node in enumerate(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if _is_public(node.name) and len(trail) < NESTING_MAX:
                yield from _definition(source, node, trail)
        elif isinstance(node, _BRANCHES):
            for part in _branches(node):
                yield from _walk(source, part, trail)
        elif at and (name := _assigned(body[at - 1])):
            yield from _attribute(source, node, (*trail, name))


def _branches(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, [])
    for handler in getattr(node, "handlers", []):
        yield handler.body


def _is_public(name: str) -> bool:
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def _assigned(node: ast.stmt) -> str | None:
    """Name what an assignment sets, if it is one public name."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) and _is_public(target.id) else None


def _attribute(source: _Source, node: ast.stmt, path: tuple[str, ...]) -> Iterator[Span]:
    """Give the string that stands under an assignment and documents it; the assignment itself is code."""
    if _is_text(node):
        yield from _pieces(source, (source.start(node), source.end(node)), ".".join(path), path[:-1])


def _definition(source: _Source, node: _Definition, trail: tuple[str, ...]) -> Iterator[Span]:
    path = (*trail, node.name)
    name = ".".join(path)
    head = (source.start(node), _colon(source, node))
    if _is_text(node.body[0]):
        words = (source.start(node.body[0]), source.end(node.body[0]))
        between = source.data[head[1] : words[0]]
        if between.strip():
            yield from _signature(source, head, name, trail)
            yield from _pieces(source, words, name, trail)
        else:
            yield from _pieces(source, (head[0], words[1]), name, trail)
    else:
        yield from _signature(source, head, name, trail)
    if isinstance(node, ast.ClassDef):
        yield from _walk(source, node.body, path)


def _signature(source: _Source, head: Range, name: str, trail: tuple[str, ...]) -> Iterator[Span]:
    for start, end in cut(source.data, *head):
        yield Span("signature", name, trail, start, end)


def _docstring(source: _Source, body: list[ast.stmt], name: str, trail: tuple[str, ...]) -> Iterator[Span]:
    if body and _is_text(body[0]):
        yield from _pieces(source, (source.start(body[0]), source.end(body[0])), name, trail)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _pieces(source: _Source, whole: Range, name: str, trail: tuple[str, ...]) -> Iterator[Span]:
    """Cut a docstring at its blank lines where it is long."""
    start, end = whole
    if end - start <= SPAN_BYTES_GOAL:
        kept = trimmed(source.data, start, end)
        if kept:
            yield Span("docstring", name, trail, *kept)
        return
    edges = [start, *(found.end() for found in _BLANK_LINE.finditer(source.data, start, end)), end]
    for low, high in gather(source.data, itertools.pairwise(edges)):
        yield Span("docstring", name, trail, low, high)


def _colon(source: _Source, node: _Definition) -> int:
    """Find the byte behind the colon that ends a definition's head.

    Behind the last expression of the head only brackets, commas, blanks and comments can stand before the colon, so
    the first colon outside a comment is it.
    """
    at = max([source.start(node), *(source.end(part) for part in _head_parts(node))])
    data, limit = source.data, source.start(node.body[0])
    while at < limit and data[at] != 0x3A:
        if data[at] == 0x23:
            found = _LINE_END.search(data, at, limit)
            at = found.end() if found else limit
        else:
            at += 1
    return min(at + 1, limit)


def _head_parts(node: _Definition) -> Iterator[ast.AST]:
    """List the expressions of a head that may hold a colon of their own."""
    yield from getattr(node, "type_params", [])
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        yield from node.keywords
        return
    arguments = node.args
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (part for part in (arguments.vararg, arguments.kwarg, node.returns) if part)
    yield from arguments.defaults
    yield from (default for default in arguments.kw_defaults if default)
