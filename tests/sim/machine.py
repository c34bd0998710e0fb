"""One machine of a simulated world: the real node's parts, composed as ``node.app`` does, on a simulated disk and network."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from mesh import store
from mesh.base.clock import Now, version_ms
from mesh.base.names import NodeId
from mesh.certificates import mesh_id
from mesh.copies import boot_start_ms, make_boot
from mesh.identity import GENESIS_FACT, Belongings, Identity, _fill
from mesh.keyring import Keyring
from mesh.link import Link
from mesh.listener import Doors, _Port
from mesh.overlay import Overlay
from mesh.pairing import Pairing
from mesh.replica import Replica
from mesh.sealing import FleetSealer
from mesh.speaking import Place
from node.gatehouse import Gatehouse
from node.recovery import NOTE_S
from node.tasks import ledger
from tests.sim.clockwork import EPOCH_MS, HOST, Drawn
from tests.sim.desk import Desk
from tests.sim.disk import Crash, Disk, InlineDatabase
from tests.sim.network import Station

ARRIVALS_MAX = 64


class Machine:
    """One machine, through all its starts.

    Attributes:
        up: Whether its node runs.
        honest: Whether it keeps the protocol.
        restored_at_s: When an old copy of its databases was put back, or None.
        shift_ms: What its wall clock is off.
        drift: How much faster than the world's its clocks run.
        durable: Whether its databases wait for the disk, as the product's do.
    """

    durable = True

    def __init__(self, world: Any, name: str, address: str, owner: str) -> None:
        self.world, self.name, self.address, self.owner = world, name, address, owner
        self.station: Station = world.network.station(name, address)
        self.disk = Disk()
        self.disk.crashed = self._crashed
        self.entropy = Drawn(world.seed, "entropy", name)
        self.shift_ms = 0
        self.drift = 0.0
        self.asleep_since_s: float | None = None
        self.slept_s = 0.0
        self.up = False
        self.honest = True
        self.restored_at_s: float | None = None
        self.up_since_s = self.down_since_s = self.woke_s = 0.0
        self.most_ahead_ms = 0
        self.keys: dict[str, Any] = {}
        self.id: NodeId = NodeId(bytes(16))
        self.boots = 0
        self._scope: trio.CancelScope | None = None
        self.over = trio.Event()

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def now(self) -> Now:
        """Both clocks as this machine believes; during a sleep they stand still, and jump when it ends."""
        at = trio.current_time() if self.asleep_since_s is None else self.asleep_since_s
        return Now(EPOCH_MS + int(1000 * at * (1 + self.drift)) + self.shift_ms, 1000.0 + at * (1 + self.drift))

    def settle(self, goods: Belongings) -> None:
        """Make this machine a member, durably."""
        self.keys = dict(goods.keys)
        self.id = Identity(goods.keys["node"], None, b"", mesh_id(goods.genesis)).node_id
        database = InlineDatabase(self.disk, "mesh.db", store.SCHEMA)
        database.write_now(lambda connection: _fill(connection, goods, self.now().wall_ms))

    async def run(self) -> None:
        """Be a running node until stopped, crashed or cancelled."""
        HOST.set(self)
        self.over = trio.Event()
        self.disk.down = False
        self.boots += 1
        try:
            with trio.CancelScope() as self._scope:
                await self._run()
        except* Crash:
            self.disk.power_off()
        except* Exception as group:
            self.world.ended_by_itself(self, group)
        finally:
            self.up = False
            self.down_since_s = trio.current_time()
            self.disk.down = True
            self.station.listening = False
            self.over.set()

    async def _run(self) -> None:
        self.database = database = InlineDatabase(self.disk, "mesh.db", store.SCHEMA, durable=self.durable)
        tasks_db = InlineDatabase(self.disk, "tasks.db", ledger.SCHEMA, durable=self.durable)
        genesis = store.fact(database.reader, GENESIS_FACT)
        assert genesis is not None
        self.identity = Identity(self.keys["node"], self.keys.get("owner"), genesis, mesh_id(genesis))
        started, links = self.now(), {}
        self.replica = Replica(database, self.identity, self.now, links.keys, lambda: self.name)
        self.replica.raise_newest(int.from_bytes(self.disk.files.get("newest", b""), "big"))
        boot = make_boot(max(started.wall_ms, version_ms(self.replica.newest) + 1), self.entropy)
        self.keyring = Keyring(database, self.replica, self.now, self.entropy)
        self.gatehouse = Gatehouse(self.identity, self.keyring, self.replica, boot)
        place = Place(lambda: self.name, "hivemesh 1", boot, lambda: (self.address,), False, lambda: (0, 1))
        gates = self.gatehouse
        self.overlay: Any = Overlay(
            self.replica, database, place, gates.initiator, self.now, self.entropy, links, gates.responder, lambda: True, self.keyring
        )
        self.pairing = Pairing(database, self.identity, self.replica, self.now, self.entropy, self.keyring)
        self.sealer = FleetSealer(self.id, self.keyring.fleet, self._is_mine, entropy=self.entropy)
        doors = Doors(self.gatehouse.responder, self.pairing.is_open, self.pairing.serve, lambda: ())
        arrivals_in, arrivals = trio.open_memory_channel[Link](16)
        self.station.arrivals, knocking = trio.open_memory_channel(ARRIVALS_MAX)
        self.desk = Desk(self, tasks_db, self.world.spawned)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            nursery.start_soon(self._accept, _Port(doors, arrivals_in, self.now), knocking, nursery)
            nursery.start_soon(self.overlay.run, arrivals)
            nursery.start_soon(self.desk.run)
            nursery.start_soon(self._keep_mark, boot, started)
            self.station.listening, self.station.gone = True, False
            self.up, self.up_since_s = True, trio.current_time()
            self.world.started(self)

    async def _accept(self, port: Any, knocking: Any, nursery: trio.Nursery) -> None:
        async for end in knocking:
            nursery.start_soon(port._guarded, end)

    async def _keep_mark(self, boot: bytes, started: Now) -> None:
        """Keep beside the databases what this machine may have signed, as ``node.recovery`` does; a restore leaves it."""
        while True:
            lived_ms = int(1000 * (self.now().steady_s - started.steady_s)) + 1
            until = max(self.replica.newest, (boot_start_ms(boot) + lived_ms) << 16)
            if until - int.from_bytes(self.disk.files.get("newest", b""), "big") >= int(NOTE_S * 1000) << 16:
                self.disk.files["newest"] = until.to_bytes(8, "big")
            await trio.sleep(NOTE_S / 4)

    def _is_mine(self, node: NodeId) -> bool:
        member = self.replica.member(node)
        return member is not None and member.mine and member.state != "expelled"

    def _crashed(self) -> None:
        """The disk stopped this machine in the middle of a write."""
        self.world.network.say(f"{self.name} crashes at a write")
        self.world.network.power_off(self.station, silent=False)
        if self._scope is not None:
            self._scope.cancel()

    async def stop(self, *, silent: bool) -> None:
        """Kill the node (with resets), or take its power (in silence)."""
        if not self.up:
            return
        self.disk.down = True
        self.world.network.power_off(self.station, silent=silent)
        if self._scope is not None:
            self._scope.cancel()
        await self.over.wait()
        if silent:
            self.disk.power_off()

    async def ask(self, what: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        """Do something as this machine; one that stops meanwhile leaves it undone."""
        with self.acting():
            return await what(*args, **more)

    def linked(self, other: Machine) -> bool:
        """Whether this machine holds a link to another now."""
        return other.id in self.overlay.links

    @contextlib.contextmanager
    def acting(self) -> Any:
        """Do something as this machine."""
        token = HOST.set(self)
        try:
            yield self
        finally:
            HOST.reset(token)

