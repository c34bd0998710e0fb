"""``up`` and ``down``: starting and stopping this machine's node."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from mesh.base.errors import NotRunning, OurFault
from node.cli.client import call
from node.cli.console import Console, OutputLost, shown
from node.cli.start import run_in_background, run_in_foreground
from node.configfile import Value
from node.lock import lock_holder

DOWN_S = 15.0
"""How long ``down`` waits for the node to give its home free."""


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``up`` and ``down``."""
    if name == "down":
        parser.set_defaults(act=_down)
        return
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background")
    parser.add_argument("--name", metavar="N", help="what this machine is called")
    parser.add_argument("--listen", metavar="HOST:PORT", action="append", help="where other machines connect; may be repeated")
    parser.add_argument("--advertise", metavar="HOST:PORT", action="append", help="announce this instead; may be repeated")
    parser.add_argument("--no-discovery", action="store_true", help="neither announce nor look for machines on the LAN")
    parser.add_argument("--runs", metavar="mine|ask|off", help="who may run here")
    parser.add_argument("--api", metavar="HOST:PORT|off", help="where the HTTP interface listens")
    parser.set_defaults(act=_up)


def _up(arguments: argparse.Namespace, console: Console) -> int:
    options = {
        "name": arguments.name,
        "listen": arguments.listen,
        "advertise": arguments.advertise,
        "runs": arguments.runs,
        "api.listen": arguments.api,
        "discovery": False if arguments.no_discovery else None,
    }
    overrides: dict[str, Value] = {key: value for key, value in options.items() if value is not None}
    if not arguments.detach:
        run_in_foreground(console, overrides, partial(_show_ready_if_heard, console))
        return 0
    show_ready(console, run_in_background(console, overrides))
    return 0


def _show_ready_if_heard(console: Console, facts: dict[str, Any]) -> None:
    """Print what the node says of itself; one that runs here goes on where nobody can read it."""
    try:
        show_ready(console, facts)
    except OutputLost as lost:
        lost.give_up()
        console.warn(f"hivemesh: {lost.message}; the node runs all the same")


def show_ready(console: Console, facts: dict[str, Any]) -> None:
    """Print what a node that has just started says of itself."""
    if console.as_json:
        console.json(facts)
        return
    console.line(f"{shown(facts['name'])}  {shown(facts['fingerprint'])}")
    console.line(f"  listens on  {shown(', '.join(facts['listen']))}")
    console.line(f"  announces   {shown(', '.join(facts['advertise']) or 'nothing')}")
    if facts.get("api"):
        console.line(f"  api         {shown(facts['api'])}")
    for warning in facts["warnings"]:
        console.warn(f"warning: {shown(warning)}")
    console.flush()


def _down(arguments: argparse.Namespace, console: Console) -> int:
    pid = lock_holder(console.home)
    try:
        call(console.home, "down", timeout_s=DOWN_S)
    except NotRunning:
        if pid is None:
            raise
        raise OurFault(f"the node (pid {pid}) does not answer; it may be starting or ending", hint="try again in some seconds") from None
    deadline_s = time.monotonic() + DOWN_S
    while lock_holder(console.home) is not None:
        if time.monotonic() > deadline_s:
            raise OurFault(f"the node (pid {pid}) did not end within {DOWN_S:.0f} s", hint=f"end it by force: kill -9 {pid}")
        time.sleep(0.05)
    if console.as_json:
        console.json({"stopped": True, "pid": pid})
    else:
        console.line("stopped")
    return 0
