"""Three messages between two members: who is there, and the keys of the link.

The shape is SIGMA-I (as in TLS 1.3 and IKEv2) with a gate key mixed in. Message 1 rides in the websocket request, so
a stranger without the gate key gets a plain 404 and learns nothing; the gate key is no authentication, it only keeps
strangers from probing. Layouts before authentication are fixed. See docs/PROTOCOL.md for the bytes::

    M1 I->R  "HM1" min max hour e_I mac            mac = BLAKE2b-128(gate, all before it)
    M2 R->I  min max chosen e_R AEAD(kR; Proof)    Proof signs th1 = H(M1, M2 head)
    M3 I->R  AEAD(kI; Proof)                       Proof signs th2 = H(th1, M2);  th3 = H(th2, M3)

Source: Krawczyk, "SIGMA", 2003; decisions/0003.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from mesh.base.clock import Now
from mesh.base.codec import Count, Range, Size, decode_untrusted, encode
from mesh.base.crypto import (
    BadSeal,
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
from mesh.base.errors import PeerFault, Refused
from mesh.base.names import MeshId, NodeId
from mesh.certificates import Certified
from mesh.members import Expelled
from mesh.records import RECORD_BYTES_MAX

VERSION = 1
VERSION_MIN = 1
MAGIC = b"HM1"
HELLO_BYTES = len(MAGIC) + 2 + 4 + 32 + 16
REPLY_HEAD_BYTES = 3 + 32
PROOF_BYTES_MAX = 4096
REFUSAL_BYTES_MAX = RECORD_BYTES_MAX + 512
ROOT_RECORDS_MAX = 4
ROOT_RECORD_BYTES_MAX = 1800
ROOT_BYTES_MAX = 1800
"""Expulsions by the root that a proof carries, and their bytes together; older ones stay behind."""
HOURS_OFF_MAX = 36
"""Machines whose clocks differ by more than this do not link; a recorded first message dies with it."""
HELLO_CACHE_S = 120
HELLO_CACHE_MAX = 4096


class NotForUs(Refused):
    """The first message is not from somebody who holds a gate key of this mesh."""

    kind = "not_for_us"


class Incompatible(Refused):
    """The two versions of the protocol have none in common."""

    kind = "incompatible"


@dataclass(frozen=True, slots=True)
class Proof:
    """What a side shows inside the sealed part of its message.

    Attributes:
        chain: Its certificate, and its issuer's.
        boot: When the node started, and a few random bits; see ``mesh.copies``.
        counter: Rises with every handshake of one boot; two copies of one key cannot both keep it rising.
        signature: Over the transcript, the boot and the counter.
        root: Expulsions the root signed, newest first: they count before anybody is judged, since what an expelled admin
            said may be all that keeps two members apart.
    """

    chain: Annotated[tuple[Annotated[bytes, Size(1, 1024)], ...], Count(2)]
    boot: Annotated[bytes, Size(8, 8)]
    counter: Annotated[int, Range(0, 1 << 62)]
    signature: Annotated[bytes, Size(64, 64)]
    root: Annotated[tuple[Annotated[bytes, Size(1, ROOT_RECORD_BYTES_MAX)], ...], Count(ROOT_RECORDS_MAX)] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    """What a machine signed of itself in one handshake; whoever knows its key can check it, also later and elsewhere.

    Attributes:
        initiator: Whether it dialled.
        transcript: Hash of the handshake up to its proof.
        boot: From its proof, like the rest.
    """

    initiator: bool
    transcript: Annotated[bytes, Size(32, 32)]
    boot: Annotated[bytes, Size(8, 8)]
    counter: Annotated[int, Range(0, 1 << 62)]
    signature: Annotated[bytes, Size(64, 64)]

    def is_signed_by(self, public_key: bytes, mesh: MeshId) -> bool:
        """Whether a key made this statement in a mesh."""
        context = Context.LINK_INITIATOR if self.initiator else Context.LINK_RESPONDER
        return verify(public_key, context, mesh, _stated(self.transcript, self.boot, self.counter), self.signature)


def _stated(transcript: bytes, boot: bytes, counter: int) -> bytes:
    """The bytes a side signs."""
    return transcript + boot + counter.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a machine that showed itself is not let in, sealed with the keys of the handshake.

    Attributes:
        proof: The record that says so, where there is one.
    """

    reason: Annotated[str, Size(1, 32)]
    message: Annotated[str, Size(1, 400)]
    proof: Annotated[bytes, Size(0, RECORD_BYTES_MAX)]


