"""The families of errors and what each means outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mesh.base import codec, crypto, db
from mesh.base.errors import (
    EXIT_OF_RUN_FAULT,
    OUTSIDE,
    Damaged,
    MeshError,
    NotRunning,
    OurFault,
    PeerFault,
    Refused,
    Unreachable,
    Usage,
    outside,
)
from mesh.handshake import Incompatible, NotForUs
from mesh.invites import BadInvite

EXITS = {
    MeshError("x"): 1,
    OurFault("x"): 1,
    PeerFault("x", peer="mini"): 1,
    Damaged("x", path="/a"): 1,
    Usage("x"): 2,
    NotRunning("x"): 3,
    Unreachable("x"): 4,
    Refused("x"): 5,
    codec.Malformed("x"): 1,
    crypto.BadSeal("x"): 1,
    db.StorageFull("x"): 1,
    BadInvite("x"): 5,
    NotForUs("x"): 5,
    Incompatible("x"): 5,
}
"""PRODUCT: 1 failed, 2 usage, 3 node not running, 4 not reachable, 5 refused."""


@pytest.mark.parametrize(("error", "code"), EXITS.items(), ids=lambda value: type(value).__name__)
def test_every_error_has_the_exit_code_of_its_family(error: MeshError, code: int):
    row = outside(error)
    assert row.exit_code == code
    assert 400 <= row.http_status < 600
    assert 1000 <= row.close_code < 1016
    assert row.close_code not in (1004, 1005, 1006, 1015), "reserved: never sent in a close frame"


def test_a_fault_of_ours_never_looks_like_the_remote_command():
    assert EXIT_OF_RUN_FAULT == 125
    assert EXIT_OF_RUN_FAULT not in {row.exit_code for row in OUTSIDE.values()}


def families() -> list[type[MeshError]]:
    found, todo = [], [MeshError]
    while todo:
        family = todo.pop()
        found.append(family)
        todo.extend(family.__subclasses__())
    return found


def test_every_error_has_a_word_for_scripts_and_a_line_for_people():
    for family in families():
        assert family.kind.replace("_", "").isalnum(), family
        assert family.__doc__, family
    kinds = [family.kind for family in families() if family.__module__.startswith("mesh.") and "kind" in vars(family)]
    assert len(kinds) == len(set(kinds)), "one word, one meaning"


def test_an_error_carries_what_its_family_says():
    assert PeerFault("m", peer="mini", hint="h").peer == "mini"
    assert PeerFault("m", peer="mini", hint="h").hint == "h"
    assert Unreachable("m", retry_after_s=2.5).retry_after_s == 2.5
    assert Refused("m", reason="expired").reason == "expired"
    assert Damaged("m", path="/x").path == "/x"
    assert str(MeshError("what is wrong", hint="what to do")) == "what is wrong"


def test_the_room_every_command_loads_first_imports_nothing():
    """PRODUCT, numbers to reach: ``status`` as a whole process."""
    code = "import sys; before = set(sys.modules); import mesh.base.errors; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert set(done.stdout.split()) <= {"mesh", "mesh.base", "mesh.base.errors", "__future__"}
