"""The signed statements of membership: genesis, certificates, expulsions, epochs, rotations; and their signatures.

What they add up to is the fold's to say (``mesh.members``). ``owner`` is the hash of a person's public key, and counts
only where that key signed for this machine: an admin cannot write another person's name on a machine (THREATS, "owner is
a word an admin writes").
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Annotated

from mesh.base.codec import Count, Malformed, Range, Size, decode_untrusted, encode
from mesh.base.crypto import Context, SigningKey, content_id, verify
from mesh.base.names import MeshId, NodeId, OwnerId, clean_name, node_id, owner_id
from mesh.kinds import ROLES_ALL, Role

CERTIFICATE_BYTES_MAX = 1024
CERTIFICATES_CACHED_MAX = 4096
"""Certificates whose signatures are not checked again at the next fold; beyond, the least used is checked anew."""
KEEP_MAX = 48
RENEW_GRACE_S = 30 * 86_400
"""This long after its end a certificate is still renewed by itself; later a person must do it."""
LIFE_S = 90 * 86_400

Key32 = Annotated[bytes, Size(32, 32)]
Id16 = Annotated[bytes, Size(16, 16)]
Seconds = Annotated[int, Range(0, 1 << 40)]


@dataclass(frozen=True, slots=True)
class Genesis:
    """The founding statement; its hash is the mesh's id."""

    root_key: Key32
    admin_key: Key32
    created_s: Seconds
    nonce: Id16


@dataclass(frozen=True, slots=True)
class CertificateBody:
    """What an admin (or the root) states about one machine.

    Attributes:
        lineage: Node id of the machine's first key; stays through rotations.
        not_after_s: None only for admins, whose certificates the root ends by expulsion.
        invite: The invite it was issued for, so that a restored issuer can count.
    """

    public_key: Key32
    owner_key: Key32
    lineage: Id16
    name: Annotated[str, Size(1, 63)]
    owner_name: Annotated[str, Size(1, 63)]
    roles: Annotated[int, Range(1, ROLES_ALL)]
    issuer: Id16
    serial: Annotated[bytes, Size(8, 8)]
    not_before_s: Seconds
    not_after_s: Seconds | None
    invite: Id16 | None


@dataclass(frozen=True, slots=True)
class SignedCertificate:
    """A certificate as it travels: the body as signed, the issuer's and the owner's signatures."""

    body: Annotated[bytes, Size(1, 700)]
    signature: Annotated[bytes, Size(64, 64)]
    owner_signature: Annotated[bytes, Size(64, 64)] | None


@dataclass(frozen=True, slots=True)
class Expulsion:
    """An admin's or the root's word that a machine's lineage is out, for ever.

    Attributes:
        keep: Hashes of whole certificates, issued by the expelled, that stay valid.
    """

    lineage: Id16
    keep: Annotated[tuple[Key32, ...], Count(KEEP_MAX)]


@dataclass(frozen=True, slots=True)
class EpochBody:
    """A commitment to a gate key, or to one person's fleet key; members take only a key that matches one."""

    commitment: Key32


@dataclass(frozen=True, slots=True)
class LeavingBody:
    """A machine's own word that it has left the mesh; its key is destroyed with it, so it is for good."""

    at_s: Seconds


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """Mesh-wide numbers an admin may set; floors hold whatever it says."""

    lessons_quota: Annotated[int, Range(50, 10_000)]


@dataclass(frozen=True, slots=True)
class RotationBody:
    """A machine's word, signed by both its keys, that a new key follows the old one."""

    old_key: Key32
    new_key: Key32
    new_signature: Annotated[bytes, Size(64, 64)]


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate whose signature and chain hold.

    Attributes:
        owner_proven: Whether the owner's key signed for this machine; else ``owner`` is an id nobody else has.
        fingerprint: BLAKE2b-256 of the certificate as it travels.
    """

    node: NodeId
    public_key: bytes
    owner: OwnerId
    owner_proven: bool
    owner_name: str
    name: str
    roles: Role
    lineage: bytes
    issuer: bytes
    serial: bytes
    not_before_s: int
    not_after_s: int | None
    invite: bytes | None
    fingerprint: bytes
    wire: bytes


def mesh_id(genesis: bytes) -> MeshId:
    """Derive a mesh's id from its genesis as encoded."""
    return MeshId(content_id(genesis, size=16))


def sign_owner(owner_key: SigningKey, mesh: MeshId, lineage: bytes, public_key: bytes) -> bytes:
    """State, as the owner, that a machine is mine."""
    return owner_key.sign(Context.OWNER, mesh, lineage + public_key)


