"""Patterns a repository itself states: ``.queryignore`` files and three attributes in ``.gitattributes``.

Both use git's glob language. Every pattern is matched part by part with atomic globs, in time that grows with pattern
times path, so a hostile pattern cannot stall the indexer.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PATTERNS_MAX = 1_000
"""Patterns of one file; further lines are not read, and the file counts as ignoring everything beneath it."""
PATTERN_CHARS_MAX = 256
PATTERN_PARTS_MAX = 32

IGNORE_FILE = ".queryignore"
ATTRIBUTES_FILE = ".gitattributes"
_ATTRIBUTES = {"linguist-generated": "generated", "export-ignore": "export_ignored", "query-ignore": "ignored"}


@dataclass(frozen=True, slots=True)
class Pattern:
    """One line of an ignore file.

    Attributes:
        parts: A compiled glob a path part, None for ``**``.
        anchored: Whether it is fixed to the folder of its file.
        folders_only: Whether it ends with a slash.
        negated: Whether it takes back an earlier line.
    """

    parts: tuple[re.Pattern[str] | None, ...]
    anchored: bool
    folders_only: bool
    negated: bool

    def matches(self, path: tuple[str, ...]) -> bool:
        """Whether it matches a path or one of the folders above it.

        Args:
            path: The parts below the folder of the file, the name last.
        """
        longest = len(path) - 1 if self.folders_only else len(path)
        return any(self._matches_whole(path[:length]) for length in range(1, longest + 1))

    def _matches_whole(self, path: tuple[str, ...]) -> bool:
        if not self.anchored:
            return bool(self.parts[0] and self.parts[0].match(path[-1]))
        reached = {0}
        for part in self.parts:
            if part is None:
                reached = set(range(min(reached), len(path) + 1)) if reached else set()
            else:
                reached = {at + 1 for at in reached if at < len(path) and part.match(path[at])}
        return len(path) in reached


def parse_pattern_untrusted(line: str) -> Pattern | None:
    """Read one pattern.

    Args:
        line: A line of a file that a hostile repository wrote.

    Returns:
        The pattern; None for a blank line, a comment, or one beyond the limits.
    """
    text = line.rstrip("\r\n").rstrip(" ")
    negated = text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    if not text or (line.startswith("#")) or len(text) > PATTERN_CHARS_MAX:
        return None
    folders_only = text.endswith("/")
    pieces = text.strip("/").split("/")
    anchored = len(pieces) > 1 or text.startswith("/")
    if not all(pieces) or len(pieces) > PATTERN_PARTS_MAX:
        return None
    parts = tuple(None if piece == "**" else re.compile(fnmatch.translate(piece)) for piece in pieces)
    if parts == (None,):
        return Pattern((re.compile(".*"),), False, folders_only, negated)
    return Pattern(parts, anchored, folders_only, negated)


class Exclusions:
    """All ignore and attribute files of one tree.

    Args:
        files: Path of each such file to its text.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._ignores: list[tuple[tuple[str, ...], list[Pattern]]] = []
        self._attributes: list[tuple[tuple[str, ...], list[tuple[Pattern, dict[str, bool]]]]] = []
        self._unreadable: list[tuple[str, ...]] = []
        for path in sorted(files, key=lambda name: (name.count("/"), name)):
            base = tuple(path.split("/")[:-1])
            lines = files[path].split("\n")
            if len(lines) > PATTERNS_MAX:
                self._unreadable.append(base)
            elif path.endswith(IGNORE_FILE):
                self._ignores.append((base, [p for p in map(parse_pattern_untrusted, lines) if p]))
            else:
                self._attributes.append((base, list(_attribute_lines(lines))))

    def reason(self, path: str) -> str | None:
        """Say why a path is left out by the repository's own word, or None.

        Args:
            path: A file's path from the root.

        Returns:
            ``ignored``, ``generated``, ``export_ignored`` or None. Deeper files and later lines win.
        """
        parts = tuple(path.split("/"))
        if any(parts[: len(base)] == base for base in self._unreadable):
            return "ignored"
        ignored = False
        for base, patterns in self._ignores:
            if parts[: len(base)] == base:
                for pattern in patterns:
                    if pattern.matches(parts[len(base) :]):
                        ignored = not pattern.negated
        return "ignored" if ignored else self._attribute_reason(parts)

    def _attribute_reason(self, parts: tuple[str, ...]) -> str | None:
        values: dict[str, bool] = {}
        for base, lines in self._attributes:
            if parts[: len(base)] == base:
                for pattern, attributes in lines:
                    if pattern.matches(parts[len(base) :]):
                        values.update(attributes)
        return next((_ATTRIBUTES[name] for name in _ATTRIBUTES if values.get(name)), None)


def _attribute_lines(lines: list[str]) -> Iterator[tuple[Pattern, dict[str, bool]]]:
    """Read the lines that set one of our three attributes."""
    for line in lines:
        words = line[: 4 * PATTERN_CHARS_MAX].split()
        if len(words) < 2 or words[0].startswith(("#", "!")):
            continue
        attributes = {}
        for word in words[1:]:
            name, _, value = word.lstrip("-!").partition("=")
            if name in _ATTRIBUTES:
                attributes[name] = not word.startswith(("-", "!")) and value.casefold() != "false"
        pattern = parse_pattern_untrusted(words[0].strip('"'))
        if attributes and pattern:
            yield pattern, attributes
