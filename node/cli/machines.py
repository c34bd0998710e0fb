"""``peers``, ``discover``, ``connect`` and ``mesh``: the other machines."""

from __future__ import annotations

import argparse
from typing import Any

from mesh.base.clock import parse_duration_s
from mesh.base.errors import Usage
from node.addresses import MESH_PORT, parse_endpoint
from node.cli.client import ANSWER_S, call
from node.cli.console import Console, age, shown
from node.cli.fleet import machine, print_fields
from node.cli.table import print_table

DISCOVER_S_MAX = 30


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of these commands."""
    if name == "discover":
        parser.add_argument("--timeout", metavar="3s", default="3s", help="how long to listen, at most 30s")
        parser.set_defaults(act=_discover)
    elif name == "connect":
        parser.add_argument("node", metavar="NODE", help="a member's name or fingerprint")
        parser.add_argument("address", metavar="HOST[:PORT]", help=f"where it listens; port {MESH_PORT} unless said")
        parser.set_defaults(act=_connect)
    elif name == "mesh":
        inner = parser.add_subparsers(metavar="show|identity|root", required=True)
        inner.add_parser("show", help="the mesh, its root and its members").set_defaults(act=_mesh, verb="mesh.show")
        renew = inner.add_parser("renew", help="give a machine a new certificate, also long after the old one ended")
        renew.add_argument("node", metavar="NODE", help="a member's name or fingerprint")
        renew.set_defaults(act=_renew)
        inner.add_parser("identity", help="this machine's key and certificate").set_defaults(act=_mesh, verb="mesh.identity")
        from node.cli.root import declare

        declare(inner.add_parser("root", help="the root's key: words on paper, and what they sign"))
    else:
        parser.set_defaults(act=_peers)


def _peers(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "peers")
    if console.as_json:
        console.json(found)
        return 0
    rows = [
        (
            row["state"],
            machine(row),
            row["owner"] + (" (me)" if row["mine"] else ""),
            ", ".join(row["roles"]),
            row["link"],
            None if row["rtt_ms"] is None else f"{row['rtt_ms']:.0f} ms",
            age(row["last_seen_s"]),
            str(row["version"] or "").removeprefix("hivemesh "),
            ", ".join(row["addresses"]),
        )
        for row in found
    ]
    heads = ("STATE", "MACHINE", "PERSON", "ROLES", "LINK", "RTT", "SEEN", "VERSION", "ADDRESSES")
    print_table(console, heads, rows, empty="no other machines yet; let one in with `hivemesh invite`")
    return 0


def _discover(arguments: argparse.Namespace, console: Console) -> int:
    timeout_s = parse_duration_s(arguments.timeout)
    if timeout_s > DISCOVER_S_MAX:
        raise Usage(f"--timeout is at most {DISCOVER_S_MAX}s", hint="hivemesh discover --timeout 10s")
    found: Any = call(console.home, "discover", {"timeout": arguments.timeout}, timeout_s=timeout_s + ANSWER_S)
    if console.as_json:
        console.json(found)
        return 0
    rows = [(row["known"] or "stranger", row["instance"], ", ".join(row["addresses"]), row["port"]) for row in found]
    print_table(console, ("KNOWN AS", "ANNOUNCED AS", "ADDRESSES", "PORT"), rows, empty="nothing announces itself on this network")
    return 0


def _connect(arguments: argparse.Namespace, console: Console) -> int:
    endpoint = parse_endpoint(arguments.address, port=MESH_PORT)
    if not endpoint.host or not endpoint.port:
        raise Usage(f"{arguments.address[:80]!r} names no machine and port", hint=f"write HOST or HOST:PORT; the port is {MESH_PORT} unless said")
    found: Any = call(console.home, "connect", {"node": arguments.node, "address": str(endpoint)})
    if console.as_json:
        console.json(found)
    else:
        console.line(f"connected to {shown(found['name'])} at {endpoint}")
    return 0


def _renew(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "mesh.renew", {"node": arguments.node})
    if console.as_json:
        console.json(found)
    else:
        console.line(f"renewed the certificate of {shown(found['name'])} until {shown(found['expires_at'])}")
    return 0


def _mesh(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, arguments.verb)
    if console.as_json:
        console.json(found)
    else:
        print_fields(console, found)
    return 0
