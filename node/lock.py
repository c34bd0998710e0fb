"""Taking a home for a node: its folders and their rights, the lock that makes it one node's, the socket's address."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from types import TracebackType

from mesh.base.errors import OurFault, Refused
from node.home import CONTROL_ADDRESS_BYTES_MAX, Home, read_note

LOCK_PATIENCE_S = 0.5
"""How long a start waits for the lock, so that a command that only looked at it does not make the start fail."""


def make_home(home: Home) -> list[str]:
    """Make the folders, each 0700 from the moment it exists, and mend wider rights of those that exist.

    Args:
        home: The places.

    Returns:
        One warning for each folder whose rights were mended.

    Raises:
        Refused: A folder is another user's, or is one that must not be taken as a home.
        OurFault: A folder cannot be made.
    """
    warnings: list[str] = []
    for folder in (home.config_dir, home.data_dir, home.log_dir, os.path.join(home.data_dir, "run")):
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            status = os.stat(folder)
        except OSError as error:
            raise OurFault(
                f"the home {home.data_dir} cannot be used: {folder}: {error.strerror}",
                hint="check the folder's rights and the disk, or choose another with --home DIR",
            ) from None
        if status.st_uid != os.getuid():
            raise Refused(f"{folder} belongs to another user", reason="owner", hint="choose a folder of your own with --home DIR")
        if not status.st_mode & 0o077:
            continue
        if status.st_mode & stat.S_ISVTX or folder in ("/", os.path.expanduser("~")):
            raise Refused(
                f"{folder} is shared with other things and cannot be a home itself",
                reason="shared_folder",
                hint=f"choose a folder inside it: --home {os.path.join(folder, 'hivemesh')}",
            )
        os.chmod(folder, 0o700)
        warnings.append(f"{folder} was open to other users of this machine; its rights are 0700 now")
    return warnings


def choose_control_address(home: Home, environ: Mapping[str, str]) -> str:
    """Choose the address the node binds its control socket to, and note it where it had to move.

    Args:
        home: The places, made.
        environ: The environment; ``XDG_RUNTIME_DIR`` is preferred to ``/tmp``.

    Returns:
        The address; its folder exists and is this user's alone.

    Raises:
        Refused: The only short folder there is belongs to somebody else.
    """
    run_dir = os.path.join(home.data_dir, "run")
    direct = os.path.join(run_dir, "control.sock")
    if len(os.fsencode(direct)) <= CONTROL_ADDRESS_BYTES_MAX:
        return direct
    name = hashlib.blake2b(os.fsencode(os.path.realpath(run_dir)), digest_size=8).hexdigest() + ".sock"
    folders = [f"/tmp/hivemesh-{os.getuid()}"]
    if os.path.isabs(environ.get("XDG_RUNTIME_DIR", "")):
        folders.insert(0, os.path.join(environ["XDG_RUNTIME_DIR"], "hivemesh"))
    for folder in folders:
        address = os.path.join(folder, name)
        if len(os.fsencode(address)) <= CONTROL_ADDRESS_BYTES_MAX and _own_folder(folder):
            write_note(os.path.join(run_dir, "control.at"), address)
            return address
    raise Refused(
        f"no private folder for the control socket: {folders[-1]} is not yours alone",
        reason="socket_folder",
        hint="use a home with a shorter path, or set XDG_RUNTIME_DIR to a folder of your own",
    )


def _own_folder(folder: str) -> bool:
    """Make a folder 0700, or see that the one there is this user's alone and no link."""
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def write_note(path: str, text: str) -> None:
    """Write a short file, 0600 from its start, whole or not at all.

    Args:
        path: The file.
        text: At most NOTE_BYTES_MAX bytes.

    Raises:
        OurFault: The disk refuses; an older file of that name is as it was.
    """
    part = f"{path}.{os.getpid()}"
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, os.fsencode(text))
        finally:
            os.close(handle)
        os.replace(part, path)
    except OSError as error:
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from None


class HomeLock:
    """The right to be the node of a home, held until closed or until this process ends, however it ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def close(self) -> None:
        """Give the home free; a second call does nothing."""
        if self._handle >= 0:
            os.ftruncate(self._handle, 0)
            os.close(self._handle)
            self._handle = -1

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def lock_home(home: Home) -> HomeLock:
    """Take the home for this process.

    The lock is the kernel's, on the file and not on its name: another spelling of the path meets the same lock, and
    a killed process leaves none behind.

    Args:
        home: The places, made.

    Returns:
        The lock.

    Raises:
        Refused: Another node runs on this home; the message names its pid. Within LOCK_PATIENCE_S.
        OurFault: The lock file cannot be opened.
    """
    path = os.path.join(home.data_dir, "run", "lock")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise OurFault(f"{path} cannot be opened: {error.strerror}", hint="check the folder's rights and the disk") from None
    deadline_s = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() < deadline_s:
                time.sleep(0.05)
                continue
            os.close(handle)
            pid = read_note(path) or "unknown"
            raise Refused(
                f"a node already runs on {home.data_dir} (pid {pid})",
                reason="already_running",
                hint="see it with `hivemesh status`, stop it with `hivemesh down`",
            ) from None
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except OSError as error:
        os.close(handle)
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="make room on that disk, then start again") from None
    return HomeLock(handle)


def lock_holder(home: Home) -> int | None:
    """Look which process holds the home.

    Args:
        home: The places.

    Returns:
        None where nobody does; else the pid, 0 where it is not known.
    """
    path = os.path.join(home.data_dir, "run", "lock")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = read_note(path)
        return int(pid) if pid.isascii() and pid.isdigit() else 0
    finally:
        os.close(handle)
    return None
