"""What this machine says of itself to all others, and when: at once where something changed, in steady periods else.

Changes that follow each other fast are told together, and after a few in a row only now and then, so that a machine whose
links come and go does not make the whole mesh carry it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from mesh.base.clock import Now
from mesh.base.codec import encode
from mesh.base.errors import OurFault, Refused
from mesh.base.names import NodeId
from mesh.kinds import PRESENCE
from mesh.presence import GATHER_S, LINKS_MAX, TICK_S, Flapping, Presence, link_mark, period_s
from mesh.replica import Replica
from mesh.topology import Allowance

ADDRESS_BYTES_MAX = 80
"""A longer address (the name of a host, told by hand) does not fit into a presence and is left out."""
PRESENCE_BURST = 3
"""Presences that changes bring forth in a row; further ones come in four a period."""
BURSTS_A_PERIOD = 4

log = logging.getLogger("hivemesh.speaking")


@dataclass(frozen=True, slots=True)
class Place:
    """What this machine says of itself in its presence.

    Attributes:
        addresses: Where it can be dialled, at most four, ``host:port``.
        loopback: Whether this node listens on loopback only; then other machines' loopback addresses are its own host's.
        load: Tasks running here for others, and its slots.
    """

    name: Callable[[], str]
    software: str
    boot: bytes
    addresses: Callable[[], tuple[str, ...]]
    loopback: bool
    load: Callable[[], tuple[int, int]]


class Speaking:
    """Publishes this machine's presence.

    Args:
        replica: This machine's copy of the mesh.
        place: What to say of this machine.
        since_s: The machines it holds a link to now, and since when on the steady clock.
        read_clock: Reads both clocks.
        draw: A number in [0, 1) from the node's randomness.
    """

    def __init__(
        self,
        replica: Replica,
        place: Place,
        since_s: Callable[[], Mapping[NodeId, float]],
        read_clock: Callable[[], Now],
        draw: Callable[[], float],
    ) -> None:
        self._replica = replica
        self._me = replica.me.node
        self._place = place
        self._since_s = since_s
        self._read_clock = read_clock
        self._draw = draw
        self._flapping = Flapping()
        self._speak_now = trio.Event()

    async def run(self) -> None:
        """Speak until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_ticks)
            await self._run_speaking()

    def speak(self) -> None:
        """Say soon what changed about this machine: its name, addresses, load or links."""
        self._speak_now.set()

    def ended(self, node: NodeId) -> None:
        """Note that the link to a machine ended."""
        self._flapping.ended(node, self._read_clock().steady_s)
        self._speak_now.set()

    async def _run_ticks(self) -> None:
        while True:
            self._replica.doubt.tick(self._read_clock())
            await trio.sleep(TICK_S)

    async def _run_speaking(self) -> None:
        period = period_s(len(self._replica.members_now.certificates))
        allowance = Allowance(PRESENCE_BURST, BURSTS_A_PERIOD / period, self._read_clock().steady_s)
        while True:
            self._speak_now = trio.Event()
            said, steady_in_s = self._presence()
            try:
                await self._replica.publish(PRESENCE, b"", encode(said))
            except (OurFault, Refused) as fault:
                # Refused: this machine was expelled; it says so, and goes on to serve whoever sits at it.
                log.error("presence was not published: %s", fault.message)
            if said.period_s != period:
                period = said.period_s
                allowance = Allowance(PRESENCE_BURST, BURSTS_A_PERIOD / period, self._read_clock().steady_s)
            changed = False
            with trio.move_on_after(min(steady_in_s, period * (0.9 + 0.1 * self._draw()))):
                await self._speak_now.wait()
                changed = True
            if changed or steady_in_s < period:
                await trio.sleep(max(GATHER_S, allowance.wait_s(self._read_clock().steady_s)))
                allowance.take(self._read_clock().steady_s)

    def _presence(self) -> tuple[Presence, float]:
        """What to say now, and in how many seconds a link becomes steady that is left out yet."""
        running, slots = self._place.load()
        now_s = self._read_clock().steady_s
        waits_s = {peer: self._flapping.wait_s(peer, since_s, now_s) for peer, since_s in self._since_s().items()}
        stated = sorted(peer for peer, wait_s in waits_s.items() if wait_s == 0)
        said = Presence(
            self._place.boot,
            period_s(len(self._replica.members_now.certificates)),
            self._place.name(),
            self._place.software,
            tuple(a for a in self._place.addresses() if len(a.encode()) <= ADDRESS_BYTES_MAX)[:4],
            tuple(link_mark(self._me, peer) for peer in stated)[:LINKS_MAX],
            running,
            slots,
        )
        return said, min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=float("inf"))
