"""Which process listens on a port of this machine: the answer a person needs when a start says "address in use"."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mesh.base.errors import PortTaken

_LISTENING = "0A"
_TABLE_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on a port."""

    pid: int
    program: str


def port_holder(port: int, *, proc: str = "/proc") -> Holder | None:
    """Find who listens on a TCP port, of IPv4 or IPv6.

    Args:
        port: 1 to 65535.
        proc: Where the process file system is.

    Returns:
        The process; None where nobody listens, where the process is another user's and so hidden, or where the
        platform has no such file system.
    """
    inodes = _listening_inodes(port, proc)
    if not inodes:
        return None
    targets = {f"socket:[{inode}]" for inode in inodes}
    for name in os.listdir(proc):
        if name.isdigit() and _has_open(f"{proc}/{name}/fd", targets):
            return Holder(int(name), _program(f"{proc}/{name}/comm"))
    return None


def port_taken(host: str, port: int) -> PortTaken:
    """Make the error for a port that is in use, naming who holds it where that can be seen.

    Args:
        host: The address that was asked for; empty is every interface.
        port: The port.
    """
    holder = port_holder(port)
    by = f"by {holder.program} (pid {holder.pid})" if holder else "by another program"
    return PortTaken(
        f"port {port}{f' on {host}' if host else ''} is in use {by}",
        hint="stop it, or choose another port: hivemesh up --listen :PORT",
    )


def _listening_inodes(port: int, proc: str) -> set[str]:
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"{proc}/net/{table}", encoding="ascii", errors="replace") as file:
                lines = file.read(_TABLE_BYTES_MAX).splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if len(columns) > 9 and columns[3] == _LISTENING and columns[1].endswith(f":{port:04X}"):
                inodes.add(columns[9])
    return inodes


def _has_open(folder: str, targets: set[str]) -> bool:
    try:
        handles = os.listdir(folder)
    except OSError:
        return False
    for handle in handles:
        try:
            if os.readlink(f"{folder}/{handle}") in targets:
                return True
        except OSError:
            continue
    return False


def _program(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "".join(c if c.isprintable() else "?" for c in file.read(64).strip()) or "a program"
    except OSError:
        return "a program"
