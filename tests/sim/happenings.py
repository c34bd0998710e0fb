"""Everything an event of a plan may do to a world: faults, work, and what a hostile member does."""

from __future__ import annotations

from typing import Any

import trio

from mesh.base.codec import encode
from mesh.base.crypto import Context
from mesh.base.errors import MeshError
from mesh.certificates import Expulsion
from mesh.dialer import open_join
from mesh.kinds import ACCEPTANCE, EXPULSION, GRANT, GRANT_REVOCATION, LESSON, PRESENCE, SESSION, Role
from mesh.messages import MESSAGES, Records
from mesh.pairing import join_over
from mesh.presence import Presence, link_mark
from mesh.records import make
from mesh.schemas import AboutBody
from node.messages import TASK_MESSAGES, Offer, OfferBody
from tests.sim.clockwork import HOST
from tests.sim.desk import sound_spec
from tests.sim.machine import Machine
from tests.sim.plan import Event

WORKING = Role.MEMBER | Role.WORKER | Role.RELAY
BULK_BYTES = 2_000_000
FAR_MS = 10**11


class Happenings:
    """What happens in a world; every method is the name of an event.

    Args:
        world: Where.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._stale: list[bytes] = []

    async def happen(self, event: Event) -> None:
        """Let one event happen, and end by itself."""
        world = self._world
        await trio.sleep_until(event.at_s)
        world.network.say(f"* {event.what} {' '.join(f'{a:g}' for a in event.args)}")
        try:
            await getattr(self, event.what)(*event.args)
        except MeshError as fault:
            world.network.say(f"  {event.what}: {fault.message[:60]}")

    def _machine(self, number: float) -> Machine:
        found: Machine = self._world.machines[int(number) % len(self._world.machines)]
        return found

    # Faults ----------------------------------------------------------------------------------------------------

    async def _cut(self, ways: set[tuple[str, str]], lasts_s: float) -> None:
        network = self._world.network
        network.cuts |= ways
        try:
            await trio.sleep(lasts_s)
        finally:
            network.cuts -= ways
            network.mend()

    async def cut(self, a: float, b: float, lasts_s: float) -> None:
        """Nothing gets from a to b or back."""
        one, other = self._machine(a).name, self._machine(b).name
        await self._cut({(one, other), (other, one)}, lasts_s)

    async def cut_one_way(self, a: float, b: float, lasts_s: float) -> None:
        """Nothing gets from a to b; what b sends arrives."""
        await self._cut({(self._machine(a).name, self._machine(b).name)}, lasts_s)

    async def reset(self, a: float, b: float, lasts_s: float) -> None:
        """Every connection of two machines breaks."""
        self._world.network.reset(self._machine(a).station, self._machine(b).station)
        await trio.lowlevel.checkpoint()

    async def kill(self, a: float, lasts_s: float) -> None:
        """The node is killed, and started again."""
        await self._away(self._machine(a), lasts_s, silent=False)

    async def power(self, a: float, lasts_s: float) -> None:
        """The machine loses power, and gets it back."""
        await self._away(self._machine(a), lasts_s, silent=True)

    async def _away(self, machine: Machine, lasts_s: float, *, silent: bool) -> None:
        if machine.up:
            await machine.stop(silent=silent)
            try:
                await trio.sleep(lasts_s)
            finally:
                self._world.start(machine)

    async def crash(self, a: float, writes: float, after: float, lasts_s: float) -> None:
        """The machine stops at one of its next writes, just before or just after it reached the disk."""
        machine = self._machine(a)
        if not machine.up:
            return
        machine.disk.crash_in = (int(writes), bool(after))
        try:
            with trio.move_on_after(60):
                await machine.over.wait()
            await trio.sleep(lasts_s)
        finally:
            machine.disk.crash_in = None
            self._world.start(machine)

    async def full(self, a: float, lasts_s: float) -> None:
        """The disk is full."""
        machine = self._machine(a)
        machine.disk.full = True
        try:
            await trio.sleep(lasts_s)
        finally:
            machine.disk.full = False

    async def slow(self, a: float, lasts_s: float) -> None:
        """Machine, disk and line are slow."""
        machine = self._machine(a)
        station = machine.station
        station.cpu_s, station.bytes_per_s, machine.disk.slow_s = 0.02, 60_000.0, 0.2
        try:
            await trio.sleep(lasts_s)
        finally:
            station.cpu_s, station.bytes_per_s, machine.disk.slow_s = 0.0001, 12.5e6, 0.0

    async def lossy(self, a: float, lasts_s: float) -> None:
        """Packets are lost and late."""
        station = self._machine(a).station
        station.loss, station.delay_s = 0.2, 0.15
        try:
            await trio.sleep(lasts_s)
        finally:
            station.loss = station.delay_s = 0.0

    async def sleep(self, a: float, lasts_s: float) -> None:
        """The machine sleeps: nothing comes or goes, and its clocks jump when it wakes."""
        machine = self._machine(a)
        if machine.asleep_since_s is not None:
            return
        machine.asleep_since_s = trio.current_time()
        machine.station.frozen = True
        try:
            await trio.sleep(lasts_s)
        finally:
            machine.asleep_since_s, machine.woke_s = None, trio.current_time()
            machine.station.frozen = False
            self._world.network.mend()

    async def step(self, a: float, by_s: float, lasts_s: float) -> None:
        """The wall clock is set wrong, and right again later."""
        machine = self._machine(a)
        machine.shift_ms += int(by_s * 1000)
        machine.most_ahead_ms = max(machine.most_ahead_ms, machine.shift_ms)
        try:
            await trio.sleep(lasts_s)
        finally:
            machine.shift_ms -= int(by_s * 1000)

    async def restore(self, a: float, lasts_s: float) -> None:
        """The databases are put back to what they were a while ago."""
        machine = self._machine(a)
        if machine.id == self._world.machines[0].id:
            return  # The founder's copy would forget certificates it gave; its own tests cover that.
        image = machine.disk.image()
        await trio.sleep(lasts_s)
        if machine.up and machine.honest:
            await machine.stop(silent=False)
            machine.disk.put_back(image)
            machine.restored_at_s = trio.current_time()
            self._world.start(machine)

    # Work ------------------------------------------------------------------------------------------------------

    async def _publish(self, machine: Machine, kind: int, key: bytes, body: bytes) -> None:
        if machine.up:
            await machine.ask(machine.replica.publish, kind, key, body)
            self._world.acknowledged(machine, kind, key, body)

    async def session(self, a: float, b: float, n: float) -> None:
        """A session changes."""
        machine = self._machine(a)
        if machine.up:
            body = machine.sealer.seal(self._world.canary + b"%d" % int(n))
            await self._publish(machine, SESSION, b"session %02d" % int(n), body)

    async def lesson(self, a: float, b: float, n: float) -> None:
        """Something is learnt."""
        machine = self._machine(a)
        if machine.up:
            body = machine.sealer.seal(self._world.canary + bytes(int(40 * n)))
            await self._publish(machine, LESSON, b"lesson %02d" % int(n), body)

    async def withdraw(self, a: float, b: float, n: float) -> None:
        """Something is taken back."""
        machine = self._machine(a)
        if machine.up:
            await machine.ask(machine.replica.withdraw, LESSON, b"lesson %02d" % int(n))

    async def grant(self, a: float, b: float, n: float) -> None:
        """An outsider gets access."""
        machine = self._machine(a)
        await self._publish(machine, GRANT, b"grant %d%02d" % (int(a), int(n)), encode(AboutBody(machine.id, b"%d" % int(n))))

    async def revoke(self, a: float, b: float, n: float) -> None:
        """A grant of a machine of the same person is revoked."""
        machine, serving = self._machine(a), self._machine(b)
        if machine.owner == serving.owner:
            key = b"grant %d%02d" % (int(b), int(n))
            await self._publish(machine, GRANT_REVOCATION, key, encode(AboutBody(serving.id, key)))
            self._world.revoked[key] = trio.current_time()

    async def late_revoke(self, a: float, b: float, n: float) -> None:
        """A grant is revoked by a machine that has just started, alone, with a clock of another century."""
        machine = self._machine(a)
        if not machine.up or not machine.honest or machine is self._world.machines[0]:
            return
        await machine.stop(silent=False)
        machine.shift_ms += FAR_MS
        machine.most_ahead_ms = max(machine.most_ahead_ms, machine.shift_ms)
        machine.station.frozen = True
        try:
            self._world.start(machine)
            await trio.sleep(0.5)
            key = b"grant %d%02d" % (int(a), int(n))
            await self._publish(machine, GRANT_REVOCATION, key, encode(AboutBody(machine.id, key)))
        finally:
            machine.shift_ms -= FAR_MS
            machine.station.frozen = False
            self._world.network.mend()

    async def task(self, a: float, b: float, n: float) -> None:
        """A task is offered, three times under one name."""
        machine, worker = self._machine(a), self._machine(b)
        if not machine.up:
            return
        now_ms = machine.now().wall_ms
        body = encode(OfferBody(machine.entropy(16), 1, machine.id, worker.id, sound_spec(int(n)), 0, now_ms, now_ms + 300_000))
        signature = machine.keys["node"].sign(Context.OFFER, self._world.mesh, body)
        offer = TASK_MESSAGES.encode(Offer(body, signature))
        for attempt in range(3):
            if attempt == 0 and int(n) % 3 == 0 and worker.up:
                worker.disk.crash_at, worker.disk.crash_in = "tasks.db", ((0, 1, 2, 1)[int(n) // 3 % 4], False)  # It stops somewhere between taking the task and starting it.
            elif attempt == 1:
                worker.disk.crash_at, worker.disk.crash_in = "", None
                self._world.start(worker)
            if machine.up:
                await machine.ask(machine.desk.offer, offer, worker.id)
            await trio.sleep(2)

    async def invite(self, a: float, b: float, n: float) -> None:
        """Two machines race for one invite of one use."""
        founder = self._world.machines[0]
        if not founder.up or not self._machine(b).up:
            return
        _, body = await founder.ask(
            founder.pairing.mint, for_person="ben", roles=WORKING, uses=1, ttl_s=600, addresses=[founder.address]
        )
        self._world.invites.append(body.invite)
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(self._try_join, self._machine(b), body, f"guest{number}", founder.address)

    async def _try_join(self, over: Machine, body: Any, name: str, address: str) -> None:
        """Join from another machine's place, with a key nobody ever uses again."""
        HOST.set(over)
        try:
            async with open_join(address) as pipe:
                await join_over(pipe, body, name, over.now, over.entropy)
        except MeshError:
            return

    async def expel(self, a: float, b: float, n: float) -> None:
        """The founder expels somebody, as long as four are left."""
        founder, machine = self._world.machines[0], self._machine(a)
        if machine is founder or not founder.up or len(self._world.staying()) <= 4 or machine.id in self._world.expelled:
            return
        try:
            word = (EXPULSION, machine.id, encode(Expulsion(machine.id, ())))
            await founder.ask(founder.keyring.publish_with_new_keys, [word], gate=True, fleet=machine.owner == founder.owner)
        finally:
            if self._world.is_stored(founder, EXPULSION, machine.id):
                self._world.expelled[machine.id] = trio.current_time()

    async def bulk(self, a: float, b: float, n: float) -> None:
        """Much data goes to a machine that does not read it."""
        machine = self._machine(a)
        if not machine.up:
            return
        with trio.move_on_after(20):
            channel = await machine.ask(machine.overlay.open_channel, self._machine(b).id, 67, b"bulk", bulk=True)
            for _ in range(BULK_BYTES // 50_000):
                await channel.send(bytes(50_000))

    # A hostile member ------------------------------------------------------------------------------------------

    @property
    def _evil(self) -> Machine:
        found: Machine = self._world.machines[-1]
        return found

    def _sign(self, kind: int, key: bytes, body: bytes, version: int) -> bytes:
        return make(self._evil.keys["node"], self._world.mesh, kind, key, version, body).wire

    def _version(self, ahead_ms: int = 0) -> int:
        return (self._evil.now().wall_ms + ahead_ms) << 16

    def _send(self, wires: list[bytes], *, to: int | None = None) -> None:
        if not self._evil.up:
            return
        for number, held in enumerate(list(self._evil.overlay.links.values())):
            if to is None or number % 2 == to:
                for start in range(0, len(wires), 50):
                    held.link.send_message_nowait(MESSAGES.encode(Records(tuple(wires[start : start + 50]))))

    async def equivocate(self, n: float) -> None:
        """Two halves of the mesh are told different things under one version."""
        version = self._version()
        for half in (0, 1):
            self._send([self._sign(ACCEPTANCE, b"equivocal", self._evil.sealer.seal(b"half %d" % half), version)], to=half)
        await trio.lowlevel.checkpoint()

    async def flood(self, n: float) -> None:
        """Many small records at once, most of them false."""
        good = self._sign(LESSON, b"flood", self._evil.sealer.seal(b"x"), self._version())
        self._send([good[:-1] + bytes([i]) for i in range(7)] + [good])
        await trio.lowlevel.checkpoint()

    async def future(self, n: float) -> None:
        """Records of the next century."""
        self._send([self._sign(LESSON, b"future %d" % i, self._evil.sealer.seal(b"x"), self._version(10**9 * (i + 1))) for i in range(20)])
        await trio.lowlevel.checkpoint()

    async def false_neighbours(self, n: float) -> None:
        """It says that it holds links to everybody, or to nobody."""
        others = [m.id for m in self._world.machines[:-1]] if int(n) % 2 else []
        marks = tuple(link_mark(self._evil.id, other) for other in others)
        said = Presence(b"\0" * 8, 30, "evil", "evil 1", (self._evil.address,), marks, 0, 1)
        for step in range(3):
            self._send([self._sign(PRESENCE, b"", encode(said), self._version(60_000 * (step + 1)))])
            await trio.sleep(20)

    async def withhold(self, n: float) -> None:
        """It passes nothing on, and answers nothing."""
        if self._evil.up:
            self._evil.replica.wires = lambda ids: []
            self._evil.replica.ids_of = lambda lane: []
        await trio.lowlevel.checkpoint()

    async def stale(self, n: float) -> None:
        """It says again what was true long ago."""
        if self._stale:
            self._send(self._stale)
        database = self._evil.disk.connections["mesh.db"]
        self._stale = [row[0] for row in database.execute("SELECT wire FROM record ORDER BY id LIMIT 200")]
        await trio.lowlevel.checkpoint()

    async def stuff(self, n: float) -> None:
        """More records than its quota, of known and unknown kinds."""
        for kind in (LESSON, SESSION, 900, 901):
            self._send([self._sign(kind, b"%d" % i, self._evil.sealer.seal(b"%d" % i), self._version() + i) for i in range(40)])
        await trio.lowlevel.checkpoint()

    async def bomb(self, n: float) -> None:
        """Bytes that only look like a message."""
        bombs = (b"\x9f" * 200, b"\x81" * 5000, b"\xdb" + b"\xff" * 8, b"\xc0\x01", b"\x82\x04\x9b" + b"\xff" * 8, b"")
        if self._evil.up:
            for number, held in enumerate(list(self._evil.overlay.links.values())):
                held.link.send_message_nowait(bombs[(int(n) + number) % len(bombs)])
        await trio.lowlevel.checkpoint()
