"""The mesh's database: records, open invites, known addresses, secrets. SQL text of ``mesh.db`` stands here only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.db import Connection
from mesh.base.names import NodeId
from mesh.certificates import certificate_body_untrusted
from mesh.invites import InviteBody, OpenInvite
from mesh.kinds import CERTIFICATE, SKEW_MS, Lane, rule_of
from mesh.records import WEIGHED_BY_THE_FOLD, Record, expires_ms, parse_untrusted, quota_group

SCHEMA = (
    """
    CREATE TABLE record (
      id BLOB PRIMARY KEY, author BLOB NOT NULL, kind INTEGER NOT NULL, quota_group INTEGER NOT NULL,
      key BLOB NOT NULL, version INTEGER NOT NULL, lane INTEGER NOT NULL, expires_ms INTEGER,
      received_ms INTEGER NOT NULL, wire BLOB NOT NULL
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX record_register ON record (author, kind, key);
    CREATE INDEX record_kind ON record (kind);
    CREATE INDEX record_lane ON record (lane, id);
    CREATE INDEX record_expiry ON record (expires_ms) WHERE expires_ms IS NOT NULL;
    CREATE TABLE invite (id BLOB PRIMARY KEY, body BLOB NOT NULL, uses_left INTEGER NOT NULL, expires_s INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE address (node BLOB NOT NULL, address TEXT NOT NULL, proved_ms INTEGER NOT NULL, PRIMARY KEY (node, address)) WITHOUT ROWID;
    CREATE TABLE secret (purpose TEXT NOT NULL, epoch INTEGER NOT NULL, key BLOB NOT NULL, PRIMARY KEY (purpose, epoch)) WITHOUT ROWID;
    CREATE TABLE fact (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    """,
    """
    CREATE TABLE code (
      slot INTEGER NOT NULL, password BLOB NOT NULL, invite BLOB PRIMARY KEY, link TEXT NOT NULL,
      expires_s INTEGER NOT NULL, failures INTEGER NOT NULL, state TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
)

ADDRESSES_A_NODE_MAX = 8
INVITES_MAX = 256


def put_record(connection: Connection, record: Record, now_ms: int) -> bool:
    """Join one admitted record into the store.

    Args:
        connection: The writer.
        record: Admitted.
        now_ms: Wall clock, kept as the time of receipt.

    Returns:
        Whether the store changed: False where the same or a greater version of the register was held, or where the
        author's quota is full of greater ones.
    """
    row = connection.execute(
        "SELECT version, id FROM record WHERE author=? AND kind=? AND key=?", (record.author, record.kind, record.key)
    ).fetchone()
    if row is not None and (row[0], row[1]) >= record.order:
        return False
    rule, group = rule_of(record.kind), quota_group(record.kind)
    connection.execute(
        "DELETE FROM record WHERE author=? AND kind=? AND key=?", (record.author, record.kind, record.key)
    )
    connection.execute(
        "INSERT INTO record (id,author,kind,quota_group,key,version,lane,expires_ms,received_ms,wire) VALUES (?,?,?,?,?,?,?,?,?,?)",
        (
            record.record_id,
            record.author,
            record.kind,
            group,
            record.key,
            record.version,
            rule.lane.value,
            expires_ms(rule, record.version),
            now_ms,
            record.wire,
        ),
    )
    connection.execute(
        "DELETE FROM record WHERE id IN (SELECT id FROM record WHERE author=? AND quota_group=? ORDER BY version DESC, id DESC LIMIT -1 OFFSET ?)",
        (record.author, group, rule.quota),
    )
    return connection.execute("SELECT 1 FROM record WHERE id=?", (record.record_id,)).fetchone() is not None


def put_records(connection: Connection, records: Iterable[Record], now_ms: int) -> list[Record]:
    """Join several; returns those that changed the store, in order."""
    return [record for record in records if put_record(connection, record, now_ms)]


def holds(connection: Connection, record_id: bytes) -> bool:
    """Whether a record is held."""
    return connection.execute("SELECT 1 FROM record WHERE id=?", (record_id,)).fetchone() is not None


def wires(connection: Connection, record_ids: Iterable[bytes]) -> list[bytes]:
    """The bytes of the records held among these ids."""
    wanted = dict.fromkeys(record_ids)  # One asked for twice is sent once, else a small request makes a large answer.
    found = (connection.execute("SELECT wire FROM record WHERE id=?", (i,)).fetchone() for i in wanted)
    return [row[0] for row in found if row is not None]


def lane_ids(connection: Connection, lane: Lane, now_ms: int) -> list[bytes]:
    """The sorted ids of a lane that are offered now: records about to expire are not."""
    rows = connection.execute(
        "SELECT id FROM record WHERE lane=? AND (expires_ms IS NULL OR expires_ms>?) ORDER BY id",
        (lane.value, now_ms + SKEW_MS if lane in (Lane.CONTROL, Lane.HIVE) else now_ms),
    )
    return [row[0] for row in rows]


def records_of(connection: Connection, kind: int, now_ms: int) -> list[tuple[Record, int]]:
    """The unexpired records of one kind with the time each came, greatest version first."""
    rows = connection.execute(
        "SELECT wire, received_ms FROM record WHERE kind=? AND (expires_ms IS NULL OR expires_ms>?) ORDER BY version DESC, id DESC",
        (kind, now_ms),
    )
    return [(record, row[1]) for row in rows if (record := _readable(row[0])) is not None]


def lane_records(connection: Connection, lane: Lane) -> list[Record]:
    """Every record of a lane, expired ones included."""
    rows = connection.execute("SELECT wire FROM record WHERE lane=?", (lane.value,))
    return [record for row in rows if (record := _readable(row[0])) is not None]


def _readable(wire: bytes) -> Record | None:
    """Read a row; one that is no record is passed over, so that no row keeps the node from starting."""
    try:
        return parse_untrusted(wire)
    except Malformed:
        return None


def register(connection: Connection, author: NodeId, kind: int, key: bytes) -> Record | None:
    """The held version of one register."""
    row = connection.execute("SELECT wire FROM record WHERE author=? AND kind=? AND key=?", (author, kind, key)).fetchone()
    return None if row is None else _readable(row[0])


def newest_version(connection: Connection, author: NodeId) -> int:
    """The greatest version held of an author, or 0."""
    row = connection.execute("SELECT max(version) FROM record WHERE author=?", (author,)).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def sweep(connection: Connection, now_ms: int, now_s: int) -> int:
    """Delete what expired; returns how many records went."""
    connection.execute("DELETE FROM invite WHERE expires_s<?", (now_s - 86_400,))
    connection.execute("DELETE FROM code WHERE expires_s<?", (now_s - 86_400,))
    connection.execute("DELETE FROM record WHERE expires_ms IS NOT NULL AND expires_ms+?<?", (SKEW_MS, now_ms))
    return connection.changes()


def drop_author(connection: Connection, author: NodeId) -> None:
    """Delete what an expelled machine wrote, but for what the fold weighs.

    Who hears of the expulsion first refuses the rest; where others kept it, two stores would differ for good.
    """
    kept = ",".join(map(str, WEIGHED_BY_THE_FOLD))
    connection.execute(f"DELETE FROM record WHERE author=? AND kind NOT IN ({kept})", (author,))


def add_invite(connection: Connection, body: InviteBody) -> bool:
    """Keep a minted invite; False where too many are open."""
    count = connection.execute("SELECT count(*) FROM invite").fetchone()
    if count is not None and count[0] >= INVITES_MAX:
        return False
    connection.execute(
        "INSERT INTO invite (id,body,uses_left,expires_s) VALUES (?,?,?,?)",
        (body.invite, encode(body), body.uses, body.expires_s),
    )
    return True


def invite(connection: Connection, invite_id: bytes) -> OpenInvite | None:
    """Look up an invite, also a used one."""
    row = connection.execute("SELECT body, uses_left FROM invite WHERE id=?", (invite_id,)).fetchone()
    return None if row is None else OpenInvite(decode_untrusted(InviteBody, row[0], bytes_max=640), int(row[1]))


def invites(connection: Connection) -> list[OpenInvite]:
    """Every invite kept, used ones too."""
    rows = connection.execute("SELECT body, uses_left FROM invite LIMIT ?", (INVITES_MAX,))
    return [OpenInvite(decode_untrusted(InviteBody, row[0], bytes_max=640), int(row[1])) for row in rows]


def open_invites(connection: Connection, now_s: int) -> int:
    """How many invites can still be used."""
    row = connection.execute("SELECT count(*) FROM invite WHERE uses_left>0 AND expires_s>=?", (now_s,)).fetchone()
    return int(row[0]) if row else 0


def spend_invite(connection: Connection, invite_id: bytes, certificate: Record, now_ms: int) -> bool:
    """Spend one use and store the certificate, in one transaction; False where no use was left.

    Certificates held that name the invite count too, so a restored database does not revive a used one.
    """
    held = invite(connection, invite_id)
    if held is None or held.uses_left < 1 or len(_certified_by(connection, invite_id, now_ms)) >= held.body.uses:
        return False
    connection.execute("UPDATE invite SET uses_left=uses_left-1 WHERE id=?", (invite_id,))
    return put_record(connection, certificate, now_ms)


def _certified_by(connection: Connection, invite_id: bytes, now_ms: int) -> set[bytes]:
    """The keys whose certificates name an invite."""
    found: set[bytes] = set()
    for record, _ in records_of(connection, CERTIFICATE, now_ms):
        body = certificate_body_untrusted(record.body)
        if body is not None and body.invite == invite_id:
            found.add(body.public_key)
    return found


@dataclass(frozen=True, slots=True)
class HeldCode:
    """A code as its issuer keeps it; once it is used or burned, password and link are gone."""

    password: bytes
    invite: bytes
    link: str
    expires_s: int
    failures: int
    state: str


_CODE = "SELECT password, invite, link, expires_s, failures, state FROM code"


def add_code(connection: Connection, slot: int, password: bytes, invite: bytes, link: str, expires_s: int) -> None:
    """Keep a code."""
    connection.execute("INSERT INTO code VALUES (?,?,?,?,?,0,'open')", (slot, password, invite, link, expires_s))


def open_code_slots(connection: Connection, now_s: int) -> set[int]:
    """The slots of the codes that can be used now."""
    return {row[0] for row in connection.execute("SELECT slot FROM code WHERE state='open' AND expires_s>=?", (now_s,))}


def code_of_invite(connection: Connection, invite_id: bytes) -> HeldCode | None:
    """The code that stands for an invite."""
    row = connection.execute(f"{_CODE} WHERE invite=?", (invite_id,)).fetchone()
    return None if row is None else HeldCode(*row)


def burned_codes(connection: Connection, now_s: int) -> int:
    """How many codes were burned whose time is not over."""
    row = connection.execute("SELECT count(*) FROM code WHERE state='burned' AND expires_s>=?", (now_s,)).fetchone()
    return int(row[0]) if row else 0


def begin_guess(connection: Connection, slot: int, now_s: int, tries_max: int) -> HeldCode | None:
    """Count a try at a slot's open code as failed, for now; None where there is none, or no try is left."""
    row = connection.execute(f"{_CODE} WHERE slot=? AND state='open' AND expires_s>=? AND failures<?", (slot, now_s, tries_max)).fetchone()
    if row is None:
        return None
    held = HeldCode(*row)
    connection.execute("UPDATE code SET failures=failures+1 WHERE invite=?", (held.invite,))
    return held


def end_guess(connection: Connection, slot: int, invite_id: bytes, tries_max: int, *, proved: bool) -> bool:
    """Close a try: a proved one uses the code up; the last failed one burns it and its invite. Returns whether it burned."""
    which = (slot, invite_id)
    emptied = "UPDATE code SET password=x'', link='', state=? WHERE slot=? AND invite=? AND state='open'"
    if proved:
        connection.execute("UPDATE code SET failures=failures-1 WHERE slot=? AND invite=?", which)
        connection.execute(emptied, ("used", *which))
        return False
    row = connection.execute("SELECT failures FROM code WHERE slot=? AND invite=? AND state='open'", which).fetchone()
    if row is None or row[0] < tries_max:
        return False
    connection.execute(emptied, ("burned", *which))
    connection.execute("UPDATE invite SET uses_left=0 WHERE id=?", (invite_id,))
    return True


def note_address(connection: Connection, node: NodeId, address: str, now_ms: int) -> None:
    """Remember an address at which a machine proved its key; the oldest beyond eight is forgotten."""
    connection.execute(
        "INSERT INTO address (node,address,proved_ms) VALUES (?,?,?) ON CONFLICT (node,address) DO UPDATE SET proved_ms=excluded.proved_ms",
        (node, address, now_ms),
    )
    connection.execute(
        "DELETE FROM address WHERE node=? AND address IN (SELECT address FROM address WHERE node=? ORDER BY proved_ms DESC LIMIT -1 OFFSET ?)",
        (node, node, ADDRESSES_A_NODE_MAX),
    )


def addresses(connection: Connection, node: NodeId) -> list[str]:
    """The addresses at which a machine proved its key, newest first."""
    return [row[0] for row in connection.execute("SELECT address FROM address WHERE node=? ORDER BY proved_ms DESC", (node,))]


def put_secret(connection: Connection, purpose: str, epoch: int, key: bytes) -> None:
    """Keep a symmetric key (``gate`` or ``fleet``); the same epoch again changes nothing."""
    connection.execute("INSERT OR IGNORE INTO secret (purpose,epoch,key) VALUES (?,?,?)", (purpose, epoch, key))


def add_secret(connection: Connection, purpose: str, key: bytes, *, count_max: int) -> None:
    """Keep one more key of a purpose under the next number; the same key again changes nothing, the oldest goes."""
    if connection.execute("SELECT 1 FROM secret WHERE purpose=? AND key=?", (purpose, key)).fetchone() is None:
        connection.execute(
            "INSERT INTO secret (purpose,epoch,key) SELECT ?, coalesce(max(epoch),-1)+1, ? FROM secret WHERE purpose=?",
            (purpose, key, purpose),
        )
    connection.execute(
        "DELETE FROM secret WHERE purpose=? AND epoch IN (SELECT epoch FROM secret WHERE purpose=? ORDER BY epoch DESC LIMIT -1 OFFSET ?)",
        (purpose, purpose, count_max),
    )


def secrets(connection: Connection, purpose: str) -> dict[int, bytes]:
    """The keys of one purpose by epoch."""
    return {row[0]: row[1] for row in connection.execute("SELECT epoch, key FROM secret WHERE purpose=?", (purpose,))}


def put_fact(connection: Connection, name: str, value: bytes) -> None:
    """Keep one named value."""
    connection.execute("INSERT INTO fact (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", (name, value))


def fact(connection: Connection, name: str) -> bytes | None:
    """Look up one named value."""
    row = connection.execute("SELECT value FROM fact WHERE name=?", (name,)).fetchone()
    return None if row is None else bytes(row[0])
