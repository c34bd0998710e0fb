"""One machine's copy of the mesh: publish, take, list, wake; restarts, clocks, liars and rows nobody can trust."""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh import kinds, replica, store
from mesh.base import db
from mesh.base.clock import FUTURE_MS_MAX, Now, version_ms
from mesh.base.codec import encode
from mesh.base.db import Connection, Database, StorageFull
from mesh.base.errors import Refused
from mesh.base.names import NodeId, node_id
from mesh.certificates import Expulsion
from mesh.identity import Identity
from mesh.kinds import DAY_MS, Lane, Role
from mesh.messages import Digests, Ids, Want
from mesh.presence import Presence, link_mark
from mesh.reconcile import Message, Reconciler, batches
from mesh.records import Record, Verdict, make, parse_untrusted
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
        self.replica = Replica(self.database, identity, lambda: self.now, lambda: self.linked, lambda: "studio")

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
        future.record_id: False, unknown.record_id: False, old.record_id: False, unsound.record_id: True,
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


async def test_a_slow_clock_does_not_make_what_it_writes_run_out_on_arrival(cast: Cast):
    """A session lives 15 minutes from its author's clock; an hour behind, it would be over before it came."""
    node, other = cast.node(cast.mini), cast.node(cast.bens)
    for machine in (cast.bens, cast.viewer):
        await node.take(cast.presence(machine, [cast.mini.node], version=NOW.wall_ms << 16))
    node.linked = {cast.bens.node, cast.viewer.node}
    node.jump_ms(-3_600_000)
    await node.replica.publish(kinds.SESSION, b"k", SEALED)
    await other.take(*node.pushed()[-1].records)
    assert [e.key for e in other.replica.entries(kinds.SESSION)] == [b"k"]


async def test_what_its_author_may_no_longer_write_no_longer_counts(cast: Cast):
    node = cast.node()
    await node.take(cast.mesh.sign(cast.mini, kinds.LESSON, b"k", SEALED))
    assert len(node.replica.entries(kinds.LESSON)) == 1
    demoted = cast.mesh.certificate(cast.mini.key, cast.mini.owner, roles=Role.VIEWER)
    await node.take(make(cast.mesh.founder.key, cast.mesh.mesh, kinds.CERTIFICATE, cast.mini.node, cast.mesh.version(), demoted))
    assert node.replica.entries(kinds.LESSON) == []


async def test_a_broken_successor_of_its_certificate_does_not_make_a_machine_a_stranger_to_itself(cast: Cast):
    node = cast.node(cast.mini)
    spoiled = bytearray(cast.mini.certificate)
    spoiled[-1] ^= 1
    record = make(cast.mesh.founder.key, cast.mesh.mesh, kinds.CERTIFICATE, cast.mini.node, cast.mesh.version(), bytes(spoiled))
    await node.take(record)
    assert node.replica.me.node == cast.mini.node
    assert node.replica.may(Role.MEMBER)


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


async def test_what_an_expelled_machine_wrote_is_swept_so_that_lanes_stay_level(cast: Cast):
    """Who had its records before and who refuses them since must not differ for as long as they live."""
    before, after = cast.node(), cast.node(cast.bens)
    written = [cast.mesh.sign(cast.mini, kind, b"k", body) for kind, body in ((UNKNOWN, b"x"), (kinds.LESSON, SEALED), (kinds.SESSION, SEALED))]
    await before.take(*written, cast.mesh.sign(cast.viewer, UNKNOWN, b"k", b"x"))
    expulsion = cast.mesh.sign(cast.mesh.founder, kinds.EXPULSION, cast.mini.node, encode(Expulsion(cast.mini.node, ())))
    for node in (before, after):
        await node.take(expulsion)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(before.replica.run_sweep)
        with trio.fail_after(20):
            while before.replica.holds(written[0].record_id):  # noqa: ASYNC110 - the sweep says nothing of it
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert len(before.replica.entries(UNKNOWN)) == 1
    await level(before, after)
    assert all(before.replica.ids_of(lane) == after.replica.ids_of(lane) for lane in Lane)


async def test_a_sweep_that_the_disk_refuses_is_tried_again(cast: Cast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 10)
    monkeypatch.setattr(replica, "SWEEP_S", 0.01)
    node = cast.node()
    await node.replica.publish(kinds.SESSION, b"k", SEALED)
    watcher = node.replica.changes([kinds.SESSION])
    node.pass_s(1600)
    other = Connection(str(node.database.path))
    other.execute("BEGIN IMMEDIATE")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.replica.run_sweep)
        with trio.fail_after(20):
            while "not deleted" not in caplog.text:  # noqa: ASYNC110 - a log has no event to wait for
                await trio.sleep(0.01)
            other.execute("ROLLBACK")
            await watcher.receive()
        nursery.cancel_scope.cancel()
    other.close()


async def test_a_record_below_a_full_quota_changes_nothing(cast: Cast):
    """SECURITY 16: and it is not passed on."""
    node = cast.node()
    flood = [cast.mesh.sign(cast.mini, 1000 + n, b"", b"x", (NOW.wall_ms << 16) + n) for n in range(kinds.UNKNOWN_QUOTA + 1)]
    await node.take(*flood[1:])
    node.pushed()
    await node.take(flood[0])
    assert node.pushed() == []
    assert not node.replica.holds(flood[0].record_id)


