"""What one command line does: its acts, with everything in them that could make one act another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hive import programs
from hive.redact import PLACEHOLDERS, redact
from hive.shell import Command, Line, Redirect, split_line

OPERATORS = frozenset({"&&", "||", ";", "|", "&"})
ACTS_MAX = 8
OPTIONS_MAX = 12
_NESTED_SHELLS_MAX = 3
_REDIRECTS = frozenset({">", ">>", "2>", "2>>", "<>", "<"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_LONG_OPTION = re.compile(r"(--[A-Za-z0-9][A-Za-z0-9_-]{0,40})(?:=.*)?\Z", re.DOTALL)
_SHORT_OPTION = re.compile(r"-(?:[A-Za-z]{1,4}|[A-OQ-Za-oq-z][A-Za-z-]{0,30})\Z")
_HOST = re.compile(r"https?://(?:[^/?#@\s]*@)?([A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?)(?:[/?#]|\Z)")
_VERSIONED = re.compile(r"(python3)\.[0-9]{1,2}\Z")
_ESCAPED = re.compile(r"[\\* '\"]")


@dataclass(slots=True)
class Act:
    """One simple command, taken apart.

    Attributes:
        front: Assignments, wrappers, the program and the words that say what is done.
        options: Canonical, without their values.
        kept: Arguments no wildcard may stand for, as they stand in a pattern.
        sensitive: Those of them that are everything, or name keys or settings, as they are.
        arguments: All arguments, as they are.
        varying: Whether there are arguments that a wildcard stands for.
        free: Whether options do not matter.
        text_only: Whether what it reads is text to it, never a program.
        takes_text: Whether a here-document is text to it.
    """

    front: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    sensitive: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    varying: bool = False
    free: bool = False
    text_only: bool = False
    takes_text: bool = False

    def words(self) -> list[str]:
        """Write the act as the words of a pattern."""
        options = [] if self.free else self.options
        rest = ["*"] if self.varying or self.free else []
        return [*map(escape, self.front), *options, *dict.fromkeys(self.kept), *rest]


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


def is_sensitive(argument: str) -> bool:
    """Whether an argument names keys, credentials or an agent's own settings."""
    lowered = argument.lower() + "/"
    return any(part in lowered for part in programs.SENSITIVE_PARTS)


def command_pattern(line: str, *, project: str = "") -> str | None:
    """Generalise a command line.

    Args:
        line: As it was asked for.
        project: A change into the folder of this name is no part of the act.

    Returns:
        The pattern, or None where only the exact line is the same act.
    """
    parsed = _opened(line)
    if parsed is None:
        return None
    commands, operators = _without_change_of_folder(parsed, project)
    if not 1 <= len(commands) <= ACTS_MAX:
        return None
    words: list[str] = []
    for index, command in enumerate(commands):
        act = act_of(command)
        if act is None or (index and operators[index - 1] == "|" and not act.text_only):
            return None
        redirects = _redirect_words(act, command.redirects)
        if redirects is None:
            return None
        words += [*act.words(), *redirects, *operators[index : index + 1]]
    return " ".join(words)


def single_act(line: str, *, project: str = "") -> Act | None:
    """Take a line of one command without redirections apart; None for any other."""
    parsed = _opened(line)
    if parsed is None:
        return None
    commands, operators = _without_change_of_folder(parsed, project)
    if len(commands) != 1 or operators or commands[0].redirects:
        return None
    return act_of(commands[0])


def _opened(line: str) -> Line | None:
    """Split a line; one that only hands a line to a shell (``bash -c '...'``) is that line."""
    for _ in range(_NESTED_SHELLS_MAX):
        parsed = split_line(line)
        if parsed is None or len(parsed.commands) != 1 or parsed.operators:
            return parsed
        command = parsed.commands[0]
        words = command.words
        nested = len(words) == 3 and program_name(words[0]) in programs.SHELLS and words[1] in ("-c", "-lc")
        if not nested or command.assignments or command.redirects:
            return parsed
        line = words[2]
    return None


def _without_change_of_folder(line: Line, project: str) -> tuple[Sequence[Command], Sequence[str]]:
    """Drop a leading ``cd`` into a folder of the project; any other stays."""
    commands, operators = line.commands, line.operators
    while len(commands) > 1 and operators[0] in ("&&", ";") and _stays_inside(commands[0], project):
        commands, operators = commands[1:], operators[1:]
    return commands, operators


def _stays_inside(command: Command, project: str) -> bool:
    if len(command.words) != 2 or command.words[0] != "cd" or command.assignments or command.redirects:
        return False
    folder = command.words[1]
    if folder.startswith(("/", "~/")):
        folder = folder.rstrip("/")
        return bool(project) and folder.endswith(f"/{project}") and not folder.startswith(("/tmp/", "/var/tmp/"))
    return not (folder.startswith(("-", "~")) or "$" in folder or ".." in folder.split("/"))


