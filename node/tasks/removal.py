"""Removes what a task may have filled with anything: deep, closed, full of links, or no longer the folder it was.

Nothing is followed and no path is walked: every name is removed relative to the open folder that holds it. Folders in
folders are first moved up to the top, so that neither depth nor a folder that moves meanwhile leads out of it.
"""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import trio

from node.tasks.place import open_folder, open_inner
from node.tasks.processes import LINUX

REMOVAL_S_MAX = 600.0

_log = logging.getLogger(__name__)


async def remove_folder(folder: Path, inode: int = 0) -> None:
    """Remove a task's whole folder; what is no folder, or another one, is left alone.

    Args:
        folder: The task's.
        inode: Its own, as noted when it was made; 0 takes any.

    If cancelled: a part is left; the sweep at the next start removes it.
    """
    await _remove(folder, inode, None)


async def remove_parts(folder: Path, names: Iterable[str], inode: int = 0) -> None:
    """Remove some names in a task's folder; what stands there as a link is removed as a link.

    Args:
        folder: The task's; where it is another one now, everything is left alone.
        names: Of files and folders in it.
        inode: The folder's own, as noted when it was made; 0 takes any.

    If cancelled: a part is left; the sweep at the next start removes it.
    """
    await _remove(folder, inode, tuple(names))


async def _remove(folder: Path, inode: int, names: tuple[str, ...] | None) -> None:
    with trio.move_on_after(REMOVAL_S_MAX):
        try:
            await trio.to_thread.run_sync(_remove_now, folder, inode, names)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s is left as it is: %s", folder, error.strerror)


def _remove_now(folder: Path, inode: int, names: tuple[str, ...] | None) -> None:
    above = open_folder(folder.parent)
    try:
        at = _open(above, folder.name, inode)
        try:
            for name in names if names is not None else os.listdir(at):
                _remove_name(at, name)
        finally:
            os.close(at)
        if names is None:
            # Removes an empty folder and nothing else, whatever stands there by now.
            os.rmdir(folder.name, dir_fd=above)
    finally:
        os.close(above)


def _remove_name(at: int, name: str) -> None:
    """Remove one name, whatever it is.

    Raises:
        OSError: Something in it cannot be removed.
    """
    if not _is_folder(at, name):
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=at)
        return
    top = _open(at, name)
    try:
        while _empty_once(top):
            continue
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=at)


def _empty_once(top: int) -> bool:
    """Remove the plain names of a folder, and empty each folder in it; whether that got on."""
    got_on = False
    for name in os.listdir(top):
        trio.from_thread.check_cancelled()
        if not _is_folder(top, name):
            os.unlink(name, dir_fd=top)
        else:
            inner = _open(top, name)
            try:
                _raise_up(inner, top)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
        got_on = True
    return got_on


def _raise_up(inner: int, top: int) -> None:
    """Remove the plain names of an inner folder and move its folders up, under names nobody guesses."""
    for name in os.listdir(inner):
        if not _is_folder(inner, name):
            os.unlink(name, dir_fd=inner)
            continue
        # Moving a folder writes into it, so it has to be writable itself.
        os.close(_open(inner, name))
        os.rename(name, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)


def _is_folder(at: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _open(at: int, name: str, inode: int = 0) -> int:
    """Open a folder to remove what is in it, giving this user the rights that takes."""
    with suppress(PermissionError):
        fd = open_inner(at, name, inode)
        if stat.S_IMODE(os.fstat(fd).st_mode) & 0o700 == 0o700:
            return fd
        os.close(fd)
    _make_writable(at, name, inode)
    return open_inner(at, name, inode)


def _make_writable(at: int, name: str, inode: int) -> None:
    if not LINUX:
        os.chmod(name, 0o700, dir_fd=at, follow_symlinks=False)
        return
    # A handle that only names the folder needs no rights to it and is no link; its rights are changed through it.
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    try:
        if not inode or os.fstat(handle).st_ino == inode:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
