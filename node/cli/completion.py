"""``completion``: a script that completes the commands in a shell."""

from __future__ import annotations

import argparse

import shtab

from node.cli.console import Console
from node.cli.entry import COMMANDS, Words, load_room

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
    parser.add_argument("--home", metavar="DIR")
    for option in ("--json", "-v", "-q", "--yes", "--version"):
        parser.add_argument(option, action="store_true")
    inner = parser.add_subparsers(metavar="COMMAND")
    for name, (_, about) in COMMANDS.items():
        load_room(name).register(name, inner.add_parser(name, help=about))
    return parser