def program_name(word: str) -> str:
    """Name a program: without a system folder, ``python3.11`` as ``python3``."""
    for folder in programs.SYSTEM_FOLDERS:
        if word.startswith(folder) and "/" not in word[len(folder) :]:
            word = word[len(folder) :]
    found = _VERSIONED.match(word)
    return found[1] if found else word


def _literal(word: str) -> str | None:
    """A word that is to stand in a pattern as it is: home folders shortened; None with a secret or a variable in it."""
    clean = redact(word)
    open_ended = "$" in word or "\ue000" in word or any(p in clean for p in PLACEHOLDERS)
    return None if open_ended else clean


def _assigned(word: str) -> str:
    """``NAME=value`` as it stands in a pattern; a value that was redacted before keeps its placeholder."""
    return word if "\ue000" in word else redact(word)


def act_of(command: Command) -> Act | None:
    """Take one simple command apart; None where it runs what it is given, or is not understood."""
    act = Act(front=[_assigned(assignment) for assignment in command.assignments])
    words = _unwrapped(list(command.words), act.front)
    if not words:
        return None
    name = program_name(words[0])
    rest = words[1:]
    if name in programs.INTERPRETERS:
        taken = _script(rest)
    elif name in programs.EXACT:
        return None
    else:
        taken = _what_is_done(name, rest)
    if taken is None:
        return None
    head, rest = [name, *taken[0]], taken[1]
    literals = [_literal(word) for word in head]
    if any(word is None for word in literals):
        return None
    act.front += [word for word in literals if word is not None]
    key = " ".join(head[:2]) if " ".join(head[:2]) in _TWO_WORDS else name
    act.free = name in programs.FREE or (head[1:2] == ["-m"] and head[2] in programs.FREE)
    act.text_only = name in programs.PIPE_SAFE
    act.takes_text = act.text_only or key in programs.TEXT_SAFE
    return act if _take_arguments(act, name, key, rest) else None


_TWO_WORDS = frozenset(programs.SAME_OPTION) | frozenset(programs.CLUSTERED) | programs.TEXT_SAFE


def _unwrapped(words: list[str], front: list[str]) -> list[str] | None:
    """Go through ``sudo``, ``timeout`` and the like to the program they run; None where that is not certain."""
    while words:
        name = program_name(words[0])
        two = " ".join([name, *words[1:2]])
        if name in programs.DROPPED:
            plain, valued, own = programs.DROPPED[name]
            after = _behind_options(words[1:], plain, valued)
            words = after[1][own:] if after else []
        elif two in programs.KEPT or name in programs.KEPT:
            key = two if two in programs.KEPT else name
            plain, valued = programs.KEPT[key]
            after = _behind_options(words[key.count(" ") + 1 :], plain, valued)
            if after is None:
                return None
            options, words = after
            while words and _ASSIGNMENT.match(words[0]):
                options.append(_assigned(words.pop(0)))
            front += [*key.split(), *options]
        else:
            return words
    return None


def _behind_options(
    words: list[str], plain: frozenset[str], valued: frozenset[str]
) -> tuple[list[str], list[str]] | None:
    """Split known leading options, with their values, from what follows; None at an unknown one."""
    options: list[str] = []
    while words and words[0].startswith("-"):
        taken = 2 if words[0] in valued else 1
        if words[0] not in plain | valued or len(words) < taken:
            return None
        options += words[:taken]
        words = words[taken:]
    return options, words


def _script(rest: list[str]) -> tuple[list[str], list[str]] | None:
    """The script or module an interpreter runs; None where the program is on the command line or comes by input."""
    if rest[:1] == ["-m"] and len(rest) > 1 and not rest[1].startswith("-"):
        return rest[:2], rest[2:]
    if rest and not rest[0].startswith("-"):
        return rest[:1], rest[1:]
    return (rest, []) if rest in (["--version"], ["-V"]) else None


def _what_is_done(name: str, rest: list[str]) -> tuple[list[str], list[str]] | None:
    """The words behind a program's name that say what it does; None where an option hides them."""
    head: list[str] = []
    if name in programs.OPTIONS_FIRST:
        plain, valued = programs.OPTIONS_FIRST[name]
        after = _behind_options(rest, plain, valued)
        if after is None:
            return None
        head = [word for word in after[0] if word not in plain]
        rest = after[1]
    depth = programs.DEPTH.get(name, 0)
    if depth >= programs.EVERY_WORD:
        return head, rest
    done: list[str] = []
    while len(done) < depth and rest and not rest[0].startswith("-"):
        done, rest = [*done, rest[0]], rest[1:]
        two = " ".join([name, *done])
        if two in programs.EXACT:
            return None
        depth = programs.DEPTH.get(two, depth)
    return None if len(done) < depth and rest else (head + done, rest)