class TurnedDown(Refused):
    """The machine that answered does not let this one in, and says why.

    Args:
        peer: The machine that said it.
        proof: The record that says so, unchecked, or empty.
    """

    def __init__(self, message: str, *, reason: str, peer: NodeId, proof: bytes) -> None:
        super().__init__(message, reason=reason, hint="see `hivemesh status` on both machines")
        self.peer = peer
        self.proof = proof


@dataclass(frozen=True, slots=True)
class Credentials:
    """What this machine shows of itself.

    Attributes:
        check: Turns a peer's chain into a checked certificate, or raises Refused or Malformed.
        counter: The next value of this boot's handshake counter.
        root: What the root said of who is out, to show.
        learn: Takes what a peer shows of that, anything; called before ``check``.
    """

    key: SigningKey
    mesh: MeshId
    chain: tuple[bytes, ...]
    boot: bytes
    counter: int
    check: Callable[[tuple[bytes, ...]], Certified]
    root: tuple[bytes, ...] = ()
    learn: Callable[[tuple[bytes, ...]], None] | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """The result of a handshake.

    Attributes:
        peer: The machine at the other end, proved by its key.
        send_key: This side's direction; 32 bytes.
        receive_key: The peer's direction; 32 bytes.
        salt: 16 bytes both sides know and nobody chose.
        statement: What the peer signed of itself, to be kept.
        gate: The commitment to the gate key it began with.
        refusal_key: What the peer's refusal is sealed with, where one comes in place of its first payload.
    """

    peer: NodeId
    peer_public_key: bytes
    peer_certificate: bytes
    peer_boot: bytes
    peer_counter: int
    statement: Statement
    send_key: bytes
    receive_key: bytes
    salt: bytes
    version: int
    gate: bytes = b""
    refusal_key: bytes = b""

    def refused_untrusted(self, data: bytes) -> TurnedDown:
        """Read what came in place of the peer's first payload.

        Raises:
            PeerFault: It is no refusal either.
        """
        if len(data) > REFUSAL_BYTES_MAX or not self.refusal_key:
            raise PeerFault("the peer's first message is neither a payload nor a refusal")
        refusal = decode_untrusted(Refusal, unseal_once(self.refusal_key, data, b""), bytes_max=REFUSAL_BYTES_MAX)
        return TurnedDown(refusal.message, reason=refusal.reason, peer=self.peer, proof=refusal.proof)


def _proof(credentials: Credentials, context: Context, transcript: bytes) -> bytes:
    signed = _stated(transcript, credentials.boot, credentials.counter)
    signature = credentials.key.sign(context, credentials.mesh, signed)
    return encode(Proof(credentials.chain, credentials.boot, credentials.counter, signature, credentials.root))


def _check_proof_untrusted(
    data: bytes, credentials: Credentials, context: Context, transcript: bytes
) -> tuple[Statement, Certified]:
    proof = decode_untrusted(Proof, data, bytes_max=PROOF_BYTES_MAX)
    if proof.root and credentials.learn is not None:
        credentials.learn(proof.root)
    certified = credentials.check(proof.chain)
    initiator = context is Context.LINK_INITIATOR
    statement = Statement(initiator, transcript, proof.boot, proof.counter, proof.signature)
    if not statement.is_signed_by(certified.public_key, credentials.mesh):
        raise PeerFault("the peer does not hold the key of its certificate", peer=certified.name)
    return statement, certified


