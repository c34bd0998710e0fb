"""``invite`` and ``join``: letting one more machine in."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from mesh.base.clock import parse_duration_s
from mesh.base.errors import Usage
from node.cli.client import call
from node.cli.console import Console, counted, shown
from node.config import load_settings
from node.lock import lock_holder

PASTE_CHARS_MAX = 64 * 1024
"""How much is read from stdin for an invite."""
NO_SANDBOX = "There is no sandbox yet: what they run can do what you can."
"""What a person must know before their machines may run things here."""
WATCH_S = 1.0
"""How often a terminal that waits for a code's use looks."""
JOIN_S = 180.0
"""How long a join may be silent: it looks for the issuer on the LAN, then moves this machine over."""


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``invite`` and ``join``."""
    if name == "join":
        parser.add_argument("code", metavar="CODE|-", nargs="?", help="the invite; - reads it from stdin; without it HIVEMESH_INVITE is taken")
        parser.add_argument("--leave-current", action="store_true", help="leave a mesh that has other members or unfinished tasks")
        parser.set_defaults(act=_join)
        return
    parser.add_argument("--for", dest="person", metavar="PERSON", help="for another person's machine; else it becomes one more of yours")
    parser.add_argument("--role", metavar="R", action="append", help="viewer, member, worker or relay; may be repeated")
    parser.add_argument("--uses", metavar="N", type=int, default=1, help="how many machines may use it")
    parser.add_argument("--ttl", metavar="24h", default="24h", help="how long it can be used")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--code", action="store_true", help="also a short code to type, for 10 minutes")
    form.add_argument("--words", action="store_true", help="also a phrase to read out, for 10 minutes")
    form.add_argument("--qr", action="store_true", help="draw the link as a QR code too, on a terminal")
    parser.add_argument("--no-addresses", action="store_true", help="put no address into it; the joiner finds this machine on the LAN")
    parser.add_argument("--ephemeral", metavar="1h", help="let the machine in for this long only (1m to 7d), for example a job of a CI")
    parser.set_defaults(act=_invite)


def _invite(arguments: argparse.Namespace, console: Console) -> int:
    parse_duration_s(arguments.ttl)
    if arguments.person is not None and not arguments.person.strip():
        raise Usage("--for needs a person's name", hint="without --for it is for one more machine of yours: hivemesh invite")
    args: dict[str, object] = {
        "roles": arguments.role or [],
        "uses": arguments.uses,
        "ttl": arguments.ttl,
        "no_addresses": arguments.no_addresses,
        "code": arguments.code,
        "words": arguments.words,
    }
    if arguments.ephemeral is not None:
        parse_duration_s(arguments.ephemeral)
        args["ephemeral"] = arguments.ephemeral
    if arguments.person is not None:
        args["for"] = arguments.person
    found: Any = call(console.home, "invite", args)
    if console.as_json:
        console.json(found)
        return 0
    whose = shown(found["owner"])
    span = f"; a member for {arguments.ephemeral} only" if arguments.ephemeral else ""
    about = f"for a machine of {whose}, as {shown(', '.join(found['roles']))}; {counted(found['uses'], 'use')}{span}"
    coded = found.get("code") or found.get("words")
    if coded:
        console.line(shown(coded))
        console.note(f"{about}, until {shown(found['code_expires_at'])}")
        console.note(f"on the other machine: hivemesh join {shown(coded)}")
        return _watch(found["id"], console) if console.may_ask() else 0
    console.line(shown(found["link"]))
    if arguments.qr:
        _draw(str(found["link"]), console)
    console.note(f"{about}, until {shown(found['expires_at'])}")
    console.note("whoever has it can join. On the other machine paste it there: hivemesh join -")
    return 0


def _draw(link: str, console: Console) -> None:
    """Draw a link in half blocks, dark on light whatever the terminal's colours are; elsewhere the link alone is there."""
    if not console.on_terminal:
        return
    from node.cli.picture import draw_link

    drawn = draw_link(link, coloured=console.coloured)
    if drawn is None:
        console.note("this link is too long to be drawn 80 columns wide")
        return
    for row in drawn:
        console.line(row)


