"""The node about itself: settings that change while it runs, its health, its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.calls import Call, Then
from node.config import set_setting
from node.home import Home
from node.sessions.watch import Watcher
from node.verbs.machines import Machines


@dataclass(frozen=True, slots=True)
class Itself:
    """The parts these verbs ask.

    Attributes:
        reload: Reads the settings anew and puts in force what can be; returns the keys that are.
        end: Ends the node.
    """

    home: Home
    machines: Machines
    watcher: Watcher
    reload: Callable[[], frozenset[str]]
    end: Callable[[], None]

    async def config_set(self, call: Call) -> object:
        """Change one setting, on disk and, where it can be, at once."""
        key = call.text("key", bytes_max=64)
        value = set_setting(self.home, key, call.text("value", bytes_max=4096))
        return {"key": key, "value": value, "applied": key in self.reload()}

    async def config_changed(self, call: Call) -> object:
        """Read the settings anew."""
        return {"applied": sorted(self.reload())}

    async def doctor(self, call: Call) -> object:
        """What only the running node knows of its health."""
        status = await self.machines.status(call)
        assert isinstance(status, dict)
        discovery, links = status["discovery"], status["links"]
        checks = [
            _check("discovery", discovery["on"], "on" if discovery["on"] else f"off: {discovery['reason']}", "links by address still work: hivemesh connect NODE HOST:PORT"),
            _check("links", True, f"{len(links)} of {status['mesh']['members'] - 1} other machines", ""),
            _check("sessions", not self.watcher.trouble, self.watcher.trouble or f"{len(self.watcher.listed())} listed", "check the disk and the folders' rights"),
        ]
        missing = self.watcher.missing()
        if missing:
            checks.append(_check("processes", False, missing, "sessions are read, but whether they live is unknown"))
        checks.extend(_check("warning", False, text, "") for text in status["warnings"])
        return checks

    async def down(self, call: Call) -> object:
        """End the node, in order, behind the answer."""
        return Then({"stopping": True}, self.end)


def _check(name: str, good: bool, found: str, mend: str) -> dict[str, str]:
    return {"check": name, "state": "ok" if good else "warn", "found": found, "mend": "" if good else mend}
