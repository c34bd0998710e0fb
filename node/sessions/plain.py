"""Open plain files and nothing else: whatever else stands under a name is not waited for and not read.

The folders of agents and the repositories they work in may hold pipes, devices and links under any name.
"""

from __future__ import annotations

import os
import stat


def open_plain(path: str | os.PathLike[str], *, follow: bool = False) -> int | None:
    """Open a file for reading without waiting.

    Args:
        path: Anything that may stand in a folder.
        follow: Whether a link under that very name is followed.

    Returns:
        A handle the caller closes, or None where there is no plain file that may be read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    return None


def read_plain(path: str | os.PathLike[str], bytes_max: int, *, follow: bool = False, from_end: bool = False) -> bytes | None:
    """Read a part of a plain file.

    Args:
        path: Anything that may stand in a folder.
        bytes_max: Read so much at most.
        follow: Whether a link under that very name is followed.
        from_end: Whether the file's last bytes are wanted instead of its first.

    Returns:
        The bytes, or None where there is no plain file that may be read.
    """
    handle = open_plain(path, follow=follow)
    if handle is None:
        return None
    try:
        start = max(0, os.fstat(handle).st_size - bytes_max) if from_end else 0
        return os.pread(handle, bytes_max, start)
    except OSError:
        return None
    finally:
        os.close(handle)
