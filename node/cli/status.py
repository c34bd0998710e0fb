"""``status``: what runs here."""

from __future__ import annotations

from node.cli.client import call
from node.cli.console import age, counted, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any

    from node.cli.console import Console


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``status``."""
    parser.set_defaults(act=_status)


def _status(arguments: argparse.Namespace, console: Console) -> int:
    found: Any = call(console.home, "status")
    if console.as_json:
        console.json(found)
        return 0
    node, mesh = found["node"], found["mesh"]
    console.line(f"{shown(node['name'])}  {shown(node['fingerprint'])}")
    console.line(f"  owner     {shown(node['owner'])}")
    console.line(f"  version   {shown(node['version'])}, up {age(node['uptime_s'])}")
    console.line(f"  mesh      {shown(mesh['id'])}, {counted(mesh['members'], 'machine')}, this one is {shown(', '.join(mesh['roles']))}")
    console.line(f"  listens   {shown(', '.join(found['listen'])) or 'nowhere'}")
    console.line(f"  api       {shown(found['api'] or 'off')}")
    discovery = found["discovery"]
    console.line(f"  discovery {'on' if discovery['on'] else 'off'}{shown(': ' + discovery['reason'] if discovery['reason'] else '')}")
    console.line(f"  runs      {shown(found['runs'])}, sandbox {shown(found['sandbox'])}")
    for link in found["links"]:
        via = f" via {shown(link['via'])}" if link["via"] else ""
        rtt = f", {link['rtt_ms']:.0f} ms" if link["rtt_ms"] is not None else ""
        console.line(f"  link      {shown(link['name'])} {shown(link['kind'])}{via}{rtt}")
    for warning in found["warnings"]:
        console.warn(f"warning: {shown(warning)}")
    return 0
