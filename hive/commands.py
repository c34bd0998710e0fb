"""What one command line does, as a pattern: the exact line, or known acts whose plain arguments are left open.

A wildcard in an approval stands only for plain words: relative, inside the folder, nothing a shell or a program could
take for an option, an address, a variable or a set of files. Everything else of an act stays word for word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hive.programs import ACTS, FOLDERS, SENSITIVE_PARTS, WHOLE_TARGETS, Shape
from hive.shell import Command, split_line

OPERATORS = frozenset({"&&", "||", ";", "|", "&"})
ACTS_MAX = 8
_REDIRECTS = frozenset({">", ">>", "2>", "2>>", "<>", "<"})
_ESCAPED = re.compile(r"[\\* '\"]")
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*+"
_PLAIN = re.compile(rf"(?:\./)?{_PART}(?:/{_PART})*+/?(?:::[A-Za-z0-9_]++)*+\Z", re.ASCII)


class Act(NamedTuple):
    """One known act, taken apart.

    Attributes:
        head: The program as it is written, and its verb.
        shape: What is known of it.
        flags: The options that matter, each by its one name, in order.
        arguments: The rest, in order.
    """

    head: tuple[str, ...]
    shape: Shape
    flags: tuple[str, ...]
    arguments: tuple[str, ...]


def escape(text: str, *, space: bool = True) -> str:
    """Write a literal for a pattern: stars, quotes, backslashes, spaces and bare operators behind a backslash."""
    if text in OPERATORS or text in _REDIRECTS:
        return "\\" + text
    return _ESCAPED.sub(lambda c: c[0] if c[0] == " " and not space else "\\" + c[0], text)


def tokens(pattern: str) -> list[str]:
    """Split a pattern at the spaces that no backslash makes literal."""
    found: list[str] = []
    start = at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == " ":
            found.append(pattern[start:at])
            start = at + 1
        at += 1
    return [*found, pattern[start:]]


def segments(pattern: str) -> list[str]:
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


def covers(pieces: Sequence[str], text: str) -> bool:
    """Match literal texts in order, anything between them, in one walk over the text."""
    if len(pieces) == 1:
        return pieces[0] == text
    first, *middle, last = pieces
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def is_sensitive(argument: str) -> bool:
    """Whether an argument names keys, credentials or an agent's own settings."""
    lowered = argument.lower() + "/"
    return any(part in lowered for part in SENSITIVE_PARTS)


def is_open(argument: str) -> bool:
    """Whether a wildcard may stand for an argument: a plain relative path or name without hidden parts or secrets."""
    return _PLAIN.match(argument) is not None and not is_sensitive(argument)


def act_of(command: Command) -> Act | None:
    """Take one simple command apart.

    Args:
        command: As the shell's rules split it.

    Returns:
        The act, or None where anything about it is not in the tables: the program, its folder, the verb, an option, a
        variable set for it, a redirection.
    """
    if command.assignments or command.redirects or not command.words:
        return None
    folder, slash, name = command.words[0].rpartition("/")
    if folder + slash not in FOLDERS:
        return None
    size = 2 if " ".join([name, *command.words[1:2]]) in ACTS else 1
    shape = ACTS.get(" ".join([name, *command.words[1:size]]))
    if shape is None:
        return None
    flags: set[str] = set()
    arguments: list[str] = []
    for word in command.words[size:]:
        if not word.startswith("-"):
            arguments.append(word)
            continue
        named = _flags_of(word, shape)
        if named is None:
            return None
        flags |= named
    return Act(command.words[:size], shape, _in_order(flags - {""}, shape), tuple(arguments))


def _flags_of(word: str, shape: Shape) -> set[str] | None:
    """The one names of the options in one word; None for an unknown one."""
    if word in shape.flags:
        return {shape.flags[word]}
    letters = word[1:]
    if not letters or any(letter not in shape.letters for letter in letters):
        return None
    return {shape.flags[f"-{letter}"] for letter in letters}


def _in_order(flags: set[str], shape: Shape) -> tuple[str, ...]:
    cluster = "".join(letter for letter in shape.letters if f"-{letter}" in flags)
    rest = sorted(flag for flag in flags if not (len(flag) == 2 and flag[1] in shape.letters))
    return (f"-{cluster}", *rest) if cluster else tuple(rest)


