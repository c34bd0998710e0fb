"""One command line, path or address -> the pattern it is an instance of; and whether a pattern covers another one.

A pattern is data for the matcher here, never an expression. It is a line of words with one wildcard, ``*``; a literal
star, space, quote or backslash inside a word stands behind a backslash. Whatever could make an act another act stays in
the pattern: the program, the words that say what is done, options, hosts, redirections, every command of a compound
line and the operators between them. So the pattern of a harmless head never covers a dangerous tail. Where nothing can
be left out safely the pattern is the exact line, and where a secret stood in it there is no pattern at all.

Two lines are instances of one pattern if they have the same pattern; a pattern written by hand may use ``*`` freely.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Sequence

from hive import commands
from hive.commands import escape, tokens
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
_URL = re.compile(r"(https?)://(?:[^/?#@\s]*@)?([A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]{2,39}\](?::[0-9]{1,5})?)(?:[/?#]|\Z)")
_EXTENSION = re.compile(r".+(\.[A-Za-z0-9]{1,10})\Z")
_PLACEHOLDER = re.compile("<(" + "|".join(sorted(word[1:-1] for word in PLACEHOLDERS)) + ")>")
_STANDS_FOR = re.compile("[\ue000\ue001]")
"""Private characters around a placeholder's word while a redacted line is taken apart."""
_BLANKS = re.compile(r"[ \t]+")
_BETWEEN = "\x1f"
_TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/", "/proc/", "/sys/")


def tool_name(tool: str) -> str:
    """Fold the agents' names for one tool into one: Codex's ``exec_command`` is ``Bash``."""
    return _TOOLS.get(tool, tool)


def is_tool_name(tool: str) -> bool:
    """Whether a text is a tool's one proper name."""
    return _TOOL_NAME.match(tool) is not None and tool_name(tool) == tool


def kind_of(tool: str) -> str:
    """Say what a tool is asked for: ``command``, ``path``, ``url``, or ``other``."""
    return _KINDS.get(tool_name(tool), "other")


def pattern_of(tool: str, subject: str, *, project: str = "", redacted: bool = False) -> str | None:
    """Generalise what a tool was asked for.

    Args:
        tool: The agent's name of the tool.
        subject: The command line, file path or address, as it was asked for.
        project: The project's name; a folder of that name counts as its root, as everywhere in the product.
        redacted: Whether ``<secret>`` and the like in it are placeholders. What an agent asks for now is not redacted:
            to a shell ``<`` and ``>`` are redirections, and only then is the pattern safe to compare.

    Returns:
        A pattern of at most PATTERN_BYTES_MAX bytes without secrets, or None where nothing sound can be said: empty,
        too long, hidden characters, a secret where a literal would stand.
    """
    tool, subject = tool_name(tool), _trimmed(subject)
    if not subject or len(subject) > SUBJECT_CHARS_MAX or strip_hidden(subject) != subject or _STANDS_FOR.search(subject):
        return None
    kind = kind_of(tool)
    if kind == "command":
        line = _PLACEHOLDER.sub("\ue000\\1\ue001", subject) if redacted else subject
        pattern = commands.command_pattern(line, project=project)
        if pattern is None or pattern.count("*") > WILDCARDS_MAX or len(pattern.encode()) > PATTERN_BYTES_MAX:
            pattern = _exact(subject)
        else:
            pattern = pattern.replace("\ue000", "<").replace("\ue001", ">")
    elif kind == "path":
        pattern = _path_pattern(subject, project)
    elif kind == "url":
        pattern = _url_pattern(subject)
    else:
        pattern = _exact(subject)
    return None if pattern is None or pattern_problem(tool, pattern) or redact(pattern) != pattern else pattern


def _trimmed(subject: str) -> str:
    """In normal form, without the blanks a shell ignores at the ends; other spaces are words to it."""
    return unicodedata.normalize("NFC", subject.strip(" \t\n"))


def _exact(subject: str) -> str | None:
    """The very line, home folders shortened; None where something else had to be taken out of it."""
    clean = redact(subject)
    if "\n" in subject or any(word in clean for word in PLACEHOLDERS):
        return None
    return _BLANKS.sub(" ", clean.replace("\\", "\\\\").replace("*", "\\*"))


