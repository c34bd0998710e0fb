"""``fleet`` and ``session``: every session on every machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from mesh.base.errors import OurFault
from node.cli.client import call, stream
from node.cli.console import Console, age, shown
from node.cli.table import print_table, size, table_lines

STATUSES = ("needs_you", "your_turn", "working", "limited", "stuck", "ended", "unknown")
"""Every status of a session, those that wait for a person first; tables are sorted so."""
_CLEAR = "\x1b[H\x1b[2J"


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``fleet`` and ``session``."""
    if name == "session":
        inner = parser.add_subparsers(metavar="show", required=True)
        show = inner.add_parser("show", help="one session in full")
        show.add_argument("id", metavar="ID", help="the session's id, or the start of it")
        show.set_defaults(act=_session)
        return
    parser.add_argument("--watch", action="store_true", help="stay, and show every change")
    parser.add_argument("--all", action="store_true", help="also sessions that have ended")
    parser.add_argument("--status", choices=STATUSES, help="only sessions in this status")
    parser.add_argument("--node", metavar="NODE", help="only sessions of this machine")
    parser.add_argument("--project", metavar="P", help="only sessions of this project")
    parser.set_defaults(act=_fleet)


def _fleet(arguments: argparse.Namespace, console: Console) -> int:
    args: dict[str, object] = {"all": arguments.all}
    args |= {key: value for key in ("status", "node", "project") if (value := getattr(arguments, key)) is not None}
    if arguments.watch:
        return watch(console, "fleet", args, partial(_print_fleet, args))
    return show_fleet(console, args)


def show_fleet(console: Console, args: Mapping[str, object]) -> int:
    """Show the fleet once.

    Args:
        console: Where.
        args: The filters of the verb ``fleet``.

    Returns:
        The exit code.

    Raises:
        NotRunning: No node runs on this home.
    """
    found: Any = call(console.home, "fleet", args)
    if console.as_json:
        console.json(found)
    else:
        _print_fleet(args, console, found)
    return 0


def watch(console: Console, verb: str, args: Mapping[str, object], draw: Callable[[Console, Any], None]) -> int:
    """Follow a verb that sends its whole answer anew at each change, as the event ``{"kind":verb, verb:[...]}``.

    On a terminal the screen is drawn anew; without one each change is one JSON line.

    Args:
        console: Where.
        verb: ``fleet`` or ``inbox``.
        args: Its arguments.
        draw: Draws one answer.

    Raises:
        OurFault: The node ended.
    """
    with stream(console.home, verb, {**args, "watch": True}) as conversation:
        for event, _ in conversation.events():
            if event.get("kind") != verb:
                continue
            if console.on_terminal:
                console.line(f"{_CLEAR}hivemesh {verb}    Ctrl-C ends\n")
                draw(console, event[verb])
            else:
                console.json(event)
    raise OurFault("the node ended", hint="hivemesh status")


def _print_fleet(args: Mapping[str, object], console: Console, found: list[dict[str, Any]]) -> None:
    rank = {status: at for at, status in enumerate(STATUSES)}
    found = sorted(found, key=lambda row: (rank.get(row["status"], len(rank)), row["age_s"] is None, row["age_s"] or 0))
    rows = [
        (
            row["status"],
            machine(row),
            row["project"],
            row["agent"],
            str(row["session"])[:8],
            row["branch"],
            row["model"],
            _tokens(row["tokens"]),
            "-" if row["cost_usd"] is None else f"${row['cost_usd']:.2f}",
            age(row["age_s"]) + (" stale" if row["stale"] else ""),
            row["waiting_for"] or ", ".join(row["health"]),
        )
        for row in found
    ]
    heads = ("STATUS", "MACHINE", "PROJECT", "AGENT", "SESSION", "BRANCH", "MODEL", "TOKENS", "COST", "HEARD", "")
    print_table(console, heads, rows, empty=_no_sessions(args))


def _no_sessions(args: Mapping[str, object]) -> str:
    """Say that there are none, as was asked, and how to see more."""
    filtered = bool(args.keys() - {"all"})
    which = "no such sessions" if filtered else "no sessions"
    if args.get("all") or "status" in args:
        return which
    return f"{which} ({'--all' if filtered else '`hivemesh fleet --all`'} shows ended ones too)"


def machine(row: Mapping[str, Any]) -> str:
    """Write a machine's name with the suffix that tells it from another of that name."""
    return f"{row['name']}~{str(row['node'])[:4]}"


def _tokens(tokens: Mapping[str, int | None]) -> str:
    known = [count for count in tokens.values() if count is not None]
    return size(sum(known)) if known else "-"


def _session(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "session.show", {"session": arguments.id})
    if console.as_json:
        console.json(found)
    else:
        print_fields(console, found)
    return 0


def print_fields(console: Console, found: Mapping[str, Any], indent: str = "") -> None:
    """Print an answer as one line a field, objects and tables of them below their name.

    Args:
        console: Where.
        found: An answer; deeper than what JSON answers have, it is shown on one line.
        indent: What stands before each line.
    """
    width = max((len(key) for key in found), default=0)
    for key, value in found.items():
        if isinstance(value, Mapping) and value:
            console.line(f"{indent}{shown(key)}")
            print_fields(console, value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            console.line(f"{indent}{shown(key)}")
            for line in _nested_lines(value):
                console.line(f"{indent}  {line}")
        else:
            console.line(f"{indent}{shown(key):<{width}}  {_plain(value)}")


def _nested_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lay out a list of objects, a column for each field that any of them has."""
    keys = list(dict.fromkeys(key for one in found for key in one))
    return table_lines([shown(key) for key in keys], [[_plain(one.get(key)) for key in keys] for one in found])


def _plain(value: object) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, list):
        return ", ".join(shown(one) for one in value)
    return shown(str(value).lower() if isinstance(value, bool) else value)
