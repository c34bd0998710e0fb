"""``run``, ``logs`` and ``wait``: commands that exit as the remote command did."""

from __future__ import annotations

import argparse
import os

from mesh.base.clock import parse_duration_s
from mesh.base.errors import Usage
from node.cli.client import Answered, stream
from node.cli.console import Console, shown
from node.cli.follow import end, follow


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of these commands."""
    if name == "run":
        parser.usage = "hivemesh run NODE [options] -- CMD ARG..."
        parser.add_argument("node", metavar="NODE", help="where: a name, a name with suffix, or the start of a fingerprint")
        parser.add_argument("bare", nargs="*", default=[], help=argparse.SUPPRESS)
        parser.add_argument("--timeout", metavar="2h", help="end it there after this time")
        parser.add_argument("--no-tree", action="store_true", help="send no files; run in an empty folder")
        parser.add_argument("--detach", action="store_true", help="do not wait; queue it until it can run")
        parser.set_defaults(act=_run)
        return
    parser.add_argument("id", metavar="ID", help="the run's id, or the start of it")
    if name == "logs":
        parser.add_argument("-f", "--follow", action="store_true", help="stay until the run has ended, and exit as it did")
        parser.add_argument("--since", metavar="OFFSET", type=int, default=0, help="begin at this byte of the output")
        parser.set_defaults(act=_logs)
    else:
        parser.set_defaults(act=_wait)


def _run(arguments: argparse.Namespace, console: Console) -> int:
    words = arguments.tail or []
    if arguments.bare or not words:
        raise Usage("run needs its command behind --", hint=f"hivemesh run {shown(arguments.node)} -- " + shown(" ".join(arguments.bare) or "CMD ARG..."))
    args: dict[str, object] = {
        "node": arguments.node,
        "argv": words,
        "cwd": _working_folder(),
        "tree": not arguments.no_tree,
        "detach": arguments.detach,
        "yes": console.yes,
    }
    if arguments.timeout:
        parse_duration_s(arguments.timeout)
        args["timeout"] = arguments.timeout
    try:
        return _start(console, args)
    except Answered as refusal:
        if refusal.reason not in ("untracked", "needs_yes") or console.yes or not console.may_ask():
            raise
        if not console.ask(f"{shown(refusal.message)} Send it?"):
            raise
    return _start(console, args | {"yes": True})


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise Usage("the current folder does not exist any more", hint="change to one that does") from None


def _start(console: Console, args: dict[str, object]) -> int:
    with stream(console.home, "run", args) as conversation:
        task = follow(conversation, console, cancels=True)
    if not args["detach"]:
        return end(task, console)
    if console.as_json:
        console.json(task)
    else:
        console.line(shown(task["task"]))
    return 0


def _logs(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.since < 0:
        raise Usage("--since is a number of bytes, 0 or more")
    args = {"task": arguments.id, "since": arguments.since, "follow": arguments.follow}
    with stream(console.home, "logs", args) as conversation:
        task = follow(conversation, console, task=arguments.id)
    if arguments.follow:
        return end(task, console)
    if console.as_json:
        console.json(task)
    return 0


def _wait(arguments: argparse.Namespace, console: Console) -> int:
    with stream(console.home, "wait", {"task": arguments.id}) as conversation:
        task = follow(conversation, console, task=arguments.id, show_output=False)
    return end(task, console)
