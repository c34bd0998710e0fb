"""Signed single-writer registers: make, read, admit, join, expire.

A record is ``head || signature``; its id is the hash of the head, since one author can make several valid signatures
of the same bytes. Per (author, kind, key) the greatest (version, id) stays, then per (author, kind) the greatest
``quota`` of them: a join that is associative, commutative and idempotent (tests/unit/mesh/test_records.py). An empty
body is a tombstone and counts like any other value. A record's end is a function of its version and its kind, so
whatever superseded a value outlives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from mesh.base.clock import FUTURE_MS_MAX, VERSION_MAX, version_ms
from mesh.base.codec import Malformed, Range, Size, decode_untrusted, encode
from mesh.base.crypto import SIGNATURE_BYTES, Context, SigningKey, content_id, verify
from mesh.base.errors import MeshError
from mesh.base.names import MeshId, NodeId, OwnerId, node_id
from mesh.kinds import (
    CERTIFICATE,
    EPOCH,
    EXPULSION,
    KINDS,
    SKEW_MS,
    KindRule,
    Role,
    Subject,
    may_author,
    rule_of,
)

BODY_BYTES_MAX = 3072
RECORD_BYTES_MAX = BODY_BYTES_MAX + 256
WEIGHED_BY_THE_FOLD = (CERTIFICATE, EPOCH, EXPULSION)
"""Kept also of expelled authors: what of it counts is the fold's to say, and it must have the same set everywhere."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the author signs."""

    kind: Annotated[int, Range(0, 65535)]
    author: Annotated[bytes, Size(16, 16)]
    key: Annotated[bytes, Size(0, 32)]
    version: Annotated[int, Range(1, VERSION_MAX)]
    body: Annotated[bytes, Size(0, BODY_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Record:
    """One version of one register, with the bytes it came in.

    Attributes:
        wire: ``head || signature``, exactly as sent.
        record_id: 32 bytes, the hash of the head.
    """

    kind: int
    author: NodeId
    key: bytes
    version: int
    body: bytes
    record_id: bytes
    wire: bytes

    @property
    def order(self) -> tuple[int, bytes]:
        """The total order of versions: greatest wins."""
        return self.version, self.record_id

    @property
    def register(self) -> tuple[bytes, int, bytes]:
        """The register this is a version of."""
        return self.author, self.kind, self.key


def _record(head: Head, head_bytes: bytes, signature: bytes) -> Record:
    return Record(
        head.kind,
        NodeId(head.author),
        head.key,
        head.version,
        head.body,
        content_id(head_bytes),
        head_bytes + signature,
    )


def make(key: SigningKey, mesh: MeshId, kind: int, register_key: bytes, version: int, body: bytes) -> Record:
    """Sign a new version of one of this author's registers.

    Args:
        key: The author's key.
        mesh: The mesh it is for.
        kind: A number of the table.
        register_key: At most 32 bytes.
        version: Greater than every version this author ever used.
        body: At most the kind's bytes; empty: a tombstone.

    Returns:
        The record.
    """
    head = Head(kind, node_id(key.public), register_key, version, body)
    head_bytes = encode(head)
    return _record(head, head_bytes, key.sign(Context.RECORD, mesh, head_bytes))


def parse_untrusted(wire: bytes) -> Record:
    """Read a record's shape; its signature and rights are :func:`admit`'s work.

    Args:
        wire: Anything.

    Returns:
        The record as it claims to be.

    Raises:
        Malformed: Not a record.
    """
    if len(wire) > RECORD_BYTES_MAX:
        raise Malformed("a record is too large")
    if len(wire) <= SIGNATURE_BYTES:
        raise Malformed("a record is too short")
    head_bytes, signature = wire[:-SIGNATURE_BYTES], wire[-SIGNATURE_BYTES:]
    head = decode_untrusted(Head, head_bytes, bytes_max=RECORD_BYTES_MAX)
    return _record(head, head_bytes, signature)


class Verdict(Enum):
    """What the door says to a record."""

    ADMIT = "admit"
    HOLD = "its version is too far in the future; it is offered again later"
    UNKNOWN_AUTHOR = "its author has no certificate here yet"
    EXPIRED = "its time is over"
    EXPELLED = "its author was expelled"
    FORGED = "its signature is not its author's"
    FORBIDDEN = "its author may not write this kind about that subject"
    UNSOUND = "its body breaks the kind's schema"


@dataclass(frozen=True, slots=True)
class Author:
    """What the door must know of a record's author.

    Attributes:
        root: Whether this is the mesh's root key.
        expelled: Whether its lineage was expelled.
    """

    public_key: bytes
    roles: Role
    owner: OwnerId
    root: bool
    expelled: bool


AuthorOf = Callable[[NodeId], Author | None]
BodyCheck = Callable[[bytes, bytes, int], NodeId | None]
"""(key, body, version in ms) -> the machine the record is about, None for the author itself; raises Malformed."""


def subject_of(author: NodeId, owner: OwnerId, about: NodeId | None, author_of: AuthorOf) -> Subject:
    """Relate an author to the machine its record is about."""
    if about is None or about == author:
        return Subject.SELF
    other = author_of(about)
    return Subject.SAME_OWNER if other is not None and other.owner == owner else Subject.OTHER


def expires_ms(rule: KindRule, version: int) -> int | None:
    """When a record of this kind and version ends, or None for never."""
    return None if rule.life_ms is None else version_ms(version) + rule.life_ms


def admit(
    record: Record, *, mesh: MeshId, author_of: AuthorOf, bodies: dict[int, BodyCheck], now_ms: int
) -> Verdict:
    """Decide whether a record may be stored, shown and passed on.

    Certificates' own times do not matter here: a record is judged on signature, chain and role, else stores would
    diverge when a certificate runs out (THREATS, "expiry makes stores diverge").

    Args:
        record: As parsed.
        mesh: This mesh.
        author_of: Looks up authors; the root is one of them.
        bodies: The schema of every kind in the table.
        now_ms: This machine's wall clock.

    Returns:
        ADMIT, or why not.
    """
    rule = rule_of(record.kind)
    early = _before_signature(record, rule, now_ms)
    if early is not None:
        return early
    author = author_of(record.author)
    if author is None:
        return Verdict.UNKNOWN_AUTHOR
    if author.expelled and record.kind not in WEIGHED_BY_THE_FOLD:
        return Verdict.EXPELLED
    head, signature = record.wire[:-SIGNATURE_BYTES], record.wire[-SIGNATURE_BYTES:]
    if not verify(author.public_key, Context.RECORD, mesh, head, signature):
        return Verdict.FORGED
    return judge_rights(record, author, author_of, bodies)


def _before_signature(record: Record, rule: KindRule, now_ms: int) -> Verdict | None:
    """The cheap checks: size and time."""
    if len(record.body) > rule.body_bytes_max:
        return Verdict.UNSOUND
    if rule.terminal:
        return None
    if version_ms(record.version) > now_ms + FUTURE_MS_MAX:
        return Verdict.HOLD
    end = expires_ms(rule, record.version)
    return Verdict.EXPIRED if end is not None and end + SKEW_MS < now_ms else None


def judge_rights(record: Record, author: Author, author_of: AuthorOf, bodies: dict[int, BodyCheck]) -> Verdict:
    """Decide what the table says of a record whose signature holds: at the door, and again in every fold.

    Roles change after a record was stored; what its author may no longer write no longer counts.
    """
    rule = rule_of(record.kind)
    about: NodeId | None = None
    if record.kind in KINDS and record.body:
        try:
            about = bodies[record.kind](record.key, record.body, version_ms(record.version))
        except MeshError:
            return Verdict.UNSOUND
    if not record.body:
        # A tombstone only ends what its author wrote. A terminal kind cannot end, and the mesh's own word is superseded,
        # never withdrawn: else an admin could make a machine a stranger without an expulsion anybody sees.
        allowed = not (rule.terminal or rule.root) and any(author.roles & role for role in rule.authors)
    elif author.root:
        allowed = rule.root
    else:
        allowed = may_author(rule, author.roles, subject_of(record.author, author.owner, about, author_of))
    return Verdict.ADMIT if allowed else Verdict.FORBIDDEN


def quota_group(kind: int) -> int:
    """Which records share one quota: every known kind for itself, all unknown ones together (-1)."""
    return kind if kind in KINDS else -1


def join(records: Iterable[Record]) -> dict[tuple[bytes, int, bytes], Record]:
    """Join any collection of admitted records to the store's content: the reference the SQL store is tested against.

    Args:
        records: In any order, with duplicates.

    Returns:
        Register to its surviving version.
    """
    newest: dict[tuple[bytes, int, bytes], Record] = {}
    for record in records:
        held = newest.get(record.register)
        if held is None or record.order > held.order:
            newest[record.register] = record
    groups: dict[tuple[bytes, int], list[Record]] = {}
    for record in newest.values():
        groups.setdefault((record.author, quota_group(record.kind)), []).append(record)
    survivors: list[Record] = []
    for (_, group), members in groups.items():
        members.sort(key=lambda record: record.order, reverse=True)
        survivors.extend(members[: rule_of(group).quota])
    return {record.register: record for record in survivors}
