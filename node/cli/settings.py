"""``config``: show and change the settings."""

from __future__ import annotations

import argparse
import os

from mesh.base.errors import Usage
from node.callers import refuse_agents_here
from node.cli.client import call
from node.cli.console import Console, shown
from node.cli.table import print_table
from node.config import SETTINGS, check_value, load_settings, parse_setting, set_setting, setting_of, value_of
from node.configfile import Value, read_keys
from node.home import Home
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
    good, bad, warnings = _read_each(console)
    # Below a device there is no file: what is stated there has just been read.
    unwritten = Home(os.devnull, console.home.data_dir, console.home.log_dir, one_folder=console.home.one_folder)
    settings = load_settings(unwritten, console.environ, good)
    rows = [
        {
            "key": one.key,
            "value": None if one.key in bad and one.stops else value_of(settings, one.key),
            "default": one.default,
            "set": one.key in good or one.key in bad,
            "bad": bad.get(one.key),
            "about": one.about,
        }
        for one in SETTINGS
    ]
    for warning in warnings:
        console.warn(f"warning: {shown(warning)}")
    if console.as_json:
        console.json(rows)
        return 0
    cells = [
        (row["key"], None if row["value"] is None else _text(row["value"]), "BAD" if row["bad"] else "set" if row["set"] else "default", row["bad"] or row["about"])
        for row in rows
    ]
    print_table(console, ("KEY", "VALUE", "FROM", "WHAT FOR"), cells, empty="")
    console.note(f"in {shown(console.home.config_file)}")
    return 0


def _read_each(console: Console) -> tuple[dict[str, Value], dict[str, str], list[str]]:
    """Read the file one setting at a time, so that a bad one hides none of the others.

    Returns:
        The good values; what is wrong with each bad one; all that is wrong, a line each.
    """
    good: dict[str, Value] = {}
    bad: dict[str, str] = {}
    warnings: list[str] = []
    for key, raw in read_keys(console.home.config_file).items():
        try:
            one = setting_of(key)
        except Usage as error:
            warnings.append(f"{error.message}; {error.hint}")
            continue
        try:
            good[key] = check_value(one, raw)
        except Usage as error:
            bad[key] = error.message
            warnings.append(f"{error.message}; " + (f"no node starts so: hivemesh config set {key} VALUE" if one.stops else "the default holds"))
    return good, bad, warnings


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
