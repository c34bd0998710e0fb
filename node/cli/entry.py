"""The ``hivemesh`` command: reads the words, loads the one room the command needs, and turns errors into exit codes.

It is loaded at every call, so it imports only what every command needs.
"""

from __future__ import annotations

import argparse
import os
import sys

from mesh.base.errors import EXIT_OF_RUN_FAULT, MeshError, NotRunning, Refused, Usage, outside
from node import VERSION
from node.cli.client import Answered
from node.cli.console import Console, OutputLost, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import IO, NoReturn

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "run this machine's node"),
    "join": ("pairing", "join the mesh an invite leads to"),
    "invite": ("pairing", "let one more machine in"),
    "fleet": ("fleet", "every session on every machine"),
    "run": ("run", "run a command on another machine, with this tree"),
    "inbox": ("inbox", "what waits for a person, anywhere"),
    "doctor": ("doctor", "check everything, and say how to mend it"),
    "down": ("up", "stop this machine's node"),
    "status": ("status", "what runs here"),
    "config": ("settings", "show or change the settings"),
    "discover": ("machines", "look for machines on this network"),
    "connect": ("machines", "connect to a member at an address"),
    "peers": ("machines", "the other machines"),
    "leave": ("members", "leave the mesh, with a fresh key"),
    "expel": ("members", "put a machine out of the mesh, for good"),
    "mesh": ("machines", "the mesh and this machine's identity"),
    "session": ("fleet", "one session in full"),
    "tasks": ("tasks", "the runs, newest first"),
    "task": ("tasks", "one run in full"),
    "logs": ("run", "the output of a run"),
    "wait": ("run", "wait for a run and exit as it did"),
    "cancel": ("tasks", "end a run"),
    "answer": ("inbox", "answer what waits: allow, deny, or a text"),
    "allow": ("inbox", "say yes to what waits"),
    "deny": ("inbox", "say no to what waits"),
    "hive": ("hive", "what the sessions taught"),
    "access": ("access", "what outsiders may ask"),
    "query": ("query", "index a project, ask it, serve it"),
    "demo": ("demo", "the whole product on this machine, in under a minute"),
    "completion": ("completion", "print a script that completes commands in a shell"),
}
"""Every command: its room in ``node.cli`` and what it does. The first stand in the short help."""
SHOWN = ("up", "join", "invite", "fleet", "run", "delegate", "inbox", "doctor")
"""The commands people use, in the order of the short help; those that exist are shown."""
SHORT = frozenset("vqdfh")
"""Every short option there is; they may be written as one word."""
GLOBAL_HELP = "global options, before or after the command: --home DIR, --json, -v, -q, --yes"


class _Help(argparse.HelpFormatter):
    """Help of one width: asking the terminal for its own would load half of the standard library at every call."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=100)


class Words(argparse.ArgumentParser):
    """An argument parser whose complaints are one line, like every other error."""

    def __init__(self, prog: str, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, epilog=GLOBAL_HELP, formatter_class=_Help, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the words.

        Raises:
            Usage: Always.
        """
        raise Usage(f"{self.prog.removeprefix('hivemesh ')}: {message}", hint=f"{self.prog} --help")

    def print_help(self, file: IO[str] | None = None) -> None:  # type: ignore[override]  # the base takes less than a file
        """Print the help as an answer; argparse itself would hide that it cannot be written.

        Raises:
            OutputLost: It cannot be written.
        """
        try:
            (file or sys.stdout).write(self.format_help())
        except OSError as error:
            raise OutputLost(file or sys.stdout, error) from None


class _Globals:
    """The global options, wherever they stood, and what is left."""

    def __init__(self, words: Sequence[str]) -> None:
        self.home: str | None = None
        self.as_json = self.verbose = self.quiet = self.yes = False
        self.head: list[str] = []
        self.tail: list[str] | None = None
        """What stood behind a bare ``--``; None where there was none."""
        self.fault: Usage | None = None
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                self.tail = left
                break
            if word == "--home" or word.startswith("--home="):
                self._take_home(word, left)
            elif word in ("--json", "-v", "--verbose", "-q", "--quiet", "--yes"):
                self._set(word)
            elif len(word) > 2 and word[0] == "-" and set(word[1:]) <= SHORT:
                self._take_letters(word, left)
            else:
                self.head.append(word)

    def _take_home(self, word: str, left: list[str]) -> None:
        value = word[7:] if word != "--home" else left.pop(0) if left and left[0] != "--" else ""
        if not value:
            self.fault = Usage("--home needs a folder", hint="hivemesh --home DIR COMMAND")
        self.home = value

    def _take_letters(self, word: str, left: list[str]) -> None:
        """Take short options written as one word, like ``-vq``, apart."""
        left[:0] = [f"-{letter}" for letter in word[1:]]

    def _set(self, word: str) -> None:
        self.as_json = self.as_json or word == "--json"
        self.verbose = self.verbose or word in ("-v", "--verbose")
        self.quiet = self.quiet or word in ("-q", "--quiet")
        self.yes = self.yes or word == "--yes"

    @property
    def belongs_to_remote(self) -> bool:
        """Whether the exit codes 2 to 5 belong to a remote command, so that every fault of ours is 125."""
        name = self.head[0] if self.head else ""
        return name in ("run", "wait") or (name == "logs" and not {"-f", "--follow"}.isdisjoint(self.head))


