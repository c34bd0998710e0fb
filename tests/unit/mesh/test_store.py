"""The mesh's database: the SQL join against the reference, invites spent once, rows nobody can trust."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds, store
from mesh.base.clock import FUTURE_MS_MAX
from mesh.base.codec import encode
from mesh.base.db import Connection, Database
from mesh.base.names import NodeId, node_id
from mesh.certificates import Expulsion
from mesh.invites import InviteBody
from mesh.kinds import DAY_MS, KINDS, SKEW_MS, Lane, Role, rule_of
from mesh.records import WEIGHED_BY_THE_FOLD, Record, expires_ms, join, make
from mesh.schemas import AboutBody, SealedBody
from tests.fakes.meshes import NOW, NOW_S, Mesh

MESH = Mesh("store")
MINE = MESH.machine("mine")
BENS = MESH.machine("bens", owner=MESH.signing_key())
NOW_MS = NOW.wall_ms
SEALED = encode(SealedBody(0, bytes(60)))


@pytest.fixture
def db() -> Iterator[Connection]:
    connection = fresh()
    yield connection
    connection.close()


def fresh() -> Connection:
    connection = Connection(":memory:")
    for script in store.SCHEMA:
        connection.execute(script)
    return connection


def content(connection: Connection) -> set[Record]:
    return {record for lane in Lane for record in store.lane_records(connection, lane)}


def signed(author: int, kind: int, key: int, version: int, salt: int, *, empty: bool = False) -> Record:
    body = b"" if empty else bytes([salt]) * 4
    return MESH.sign((MINE, BENS)[author], kind, bytes([key]), body, version)


MADE: dict[tuple[object, ...], Record] = {}


def made(*what: object) -> Record:
    """Sign each combination once; a history draws from a small world."""
    if what not in MADE:
        author, kind, key, version, salt, empty = what
        MADE[what] = signed(author, kind, key, version, salt, empty=empty)  # type: ignore[arg-type]
    return MADE[what]


KINDS_USED = [kinds.ROTATION, kinds.PRESENCE, kinds.POLICY, kinds.LESSON, 999, 1000]
histories = st.lists(
    st.builds(made, st.integers(0, 1), st.sampled_from(KINDS_USED), st.integers(0, 5), st.integers(1, 4), st.integers(0, 1), st.booleans()),
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(histories, st.randoms(use_true_random=False))
def test_the_store_holds_exactly_what_the_reference_join_holds(history: list[Record], chance: random.Random):
    """T1: whatever the order, batches and duplicates; and it says rightly what changed it."""
    db = fresh()
    for record in history:
        before = content(db)
        changed = store.put_record(db, record, NOW_MS)
        assert changed is (content(db) != before)
    assert content(db) == set(join(history).values())
    again = [*history, *history]
    chance.shuffle(again)
    other = fresh()
    store.put_records(other, again, NOW_MS)
    assert content(other) == content(db)


@pytest.mark.parametrize("kind", [kinds.ROTATION, kinds.SESSION, kinds.LESSON, kinds.POLICY, 999])
def test_quotas_keep_the_greatest_in_every_order(kind: int):
    """SECURITY 16: an author pushes out only its own oldest."""
    count = rule_of(kind).quota + 7
    history = [MESH.sign(MINE, kind, n.to_bytes(2, "big"), b"x", 1000 + n) for n in range(count)]
    foreign = MESH.sign(BENS, kind, b"k", b"x", 1)
    for order in (history, history[::-1], random.Random(1).sample(history, count)):
        db = fresh()
        store.put_records(db, [foreign, *order], NOW_MS)
        assert content(db) == {*history[7:], foreign}


def test_invented_kinds_of_one_author_share_one_quota():
    db = fresh()
    flood = [MESH.sign(MINE, 1000 + n, b"", b"x", n + 1) for n in range(300)]
    store.put_records(db, flood, NOW_MS)
    assert content(db) == set(flood[-kinds.UNKNOWN_QUOTA :])
    assert store.lane_ids(db, Lane.CONTROL, NOW_MS) == []


def test_a_tombstone_counts_like_any_other_value(db: Connection):
    value, gone = MESH.sign(MINE, 999, b"k", b"x", 5), MESH.sign(MINE, 999, b"k", b"", 6)
    for order in itertools.permutations([value, gone]):
        store.put_records(db, order, NOW_MS)
        assert content(db) == {gone}


def test_equivocation_ends_the_same_in_every_order():
    """O-G3: two bodies of one version: the greater id stays, and the other is not news again."""
    two = [MESH.sign(MINE, 999, b"k", bytes([n]), 5) for n in range(2)]
    low, high = sorted(two, key=lambda r: r.record_id)
    for order in itertools.permutations(two):
        db = fresh()
        store.put_records(db, order, NOW_MS)
        assert content(db) == {high}
        assert not store.put_record(db, low, NOW_MS)
        assert not store.put_record(db, high, NOW_MS)


# Lanes, lookups and time -----------------------------------------------------------------------------------------


def one_of_each() -> dict[int, Record]:
    return {kind: MESH.sign(MINE, kind, b"", b"x", NOW_MS << 16) for kind in [*KINDS, 999]}


def test_every_kind_stands_in_its_lane(db: Connection):
    each = one_of_each()
    store.put_records(db, each.values(), NOW_MS)
    for lane in Lane:
        expected = sorted(r.record_id for k, r in each.items() if rule_of(k).lane is lane)
        assert store.lane_ids(db, lane, NOW_MS) == expected
        assert {r.record_id for r in store.lane_records(db, lane)} == set(expected)
    for kind, record in each.items():
        assert store.records_of(db, kind, NOW_MS) == [(record, NOW_MS)]
        assert store.register(db, MINE.node, kind, b"") == record
        assert store.holds(db, record.record_id)
    assert store.register(db, MINE.node, 999, b"other") is None
    assert not store.holds(db, bytes(32))


def test_a_record_asked_for_many_times_is_sent_once(db: Connection):
    """Else a small request makes a large answer."""
    record = MESH.sign(MINE, 999, b"k", b"x")
    store.put_record(db, record, NOW_MS)
    assert store.wires(db, [record.record_id, bytes(32), record.record_id]) == [record.wire]


def test_the_newest_version_of_an_author_is_found_after_a_restart(db: Connection):
    """O-G6: versions go on from the greatest ever kept, expired or not."""
    assert store.newest_version(db, MINE.node) == 0
    store.put_records(db, [MESH.sign(MINE, 999, b"a", b"x", 9), MESH.sign(MINE, 998, b"b", b"", 77), MESH.sign(BENS, 999, b"c", b"x", 99)], NOW_MS)
    assert store.newest_version(db, MINE.node) == 77


@pytest.mark.parametrize("kind", [k for k in [*KINDS, 999] if rule_of(k).life_ms is not None])
def test_records_are_offered_until_shortly_before_their_end_shown_until_it_and_swept_after(kind: int):
    """PROTOCOL 5: offer until the end less ten minutes, accept until ten minutes after."""
    record = MESH.sign(MINE, kind, b"", b"x", NOW_MS << 16)
    end_ms = expires_ms(rule_of(kind), record.version)
    assert end_ms is not None
    db = fresh()
    store.put_record(db, record, NOW_MS)
    lane = rule_of(kind).lane
    margin_ms = SKEW_MS if lane in (Lane.CONTROL, Lane.HIVE) else 0
    assert store.lane_ids(db, lane, end_ms - margin_ms - 1)
    assert not store.lane_ids(db, lane, end_ms - margin_ms)
    assert store.records_of(db, kind, end_ms - 1)
    assert not store.records_of(db, kind, end_ms)
    assert store.sweep(db, end_ms + SKEW_MS, 0) == 0
    assert store.sweep(db, end_ms + SKEW_MS + 1, 0) == 1
    assert not content(db)


CLOCKS_MS = [-50 * 365 * DAY_MS, -200 * DAY_MS, -600_000, 660_000, DAY_MS, 75 * 365 * DAY_MS]


@pytest.mark.parametrize("clock_ms", CLOCKS_MS)
@pytest.mark.parametrize("kind", [k for k, rule in KINDS.items() if rule.terminal])
def test_terminal_kinds_stay_shown_offered_and_kept_whatever_clock_wrote_them(db: Connection, kind: int, clock_ms: int):
    """SECURITY 7: a revocation from 1970 takes effect on receipt and is not swept; the store agrees with the door."""
    body = encode(Expulsion(MINE.node, ())) if kind == kinds.EXPULSION else encode(AboutBody(MINE.node, b""))
    record = MESH.sign(MINE, kind, MINE.node, body, max(1, NOW_MS + clock_ms << 16))
    assert store.put_record(db, record, NOW_MS)
    for later_ms in (0, DAY_MS, 40 * 365 * DAY_MS):
        assert store.sweep(db, NOW_MS + later_ms, 0) == 0
        assert store.records_of(db, kind, NOW_MS + later_ms) == [(record, NOW_MS)]
        assert store.lane_ids(db, Lane.CONTROL, NOW_MS + later_ms) == [record.record_id]


def test_an_expelled_machines_records_go_but_what_the_fold_weighs_stays(db: Connection):
    each = one_of_each()
    foreign = MESH.sign(BENS, 999, b"", b"x")
    store.put_records(db, [*each.values(), foreign], NOW_MS)
    store.drop_author(db, MINE.node)
    assert content(db) == {foreign, *(r for k, r in each.items() if k in WEIGHED_BY_THE_FOLD)}


class Peer:
    """A store, its clock, and the door that times impose."""

    def __init__(self, skew_ms: int) -> None:
        self.db = fresh()
        self.skew_ms = skew_ms

    def take(self, wires: list[Record], now_ms: int) -> None:
        here_ms = now_ms + self.skew_ms
        fit = [
            r
            for r in wires
            if r.version >> 16 <= here_ms + FUTURE_MS_MAX and (expires_ms(rule_of(r.kind), r.version) or 0) + SKEW_MS >= here_ms
        ]
        store.put_records(self.db, fit, here_ms)

    def offer(self, now_ms: int) -> list[Record]:
        ids = store.lane_ids(self.db, Lane.HIVE, now_ms + self.skew_ms)
        held = {r.record_id: r for r in store.lane_records(self.db, Lane.HIVE)}
        return [held[i] for i in ids]


@pytest.mark.parametrize("seed", range(15))
def test_stores_that_write_meet_sleep_and_sweep_never_show_an_old_version_again(seed: int):
    """PROTOCOL 5, with the SQL store itself; the reference lives through hundreds of histories in test_records."""
    chance = random.Random(seed)
    peers = [Peer(chance.randint(-SKEW_MS // 2, SKEW_MS // 2)) for _ in range(3)]
    now_ms, newest = NOW_MS, [0] * 3
    shown: dict[tuple[int, tuple[bytes, int, bytes]], int] = {}
    for _ in range(60):
        now_ms += chance.choice([1000, 60_000, DAY_MS, 40 * DAY_MS])
        who = chance.randrange(3)
        peer, other = peers[who], peers[chance.randrange(3)]
        if chance.random() < 0.45:
            newest[who] = max(now_ms + peer.skew_ms << 16, newest[who] + 1)
            author = (MINE, BENS, MESH.founder)[who]
            kind, key = chance.choice([(kinds.LESSON, chance.randrange(3)), (999, chance.randrange(90))])
            record = MESH.sign(author, kind, bytes([key]), b"" if chance.random() < 0.3 else b"x", newest[who])
            peer.take([record], now_ms)
        elif chance.random() < 0.8:
            other.take(peer.offer(now_ms), now_ms)
            peer.take(other.offer(now_ms), now_ms)
        else:
            store.sweep(peer.db, now_ms + peer.skew_ms, 0)
        for number, each in enumerate(peers):
            for kind in (kinds.LESSON, 999):
                for record, _ in store.records_of(each.db, kind, now_ms + each.skew_ms):
                    assert record.version >= shown.get((number, record.register), 0)
                    shown[number, record.register] = record.version


# Rows nobody can trust --------------------------------------------------------------------------------------------------

rows = st.builds(
    lambda wire, kind, lane, version: (wire, kind, lane, version),
    st.binary(max_size=120) | st.sampled_from([MINE.record.wire, MINE.record.wire[:-1], MINE.record.wire + b"\x00"]),
    st.sampled_from([*KINDS, 999]), st.integers(0, 5), st.integers(-(1 << 63), (1 << 63) - 1),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.lists(rows, max_size=5))
def test_rows_that_are_no_records_are_passed_over(hostile: list[tuple[bytes, int, int, int]]):
    """SECURITY 17: whatever stands in the file, the node starts and the rest is shown."""
    db = fresh()
    sound = MESH.sign(MINE, 999, b"k", b"x", NOW_MS << 16)
    store.put_record(db, sound, NOW_MS)
    for number, (wire, kind, lane, version) in enumerate(hostile):
        db.execute(
            "INSERT OR REPLACE INTO record VALUES (?,?,?,?,?,?,?,?,?,?)",
            (bytes([number]) * 32, MINE.node, kind, kind, number.to_bytes(4, "big"), version, lane, None, NOW_MS, wire),
        )
    for lane in Lane:
        assert all(isinstance(r, Record) for r in store.lane_records(db, lane))
    assert sound in content(db)
    for kind in [*KINDS, 999]:
        store.records_of(db, kind, NOW_MS)
    store.newest_version(db, MINE.node)
    store.register(db, MINE.node, kinds.LESSON, (0).to_bytes(4, "big"))
    MESH.members(*content(db))


# Invites ------------------------------------------------------------------------------------------------------------


def invite(uses: int = 1, *, expires_s: int = NOW_S + 60, salt: bytes = b"") -> InviteBody:
    return InviteBody(
        1, MESH.mesh, MESH.founder.key.public, (salt + os.urandom(16))[:16], os.urandom(16), int(Role.MEMBER), uses, expires_s, True, "ana", ()
    )


def certificate(body: InviteBody) -> Record:
    """A certificate record for the next machine that joins by an invite."""
    key = MESH.signing_key()
    wire = MESH.certificate(key, MESH.ana, invite=body.invite)
    return make(MESH.founder.key, MESH.mesh, kinds.CERTIFICATE, node_id(key.public), MESH.version(), wire)


@pytest.mark.parametrize("uses", [1, 3])
def test_an_invite_is_spent_with_the_certificate_it_pays_for(db: Connection, uses: int):
    """PROTOCOL 2: the use and the certificate stand or fall together; I7."""
    body = invite(uses)
    assert store.add_invite(db, body)
    for left in range(uses, 0, -1):
        held = store.invite(db, body.invite)
        assert held is not None
        assert (held.body, held.uses_left) == (body, left)
        assert store.spend_invite(db, body.invite, certificate(body), NOW_MS)
    last = certificate(body)
    assert not store.spend_invite(db, body.invite, last, NOW_MS)
    assert not store.holds(db, last.record_id)
    assert store.open_invites(db, NOW_S) == 0
    assert not store.spend_invite(db, bytes(16), last, NOW_MS)


def test_a_restored_database_does_not_revive_a_used_invite(db: Connection):
    """SECURITY 23: certificates that name the invite count, wherever they came from."""
    body = invite(2)
    store.add_invite(db, body)
    store.put_record(db, certificate(body), NOW_MS)
    assert store.spend_invite(db, body.invite, certificate(body), NOW_MS)
    assert not store.spend_invite(db, body.invite, certificate(body), NOW_MS)


def test_open_invites_are_those_that_can_be_used_now(db: Connection):
    store.add_invite(db, invite(expires_s=NOW_S))
    store.add_invite(db, invite(expires_s=NOW_S - 1))
    assert store.open_invites(db, NOW_S) == 1
    assert store.open_invites(db, NOW_S + 1) == 0


def test_invites_are_bounded_and_old_ones_make_room(db: Connection):
    for _ in range(store.INVITES_MAX):
        assert store.add_invite(db, invite())
    assert not store.add_invite(db, invite())
    store.sweep(db, NOW_MS, NOW_S + 60 + 86_400)
    assert not store.add_invite(db, invite())
    store.sweep(db, NOW_MS, NOW_S + 60 + 86_401)
    assert store.add_invite(db, invite())


def test_an_unknown_invite_is_none(db: Connection):
    assert store.invite(db, bytes(16)) is None


# Addresses, secrets, facts ---------------------------------------------------------------------------------------------


def test_proved_addresses_are_kept_newest_first_up_to_eight(db: Connection):
    for n in range(12):
        store.note_address(db, MINE.node, f"192.0.2.{n}:1", n)
    store.note_address(db, BENS.node, "192.0.2.99:1", 0)
    assert store.addresses(db, MINE.node) == [f"192.0.2.{n}:1" for n in range(11, 3, -1)]
    store.note_address(db, MINE.node, "192.0.2.4:1", 50)
    assert store.addresses(db, MINE.node)[0] == "192.0.2.4:1"
    assert store.addresses(db, BENS.node) == ["192.0.2.99:1"]
    assert store.addresses(db, NodeId(bytes(16))) == []


def test_a_secret_of_an_epoch_is_kept_as_it_first_was(db: Connection):
    store.put_secret(db, "gate", 0, b"a" * 32)
    store.put_secret(db, "gate", 0, b"b" * 32)
    store.put_secret(db, "gate", 1, b"c" * 32)
    store.put_secret(db, "fleet", 0, b"d" * 32)
    assert store.secrets(db, "gate") == {0: b"a" * 32, 1: b"c" * 32}
    assert store.secrets(db, "fleet") == {0: b"d" * 32}


def test_a_fact_is_the_last_one_said(db: Connection):
    assert store.fact(db, "x") is None
    store.put_fact(db, "x", b"1")
    store.put_fact(db, "x", b"2")
    assert store.fact(db, "x") == b"2"


def test_the_schema_opens_as_a_database(tmp_path: Path):
    database = Database(tmp_path / "mesh.db", store.SCHEMA)
    record = MESH.sign(MINE, 999, b"k", SEALED)
    assert database.write_now(lambda c: store.put_records(c, [record, record], NOW_MS)) == [record]
    assert store.holds(database.reader, record.record_id)
    database.close()