def approval_pattern(line: str) -> str | None:
    """Generalise a command line that was or may be approved.

    Args:
        line: As it was asked for.

    Returns:
        The pattern, or None where only the exact line is the same act.
    """
    parsed = split_line(line)
    if parsed is None or len(parsed.commands) > ACTS_MAX:
        return None
    words: list[str] = []
    varies = False
    for index, command in enumerate(parsed.commands):
        if _is_change_of_folder(command):
            words += command.words
        else:
            act = act_of(command)
            if act is None or act.shape.level != "varies" or not all(map(is_open, act.arguments)):
                return None
            words += [*act.head, *act.flags, "*"]
            varies = True
        words += parsed.operators[index : index + 1]
    return " ".join(words) if varies else None


def _is_change_of_folder(command: Command) -> bool:
    """``cd`` into a plain folder; it stays as it is, and what follows is still inside."""
    plain = len(command.words) == 2 and command.words[0] == "cd" and is_open(command.words[1])
    return plain and not command.assignments and not command.redirects


def denial_pattern(line: str) -> str | None:
    """Generalise a command line that was denied: more than an approval, because covering more is caution.

    Args:
        line: One command; a compound line is denied as it is.

    Returns:
        The act with its options and any arguments at all, or None where only the exact line is denied: an act that is
        not in the tables, or one upon everything or upon keys and settings.
    """
    parsed = split_line(line)
    act = act_of(parsed.commands[0]) if parsed and len(parsed.commands) == 1 and not parsed.operators else None
    if act is None or act.shape.level != "denied":
        return approval_pattern(line)
    if any(argument in WHOLE_TARGETS or is_sensitive(argument) for argument in act.arguments):
        return None
    flags = set(act.flags)
    if act.head[1:] == ("push",):
        flags |= {{"+": "--force", ":": "--delete"}[a[0]] for a in act.arguments if a.startswith(("+", ":"))}
    return " ".join([*act.head, *_in_order(flags, act.shape), "*"])


def command_problem(pattern: str) -> str | None:
    """Say where a command pattern with wildcards leaves open what must not be; None where it is sound."""
    if len(segments(pattern)) == 1:
        return None
    part: list[str] = []
    for token in [*tokens(pattern), ";"]:
        if token not in OPERATORS:
            part.append(token)
        elif part:
            problem = _part_problem(part)
            if problem:
                return problem
            part = []
    return None


def _part_problem(part: list[str]) -> str | None:
    command = Command((), tuple(part), ())
    if _REDIRECTS & set(part):
        return "it has a redirection beside a wildcard"
    if _is_change_of_folder(command):
        return None
    if act_of(command) is None:
        return "its program, verb or option is not one whose arguments may be left open"
    return None


def command_covered(pattern: str, line: str) -> bool:
    """Compare a hand-written pattern of one act with a line of one act.

    Args:
        pattern: A sound pattern.
        line: What is asked for.

    Returns:
        True if program, verb and options are the same and each wildcard stands for plain words; the last one, where it
        is a word of its own, for any number of them.
    """
    parsed, words = split_line(line), tokens(pattern)
    if parsed is None or len(parsed.commands) != 1 or parsed.operators or OPERATORS & set(words):
        return False
    asked, given = act_of(parsed.commands[0]), act_of(Command((), tuple(words), ()))
    if asked is None or given is None or (asked.head, asked.flags) != (given.head, given.flags):
        return False
    fixed, rest = given.arguments, asked.arguments[len(given.arguments) :]
    if fixed and fixed[-1] == "*":
        fixed, rest = fixed[:-1], asked.arguments[len(fixed) - 1 :]
        if not all(map(is_open, rest)):
            return False
    elif rest:
        return False
    return len(asked.arguments) >= len(fixed) and all(map(_word_covered, fixed, asked.arguments))


def _word_covered(given: str, asked: str) -> bool:
    pieces = segments(given)
    return covers(pieces, asked) and (len(pieces) == 1 or is_open(asked))