def _take_arguments(act: Act, name: str, key: str, rest: list[str]) -> bool:
    """Sort options from arguments, and arguments that must stay from those that vary; False where it is not certain."""
    options: set[str] = set()
    only_arguments = False
    for word in rest:
        if only_arguments or not word.startswith("-") or word == "-" or word[1:].isdigit():
            if not _take_argument(act, name, word):
                return False
            if key == "git push" and word[0:1] in ("+", ":"):
                options.add("--force" if word[0] == "+" else "--delete")
        elif word == "--":
            only_arguments = True
        elif name == "find" and word in ("-exec", "-execdir", "-ok", "-okdir"):
            return False
        else:
            options |= _options_of(word, key)
    act.options = _in_order(options - {""}, key)
    return len(act.options) <= OPTIONS_MAX


def _options_of(word: str, key: str) -> set[str]:
    """Name the options one word gives, without values."""
    same = programs.SAME_OPTION.get(key, {})
    if key in programs.CLUSTERED and word[1:].isalpha() and word not in same:
        return {same.get(f"-{letter}", f"-{letter}") for letter in word[1:]}
    found = _LONG_OPTION.match(word)
    name = found[1] if found else word if _SHORT_OPTION.match(word) else escape(word[:2])
    return {same.get(name, name)}


def _in_order(options: set[str], key: str) -> list[str]:
    letters = programs.CLUSTERED.get(key, "")
    cluster = "".join(letter for letter in letters if f"-{letter}" in options)
    rest = sorted(option for option in options if not (len(option) == 2 and option[1] in letters))
    return [f"-{cluster}", *rest] if cluster else rest


def _take_argument(act: Act, name: str, word: str) -> bool:
    act.arguments.append(word)
    host = _HOST.match(word)
    everything = not act.free and word in programs.WHOLE_TARGETS
    if host or word.startswith(("http:", "https:")):
        origin = f"{word.split(':', 1)[0]}://{host[1].lower()}" if host else ""
        act.kept.append(f"{origin}/*")
        return bool(origin) and redact(origin) == origin
    if everything or is_sensitive(word) or programs.DEPTH.get(name, 0) >= programs.EVERY_WORD:
        literal = word if everything else _literal(word)
        if literal is None:
            return False
        act.kept.append(escape(literal))
        if everything or is_sensitive(word):
            act.sensitive.append(word)
        return True
    act.varying = True
    return True


def _redirect_words(act: Act, redirects: Sequence[Redirect]) -> list[str] | None:
    """Write redirections for a pattern; None where input could be a program, or a target varies."""
    words: list[str] = []
    for redirect in redirects:
        if redirect.operator in ("<<", "<<<"):
            if not act.takes_text:
                return None
            continue
        target = _literal(redirect.target)
        if target is None or redirect.operator not in _REDIRECTS or (redirect.operator == "<" and not act.text_only):
            return None
        words += [redirect.operator, escape(target)]
    return words


def command_problem(pattern: str) -> str | None:
    """Say where a command pattern with wildcards is as broad as no pattern; None where it is sound."""
    if not _has_wildcard(pattern):
        return None
    parts: list[list[str]] = [[]]
    for token in tokens(pattern):
        if token in OPERATORS:
            parts.append([])
        else:
            parts[-1].append(token)
    if not parts[-1] and len(parts) > 1:
        parts.pop()
    problems = [_part_problem(part) for part in parts]
    return next((problem for problem in problems if problem), None)


def _has_wildcard(text: str) -> bool:
    return "*" in re.sub(r"\\.", "", text)


def _part_problem(part: list[str]) -> str | None:
    for index, token in enumerate(part):
        if token in _REDIRECTS and (index + 1 == len(part) or _has_wildcard(part[index + 1])):
            return "it lets a redirection go anywhere"
    words = list(part)
    while words and _ASSIGNMENT.match(words[0]):
        if _has_wildcard(words.pop(0)):
            return "it leaves a variable's value open"
    inner = _unwrapped(words, [])
    if not inner or _has_wildcard(inner[0]):
        return "it names no program"
    name, rest = program_name(inner[0]), inner[1:]
    if not any(_has_wildcard(word) for word in rest):
        return None
    if name in programs.EXACT or any(" ".join([name, *rest[:n]]) in programs.EXACT for n in (1, 2)):
        return "it leaves open what another program is told to run"
    if name in programs.INTERPRETERS:
        script = _script(rest)
        return "it leaves open what is run" if script is None or any(map(_has_wildcard, script[0])) else None
    return _first_word_problem(name, rest)


def _first_word_problem(name: str, rest: list[str]) -> str | None:
    if name not in programs.DEPTH:
        return None
    done = [word for word in rest if not word.startswith("-")]
    return None if done and not _has_wildcard(done[0]) else "it does not say what is done"
