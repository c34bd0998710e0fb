"""Two real machines of one mesh, linked over a real socket on loopback."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from mesh.base.clock import Now, read_clock
from mesh.dialer import run_dial
from mesh.handshake import HelloCache, Initiator, Responder
from mesh.link import Link
from mesh.listener import Doors, open_listeners, run_listener
from mesh.pipe import Pipe
from tests.fakes.meshes import NOW, Machine, Mesh

GATE = b"gate".ljust(32, b"-")
HOST = "127.0.0.1"


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for a condition, with a deadline."""
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


@dataclass
class Machines:
    """A mesh with machines, who can accept and dial."""

    mesh: Mesh = field(default_factory=Mesh)

    def __post_init__(self) -> None:
        self.studio = self.mesh.founder
        self.mini = self.mesh.machine("mini")
        self.members = self.mesh.members()
        self.seen = HelloCache()
        self._counter = 1

    def initiator(self, machine: Machine, expected: Machine | None = None, gate: bytes = GATE) -> Initiator:
        self._counter += 1
        return Initiator(
            self.mesh.credentials(machine, self.members, counter=self._counter),
            gate,
            entropy=os.urandom,
            now=NOW,
            expected=None if expected is None else expected.node,
        )

    def responder(self, machine: Machine) -> Responder:
        self._counter += 1
        credentials = self.mesh.credentials(machine, self.members, counter=self._counter)
        return Responder(credentials, [GATE], self.seen, entropy=os.urandom, now=NOW)


async def _no_join(pipe: Pipe) -> None:
    raise AssertionError("nobody may join here")


@dataclass
class Port:
    """A listening machine."""

    address: str
    number: int
    links: trio.MemoryReceiveChannel[Link]


@asynccontextmanager
async def open_port(
    machines: Machines,
    machine: Machine | None = None,
    *,
    join: Callable[[Pipe], object] | None = None,
    join_open: Callable[[], bool] | None = None,
    host_names: tuple[str, ...] = (),
    clock: Callable[[], Now] = read_clock,
    host: str = HOST,
) -> AsyncIterator[Port]:
    """Let a machine (the founder) listen on a free port."""
    listeners = await open_listeners([(host, 0)])
    number = listeners[0].socket.getsockname()[1]
    send, receive = trio.open_memory_channel[Link](8)
    doors = Doors(
        responder=lambda: machines.responder(machine or machines.studio),
        join_open=join_open or (lambda: join is not None),
        join=join or _no_join,  # type: ignore[arg-type]
        host_names=lambda: host_names,
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_listener, listeners, doors, send, clock=clock))
        yield Port(f"{host}:{number}", number, receive)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_links(
    *, clock: Callable[[], Now] = read_clock, far_clock: Callable[[], Now] | None = None
) -> AsyncIterator[tuple[Link, Link]]:
    """Link two machines; gives the dialling side's link and the accepting side's, which may have a clock of its own."""
    machines = Machines()
    async with open_port(machines, clock=far_clock or clock) as port, trio.open_nursery() as nursery:
        dial = partial(
            run_dial, [port.address], lambda: machines.initiator(machines.mini, machines.studio), clock=clock
        )
        near = await nursery.start(dial)
        far = await port.links.receive()
        yield near, far
        nursery.cancel_scope.cancel()
