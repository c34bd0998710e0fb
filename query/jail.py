"""Lock this process up before it listens to strangers: afterwards it can open nothing but what it serves.

Linux only, by Landlock, which needs no rights to use. Files that are open already stay usable, so the grants database is
opened first; afterwards only the index folder and the interpreter's own libraries can be read, nothing can be written,
made or executed, and no connection can be made outwards. That a path exists can still be learned by ``stat``.

Source: Linux, Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS = (13, 13, 14, 15, 15, 16)
"""How many file rights each version of Landlock knows, from version 1."""
_NETWORK_RIGHTS = 0b11
"""Bind and connect of TCP, from version 4 on."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("rights", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def lock_up(readable: Iterable[Path], writable: Iterable[Path]) -> str | None:
    """Give up every right this process does not need, for good. Call it before threads start.

    Args:
        readable: Folders and files that may be opened to read, besides the interpreter's libraries.
        writable: Existing files that may be opened again to read and write.

    Returns:
        None when it holds; else one line that says why this system cannot do it, and nothing has changed.
    """
    if sys.platform != "linux":
        return "this system has no Landlock"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if version < 1:
        return f"this kernel has no Landlock ({os.strerror(ctypes.get_errno())})"
    rights = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]) - 1
    ruleset = _Ruleset(rights, _NETWORK_RIGHTS if version >= 4 else 0)
    size = ctypes.sizeof(ruleset) if version >= 4 else ctypes.sizeof(ctypes.c_uint64)
    handle = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    if handle < 0:
        return f"Landlock refused its rules ({os.strerror(ctypes.get_errno())})"
    try:
        for path in (*readable, *_libraries()):
            _allow(libc, handle, path, _READ_FILE | _READ_FOLDER)
        for path in writable:
            _allow(libc, handle, path, _READ_FILE | _WRITE_FILE)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        if libc.syscall(_RESTRICT_SELF, handle, 0) != 0:
            return f"Landlock did not take effect ({os.strerror(ctypes.get_errno())})"
    finally:
        os.close(handle)
    return None


def _libraries() -> list[Path]:
    """List the folders Python modules are loaded from: its own, installed ones, and ours where they lie elsewhere."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    here = Path(__file__).resolve().parent
    return [*(Path(sysconfig.get_path(name)) for name in names), here, here.parent / "mesh"]


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    """Add one path to the rules; one that does not exist needs none."""
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not path.is_dir():
            rights &= ~_READ_FOLDER
        rule = _PathRule(rights, folder)
        libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)
