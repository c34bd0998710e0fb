"""What this machine says of itself to all others, and when: at once where something changed, in steady periods else.

Changes that follow each other fast are told together, so that flapping is not amplified.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from mesh.base.codec import encode
from mesh.base.errors import OurFault, Refused
from mesh.base.names import NodeId
from mesh.kinds import PRESENCE
from mesh.presence import LINK_AGE_S_MIN, LINKS_MAX, Presence, link_mark, period_s
from mesh.replica import Replica

ADDRESS_BYTES_MAX = 80
"""A longer address (the name of a host, told by hand) does not fit into a presence and is left out."""
PRESENCE_BURST = 3
PRESENCE_REFILL_S = 2.0

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
        linked: The machines it holds a link to now.
        draw: A number in [0, 1) from the node's randomness.
    """

    def __init__(
        self, replica: Replica, place: Place, linked: Callable[[], Collection[NodeId]], draw: Callable[[], float]
    ) -> None:
        self._replica = replica
        self._me = replica.me.node
        self._place = place
        self._linked = linked
        self._draw = draw
        self._speak_now = trio.Event()

    def speak(self) -> None:
        """Say soon what changed about this machine: its name, addresses, load or links."""
        self._speak_now.set()

    async def run(self) -> None:
        """Speak until cancelled."""
        tokens, filled_at = float(PRESENCE_BURST), trio.current_time()
        while True:
            self._speak_now = trio.Event()
            tokens = min(PRESENCE_BURST, tokens + (trio.current_time() - filled_at) / PRESENCE_REFILL_S)
            filled_at = trio.current_time()
            if tokens < 1:
                await trio.sleep((1 - tokens) * PRESENCE_REFILL_S)
                tokens, filled_at = 1.0, trio.current_time()
            tokens -= 1
            members = len(self._replica.members_now.certificates)
            try:
                await self._replica.publish(PRESENCE, b"", encode(self._presence(members)))
            except (OurFault, Refused) as fault:
                log.error("presence was not published: %s", fault.message)
            with trio.move_on_after(period_s(members) * (0.9 + 0.1 * self._draw())):
                await self._speak_now.wait()
                await trio.sleep(LINK_AGE_S_MIN / 4)

    def _presence(self, members: int) -> Presence:
        running, slots = self._place.load()
        marks = tuple(link_mark(self._me, peer) for peer in sorted(self._linked()))[:LINKS_MAX]
        return Presence(
            self._place.boot,
            period_s(members),
            self._place.name(),
            self._place.software,
            tuple(a for a in self._place.addresses() if len(a.encode()) <= ADDRESS_BYTES_MAX)[:4],
            marks,
            running,
            slots,
        )
