"""The pairing exchange: six messages, both sides pure.

It has the handshake's shape, with the invite's secret in place of the gate key::

    J1 I->R  "HJ1" version invite e_I mac(seed)
    J2 R->I  e_R
    J3 I->R  AEAD{joiner's key, name, owner key and its signature, Sig}
    J4 R->I  AEAD{genesis, issuer's chain, Sig}          the joiner can now show mesh, issuer, owner, roles
    J5 I->R  AEAD{}                                      "go on": only now a use is spent
    J6 R->I  AEAD{certificate, gate keys, fleet key, control lane}
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
    exchange_keypair,
    same,
    seal_once,
    unseal_once,
    verify,
)
from mesh.base.errors import PeerFault
from mesh.base.names import MeshId, clean_name, node_id, owner_id
from mesh.certificates import CertificateBody, Certified, EpochBody, Genesis, issue, mesh_id, sign_owner
from mesh.handshake import gate_commitment
from mesh.invites import VERSION, BadInvite, InviteBody, Key32, Name, OpenInvite, Signature
from mesh.kinds import CERTIFICATE, EPOCH, EXPULSION, POLICY, Role
from mesh.members import Members
from mesh.records import RECORD_BYTES_MAX, Record, Verdict, admit, parse_untrusted
from mesh.schemas import BODIES

MAGIC = b"HJ1"
GATES_MAX = 8
SNAPSHOT_MAX = 64

@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What the joiner shows (J3)."""

    public_key: Key32
    name: Name
    owner_key: Key32 | None
    owner_signature: Signature | None
    signature: Signature


@dataclass(frozen=True, slots=True)
class JoinOffer:
    """What the issuer shows (J4)."""

    genesis: Annotated[bytes, Size(1, 200)]
    chain: Annotated[tuple[Annotated[bytes, Size(1, 1024)], ...], Count(2)]
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


_HELLO_BYTES = len(MAGIC) + 1 + 16 + 32 + 16
JOIN_MESSAGE_BYTES_MAX = 60_000


def _mac(seed: bytes, head: bytes) -> bytes:
    return digest(head, size=16, key=seed, person=b"hivemesh-join")


def invite_of_untrusted(hello: bytes) -> bytes:
    """Read which invite a J1 is for.

    Raises:
        PeerFault: Not a J1.
    """
    if len(hello) != _HELLO_BYTES or hello[:3] != MAGIC or hello[3] != VERSION:
        raise PeerFault("not a request to join")
    return hello[4:20]


class _Exchange:
    """The keys both sides of a pairing derive from the transcript."""

    def __init__(self, seed: bytes, secret: bytes, peer: bytes, hello: bytes, reply: bytes) -> None:
        transcript = digest(hello, reply)
        self.root = digest(exchange(secret, peer), transcript, key=seed, person=b"hivemesh-join")
        self.transcript = transcript

    def seal(self, label: str, plain: bytes) -> bytes:
        sealed = seal_once(derive(self.root, label, self.transcript), plain, self.transcript)
        self.transcript = digest(self.transcript, sealed)
        return sealed

    def unseal(self, label: str, sealed: bytes) -> bytes:
        if len(sealed) > JOIN_MESSAGE_BYTES_MAX:
            raise PeerFault("a pairing message is too large")
        plain = unseal_once(derive(self.root, label, self.transcript), sealed, self.transcript)
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


