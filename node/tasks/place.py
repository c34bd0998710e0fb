"""Files of a task's folder, opened so that nothing a task puts there leads elsewhere or makes anybody wait.

A task runs as this user and reaches its own folder, so it may have replaced any name in it, and the folder itself, by a
link, a pipe or a folder. Everything below ``tasks`` is therefore opened relative to the descriptor of a folder, no link
is followed, nothing blocks, and what is opened is of the kind that was asked for. What is not raises OSError.

The supervisor imports this room at its start, so it imports ``os`` and ``stat`` and nothing else.
"""

from __future__ import annotations

import errno
import os
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_QUIET = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_folder(path: str | os.PathLike[str], inode: int = 0) -> int:
    """Open the folder of a task, if it still is that folder.

    Args:
        path: Its parent is no link either.
        inode: The folder's, as noted when it was made; 0 takes any.

    Returns:
        A descriptor the caller closes.

    Raises:
        OSError: It is gone, a link, another folder, or lies on another file system than its parent.
    """
    parent, name = os.path.split(os.fspath(path))
    above = os.open(parent, _FOLDER)
    try:
        return open_inner(above, name, inode)
    finally:
        os.close(above)


def open_inner(at: int, name: str, inode: int = 0) -> int:
    """Open a folder below an open one on the same file system.

    Raises:
        OSError: There is none, or it is another one.
    """
    fd = os.open(name, _FOLDER, dir_fd=at)
    there = os.fstat(fd)
    if (inode and there.st_ino != inode) or there.st_dev != os.fstat(at).st_dev:
        os.close(fd)
        raise OSError(errno.ESTALE, "another folder stands there", name)
    return fd


def open_file(at: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a plain file below an open folder; a new one is for this user only.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    return _of_kind(os.open(name, flags | _QUIET, 0o600, dir_fd=at), stat.S_IFREG, name)


def open_fifo(at: int, name: str, flags: int) -> int:
    """Open a FIFO below an open folder without waiting for its other end.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    return _of_kind(os.open(name, flags | _QUIET, dir_fd=at), stat.S_IFIFO, name)


def _of_kind(fd: int, kind: int, name: str) -> int:
    if stat.S_IFMT(os.fstat(fd).st_mode) != kind:
        os.close(fd)
        raise OSError(errno.EINVAL, "not the kind of file it was", name)
    return fd


def read_file(at: int, name: str, bytes_max: int) -> bytes:
    """Read the beginning of a plain file below an open folder; empty where there is none that can be read."""
    try:
        fd = open_file(at, name)
    except OSError:
        return b""
    try:
        return os.read(fd, bytes_max)
    except OSError:
        return b""
    finally:
        os.close(fd)


def inode_of(path: str | os.PathLike[str]) -> int:
    """Read the inode of a folder that was just made; 0 where there is none."""
    try:
        fd = open_folder(path)
    except OSError:
        return 0
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)
