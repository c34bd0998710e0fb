"""One machine's copy of the mesh: publish, take, list, wake; restarts, clocks, liars and rows nobody can trust."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh import kinds, replica, store
from mesh.base.clock import FUTURE_MS_MAX, Now, version_ms
from mesh.base.codec import encode
from mesh.base.db import Database, StorageFull
from mesh.base.errors import Refused
from mesh.base.names import NodeId, node_id
from mesh.identity import Identity
from mesh.kinds import DAY_MS, Lane, Role
from mesh.members import Expulsion
from mesh.presence import Presence, link_mark
from mesh.records import Record, parse_untrusted
from mesh.replica import Replica
from mesh.schemas import AboutBody, SealedBody
from tests.fakes.meshes import NOW, Machine, Mesh

SEALED = encode(SealedBody(0, bytes(60)))
UNKNOWN = 999


class Node:
    """A replica over a real file, with a clock the test turns and links the test states."""

    def __init__(self, mesh: Mesh, machine: Machine, folder: Path) -> None:
        self.mesh, self.machine, self.folder = mesh, machine, folder
        self.now = NOW
        self.linked: set[NodeId] = set()
        self.open()
        self.database.write_now(lambda c: store.put_records(c, mesh.records, NOW.wall_ms))
        self.restart()

    def open(self) -> None:
        self.database = Database(self.folder / f"{self.machine.node.hex()}.db", store.SCHEMA, durable=False)
        identity = Identity(self.machine.key, None, self.mesh.genesis, self.mesh.mesh)
        self.replica = Replica(self.database, identity, lambda: self.now, lambda: self.linked)

    def restart(self) -> None:
        self.database.close()
        self.open()

    def pass_s(self, seconds: float) -> None:
        self.now = Now(self.now.wall_ms + int(seconds * 1000), self.now.steady_s + seconds)

    def jump_ms(self, wall_ms: int) -> None:
        self.now = Now(self.now.wall_ms + wall_ms, self.now.steady_s)

    def pushed(self) -> list[replica.Push]:
        out = []
        while True:
            try:
                out.append(self.replica.pushed.receive_nowait())
            except trio.WouldBlock:
                return out

    async def take(self, *records: Record, source: NodeId = NodeId(bytes(16))) -> replica.Taken:
        return await self.replica.take_untrusted([r.wire for r in records], source)


class Cast:
    def __init__(self, folder: Path) -> None:
        self.mesh = Mesh("replica")
        self.mini = self.mesh.machine("mini")
        self.bens = self.mesh.machine("bens", owner=self.mesh.signing_key())
        self.viewer = self.mesh.machine("viewer", roles=Role.VIEWER)
        self.folder = folder
        self.nodes: list[Node] = []

    def node(self, machine: Machine | None = None) -> Node:
        self.nodes.append(Node(self.mesh, machine or self.mesh.founder, self.folder))
        return self.nodes[-1]

    def presence(self, machine: Machine, links: list[NodeId], *, version: int | None = None, name: str = "shown") -> Record:
        marks = tuple(link_mark(machine.node, other) for other in links)
        body = encode(Presence(machine.boot, 30, name, "0.1.0", ("192.0.2.1:9847",), marks, 0, 2))
        return self.mesh.sign(machine, kinds.PRESENCE, b"", body, version)


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    made = Cast(tmp_path)
    yield made
    for node in made.nodes:
        node.database.close()


# Publishing -----------------------------------------------------------------------------------------------------------


async def test_what_is_published_is_durable_listed_and_pushed(cast: Cast):
    node = cast.node()
    record_id = await node.replica.publish(kinds.LESSON, b"k", SEALED)
    (push,) = node.pushed()
    assert push.source is None
    assert [r.record_id for r in push.records] == [record_id]
    node.restart()
    (entry,) = node.replica.entries(kinds.LESSON)
    assert (entry.record_id, entry.key, entry.body, entry.author) == (record_id, b"k", SEALED, cast.mesh.founder.node)
    assert entry.owner == node.replica.me.owner
    assert entry.received_ms == NOW.wall_ms


async def test_a_newer_version_replaces_and_versions_go_on_after_a_restart(cast: Cast):
    """O-G6: the clock and what was seen are loaded before anything is published."""
    node = cast.node()
    await node.replica.publish(UNKNOWN, b"k", b"1")
    first = node.replica.entries(UNKNOWN)[0].version
    node.jump_ms(-3_600_000)
    node.restart()
    await node.replica.publish(UNKNOWN, b"k", b"2")
    (entry,) = node.replica.entries(UNKNOWN)
    assert entry.body == b"2"
    assert entry.version > first


async def test_what_was_withdrawn_is_known_as_withdrawn(cast: Cast):
    node = cast.node()
    await node.replica.withdraw(UNKNOWN, b"k")
    assert node.pushed() == []
    await node.replica.publish(UNKNOWN, b"k", b"1")
    await node.replica.withdraw(UNKNOWN, b"k")
    assert node.replica.entries(UNKNOWN) == []
    assert set(node.replica.withdrawn(UNKNOWN)) == {b"k"}
    version = node.replica.withdrawn(UNKNOWN)[b"k"]
    await node.replica.withdraw(UNKNOWN, b"k")
    assert node.replica.withdrawn(UNKNOWN) == {b"k": version}


@pytest.mark.parametrize(
    ("kind", "key", "body"),
    [
        (kinds.LESSON, b"k", b"not sealed"),
        (kinds.LESSON, b"k", bytes(2305)),
        (kinds.LESSON, b"k", bytes(4000)),
        (kinds.LESSON, b"k" * 33, SEALED),
        (kinds.PRESENCE, b"k", SEALED),
        (kinds.GRANT_REVOCATION, b"k", b""),
        (UNKNOWN, b"k", bytes(513)),
    ],
)
async def test_what_the_door_would_refuse_is_not_published(cast: Cast, kind: int, key: bytes, body: bytes):
    """O-G8: refused where it is made, and nothing of it stays."""
    node = cast.node()
    with pytest.raises(Refused):
        await node.replica.publish(kind, key, body)
    assert node.replica.entries(kind) == []
    assert node.pushed() == []


async def test_a_viewer_may_not_publish_what_is_for_members(cast: Cast):
    node = cast.node(cast.viewer)
    assert not node.replica.may(Role.MEMBER)
    with pytest.raises(Refused) as caught:
        await node.replica.publish(kinds.LESSON, b"k", SEALED)
    assert caught.value.reason == "forbidden"


async def test_a_full_disk_publishes_nothing(cast: Cast):
    node = cast.node()
    pages = node.database._writer.execute("PRAGMA page_count").get
    node.database._writer.execute(f"PRAGMA max_page_count={pages}")

    async def fill() -> None:
        for number in range(200):
            await node.replica.publish(kinds.LESSON, number.to_bytes(2, "big"), SEALED)

    with pytest.raises(StorageFull):
        await fill()
    listed = {entry.record_id for entry in node.replica.entries(kinds.LESSON)}
    pushed = {r.record_id for push in node.pushed() for r in push.records}
    assert listed == pushed


# Taking ---------------------------------------------------------------------------------------------------------------


async def test_sound_records_are_kept_pushed_on_once_and_not_news_again(cast: Cast):
    """O-G3, O-G9: what is not newer is not forwarded; the id is the author's, not the relay's."""
    node = cast.node()
    records = [cast.mesh.sign(cast.mini, UNKNOWN, bytes([n]), b"x") for n in range(3)]
    taken = await node.take(*records, source=cast.bens.node)
    assert taken.arrived == tuple((r.record_id, False) for r in records)
    assert taken.forged == 0
    (push,) = node.pushed()
    assert (set(push.records), push.source) == (set(records), cast.bens.node)
    for _ in range(3):
        again = await node.take(*records, source=cast.viewer.node)
        assert {refused for _, refused in again.arrived} == {False}
    assert node.pushed() == []


async def test_two_records_of_one_version_settle_without_end_of_forwarding(cast: Cast):
    """O-G3: two leave records of one clock, from two sides."""
    node = cast.node()
    two = [cast.mesh.sign(cast.mini, UNKNOWN, b"k", bytes([n]), NOW.wall_ms << 16) for n in range(2)]
    for _ in range(5):
        for record in two:
            await node.take(record)
    assert len(node.pushed()) <= 2
    (entry,) = node.replica.entries(UNKNOWN)
    assert entry.record_id == max(r.record_id for r in two)


async def test_what_the_door_says_decides_whether_an_id_is_asked_for_again(cast: Cast):
    node = cast.node()
    stranger = Machine(cast.mesh.signing_key(), cast.mesh.ana, b"", cast.mini.record)
    future = cast.mesh.sign(cast.mini, UNKNOWN, b"1", b"x", NOW.wall_ms + FUTURE_MS_MAX + 1 << 16)
    unknown = cast.mesh.sign(stranger, UNKNOWN, b"2", b"x")
    old = cast.mesh.sign(cast.mini, UNKNOWN, b"3", b"x", 1)
    unsound = cast.mesh.sign(cast.mini, kinds.LESSON, b"4", b"x")
    forbidden = cast.mesh.sign(cast.viewer, kinds.LESSON, b"5", SEALED)
    forged = parse_untrusted(cast.mesh.sign(cast.mini, UNKNOWN, b"6", b"x").wire[:-64] + bytes(64))
    taken = await node.take(future, unknown, old, unsound, forbidden, forged)
    assert dict(taken.arrived) == {
        future.record_id: False, unknown.record_id: False, old.record_id: True, unsound.record_id: True,
        forbidden.record_id: True, forged.record_id: True,
    }  # fmt: skip
    assert taken.forged == 1
    assert node.replica.entries(UNKNOWN) == []
    node.pass_s(2)
    taken = await node.take(future)
    assert len(node.replica.entries(UNKNOWN)) == 1, "held back, not refused"


async def test_what_is_no_record_counts_as_forged(cast: Cast):
    node = cast.node()
    taken = await node.replica.take_untrusted([b"", b"x", bytes(5000), cast.mini.record.wire[:-1]], cast.mini.node)
    assert taken.forged == 4
    assert taken.arrived == ()
    assert node.pushed() == []


async def test_a_batch_in_any_order_is_taken_whole(cast: Cast):
    """A new machine's certificate and its records, issued by a new admin, travel together."""
    node = cast.node()
    admin = cast.mesh.machine("admin", roles=Role.ADMIN | Role.MEMBER)
    fresh = cast.mesh.machine("fresh", issuer=admin.key)
    records = [cast.mesh.sign(fresh, UNKNOWN, b"k", b"x"), cast.mesh.sign(admin, UNKNOWN, b"k", b"x"), fresh.record, admin.record]
    for attempt in (records, records[::-1]):
        other = cast.node(cast.mini) if attempt is records else node
        await other.take(*attempt)
        assert {e.author for e in other.replica.entries(UNKNOWN)} == {fresh.node, admin.node}
        assert other.replica.member(fresh.node) is not None


