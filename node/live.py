"""The settings as they hold now, while the node runs: some change at once, the others at the next start."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping

from mesh.base.names import clean_name
from node.config import Settings, load_settings
from node.configfile import Value
from node.home import Home
from node.tasks.ports import RunSettings

LIVE_KEYS = frozenset(
    {"name", "relay", "runs", "tasks.slots", "tasks.timeout_s", "tasks.output_bytes_max", "tasks.keep_d", "tasks.sandbox"}
)
"""Settings in force at once; the others are at the next start."""


def machine_name(settings: Settings) -> str:
    """What this machine is called: as set, else its host name."""
    return clean_name(settings.name or socket.gethostname().split(".")[0])


class LiveSettings:
    """What the running node asks of its settings.

    Args:
        home: The places.
        settings: As read at start.
        overrides: Settings of this run only, which the file does not change.
    """

    def __init__(self, home: Home, settings: Settings, overrides: Mapping[str, Value]) -> None:
        self._home = home
        self._settings = settings
        self._overrides = overrides

    def name(self) -> str:
        """This machine's display name."""
        return machine_name(self._settings)

    def runs(self) -> str:
        """``mine``, ``ask`` or ``off``."""
        return self._settings.runs

    def relays(self) -> bool:
        """Whether this machine carries circuits between others."""
        return self._settings.relay

    def run_settings(self) -> RunSettings:
        """The settings of runs."""
        now = self._settings
        return RunSettings(
            now.runs, now.tasks_slots, now.tasks_timeout_s, now.tasks_output_bytes_max, now.tasks_keep_d, now.tasks_sandbox
        )

    def warnings(self) -> tuple[str, ...]:
        """What in the file was passed over."""
        return self._settings.warnings

    def reload(self, changed: Callable[[], None]) -> frozenset[str]:
        """Read the settings anew.

        Args:
            changed: Called afterwards, so that what this machine says of itself follows.

        Returns:
            The keys in force now as the file states them.

        Raises:
            Usage, Damaged: The file is bad; what held goes on to hold.
        """
        self._settings = load_settings(self._home, os.environ, self._overrides)
        changed()
        return LIVE_KEYS - self._overrides.keys()
