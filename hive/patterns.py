"""One command line, path or address -> the pattern it is an instance of; and whether a pattern covers another one.

A pattern is data for the matcher here, never an expression. It is a line of words with one wildcard, ``*``; a literal
star, space, quote or backslash inside a word stands behind a backslash. A wildcard in an approval stands for plain
relative words inside the folder and for nothing else, and only behind acts in the tables of ``hive.programs``; whatever
else could make an act another act stays, and mostly that is the whole line, byte for byte. Where a secret stood in it there
is no pattern at all. What was denied may cover more, because that is caution: see :func:`hive.commands.denial_pattern`.

Two lines are instances of one pattern if they have the same pattern; a pattern written by hand is under the same rules.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata

from hive import commands
from hive.commands import covers, escape, is_open, segments
from hive.redact import PLACEHOLDERS, redact, strip_hidden

PATTERN_BYTES_MAX = 512
SUBJECT_CHARS_MAX = 8192
WILDCARDS_MAX = 8

_TOOLS = {
    "exec_command": "Bash", "shell": "Bash", "local_shell": "Bash", "local_shell_call": "Bash", "run_shell_command": "Bash",
    "bash": "Bash", "write_file": "Write", "write": "Write", "read_file": "Read", "read": "Read", "replace": "Edit",
    "edit": "Edit", "MultiEdit": "Edit", "apply_patch": "Edit", "web_fetch": "WebFetch", "webfetch": "WebFetch",
}  # fmt: skip
_KINDS = {
    "Bash": "command", "Read": "path", "Write": "path", "Edit": "path", "NotebookEdit": "path", "NotebookRead": "path",
    "LS": "path", "Glob": "path", "Grep": "path", "WebFetch": "url",
}  # fmt: skip
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}\Z")
_URL = re.compile(r"(https?)://([A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]{2,39}\](?::[0-9]{1,5})?)(?:[/?#]|\Z)")
_EXTENSION = re.compile(r".+(\.[A-Za-z0-9]{1,10})\Z")
_FOLDER_DEPTH_MIN = 1
"""Slashes in a session's folder from which it counts as one: neither everything nor the home folder itself."""
_BLANKS = re.compile(r"[ \t]+")
_QUOTING = re.compile(r"['\"\\\\#]")
"""Where one of these stands in a line, blanks may be part of a word."""


def tool_name(tool: str) -> str:
    """Fold the agents' names for one tool into one: Codex's ``exec_command`` is ``Bash``."""
    return _TOOLS.get(tool, tool)


def is_tool_name(tool: str) -> bool:
    """Whether a text is a tool's one proper name."""
    return _TOOL_NAME.match(tool) is not None and tool_name(tool) == tool


def kind_of(tool: str) -> str:
    """Say what a tool is asked for: ``command``, ``path``, ``url``, or ``other``."""
    return _KINDS.get(tool_name(tool), "other")


def pattern_of(tool: str, subject: str, *, folder: str = "", denied: bool = False) -> str | None:
    """Generalise what a tool was asked for.

    Args:
        tool: The agent's name of the tool.
        subject: The command line, file path or address, as it was asked for, or redacted: both have the same pattern.
        folder: The folder the session works in, absolute; without it no absolute path is inside anything.
        denied: Whether this was, or is to be compared with what was, denied.

    Returns:
        A pattern of at most PATTERN_BYTES_MAX bytes without secrets, or None where nothing sound can be said: empty,
        too long, not in normal form, hidden characters, several lines that are not understood, a secret.
    """
    tool = tool_name(tool)
    if not subject or len(subject) > SUBJECT_CHARS_MAX or not unicodedata.is_normalized("NFC", subject):
        return None
    clean = redact(subject)
    if strip_hidden(subject) != subject or any(word in clean for word in PLACEHOLDERS):
        return None
    kind = kind_of(tool)
    if kind == "command":
        pattern = _command_pattern(clean.strip(" \t\n"), denied)
    elif kind == "path":
        pattern = _path_pattern(clean, folder)
    elif kind == "url":
        pattern = _url_pattern(clean)
    else:
        pattern = escape(clean, space=False)
    return None if pattern is None or pattern_problem(tool, pattern) or redact(pattern) != pattern else pattern


def _command_pattern(line: str, denied: bool) -> str | None:
    found = commands.denial_pattern(line) if denied else commands.approval_pattern(line)
    if found is not None and len(segments(found)) <= WILDCARDS_MAX + 1 and len(found.encode()) <= PATTERN_BYTES_MAX:
        return found
    exact = line if _QUOTING.search(line) else _BLANKS.sub(" ", line)
    return exact.replace("\\", "\\\\").replace("*", "\\*")


