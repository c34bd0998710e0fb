"""``inbox``, ``answer``, ``allow`` and ``deny``: what waits for a person anywhere, and what the person says."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from mesh.base.errors import Usage
from node.cli.client import call
from node.cli.console import Console, shown
from node.cli.fleet import machine, watch
from node.cli.table import print_table

ANSWER_BYTES_MAX = 4096
"""The longest text of an answer."""


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of these commands."""
    if name == "inbox":
        parser.add_argument("--watch", action="store_true", help="stay, and show every change")
        parser.set_defaults(act=_inbox)
        return
    parser.add_argument("id", metavar="ID", help="what `hivemesh inbox` shows in its first column, or the start of it")
    if name == "answer":
        parser.add_argument("answer", metavar="allow|deny|TEXT", help="yes, no, or what to say to a question")
    parser.set_defaults(act=_answer, **({} if name == "answer" else {"answer": name}))


def _inbox(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.watch:
        return watch(console, "inbox", {}, _print_inbox)
    found: Any = call(console.home, "inbox")
    if console.as_json:
        console.json(found)
    else:
        _print_inbox(console, found)
    return 0


def _print_inbox(console: Console, found: list[dict[str, Any]]) -> None:
    rows = [(str(row["id"])[:12], row["kind"], machine(row), row["since"]) for row in found]
    print_table(console, ("ID", "KIND", "MACHINE", "SINCE"), rows, empty="nothing waits for you", below=[_asked(row) for row in found])


def _asked(row: Mapping[str, Any]) -> list[str]:
    """Say who wants what, and then what would run."""
    lines = [str(row["what"])]
    if row["command"]:
        lines.append(f"$ {row['command']}")
    if row.get("complete") is False:
        lines.append("this is not all of the command; it can be allowed only on that machine itself")
    return lines


def _answer(arguments: argparse.Namespace, console: Console) -> int:
    text = arguments.answer
    if not text or len(text.encode(errors="surrogatepass")) > ANSWER_BYTES_MAX:
        raise Usage(f"an answer is 1 to {ANSWER_BYTES_MAX} bytes", hint="hivemesh answer ID allow")
    waiting: Any = call(console.home, "inbox")
    items = [item for item in waiting if str(item["id"]).startswith(arguments.id)] if arguments.id else []
    if not items:
        raise Usage(f"nothing waits under {arguments.id[:40]!r}", hint="see what waits: hivemesh inbox")
    if len(items) > 1:
        raise Usage(f"{arguments.id[:40]!r} is the start of {len(items)} ids", hint="write more of it; hivemesh inbox shows them")
    # The digest binds the answer to what the inbox shows: if something else waits there by now, it is refused.
    item = items[0]
    console.note(f"{shown(text)}: {shown(item['what'])} on {shown(item['name'])}" + (f": {shown(item['command'])}" if item["command"] else ""), quotes=True)
    found: Any = call(console.home, "answer", {"id": item["id"], "answer": text, "digest": item["digest"]})
    if console.as_json:
        console.json(found)
    else:
        console.line(f"answered {shown(item['id'])}")
    return 0