def _session(
    root: bytes,
    transcript: bytes,
    statement: Statement,
    certified: Certified,
    *,
    initiator: bool,
    version: int,
    gate: bytes,
) -> Session:
    forth, back = derive(root, "initiator to responder", transcript), derive(root, "responder to initiator", transcript)
    salt = derive(root, "salt", transcript)[:16]
    return Session(
        certified.node,
        certified.public_key,
        certified.wire,
        statement.boot,
        statement.counter,
        statement,
        forth if initiator else back,
        back if initiator else forth,
        salt,
        version,
        gate_commitment(gate),
        derive(root, "refusal", transcript),
    )


class Initiator:
    """The dialling side.

    Args:
        credentials: This machine's.
        gate: The newest gate key.
        entropy: Randomness.
        now: The clock.
        expected: The only machine to accept, or None for any member.
    """

    def __init__(
        self, credentials: Credentials, gate: bytes, *, entropy: Entropy, now: Now, expected: NodeId | None
    ) -> None:
        self._credentials = credentials
        self._gate = gate
        self._expected = expected
        public, self._secret = exchange_keypair(entropy)
        hour = now.wall_ms // 3_600_000
        head = MAGIC + bytes((VERSION_MIN, VERSION)) + hour.to_bytes(4, "big") + public
        self.hello = head + _hello_mac(gate, head)

    def answer_untrusted(self, reply: bytes) -> tuple[bytes, Session]:
        """Take message 2; make message 3 and the session.

        Args:
            reply: Anything.

        Returns:
            Message 3 and the session.

        Raises:
            PeerFault: Not a reply to this hello, or the peer does not prove its key.
            Refused: The peer is not a member, expelled, expired, not the expected machine, or of another version.
        """
        if not REPLY_HEAD_BYTES < len(reply) <= REPLY_HEAD_BYTES + PROOF_BYTES_MAX + 16:
            raise PeerFault("the answer to the hello has the wrong length")
        head, sealed = reply[:REPLY_HEAD_BYTES], reply[REPLY_HEAD_BYTES:]
        version = _agreed_untrusted(head[0], head[1], head[2])
        first = digest(self.hello, head)
        root = digest(exchange(self._secret, head[3:]), first, key=self._gate, person=b"hivemesh-link")
        plain = unseal_once(derive(root, "responder proof", first), sealed, first)
        statement, certified = _check_proof_untrusted(plain, self._credentials, Context.LINK_RESPONDER, first)
        if self._expected is not None and certified.node != self._expected:
            raise Refused(f"another machine answered there: {certified.name}", reason="other_machine")
        second = digest(first, reply)
        own = _proof(self._credentials, Context.LINK_INITIATOR, second)
        closing = seal_once(derive(root, "initiator proof", second), own, second)
        third = digest(second, closing)
        session = _session(root, third, statement, certified, initiator=True, version=version, gate=self._gate)
        return closing, session


class HelloCache:
    """The ephemeral keys seen in the last two minutes, so that a recorded hello is not answered again."""

    def __init__(self) -> None:
        self._seen: dict[bytes, float] = {}

    def is_new(self, ephemeral: bytes, now: Now) -> bool:
        """Note a key; False where it was seen already. Beyond the bound the oldest is forgotten."""
        for key in [key for key, at in self._seen.items() if at + HELLO_CACHE_S < now.steady_s]:
            del self._seen[key]
        if ephemeral in self._seen:
            return False
        if len(self._seen) >= HELLO_CACHE_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[ephemeral] = now.steady_s
        return True


