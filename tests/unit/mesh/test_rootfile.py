"""The root's key as words, and what it signs into a file. SECURITY 22."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import Malformed
from mesh.base.crypto import SigningKey
from mesh.base.errors import Refused, Usage
from mesh.certificates import LIFE_S
from mesh.kinds import EXPULSION, POLICY, Role
from mesh.records import Verdict
from mesh.rootfile import (
    FILE_BYTES_MAX,
    KEEP_MAX,
    WORDS,
    expel,
    promote,
    read_file_untrusted,
    read_words,
    write_file,
    write_words,
)
from mesh.schemas import BODIES
from tests.fakes.meshes import NOW, NOW_S, Mesh

MESH = Mesh("root")
MINI = MESH.machine("mini")
MEMBERS = MESH.members()


@given(st.binary(min_size=32, max_size=32))
def test_a_key_comes_back_from_its_words_however_they_are_typed(seed: bytes):
    words = write_words(SigningKey(seed))
    assert len(words.split()) == WORDS
    assert read_words(f"  {words.upper()}\n").seed == seed


def test_a_wrong_word_is_noticed():
    words = write_words(MESH.root).split()
    for wrong in (words[:-1], [*words, "zoo"], [], ["x" * 100] * WORDS, [*words[:5], "hivemesh", *words[6:]]):
        with pytest.raises(Usage):
            read_words(" ".join(wrong))


def test_a_file_carries_the_roots_word_to_any_machine_of_the_mesh():
    record = expel(MESH.root, MESH.mesh, MINI.node, [], wall_ms=NOW.wall_ms, newest=0)
    text = write_file(MESH.mesh, [record])
    assert text.isascii()
    assert read_file_untrusted(text.replace("\n", "\r\n"), MESH.mesh, MEMBERS.root) == [record]
    assert MESH.judge(record) is Verdict.ADMIT
    other = Mesh("another")
    with pytest.raises(Usage, match="another mesh"):
        read_file_untrusted(text, other.mesh, MEMBERS.root)
    forged = write_file(MESH.mesh, [MESH.sign(MESH.founder, EXPULSION, MINI.node, record.body)])
    with pytest.raises(Usage, match="root did not sign"):
        read_file_untrusted(forged, MESH.mesh, MEMBERS.root)


@given(st.text(max_size=300) | st.binary(max_size=200).map(lambda b: "hivemesh root 1\n" + b.hex()))
def test_anything_else_is_no_file_of_the_root(text: str):
    with pytest.raises(Usage):
        read_file_untrusted(text, MESH.mesh, MEMBERS.root)
    with pytest.raises(Usage):
        read_file_untrusted("hivemesh root 1\n" + "A" * FILE_BYTES_MAX, MESH.mesh, MEMBERS.root)


def test_a_new_admin_has_no_end_and_its_owners_signature_stays():
    record = promote(MESH.root, MESH.mesh, MEMBERS.certificates[MINI.node], bytes(8), wall_ms=NOW.wall_ms, newest=MESH.version())
    certified = MESH.members(record).certificates[MINI.node]
    assert certified.roles & Role.ADMIN
    assert certified.not_after_s is None
    assert (certified.owner, certified.owner_proven, certified.name) == (MEMBERS.certificates[MINI.node].owner, True, "mini")


def test_an_expulsion_that_keeps_too_many_is_refused():
    with pytest.raises(Refused):
        expel(MESH.root, MESH.mesh, MINI.node, [bytes(32)] * (KEEP_MAX + 1), wall_ms=NOW.wall_ms, newest=0)


def test_the_mesh_lives_on_while_the_root_is_away():
    """An admin's certificate has no end: three months later it still opens links and what it issues then is good."""
    later_s = NOW_S + LIFE_S + 86_400
    MEMBERS.check_untrusted((MESH.founder.certificate,), now_s=later_s, me=MINI.node)
    renewed = MESH.certificate(MINI.key, MINI.owner, not_before_s=later_s)
    assert MESH.members().check_untrusted((renewed, MESH.founder.certificate), now_s=later_s, me=MESH.founder.node).node == MINI.node


def test_policy_has_a_floor():
    """A quota of nothing would erase what everybody learned."""
    for body in (b"\x81\x00", b"\x81\x18\x31"):
        with pytest.raises(Malformed):
            BODIES[POLICY](b"", body, 0)
