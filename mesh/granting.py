"""The keys of a pairing, the checks of what is granted, the certificate: all of a join but its order of messages.

The order is in ``mesh.joining``. A code (``mesh.codebook``) only brings the joiner to a link; the join is then that link's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.clock import version_ms
from mesh.base.codec import Count, Size, decode_untrusted, encode
from mesh.base.crypto import (
    Context,
    Entropy,
    SigningKey,
    derive,
    digest,
    exchange,
    seal_once,
    unseal_once,
    verify,
)
from mesh.base.errors import PeerFault
from mesh.base.names import MeshId, clean_name, node_id, owner_id
from mesh.certificates import (
    LIFE_S,
    CertificateBody,
    Certified,
    EpochBody,
    Genesis,
    issue,
    mesh_id,
    sign_owner,
)
from mesh.handshake import gate_commitment
from mesh.invites import InviteBody, Key32, Name, OpenInvite, Signature
from mesh.kinds import CERTIFICATE, EPOCH, EXPULSION, POLICY, Role
from mesh.members import Members
from mesh.records import RECORD_BYTES_MAX, Record, Verdict, admit, parse_untrusted
from mesh.schemas import BODIES

GATES_MAX = 8
SNAPSHOT_MAX = 64
JOIN_MESSAGE_BYTES_MAX = 60_000


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What the joiner shows (J3)."""

    public_key: Key32
    name: Name
    owner_key: Key32 | None
    owner_signature: Signature | None
    signature: Signature


@dataclass(frozen=True, slots=True)
class JoinGrant:
    """What makes a member (J6).

    Attributes:
        certificate: The joiner's, as the record the issuer stored.
        fleet_key: The owner's symmetric key, only where the joiner is the issuer's own person.
        records: The control lane as the issuer holds it; the rest comes with the first link.
    """

    certificate: Annotated[bytes, Size(1, RECORD_BYTES_MAX)]
    gates: Annotated[tuple[Key32, ...], Count(GATES_MAX)]
    fleet_key: Key32 | None
    records: Annotated[tuple[Annotated[bytes, Size(1, RECORD_BYTES_MAX)], ...], Count(SNAPSHOT_MAX)]


class Exchange:
    """The keys both sides of a pairing derive from the transcript.

    Args:
        seed: What only the two sides know: the link's secret.
        secret: This side's ephemeral key.
        peer: The other side's.
        messages: Everything said so far, in order.
    """

    def __init__(self, seed: bytes, secret: bytes, peer: bytes, *messages: bytes) -> None:
        self.transcript = digest(*messages)
        self._root = digest(exchange(secret, peer), self.transcript, key=seed, person=b"hivemesh-join")

    def derive(self, label: str) -> bytes:
        """Derive 32 bytes bound to everything said so far."""
        return derive(self._root, label, self.transcript)

    def seal(self, label: str, plain: bytes) -> bytes:
        """Seal the next message."""
        sealed = seal_once(self.derive(label), plain, self.transcript)
        self.transcript = digest(self.transcript, sealed)
        return sealed

    def unseal_untrusted(self, label: str, sealed: bytes) -> bytes:
        """Open the next message.

        Raises:
            PeerFault: Too large.
            BadSeal: Not made by who holds the same seed, or changed.
        """
        if len(sealed) > JOIN_MESSAGE_BYTES_MAX:
            raise PeerFault("a pairing message is too large")
        plain = unseal_once(self.derive(label), sealed, self.transcript)
        self.transcript = digest(self.transcript, sealed)
        return plain


@dataclass(frozen=True, slots=True)
class Joined:
    """What a joiner has to keep, once J6 was checked."""

    mesh: MeshId
    genesis: bytes
    certified: Certified
    gates: tuple[bytes, ...]
    fleet_key: bytes | None
    records: tuple[Record, ...]
    issuer: Certified


