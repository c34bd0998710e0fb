"""The sealer the node supplies and the fake one of the tests do the same, and the largest unit fits a record."""

from __future__ import annotations

import os

import pytest

from hive.ports import Sealer
from hive.unit import UNIT_BYTES_MAX
from mesh.base.names import NodeId
from mesh.kinds import KINDS, LESSON
from mesh.sealing import FleetSealer
from tests.fakes.records import FakeMesh

A, B, STRANGER = NodeId(b"a" * 16), NodeId(b"b" * 16), NodeId(b"s" * 16)


def fleet_sealers() -> tuple[Sealer, Sealer, Sealer, NodeId]:
    keys = {0: b"k" * 32}
    one, other = (FleetSealer(me, keys, lambda node: node in (A, B), entropy=os.urandom) for me in (A, B))
    return one, other, FleetSealer(STRANGER, {0: b"x" * 32}, lambda node: True, entropy=os.urandom), A


def fake_sealers() -> tuple[Sealer, Sealer, Sealer, NodeId]:
    mesh = FakeMesh()
    one, other, stranger = mesh.node("a", "me"), mesh.node("b", "me"), mesh.node("s", "stranger")
    return one.sealer, other.sealer, stranger.sealer, one.node


@pytest.mark.parametrize("make", [fleet_sealers, fake_sealers])
def test_own_machines_read_it_and_nobody_else(make: object) -> None:
    """SECURITY 33: the canary is in no foreign owner's hands."""
    one, other, stranger, author = make()  # type: ignore[operator]
    body = one.seal(b"canary")
    assert b"canary" not in body
    assert one.unseal(body, author) == other.unseal(body, author) == b"canary"
    assert stranger.unseal(body, author) is None
    assert other.unseal(body, B if author == A else STRANGER) is None
    assert other.unseal(b"", author) is other.unseal(b"\xff" * 99, author) is None


@pytest.mark.parametrize("make", [fleet_sealers, fake_sealers])
def test_the_largest_unit_fits_a_record(make: object) -> None:
    one = make()[0]  # type: ignore[operator]
    assert len(one.seal(bytes(UNIT_BYTES_MAX))) <= KINDS[LESSON].body_bytes_max
