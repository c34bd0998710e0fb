"""The databases of a home beside ``mesh.db``: which may be lost, and which must never come back empty unnoticed.

``sessions.db`` holds only what the transcripts say, so a damaged one is set aside and read anew. The others hold what no
file can tell again; ``mesh.db`` remembers that they were made, so that a missing or emptied one stops the node instead of
starting without grants, lessons or tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from mesh import store
from mesh.base.db import Database
from mesh.base.errors import Damaged, OurFault

log = logging.getLogger("node.databases")


class Closes(Protocol):
    """Anything that holds a database open."""

    def close(self) -> None:
        """Close it."""
        ...


T = TypeVar("T", bound=Closes)


def open_kept(mesh_db: Database, path: Path, opens: Callable[[], T]) -> T:
    """Open a database that must not be lost.

    Args:
        mesh_db: ``mesh.db``, which remembers that the file was made.
        path: The file.
        opens: Opens it.

    Returns:
        What ``opens`` returned.

    Raises:
        Damaged: It was made before and is gone or empty now, or is not sound.
    """
    fact = f"made {path.name}"
    anew = path.with_name(f"{path.name}.anew")
    made = store.fact(mesh_db.reader, fact) is not None
    if made and not anew.exists() and (not path.exists() or path.stat().st_size == 0):
        raise Damaged(
            f"{path} is {'empty' if path.exists() else 'missing'} beside existing data",
            path=str(path),
            hint=f"put it back from a backup; to go on without what it held, make an empty file {anew.name} beside it",
        )
    opened = opens()
    anew.unlink(missing_ok=True)
    if not made:
        try:
            mesh_db.write_now(lambda connection: store.put_fact(connection, fact, b"1"))
        except OurFault:
            opened.close()
            raise
    return opened


def open_rebuilt(path: Path, opens: Callable[[], Database]) -> Database:
    """Open a database that can be made anew; a damaged one is set aside beside it, replacing an earlier one.

    Args:
        path: The file.
        opens: Opens it.

    Returns:
        The database.

    Raises:
        Damaged: It is damaged and cannot be set aside.
        OurFault: The disk refuses.
    """
    try:
        return opens()
    except Damaged as damaged:
        if not path.is_file():
            raise
        aside = path.with_name(f"{path.name}.damaged")
        try:
            path.replace(aside)
            for ending in ("-wal", "-shm"):
                path.with_name(path.name + ending).unlink(missing_ok=True)
        except OSError as error:
            raise OurFault(f"{path} is damaged and cannot be set aside: {error.strerror}", hint="check the folder's rights") from damaged
        log.warning("%s was damaged; it is set aside as %s and made anew", path.name, aside.name)
        return opens()