def main() -> int:
    """Run one command; this is the console script.

    Returns:
        The exit code of the contract.
    """
    _mend_streams()
    given = _Globals(sys.argv[1:])
    console = Console(
        given.home, os.environ, as_json=given.as_json, quiet=given.quiet, verbose=given.verbose, yes=given.yes, commands=COMMANDS
    )
    try:
        return _act(given, console)
    except OutputLost as lost:
        lost.give_up()
        if not lost.quiet:
            console.warn(f"hivemesh: {lost.message}")
        return EXIT_OF_RUN_FAULT if given.belongs_to_remote else 1
    except KeyboardInterrupt:
        return 130


def _act(given: _Globals, console: Console) -> int:
    """Do what was said, and tell what goes wrong."""
    try:
        if given.fault:
            raise given.fault
        code = _dispatch(given, console)
        console.flush()
    except OutputLost:
        raise
    except SystemExit:
        # argparse has printed the help of a command.
        console.flush()
        raise
    except MeshError as error:
        code = _tell(error, console)
        return EXIT_OF_RUN_FAULT if given.belongs_to_remote else code
    return code


def _mend_streams() -> None:
    """Give closed standard streams a place, and make no character unprintable for good."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - open for as long as the process
    if sys.stdout is None:
        # Whatever is written to it fails, so that an answer is never lost in silence.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open for as long as the process
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # both are text files of ours or Python's


def _tell(error: MeshError, console: Console) -> int:
    """Say what went wrong, once: as JSON on stdout, or as lines on stderr."""
    if console.as_json:
        found = {"kind": error.kind, "message": error.message, "hint": console.advice(error.hint)}
        if isinstance(error, (Answered, Refused)) and error.reason:
            found["reason"] = error.reason
        console.json({"error": found})
    else:
        console.warn(f"hivemesh: {shown(error.message)}")
        if error.hint:
            console.warn(f"  {shown(error.hint)}")
    return error.exit_code if isinstance(error, Answered) else outside(error).exit_code


def _dispatch(given: _Globals, console: Console) -> int:
    if not given.head:
        return _bare(given, console)
    name, *rest = given.head
    if name in ("-h", "--help", "help"):
        console.line(_help_text())
        return 0
    if name == "--version":
        console.json({"version": VERSION}) if console.as_json else console.line(f"hivemesh {VERSION}")
        return 0
    if name not in COMMANDS:
        raise Usage(f"{name[:40]!r} is not a command of hivemesh", hint=_nearest(name))
    room = load_room(name)
    parser = Words(f"hivemesh {name}", COMMANDS[name][1].capitalize() + ".")
    room.register(name, parser)
    if name != "run" and given.tail is not None:
        rest += ["--", *given.tail]
    found = parser.parse_args(rest)
    found.tail = given.tail
    act: Callable[[argparse.Namespace, Console], int] = found.act
    return act(found, console)


def load_room(name: str) -> ModuleType:
    """Load the room of one command; it has ``register(name, parser)``.

    Args:
        name: A command of the table.
    """
    import importlib

    return importlib.import_module(f"node.cli.{COMMANDS[name][0]}")


def _bare(given: _Globals, console: Console) -> int:
    """Without a command: the fleet where a node runs, else where to start."""
    if given.tail:
        raise Usage("there is no command in front of --", hint="hivemesh --help")
    from node.cli.fleet import show_fleet

    try:
        return show_fleet(console, {})
    except NotRunning:
        pass
    start = [
        "hivemesh up -d          start this machine's node",
        "hivemesh invite         then let another machine in; there: hivemesh join -",
        "hivemesh --help         everything else",
    ]
    lines = [console.advice(line) for line in start]
    if console.as_json:
        console.json({"start_here": lines})
        return 0
    for line in lines:
        console.line(line)
    return 0


def _nearest(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name[:40], COMMANDS, 1)
    return f"did you mean: hivemesh {close[0]}" if close else "hivemesh --help lists them"


def _help_text() -> str:
    from textwrap import fill

    main_ones = [name for name in SHOWN if name in COMMANDS]
    lines = ["usage: hivemesh [options] COMMAND [options]", ""]
    lines += [f"  {name:<10}{COMMANDS[name][1]}" for name in main_ones]
    more = " ".join(name for name in COMMANDS if name not in main_ones)
    lines += ["", fill(f"more: {more}", 100, subsequent_indent="      "), "", GLOBAL_HELP, "hivemesh COMMAND --help says more"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
