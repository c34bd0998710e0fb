"""Two machines with one identity: found by what both of them signed, never by what a third one says.

A machine signs its boot in every handshake (:class:`mesh.handshake.Statement`) and in every presence. A boot id begins
with the time of its start, which is later than everything any earlier boot of that home signed (``node.mark``). So each
signed thing says "this boot was alive from its start until now", and the order in which such things arrive does not
matter:

- a boot that is alive after another one began is another machine; a restart, or a restored backup, begins after what was before;
- within one boot the number of the handshake and the time since the start rise together; a machine forked while it ran
  (a copied virtual machine) has the same boot, and soon signs two handshakes of one number, or an earlier number later;
- two presences of one version that differ were written by two machines.

Two such things are a proof that anybody can check, whoever carries it: record kind 8. Nobody without the key can make one.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from mesh.base.clock import version_ms
from mesh.base.codec import Count, Malformed, Size, decode_untrusted, encode
from mesh.base.crypto import SIGNATURE_BYTES, Context, Entropy, verify
from mesh.base.names import MeshId, NodeId, node_id
from mesh.handshake import Statement
from mesh.kinds import COPY_PROOF, PRESENCE
from mesh.presence import read_untrusted
from mesh.records import Record, parse_untrusted

PROOF_BODY_BYTES_MAX = 2560
PRESENCE_WIRE_BYTES_MAX = 1200
OVERLAP_MS_MIN = 1_000
"""A boot that is alive for less than this after another one began is taken for one machine whose clock was set."""
BOOTS_KEPT_MAX = 4
"""Boots of one machine whose last sign is kept; beyond, the one heard of longest ago is forgotten."""
HANDSHAKES_KEPT_MAX = 16
"""Handshakes of one machine that are kept to be compared; beyond, the oldest is forgotten."""
MACHINES_KEPT_MAX = 4096
"""Machines whose signs are kept; beyond, the one not heard of longest is forgotten."""
PROOFS_CACHED_MAX = 256
"""Proofs whose signatures are not checked again at the next look; beyond, the least used is checked anew."""


def make_boot(start_ms: int, entropy: Entropy) -> bytes:
    """Make the id of a boot: six bytes of when it began, two random ones.

    Args:
        start_ms: Wall clock in milliseconds, later than everything earlier boots of this home signed.
        entropy: Randomness.
    """
    return start_ms.to_bytes(6, "big") + entropy(2)


def boot_start_ms(boot: bytes) -> int:
    """When a boot began, by the clock of its machine."""
    return int.from_bytes(boot[:6], "big")


def make_counter(elapsed_s: float, number: int) -> int:
    """Make the counter of a handshake: seconds since the boot began in the upper bits, its number in the lower 32."""
    return (int(elapsed_s) & 0x3FFFFFFF) << 32 | (number & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class ProofBody:
    """Two things one key signed that one machine cannot have signed; exactly two in all.

    Attributes:
        public_key: The key of both.
        handshakes: What it signed in handshakes.
        presences: Records of its presence, as they travelled.
    """

    public_key: Annotated[bytes, Size(32, 32)]
    handshakes: Annotated[tuple[Statement, ...], Count(2)]
    presences: Annotated[tuple[Annotated[bytes, Size(1, PRESENCE_WIRE_BYTES_MAX)], ...], Count(2)]


@dataclass(frozen=True, slots=True)
class Sign:
    """One signed sign of life of a boot.

    Attributes:
        end_ms: Until when it shows the boot alive.
        source: The handshake's statement or the presence's record.
    """

    boot: bytes
    end_ms: int
    source: Statement | Record

    @property
    def start_ms(self) -> int:
        """When the boot began."""
        return boot_start_ms(self.boot)


def sign_of(source: Statement | Record) -> Sign | None:
    """Read a statement or a presence as a sign of life; None for a record that is no presence."""
    if isinstance(source, Statement):
        start_ms = boot_start_ms(source.boot)
        return Sign(source.boot, start_ms + (source.counter >> 32) * 1000, source)
    said = read_untrusted(source) if source.kind == PRESENCE else None
    if said is None:
        return None
    return Sign(said.boot, max(boot_start_ms(said.boot), version_ms(source.version)), source)


def conflict(one: Sign, other: Sign) -> bool:
    """Decide whether two signs of one key cannot come from one machine; their order does not matter."""
    if one.boot != other.boot:
        first, second = sorted((one, other), key=lambda sign: (sign.start_ms, -sign.end_ms))
        return first.end_ms - second.start_ms >= OVERLAP_MS_MIN
    if isinstance(one.source, Statement) and isinstance(other.source, Statement):
        return _forked(one.source, other.source)
    if isinstance(one.source, Record) and isinstance(other.source, Record):
        return one.source.version == other.source.version and one.source.record_id != other.source.record_id
    return False


def _forked(one: Statement, other: Statement) -> bool:
    first, second = sorted((one, other), key=lambda s: s.counter & 0xFFFFFFFF)
    if first.counter & 0xFFFFFFFF == second.counter & 0xFFFFFFFF:
        return (first.transcript, first.counter) != (second.transcript, second.counter)
    return first.counter >> 32 > second.counter >> 32


@dataclass(slots=True)
class _Seen:
    """The signs of one machine that are kept."""

    lasting: dict[bytes, Sign] = field(default_factory=dict)
    handshakes: deque[Sign] = field(default_factory=lambda: deque(maxlen=HANDSHAKES_KEPT_MAX))

    def add(self, sign: Sign) -> Sign | None:
        """Keep a sign; gives one kept before that it cannot stand beside."""
        against = next((kept for kept in (*self.lasting.values(), *self.handshakes) if conflict(kept, sign)), None)
        held = self.lasting.get(sign.boot)
        if held is None or sign.end_ms >= held.end_ms:
            self.lasting[sign.boot] = sign
        if len(self.lasting) > BOOTS_KEPT_MAX:
            del self.lasting[min(self.lasting, key=lambda boot: self.lasting[boot].end_ms)]
        if isinstance(sign.source, Statement):
            self.handshakes.append(sign)
        return against


class Witness:
    """What this node saw other machines sign of themselves."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, _Seen] = OrderedDict()

    def see(self, public_key: bytes, source: Statement | Record) -> ProofBody | None:
        """Take one signed thing, its signature checked already.

        Args:
            public_key: Whose signature it bears.
            source: A statement from a handshake, or a presence.

        Returns:
            The proof, where it conflicts with something seen before.
        """
        sign = sign_of(source)
        if sign is None:
            return None
        seen = self._seen.setdefault(public_key, _Seen())
        self._seen.move_to_end(public_key)
        if len(self._seen) > MACHINES_KEPT_MAX:
            self._seen.popitem(last=False)
        against = seen.add(sign)
        return None if against is None else _proof(public_key, against.source, source)


