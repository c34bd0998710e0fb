"""A whole mesh in memory: registers with the join rule, members, and a sealer. Verified by tests/contract/test_records.py."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio

from mesh.base.clock import next_version
from mesh.base.errors import Refused
from mesh.base.names import NodeId, OwnerId
from mesh.base.ports import Entry, Member

BODY_BYTES_MAX = 2304
QUOTA = 200

Place = tuple[bytes, int, bytes]


@dataclass
class FakeMesh:
    """Nodes that hear each other at once, unless cut off; they compare everything when they meet again."""

    wall_ms: int = 1_800_000_000_000
    nodes: list[FakeNode] = field(default_factory=list)

    def node(self, name: str, owner: str, *, roles: tuple[str, ...] = ("member",)) -> FakeNode:
        node = FakeNode(self, name, owner, roles)
        self.nodes.append(node)
        self.settle()
        return node

    def settle(self) -> None:
        """Let every node that is reachable hear of everything another reachable one holds."""
        linked = [node for node in self.nodes if node.linked]
        held = [entry for node in linked for entry in node.records.registers.values()]
        for node in linked:
            node.records.join(held)


class FakeNode:
    """One machine: its registers, its directory, its sealer."""

    def __init__(self, mesh: FakeMesh, name: str, owner: str, roles: tuple[str, ...]) -> None:
        self.mesh = mesh
        self.name = name
        self.owner = OwnerId(hashlib.blake2b(owner.encode(), digest_size=16).digest())
        self.node = NodeId(hashlib.blake2b(f"{name}/{owner}".encode(), digest_size=16).digest())
        self.owner_name = owner
        self.roles = frozenset(roles)
        self.linked = True
        self.records = FakeRecords(self)
        self.directory = FakeDirectory(self)
        self.sealer = FakeSealer(self.owner, self.node)

    def member(self, seen_by: FakeNode) -> Member:
        return Member(
            self.node, self.node * 2, self.name, self.owner, self.owner_name, self.owner == seen_by.owner, self.roles,
            "live" if self.linked else "gone", self.mesh.wall_ms, self.linked, (), None,
        )  # fmt: skip

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Hear nothing and be heard by nobody meanwhile."""
        self.linked = False
        yield
        self.linked = True
        self.mesh.settle()


class FakeRecords:
    """Satisfies ``mesh.base.ports.Records``."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.registers: dict[Place, Entry] = {}
        self.publications = 0
        self.refuse: Refused | None = None
        self._listeners: list[tuple[frozenset[int], trio.MemorySendChannel[None]]] = []

    async def publish(self, kind: int, key: bytes, body: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        if self.refuse:
            raise self.refuse
        if "member" not in self.node.roles:
            raise Refused("this machine may not publish that", reason="role")
        if len(body) > BODY_BYTES_MAX or len(key) > 32:
            raise Refused("the record is too large", reason="limit")
        self.publications += 1
        return self._write(kind, key, body)

    async def withdraw(self, kind: int, key: bytes) -> None:
        await trio.lowlevel.checkpoint()
        held = self.registers.get((self.node.node, kind, key))
        if held is not None and held.body:
            self._write(kind, key, b"")

    def _write(self, kind: int, key: bytes, body: bytes) -> bytes:
        newest = max((e.version for e in self.registers.values() if e.author == self.node.node), default=0)
        version = next_version(self.node.mesh.wall_ms, newest)
        head = b"".join((self.node.node, kind.to_bytes(2, "big"), len(key).to_bytes(1, "big"), key, version.to_bytes(8, "big")))
        record_id = hashlib.blake2b(head + body, digest_size=32).digest()
        entry = Entry(self.node.node, self.node.owner, kind, key, version, record_id, body, self.node.mesh.wall_ms)
        self.join([entry])
        if self.node.linked:
            self.node.mesh.settle()
        return record_id

    def join(self, entries: Collection[Entry]) -> None:
        """Keep the greatest (version, id) of each register, then the QUOTA greatest of each author and kind."""
        before = dict(self.registers)
        for entry in entries:
            place = (entry.author, entry.kind, entry.key)
            held = self.registers.get(place)
            if held is None or (held.version, held.record_id) < (entry.version, entry.record_id):
                self.registers[place] = entry
        for author, kind in {(a, k) for a, k, _ in self.registers}:
            ranked = sorted(
                (e for (a, k, _), e in self.registers.items() if (a, k) == (author, kind)),
                key=lambda e: (e.version, e.record_id),
                reverse=True,
            )
            for surplus in ranked[QUOTA:]:
                del self.registers[(author, kind, surplus.key)]
        places = before.keys() | self.registers.keys()
        self._wake({place[1] for place in places if before.get(place) != self.registers.get(place)})

    def _wake(self, kinds: set[int]) -> None:
        for wanted, send in self._listeners:
            if wanted & kinds:
                try:
                    send.send_nowait(None)
                except (trio.WouldBlock, trio.BrokenResourceError):
                    continue

    def entries(self, kind: int) -> list[Entry]:
        found = [e for (_, k, _), e in self.registers.items() if k == kind and e.body]
        return sorted(found, key=lambda e: (e.version, e.record_id), reverse=True)

    def withdrawn(self, kind: int) -> dict[bytes, int]:
        mine = ((key, e) for (author, k, key), e in self.registers.items() if (author, k) == (self.node.node, kind))
        return {key: e.version for key, e in mine if not e.body}

    def changes(self, kinds: Collection[int]) -> trio.MemoryReceiveChannel[None]:
        send, receive = trio.open_memory_channel[None](1)
        self._listeners.append((frozenset(kinds), send))
        return receive


class FakeDirectory:
    """Satisfies ``mesh.base.ports.Directory``."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    @property
    def me(self) -> Member:
        return self._node.member(self._node)

    def member(self, node: NodeId) -> Member | None:
        return next((n.member(self._node) for n in self._node.mesh.nodes if n.node == node), None)

    def members(self) -> list[Member]:
        return [n.member(self._node) for n in self._node.mesh.nodes if n is not self._node]


class FakeSealer:
    """Hides a body from every other owner and binds it to its author, without being a cipher."""

    def __init__(self, owner: OwnerId, me: NodeId) -> None:
        self._owner = owner
        self._me = me

    def seal(self, plain: bytes) -> bytes:
        return self._owner + self._me + bytes(byte ^ 0x5A for byte in plain)

    def unseal(self, body: bytes, author: NodeId) -> bytes | None:
        if body[:32] != self._owner + author:
            return None
        return bytes(byte ^ 0x5A for byte in body[32:])
