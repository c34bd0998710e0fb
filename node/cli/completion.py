"""``completion``: a script that completes the commands in a shell."""

from __future__ import annotations

import argparse

import shtab

from node.cli.console import Console
from node.cli.entry import COMMANDS, Words, load_room
from node.config import SETTINGS, setting_of

SHELLS = ("bash", "zsh", "tcsh")


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``completion``."""
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(act=_completion)


def _completion(arguments: argparse.Namespace, console: Console) -> int:
    script = shtab.complete(whole_parser(), shell=arguments.shell)
    if console.as_json:
        console.json({"shell": arguments.shell, "script": script})
    else:
        console.line(script)
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """Make the parser of every command at once, which a single call never needs."""
    parser = Words("hivemesh")
    parser.add_argument("--version", action="store_true")
    inner = parser.add_subparsers(metavar="COMMAND")
    for name, (_, about) in COMMANDS.items():
        load_room(name).register(name, inner.add_parser(name, help=about))
    _offer(parser, offered_values())
    return parser


def offered_values() -> dict[str, tuple[str, ...]]:
    """List the values worth offering, by the name of the argument, where the command itself takes others too or checks later."""
    return {
        "runs": setting_of("runs").choices,
        "key": tuple(setting.key for setting in SETTINGS),
        "role": ("viewer", "member", "worker", "relay"),
        "answer": ("allow", "deny"),
        "code": ("-",),
    }


def _offer(parser: argparse.ArgumentParser, values: dict[str, tuple[str, ...]]) -> None:
    """Give a parser and those below it the global options and the values to offer."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in set(action.choices.values()):
                _offer(below, values)
        elif action.dest in values:
            action.choices = values[action.dest]
    home = parser.add_argument("--home", metavar="DIR", help="the node that lives there")
    home.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # what shtab reads
    for options, about in _SWITCHES:
        parser.add_argument(*options, action="store_true", help=about)


_SWITCHES = (
    (("--json",), "JSON on stdout"),
    (("-v", "--verbose"), "say more"),
    (("-q", "--quiet"), "leave out notes"),
    (("--yes",), "answer every question with yes"),
)
"""The global options without a value."""