def _proof(public_key: bytes, *sources: Statement | Record) -> ProofBody:
    handshakes = tuple(s for s in sources if isinstance(s, Statement))
    return ProofBody(public_key, handshakes, tuple(s.wire for s in sources if isinstance(s, Record)))


def read_proof_untrusted(body: bytes) -> ProofBody:
    """Read the shape of a proof.

    Raises:
        Malformed: Not two signed things.
    """
    proof = decode_untrusted(ProofBody, body, bytes_max=PROOF_BODY_BYTES_MAX)
    if len(proof.handshakes) + len(proof.presences) != 2:
        raise Malformed("a proof of a copy holds two signed things")
    return proof


@functools.lru_cache(maxsize=PROOFS_CACHED_MAX)
def proven_untrusted(body: bytes, mesh: MeshId) -> tuple[bytes, bytes] | None:
    """Check a proof by the two signatures inside, whoever carried it.

    Args:
        body: The body of a record of kind 8.
        mesh: This mesh.

    Returns:
        The two boots it shows, equal for a fork; None where it proves nothing.
    """
    try:
        proof = read_proof_untrusted(body)
        records = [parse_untrusted(wire) for wire in proof.presences]
    except Malformed:
        return None
    if not all(statement.is_signed_by(proof.public_key, mesh) for statement in proof.handshakes):
        return None
    if not all(_is_presence_of(record, proof.public_key, mesh) for record in records):
        return None
    sources: list[Statement | Record] = [*proof.handshakes, *records]
    signs = [sign for source in sources if (sign := sign_of(source)) is not None]
    if len(signs) != 2 or not conflict(*signs):
        return None
    return signs[0].boot, signs[1].boot


def _is_presence_of(record: Record, public_key: bytes, mesh: MeshId) -> bool:
    if record.kind != PRESENCE or record.author != node_id(public_key):
        return False
    head, signature = record.wire[:-SIGNATURE_BYTES], record.wire[-SIGNATURE_BYTES:]
    return verify(public_key, Context.RECORD, mesh, head, signature)


def encode_proof(proof: ProofBody) -> bytes:
    """Write a proof as the body of its record."""
    return encode(proof)


def copied(records: Iterable[Record], mesh: MeshId) -> dict[NodeId, int]:
    """Fold the proofs held: each machine that runs twice, to the newest version of a proof of it.

    Args:
        records: Admitted records of kind 8, by anybody; others are passed over.
        mesh: This mesh.
    """
    found: dict[NodeId, int] = {}
    for record in records:
        if record.kind == COPY_PROOF and record.body and proven_untrusted(record.body, mesh) is not None:
            node = NodeId(record.key)
            found[node] = max(found.get(node, 0), record.version)
    return found
