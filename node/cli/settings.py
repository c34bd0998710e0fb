"""``config``: show and change the settings."""

from __future__ import annotations

import argparse

from node.callers import refuse_agents_here
from node.cli.client import call
from node.cli.console import Console, shown
from node.cli.table import print_table
from node.config import SETTINGS, load_settings, parse_setting, set_setting, setting_of, value_of
from node.lock import lock_holder, make_home


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``config``."""
    inner = parser.add_subparsers(metavar="show|get|set", required=True)
    inner.add_parser("show", help="every setting, what it is now and what it is for").set_defaults(act=_show)
    get = inner.add_parser("get", help="one setting")
    get.add_argument("key", metavar="KEY")
    get.set_defaults(act=_get)
    change = inner.add_parser("set", help="change one setting in config.toml")
    change.add_argument("key", metavar="KEY")
    change.add_argument("value", metavar="VALUE", help="as `hivemesh config show` writes it; lists with commas")
    change.set_defaults(act=_set)


def _show(arguments: argparse.Namespace, console: Console) -> int:
    settings = load_settings(console.home, console.environ)
    rows = [
        {"key": one.key, "value": value_of(settings, one.key), "default": one.default, "set": one.key in settings.stated, "about": one.about}
        for one in SETTINGS
    ]
    for warning in settings.warnings:
        console.warn(f"warning: {shown(warning)}")
    if console.as_json:
        console.json(rows)
        return 0
    cells = [(row["key"], _text(row["value"]), "set" if row["set"] else "default", row["about"]) for row in rows]
    print_table(console, ("KEY", "VALUE", "FROM", "WHAT FOR"), cells, empty="")
    console.note(f"in {shown(console.home.config_file)}")
    return 0


def _get(arguments: argparse.Namespace, console: Console) -> int:
    setting_of(arguments.key)
    value = value_of(load_settings(console.home, console.environ), arguments.key)
    if console.as_json:
        console.json({"key": arguments.key, "value": value})
    else:
        console.line(_text(value))
    return 0


def _set(arguments: argparse.Namespace, console: Console) -> int:
    parse_setting(arguments.key, arguments.value)
    if lock_holder(console.home) is not None:
        found = call(console.home, "config.set", {"key": arguments.key, "value": arguments.value})
    else:
        refuse_agents_here("config set", console.home)
        make_home(console.home)
        found = {"key": arguments.key, "value": set_setting(console.home, arguments.key, arguments.value), "applied": False}
    if console.as_json:
        console.json(found)
        return 0
    assert isinstance(found, dict)
    console.line(f"{arguments.key} = {_text(found['value'])}")
    console.note("in force now" if found["applied"] else "takes effect at the next start")
    return 0


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(shown(one) for one in value)
    return shown(value)