class Joining:
    """What a joiner keeps, and its checks of what it is granted.

    Args:
        key: The joiner's fresh key.
        owner: The joiner's own owner key, used where the invite is for another person than the issuer.
        name: The joiner's display name.

    Attributes:
        invite: What was promised; from the link.
        exchange: The keys, once both sides have spoken.
    """

    def __init__(self, key: SigningKey, owner: SigningKey | None, name: str) -> None:
        self._key = key
        self._owner = owner
        self._name = name
        self.invite: InviteBody | None = None
        self.exchange: Exchange | None = None
        self._issuer: Certified | None = None
        self._genesis = b""

    @property
    def belongings(self) -> dict[str, SigningKey]:
        """The keys the joiner will hold."""
        assert self.invite is not None
        if self.invite.mine or self._owner is None:
            return {"node": self._key}
        return {"node": self._key, "owner": self._owner}

    def _take_issuer_untrusted(self, genesis_bytes: bytes, chain: tuple[bytes, ...], signature: bytes, before: bytes, now_s: int) -> Certified:
        """Check who the issuer is: of the mesh and with the key the invite names, proven over the transcript."""
        assert self.invite is not None
        mesh = MeshId(self.invite.mesh)
        if mesh_id(genesis_bytes) != mesh:
            raise PeerFault("the other side is of another mesh than the invite")
        if not verify(self.invite.issuer_key, Context.JOIN_RESPONDER, mesh, before, signature):
            raise PeerFault("the other side does not hold the key the invite names")
        genesis = decode_untrusted(Genesis, genesis_bytes, bytes_max=200)
        issuer = Members(genesis, mesh).check_untrusted(chain, now_s=now_s, me=node_id(self._key.public))
        if issuer.public_key != self.invite.issuer_key:
            raise PeerFault("the certificate shown is not the issuer's")
        self._issuer, self._genesis = issuer, genesis_bytes
        return issuer

    def finish_untrusted(self, sealed: bytes, *, now_ms: int) -> Joined:
        """Take J6; refuse anything that differs from what the invite promised.

        Raises:
            PeerFault, Refused: The grant is not what was promised, or its records do not hold.
        """
        assert self.exchange is not None
        assert self._issuer is not None
        assert self.invite is not None
        plain = self.exchange.unseal_untrusted("join grant", sealed)
        grant = decode_untrusted(JoinGrant, plain, bytes_max=JOIN_MESSAGE_BYTES_MAX)
        mesh = MeshId(self.invite.mesh)
        genesis = decode_untrusted(Genesis, self._genesis, bytes_max=200)
        records = _admitted_untrusted((*grant.records, grant.certificate), genesis, mesh, now_ms)
        own = Members(genesis, mesh, records).certificates.get(node_id(self._key.public))
        if own is None:
            raise PeerFault("the certificate granted does not hold")
        self._promised(own)
        _committed(grant.gates, records)
        if self.invite.mine != (grant.fleet_key is not None):
            raise PeerFault("the grant does not fit the invite: fleet key")
        return Joined(mesh, self._genesis, own, grant.gates, grant.fleet_key, records, self._issuer)

    def _promised(self, own: Certified) -> None:
        assert self._issuer is not None
        assert self.invite is not None
        owner = self._issuer.owner if self.invite.mine else None
        expected_key = self._owner.public if self._owner is not None and not self.invite.mine else None
        if own.public_key != self._key.public or own.roles != Role(self.invite.roles) or not own.owner_proven:
            raise PeerFault("the certificate granted is not the one the invite promised")
        if own.invite != self.invite.invite or (owner is not None and own.owner != owner):
            raise PeerFault("the certificate granted is not the one the invite promised")
        if self.invite.life_s is not None and (own.not_after_s is None or own.not_after_s - own.not_before_s > self.invite.life_s):
            raise PeerFault("the certificate granted lives longer than the invite promised")
        if expected_key is not None and own.owner != owner_id(expected_key):
            raise PeerFault("the certificate granted names another person")


