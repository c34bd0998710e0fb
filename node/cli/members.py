"""``expel`` and ``leave``: a machine stops being a member."""

from __future__ import annotations

import argparse
from typing import Any

from mesh.base.errors import Refused
from node.cli.client import call
from node.cli.console import Console, counted, shown


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of these commands."""
    if name == "leave":
        parser.set_defaults(act=_leave)
        return
    parser.add_argument("node", metavar="NODE", help="a member's name or fingerprint")
    parser.add_argument(
        "--keep", metavar="NODE", action="append", default=[],
        help="of the machines it let in, keep this one; may be repeated; none keeps nobody. Unless said: those known for a day",
    )  # fmt: skip
    parser.set_defaults(act=_expel)


def _expel(arguments: argparse.Namespace, console: Console) -> int:
    args: dict[str, object] = {"node": arguments.node, "keep": arguments.keep}
    plan: Any = call(console.home, "expel.plan", args)
    name = shown(plan["name"])
    if not console.as_json:
        _show_plan(console, plan)
    if not console.ask(f"Expel {name}, for good?"):
        raise Refused(f"{name} was not expelled", reason="needs_yes", hint="say yes, or add --yes")
    found: Any = call(console.home, "expel", args)
    if console.as_json:
        console.json(found)
        return 0
    console.line(f"expelled {name}")
    console.note("what is left to do:")
    for line in found["checklist"]:
        console.note(f"  - {shown(line)}")
    return 0


def _leave(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "status")
    question = f"Leave the mesh of {counted(found['mesh']['members'], 'machine')}, for good? This machine gets a fresh key and is alone then."
    if not console.ask(question):
        raise Refused("this machine stays in its mesh", reason="needs_yes", hint="say yes, or add --yes")
    left: Any = call(console.home, "leave", {"yes": console.yes})
    if console.as_json:
        console.json(left)
    else:
        console.line(f"left the mesh; {counted(left['told'], 'machine')} in reach heard of it")
    return 0


def _show_plan(console: Console, plan: dict[str, Any]) -> None:
    console.note(f"{shown(plan['name'])} of {shown(plan['owner'])}, {counted(len(plan['keys']), 'key')}: {', '.join(map(shown, plan['keys']))}")
    console.note("its links close on every machine that learns of it, and it can never come back with these keys")
    if plan["tasks"]:
        console.note(f"{counted(len(plan['tasks']), 'task')} with this machine will end: {', '.join(map(shown, plan['tasks']))}")
    for issued in plan["issued"]:
        word = "stays" if issued["kept"] else "goes too"
        console.note(f"  {shown(issued['name'])}, which it let in, {word} (first seen {shown(issued['first_seen'])})")
