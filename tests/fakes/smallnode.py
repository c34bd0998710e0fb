"""``hivemesh`` with a node that only starts, answers ``status`` and ends: for tests of starting itself.

Run as a program: ``python -m tests.fakes.smallnode up -d``. Its node fails to start where SMALLNODE says so.
"""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Callable, Mapping

import trio

from mesh.base.errors import Refused
from node.callers import Guard
from node.calls import Call, Caller, Then
from node.cli.entry import main
from node.config import Settings
from node.configfile import Value
from node.control import open_control_socket, run_control
from node.home import Home
from node.lock import choose_control_address


async def run_node(home: Home, settings: Settings, overrides: Mapping[str, Value], *, guard: Guard, on_ready: Callable[[dict[str, object]], None]) -> None:
    """Be a small node until told to end."""
    home.identity_dir.mkdir(mode=0o700, exist_ok=True)
    fault = os.environ.get("SMALLNODE")
    if fault == "refused":
        async with trio.open_nursery():
            raise Refused("port 9847 is in use by sshd (pid 1)", reason="port_taken", hint="choose another")
    if fault == "broken":
        raise ZeroDivisionError("broken")
    if fault == "silent":
        os._exit(3)
    ending = trio.Event()

    async def status(call: Call) -> object:
        return {"pid": os.getpid(), "umask": os.umask(0o077), "cwd": os.getcwd(), "name": settings.name, "sid": os.getsid(0), "files": os.listdir("/proc/self/fd")}

    async def down(call: Call) -> object:
        return Then({}, ending.set)

    async def invite(call: Call) -> object:
        return {}

    def admit(verb: str, caller: Caller) -> None:
        guard.admit(verb, caller.pid, tuple)

    async with open_control_socket(choose_control_address(home, os.environ)) as listener, trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            nursery.start_soon(run_control, listener, {"status": status, "down": down, "invite": invite}, admit)
            on_ready({"name": settings.name, "fingerprint": "aaaa-bbbb", "listen": [":9847"], "advertise": [], "api": None, "warnings": ["its own"]})

            async def wait() -> None:
                async for _ in signals:
                    ending.set()

            nursery.start_soon(wait)
            await ending.wait()
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    room = types.ModuleType("node.app")
    room.run_node = run_node  # type: ignore[attr-defined]
    sys.modules["node.app"] = room
    sys.exit(main())
