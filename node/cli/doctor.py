"""``doctor``: checks everything the node depends on, says how to mend it, and works while the node is down."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from typing import Any, NamedTuple

from mesh.base.errors import MeshError
from node.cli.client import call
from node.cli.console import Console, counted
from node.cli.table import print_table, size
from node.config import Settings, load_settings
from node.home import Home
from node.lock import lock_holder
from node.portholder import port_holder

DISK_FAIL_BYTES = 100 << 20
DISK_WARN_BYTES = 1 << 30
GIT_OLDEST = (2, 31)
GIT_S = 5.0
CLOCK_AHEAD_S = 120.0
"""A file of the home younger than now by more than this means that the clock went back."""


class Check(NamedTuple):
    """One thing looked at.

    Attributes:
        check: What.
        state: ``ok``, ``warn`` (something less works) or ``fail``.
        found: What was found, one line.
        mend: How to mend it, or empty.
    """

    check: str
    state: str
    found: str
    mend: str = ""


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``doctor``."""
    parser.add_argument("--accept-restore", action="store_true", help="go on with databases that came back from a backup")
    parser.set_defaults(act=_doctor)


def _doctor(arguments: argparse.Namespace, console: Console) -> int:
    if arguments.accept_restore:
        return _accept(console)
    checks = [check_python(), check_git(), check_home(console.home), check_disk(console.home), check_clock(console.home)]
    checks += check_root(console.home)
    try:
        settings = load_settings(console.home, console.environ)
        checks += [check_settings(settings), *check_agents(settings)]
        checks += _node_checks(console, settings)
    except MeshError as error:
        checks.append(Check("config", "fail", error.message, error.hint))
    checks = [check._replace(found=console.advice(check.found), mend=console.advice(check.mend)) for check in checks]
    if console.as_json:
        console.json([check._asdict() for check in checks])
    else:
        below = [[f"to mend: {check.mend}"] if check.mend else [] for check in checks]
        print_table(console, ("CHECK", "STATE", "FOUND"), [check[:3] for check in checks], empty="", below=below)
    return 1 if any(check.state == "fail" for check in checks) else 0


def _accept(console: Console) -> int:
    found: Any = call(console.home, "doctor.accept_restore")
    if console.as_json:
        console.json(found)
    else:
        console.line("the old state is accepted; grants are served again" if found["accepted"] else "nothing came back from a backup; nothing to accept")
    return 0


def _node_checks(console: Console, settings: Settings) -> list[Check]:
    """Ask the running node about itself, or see whether one could start."""
    pid = lock_holder(console.home)
    if pid is None:
        from node.preflight import faults_of

        faults = [Check("start", "fail", fault.message, fault.hint) for fault in faults_of(console.home)]
        return [Check("node", "warn", "not running", "hivemesh up -d"), *faults, check_port(settings)]
    try:
        found: Any = call(console.home, "doctor", timeout_s=20.0)
    except MeshError as error:
        return [Check("node", "fail", f"pid {pid}: {error.message}", error.hint or f"its log is {console.home.log_file}")]
    log = Check("node", "ok", f"running, pid {pid}, log {console.home.log_file}")
    return [log, *(Check(str(one["check"]), str(one["state"]), str(one["found"]), str(one["mend"])) for one in found)]


def check_python() -> Check:
    """Look at the interpreter."""
    found = f"{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]} at {sys.executable}"
    return Check("python", "ok", found)


def check_git() -> Check:
    """Look for git; without it no tree travels."""
    program = shutil.which("git")
    if program is None:
        return Check("git", "fail", "not found on PATH", "install git")
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=GIT_S, check=False)
        version = done.stdout.split()[2]
        numbers = tuple(int(part) for part in version.split(".")[:2])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return Check("git", "fail", f"{program} does not run", "install git anew")
    if numbers < GIT_OLDEST:
        return Check("git", "fail", f"{version} at {program}", f"install git {GIT_OLDEST[0]}.{GIT_OLDEST[1]} or newer")
    return Check("git", "ok", f"{version} at {program}")


