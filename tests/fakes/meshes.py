"""A whole mesh in memory, with real keys and real signatures, made from a seed: the same seed makes the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from mesh.base.clock import Now
from mesh.base.codec import decode_untrusted, encode
from mesh.base.crypto import SigningKey
from mesh.base.names import NodeId, node_id
from mesh.certificates import CertificateBody, Expulsion, Genesis, found, issue, mesh_id, sign_owner
from mesh.handshake import Credentials
from mesh.kinds import CERTIFICATE, EXPULSION, Role
from mesh.members import Members
from mesh.records import Record, Verdict, admit, make
from mesh.schemas import BODIES

NOW = Now(1_800_000_000_000, 5_000.0)
NOW_S = NOW.wall_ms // 1000
WORKING = Role.MEMBER | Role.WORKER | Role.RELAY


class Drawn:
    """Entropy that can be drawn again: a hash chain over a seed."""

    def __init__(self, seed: object) -> None:
        self._state = hashlib.blake2b(repr(seed).encode()).digest()

    def __call__(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            self._state = hashlib.blake2b(self._state).digest()
            out += self._state
        return out[:count]


@dataclass
class Machine:
    """One machine: its keys and what certifies it."""

    key: SigningKey
    owner: SigningKey
    certificate: bytes
    record: Record
    boot: bytes = field(default=bytes(8))

    @property
    def node(self) -> NodeId:
        return node_id(self.key.public)


class Mesh:
    """A founded mesh that any test can add machines to. ``records`` is its control lane."""

    def __init__(self, seed: object = "mesh", *, now_s: int = NOW_S) -> None:
        self.drawn = Drawn(seed)
        self.now_s = now_s
        self.root = self.signing_key()
        self.ana = self.signing_key()
        key = self.signing_key()
        self.genesis, certificate = found(
            root=self.root, owner=self.ana, node=key, name="studio", owner_name="ana", now_s=now_s, nonce=self.drawn(24)
        )
        self.mesh = mesh_id(self.genesis)
        self._version = now_s * 1000 << 16
        first = make(self.root, self.mesh, CERTIFICATE, node_id(key.public), self.version(), certificate)
        self.founder = Machine(key, self.ana, certificate, first, self.drawn(8))
        self.records: list[Record] = [first]

    def signing_key(self) -> SigningKey:
        return SigningKey(self.drawn(32))

    def version(self) -> int:
        self._version += 1
        return self._version

    def certificate(
        self,
        key: SigningKey,
        owner: SigningKey,
        *,
        issuer: SigningKey | None = None,
        roles: Role = WORKING,
        name: str = "mini",
        lineage: bytes | None = None,
        countersigned: bool = True,
        not_before_s: int | None = None,
        not_after_s: int | None = -1,
        invite: bytes | None = None,
    ) -> bytes:
        """Issue a certificate; admins come from the root and have no end, the rest from the founder for 90 days."""
        admin = bool(roles & Role.ADMIN)
        issuer = issuer or (self.root if admin else self.founder.key)
        lineage = lineage or node_id(key.public)
        begin_s = self.now_s if not_before_s is None else not_before_s
        end_s = (None if admin else begin_s + 90 * 86_400) if not_after_s == -1 else not_after_s
        body = CertificateBody(
            key.public, owner.public, lineage, name, "ana" if owner is self.ana else "ben", int(roles),
            node_id(issuer.public), self.drawn(8), begin_s, end_s, invite,
        )  # fmt: skip
        return issue(issuer, self.mesh, body, sign_owner(owner, self.mesh, lineage, key.public) if countersigned else None)

    def machine(self, name: str = "mini", *, owner: SigningKey | None = None, roles: Role = WORKING, **more) -> Machine:
        """Add a machine: its certificate stands in the control lane."""
        key = self.signing_key()
        owner = owner or self.ana
        wire = self.certificate(key, owner, roles=roles, name=name, **more)
        author = more.get("issuer") or (self.root if roles & Role.ADMIN else self.founder.key)
        record = make(author, self.mesh, CERTIFICATE, node_id(key.public), self.version(), wire)
        self.records.append(record)
        return Machine(key, owner, wire, record, self.drawn(8))

    def expel(self, author: SigningKey, lineage: bytes, keep: tuple[bytes, ...] = ()) -> Record:
        """Sign an expulsion and add it to the control lane."""
        record = make(author, self.mesh, EXPULSION, lineage, self.version(), encode(Expulsion(lineage, keep)))
        self.records.append(record)
        return record

    def members(self, *more: Record) -> Members:
        return Members(decode_untrusted(Genesis, self.genesis, bytes_max=200), self.mesh, [*self.records, *more])

    def sign(self, machine: Machine, kind: int, key: bytes, body: bytes, version: int | None = None) -> Record:
        return make(machine.key, self.mesh, kind, key, self.version() if version is None else version, body)

    def judge(self, record: Record, members: Members | None = None, *, now_ms: int = NOW.wall_ms) -> Verdict:
        members = members or self.members()
        return admit(record, mesh=self.mesh, author_of=members.author, bodies=BODIES, now_ms=now_ms)

    def credentials(
        self, machine: Machine, members: Members | None = None, *, now_s: int | None = None, counter: int = 1
    ) -> Credentials:
        """What a machine shows in a handshake, and how it judges the other side."""
        members = members or self.members()
        chain = (machine.certificate,)
        issuer = members.certificates[machine.node].issuer if machine.node in members.certificates else None
        if issuer is not None and issuer != members.root:
            chain = (machine.certificate, members.certificates[NodeId(issuer)].wire)
        at_s = self.now_s if now_s is None else now_s
        return Credentials(
            machine.key, self.mesh, chain, machine.boot, counter,
            lambda shown: members.check_untrusted(shown, now_s=at_s, me=machine.node),
        )  # fmt: skip
