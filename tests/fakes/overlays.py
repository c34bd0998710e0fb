"""Real machines of one mesh in this process: real stores, real keys, real listeners on loopback, no fakes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from mesh import store
from mesh.base.clock import Now, read_clock, version_ms
from mesh.base.db import Database
from mesh.base.errors import Unreachable
from mesh.base.names import NodeId
from mesh.copies import make_boot
from mesh.dialer import Initiator, open_join
from mesh.identity import Belongings, Identity, decide_move, finish_move, founding, read_identity
from mesh.keyring import Keyring
from mesh.kinds import Role
from mesh.link import Link
from mesh.listener import Doors, open_listeners, run_listener
from mesh.overlay import Held, Overlay
from mesh.pairing import Pairing, join_over
from mesh.replica import Replica
from mesh.sealing import FleetSealer
from mesh.speaking import Place
from node.gatehouse import Gatehouse

DEADLINE_S = 20
WORKING = Role.MEMBER | Role.WORKER | Role.RELAY


async def until(condition: Callable[[], object], seconds: float = DEADLINE_S) -> None:
    """Wait for a condition, with a deadline."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110 - whatever the part, its state is all there is to watch
            await trio.sleep(0.005)


@dataclass
class Machine:
    """One machine's mesh.

    Attributes:
        cut_off: While set, it can neither dial nor be dialled; its links are cut by :meth:`cut`.
    """

    folder: Path
    database: Database
    identity: Identity
    replica: Replica
    overlay: Overlay
    pairing: Pairing
    keyring: Keyring
    sealer: FleetSealer
    address: str
    scope: trio.CancelScope
    cut_off: bool = False

    @property
    def id(self) -> NodeId:
        return self.identity.node_id

    def linked(self, *others: Machine) -> bool:
        return all(other.id in self.overlay.links for other in others)

    def cut(self) -> None:
        """Lose every link at once, and find no way back until ``cut_off`` is unset."""
        self.cut_off = True
        for held in list(self.overlay.links.values()):
            held.link._pipe.abort()

    async def invited(self, name: str, *, for_person: str | None = None, roles: Role = WORKING) -> Belongings:
        """Let one more machine in, over the real ``/join``; gives what it has to settle with."""
        _, invite = await self.pairing.mint(for_person=for_person, roles=roles, uses=1, ttl_s=600, addresses=[self.address])
        async with open_join(self.address) as pipe:
            goods, _, _ = await join_over(pipe, invite, name, read_clock, secrets.token_bytes)
        return Belongings(goods.keys, goods.genesis, goods.records, goods.gates, goods.fleet_key, ((self.id, self.address),))


def founder(name: str = "one", owner: str = "ana") -> Belongings:
    """What the first machine of a mesh settles with."""
    return founding(name=name, owner_name=owner, entropy=secrets.token_bytes, now=read_clock())


@dataclass
class Clock:
    """Both clocks, with the wall clock moved by some milliseconds."""

    shift_ms: int = field(default=0)

    def __call__(self) -> Now:
        now = read_clock()
        return Now(now.wall_ms + self.shift_ms, now.steady_s)


@asynccontextmanager
async def open_machine(
    folder: Path,
    goods: Belongings | None = None,
    *,
    clock: Callable[[], Now] = read_clock,
    name: str | None = None,
    addresses: tuple[str, ...] | None = None,
    port: int = 0,
    relays: bool = True,
) -> AsyncIterator[Machine]:
    """Run a machine while the block lasts.

    Args:
        folder: Its home; with ``goods`` a new one, else one that was settled before.
        goods: From :func:`founder` or :meth:`Machine.invited`.
        clock: What it reads the time from.
        name: What it says it is called; None: as its folder.
        addresses: What it says of where it is; None: the truth.
        port: Where it listens; 0 takes a free one.
        relays: Whether it relays circuits.
    """
    if goods is not None:
        folder.mkdir()  # noqa: ASYNC240
        decide_move(folder, goods, clock().wall_ms)
        finish_move(folder)
    database = Database(folder / "mesh.db", store.SCHEMA)
    try:
        identity = read_identity(folder, database)
        listeners = await open_listeners([("127.0.0.1", port)])
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        links: dict[NodeId, Held] = {}
        said = name or folder.name
        replica = Replica(database, identity, clock, links.keys, lambda: said)
        boot = make_boot(max(clock().wall_ms, version_ms(replica.newest) + 1), secrets.token_bytes)
        keyring = Keyring(database, replica, clock, secrets.token_bytes)
        gatehouse = Gatehouse(identity, keyring, replica, boot)
        place = Place(lambda: said, "test 1", boot, lambda: (address,) if addresses is None else addresses, True, lambda: (0, 1))
        made: list[Machine] = []

        def initiator(expected: NodeId | None, older: int) -> Initiator:
            if made and made[0].cut_off:
                raise Unreachable("cut off")
            return gatehouse.initiator(expected, older)

        def responder():
            if made and made[0].cut_off:
                raise Unreachable("cut off")
            return gatehouse.responder()

        overlay = Overlay(replica, database, place, initiator, clock, secrets.token_bytes, links, responder, lambda: relays, keyring)
        pairing = Pairing(database, identity, replica, clock, secrets.token_bytes, keyring)
        doors = Doors(responder, pairing.is_open, pairing.serve, lambda: ())
        sealer = FleetSealer(identity.node_id, keyring.fleet, partial(_is_mine, replica), entropy=secrets.token_bytes)
        arrivals_in, arrivals = trio.open_memory_channel[Link](16)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_listener, listeners, doors, arrivals_in))
            nursery.start_soon(overlay.run, arrivals)
            made.append(Machine(folder, database, identity, replica, overlay, pairing, keyring, sealer, address, nursery.cancel_scope))
            yield made[0]
            nursery.cancel_scope.cancel()
    finally:
        database.close()


def _is_mine(replica: Replica, node: NodeId) -> bool:
    member = replica.member(node)
    return member is not None and member.mine


@asynccontextmanager
async def open_two(folder: Path) -> AsyncIterator[tuple[Machine, Machine]]:
    """Run two linked machines of one person."""
    async with open_machine(folder / "one", founder()) as one:
        goods = await one.invited("other")
        async with open_machine(folder / "other", goods) as other:
            await until(lambda: one.linked(other) and other.linked(one))
            yield one, other