def check_home(home: Home) -> Check:
    """Look at the rights of the home and of the keys in it."""
    if not os.path.isdir(home.data_dir):
        return Check("home", "ok", f"{home.data_dir} does not exist yet; the first start makes it")
    open_ones = [path for path in (home.config_dir, home.data_dir, home.log_dir) if os.path.isdir(path) and os.stat(path).st_mode & 0o077]
    if home.identity_dir.is_dir():
        keys = sorted(home.identity_dir.iterdir())
        open_ones += [str(path) for path in keys if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_mode & 0o077]
    if open_ones:
        return Check("home", "fail", f"open to other users: {', '.join(open_ones)}", "chmod go= " + " ".join(open_ones))
    if not os.access(home.data_dir, os.W_OK | os.X_OK):
        return Check("home", "fail", f"{home.data_dir} cannot be written", f"chmod u+rwx {home.data_dir}")
    return Check("home", "ok", home.data_dir)


def check_disk(home: Home) -> Check:
    """Look at the free space where the home is."""
    folder = home.data_dir
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free_bytes = shutil.disk_usage(folder).free
    state = "fail" if free_bytes < DISK_FAIL_BYTES else "warn" if free_bytes < DISK_WARN_BYTES else "ok"
    return Check("disk", state, f"{size(free_bytes)}B free", "" if state == "ok" else f"free some space on the disk of {folder}")


def check_clock(home: Home) -> Check:
    """See whether the clock went back behind what this home has seen."""
    try:
        newest_s = max(entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(home.data_dir))
    except (OSError, ValueError):
        newest_s = 0.0
    ahead_s = newest_s - time.time()
    if ahead_s > CLOCK_AHEAD_S:
        return Check("clock", "warn", f"files of the home are {ahead_s:.0f} s in the future", "set the clock of this machine (it was ahead, or is behind now)")
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def check_root(home: Home) -> list[Check]:
    """Remind of the root's key: while its file lies here, whoever takes over this machine can expel everybody."""
    if not (home.identity_dir / "root.key").exists():
        return []
    return [Check("root", "warn", "the root's key of this mesh still lies on this machine", "write it down and remove it: hivemesh mesh root export")]


def check_settings(settings: Settings) -> Check:
    """Look at what the settings file says."""
    if settings.warnings:
        return Check("config", "warn", "; ".join(settings.warnings), "mend the file; hivemesh config show lists the settings")
    return Check("config", "ok", f"{counted(len(settings.stated), 'setting')} stated")


def check_agents(settings: Settings) -> list[Check]:
    """Look for the agents' own folders."""
    folders = (("claude", settings.sessions_claude_dir, "sessions.claude_dir"), ("codex", settings.sessions_codex_dir, "sessions.codex_dir"))
    checks: list[Check] = []
    for name, folder, key in folders:
        if not folder.is_dir():
            checks.append(Check(name, "warn", f"{folder} is not there; no sessions of it are shown", f"hivemesh config set {key} FOLDER, if it is elsewhere"))
        elif not os.access(folder, os.R_OK | os.X_OK):
            checks.append(Check(name, "fail", f"{folder} cannot be read", f"chmod u+rx {folder}"))
        else:
            checks.append(Check(name, "ok", str(folder)))
    return checks


def check_port(settings: Settings) -> Check:
    """See whether the mesh ports are free, while no node of this home runs."""
    for endpoint in settings.listen:
        if not endpoint.port:
            continue
        family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((endpoint.host, endpoint.port))
            except OSError as error:
                holder = port_holder(endpoint.port)
                by = f"held by {holder.program} (pid {holder.pid})" if holder else str(error.strerror)
                return Check("port", "fail", f"{endpoint}: {by}", "stop that program, or hivemesh config set listen :PORT")
    return Check("port", "ok", ", ".join(str(one) for one in settings.listen))
