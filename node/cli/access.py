"""``access``: what outsiders may ask."""

from __future__ import annotations

import argparse
from typing import Any

from mesh.base.clock import parse_duration_s
from mesh.base.errors import Usage
from mesh.base.names import project_name
from node.cli.client import call
from node.cli.console import Console, shown
from node.cli.table import print_table


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``access``."""
    inner = parser.add_subparsers(metavar="grant|list|revoke", required=True)
    grant = inner.add_parser("grant", help="make a token for one project")
    grant.add_argument("project", metavar="PROJECT")
    grant.add_argument("--scope", choices=("query",), default="query", help="what the token may ask; the pages of the documentation come later")
    grant.add_argument("--expires", metavar="30d", default="30d", help="when it ends")
    grant.add_argument("--label", metavar="L", default="", help="whom it is for")
    grant.add_argument("--rate", metavar="N", type=int, help="questions a minute")
    grant.add_argument("--per-day", metavar="N", type=int, help="questions a day")
    grant.set_defaults(act=_grant)
    inner.add_parser("list", help="every grant").set_defaults(act=_list)
    revoke = inner.add_parser("revoke", help="end a grant, for good")
    revoke.add_argument("grant", metavar="GRANT", help="the grant's id, or the start of it")
    revoke.set_defaults(act=_revoke)


def _grant(arguments: argparse.Namespace, console: Console) -> int:
    from query.messages import LABEL_BYTES_MAX, PER_DAY_MAX, RATE_PER_MIN_MAX

    args: dict[str, object] = {
        "project": project_name(arguments.project),
        "scopes": [arguments.scope],
        "expires": arguments.expires,
        "label": arguments.label,
    }
    parse_duration_s(arguments.expires)
    if len(arguments.label.encode(errors="surrogatepass")) > LABEL_BYTES_MAX:
        raise Usage(f"a label has at most {LABEL_BYTES_MAX} bytes")
    for option, key, most in (("rate", "rate_per_min", RATE_PER_MIN_MAX), ("per_day", "per_day", PER_DAY_MAX)):
        value = getattr(arguments, option)
        if value is not None and not 1 <= value <= most:
            raise Usage(f"--{option.replace('_', '-')} is 1 to {most}")
        if value is not None:
            args[key] = value
    found: Any = call(console.home, "access.grant", args)
    if console.as_json:
        console.json(found)
        return 0
    console.line(shown(found["token"]))
    console.note(f"grant {shown(found['grant'])}: {shown(found['project'])}, until {shown(found['expires_at'])}; the token is shown only now")
    console.note(f"it is answered at {shown(found['serve_at'])} while `hivemesh query serve` runs there")
    return 0


def _list(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "access.list")
    if console.as_json:
        console.json(found)
        return 0
    rows = [(row["grant"], row["project"], ", ".join(row["scopes"]), row["label"], row["expires_at"], row.get("state")) for row in found]
    print_table(console, ("GRANT", "PROJECT", "SCOPES", "LABEL", "EXPIRES", "STATE"), rows, empty="no grants")
    return 0


def _revoke(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "access.revoke", {"grant": arguments.grant})
    if console.as_json:
        console.json(found)
    else:
        console.line(f"revoked {shown(found['grant'])}")
    return 0