def _path_pattern(path: str, folder: str) -> str:
    inside = _inside(path, folder)
    parent, name = posixpath.split(inside)
    extension = _EXTENSION.match(name)
    if not parent or not extension or not is_open(inside) or inside.startswith("./"):
        return escape(path if inside.startswith("/") else inside, space=False)
    return f"{escape(parent, space=False)}/*{extension[1]}"


def _inside(path: str, folder: str) -> str:
    """The path from the session's folder on, where it is inside and says so plainly; else the path as it is."""
    root = redact(folder).rstrip("/")
    if root.count("/") < _FOLDER_DEPTH_MIN or not root.startswith(("/", "~/")) or not path.startswith(f"{root}/"):
        return path
    rest = path[len(root) + 1 :]
    return rest if is_open(rest) else path


def _url_pattern(url: str) -> str | None:
    found = _URL.match(url)
    return f"{found[1]}://{found[2].lower()}/*" if found else None


def pattern_problem(tool: str, pattern: str) -> str | None:
    """Say what is wrong with a pattern, whoever wrote it; None where it is sound.

    A pattern names a tool and a first argument, has few wildcards, no hidden characters, and does not put a wildcard
    where a program would take another program: that would be as broad as no pattern at all.

    Args:
        tool: The tool it is for.
        pattern: Anything.

    Returns:
        One phrase, or None.
    """
    if not is_tool_name(tool):
        return "the tool has no proper name"
    if not 1 <= len(pattern.encode(errors="replace")) <= PATTERN_BYTES_MAX:
        return "it is empty or too long"
    if not is_plain(pattern) or pattern != " ".join(pattern.split(" ")).strip() or "  " in pattern:
        return "it holds control, hidden or surplus characters"
    if not well_escaped(pattern) or wildcards(pattern) > WILDCARDS_MAX or "**" in pattern:
        return "it has too many wildcards or a broken escape"
    kind = kind_of(tool)
    if kind == "command":
        return commands.command_problem(pattern)
    if kind == "url":
        return None if _URL.match(pattern.split("*", 1)[0]) else "it names no host"
    if kind == "path":
        first = pattern.lstrip("/").removeprefix("~/").split("/", 1)[0]
        return "it names no folder or file" if not first or wildcards(first) else None
    return "it names no first argument" if pattern.startswith("*") else None


def is_plain(text: str) -> bool:
    """Whether a text has no control, bidirectional, zero-width, private, unassigned or line-breaking characters."""
    return not any(unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp") for c in text)


def wildcards(pattern: str) -> int:
    """Count the stars that no backslash makes literal."""
    return len(segments(pattern)) - 1


def well_escaped(pattern: str) -> bool:
    """Whether the last backslash has something to escape."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0


def matches(pattern: str, tool: str, subject: str, *, folder: str = "", denied: bool = False) -> bool:
    """Decide whether a pattern covers what a tool is asked for now.

    Args:
        pattern: Anything; an unsound one covers nothing.
        tool: The agent's name of the tool.
        subject: The command line, path or address.
        folder: The folder the session works in, as for :func:`pattern_of`.
        denied: Whether the lesson says deny; then it may cover more.

    Returns:
        True only if the subject has this pattern, or a pattern written by hand covers it: the same act with the same
        options, and plain words behind the wildcards. Linear in the subject.
    """
    tool = tool_name(tool)
    if pattern_problem(tool, pattern):
        return False
    seen = pattern_of(tool, subject, folder=folder)
    if seen is None or seen == pattern or not wildcards(pattern):
        return seen == pattern
    kind = kind_of(tool)
    if kind == "command":
        if denied and pattern_of(tool, subject, denied=True) == pattern:
            return True
        return commands.command_covered(pattern, redact(subject))
    if kind == "path":
        return _path_covered(pattern, _inside(redact(subject), folder))
    return kind == "url" and _url_covered(pattern, subject)


def _path_covered(pattern: str, path: str) -> bool:
    """Compare part by part; a part behind a wildcard is plain, and so is every other part of the path."""
    asked, given = path.split("/"), pattern.split("/")
    if len(asked) != len(given) or commands.is_sensitive(path):
        return False
    pieces = [segments(part) for part in given]
    return all(covers(p, a) and (len(p) == 1 or is_open(a)) for p, a in zip(pieces, asked, strict=True))


def _url_covered(pattern: str, url: str) -> bool:
    found = _URL.match(url)
    if not found:
        return False
    origin = f"{found[1]}://{found[2].lower()}"
    return covers(segments(pattern), origin + (url[len(origin) :] or "/"))