class Responder:
    """The side that was dialled.

    Args:
        credentials: This machine's.
        gates: Gate keys a hello may be made with, newest first.
        seen: Shared by all responders of this node.
        entropy: Randomness.
        now: The clock.
    """

    def __init__(
        self, credentials: Credentials, gates: Sequence[bytes], seen: HelloCache, *, entropy: Entropy, now: Now
    ) -> None:
        self._credentials = credentials
        self._gates = gates
        self._seen = seen
        self._entropy = entropy
        self._now = now
        self._root = self._transcript = b""
        self._version = 0
        self._gate = b""
        self.refusal: bytes | None = None

    def accept_untrusted(self, hello: bytes) -> bytes:
        """Take message 1; make message 2.

        Args:
            hello: Anything.

        Returns:
            Message 2.

        Raises:
            NotForUs: Not made with a gate key of this mesh, replayed, or from a clock too far off.
            Incompatible: No common version.
            PeerFault: The key in it is unusable.
        """
        gate = self._gate = self._gate_of(hello)
        public = hello[9:41]
        if not self._seen.is_new(public, self._now):
            raise NotForUs("a hello was sent twice", reason="replay")
        version = min(VERSION, hello[4])
        if version < VERSION_MIN or version < hello[3]:
            raise Incompatible(
                f"the peer speaks versions {hello[3]} to {hello[4]}, this machine {VERSION_MIN} to {VERSION}",
                reason="version",
                hint="update hivemesh on the older machine",
            )
        mine, secret = exchange_keypair(self._entropy)
        head = bytes((VERSION_MIN, VERSION, version)) + mine
        first = digest(hello, head)
        root = digest(exchange(secret, public), first, key=gate, person=b"hivemesh-link")
        own = _proof(self._credentials, Context.LINK_RESPONDER, first)
        reply = head + seal_once(derive(root, "responder proof", first), own, first)
        self._root, self._transcript, self._version = root, digest(first, reply), version
        return reply

    def _gate_of(self, hello: bytes) -> bytes:
        if len(hello) != HELLO_BYTES or hello[:3] != MAGIC:
            raise NotForUs("not a hello of this mesh", reason="not_for_us")
        hour = int.from_bytes(hello[5:9], "big")
        if abs(hour - self._now.wall_ms // 3_600_000) > HOURS_OFF_MAX:
            raise NotForUs("the hello's clock is too far off", reason="clock")
        for gate in self._gates:
            if same(_hello_mac(gate, hello[:41]), hello[41:]):
                return gate
        raise NotForUs("not a hello of this mesh", reason="not_for_us")

    def finish_untrusted(self, closing: bytes) -> Session:
        """Take message 3; the session exists only now.

        Args:
            closing: Anything.

        Returns:
            The session.

        Raises:
            PeerFault: The peer does not prove its key.
            Refused: Not a member, expelled or expired; ``refusal`` is then what to send to say so.
        """
        assert self._root, "message 1 comes first"
        if len(closing) > PROOF_BYTES_MAX + 16:
            raise PeerFault("the closing message is too large")
        second = self._transcript
        try:
            plain = unseal_once(derive(self._root, "initiator proof", second), closing, second)
        except BadSeal:
            raise PeerFault("the closing message of the handshake does not open") from None
        third = digest(second, closing)
        try:
            statement, certified = _check_proof_untrusted(plain, self._credentials, Context.LINK_INITIATOR, second)
        except Refused as refused:
            proved = refused.proof if isinstance(refused, Expelled) else b""
            said = encode(Refusal(refused.reason, refused.message[:100], proved))
            self.refusal = seal_once(derive(self._root, "refusal", third), said, b"")
            raise
        return _session(
            self._root, third, statement, certified, initiator=False, version=self._version, gate=self._gate
        )


def _hello_mac(gate: bytes, head: bytes) -> bytes:
    return digest(head, size=16, key=gate, person=b"hivemesh-hello")


def _agreed_untrusted(low: int, high: int, chosen: int) -> int:
    """Check that the responder chose the highest common version, as both sides compute it."""
    if chosen != min(VERSION, high) or chosen < VERSION_MIN or chosen < low:
        raise Incompatible(
            f"the peer speaks versions {low} to {high}, this machine {VERSION_MIN} to {VERSION}",
            reason="version",
            hint="update hivemesh on the older machine",
        )
    return chosen


def gate_commitment(gate: bytes) -> bytes:
    """Commit to a gate key without showing it."""
    return digest(gate, person=b"hivemesh-gate")


def discovery_tag(gate: bytes, now: Now) -> bytes:
    """The 8-byte hint members announce on the LAN in this hour; it proves nothing."""
    hour = now.wall_ms // 3_600_000
    return digest(hour.to_bytes(4, "big"), size=8, key=gate, person=b"hivemesh-lan")
