"""Becoming a node: home, lock, log, and the loop, in the foreground or in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from mesh.base.errors import MeshError, OurFault, outside
from node.callers import Guard, ProcessKey, agents_behind_me, open_guard, refuse_agents_here
from node.cli.client import answered
from node.cli.console import Console
from node.config import Settings, load_settings, set_setting
from node.configfile import Value
from node.faults import mesh_error_in
from node.home import Home
from node.lock import lock_home, make_home
from node.logfile import open_log

READY_S = 30.0
"""How long a start in the background may take before the command stops waiting for it."""
REPORT_BYTES_MAX = 64 * 1024
"""The longest report of a start."""

Ready = Callable[[dict[str, object]], None]


def run_in_foreground(console: Console, overrides: Mapping[str, Value], on_ready: Ready) -> None:
    """Be the node until it is told to end.

    Args:
        console: Whose home and environment.
        overrides: Settings that hold for this run only.
        on_ready: Called once with what the node says of itself.

    Raises:
        Usage: A bad setting.
        Refused: Another node runs on this home, or a port is taken.
        OurFault: The home, the log or a socket cannot be used.
    """
    _check_overrides(console, overrides)
    _be_node(console, overrides, agents_behind_me(), on_ready, detached=False)


def run_in_background(console: Console, overrides: Mapping[str, Value]) -> dict[str, Any]:
    """Start the node in a process of its own, and wait until it is ready.

    Args:
        console: Whose home and environment.
        overrides: Settings that hold for this run only.

    Returns:
        What the node says of itself: name, fingerprint, listen, advertise, api, warnings.

    Raises:
        Answered: It could not start; this is why.
        Usage: A bad setting.
        OurFault: It ended without a word, or is not ready after READY_S.
    """
    _check_overrides(console, overrides)
    behind = agents_behind_me()
    reading, writing = os.pipe()
    console.flush()
    child = os.fork()
    if child == 0:
        _become_daemon(console, overrides, behind, writing)
    os.close(writing)
    os.waitpid(child, 0)
    return _read_report(console, reading)


def _check_overrides(console: Console, overrides: Mapping[str, Value]) -> None:
    """Find bad settings before anything is made or started."""
    load_settings(console.home, console.environ, overrides)
    if "runs" in overrides:
        refuse_agents_here("up --runs", console.home)


def _read_report(console: Console, reading: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + READY_S
    log = f"its log is {console.home.log_file}"
    report = b""
    with open(reading, "rb", buffering=0) as pipe:
        while not report.endswith(b"\n") and len(report) < REPORT_BYTES_MAX:
            if not select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
                raise OurFault(f"the node is not ready after {READY_S:.0f} s; it may still become so", hint=log)
            piece = pipe.read(REPORT_BYTES_MAX)
            if not piece:
                raise OurFault("the node ended before it was ready", hint=log)
            report += piece
    found = json.loads(report)
    if "error" in found:
        raise answered(found["error"])
    ready: dict[str, Any] = found["ready"]
    return ready


def _become_daemon(console: Console, overrides: Mapping[str, Value], behind: frozenset[ProcessKey], writing: int) -> NoReturn:
    """Leave the caller's session for good and be the node; this copy of the command must end here, whatever happens."""
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        _leave_files(writing)

        def report(found: Mapping[str, object]) -> None:
            nonlocal writing
            if writing >= 0:
                os.write(writing, json.dumps(found).encode()[: REPORT_BYTES_MAX - 1] + b"\n")
                os.close(writing)
                writing = -1

        try:
            _be_node(console, overrides, behind, lambda facts: report({"ready": facts}), detached=True)
            code = 0
        except MeshError as error:
            from node.calls import error_line

            code = outside(error).exit_code
            report(error_line(error))
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)


def _leave_files(writing: int) -> None:
    """Let go of the caller's files: its terminal, its pipes and whatever else it had open."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.closerange(3, writing)
    os.closerange(writing + 1, 1024)


def _be_node(
    console: Console, overrides: Mapping[str, Value], behind: frozenset[ProcessKey], on_ready: Ready, *, detached: bool
) -> None:
    """Take the home and run the node in it."""
    home = console.home
    os.umask(0o077)
    warnings = make_home(home)
    with lock_home(home):
        if detached:
            _keep_stderr(home)
        fresh = not home.identity_dir.exists()
        if fresh and "name" in overrides:
            overrides = _keep_name(home, overrides)
        settings = load_settings(home, console.environ, overrides)
        guard = open_guard(home, behind, fresh=fresh)
        with open_log(home.log_file, settings.log_level, settings.log_bytes_max):
            log = logging.getLogger("node.start")
            warnings.extend(settings.warnings)
            for warning in warnings:
                log.warning("%s", warning)
            log.info("starting, pid %d", os.getpid())
            _run_loop(home, settings, overrides, guard, lambda facts: on_ready(_with_warnings(facts, warnings)))
            log.info("ended")


def _keep_name(home: Home, overrides: Mapping[str, Value]) -> dict[str, Value]:
    """Write the name a machine gets at its first start into its settings, so that it is called so at every other."""
    set_setting(home, "name", str(overrides["name"]))
    return {key: value for key, value in overrides.items() if key != "name"}


def _keep_stderr(home: Home) -> None:
    """Give what Python itself says when it breaks a place; one start's worth is kept."""
    path = home.log_file.with_name("stderr.log")
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.dup2(handle, 2)
    os.close(handle)


def _with_warnings(facts: dict[str, object], warnings: list[str]) -> dict[str, object]:
    more = facts.get("warnings")
    return facts | {"warnings": [*warnings, *(more if isinstance(more, list) else [])]}


def _run_loop(home: Home, settings: Settings, overrides: Mapping[str, Value], guard: Guard, on_ready: Ready) -> None:
    """Run the node's tasks; what they raise together comes out as the one error a person can read."""
    import trio

    from node.app import run_node

    log = logging.getLogger("node.start")
    try:
        trio.run(partial(run_node, home, settings, overrides, guard=guard, on_ready=on_ready))
    except (MeshError, BaseExceptionGroup) as error:
        known = mesh_error_in(error)
        if known is None:
            log.exception("the node broke")
            raise
        log.error("ended: %s", known.message)
        raise known from None