class Joiner:
    """The side that holds a link.

    Args:
        invite: From :func:`read_link_untrusted`.
        key: The joiner's fresh key.
        owner: The joiner's owner key, where the invite is for another person than the issuer.
        name: The joiner's display name.
        entropy: Randomness.
    """

    def __init__(
        self, invite: InviteBody, key: SigningKey, owner: SigningKey | None, name: str, *, entropy: Entropy
    ) -> None:
        self._invite = invite
        self._key = key
        self._owner = owner
        self._name = name
        public, self._secret = exchange_keypair(entropy)
        head = MAGIC + bytes((VERSION,)) + invite.invite + public
        self.hello = head + _mac(invite.seed, head)
        self._exchange: _Exchange | None = None
        self._issuer: Certified | None = None
        self._genesis = b""

    def request_untrusted(self, reply: bytes) -> bytes:
        """Take J2, make J3.

        Raises:
            PeerFault: Not a reply.
        """
        if len(reply) != 32:
            raise PeerFault("the answer to the request to join has the wrong length")
        ours = self._exchange = _Exchange(self._invite.seed, self._secret, reply, self.hello, reply)
        mesh = MeshId(self._invite.mesh)
        me = node_id(self._key.public)
        owner_key = owner_signature = None
        if self._owner is not None:
            owner_key, owner_signature = self._owner.public, sign_owner(self._owner, mesh, me, self._key.public)
        signature = self._key.sign(Context.JOIN_INITIATOR, mesh, ours.transcript)
        request = JoinRequest(self._key.public, self._name, owner_key, owner_signature, signature)
        return ours.seal("join request", encode(request))

    def confirm_untrusted(self, sealed: bytes, *, now_s: int) -> tuple[bytes, Certified]:
        """Take J4, make J5.

        Args:
            sealed: Anything.
            now_s: Wall clock.

        Returns:
            J5, and who issued the invite, for the person to see.

        Raises:
            PeerFault, Refused: The other side is not the issuer the link names, or not of that mesh.
        """
        assert self._exchange is not None
        before = self._exchange.transcript
        offer = decode_untrusted(JoinOffer, self._exchange.unseal("join offer", sealed), bytes_max=JOIN_MESSAGE_BYTES_MAX)
        mesh = MeshId(self._invite.mesh)
        if mesh_id(offer.genesis) != mesh:
            raise PeerFault("the other side is of another mesh than the invite")
        if not verify(self._invite.issuer_key, Context.JOIN_RESPONDER, mesh, before, offer.signature):
            raise PeerFault("the other side does not hold the key the invite names")
        genesis = decode_untrusted(Genesis, offer.genesis, bytes_max=200)
        members = Members(genesis, mesh)
        issuer = members.check_untrusted(offer.chain, now_s=now_s, me=node_id(self._key.public))
        if issuer.public_key != self._invite.issuer_key:
            raise PeerFault("the certificate shown is not the issuer's")
        self._issuer, self._genesis = issuer, offer.genesis
        return self._exchange.seal("join confirmation", b""), issuer

    def finish_untrusted(self, sealed: bytes, *, now_ms: int) -> Joined:
        """Take J6; refuse anything that differs from what the invite promised.

        Raises:
            PeerFault, Refused: The grant is not what was promised, or its records do not hold.
        """
        assert self._exchange is not None
        assert self._issuer is not None
        plain = self._exchange.unseal("join grant", sealed)
        grant = decode_untrusted(JoinGrant, plain, bytes_max=JOIN_MESSAGE_BYTES_MAX)
        mesh = MeshId(self._invite.mesh)
        genesis = decode_untrusted(Genesis, self._genesis, bytes_max=200)
        records = _admitted_untrusted((*grant.records, grant.certificate), genesis, mesh, now_ms)
        own = Members(genesis, mesh, records).certificates.get(node_id(self._key.public))
        if own is None:
            raise PeerFault("the certificate granted does not hold")
        self._promised(own)
        _committed(grant.gates, records)
        if self._invite.mine != (grant.fleet_key is not None):
            raise PeerFault("the grant does not fit the invite: fleet key")
        return Joined(mesh, self._genesis, own, grant.gates, grant.fleet_key, records, self._issuer)

    def _promised(self, own: Certified) -> None:
        assert self._issuer is not None
        owner = self._issuer.owner if self._invite.mine else None
        expected_key = self._owner.public if self._owner is not None else None
        if own.public_key != self._key.public or own.roles != Role(self._invite.roles) or not own.owner_proven:
            raise PeerFault("the certificate granted is not the one the invite promised")
        if own.invite != self._invite.invite or (owner is not None and own.owner != owner):
            raise PeerFault("the certificate granted is not the one the invite promised")
        if expected_key is not None and own.owner != owner_id(expected_key):
            raise PeerFault("the certificate granted names another person")


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


class Issuer:
    """The side that minted the link, for one joiner.

    Args:
        invite: The open invite the J1 names.
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
        self._exchange: _Exchange | None = None
        self.request: JoinRequest | None = None

    def accept_untrusted(self, hello: bytes, *, now_s: int) -> bytes:
        """Take J1, make J2.

        Raises:
            PeerFault: Not made with the invite's secret.
            BadInvite: Expired or used up.
        """
        body = self.invite.body
        if invite_of_untrusted(hello) != body.invite or not same(_mac(body.seed, hello[:-16]), hello[-16:]):
            raise PeerFault("the request to join does not prove the invite")
        if now_s > body.expires_s:
            raise BadInvite("this invite has expired", reason="expired", hint="make a new one: hivemesh invite")
        if self.invite.uses_left < 1:
            raise BadInvite("this invite was used already", reason="used", hint="make a new one: hivemesh invite")
        public, secret = exchange_keypair(self._entropy)
        self._exchange = _Exchange(body.seed, secret, hello[20:52], hello, public)
        return public

    def offer_untrusted(self, sealed: bytes) -> tuple[bytes, JoinRequest]:
        """Take J3, make J4.

        Raises:
            PeerFault: The joiner does not prove its key or, where it must bring one, its owner key.
        """
        assert self._exchange is not None
        mesh = MeshId(self.invite.body.mesh)
        before = self._exchange.transcript
        plain = self._exchange.unseal("join request", sealed)
        request = decode_untrusted(JoinRequest, plain, bytes_max=JOIN_MESSAGE_BYTES_MAX)
        if not verify(request.public_key, Context.JOIN_INITIATOR, mesh, before, request.signature):
            raise PeerFault("the joiner does not hold the key it shows")
        if self.invite.body.mine != (request.owner_key is None):
            raise PeerFault("the joiner's owner does not fit the invite")
        if request.owner_key is not None:
            lineage = node_id(request.public_key)
            signature = request.owner_signature or b""
            if not verify(request.owner_key, Context.OWNER, mesh, lineage + request.public_key, signature):
                raise PeerFault("the joiner does not hold the owner key it shows")
        self.request = request
        signature = self._key.sign(Context.JOIN_RESPONDER, mesh, self._exchange.transcript)
        return self._exchange.seal("join offer", encode(JoinOffer(self._genesis, self._chain, signature))), request

    def certificate_untrusted(self, sealed: bytes, *, now_s: int, life_s: int) -> bytes:
        """Take J5, sign the joiner's certificate; the caller spends one use in the transaction that stores it.

        Raises:
            PeerFault: Not the confirmation.
        """
        assert self._exchange is not None
        assert self.request is not None
        self._exchange.unseal("join confirmation", sealed)
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
            now_s + life_s,
            body.invite,
        )
        return issue(self._key, mesh, certificate, owner_signature)

    def grant(
        self, certificate: bytes, gates: tuple[bytes, ...], fleet_key: bytes | None, records: tuple[bytes, ...]
    ) -> bytes:
        """Make J6, after the certificate's record is durably stored."""
        assert self._exchange is not None
        return self._exchange.seal("join grant", encode(JoinGrant(certificate, gates, fleet_key, records)))
