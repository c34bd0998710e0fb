"""A world: its machines, its network, its plan; run it, and say what was wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import trio

from mesh import certificates, dialer, granting, kinds, listener, presence, store
from mesh.base import crypto
from mesh.base.errors import MeshError
from mesh.base.names import MeshId, NodeId, node_id
from mesh.certificates import mesh_id
from mesh.identity import Belongings, founding
from mesh.kinds import LESSON, SESSION
from mesh.pairing import join_over
from tests.sim import clockwork
from tests.sim.checks import Checks, Violation
from tests.sim.clockwork import Drawn, replaced
from tests.sim.desk import Spawned
from tests.sim.disk import Crash
from tests.sim.happenings import WORKING, Happenings
from tests.sim.machine import Machine
from tests.sim.network import Network, open_client_pipe, open_server_pipe
from tests.sim.plan import Plan

LOOK_S = 5.0
WATCH_S = 15.0
HEAL_S = 420.0
QUOTAS = {LESSON: 12, SESSION: 10}
UNKNOWN_QUOTA = 8
SLOWED = {"TICK_S": 5.0, "QUIET_S": 5.0, "QUIET_FAR_S": 5.0, "SILENT_S": 5.0, "LAG_S": 5.0, "JUMP_S": 1.0, "PERIOD_S_MIN": 1.0}
"""What a plan slows, and by how much more than the rest: a sign of life a second from everybody would be half of all work."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a world.

    Attributes:
        wrong: The invariant that does not hold, and how; empty where all hold.
        level_s: How long after healing everybody was level.
    """

    wrong: str
    digest: str
    level_s: float
    messages: int
    simulated_s: float
    trace: tuple[str, ...]


@contextlib.contextmanager
def _slowed(factor: float) -> Iterator[None]:
    """Slow the heartbeats of every room, and make the quotas small enough to be reached."""
    with ExitStack() as stack:
        for room in [m for n, m in sorted(sys.modules.items()) if n.partition(".")[0] == "mesh"]:
            for name, more in SLOWED.items():
                if isinstance(getattr(room, name, None), float):
                    stack.enter_context(replaced((room, name, getattr(room, name) * factor * more)))
        for room in ("mesh.dialling",):
            held = sys.modules[room]
            stack.enter_context(replaced((held, "LOOK_S", held.LOOK_S * factor)))  # type: ignore[attr-defined]
        table = dict(kinds.KINDS)
        for number, quota in QUOTAS.items():
            kinds.KINDS[number] = dataclasses.replace(table[number], quota=quota)
        stack.callback(kinds.KINDS.update, table)
        stack.enter_context(replaced((kinds, "UNKNOWN_QUOTA", UNKNOWN_QUOTA)))
        yield


class World:
    """One simulated mesh.

    Args:
        plan: What happens.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.seed = plan, plan.seed
        self.canary = Drawn(plan.seed, "canary")(16)
        self.network = Network(plan.seed, self.canary)
        self.spawned = Spawned()
        owners = ["ana" if number % 3 != 2 else "ben" for number in range(plan.nodes)]
        self.machines = [Machine(self, f"m{i}", f"10.0.0.{i + 1}:9847", owners[i]) for i in range(plan.nodes)]
        self.mesh = MeshId(bytes(16))
        self.root_id = NodeId(bytes(16))
        self.root_key = b""
        self.expelled: dict[NodeId, float] = {}
        self.revoked: dict[bytes, float] = {}
        self.invites: list[bytes] = []
        self.acked: dict[tuple[str, int, bytes], tuple[int, bytes]] = {}
        self.newest: dict[tuple[str, int, bytes], tuple[bytes, float]] = {}
        self.expiring: Machine | None = self.machines[1] if plan.short_lived else None
        self.evil_id = NodeId(bytes(16))
        self.noticed_s = 4 * presence.PERIOD_S_MIN + 30
        self.relearns_s = 180.0
        self.ending = False
        self._ben: Belongings | None = None
        self._wrong = ""
        self.checks: Checks = Checks(self, crypto.verify)

    # What the checks ask ---------------------------------------------------------------------------------------

    def staying(self) -> list[Machine]:
        """The machines nobody expelled, and whose certificates do not run out."""
        return [m for m in self.machines if m.id not in self.expelled and m is not self.expiring]

    def named(self, name: str) -> Machine:
        """Look up a machine."""
        return next(m for m in self.machines if m.name == name)

    def by_id(self, node: NodeId) -> Machine:
        """Look up a machine."""
        return next(m for m in self.machines if m.id == node)

    def public_keys(self) -> dict[NodeId, bytes]:
        """Everybody who may have signed something."""
        return {self.root_id: self.root_key} | {m.id: m.keys["node"].public for m in self.machines if m.keys}

    def authorities(self) -> set[NodeId]:
        """Who may certify and expel."""
        return {self.root_id, self.machines[0].id}

    def viewers(self, since_s: float) -> list[Machine]:
        """Honest machines that have been up, awake and right about the time for a while."""
        now = trio.current_time()
        return [m for m in self.staying() if m.up and m.honest and m.asleep_since_s is None and now - max(m.up_since_s, m.woke_s) > since_s]

    def is_stored(self, machine: Machine, kind: int, key: bytes) -> bool:
        """Whether a machine's disk holds one of its registers."""
        author = machine.id
        return store.register(machine.disk.connections["mesh.db"], author, kind, key) is not None

    def acknowledged(self, machine: Machine, kind: int, key: bytes, body: bytes) -> None:
        """Note what a machine was told is stored."""
        record = store.register(machine.disk.connections["mesh.db"], machine.id, kind, key)
        if record is not None and record.body == body:
            self.acked[machine.name, kind, key] = record.order
            self.newest[machine.name, kind, key] = (body, trio.current_time())

    # Life ------------------------------------------------------------------------------------------------------

    def started(self, machine: Machine) -> None:
        """Note that a machine runs."""
        self.network.say(f"{machine.name} is up")

    def ended_by_itself(self, machine: Machine, group: BaseExceptionGroup[Any]) -> None:
        """A node never ends of what others do."""
        found: BaseException = group
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if isinstance(found, Violation):
            raise found
        at = traceback.extract_tb(found.__traceback__)[-1]
        self.checks.fail("I0", f"the node of {machine.name} ended: {type(found).__name__} {found} ({at.filename.rpartition('/')[2]}:{at.lineno})")

    def start(self, machine: Machine) -> None:
        """Start a machine that is not running."""
        if not machine.up and not self.ending:
            self._nursery.start_soon(machine.run)

    async def _settle(self) -> None:
        founder = self.machines[0]
        with founder.acting():
            goods = founding(name="m0", owner_name="ana", entropy=founder.entropy, now=founder.now())
            self.mesh, self.root_key = mesh_id(goods.genesis), goods.keys["root"].public
            self.root_id = node_id(self.root_key)
            founder.settle(goods)
        self.start(founder)
        while not founder.up:  # noqa: ASYNC110 - a start is a few steps, not an event
            await trio.sleep(0.05)
        for machine in self.machines[1:]:
            await self._let_in(machine)
        if self.plan.hostile:
            self.machines[-1].honest = False
            self.evil_id = self.machines[-1].id

    async def _let_in(self, machine: Machine) -> None:
        """Pair one more machine, over the real ``/join``."""
        founder = self.machines[0]
        person = None if machine.owner == "ana" else machine.owner
        _, body = await founder.ask(
            founder.pairing.mint, for_person=person, roles=WORKING, uses=1, ttl_s=600, addresses=[founder.address]
        )
        with machine.acting():
            life_s = int(20 + 0.4 * self.plan.chaos_s) if machine is self.expiring else certificates.LIFE_S
            async with dialer.open_join(founder.address) as pipe:
                with replaced((granting, "LIFE_S", life_s)):
                    goods, _, _ = await join_over(pipe, body, machine.name, machine.now, machine.entropy)
            known = ((founder.id, founder.address),)
            machine.settle(dataclasses.replace(goods, addresses=known))
        self.start(machine)

    async def run(self) -> None:
        """Settle, let everything happen, heal, become level."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.network.run)
            await self._settle()
            async with trio.open_nursery() as chaos:
                happenings = Happenings(self)
                for event in self.plan.events:
                    chaos.start_soon(self._happen, happenings, event)
                end_s = 20.0 + self.plan.chaos_s
                while trio.current_time() < end_s:
                    await trio.sleep(WATCH_S)
                    self.checks.while_faults()
                chaos.cancel_scope.cancel()
            await self._heal()
            self.ending = True
            self._nursery.cancel_scope.cancel()

    async def _happen(self, happenings: Happenings, event: Any) -> None:
        try:
            await happenings.happen(event)
        except* (Crash, MeshError):
            pass

    async def _heal(self) -> None:
        self.network.say("* everything is mended")
        self.network.cuts.clear()
        for machine in self.machines:
            station, disk = machine.station, machine.disk
            station.frozen, station.loss, station.delay_s, station.cpu_s, station.bytes_per_s = False, 0.0, 0.0, 0.0001, 12.5e6
            disk.full, disk.slow_s, disk.crash_in = False, 0.0, None
            machine.shift_ms, machine.asleep_since_s = 0, None
            self.start(machine)
        self.network.mend()
        started = trio.current_time()
        wrong = "nobody looked"
        while wrong:
            if trio.current_time() - started > HEAL_S:
                self.checks.fail(wrong.partition(":")[0], f"not level {HEAL_S:.0f} s after healing: {wrong.partition(': ')[2]}")
            await trio.sleep(LOOK_S)
            self.checks.while_faults()
            wrong = self.checks.not_level()
        self.level_s = trio.current_time() - started
        self.checks.after_healing()

    level_s = 0.0
    simulated_s = 0.0

    async def _watched(self) -> None:
        try:
            await self.run()
        except* Violation as group:
            found: BaseException = group
            while isinstance(found, BaseExceptionGroup):
                found = found.exceptions[0]
            self._wrong = str(found)
        self.simulated_s = trio.current_time()

    def outcome(self) -> Outcome:
        """Say what became of it."""
        return Outcome(self._wrong, self.network.digest(), self.level_s, self.network.messages, self.simulated_s, tuple(self.network.lines))


def play(plan: Plan, mutant: contextlib.AbstractContextManager[Any] | None = None) -> Outcome:
    """Run a world from beginning to end.

    Args:
        plan: What happens.
        mutant: A planted bug.
    """
    logging.disable(logging.CRITICAL)
    patches = (
        (dialer, "_connect", None), (dialer, "_host_of", lambda end: end.there.address), (dialer, "open_client_pipe", open_client_pipe),
        (listener, "open_server_pipe", open_server_pipe),
    )  # fmt: skip
    try:
        with _slowed(plan.slower), mutant or contextlib.nullcontext():
            world = World(plan)
            connect = (dialer, "_connect", world.network.connect)
            with replaced(*patches, connect), world.checks.watching():
                clockwork.run(plan.seed, world._watched)
            return world.outcome()
    finally:
        logging.disable(logging.NOTSET)