async def test_an_expulsion_counts_from_the_record_that_brings_it(cast: Cast):
    """I4: within the same batch already."""
    node = cast.node()
    await node.take(cast.mesh.sign(cast.mini, UNKNOWN, b"before", b"x"))
    expulsion = cast.mesh.sign(cast.mesh.founder, kinds.EXPULSION, cast.mini.node, encode(Expulsion(cast.mini.node, ())))
    later = cast.mesh.sign(cast.mini, UNKNOWN, b"after", b"x")
    assert node.replica.entries(UNKNOWN)
    taken = await node.take(expulsion, later)
    assert dict(taken.arrived)[later.record_id] or not node.replica.entries(UNKNOWN)
    assert node.replica.entries(UNKNOWN) == []
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert member.state == "expelled"
    node.restart()
    assert node.replica.entries(UNKNOWN) == [], "forgetting is real, also after a restart"


async def test_an_expulsion_takes_effect_whatever_its_authors_clock_says(cast: Cast):
    """SECURITY 7."""
    for number, clock_ms in enumerate((-50 * 365 * DAY_MS, -200 * DAY_MS, 660_000, DAY_MS, 75 * 365 * DAY_MS)):
        node = cast.node([cast.mesh.founder, cast.mini, cast.viewer][number % 3])
        version = max(1, NOW.wall_ms + clock_ms << 16)
        record = cast.mesh.sign(cast.mesh.founder, kinds.EXPULSION, cast.bens.node, encode(Expulsion(cast.bens.node, ())), version)
        await node.take(record)
        member = node.replica.member(cast.bens.node)
        assert member is not None
        assert member.state == "expelled"
        node.database.close()
        node.folder = node.folder / str(number)
        node.folder.mkdir()
        node.open()


