"""The ring of gate keys: which open what, in which order, and whatever was forged opens nothing."""

from __future__ import annotations

import itertools

from mesh.base.codec import encode
from mesh.certificates import LIFE_S, EpochBody
from mesh.gates import FULL_MAX, RING_MAX, lacking, ring
from mesh.handshake import gate_commitment
from mesh.kinds import EPOCH, Role
from mesh.records import Record, make
from tests.fakes.meshes import NOW, Mesh

KEYS = [bytes([number]) * 32 for number in range(100)]
DAY_MS = 86_400_000


def epochs(count: int, *, every_ms: int = 1000) -> list[tuple[bytes, int]]:
    """The newest first; the last key is the newest."""
    return [(gate_commitment(KEYS[n]), (NOW.wall_ms - (count - 1 - n) * every_ms) << 16) for n in reversed(range(count))]


def test_the_newest_eight_open_all_and_older_ones_the_control_lane_for_as_long_as_a_certificate_lives():
    """SECURITY 8: 12 epochs, one every ten days."""
    found = ring(KEYS[:12], epochs(12, every_ms=10 * DAY_MS), NOW.wall_ms)
    assert [gate.key for gate in found] == KEYS[11:2:-1]
    assert [gate.whole for gate in found] == [True] * FULL_MAX + [False]
    assert 9 * 10 * DAY_MS == LIFE_S * 1000, "the tenth newest is as old as a certificate can be: not younger, so out"


def test_the_newest_keys_hold_however_old_they_are():
    found = ring(KEYS[:1], epochs(1), NOW.wall_ms + 5000 * DAY_MS)
    assert [(gate.key, gate.whole) for gate in found] == [(KEYS[0], True)]


def test_a_key_nobody_committed_to_opens_nothing_and_the_ring_is_bounded():
    assert ring([b"forged".ljust(32, b"-"), KEYS[0]], epochs(1), NOW.wall_ms) == ring([KEYS[0]], epochs(1), NOW.wall_ms)
    assert len(ring(KEYS, epochs(100), NOW.wall_ms)) == RING_MAX
    assert lacking([gate_commitment(KEYS[11])], epochs(12)) == [gate_commitment(key) for key in KEYS[10:3:-1]]


def commit(mesh: Mesh, author, key: bytes) -> Record:
    commitment = gate_commitment(key)
    return make(author, mesh.mesh, EPOCH, commitment[:16], mesh.version(), encode(EpochBody(commitment)))


def test_concurrent_epochs_of_two_admins_stand_beside_each_other_and_all_dial_with_the_same():
    """SECURITY 8: whatever arrives first, both sides of a partition come to one order."""
    mesh = Mesh()
    second = mesh.machine("second", roles=Role.ADMIN | Role.MEMBER)
    records = [commit(mesh, mesh.founder.key, KEYS[1]), commit(mesh, second.key, KEYS[2]), commit(mesh, mesh.root, KEYS[0])]
    orders = {tuple(c for c, _ in mesh.members(*some).gate_epochs()) for some in itertools.permutations(records)}
    assert len(orders) == 1
    assert len(next(iter(orders))) == 3


def test_an_expelled_admins_epoch_is_never_the_newest_and_a_members_none_at_all():
    """SECURITY 8: nor does a forged commitment count."""
    mesh = Mesh()
    gone, mini = mesh.machine("gone", roles=Role.ADMIN | Role.MEMBER), mesh.machine("mini")
    honest = commit(mesh, mesh.founder.key, KEYS[1])
    late = commit(mesh, gone.key, KEYS[2])
    forged = commit(mesh, mini.key, KEYS[3])
    assert mesh.members(honest, late, forged).gate_epochs()[0][0] == gate_commitment(KEYS[2])
    mesh.expel(mesh.founder.key, gone.node)
    found = [commitment for commitment, _ in mesh.members(honest, late, forged).gate_epochs()]
    assert found == [gate_commitment(KEYS[1]), gate_commitment(KEYS[2])]
