"""Copies of an identity: alarm for what one machine cannot have signed, none for restarts, backups and loss.

SECURITY 26.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import Malformed, encode
from mesh.copies import (
    BOOTS_KEPT_MAX,
    HANDSHAKES_KEPT_MAX,
    MACHINES_KEPT_MAX,
    ProofBody,
    Witness,
    boot_start_ms,
    conflict,
    copied,
    encode_proof,
    make_boot,
    make_counter,
    proven_untrusted,
    read_proof_untrusted,
    sign_of,
)
from mesh.handshake import HelloCache, Initiator, Responder, Statement
from mesh.kinds import COPY_PROOF, PRESENCE
from mesh.presence import Presence
from mesh.records import Record, Verdict, make
from tests.fakes.meshes import NOW, Drawn, Machine, Mesh

T0 = NOW.wall_ms
GATE = b"g" * 32
MESH = Mesh("copies")
MINI = MESH.machine("mini")
OTHER = MESH.machine("other")


class Running:
    """One start of a machine: what it signs while it runs, with real signatures."""

    def __init__(self, machine: Machine, start_ms: int, drawn: Drawn | None = None) -> None:
        self.machine = machine
        self.boot = make_boot(start_ms, drawn or Drawn((start_ms, machine.node)))
        self.start_ms = start_ms
        self.number = 0

    def fork(self) -> Running:
        """Copy it as it runs, memory and all."""
        twin = Running(self.machine, self.start_ms)
        twin.boot, twin.number = self.boot, self.number
        return twin

    def handshake(self, at_ms: int) -> Statement:
        """Link to the other machine at a time; gives what that one keeps."""
        self.number += 1
        counter = make_counter((at_ms - self.start_ms) / 1000, self.number)
        mine = replace(MESH.credentials(self.machine, counter=counter), boot=self.boot)
        initiator = Initiator(mine, GATE, entropy=os.urandom, now=NOW, expected=None)
        responder = Responder(MESH.credentials(MESH.founder), [GATE], HelloCache(), entropy=os.urandom, now=NOW)
        closing, _ = initiator.answer_untrusted(responder.accept_untrusted(initiator.hello))
        return responder.finish_untrusted(closing).statement

    def presence(self, at_ms: int, name: str = "mini") -> Record:
        """Speak of itself at a time."""
        said = Presence(self.boot, 30, name, "test 1", (), (), 0, 1)
        return make(self.machine.key, MESH.mesh, PRESENCE, b"", at_ms << 16, encode(said))


def alarm(sources: list[Statement | Record], machine: Machine = MINI) -> ProofBody | None:
    """Whether a witness who sees all of this in this order finds a copy."""
    witness = Witness()
    proofs = [proof for source in sources if (proof := witness.see(machine.key.public, source)) is not None]
    return proofs[0] if proofs else None


def sound(proof: ProofBody | None) -> bool:
    return proof is not None and proven_untrusted(encode_proof(proof), MESH.mesh) is not None


def test_a_boot_id_tells_when_it_began():
    assert boot_start_ms(make_boot(T0, os.urandom)) == T0
    assert make_counter(7.9, 3) == 7 << 32 | 3
    assert make_counter(2**40, 2**40) < 1 << 62


def test_a_handshake_leaves_a_statement_anybody_can_check_and_nobody_can_change():
    statement = Running(MINI, T0).handshake(T0 + 5_000)
    assert statement.is_signed_by(MINI.key.public, MESH.mesh)
    assert not statement.is_signed_by(OTHER.key.public, MESH.mesh)
    assert not statement.is_signed_by(MINI.key.public, Mesh("another").mesh)
    for change in ({"boot": bytes(8)}, {"counter": 0}, {"transcript": bytes(32)}, {"initiator": not statement.initiator}):
        assert not replace(statement, **change).is_signed_by(MINI.key.public, MESH.mesh)


def test_a_clone_that_only_links_and_reads_is_found():
    """A silent reader: it publishes nothing, so only its handshakes show it."""
    first, thief = Running(MINI, T0), Running(MINI, T0 + 3_600_000)
    early = first.handshake(T0 + 1_000)
    assert alarm([early, thief.handshake(T0 + 3_601_000)]) is None, "as a restart looks until the first one is heard again"
    read = thief.handshake(T0 + 3_605_000)
    assert sound(alarm([early, read, first.presence(T0 + 3_630_000)]))
    assert sound(alarm([early, read, first.handshake(T0 + 3_630_000)]))


def test_a_forked_machine_is_found_although_its_boot_is_the_same():
    """A copied virtual machine: same boot, same memory; its handshakes repeat a number, or come out of order."""
    first = Running(MINI, T0)
    for at_s in range(5):
        first.handshake(T0 + at_s * 1000)
    fork = first.fork()
    assert sound(alarm([first.handshake(T0 + 60_000), fork.handshake(T0 + 60_000)])), "one number twice"
    first.handshake(T0 + 70_000)
    assert sound(alarm([first.handshake(T0 + 80_000), fork.handshake(T0 + 90_000)])), "an earlier number later"


def test_two_presences_of_one_version_that_differ_are_two_machines():
    boot = Running(MINI, T0)
    assert sound(alarm([boot.presence(T0 + 9_000, "one"), boot.presence(T0 + 9_000, "two")]))
    assert alarm([boot.presence(T0 + 9_000), boot.presence(T0 + 9_000)]) is None


def test_a_restored_backup_is_no_copy():
    """The old state comes back under a later boot, and the boot it took over from is never heard again."""
    first, second, restored = Running(MINI, T0), Running(MINI, T0 + 100_000), Running(MINI, T0 + 200_000)
    said = [first.handshake(T0), first.presence(T0 + 90_000), second.handshake(T0 + 101_000), second.presence(T0 + 199_000)]
    assert alarm([*said, restored.handshake(T0 + 200_500), restored.presence(T0 + 230_000)]) is None


def test_fifty_honest_restarts_over_many_lossy_paths_raise_no_alarm():
    """What arrives late, twice, or out of order is no sign of a copy."""
    chance = random.Random(26)
    said: list[Statement | Record] = []
    at_ms = T0
    for _ in range(50):
        boot = Running(MINI, at_ms)
        for _ in range(chance.randint(1, 3)):
            at_ms += chance.randint(0, 40_000)
            said.append(boot.handshake(at_ms) if chance.random() < 0.6 else boot.presence(at_ms))
        at_ms += chance.choice([1, 500, 90_000])
    for _ in range(20):
        heard = [source for source in said * 2 if chance.random() < 0.7]
        chance.shuffle(heard)
        assert alarm(heard) is None


@given(st.permutations(range(5)))
def test_the_order_of_arrival_does_not_matter(order: tuple[int, ...]):
    assert sound(alarm([SCENE[at] for at in order]))


_first, _second = Running(MINI, T0), Running(MINI, T0 + 50_000)
SCENE = [
    _first.handshake(T0 + 1_000), _second.handshake(T0 + 51_000), _first.presence(T0 + 60_000), _second.presence(T0 + 70_000),
    _first.handshake(T0 + 80_000),
]  # fmt: skip


def test_nobody_without_the_key_can_make_a_proof():
    """A member without the key can never freeze another: it can only carry what that one's key signed."""
    mine, again = SCENE[0], SCENE[1]
    assert isinstance(mine, Statement)
    assert isinstance(again, Statement)
    stranger = Running(OTHER, T0)
    forged = [
        ProofBody(MINI.key.public, (mine, replace(again, boot=make_boot(T0, os.urandom))), ()),
        ProofBody(MINI.key.public, (mine, replace(mine, counter=mine.counter + 1)), ()),
        ProofBody(MINI.key.public, (mine, stranger.handshake(T0 + 9_000)), ()),
        ProofBody(MINI.key.public, (mine,), (stranger.presence(T0 + 60_000).wire,)),
        ProofBody(OTHER.key.public, (mine, again), ()),
        ProofBody(MINI.key.public, (mine, mine), ()),
        ProofBody(MINI.key.public, (mine, again), ()),
        ProofBody(MINI.key.public, (), (b"x" * 200, b"y" * 200)),
    ]
    assert [proven_untrusted(encode(body), MESH.mesh) for body in forged] == [None] * len(forged)
    good = alarm(SCENE)
    assert good is not None
    assert proven_untrusted(encode(good), Mesh("another").mesh) is None