def _watch(invite: str, console: Console) -> int:
    """Say what becomes of a code until it is used up; leaving ends the watching only."""
    console.note("waiting for the other machine; Ctrl-C stops the waiting, not the code")
    tries_left = None
    try:
        while True:
            found: Any = call(console.home, "invite.state", {"id": invite})
            if found["joined"]:
                console.note(f"{shown(', '.join(found['joined']))} joined")
                return 0
            if found["state"] in ("burned", "expired"):
                why = "was burned: it was tried three times with a wrong password" if found["state"] == "burned" else "has expired"
                console.note(f"the code {why}; make a new one: hivemesh invite --code")
                return 1
            if tries_left is not None and found["tries_left"] < tries_left:
                console.note(f"a wrong code was tried; {found['tries_left']} of 3 tries left")
            tries_left = found["tries_left"]
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return 0


def _join(arguments: argparse.Namespace, console: Console) -> int:
    from mesh.base.names import fingerprint_text
    from mesh.invites import PREFIX, read_link_untrusted
    from mesh.kinds import Role, role_names

    text = _code(arguments.code, console)
    args: dict[str, object] = {"invite": text, "leave_current": arguments.leave_current}
    if PREFIX in text:
        read_link_untrusted(text)
        _start_node(console)
    else:
        args |= _opened(text, console)
    invite = read_link_untrusted(str(args["invite"]))
    whose = f"one more machine of {shown(invite.owner_name)}" if invite.mine else f"a machine of {shown(invite.owner_name)}"
    roles = ", ".join(role_names(Role(invite.roles)))
    console.note(f"this makes it {whose}, as {roles}, in the mesh of the machine {fingerprint_text(invite.issuer_key)}")
    if PREFIX not in text and console.may_ask() and not console.ask("Join it?", default=True):
        console.note("not joined; nothing changed here")
        return 5
    found: Any = call(console.home, "join", args, timeout_s=JOIN_S, on_event=lambda event: _tell(event, console))
    if console.as_json:
        console.json(found)
    else:
        console.line(f"joined as {shown(found['name'])}, a machine of {shown(found['owner'])}: {shown(', '.join(found['roles']))}, by way of {shown(found['via'])}")
    if invite.mine:
        _settle_runs(console)
    return 0


def _start_node(console: Console) -> None:
    """Have a node here, since it is the node that joins."""
    if lock_holder(console.home) is None:
        from node.cli.start import run_in_background

        facts = run_in_background(console, {})
        console.note(f"started this machine's node in the background ({shown(facts['name'])}); `hivemesh down` stops it")


def _opened(text: str, console: Console) -> dict[str, object]:
    """Get the link that a code or a phrase stands for; a typo is found before anything is sent."""
    from mesh.codes import read_code_untrusted

    read_code_untrusted(text)
    _start_node(console)
    found: Any = call(console.home, "join.open", {"code": text}, timeout_s=JOIN_S, on_event=lambda event: _tell(event, console))
    return {"invite": found["link"], "address": found["address"]}


def _tell(event: Mapping[str, object], console: Console) -> None:
    if event.get("kind") == "note":
        console.note(shown(event.get("text")))


def _code(stated: str | None, console: Console) -> str:
    """Take the invite from the words, from stdin, or from the environment; it is never shown again."""
    if stated == "-":
        if sys.stdin.isatty():
            console.note("paste the invite, then Enter:")
            code = sys.stdin.readline(PASTE_CHARS_MAX)
        else:
            code = sys.stdin.read(PASTE_CHARS_MAX)
    else:
        code = stated or console.environ.get("HIVEMESH_INVITE", "")
    # What this command starts, a node first of all, needs no copy of the secret.
    os.environ.pop("HIVEMESH_INVITE", None)
    if not code.strip():
        raise Usage("there is no invite to join with", hint="paste it into `hivemesh join -`, or set HIVEMESH_INVITE")
    return code


def _settle_runs(console: Console) -> None:
    """Ask once whether one's own machines may run here; without a terminal nothing changes and the way is shown."""
    if "runs" in load_settings(console.home, console.environ).stated:
        return
    if not console.may_ask():
        console.note(f"your other machines must ask before they run something here. {NO_SANDBOX} To let them: hivemesh config set runs mine")
        return
    allowed = console.ask(f"May your other machines run commands here without asking each time? {NO_SANDBOX}")
    call(console.home, "config.set", {"key": "runs", "value": "mine" if allowed else "ask"})
