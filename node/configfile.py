"""The settings file: read whole, and changed one key at a time without losing what a person wrote around it."""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
from pathlib import Path

from mesh.base.errors import Damaged, OurFault, Usage

FILE_BYTES_MAX = 256 * 1024
"""A larger settings file is refused."""

Value = str | bool | int | list[str]
"""A setting as it stands in the file and in JSON."""


def write_key(path: Path, key: str, value: Value) -> None:
    """Change one key of the file, durably; comments and order of the rest stay.

    Args:
        path: The file; it is made where there is none.
        key: The key, with dots for tables.
        value: Its new value, checked.

    Raises:
        Usage: The file is not TOML, or states something else where the key's table belongs.
        OurFault: The file cannot be written; the old one stands.
    """
    import tomlkit
    import tomlkit.exceptions

    read_keys(path)
    where: object = None
    try:
        document = tomlkit.parse(_read_text(path) or "")
        where = document
        *tables, last = key.split(".")
        for table in tables:
            assert isinstance(where, dict)
            where = where.setdefault(table, tomlkit.table())
        if not isinstance(where, dict):
            raise Usage(f"{path}: {tables[-1]} is not a table", hint=f"remove that line, then set {key} again")
        where[last] = value
        written = tomlkit.dumps(document)
    except tomlkit.exceptions.TOMLKitError:
        raise Usage(f"{path} cannot be edited", hint=f"set {key} in the file by hand") from None
    _replace_file(path, written)


def _replace_file(path: Path, text: str) -> None:
    """Write a file 0600, whole or not at all, and durably."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        # On a disk that cannot be written nothing can be removed either; the reason to tell is the first one.
        with suppress(OSError):
            part.unlink()
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from None


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}", path=str(path), hint="check the file's rights") from None
    if len(data) > FILE_BYTES_MAX:
        raise Usage(f"{path} is larger than {FILE_BYTES_MAX} bytes", hint="it is not a settings file; move it away")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Usage(f"{path} is not UTF-8 text", hint="mend it, or move it away to start from the defaults") from None


def read_keys(path: Path) -> dict[str, object]:
    """Read the file into one flat mapping of dotted keys.

    Args:
        path: The file; one that is not there is empty.

    Returns:
        Whatever the file states, unchecked.

    Raises:
        Usage: Too large, not UTF-8 or not TOML.
        Damaged: It cannot be read.
    """
    try:
        tree = tomllib.loads(_read_text(path) or "")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Usage(f"{path} is not TOML: {error}", hint="mend that line, or move the file away") from None
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": deeper for inner, deeper in value.items()})
        else:
            flat[key] = value
    return flat