class Issuing:
    """What every issuer keeps, and the end all forms of an invite share.

    Args:
        invite: The open invite, for one joiner.
        key: This machine's key, an admin's.
        owner: This person's owner key, to countersign machines of their own; None where this machine has none.
        genesis: As encoded.
        chain: This machine's certificates.
        entropy: Randomness.
    """

    def __init__(
        self,
        invite: OpenInvite,
        key: SigningKey,
        owner: SigningKey | None,
        genesis: bytes,
        chain: tuple[bytes, ...],
        *,
        entropy: Entropy,
    ) -> None:
        self.invite = invite
        self._key = key
        self._owner = owner
        self._genesis = genesis
        self._chain = chain
        self._entropy = entropy
        self.exchange: Exchange | None = None
        self.request: JoinRequest | None = None

    def _check_owner(self, request: JoinRequest) -> None:
        """A joiner brings an owner key of its own exactly where the invite is for another person, and proves it."""
        if self.invite.body.mine != (request.owner_key is None):
            raise PeerFault("the joiner's owner does not fit the invite")
        if request.owner_key is not None:
            lineage = node_id(request.public_key)
            signature = request.owner_signature or b""
            if not verify(request.owner_key, Context.OWNER, MeshId(self.invite.body.mesh), lineage + request.public_key, signature):
                raise PeerFault("the joiner does not hold the owner key it shows")

    def _certificate(self, now_s: int) -> bytes:
        assert self.request is not None
        body, request = self.invite.body, self.request
        mesh, lineage = MeshId(body.mesh), node_id(request.public_key)
        if request.owner_key is not None:
            owner_key, owner_signature = request.owner_key, request.owner_signature
        else:
            assert self._owner is not None, "an own-machine invite is minted only where the owner key is"
            owner_key = self._owner.public
            owner_signature = sign_owner(self._owner, mesh, lineage, request.public_key)
        certificate = CertificateBody(
            request.public_key,
            owner_key,
            lineage,
            clean_name(request.name),
            clean_name(body.owner_name, fallback="somebody"),
            body.roles,
            node_id(self._key.public),
            self._entropy(8),
            now_s,
            now_s + (body.life_s or LIFE_S),
            body.invite,
        )
        return issue(self._key, mesh, certificate, owner_signature)

    def grant(
        self, certificate: bytes, gates: tuple[bytes, ...], fleet_key: bytes | None, records: tuple[bytes, ...]
    ) -> bytes:
        """Make J6, after the certificate's record is durably stored."""
        assert self.exchange is not None
        return self.exchange.seal("join grant", encode(JoinGrant(certificate, gates, fleet_key, records)))


def _admitted_untrusted(
    wires: tuple[bytes, ...], genesis: Genesis, mesh: MeshId, now_ms: int
) -> tuple[Record, ...]:
    """Admit a control-lane snapshot, certificates first, so that authors are known before what they wrote."""
    parsed = [record for record in map(parse_untrusted, wires) if record.kind in (CERTIFICATE, EPOCH, POLICY, EXPULSION)]
    parsed.sort(key=lambda r: (r.kind != CERTIFICATE, r.author != node_id(genesis.root_key), r.order))
    admitted: list[Record] = []
    members = Members(genesis, mesh)
    for record in parsed:
        # A joiner's clock may be wrong by days; what the issuer holds is not held back from who joins it.
        at_ms = max(now_ms, version_ms(record.version))
        verdict = admit(record, mesh=mesh, author_of=members.author, bodies=BODIES, now_ms=at_ms)
        if verdict is Verdict.ADMIT:
            admitted.append(record)
            if record.kind == CERTIFICATE:
                members = Members(genesis, mesh, admitted)
    return tuple(admitted)


def _committed(gates: tuple[bytes, ...], records: tuple[Record, ...]) -> None:
    """Every gate key handed over must match an admin's signed commitment."""
    commitments = {
        decode_untrusted(EpochBody, record.body, bytes_max=128).commitment
        for record in records
        if record.kind == EPOCH and record.body
    }
    if not gates or any(gate_commitment(gate) not in commitments for gate in gates):
        raise PeerFault("a gate key handed over is not one an admin committed to")
