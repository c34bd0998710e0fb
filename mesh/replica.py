"""This machine's copy of what the mesh agrees on: publish, admit, list, wake.

Satisfies ``mesh.base.ports.Records`` and ``Directory``. Everything from a link enters by :meth:`Replica.take_untrusted`;
everything that changed the store leaves by ``pushed`` for the links that do not have it yet.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import trio

from mesh import kinds, presence, store
from mesh.base.clock import FUTURE_MS_MAX, Now, next_version, version_ms
from mesh.base.codec import Malformed, decode_untrusted
from mesh.base.db import Connection, Database
from mesh.base.errors import OurFault, Refused
from mesh.base.names import NodeId, OwnerId, clean_name
from mesh.base.ports import Entry, Member
from mesh.certificates import Certified, Genesis
from mesh.identity import Identity
from mesh.invites import LIFE_S_MAX
from mesh.kinds import CERTIFICATE, EXPULSION, PRESENCE, Lane, Role, role_names, rule_of
from mesh.members import Members
from mesh.presence import Heard
from mesh.records import Record, Verdict, admit, judge_rights, make, parse_untrusted
from mesh.schemas import BODIES

PUSHES_WAITING_MAX = 1024
PRESENCES_WAITING_MAX = 256
SWEEP_S = 60.0
JUDGED_S = 0.25
JUST_JOINED_S = 300
BEHIND_MS_MAX = 5 * 60 * 1000

log = logging.getLogger("hivemesh.replica")


@dataclass(frozen=True, slots=True)
class Push:
    """Records that changed this store and go on to every link but the one they came from."""

    records: tuple[Record, ...]
    source: NodeId | None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of records from a link.

    Attributes:
        arrived: Id and whether the door refused it, for the link's reconciler.
    """

    arrived: tuple[tuple[bytes, bool], ...]
    forged: int


