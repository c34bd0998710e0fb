"""Whether the node of a home could start: what ``doctor`` looks at while it does not run. Nothing is changed."""

from __future__ import annotations

from pathlib import Path

from mesh import store
from mesh.base.db import Database
from mesh.base.errors import MeshError
from mesh.identity import is_fresh, read_identity
from node.home import Home


def faults_of(home: Home) -> list[MeshError]:
    """Find what would keep the node from starting.

    Args:
        home: The places; no node runs on them.

    Returns:
        The faults, each as the start would raise it; empty for a fresh home too.
    """
    data_dir = Path(home.data_dir)
    if is_fresh(data_dir) or (data_dir / "moved").exists():
        return []
    try:
        database = Database(home.mesh_db, store.SCHEMA)
    except MeshError as fault:
        return [fault]
    try:
        read_identity(data_dir, database)
    except MeshError as fault:
        return [fault]
    finally:
        database.close()
    return []
