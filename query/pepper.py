"""The pepper of a home: 32 secret bytes in a file of their own that key the hashes of secrets and the audit chain."""

from __future__ import annotations

import os
from pathlib import Path

from mesh.base.crypto import KEY_BYTES, Entropy
from mesh.base.errors import Damaged, OurFault


def open_pepper(path: Path, entropy: Entropy, *, may_make: bool) -> bytes:
    """Read the pepper, making it the first time.

    Args:
        path: Its file, mode 0600, in an existing folder.
        entropy: Where a new one comes from.
        may_make: Whether nothing was hashed with one yet.

    Returns:
        32 bytes.

    Raises:
        Damaged: It is missing and must be there, or it has another length.
        OurFault: It cannot be read or written.
    """
    hint = "restore it from a backup, or move grants.db away too and grant anew: without it no token can be proved"
    try:
        if not path.exists():
            if not may_make:
                raise Damaged(f"{path} is missing", path=str(path), hint=hint)
            _make(path, entropy(KEY_BYTES))
        pepper = path.read_bytes()
    except OSError as error:
        raise OurFault(f"{path} cannot be read: {error.strerror}", hint="check the folder's rights and the disk") from error
    if len(pepper) != KEY_BYTES:
        raise Damaged(f"{path} is not a key of {KEY_BYTES} bytes", path=str(path), hint=hint)
    return pepper


def _make(path: Path, content: bytes) -> None:
    """Write it whole or not at all; where another process was first, its file stays."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    handle = os.open(aside, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
        os.link(aside, path)
    except FileExistsError:
        return
    finally:
        os.close(handle)
        aside.unlink()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
