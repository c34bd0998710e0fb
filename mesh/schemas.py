"""The body schema of every kind of the table, checked at the door.

Kinds that belong to the packages above travel in one of two envelopes, so the mesh can decide rights without knowing
their content: *sealed* (only the owner's machines read it) and *about* (names the machine it concerns).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh import kinds
from mesh.base.codec import Malformed, Range, Size, decode_untrusted
from mesh.base.crypto import SEAL_OVERHEAD_BYTES
from mesh.base.names import NodeId, node_id
from mesh.certificates import (
    CertificateBody,
    EpochBody,
    Expulsion,
    LeavingBody,
    PolicyBody,
    RotationBody,
    SignedCertificate,
)
from mesh.copies import read_proof_untrusted
from mesh.presence import Presence
from mesh.records import BodyCheck

SEALED_PLAIN_BYTES_MAX = 2048
ABOUT_BYTES_MAX = 450


@dataclass(frozen=True, slots=True)
class SealedBody:
    """A body only the machines of one owner can read.

    Attributes:
        epoch: Which of the owner's fleet keys it was sealed with.
    """

    epoch: Annotated[int, Range(0, 65535)]
    sealed: Annotated[bytes, Size(SEAL_OVERHEAD_BYTES, SEALED_PLAIN_BYTES_MAX + SEAL_OVERHEAD_BYTES)]


@dataclass(frozen=True, slots=True)
class AboutBody:
    """A body that concerns a machine: the one that serves a grant.

    Attributes:
        node: That machine.
        content: What the packages above make of it.
    """

    node: Annotated[bytes, Size(16, 16)]
    content: Annotated[bytes, Size(0, ABOUT_BYTES_MAX)]


def _certificate(key: bytes, body: bytes, version_ms: int) -> NodeId:
    signed = decode_untrusted(SignedCertificate, body, bytes_max=1024)
    content = decode_untrusted(CertificateBody, signed.body, bytes_max=700)
    if key != node_id(content.public_key):
        raise Malformed("a certificate is kept under the machine it certifies")
    return NodeId(content.lineage)


def _epoch(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(EpochBody, body, bytes_max=128)


def _leaving(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(LeavingBody, body, bytes_max=64)
    if key:
        raise Malformed("a machine leaves once")


def _policy(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(PolicyBody, body, bytes_max=512)


def _expulsion(key: bytes, body: bytes, version_ms: int) -> NodeId:
    lineage = decode_untrusted(Expulsion, body, bytes_max=2048).lineage
    if key != lineage:
        raise Malformed("an expulsion is kept under the lineage it expels")
    return NodeId(lineage)


def _rotation(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(RotationBody, body, bytes_max=512)


def _copy_proof(key: bytes, body: bytes, version_ms: int) -> None:
    """What the proof proves is checked by whoever uses it, by the signatures inside; its author's word counts nothing."""
    if key != node_id(read_proof_untrusted(body).public_key):
        raise Malformed("a proof of a copy is kept under the machine it is about")


def _presence(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(Presence, body, bytes_max=1024)
    if key:
        raise Malformed("a machine has one presence")


def _sealed(key: bytes, body: bytes, version_ms: int) -> None:
    decode_untrusted(SealedBody, body, bytes_max=SEALED_PLAIN_BYTES_MAX + 128)


def _about(key: bytes, body: bytes, version_ms: int) -> NodeId:
    return NodeId(decode_untrusted(AboutBody, body, bytes_max=512).node)


BODIES: dict[int, BodyCheck] = {
    kinds.CERTIFICATE: _certificate,
    kinds.EPOCH: _epoch,
    kinds.POLICY: _policy,
    kinds.EXPULSION: _expulsion,
    kinds.ROTATION: _rotation,
    kinds.GRANT: _about,
    kinds.GRANT_REVOCATION: _about,
    kinds.COPY_PROOF: _copy_proof,
    kinds.FLEET_EPOCH: _epoch,
    kinds.LEAVING: _leaving,
    kinds.PRESENCE: _presence,
    kinds.SESSION: _sealed,
    kinds.WAITING: _sealed,
    kinds.LESSON: _sealed,
    kinds.ACCEPTANCE: _sealed,
}
