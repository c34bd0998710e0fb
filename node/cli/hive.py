"""``hive``: what the sessions taught."""

from __future__ import annotations

import argparse
from typing import Any

from node.cli.client import call
from node.cli.console import Console
from node.cli.fleet import print_fields
from node.cli.table import print_table


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``hive``."""
    inner = parser.add_subparsers(metavar="status|lessons|show|learn|forget", required=True)
    inner.add_parser("status", help="what is known, and from where").set_defaults(act=_fields, verb="hive.status")
    lessons = inner.add_parser("lessons", aliases=["knowledge"], help="every lesson, strongest first")
    lessons.set_defaults(act=_lessons)
    inner.add_parser("learn", help="read the sessions of this machine now").set_defaults(act=_fields, verb="hive.learn")
    for verb, text in (("show", "one lesson and who saw it"), ("forget", "forget a lesson, here and for good")):
        one = inner.add_parser(verb, help=text)
        one.add_argument("lesson", metavar="LESSON", help="the lesson's id, or the start of it")
        one.set_defaults(act=_fields, verb=f"hive.{verb}")


def _lessons(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "hive.lessons")
    if console.as_json:
        console.json(found)
        return 0
    rows = [
        (
            str(row["lesson"])[:12],
            row["state"],
            row["stance"],
            f"{row['positive']}/{row['negative']}",
            None if row["score"] is None else f"{row['score']:.2f}",
            ", ".join(row["owners"]),
            row["scope"],
            f"{row['tool']}({row['pattern']})",
        )
        for row in found
    ]
    heads = ("LESSON", "STATE", "STANCE", "YES/NO", "SCORE", "SEEN BY", "SCOPE", "PATTERN")
    print_table(console, heads, rows, empty="no lessons yet; they come from what you allow and deny in sessions (`hivemesh hive learn`)")
    return 0


def _fields(arguments: argparse.Namespace, console: Console) -> int:
    args = {"lesson": arguments.lesson} if "lesson" in arguments else {}
    found: Any = call(console.home, arguments.verb, args, timeout_s=600.0)
    if console.as_json:
        console.json(found)
    else:
        print_fields(console, found)
    return 0
