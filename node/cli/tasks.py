"""``tasks``, ``task`` and ``cancel``: the runs this machine asked for or does."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from node.cli.client import call
from node.cli.console import Console, shown
from node.cli.fleet import machine, print_fields
from node.cli.follow import FINAL
from node.cli.table import print_table


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of these commands."""
    if name == "tasks":
        parser.add_argument("--all", action="store_true", help="also those that ended long ago")
        parser.set_defaults(act=_tasks)
        return
    parser.add_argument("id", metavar="ID", help="the run's id, or the start of it")
    parser.set_defaults(act=_task if name == "task" else _cancel)


def _tasks(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "tasks", {"all": arguments.all})
    if console.as_json:
        console.json(found)
        return 0
    rows = [(str(row["task"])[:12], row["state"], machine(row), row["exit_code"], row["created_at"], _command(row)) for row in found]
    print_table(console, ("TASK", "STATE", "MACHINE", "EXIT", "CREATED", "COMMAND"), rows, empty="no runs yet: hivemesh run NODE -- CMD")
    return 0


def _command(row: dict[str, Any]) -> str:
    return shlex.join(str(word) for word in row["argv"]) if row["argv"] else str(row["prompt"] or "")


def _task(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "task", {"task": arguments.id})
    if console.as_json:
        console.json(found)
    else:
        print_fields(console, found)
    return 0


def _cancel(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "cancel", {"task": arguments.id})
    if console.as_json:
        console.json(found)
    else:
        over = found["state"] in FINAL
        console.line(f"{shown(found['task'])} " + (f"is {shown(found['state'])}" if over else "will be cancelled as soon as its machine hears of it"))
    return 0
