"""The root's word on a home of a member: signed with the words, taken from a file, with a running node or without."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mesh import store
from mesh.base.clock import read_clock
from mesh.base.codec import Malformed, decode_untrusted
from mesh.base.crypto import SigningKey
from mesh.base.db import Database
from mesh.base.errors import Refused
from mesh.base.names import base32, node_id
from mesh.certificates import Certified, Genesis
from mesh.handshake import ROOT_BYTES_MAX, ROOT_RECORDS_MAX
from mesh.identity import Identity, read_identity
from mesh.kinds import CERTIFICATE, EXPULSION
from mesh.records import Record, Verdict, admit, parse_untrusted
from mesh.replica import Replica
from mesh.rootfile import expel, promote
from mesh.schemas import BODIES
from node.home import Home
from node.machines import find_machine

SETTLED_MS = 86_400_000
"""A certificate first seen later than this before an expulsion is not kept by itself: the expelled may just have made it."""


@contextmanager
def open_replica(home: Home) -> Iterator[tuple[Identity, Database, Replica]]:
    """Open a home's copy of the mesh beside a node or without one.

    Raises:
        Refused, Damaged, OurFault: The home holds no mesh that can be read.
    """
    if not home.mesh_db.exists():
        raise Refused("this home is in no mesh yet", reason="no_mesh", hint="hivemesh up -d, or name another with --home")
    database = Database(home.mesh_db, store.SCHEMA)
    try:
        identity = read_identity(Path(home.data_dir), database)
        replica = Replica(database, identity, read_clock, tuple, lambda: replica.members_now.certificates[identity.node_id].name)
        yield identity, database, replica
    finally:
        database.close()


def shown(database: Database, replica: Replica) -> tuple[bytes, ...]:
    """The root's expulsions a handshake shows, newest first, as many as fit."""
    root = replica.members_now.root
    said = [r.wire for r, _ in store.records_of(database.reader, EXPULSION, read_clock().wall_ms) if r.author == root]
    chosen: list[bytes] = []
    for wire in said:
        if len(chosen) < ROOT_RECORDS_MAX and sum(map(len, chosen)) + len(wire) <= ROOT_BYTES_MAX:
            chosen.append(wire)
    return tuple(chosen)


def learn_untrusted(wires: Sequence[bytes], identity: Identity, database: Database, replica: Replica) -> None:
    """Take the root's expulsions from a handshake, before it is judged who may link; anything else is passed over.

    Args:
        wires: Anything.
        identity: Of this home.
        database: ``mesh.db``; what is new is written at once, which is rare.
        replica: This machine's copy.

    Raises:
        StorageFull, OurFault: The disk refuses.
    """
    fresh: list[Record] = []
    for wire in wires[:ROOT_RECORDS_MAX]:
        try:
            record = parse_untrusted(wire)
        except Malformed:
            continue
        held = store.register(database.reader, record.author, record.kind, record.key)
        if record.kind != EXPULSION or record.author != replica.members_now.root or (held is not None and held.order >= record.order):
            continue
        now_ms, author_of = read_clock().wall_ms, replica.members_now.author
        if admit(record, mesh=identity.mesh, author_of=author_of, bodies=BODIES, now_ms=now_ms) is Verdict.ADMIT:
            fresh.append(record)
    if fresh:
        now_ms = read_clock().wall_ms
        replica.stored_nowait(database.write_now(lambda connection: store.put_records(connection, fresh, now_ms)))


async def apply_records(replica: Replica, records: Sequence[Record]) -> dict[str, object]:
    """Take records of the root: judged like any that come over a link, stored, and passed on.

    Raises:
        Refused: One is not what it says.
        StorageFull, OurFault: The disk refuses; none was stored.
    """
    taken = await replica.take_untrusted([record.wire for record in records], replica.me.node)
    if taken.forged or any(not replica.holds(record.record_id) and refused for record, (_, refused) in zip(records, taken.arrived, strict=False)):
        raise Refused("that file holds what this mesh's root did not sign, or what is superseded", reason="not_the_root", hint="sign it anew: hivemesh mesh root sign")
    return {"records": len(records), "expelled": sorted(base32(n) for n, c in replica.members_now.certificates.items() if replica.members_now.is_out(c))}


def check_root(root: SigningKey, identity: Identity) -> None:
    """Refuse a key that is not the root's of this mesh.

    Raises:
        Refused: It is another one.
    """
    genesis = decode_untrusted(Genesis, identity.genesis, bytes_max=200)
    if root.public != genesis.root_key:
        raise Refused("that is not the root's key of this mesh", reason="not_the_root", hint="use the words that `hivemesh mesh root export` showed here")


def sign_for(act: str, name: str, root: SigningKey, identity: Identity, database: Database, replica: Replica) -> Record:
    """Sign one act of the root about a machine.

    Args:
        act: ``expel`` or ``admin``.
        name: What a person calls the machine.
        root: The root's key, checked.
        identity: Of this home.
        database: ``mesh.db``.
        replica: This home's copy.

    Raises:
        Usage: No such machine, or several.
        Refused: Too many certificates to keep.
    """
    member = find_machine(name, [replica.me, *replica.members()])
    certified = replica.members_now.certificates[member.node]
    wall_ms = read_clock().wall_ms
    newest = store.newest_version(database.reader, node_id(root.public))
    if act == "admin":
        return promote(root, identity.mesh, certified, os.urandom(8), wall_ms=wall_ms, newest=newest)
    return expel(root, identity.mesh, certified.lineage, kept_of(certified, database, replica), wall_ms=wall_ms, newest=newest)


def kept_of(expelled: Certified, database: Database, replica: Replica) -> list[bytes]:
    """The certificates a machine issued that stay when it is expelled: those known here for a day, but for its own lineage."""
    now_ms = read_clock().wall_ms
    received = {record.body: at_ms for record, at_ms in store.records_of(database.reader, CERTIFICATE, now_ms)}
    return sorted(
        c.fingerprint
        for c in replica.members_now.certificates.values()
        if c.issuer == expelled.node and c.lineage != expelled.lineage and now_ms - received.get(c.wire, now_ms) >= SETTLED_MS
    )
