"""Finding the one error a person should read in what a crowd of tasks raised."""

from __future__ import annotations

from mesh.base.errors import MeshError


def mesh_error_in(error: BaseException) -> MeshError | None:
    """Find the product's own error in an error or a group of them.

    Args:
        error: Anything caught.

    Returns:
        The first of the product's errors, if every leaf of the group is one; else None, since something else broke
        as well and must not be hidden behind it.
    """
    if isinstance(error, MeshError):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    found = [mesh_error_in(leaf) for leaf in error.exceptions]
    return found[0] if all(found) else None