async def test_a_revocation_from_1970_is_listed(cast: Cast):
    """SECURITY 7: the view of grants is made of entries."""
    node = cast.node()
    revocation = cast.mesh.sign(cast.mini, kinds.GRANT_REVOCATION, bytes(10), encode(AboutBody(cast.mini.node, b"")), 1)
    await node.take(revocation)
    await node.database.write(lambda c: store.sweep(c, NOW.wall_ms, NOW.wall_ms // 1000))
    assert [e.record_id for e in node.replica.entries(kinds.GRANT_REVOCATION)] == [revocation.record_id]


any_kind = st.sampled_from([*kinds.KINDS, UNKNOWN, 8])


async def test_any_signed_body_of_any_kind_is_taken_or_refused_and_every_view_stands(tmp_path: Path):
    """SECURITY 17: a member may sign anything; nothing of it stops a fold, now or after a restart."""
    cast = Cast(tmp_path)
    node = cast.node()

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(any_kind, st.binary(max_size=32), st.binary(max_size=120), st.integers(1, NOW.wall_ms + 1000 << 16))
    def sign(kind: int, key: bytes, body: bytes, version: int) -> None:
        made.append(cast.mesh.sign(cast.mesh.founder, kind, key, body, version))

    made: list[Record] = []
    sign()
    await node.take(*made)
    for _ in range(2):
        node.replica.members()
        for kind in kinds.KINDS:
            node.replica.entries(kind)
            node.replica.withdrawn(kind)
        assert node.replica.me.state == "live"
        node.restart()
    node.database.close()


def test_a_node_with_hostile_rows_starts_and_lists(cast: Cast):
    """SECURITY 17: node with a poisoned database starts."""
    node = cast.node()
    good = cast.presence(cast.mini, [])

    def poison(connection) -> None:
        for number in range(200):
            wire = os.urandom(number) if number % 2 else good.wire[: number + 60]
            connection.execute(
                "INSERT OR REPLACE INTO record VALUES (?,?,?,?,?,?,?,?,?,?)",
                (os.urandom(32), cast.mini.node, number % 50, number % 50, os.urandom(5), 1 << 62, number % 5, None, 0, wire),
            )

    node.database.write_now(poison)
    node.restart()
    for kind in [*kinds.KINDS, UNKNOWN]:
        node.replica.entries(kind)
    assert len(node.replica.members()) == 3
    for lane in Lane:
        assert node.replica.wires(node.replica.ids_of(lane)) is not None


# The clock -----------------------------------------------------------------------------------------------------------


async def test_own_versions_do_not_run_ahead_of_the_linked_machines_clocks(cast: Cast):
    """SECURITY 7, O-G7: a clock in 2099 does not bury every later record of this machine."""
    node = cast.node()
    for machine in (cast.mini, cast.bens, cast.viewer):
        await node.take(cast.presence(machine, [cast.mesh.founder.node], version=NOW.wall_ms << 16))
    node.linked = {cast.mini.node, cast.bens.node, cast.viewer.node}
    node.jump_ms(75 * 365 * DAY_MS)
    await node.replica.publish(UNKNOWN, b"k", b"jumped")
    written = store.register(node.database.reader, cast.mesh.founder.node, UNKNOWN, b"k")
    assert written is not None
    assert version_ms(written.version) <= NOW.wall_ms + FUTURE_MS_MAX
    node.jump_ms(-75 * 365 * DAY_MS)
    await node.replica.publish(UNKNOWN, b"k", b"mended")
    mended = store.register(node.database.reader, cast.mesh.founder.node, UNKNOWN, b"k")
    assert mended is not None
    other = cast.node(cast.mini)
    await other.take(mended)
    assert [e.body for e in other.replica.entries(UNKNOWN)] == [b"mended"]
    assert abs(node.replica.clock_ahead_ms) <= FUTURE_MS_MAX


async def test_a_jump_without_links_shows_as_a_clock_ahead(cast: Cast):
    node = cast.node()
    node.jump_ms(DAY_MS)
    await node.replica.publish(UNKNOWN, b"k", b"x")
    node.jump_ms(-DAY_MS)
    assert node.replica.clock_ahead_ms > FUTURE_MS_MAX


# Members -----------------------------------------------------------------------------------------------------------------


async def test_members_are_listed_with_state_owner_and_what_they_say_of_themselves(cast: Cast):
    node = cast.node()
    node.linked = {cast.mini.node}
    await node.take(cast.presence(cast.mini, [cast.mesh.founder.node, cast.viewer.node], name="mini now"))
    await node.take(cast.presence(cast.viewer, [cast.mini.node]), cast.presence(cast.bens, []))
    listed = {m.node: m for m in node.replica.members()}
    assert set(listed) == {cast.mini.node, cast.bens.node, cast.viewer.node}
    assert (listed[cast.mini.node].state, listed[cast.mini.node].linked, listed[cast.mini.node].mine) == ("live", True, True)
    assert listed[cast.mini.node].name == "mini now"
    assert listed[cast.mini.node].addresses == ("192.0.2.1:9847",)
    assert (listed[cast.viewer.node].state, listed[cast.viewer.node].linked) == ("live", False)
    assert (listed[cast.bens.node].state, listed[cast.bens.node].mine) == ("stale", False)
    assert listed[cast.bens.node].last_seen_ms == NOW.wall_ms
    assert node.replica.me.name == "studio"
    assert node.replica.me.state == "live"
    assert node.replica.member(NodeId(bytes(16))) is None
    assert node.replica.boot_of(cast.mini.node) == cast.mini.boot
    assert node.replica.boot_of(NodeId(bytes(16))) is None
    node.linked = set()
    node.pass_s(400)
    assert {m.state for m in node.replica.members()} == {"gone"}


async def test_presence_heard_before_a_restart_is_as_old_as_it_is(cast: Cast):
    node = cast.node()
    await node.take(cast.presence(cast.mini, []))
    node.pass_s(200)
    node.restart()
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert (member.state, member.last_seen_ms) == ("stale", NOW.wall_ms)
    node.pass_s(150)
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert member.state == "gone"


async def test_a_machine_that_left_in_order_is_not_waited_for(cast: Cast):
    node = cast.node()
    await node.take(cast.presence(cast.mini, []))
    await node.take(cast.mesh.sign(cast.mini, kinds.PRESENCE, b"", b""))
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert member.state == "gone"
    assert member.name == "mini"


async def test_an_older_presence_changes_nothing(cast: Cast):
    node = cast.node()
    older, newer = cast.presence(cast.mini, [], name="old"), cast.presence(cast.mini, [], name="new")
    await node.take(newer)
    await node.take(older)
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert member.name == "new"


async def test_an_expired_certificate_shows_as_expired_and_a_frozen_machine_as_nobodys(cast: Cast):
    node = cast.node()
    admin = cast.mesh.machine("admin", roles=Role.ADMIN)
    rival = cast.mesh.sign(
        admin, kinds.CERTIFICATE, cast.mini.node, cast.mesh.certificate(cast.mini.key, cast.mesh.signing_key(), issuer=admin.key)
    )
    await node.take(admin.record, rival)
    member = node.replica.member(cast.mini.node)
    assert member is not None
    assert not member.mine
    node.jump_ms(91 * DAY_MS)
    member = node.replica.member(cast.bens.node)
    assert member is not None
    assert member.state == "expired"


# Waking -------------------------------------------------------------------------------------------------------------------


async def test_watchers_wake_once_for_what_they_watch(cast: Cast):
    node = cast.node()
    lessons, presences = node.replica.changes([kinds.LESSON]), node.replica.changes([kinds.PRESENCE, UNKNOWN])
    for number in range(3):
        await node.replica.publish(kinds.LESSON, bytes([number]), SEALED)
    lessons.receive_nowait()
    for channel in (lessons, presences):
        with pytest.raises(trio.WouldBlock):
            channel.receive_nowait()
    await node.take(cast.presence(cast.mini, []))
    presences.receive_nowait()


async def test_watchers_that_went_away_are_forgotten(cast: Cast):
    """A browser that comes and goes a thousand times leaves nothing behind."""
    node = cast.node()
    staying = node.replica.changes([UNKNOWN])
    for number in range(50):
        node.replica.changes([UNKNOWN]).close()
        await node.replica.publish(UNKNOWN, bytes([number]), b"x")
    assert len(node.replica._watchers) == 1
    staying.receive_nowait()


async def test_what_expired_is_swept_and_watchers_hear_of_it(cast: Cast):
    node = cast.node()
    await node.replica.publish(kinds.SESSION, b"k", SEALED)
    watcher = node.replica.changes([kinds.SESSION])
    node.pass_s(1600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.replica.run_sweep)
        with trio.fail_after(20):
            await watcher.receive()
        nursery.cancel_scope.cancel()
    assert store.register(node.database.reader, cast.mesh.founder.node, kinds.SESSION, b"k") is None


async def test_a_record_signed_elsewhere_in_the_node_is_folded_and_pushed(cast: Cast):
    node = cast.node()
    key = cast.mesh.signing_key()
    wire = cast.mesh.certificate(key, cast.mesh.ana)
    record = node.replica.sign(kinds.CERTIFICATE, node_id(key.public), wire)
    await node.database.write(lambda c: store.put_record(c, record, NOW.wall_ms))
    await node.replica.publish_signed([record])
    assert node.replica.member(node_id(key.public)) is not None
    assert [push.records for push in node.pushed()] == [(record,)]