class Replica:
    """The replicated registers of one mesh, on this machine.

    Args:
        database: ``mesh.db``, open.
        identity: Who this machine is.
        read_clock: Reads both clocks.
        linked: The machines this one holds a link to now.
        my_name: What this machine is called now; its certificate holds the name it joined with.
    """

    def __init__(
        self,
        database: Database,
        identity: Identity,
        read_clock: Callable[[], Now],
        linked: Callable[[], Collection[NodeId]],
        my_name: Callable[[], str],
    ) -> None:
        self._database = database
        self._identity = identity
        self._read_clock = read_clock
        self._linked = linked
        self._my_name = my_name
        self._genesis = decode_untrusted(Genesis, identity.genesis, bytes_max=200)
        self.newest = store.newest_version(database.reader, identity.node_id)
        self.own_came_back = False
        """Whether a peer held something this machine wrote and has no more: its database is an old one."""
        self._watchers: list[tuple[frozenset[int], trio.MemorySendChannel[None]]] = []
        self._presence_in, self.presences = trio.open_memory_channel[Record](PRESENCES_WAITING_MAX)
        self._push_in, self.pushed = trio.open_memory_channel[Push](PUSHES_WAITING_MAX)
        self.members_now = self._fold()
        self._own_held = self.members_now.certificates.get(identity.node_id)
        self._judged: tuple[frozenset[NodeId], float, dict[NodeId, str]] | None = None
        self.doubt = presence.Doubt()
        self._heard: dict[NodeId, Heard] = {}
        self._seen_ms: dict[NodeId, int] = {}
        now = read_clock()
        for record, received_ms in store.records_of(database.reader, PRESENCE, now.wall_ms):
            self._hear(record, received_ms, now.steady_s - max(0, now.wall_ms - received_ms) / 1000)

    def _fold(self) -> Members:
        return Members(
            self._genesis, self._identity.mesh, store.lane_records(self._database.reader, Lane.CONTROL)
        )

    def _hear(self, record: Record, received_ms: int, at_s: float) -> None:
        held = self._heard.get(record.author)
        said = presence.read_untrusted(record)
        if said is None:
            self._heard.pop(record.author, None)
        elif held is None or record.version > held.version:
            self._heard[record.author] = Heard(said, record.version, at_s)
        self._seen_ms[record.author] = max(received_ms, self._seen_ms.get(record.author, 0))

    # Directory -------------------------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This machine, as its certificate and its settings say; ``live`` unless it is expelled or expired."""
        return replace(self._member(self._own, "live", self._read_clock()), name=self._my_name())

    def member(self, node: NodeId) -> Member | None:
        """Look up one machine, also an expelled one; None where no certificate is known."""
        certified = self.members_now.certificates.get(node)
        if certified is None:
            return None
        now = self._read_clock()
        return self._member(certified, self._states(now).get(node, "live"), now)

    def members(self) -> list[Member]:
        """List every machine but this one, by name; who was let in for a while only is gone once that is over."""
        now = self._read_clock()
        states = self._states(now)
        others = (c for n, c in self.members_now.certificates.items() if n != self._identity.node_id)
        there = (c for c in others if not _is_over(c, now.wall_ms // 1000))
        return sorted((self._member(c, states.get(c.node, "gone"), now) for c in there), key=lambda m: (m.name, m.node))

    def _states(self, now: Now) -> dict[NodeId, str]:
        """Judge everybody; the judgement holds for a moment, since one command asks for every member."""
        linked = frozenset(self._linked())
        if self._judged is None or self._judged[0] != linked or now.steady_s >= self._judged[1]:
            certificates = self.members_now.certificates
            # What a machine says that is out counts for nobody, also not as a way to somebody else.
            counted = [node for node, certified in certificates.items() if not self.members_now.is_out(certified) and node not in self.members_now.left]
            found = self.doubt.judge(self._identity.node_id, counted, linked, self._heard, now.steady_s)
            self._judged = (linked, now.steady_s + JUDGED_S, found)
        return self._judged[2]

    @property
    def _own(self) -> Certified:
        assert self._own_held is not None, "a settled home holds its own certificate"
        return self._own_held

    def _owner_of(self, certified: Certified) -> OwnerId:
        author = self.members_now.author(certified.node)
        return certified.owner if author is None else author.owner

    def _member(self, certified: Certified, state: str, now: Now) -> Member:
        node, heard = certified.node, self._heard.get(certified.node)
        linked = node in self._linked()
        if state == "gone" and node not in self._seen_ms and now.wall_ms // 1000 - certified.not_before_s < JUST_JOINED_S:
            state = "stale"  # It has only just joined; nobody has heard of it yet.
        if self.members_now.is_out(certified):
            state = "expelled"
        elif node in self.members_now.left:
            state = "gone"
        elif certified.not_after_s is not None and now.wall_ms // 1000 > certified.not_after_s:
            state = "expired"
        owner = self._owner_of(certified)
        return Member(
            node=node,
            public_key=certified.public_key,
            name=certified.name if heard is None else clean_name(heard.presence.name, fallback=certified.name),
            owner=owner,
            owner_name=certified.owner_name,
            mine=owner == self._owner_of(self._own),
            roles=frozenset(role_names(certified.roles)),
            state=state,
            last_seen_ms=now.wall_ms if linked else self._seen_ms.get(node),
            linked=linked,
            addresses=() if heard is None else heard.presence.addresses,
            version=None if heard is None else heard.presence.software,
        )

    @property
    def heard(self) -> Mapping[NodeId, Heard]:
        """The newest presence of every machine that was heard of."""
        return self._heard

    def boot_of(self, node: NodeId) -> bytes | None:
        """The boot id in a machine's newest presence."""
        heard = self._heard.get(node)
        return None if heard is None else heard.presence.boot

    # Records ---------------------------------------------------------------------------------------------------

    def _issue(self) -> int:
        """The next version of this author, never far from the clocks of the machines it is linked to.

        A clock that jumped to another century would else make every later record of this machine be held back, also
        after it was mended; one that is an hour slow would make its sessions run out on arrival.
        """
        self.newest = next_version(self.now_ms(), self.newest)
        return self.newest

    def now_ms(self) -> int:
        """Read the wall clock, kept near the clocks of the machines this one is linked to."""
        now = self._read_clock()
        wall_ms = now.wall_ms
        linked = self._linked()
        peers_ms = [
            version_ms(heard.version) + int(1000 * (now.steady_s - heard.at_s))
            for node, heard in self._heard.items()
            if node in linked
        ]
        if peers_ms:
            median_ms = int(statistics.median(peers_ms))
            wall_ms = max(min(wall_ms, median_ms + FUTURE_MS_MAX), median_ms - BEHIND_MS_MAX)
        return wall_ms

    @property
    def clock_ahead_ms(self) -> int:
        """How far this machine's newest version is ahead of its wall clock; more than ten minutes is a fault."""
        return version_ms(self.newest) - self._read_clock().wall_ms

    async def publish(self, kind: int, key: bytes, body: bytes) -> bytes:
        """Sign, store durably and push one register of this machine.

        Args:
            kind: A number of the table.
            key: At most 32 bytes.
            body: At most the kind's bytes.

        Returns:
            The record id.

        Raises:
            Refused: This machine's roles do not allow it, or the body breaks the kind's schema or size.
            StorageFull, OurFault: The disk refuses; nothing was published.

        If cancelled: the register is published whole or not at all.
        """
        name = rule_of(kind).name
        try:
            record = self.sign(kind, key, body)
        except Malformed as malformed:
            raise Refused(f"this machine may not publish that {name}: {malformed.message}", reason="unsound") from None
        # This clock may be wrong, also back from a jump: whether the time fits is for the other machines to say.
        verdict = self._judge(record, version_ms(record.version))
        if verdict is not Verdict.ADMIT:
            raise Refused(f"this machine may not publish that {name}: {verdict.value}", reason=verdict.name.lower())
        await self._keep([record], source=None)
        return record.record_id

    async def publish_signed(self, records: Sequence[Record]) -> None:
        """Push records that were signed and stored elsewhere in this node (a certificate issued by a pairing)."""
        self._changed(records)
        await self._pass_on(Push(tuple(records), None))

    def stored_nowait(self, records: Sequence[Record]) -> None:
        """Take up records that were stored elsewhere in this node; links get them by the next comparison."""
        self._changed(records)

    async def withdraw(self, kind: int, key: bytes) -> None:
        """Replace a register of this machine by a tombstone; nothing happens where there is none."""
        held = store.register(self._database.reader, self._identity.node_id, kind, key)
        if held is not None and held.body:
            await self.publish(kind, key, b"")

    def sign(self, kind: int, key: bytes, body: bytes) -> Record:
        """Sign a record without storing it; the caller stores it in its own transaction."""
        return make(self._identity.node, self._identity.mesh, kind, key, self._issue(), body)

    def entries(self, kind: int) -> list[Entry]:
        """List the admitted, unexpired registers of one kind, by current members, greatest version first."""
        found: list[Entry] = []
        for record, received_ms in store.records_of(self._database.reader, kind, self._read_clock().wall_ms):
            author = self.members_now.author(record.author)
            if author is None or author.expelled or not record.body:
                continue
            if judge_rights(record, author, self.members_now.author, BODIES) is not Verdict.ADMIT:
                continue
            found.append(
                Entry(record.author, author.owner, record.kind, record.key, record.version, record.record_id, record.body, received_ms)
            )
        return found

    def withdrawn(self, kind: int) -> dict[bytes, int]:
        """List this machine's own registers of one kind that stand withdrawn: key to the version of the tombstone."""
        held = store.records_of(self._database.reader, kind, self._read_clock().wall_ms)
        return {r.key: r.version for r, _ in held if r.author == self._identity.node_id and not r.body}

    def changes(self, kinds_wanted: Collection[int]) -> trio.MemoryReceiveChannel[None]:
        """Wake whenever a register of these kinds changed; at most one wake waits."""
        send, receive = trio.open_memory_channel[None](1)
        self._watchers.append((frozenset(kinds_wanted), send))
        return receive

    # Links -----------------------------------------------------------------------------------------------------

    def ids_of(self, lane: Lane) -> list[bytes]:
        """The sorted ids of a lane as offered now."""
        return store.lane_ids(self._database.reader, lane, self._read_clock().wall_ms)

    def holds(self, record_id: bytes) -> bool:
        """Whether a record is held."""
        return store.holds(self._database.reader, record_id)

    def wires(self, record_ids: Sequence[bytes]) -> list[bytes]:
        """The bytes of the records held among these ids."""
        return store.wires(self._database.reader, record_ids)

    async def take_untrusted(self, wires: Sequence[bytes], source: NodeId) -> Taken:
        """Take records from a link: judge each, store the sound ones, push on what was new.

        Args:
            wires: Anything.
            source: The machine whose link they came over.

        Returns:
            What became of each.

        Raises:
            StorageFull, OurFault: The disk refuses; none was stored.
        """
        arrived: list[tuple[bytes, bool]] = []
        forged = 0
        parsed: list[Record] = []
        for wire in wires:
            try:
                parsed.append(parse_untrusted(wire))
            except Malformed:
                forged += 1
        parsed.sort(key=lambda r: (r.kind != CERTIFICATE, r.author != self.members_now.root, r.order))
        sound: list[Record] = []
        for record in parsed:
            held = store.register(self._database.reader, record.author, record.kind, record.key)
            if held is not None and held.order >= record.order:
                # What stands here already is not asked for again, nor is what it superseded.
                arrived.append((record.record_id, held.record_id != record.record_id))
                continue
            verdict = self._judge(record, self._read_clock().wall_ms)
            forged += verdict is Verdict.FORGED
            # What this clock (it may be wrong today) or an unknown author keeps out is not refused for good: it is asked for again.
            refused = verdict not in (Verdict.ADMIT, Verdict.HOLD, Verdict.EXPIRED, Verdict.UNKNOWN_AUTHOR)
            arrived.append((record.record_id, refused))
            if verdict is Verdict.ADMIT:
                sound.append(record)
                if record.kind in (CERTIFICATE, EXPULSION):
                    await self._keep([record], source)
                    sound.pop()
        if sound:
            await self._keep(sound, source)
        return Taken(tuple(arrived), forged)

    def _judge(self, record: Record, now_ms: int) -> Verdict:
        return admit(
            record, mesh=self._identity.mesh, author_of=self.members_now.author, bodies=BODIES, now_ms=now_ms
        )

    async def _keep(self, records: Sequence[Record], source: NodeId | None) -> None:
        now_ms = self._read_clock().wall_ms
        with trio.CancelScope(shield=True):
            # What is on the disk must be known here and go out, although whoever wanted it has gone meanwhile.
            fresh = await self._database.write(lambda connection: store.put_records(connection, records, now_ms))
            if fresh:
                self._note_own(fresh, source)
                self._changed(fresh)
        if fresh:
            await self._pass_on(Push(tuple(fresh), source))

    def _note_own(self, fresh: Sequence[Record], source: NodeId | None) -> None:
        """Issue above every own version peers bring back, so that what is written from now on wins."""
        own = [record.version for record in fresh if record.author == self._identity.node_id]
        if own and source is not None:
            self.raise_newest(max(own))
            self.own_came_back = True

    def raise_newest(self, version: int) -> None:
        """Issue above a version this author is known to have used."""
        self.newest = max(self.newest, version)

    async def _pass_on(self, push: Push) -> None:
        """Hand a push to the links; a cancellation keeps it back only where so many wait that it must wait too."""
        try:
            self._push_in.send_nowait(push)
        except trio.WouldBlock:
            await self._push_in.send(push)

    def _changed(self, records: Sequence[Record]) -> None:
        """Fold what changed and wake who watches."""
        self._judged = None
        now = self._read_clock()
        if any(rule_of(r.kind).lane is Lane.CONTROL for r in records):
            self.members_now = self._fold()
            # An admin's broken successor of this machine's certificate does not make it a stranger to itself.
            self._own_held = self.members_now.certificates.get(self._identity.node_id, self._own_held)
        for record in records:
            if record.kind == PRESENCE and record.author != self._identity.node_id:
                self._hear(record, now.wall_ms, now.steady_s)
            if record.kind == PRESENCE:
                with suppress(trio.WouldBlock):
                    self._presence_in.send_nowait(record)
        self.wake({record.kind for record in records})

    def wake(self, changed: Collection[int]) -> None:
        """Wake the watchers of these kinds; one whose reader has gone is forgotten."""
        for watcher in list(self._watchers):
            wanted, channel = watcher
            if not wanted.isdisjoint(changed):
                try:
                    channel.send_nowait(None)
                except trio.WouldBlock:
                    continue  # One wake is waiting already; its reader will see this change too.
                except trio.BrokenResourceError:
                    self._watchers.remove(watcher)

    async def run_sweep(self) -> None:
        """Delete expired records, and what expelled machines wrote, once a minute, until cancelled."""
        while True:
            now_ms = self._read_clock().wall_ms
            try:
                if await self._database.write(partial(self._sweep, now_ms=now_ms)):
                    self.wake(set(kinds.KINDS))
            except OurFault as fault:
                log.error("expired records were not deleted: %s", fault.message)
            await trio.sleep(SWEEP_S)

    def _sweep(self, connection: Connection, now_ms: int) -> int:
        """Runs in the writer's thread; a fold is never changed in place, so it may be read there."""
        members = self.members_now
        for certified in members.certificates.values():
            if members.is_out(certified) and certified.node != self._identity.node_id:
                store.drop_author(connection, certified.node)
        return store.sweep(connection, now_ms, now_ms // 1000)

    def may(self, role: Role) -> bool:
        """Whether this machine has a role."""
        return bool(self._own.roles & role)


def _is_over(certified: Certified, now_s: int) -> bool:
    """Whether a machine was let in for a while only, and that is over."""
    end_s = certified.not_after_s
    return end_s is not None and now_s > end_s and end_s - certified.not_before_s <= LIFE_S_MAX
