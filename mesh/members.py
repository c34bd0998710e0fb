"""Genesis, certificates, expulsions: who is a member now, folded from signed statements.

A certificate says who a machine is and whose; it never says what the machine may run elsewhere. The chain is at most
root -> admin -> machine, checked in one place (:meth:`Members.check_untrusted`). ``owner`` is the hash of a person's
public key, and counts only where that key signed for this machine: an admin cannot write another person's name on a
machine (THREATS, "owner is a word an admin writes").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Malformed, Range, Size, decode_untrusted, encode
from mesh.base.crypto import Context, SigningKey, content_id, verify
from mesh.base.errors import Refused
from mesh.base.names import MeshId, NodeId, OwnerId, clean_name, node_id, owner_id
from mesh.kinds import CERTIFICATE, EXPULSION, ROLES_ALL, Role
from mesh.records import Author, Record

CERTIFICATE_BYTES_MAX = 1024
CHAIN_MAX = 2
CERTIFICATES_CACHED_MAX = 4096
"""Certificates whose signatures are not checked again at the next fold; beyond, the least used is checked anew."""
LIFE_S = 90 * 86_400
CLOCK_SKEW_S = 26 * 3_600
"""A certificate counts this long before its first second, so that a joiner a day behind can link at once."""

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
    keep: Annotated[tuple[Key32, ...], Count(48)]


@dataclass(frozen=True, slots=True)
class EpochBody:
    """A commitment to a gate key; members take only a key that matches one."""

    commitment: Key32


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


@functools.lru_cache(maxsize=CERTIFICATES_CACHED_MAX)
def _open_untrusted(wire: bytes) -> tuple[SignedCertificate, CertificateBody]:
    signed = decode_untrusted(SignedCertificate, wire, bytes_max=CERTIFICATE_BYTES_MAX)
    return signed, decode_untrusted(CertificateBody, signed.body, bytes_max=700)


def certificate_body_untrusted(wire: bytes) -> CertificateBody | None:
    """Read what a certificate says, whoever signed it; None for anything unsound."""
    try:
        return _open_untrusted(wire)[1]
    except Malformed:
        return None


def _nobody(node: NodeId) -> OwnerId:
    """An owner id that only this machine has: whose it is, is not proven."""
    return OwnerId(content_id(b"unproven owner" + node, size=16))


@functools.lru_cache(maxsize=CERTIFICATES_CACHED_MAX)
def _certified(wire: bytes, issuer_key: bytes, mesh: MeshId) -> Certified | None:
    """Check a certificate's signatures; None where the issuer's does not hold.

    The same bytes under the same key always come out the same, and every fold looks at every certificate again.
    """
    signed, body = _open_untrusted(wire)
    if not verify(issuer_key, Context.CERTIFICATE, mesh, signed.body, signed.signature):
        return None
    node = node_id(body.public_key)
    proven = signed.owner_signature is not None and verify(
        body.owner_key, Context.OWNER, mesh, body.lineage + body.public_key, signed.owner_signature
    )
    owner = owner_id(body.owner_key) if proven else _nobody(node)
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


def _expulsion(body: bytes) -> Expulsion | None:
    try:
        return decode_untrusted(Expulsion, body, bytes_max=2048)
    except Malformed:
        return None


class Members:
    """Who is in the mesh: a fold over the control lane, never changed in place.

    Args:
        genesis: The founding statement, decoded.
        mesh: Its id.
        records: Admitted records of the control lane, any order; kinds other than certificates and expulsions are
            passed over.
    """

    def __init__(self, genesis: Genesis, mesh: MeshId, records: Iterable[Record] = ()) -> None:
        self.genesis = genesis
        self.mesh = mesh
        self.root = node_id(genesis.root_key)
        held = sorted((r for r in records if r.body), key=lambda r: r.order)
        certificates = [r for r in held if r.kind == CERTIFICATE]
        self.expelled_lineages: set[bytes] = set()
        self._keep: dict[bytes, set[bytes]] = {}
        self.certificates: dict[NodeId, Certified] = {}
        self.frozen: set[NodeId] = set()
        # The root's word first: it makes the admins; then who of them is out; then what the admins say of others.
        for record in certificates:
            if record.author == self.root:
                self._take_certificate(record)
        self._take_expulsions([r for r in held if r.kind == EXPULSION])
        for record in certificates:
            if record.author != self.root:
                self._take_certificate(record)

    def _take_certificate(self, record: Record) -> None:
        """Add one certificate; where two disagree about a machine's owner, the machine is frozen and shown so.

        It counts in its issuer's own record only, so that nobody brings back an older one under a newer version.
        """
        try:
            certified = self._chain_checked(record.body)
        except (Malformed, Refused):
            return
        if certified.issuer != record.author:
            return
        other = self.certificates.get(certified.node)
        if other is None or (self._is_orphaned(other) and not self._is_orphaned(certified)):
            self.certificates[certified.node] = certified
            return
        if self._is_orphaned(certified) or other.issuer == self.root != certified.issuer:
            return  # An expelled admin's word changes nothing; what the root said of a machine, no admin changes.
        if other.owner != certified.owner:
            self.frozen.add(certified.node)
            if (other.owner_proven, other.fingerprint) > (certified.owner_proven, certified.fingerprint):
                return
        self.certificates[certified.node] = certified

    def _take_expulsions(self, records: list[Record]) -> None:
        """Take the root's expulsions, and those of admins it did not expel.

        Two admins who expel each other are both out, else stores would end apart by order of arrival; the root has the
        last word. A keep list counts for certificates of the lineage it is about, and only where its author is not out.
        """
        read = [(record.author, _expulsion(record.body)) for record in records]
        said = [(author, expulsion) for author, expulsion in read if expulsion is not None]
        out_by_root = {expulsion.lineage for author, expulsion in said if author == self.root}
        counted = [
            (author, expulsion)
            for author, expulsion in said
            if author == self.root or (self._is_admin(author) and self._lineage(author) not in out_by_root)
        ]
        self.expelled_lineages = {expulsion.lineage for _, expulsion in counted}
        for author, expulsion in counted:
            if author == self.root or self._lineage(author) not in self.expelled_lineages:
                self._keep.setdefault(expulsion.lineage, set()).update(expulsion.keep)

    def _is_admin(self, node: NodeId) -> bool:
        certified = self.certificates.get(node)
        return certified is not None and bool(certified.roles & Role.ADMIN)

    def _lineage(self, node: NodeId) -> bytes:
        certified = self.certificates.get(node)
        return certified.lineage if certified is not None else node

    def _is_orphaned(self, certified: Certified, issuer: Certified | None = None) -> bool:
        """Whether a certificate died with its expelled issuer; its exact bytes on a keep list save it."""
        if certified.issuer == self.root:
            return False
        lineage = issuer.lineage if issuer is not None else self._lineage(NodeId(certified.issuer))
        return lineage in self.expelled_lineages and certified.fingerprint not in self._keep.get(lineage, ())

    def _chain_checked(self, wire: bytes, extra: Certified | None = None) -> Certified:
        """Verify one certificate against the root, or against an admin who is known or given."""
        body = _open_untrusted(wire)[1]
        if body.issuer == self.root:
            key = self.genesis.root_key
        else:
            issuer = self.certificates.get(NodeId(body.issuer))
            if issuer is None and extra is not None and extra.node == body.issuer:
                issuer = extra
            if issuer is None:
                raise Refused("the certificate's issuer is not known here", reason="unknown_issuer")
            if issuer.issuer != self.root or not issuer.roles & Role.ADMIN or body.roles & Role.ADMIN:
                raise Refused("the certificate's issuer may not issue it", reason="bad_chain")
            key = issuer.public_key
        if body.not_after_s is None and not body.roles & Role.ADMIN:
            raise Refused("a certificate without an end is only for admins", reason="bad_chain")
        certified = _certified(wire, key, self.mesh)
        if certified is None:
            raise Refused("the certificate was not signed by its issuer in this mesh", reason="bad_signature")
        return certified

    def check_untrusted(self, chain: tuple[bytes, ...], *, now_s: int, me: NodeId) -> Certified:
        """Check what a peer shows of itself: the one place where a certificate becomes a right to a link.

        Args:
            chain: Its certificate first, its issuer's behind it (where that is not the root).
            now_s: This machine's wall clock.
            me: This machine, which never links to itself.

        Returns:
            The certificate's content.

        Raises:
            Malformed: Not certificates.
            Refused: Wrong mesh, chain, time or signature; expelled; or it is this machine itself.
        """
        if not 1 <= len(chain) <= CHAIN_MAX:
            raise Malformed("a chain has one or two certificates")
        issuer = self._chain_checked(chain[1]) if len(chain) > 1 else None
        certified = self._chain_checked(chain[0], issuer)
        if certified.node == me:
            raise Refused("that is this machine itself", reason="self")
        if self.is_out(certified, issuer if issuer is not None and issuer.node == certified.issuer else None):
            raise Refused(f"{certified.name} was expelled from this mesh", reason="expelled")
        if now_s + CLOCK_SKEW_S < certified.not_before_s:
            raise Refused("the certificate begins in the future; is a clock wrong?", reason="clock")
        if certified.not_after_s is not None and now_s > certified.not_after_s:
            raise Refused(f"the certificate of {certified.name} has expired", reason="expired")
        return certified

    def is_out(self, certified: Certified, issuer: Certified | None = None) -> bool:
        """Whether a machine's lineage was expelled, or its certificate died with its issuer.

        Args:
            certified: The machine's certificate.
            issuer: Its issuer's, where that came along and may not be known here.
        """
        if certified.lineage in self.expelled_lineages or certified.node in self.expelled_lineages:
            return True
        return self._is_orphaned(certified, issuer)

    def author(self, node: NodeId) -> Author | None:
        """Look up what the door must know of a record's author."""
        if node == self.root:
            return Author(self.genesis.root_key, Role(0), OwnerId(bytes(16)), root=True, expelled=False)
        certified = self.certificates.get(node)
        if certified is None:
            return None
        owner = _nobody(node) if node in self.frozen else certified.owner
        return Author(certified.public_key, certified.roles, owner, root=False, expelled=self.is_out(certified))

    def chain_of(self, node: NodeId) -> tuple[bytes, ...]:
        """The certificates a machine shows: its own, and its issuer's where that is not the root."""
        own = self.certificates[node]
        if own.issuer == self.root:
            return (own.wire,)
        return own.wire, self.certificates[NodeId(own.issuer)].wire


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
