"""The invariants. Each is a named method that looks at a world and says what is wrong, or nothing.

``WHILE`` run every few seconds and after every event, whatever faults there are; ``AFTER`` only when all faults are mended
and the machines had time to become level. What must hold at a single moment is watched by ``watching``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import trio

from mesh import link, overlay, reconcile, store
from mesh.base.clock import FUTURE_MS_MAX, version_ms
from mesh.base.crypto import Context
from mesh.base.names import NodeId
from mesh.certificates import certificate_body_untrusted
from mesh.kinds import CERTIFICATE, EPOCH, EXPULSION, GRANT_REVOCATION, LESSON, SESSION, Lane, rule_of
from mesh.records import quota_group
from tests.sim.clockwork import EPOCH_MS, HOST, replaced
from tests.sim.machine import Machine

GRACE_S = 5.0
ROUND_TRIP_S = 1.0
OURS = (CERTIFICATE, EPOCH, EXPULSION)
LEVEL = (Lane.CONTROL, Lane.HIVE, Lane.INVENTORY)


class Violation(AssertionError):
    """An invariant does not hold."""


def _records(machine: Machine) -> list[Any]:
    held = machine.disk.connections.get("mesh.db")
    return [] if held is None else [record for lane in Lane for record in store.lane_records(held, lane)]


class Checks:
    """All invariants of one world."""

    def __init__(self, world: Any, really_verify: Any) -> None:
        self._world = world
        self._verify = really_verify
        self._sound: set[bytes] = set()
        self._known_out: dict[tuple[str, bytes], float] = {}
        self._digests: dict[tuple[bytes, ...], tuple[bytes, bytes]] = {}
        self._keys: set[bytes] = set()

    def while_faults(self) -> None:
        """Everything that holds at any time."""
        for machine in self._world.machines:
            if machine.honest:
                self._i1_chain(machine)
                self._i9_bounds(machine)
                if machine.up:
                    self._i4_expelled(machine)
        self._i5_once()
        self._i7_invites()
        self._i8_gone()
        self._i11_plaintext()

    def fail(self, name: str, text: str) -> None:
        """Stop the world."""
        self._world.network.say(f"! {name}: {text}")
        raise Violation(f"{name}: {text}")

    def _i1_chain(self, machine: Machine) -> None:
        """No record is held without its author's signature and right."""
        keys = self._world.public_keys()
        for record in _records(machine):
            if record.wire in self._sound:
                continue
            key = keys.get(record.author)
            if key is None or not self._verify(key, Context.RECORD, self._world.mesh, record.wire[:-64], record.wire[-64:]):
                self.fail("I1", f"{machine.name} holds a record of kind {record.kind} that nobody signed")
            if record.kind in OURS and record.author not in self._world.authorities():
                self.fail("I1", f"{machine.name} holds {rule_of(record.kind).name} by somebody who may not")
            self._sound.add(record.wire)

    def _i9_bounds(self, machine: Machine) -> None:
        """No author has more records than its quota, and none of the far future."""
        counts: dict[tuple[bytes, int], int] = {}
        for record in _records(machine):
            group = (record.author, quota_group(record.kind))
            counts[group] = counts.get(group, 0) + 1
            if counts[group] > rule_of(record.kind).quota:
                self.fail("I9", f"{machine.name} holds more than the quota of kind {record.kind} of one author")
            true_ms = EPOCH_MS + int(1000 * trio.current_time())
            ahead_ms = version_ms(record.version) - true_ms - machine.most_ahead_ms
            if not rule_of(record.kind).terminal and record.author == self._world.evil_id and ahead_ms > FUTURE_MS_MAX + 120_000:
                self.fail("I9", f"{machine.name} holds a record of kind {record.kind} {ahead_ms} ms ahead")

    def _i4_expelled(self, machine: Machine) -> None:
        """Who is known to be expelled has no link, one round trip after that became known."""
        now, members = trio.current_time(), machine.replica.members_now
        for peer, held in machine.overlay.links.items():
            certified = members.certificates.get(peer)
            self._i1_expired(machine, held, certified)
            if certified is None or not members.is_out(certified):
                continue
            since = self._known_out.setdefault((machine.name, peer), now)
            if now - since > ROUND_TRIP_S and not held.link._ending.is_set():
                self.fail("I4", f"{machine.name} keeps a link to an expelled machine")

    def _i1_expired(self, machine: Machine, held: Any, certified: Any) -> None:
        """A link to a machine whose certificate has run out carries the control lane only."""
        end_s = None if certified is None else certified.not_after_s
        if end_s is not None and machine.now().wall_ms // 1000 > end_s and not held.exchange.reduced and not held.link._ending.is_set():
            self.fail("I1", f"{machine.name} works over a link by an expired certificate")

    def _i5_once(self) -> None:
        """No attempt at a task starts twice."""
        for (_, worker), count in self._world.spawned.starts.items():
            if count > 1 and self._world.by_id(worker).restored_at_s is None:
                self.fail("I5", f"one attempt was started {count} times")

    def _i7_invites(self) -> None:
        """An invite of one use makes at most one member."""
        for invite in self._world.invites:
            found = set()
            for machine in self._world.machines:
                for record in _records(machine) if machine.honest and len(self._world.invites) else ():
                    body = certificate_body_untrusted(record.body) if record.kind == CERTIFICATE else None
                    if body is not None and body.invite == invite:
                        found.add(body.public_key)
            if len(found) > 1:
                self.fail("I7", f"an invite of one use made {len(found)} members")

    def _i8_gone(self) -> None:
        """Nobody shows a machine as live that has been away for long."""
        world, now = self._world, trio.current_time()
        for machine in world.machines:
            if machine.up or now - machine.down_since_s < world.noticed_s:
                continue
            for viewer in world.viewers(world.noticed_s):
                seen = viewer.replica.member(machine.id)
                if seen is not None and not seen.linked and seen.state == "live":
                    self.fail("I8", f"{viewer.name} shows {machine.name} as live, which has been away for {now - machine.down_since_s:.0f} s")

    def _i11_plaintext(self) -> None:
        """Nothing sealed is seen on a line or in another person's store."""
        if self._world.network.leaked:
            self.fail("I11", f"plaintext on the line {self._world.network.leaked[0]}")
        for machine in self._world.machines:
            if machine.owner != "ana":
                held = machine.disk.connections.get("mesh.db")
                if held is not None and self._world.canary in b"".join(r.body for r in _records(machine)):
                    self.fail("I11", f"plaintext in the store of {machine.name}")

    # After healing ---------------------------------------------------------------------------------------------

    def not_level(self) -> str:
        """What still differs between the machines that stay; empty once they are level (I2, I3, I8)."""
        staying = [m for m in self._world.staying() if m.honest]
        down = [m.name for m in staying if not m.up]
        if down:
            return f"I2: {down} are down"
        for lane in LEVEL:
            held = {m.name: self._offered(m, lane) for m in staying}
            first = held[staying[0].name]
            for name, ids in held.items():
                if ids != first:
                    return f"I2: {name} and {staying[0].name} differ in {len(ids ^ first)} records of lane {lane.name.lower()}"
        return self._i10_revoked() or self._views_differ(staying) or self._somebody_away(staying)

    def _offered(self, machine: Machine, lane: Lane) -> frozenset[bytes]:
        """What a machine offers, without what others hold back for its time and what is about to expire."""
        at_ms = machine.now().wall_ms
        expelled = set(self._world.expelled)
        ahead = self._far_ahead()
        return frozenset(
            r.record_id
            for r in store.lane_records(machine.disk.connections["mesh.db"], lane)
            if version_ms(r.version) <= at_ms + FUTURE_MS_MAX - 60_000
            and (rule_of(r.kind).life_ms is None or version_ms(r.version) + (rule_of(r.kind).life_ms or 0) > at_ms + 120_000)
            and (lane is Lane.CONTROL or r.author not in expelled | ahead)
        )

    def _far_ahead(self) -> set[NodeId]:
        """Whose clock ran far ahead: what they wrote is held back by the others, who keep what they wrote before."""
        return {m.id for m in self._world.machines if m.most_ahead_ms > FUTURE_MS_MAX}

    def _views_differ(self, staying: list[Machine]) -> str:
        """I3: equal stores are equal views, and the expelled are in none."""
        views, ahead = {}, self._far_ahead()
        for machine in staying:
            entries = [e for kind in (LESSON, SESSION) for e in machine.replica.entries(kind)]
            if any(e.author in self._world.expelled for e in entries):
                return f"I3: {machine.name} still counts what an expelled machine wrote"
            at_ms = machine.now().wall_ms
            views[machine.name] = {e.record_id for e in entries if e.author not in ahead and version_ms(e.version) < at_ms + FUTURE_MS_MAX - 60_000 and not (e.kind == SESSION and version_ms(e.version) + 780_000 < at_ms)}
        first = views[staying[0].name]
        differing = [name for name, view in views.items() if view != first]
        return f"I3: {differing[0]} and {staying[0].name} see different entries" if differing else ""

    def _somebody_away(self, staying: list[Machine]) -> str:
        """I8: with every fault mended everybody is live for everybody."""
        for viewer in staying:
            for machine in staying:
                if machine is viewer or machine.replica.clock_ahead_ms > FUTURE_MS_MAX:
                    continue
                seen = viewer.replica.member(machine.id)
                if seen is None or seen.state != "live":
                    return f"I8: {viewer.name} shows {machine.name} as {seen.state if seen else 'unknown'}"
        return ""

    def after_healing(self) -> None:
        """What must be true of the level mesh."""
        self.while_faults()
        for (name, kind, key), order in self._world.acked.items():
            machine = self._world.named(name)
            # A clock that ran ahead lets what was written before run out, as it must.
            ran_out = rule_of(kind).life_ms is not None and (kind == SESSION or machine.most_ahead_ms > FUTURE_MS_MAX)
            if machine.restored_at_s is not None or not machine.honest or ran_out:
                continue
            held = machine.disk.connections["mesh.db"]
            record = store.register(held, machine.id, kind, key)
            full = len(list(held.execute("SELECT 1 FROM record WHERE author=? AND kind=?", (machine.id, kind)))) >= rule_of(kind).quota
            if (record is None and not full) or (record is not None and record.order < order):
                self.fail("I2", f"{name} lost what it had acknowledged, of kind {kind}")
        self._i2_restored()

    def _i10_revoked(self) -> str:
        """A revocation that was acknowledged is known everywhere, whatever its author's clock said."""
        for name, kind, key in self._world.acked:
            author = self._world.named(name)
            if kind != GRANT_REVOCATION or author not in self._world.staying() or author.restored_at_s is not None or not author.honest:
                continue
            for machine in self._world.staying():
                if machine.honest and store.register(machine.disk.connections["mesh.db"], author.id, kind, key) is None:
                    return f"I10: {machine.name} does not know of a revocation by {name}"
        return ""

    def _i2_restored(self) -> None:
        """What a machine writes after an old copy came back is not lost behind what it had written before."""
        for (name, kind, key), (body, at_s) in self._world.newest.items():
            machine = self._world.named(name)
            if machine.restored_at_s is None or at_s <= machine.restored_at_s + self._world.relearns_s or machine.id in self._world.expelled:
                continue
            for other in self._world.staying():
                record = store.register(other.disk.connections["mesh.db"], machine.id, kind, key)
                if other.honest and kind != SESSION and record is not None and record.body != body:
                    self.fail("I2", f"what {name} wrote after its old copy came back is not what {other.name} holds")

    # At a moment -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what must hold at a single moment: new links, used keys, salted comparisons."""
        keep, sealer, lane_digest = overlay.Overlay._keep, link.StreamSealer, reconcile.lane_digest
        checks = self

        async def kept(self: Any, formed: Any, *more: Any) -> None:
            checks.link_formed(formed)
            await keep(self, formed, *more)

        class Sealer(sealer):  # type: ignore[misc, valid-type]
            def __init__(self, key: bytes) -> None:
                if key in checks._keys:
                    checks.fail("I6", "one key of a link was used twice")
                checks._keys.add(key)
                self._over = False
                super().__init__(key)

            def push(self, plain: bytes, *, final: bool = False) -> bytes:
                if self._over:
                    checks.fail("I6", "a frame was sent behind the final one")
                self._over = final
                return super().push(plain, final=final)  # type: ignore[no-any-return]

        def salted(salt: bytes, ids: Any) -> bytes:
            found = lane_digest(salt, ids)
            before = checks._digests.setdefault(tuple(ids), (salt, found)) if ids else (salt, found)
            if before[0] != salt and before[1] == found:
                checks.fail("I6", "two sessions compare by the same digest")
            return found

        with replaced((overlay.Overlay, "_keep", kept), (link, "StreamSealer", Sealer), (reconcile, "lane_digest", salted)):
            yield

    def link_formed(self, formed: Any) -> None:
        """Nobody expelled gets a link, by what this machine knows at that moment."""
        machine: Any = HOST.get()
        if machine is None or not machine.honest:
            return
        certified = machine.replica.members_now.certificates.get(formed.peer)
        if certified is not None and machine.replica.members_now.is_out(certified) and not formed._ending.is_set():
            since = self._known_out.get((machine.name, formed.peer))
            if since is not None and trio.current_time() - since > GRACE_S:
                self.fail("I4", f"{machine.name} formed a link to an expelled machine")
