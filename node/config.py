"""Every setting of a node: its default, its bound, and what it is for.

One table says it all; the file ``config.toml``, the options of ``up`` and ``config set`` are checked by it alike.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from mesh.base.errors import Usage
from mesh.base.names import NAME_BYTES_MAX, clean_name
from node.addresses import API_PORT, MESH_PORT, Endpoint, parse_endpoint, read_endpoint
from node.configfile import Value, read_keys, write_key
from node.home import Home

ADDRESSES_MAX = 16
"""The most addresses one setting lists."""
PATH_BYTES_MAX = 1024
_GIB = 1 << 30

Kind = Literal["text", "switch", "number", "choice", "addresses", "address or off", "folder"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        key: Its name in the file, with dots for tables.
        default: What holds where the file says nothing.
        about: What it is for, in one sentence.
        low: The least number allowed.
        high: The greatest number allowed.
        choices: The words allowed.
        stops: Whether a bad value keeps the node from starting; else it is warned about and the default holds.
    """

    key: str
    kind: Kind
    default: Value
    about: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    stops: bool = False

    @property
    def field(self) -> str:
        """The attribute of ``Settings`` that holds it."""
        return self.key.replace(".", "_")


SETTINGS: tuple[Setting, ...] = (
    Setting("name", "text", "", "What this machine is called; empty takes the host name."),
    Setting("listen", "addresses", [f":{MESH_PORT}"], "Where other machines connect; an empty host is every interface.", stops=True),
    Setting("advertise", "addresses", [], "What is announced instead of this machine's own addresses.", stops=True),
    Setting("discovery", "switch", True, "Whether this machine announces itself and looks for others on the LAN.", stops=True),
    Setting("relay", "switch", True, "Whether this machine passes circuits on between others that cannot dial each other."),
    Setting("api.listen", "address or off", f"127.0.0.1:{API_PORT}", "Where the HTTP interface listens; off for none.", stops=True),
    Setting(
        "runs",
        "choice",
        "ask",
        "Who may run here: mine (my own machines, at once), ask (each run waits for a yes), off.",
        choices=("mine", "ask", "off"),
        stops=True,
    ),
    Setting("tasks.slots", "number", 2, "How many tasks run here at once.", 1, 64),
    Setting("tasks.timeout_s", "number", 14_400, "The longest a task may run here, in seconds.", 1, 604_800),
    Setting(
        "tasks.output_bytes_max",
        "number",
        256 << 20,
        "How much output of one task is kept here, in bytes; beyond it the head and the tail are.",
        64 << 10,
        16 * _GIB,
    ),
    Setting("tasks.keep_d", "number", 7, "How many days a finished task and its output are kept.", 1, 365),
    Setting(
        "tasks.sandbox",
        "choice",
        "auto",
        "auto uses a sandbox if it works and refuses other people's work without it; require refuses all; off uses none.",
        choices=("auto", "require", "off"),
        stops=True,
    ),
    Setting("sessions.claude_dir", "folder", "", "Where Claude Code keeps its files; empty takes its own default."),
    Setting("sessions.codex_dir", "folder", "", "Where Codex keeps its files; empty takes its own default."),
    Setting("sessions.listed_h", "number", 24, "How many hours after its last sign of life a session is listed.", 1, 720),
    Setting("log.level", "choice", "info", "How much is logged.", choices=("debug", "info", "warning", "error")),
    Setting("log.bytes_max", "number", 32 << 20, "How large all log files together may grow, in bytes.", 1 << 20, _GIB),
)
_BY_KEY = {setting.key: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting as it holds now. The table ``SETTINGS`` says what each is for.

    Attributes:
        warnings: What in the file was passed over, one line each.
        stated: The keys that the file or an option states.
    """

    name: str
    listen: tuple[Endpoint, ...]
    advertise: tuple[Endpoint, ...]
    discovery: bool
    relay: bool
    api_listen: Endpoint | None
    runs: str
    tasks_slots: int
    tasks_timeout_s: int
    tasks_output_bytes_max: int
    tasks_keep_d: int
    tasks_sandbox: str
    sessions_claude_dir: Path
    sessions_codex_dir: Path
    sessions_listed_h: int
    log_level: str
    log_bytes_max: int
    warnings: tuple[str, ...] = ()
    stated: frozenset[str] = frozenset()


def load_settings(home: Home, environ: Mapping[str, str], overrides: Mapping[str, Value] | None = None) -> Settings:
    """Read the settings of a home.

    Args:
        home: The places.
        environ: The environment; the agents' own variables move their folders.
        overrides: Settings that hold for this run only, by key.

    Returns:
        The settings; unknown keys and bad values that do no harm are among its warnings.

    Raises:
        Usage: The file is not TOML, or a value that decides who may connect or run here is bad. Names file and key.
        Damaged: The file cannot be read.
    """
    warnings: list[str] = []
    stated: dict[str, Value] = {}
    for key, raw in read_keys(home.config_file).items():
        try:
            stated[key] = check_value(setting_of(key), raw)
        except Usage as error:
            if key in _BY_KEY and _BY_KEY[key].stops:
                raise Usage(f"{home.config_file}: {error.message}", hint=f"hivemesh config set {key} VALUE") from None
            rest = "the default holds" if key in _BY_KEY else error.hint
            warnings.append(f"{home.config_file}: {error.message}; {rest}")
    for key, value in (overrides or {}).items():
        stated[key] = check_value(setting_of(key), value)
    values: dict[str, Value] = {setting.key: setting.default for setting in SETTINGS} | stated
    if "api.listen" not in stated and home.one_folder:
        values["api.listen"] = "127.0.0.1:0"
    return _settle(values, environ, tuple(warnings), frozenset(stated))


def _settle(values: Mapping[str, Value], environ: Mapping[str, str], warnings: tuple[str, ...], stated: frozenset[str]) -> Settings:
    """Give checked values their types and the defaults that depend on this machine."""
    typed: dict[str, object] = {}
    for setting in SETTINGS:
        value = values[setting.key]
        if setting.kind == "addresses":
            assert isinstance(value, list)
            typed[setting.field] = tuple(parse_endpoint(text) for text in value)
        elif setting.kind == "address or off":
            typed[setting.field] = None if value == "off" else parse_endpoint(str(value))
        elif setting.kind == "folder":
            typed[setting.field] = Path(str(value) or _agent_folder(setting.key, environ)).expanduser()
        else:
            typed[setting.field] = value
    typed["name"] = values["name"] or clean_name(socket.gethostname().split(".")[0])
    assert set(typed) | {"warnings", "stated"} == {field.name for field in fields(Settings)}
    return Settings(**typed, warnings=warnings, stated=stated)  # type: ignore[arg-type]


def _agent_folder(key: str, environ: Mapping[str, str]) -> str:
    if key == "sessions.claude_dir":
        return environ.get("CLAUDE_CONFIG_DIR") or "~/.claude"
    return environ.get("CODEX_HOME") or "~/.codex"


def value_of(settings: Settings, key: str) -> Value | None:
    """Look up one setting as JSON shows it.

    Args:
        settings: The settings.
        key: Its key.

    Returns:
        The value; addresses and folders as text.

    Raises:
        Usage: No such setting.
    """
    value: object = getattr(settings, setting_of(key).field)
    if value is None:
        return "off"
    if isinstance(value, Path) or (isinstance(value, tuple) and isinstance(value, Endpoint)):
        return str(value)
    if isinstance(value, tuple):
        return [str(one) for one in value]
    assert isinstance(value, (str, bool, int))
    return value


def setting_of(key: str) -> Setting:
    """Look up a setting by its key.

    Raises:
        Usage: No such setting; the hint names the nearest.
    """
    if key in _BY_KEY:
        return _BY_KEY[key]
    close = difflib.get_close_matches(key[:64], _BY_KEY, 1)
    hint = f"did you mean {close[0]}?" if close else "hivemesh config show lists them"
    raise Usage(f"{key[:64]!r} is not a setting", hint=hint)


def set_setting(home: Home, key: str, text: str) -> Value:
    """Change one setting in the file; comments and order of the rest stay.

    Args:
        home: The places, made.
        key: The setting's key.
        text: The new value as a person types it: ``on``, ``mine``, ``3``, ``:9847,[::1]:9847``.

    Returns:
        The value as it stands in the file.

    Raises:
        Usage: No such setting, a bad value, or a file that is not TOML.
        OurFault: The file cannot be written; the old one stands.
    """
    value = parse_setting(key, text)
    write_key(home.config_file, key, value)
    return value


def parse_setting(key: str, text: str) -> Value:
    """Read a setting's value as a person types it, and check it.

    Raises:
        Usage: No such setting, or a bad value.
    """
    setting = setting_of(key)
    return check_value(setting, _from_text(setting, text))


def check_value(setting: Setting, raw: object) -> Value:
    """Check one value against the table.

    Args:
        setting: The setting.
        raw: What the file or a caller states.

    Returns:
        The value in its one form.

    Raises:
        Usage: Wrong type, out of bounds, or not one of the words.
    """
    value = _CHECKS[setting.kind](setting, raw)
    if value is None:
        stated = ", ".join(map(str, raw)) if isinstance(raw, list) else str(raw)
        raise Usage(f"{setting.key} cannot be {stated[:80]!r}: it is {_wanted(setting)}")
    return value


def _wanted(setting: Setting) -> str:
    match setting.kind:
        case "choice":
            return "one of " + ", ".join(setting.choices)
        case "number":
            return f"a whole number from {setting.low} to {setting.high}"
        case "switch":
            return "true or false"
        case "text":
            return f"text of at most {NAME_BYTES_MAX} bytes"
        case "addresses":
            return f"HOST:PORT, or a list of at most {ADDRESSES_MAX} of them; :PORT is every interface"
        case "address or off":
            return "HOST:PORT with an address of this machine, or off"
        case "folder":
            return "an absolute path"


def _check_text(setting: Setting, raw: object) -> Value | None:
    if not isinstance(raw, str) or len(raw.encode(errors="replace")) > NAME_BYTES_MAX:
        return None
    return clean_name(raw, fallback="") if raw else ""


def _check_switch(setting: Setting, raw: object) -> Value | None:
    return raw if isinstance(raw, bool) else None


def _check_number(setting: Setting, raw: object) -> Value | None:
    if isinstance(raw, bool) or not isinstance(raw, int):
        return None
    return raw if setting.low <= raw <= setting.high else None


def _check_choice(setting: Setting, raw: object) -> Value | None:
    return raw if isinstance(raw, str) and raw in setting.choices else None


def _check_addresses(setting: Setting, raw: object) -> Value | None:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or len(texts) > ADDRESSES_MAX or (not texts and setting.key == "listen"):
        return None
    found = [read_endpoint(text) for text in texts if isinstance(text, str)]
    if len(found) != len(texts) or None in found:
        return None
    if setting.key == "advertise" and any(one is not None and not (one.host and one.port) for one in found):
        return None
    return [str(one) for one in found]


def _check_address_or_off(setting: Setting, raw: object) -> Value | None:
    if raw == "off":
        return "off"
    found = read_endpoint(raw) if isinstance(raw, str) else None
    return str(found) if found and found.host else None


def _check_folder(setting: Setting, raw: object) -> Value | None:
    if not isinstance(raw, str) or len(raw.encode(errors="replace")) > PATH_BYTES_MAX or "\0" in raw:
        return None
    return raw if not raw or os.path.isabs(os.path.expanduser(raw)) else None


_CHECKS = {
    "text": _check_text,
    "switch": _check_switch,
    "number": _check_number,
    "choice": _check_choice,
    "addresses": _check_addresses,
    "address or off": _check_address_or_off,
    "folder": _check_folder,
}


def _from_text(setting: Setting, text: str) -> object:
    """Read a typed value for one setting; what cannot be read stays text and fails the check."""
    plain = text.strip()
    if setting.kind == "switch":
        return {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}.get(plain.lower(), plain)
    if setting.kind == "number":
        return int(plain) if re.fullmatch(r"[0-9]{1,15}", plain) else plain
    if setting.kind == "addresses":
        return [part.strip() for part in plain.split(",")] if plain else []
    return plain
