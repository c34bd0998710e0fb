"""Where one node keeps what is its own: the places.

Every command reads this room at start, so it imports nothing heavy; paths become ``Path`` only when asked for.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

CONTROL_ADDRESS_BYTES_MAX = 100
"""A Unix socket's address holds about 107 bytes (103 on macOS); a longer one moves to a short folder."""
NOTE_BYTES_MAX = 512
"""The longest note (of a pid, of a moved socket) that is read back from the run folder."""


class Home:
    """The places of one node.

    Args:
        config_dir: Folder of ``config.toml``.
        data_dir: Folder of everything that must not be lost, and of the lock.
        log_dir: Folder of the log.
        one_folder: Whether ``--home`` or ``HIVEMESH_HOME`` put all of it under one folder.
    """

    __slots__ = ("config_dir", "data_dir", "log_dir", "one_folder")

    def __init__(self, config_dir: str, data_dir: str, log_dir: str, *, one_folder: bool) -> None:
        self.config_dir = config_dir
        self.data_dir = data_dir
        self.log_dir = log_dir
        self.one_folder = one_folder

    def _data(self, *names: str) -> Path:
        from pathlib import Path

        return Path(self.data_dir, *names)

    @property
    def config_file(self) -> Path:
        """The settings, ``config.toml``."""
        from pathlib import Path

        return Path(self.config_dir, "config.toml")

    @property
    def identity_dir(self) -> Path:
        """The folder of the keys."""
        return self._data("identity")

    @property
    def mesh_db(self) -> Path:
        """What the mesh agrees on."""
        return self._data("mesh.db")

    @property
    def hive_db(self) -> Path:
        """What the sessions taught."""
        return self._data("hive.db")

    @property
    def tasks_db(self) -> Path:
        """The ledger of runs, asked and done."""
        return self._data("tasks.db")

    @property
    def sessions_db(self) -> Path:
        """How far each transcript was read, and what it held."""
        return self._data("sessions.db")

    @property
    def grants_db(self) -> Path:
        """The outsiders' grants, budgets and audit."""
        return self._data("grants.db")

    @property
    def index_dir(self) -> Path:
        """One index a project."""
        return self._data("index")

    @property
    def tasks_dir(self) -> Path:
        """One folder a task."""
        return self._data("tasks")

    @property
    def repos_dir(self) -> Path:
        """Bare repositories, by owner, that no task may write."""
        return self._data("repos")

    @property
    def log_file(self) -> Path:
        """The log of the node."""
        from pathlib import Path

        return Path(self.log_dir, "node.log")

    @property
    def mark_file(self) -> Path:
        """Outside the databases' folder where the places are split: what tells that an old state came back."""
        from pathlib import Path

        return Path(os.path.dirname(self.log_dir), "hivemesh.mark")

    @property
    def run_dir(self) -> Path:
        """The folder of the lock and of what exists only while the node runs.

        It lies with the data and not in the session's runtime folder: the lock must guard the data under every
        environment, and a node outlives the login that started it.
        """
        return self._data("run")

    @property
    def lock_file(self) -> Path:
        """Locked for as long as a node runs on this home; holds its pid."""
        return self._data("run", "lock")

    @property
    def api_file(self) -> Path:
        """Where the HTTP interface listens."""
        return self._data("run", "api.json")

    @property
    def api_token_file(self) -> Path:
        """The token of the HTTP interface."""
        return self._data("run", "api.token")


def find_home(option: str | None, environ: Mapping[str, str]) -> Home:
    """Find the home a command speaks about.

    Args:
        option: The value of ``--home``, or None.
        environ: The environment.

    Returns:
        The places, whether they exist or not.
    """
    named = option or environ.get("HIVEMESH_HOME")
    if named:
        folder = os.path.abspath(os.path.expanduser(named))
        return Home(folder, folder, os.path.join(folder, "log"), one_folder=True)
    own = environ.get("HOME") or os.path.expanduser("~")
    if sys.platform == "darwin":
        library = os.path.join(own, "Library")
        folder = os.path.join(library, "Application Support", "hivemesh")
        return Home(folder, folder, os.path.join(library, "Logs", "hivemesh"), one_folder=False)

    def place(variable: str, *default: str) -> str:
        stated = environ.get(variable, "")
        base = stated if os.path.isabs(stated) else os.path.join(own, *default)
        return os.path.join(base, "hivemesh")

    return Home(
        place("XDG_CONFIG_HOME", ".config"),
        place("XDG_DATA_HOME", ".local", "share"),
        os.path.join(place("XDG_STATE_HOME", ".local", "state"), "log"),
        one_folder=False,
    )


def control_address(home: Home) -> str:
    """Find the address of the home's control socket, for a command that wants to reach the node.

    Args:
        home: The places.

    Returns:
        The address, or an empty string where a moved socket was never noted, so no node ran here.
    """
    direct = os.path.join(home.data_dir, "run", "control.sock")
    if len(os.fsencode(direct)) <= CONTROL_ADDRESS_BYTES_MAX:
        return direct
    return read_note(os.path.join(home.data_dir, "run", "control.at"))


def read_note(path: str) -> str:
    """Read a short file of the run folder; empty where there is none."""
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read(NOTE_BYTES_MAX)).strip()
    except OSError:
        return ""