def _path_pattern(path: str, project: str) -> str | None:
    clean = _in_project(posixpath.normpath(redact(path)), project)
    if any(word in clean for word in PLACEHOLDERS):
        return None
    folder, name = posixpath.split(clean)
    extension = _EXTENSION.match(name)
    special = clean.startswith("..") or any(part.startswith(".") for part in clean.split("/"))
    if special or not folder.strip("/~") or not extension or commands.is_sensitive(clean):
        return escape(clean, space=False)
    return f"{escape(folder, space=False)}/*{extension[1]}"


def _in_project(path: str, project: str) -> str:
    """Cut everything up to the project's own folder off a path."""
    if not project or not path.startswith(("/", "~/")) or path.startswith(_TEMPORARY):
        return path
    _, found, rest = (path + "/").partition(f"/{project}/")
    return (rest.rstrip("/") or ".") if found else path


def _url_pattern(url: str) -> str | None:
    found = _URL.match(url)
    if not found:
        return None
    origin = f"{found[1]}://{found[2].lower()}"
    return f"{origin}/*" if redact(origin) == origin else None


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
    return len(_segments(pattern)) - 1


def well_escaped(pattern: str) -> bool:
    """Whether the last backslash has something to escape."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 0


def _segments(pattern: str) -> list[str]:
    """The literal texts between the wildcards, escapes resolved."""
    pieces: list[list[str]] = [[]]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            pieces.append([])
        elif character == "\\":
            at += 1
            pieces[-1].append(pattern[at : at + 1])
        else:
            pieces[-1].append(character)
        at += 1
    return ["".join(piece) for piece in pieces]


def _covers(segments: Sequence[str], text: str) -> bool:
    """Match literal texts in order, anything between them, in one walk over the text."""
    if len(segments) == 1:
        return segments[0] == text
    first, *middle, last = segments
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def matches(pattern: str, tool: str, subject: str, *, project: str = "") -> bool:
    """Decide whether a pattern covers what a tool is asked for now.

    Args:
        pattern: Anything; an unsound one covers nothing.
        tool: The agent's name of the tool.
        subject: The command line, path or address, before redaction.
        project: The project's name, as for :func:`pattern_of`.

    Returns:
        True only if the subject has this pattern, or a pattern written by hand covers it: with the same options, no
        other command, no redirection, and nothing sensitive behind a wildcard. Linear in the subject.
    """
    tool = tool_name(tool)
    if pattern_problem(tool, pattern):
        return False
    seen = pattern_of(tool, subject, project=project)
    if seen is None or seen == pattern or not wildcards(pattern):
        return seen == pattern
    kind = kind_of(tool)
    if kind == "command":
        return _command_covered(pattern, subject, project)
    if kind == "path":
        clean = _in_project(posixpath.normpath(redact(_trimmed(subject))), project)
        asked, given = clean.split("/"), pattern.split("/")
        if len(asked) != len(given) or commands.is_sensitive(clean):
            return False
        return all(_covers(_segments(g), a) for g, a in zip(given, asked, strict=True))
    return kind == "url" and _url_covered(pattern, subject)


def _url_covered(pattern: str, subject: str) -> bool:
    url = _trimmed(subject)
    found = _URL.match(url)
    if not found or "@" in url.split("/", 3)[2]:
        return False
    origin = f"{found[1]}://{found[2].lower()}"
    return _covers(_segments(pattern), origin + (url[len(origin) :] or "/"))


def _command_covered(pattern: str, subject: str, project: str) -> bool:
    """Compare a hand-written pattern of one command with one command."""
    act = commands.single_act(_trimmed(subject), project=project)
    words = tokens(pattern)
    if act is None or any(word in commands.OPERATORS for word in words):
        return False
    named = {word for word in words if word.startswith("-")}
    if named != set(act.options) and not (act.free and named <= set(act.options)):
        return False
    if not set(act.sensitive) <= {segments[0] for word in words if len(segments := _segments(word)) == 1}:
        return False
    plain = _BETWEEN.join(word for word in words if not word.startswith("-"))
    text = _BETWEEN.join((*act.front, *act.arguments))
    if _covers(_segments(plain), text):
        return True
    return plain.endswith(_BETWEEN + "*") and _covers(_segments(plain[:-2]), text)
