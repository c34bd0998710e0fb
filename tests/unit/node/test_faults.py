"""Finding the error to show in a group of them."""

from __future__ import annotations

from mesh.base.errors import OurFault, Usage
from node.faults import mesh_error_in


def test_one_error_alone_or_deep_in_groups_is_found():
    error = Usage("x")
    assert mesh_error_in(error) is error
    assert mesh_error_in(BaseExceptionGroup("a", [BaseExceptionGroup("b", [error]), OurFault("y")])) is error


def test_an_error_beside_a_broken_assumption_is_not_shown_in_its_place():
    assert mesh_error_in(ValueError("x")) is None
    assert mesh_error_in(ExceptionGroup("a", [Usage("x"), ValueError("y")])) is None