async def test_a_record_signed_elsewhere_in_the_node_is_folded_and_pushed(cast: Cast):
    node = cast.node()
    key = cast.mesh.signing_key()
    wire = cast.mesh.certificate(key, cast.mesh.ana)
    record = node.replica.sign(kinds.CERTIFICATE, node_id(key.public), wire)
    await node.database.write(lambda c: store.put_record(c, record, NOW.wall_ms))
    await node.replica.publish_signed([record])
    assert node.replica.member(node_id(key.public)) is not None
    assert [push.records for push in node.pushed()] == [(record,)]


# Two replicas over one link --------------------------------------------------------------------------------------------


async def level(
    one: Node, two: Node, cores: dict[Node, Reconciler] | None = None, asked: list[bytes] | None = None
) -> tuple[int, dict[Node, Reconciler]]:
    """One comparison, to the end; returns how many messages went both ways, and the ends for the next one."""
    cores = cores or {node: Reconciler(b"s" * 16, node.replica.ids_of, node.replica.holds) for node in (one, two)}
    queue = deque((other, m) for node, other in ((one, two), (two, one)) for m in cores[node].start())
    sent = 0
    while queue:
        to, message = queue.popleft()
        back, sent = (one if to is two else two), sent + 1
        out: list[Message] = []
        if isinstance(message, Digests):
            out = cores[to].on_digests(message)
        elif isinstance(message, Ids):
            out = cores[to].on_ids(message)
        elif isinstance(message, Want):
            out = list(batches(to.replica.wires(message.ids)))
            if asked is not None:
                asked += message.ids
        else:
            taken = await to.replica.take_untrusted(message.records, back.machine.node)
            for record_id, refused in taken.arrived:
                cores[to].on_arrived(record_id, rejected=refused)
        queue.extend((back, m) for m in out)
        assert sent < 200
    return sent, cores


def held_back(node: Node, *others: Node) -> list[Record]:
    """What one machine offers and another holds back for its time."""
    offered = [parse_untrusted(w) for lane in Lane for w in node.replica.wires(node.replica.ids_of(lane))]
    return [r for r in offered if any(o.replica._judge(r, o.now.wall_ms) is Verdict.HOLD for o in others)]


@pytest.mark.parametrize("seed", range(8))
async def test_two_replicas_with_any_content_and_clocks_become_level_and_stay_quiet(cast: Cast, seed: int):
    """I2, SECURITY 29: certificates run out, clocks differ by 9 to 11 minutes, records are young, old and expired.

    What differs afterwards is a matter of the clocks alone: over, not yet, or superseded by what the other holds back.
    """
    chance = random.Random(seed)
    one, two = cast.node(), cast.node(cast.mini)
    two.jump_ms(chance.choice([0, -540_000, 540_000, -660_000, 660_000]))
    authors = [cast.mesh.founder, cast.mini, cast.bens]
    for node in (one, two):
        for _ in range(40):
            age_ms = chance.choice([0, 60_000, 500_000, DAY_MS, 8 * DAY_MS, 179 * DAY_MS, 200 * DAY_MS])
            kind, body = chance.choice([(UNKNOWN, b"x"), (UNKNOWN, b""), (kinds.LESSON, SEALED), (kinds.SESSION, SEALED)])
            await node.take(cast.mesh.sign(chance.choice(authors), kind, bytes([chance.randrange(9)]), body, NOW.wall_ms - age_ms << 16))
    late = cast.mesh.machine("late", not_after_s=NOW.wall_ms // 1000 + 1)
    await one.take(late.record, cast.mesh.sign(late, UNKNOWN, b"k", b"x", NOW.wall_ms << 16))
    two.pass_s(2)
    one.pass_s(2)
    sent, cores = await level(one, two)
    assert sent <= 2 + 2 * 3 * len(Lane)
    for lane in (Lane.CONTROL, Lane.HIVE):
        for node, other in ((one, two), (two, one)):
            lacking = set(node.replica.ids_of(lane)) - set(other.replica.ids_of(lane))
            offered = [parse_untrusted(w) for w in node.replica.wires(list(lacking))]
            for record in offered:
                verdict = other.replica._judge(record, other.now.wall_ms)
                newer = store.register(other.database.reader, record.author, record.kind, record.key)
                assert verdict in (Verdict.HOLD, Verdict.EXPIRED) or (newer is not None and newer.order >= record.order)
    for _ in range(2):
        asked: list[bytes] = []
        again, cores = await level(one, two, cores, asked)
        assert again <= 2 + 2 * len(Lane) + 4, "digests, pages of lanes the clocks hold apart, and what is held back"
        assert set(asked) <= {r.record_id for node in (one, two) for r in held_back(node, one, two)}


async def test_a_comparison_of_level_replicas_costs_one_message_each(cast: Cast):
    one, two = cast.node(), cast.node(cast.mini)
    for number in range(30):
        await one.replica.publish(UNKNOWN, bytes([number]), b"x")
    _, cores = await level(one, two)
    assert one.replica.ids_of(Lane.HIVE) == two.replica.ids_of(Lane.HIVE)
    assert (await level(one, two, cores))[0] == 2
    assert cores[one].control_settled
    assert cores[two].control_settled