def issue(
    issuer: SigningKey, mesh: MeshId, body: CertificateBody, owner_signature: bytes | None
) -> bytes:
    """Sign a certificate.

    Args:
        issuer: The root's or an admin's key; ``body.issuer`` must be its id.
        mesh: The mesh.
        body: What is stated.
        owner_signature: From :func:`sign_owner`, or None where the owner did not sign.

    Returns:
        The certificate as it travels.
    """
    assert body.issuer == node_id(issuer.public)
    body_bytes = encode(body)
    return encode(SignedCertificate(body_bytes, issuer.sign(Context.CERTIFICATE, mesh, body_bytes), owner_signature))


def renewal(wire: bytes, issuer: SigningKey, mesh: MeshId, *, serial: bytes, now_s: int) -> bytes:
    """Issue a machine's certificate anew: the same machine, owner, lineage and roles, for another life.

    Args:
        wire: Its present certificate, checked.
        issuer: An admin's key.
        mesh: The mesh.
        serial: 8 unpredictable bytes.
        now_s: Where the new life begins.
    """
    signed, body = open_untrusted(wire)
    fresh = replace(
        body, issuer=node_id(issuer.public), serial=serial, not_before_s=now_s, not_after_s=now_s + LIFE_S
    )
    return issue(issuer, mesh, fresh, signed.owner_signature)


@functools.lru_cache(maxsize=CERTIFICATES_CACHED_MAX)
def open_untrusted(wire: bytes) -> tuple[SignedCertificate, CertificateBody]:
    """Read a certificate's shape, whoever signed it.

    Raises:
        Malformed: Not a certificate.
    """
    signed = decode_untrusted(SignedCertificate, wire, bytes_max=CERTIFICATE_BYTES_MAX)
    return signed, decode_untrusted(CertificateBody, signed.body, bytes_max=700)


def certificate_body_untrusted(wire: bytes) -> CertificateBody | None:
    """Read what a certificate says, whoever signed it; None for anything unsound."""
    try:
        return open_untrusted(wire)[1]
    except Malformed:
        return None


def nobody(node: NodeId) -> OwnerId:
    """An owner id that only this machine has: whose it is, is not proven."""
    return OwnerId(content_id(b"unproven owner" + node, size=16))


@functools.lru_cache(maxsize=CERTIFICATES_CACHED_MAX)
def certified_by(wire: bytes, issuer_key: bytes, mesh: MeshId) -> Certified | None:
    """Check a certificate's signatures; None where the issuer's does not hold.

    The same bytes under the same key always come out the same, and every fold looks at every certificate again.
    """
    signed, body = open_untrusted(wire)
    if not verify(issuer_key, Context.CERTIFICATE, mesh, signed.body, signed.signature):
        return None
    node = node_id(body.public_key)
    proven = signed.owner_signature is not None and verify(
        body.owner_key, Context.OWNER, mesh, body.lineage + body.public_key, signed.owner_signature
    )
    owner = owner_id(body.owner_key) if proven else nobody(node)
    return Certified(
        node,
        body.public_key,
        owner,
        proven,
        clean_name(body.owner_name),
        clean_name(body.name),
        Role(body.roles),
        body.lineage,
        body.issuer,
        body.serial,
        body.not_before_s,
        body.not_after_s,
        body.invite,
        content_id(wire),
        wire,
    )


def read_epoch(body: bytes) -> bytes | None:
    """Read the commitment of an epoch; None for anything unsound."""
    try:
        return decode_untrusted(EpochBody, body, bytes_max=128).commitment
    except Malformed:
        return None


def read_expulsion(body: bytes) -> Expulsion | None:
    """Read an expulsion's body; None for anything unsound."""
    try:
        return decode_untrusted(Expulsion, body, bytes_max=2048)
    except Malformed:
        return None


def found(
    *, root: SigningKey, owner: SigningKey, node: SigningKey, name: str, owner_name: str, now_s: int, nonce: bytes
) -> tuple[bytes, bytes]:
    """Found a mesh of one machine.

    Args:
        root: The mesh's new root key.
        owner: The founder's own key.
        node: This machine's key; it becomes the first admin.
        name: The machine's display name.
        owner_name: The person's display name.
        now_s: Wall clock.
        nonce: 24 unpredictable bytes: 16 for the genesis, 8 for the serial.

    Returns:
        The genesis as encoded, and this machine's certificate, signed by the root and countersigned by the owner.
    """
    genesis = encode(Genesis(root.public, node.public, now_s, nonce[:16]))
    mesh = mesh_id(genesis)
    me = node_id(node.public)
    roles = Role.MEMBER | Role.WORKER | Role.RELAY | Role.ADMIN
    body = CertificateBody(
        node.public, owner.public, me, name, owner_name, int(roles), node_id(root.public), nonce[16:24], now_s, None, None
    )
    return genesis, issue(root, mesh, body, sign_owner(owner, mesh, me, node.public))
