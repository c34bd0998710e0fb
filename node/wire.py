"""What the command line and the node say to each other over the control socket.

One request a connection: a JSON line ``{"v":1,"verb":...,"args":{...}}``. The answer is any number of event lines
``{"event":{...}}`` and then one of ``{"result":...}`` or ``{"error":{"kind","message","hint","exit"}}``. An event
with ``"bytes":L`` is followed by exactly L raw bytes. While it streams, the command may send lines
``{"signal":WORD}``. The node never asks anything back.

Both sides read this room, and the command line reads it at every start: it imports nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

VERSION = 1
REQUEST_BYTES_MAX = 256 * 1024
"""The longest request line; a longer one is refused and the connection closed."""
SIGNAL_BYTES_MAX = 1024
"""The longest signal line; a longer one ends the connection."""
ANSWER_LINE_BYTES_MAX = 64 * 1024 * 1024
"""The longest answer line a command reads."""
OUTPUT_BYTES_MAX = 64 * 1024
"""The most raw bytes behind one event; more is sent as several events."""


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Ask the kernel who is at the other end of a Unix socket.

    Args:
        connection: A connected Unix socket.

    Returns:
        The uid and the pid of the process at the moment it connected or listened; pid 0 where it is not known.
    """
    if sys.platform == "darwin":
        # struct xucred: version, uid, group count, groups. LOCAL_PEERCRED is 1 and LOCAL_PEERPID 2, both of level 0.
        raw = connection.getsockopt(0, 1, 76)
        return int.from_bytes(raw[4:8], sys.byteorder), connection.getsockopt(0, 2)
    import socket

    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[4:8], sys.byteorder), int.from_bytes(raw[:4], sys.byteorder)
