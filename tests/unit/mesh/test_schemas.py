"""Every kind's body: what passes, what does not, and that the largest lawful one fits."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.codec import Malformed, encode
from mesh.base.crypto import SEAL_OVERHEAD_BYTES
from mesh.base.names import node_id
from mesh.certificates import (
    CertificateBody,
    EpochBody,
    Expulsion,
    LeavingBody,
    PolicyBody,
    RotationBody,
    SignedCertificate,
    issue,
)
from mesh.copies import PRESENCE_WIRE_BYTES_MAX, ProofBody
from mesh.kinds import KINDS, Role, rule_of
from mesh.presence import LINKS_MAX, Presence
from mesh.schemas import ABOUT_BYTES_MAX, BODIES, SEALED_PLAIN_BYTES_MAX, AboutBody, SealedBody
from tests.fakes.meshes import Mesh

MESH = Mesh("schemas")
NODE = MESH.founder.node
SUBJECT = node_id(bytes(32))
LONG = CertificateBody(
    bytes(32), bytes(32), NODE, "n" * 63, "o" * 63, 15, MESH.founder.node, bytes(8), 1 << 40, 1 << 40, bytes(16)
)  # fmt: skip
LARGEST: dict[int, tuple[bytes, bytes]] = {
    kinds.CERTIFICATE: (SUBJECT, issue(MESH.founder.key, MESH.mesh, LONG, bytes(64))),
    kinds.EPOCH: (bytes(16), encode(EpochBody(bytes(32)))),
    kinds.FLEET_EPOCH: (bytes(16), encode(EpochBody(bytes(32)))),
    kinds.LEAVING: (b"", encode(LeavingBody(1 << 40))),
    kinds.POLICY: (b"", encode(PolicyBody(10_000))),
    kinds.EXPULSION: (NODE, encode(Expulsion(NODE, (bytes(32),) * 48))),
    kinds.ROTATION: (b"", encode(RotationBody(bytes(32), bytes(32), bytes(64)))),
    kinds.GRANT: (bytes(10), encode(AboutBody(NODE, bytes(ABOUT_BYTES_MAX)))),
    kinds.GRANT_REVOCATION: (bytes(10), encode(AboutBody(NODE, bytes(200)))),
    kinds.COPY_PROOF: (node_id(bytes(32)), encode(ProofBody(bytes(32), (), (bytes(PRESENCE_WIRE_BYTES_MAX),) * 2))),
    kinds.PRESENCE: (b"", encode(Presence(bytes(8), 3600, "n" * 63, "v" * 32, ("a" * 80,) * 4, (bytes(4),) * LINKS_MAX, 10_000, 10_000))),
    **{
        kind: (bytes(32), encode(SealedBody(65535, bytes(SEALED_PLAIN_BYTES_MAX + SEAL_OVERHEAD_BYTES))))
        for kind in (kinds.SESSION, kinds.WAITING, kinds.LESSON)
    },
    kinds.ACCEPTANCE: (bytes(32), encode(SealedBody(65535, bytes(400 + SEAL_OVERHEAD_BYTES)))),
}  # fmt: skip
ABOUT = {kinds.CERTIFICATE, kinds.EXPULSION, kinds.GRANT, kinds.GRANT_REVOCATION}


def test_every_kind_has_a_schema():
    assert BODIES.keys() == KINDS.keys() == LARGEST.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_lawful_body_fits_its_kind_and_names_its_machine(kind: int):
    key, body = LARGEST[kind]
    assert len(body) <= rule_of(kind).body_bytes_max
    assert BODIES[kind](key, body, 0) == (NODE if kind in ABOUT else None)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_lengthened_and_foreign_bodies_are_refused(kind: int):
    key, body = LARGEST[kind]
    for bad in (body[:-1], body + b"\x00", b"\x80", b"\x00", b"\xa0", b"", cbor2.dumps([None] * 12), bytes(5000)):
        with pytest.raises(Malformed):
            BODIES[kind](key, bad, 0)


def test_keys_are_where_the_fold_looks_for_them():
    with pytest.raises(Malformed):
        BODIES[kinds.EXPULSION](bytes(16), LARGEST[kinds.EXPULSION][1], 0)
    with pytest.raises(Malformed):
        BODIES[kinds.CERTIFICATE](bytes(16), LARGEST[kinds.CERTIFICATE][1], 0)
    with pytest.raises(Malformed):
        BODIES[kinds.PRESENCE](b"x", LARGEST[kinds.PRESENCE][1], 0)


@pytest.mark.parametrize("quota", [0, 1, 49, 10_001, -1, 1 << 40])
def test_a_policy_below_its_floor_is_refused(quota: int):
    """SECURITY 22: an admin cannot erase everyone's knowledge by a number."""
    with pytest.raises(Malformed):
        BODIES[kinds.POLICY](b"", cbor2.dumps([quota]), 0)


def test_a_certificate_in_a_certificate_is_bounded():
    with pytest.raises(Malformed):
        BODIES[kinds.CERTIFICATE](SUBJECT, encode(SignedCertificate(b"\x81" * 700, bytes(64), None)), 0)
    assert Role.ADMIN not in Role(LONG.roles)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=32), st.binary(max_size=100), st.integers(0, 1 << 47))
def test_any_body_is_lawful_or_malformed(kind: int, key: bytes, body: bytes, version_ms: int):
    """SECURITY 17."""
    try:
        about = BODIES[kind](key, body, version_ms)
    except Malformed:
        return
    assert about is None or len(about) == 16


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 3000), st.integers(1, 255))
def test_a_changed_byte_of_a_lawful_body_is_lawful_or_malformed(kind: int, at: int, change: int):
    key, body = LARGEST[kind]
    changed = bytearray(body)
    changed[at % len(body)] ^= change
    try:
        BODIES[kind](key, bytes(changed), 0)
    except Malformed:
        return