def test_the_door_takes_a_proof_from_any_member_and_the_fold_only_what_holds():
    proof = alarm(SCENE)
    assert proof is not None
    record = MESH.sign(OTHER, COPY_PROOF, bytes(MINI.node), encode_proof(proof))
    assert MESH.judge(record) is Verdict.ADMIT
    assert MESH.judge(MESH.sign(OTHER, COPY_PROOF, bytes(OTHER.node), encode_proof(proof))) is Verdict.UNSOUND
    empty = MESH.sign(OTHER, COPY_PROOF, bytes(MINI.node), encode(ProofBody(MINI.key.public, (), ())))
    assert MESH.judge(empty) is Verdict.UNSOUND
    mine = SCENE[0]
    assert isinstance(mine, Statement)
    idle = MESH.sign(OTHER, COPY_PROOF, bytes(MINI.node), encode(ProofBody(MINI.key.public, (mine, mine), ())))
    assert MESH.judge(idle) is Verdict.ADMIT
    assert copied([idle], MESH.mesh) == {}
    assert copied([record, idle], MESH.mesh) == {MINI.node: record.version}


@given(st.binary(max_size=400))
def test_any_bytes_are_a_proof_or_malformed(body: bytes):
    with pytest.raises(Malformed):
        read_proof_untrusted(body)
    assert proven_untrusted(body, MESH.mesh) is None


def test_what_a_witness_keeps_is_bounded():
    witness = Witness()
    statement = SCENE[0]
    for number in range(MACHINES_KEPT_MAX + 50):
        witness.see(number.to_bytes(32, "big"), statement)
    assert len(witness._seen) == MACHINES_KEPT_MAX
    assert isinstance(statement, Statement)
    for number in range(200):
        boot = make_boot(T0 + number * 10_000, os.urandom)
        witness.see(b"k" * 32, replace(statement, boot=boot, counter=make_counter(1, 1)))
    kept = witness._seen[b"k" * 32]
    assert (len(kept.lasting), len(kept.handshakes)) == (BOOTS_KEPT_MAX, HANDSHAKES_KEPT_MAX)


def test_conflict_is_symmetric():
    signs = [sign for source in SCENE if (sign := sign_of(source)) is not None]
    for one in signs:
        assert not conflict(one, one)
        for other in signs:
            assert conflict(one, other) is conflict(other, one)
