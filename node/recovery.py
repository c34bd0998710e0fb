"""What a node does whose databases came back from a backup: it serves no grant and lets nobody in until it knows more.

One sync of the control lane with another member brings revocations, expulsions and used invites back; then it goes on by
itself. Where there is no other member, a person says that the old state is meant (``doctor --accept-restore``).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import trio

from mesh.base.errors import MeshError
from mesh.base.names import NodeId
from mesh.overlay import Held
from mesh.replica import Replica
from node.calls import Call
from node.mark import ACCEPT_HINT, Keeper
from query.register import Register

NOTE_S = 60.0
"""How often the newest version is noted in the mark; a power cut loses at most that much of it."""
LOOK_S = 1.0
"""How often a held node looks whether a link has brought it up to date."""

log = logging.getLogger("node.recovery")


@dataclass(frozen=True, slots=True)
class Recovery:
    """The parts it looks at.

    Attributes:
        links: The links of this node.
        signed_until: The greatest moment anything this boot signed may speak of, as a version.
        apply: Ends the grants here whose revocation the mesh holds.
    """

    keeper: Keeper
    replica: Replica
    register: Register
    links: Mapping[NodeId, Held]
    signed_until: Callable[[], int]
    apply: Callable[[], Awaitable[None]]

    @property
    def suspended(self) -> bool:
        """Whether grants are not served and nobody is let in."""
        return self.keeper.restored

    def warnings(self) -> list[str]:
        """What a person should know now."""
        if not self.suspended:
            return []
        old = ", ".join(self.keeper.old) or "a database"
        return [f"{old} came back from a backup: grants are not served and nobody is let in until then: {ACCEPT_HINT}"]

    async def run(self) -> None:
        """Keep the mark, and hold or go on, until cancelled.

        If cancelled: the newest version is in the mark.
        """
        try:
            while True:
                try:
                    await self._look()
                except MeshError as fault:
                    log.error("the mark of this home cannot be kept: %s", fault.message)
                await trio.sleep(LOOK_S)
        finally:
            self._note_last()

    async def _look(self) -> None:
        if self.replica.own_came_back:
            self.replica.own_came_back = False
            if not self.suspended:
                self.keeper.suspect()
                log.warning("another machine held what this one wrote and has no more: %s", self.warnings()[0])
        if self.suspended:
            await self.register.hold(True)
            if any(held.exchange.level.is_set() for held in self.links.values()):
                await self._go_on("another member told what it knows")
        if self.signed_until() - self.keeper.mark.newest >= int(NOTE_S * 1000) << 16:
            self.keeper.note(self.signed_until())

    async def _go_on(self, why: str) -> None:
        """End first what was revoked meanwhile; only then serve again."""
        await self.apply()
        self.keeper.lift()
        await self.register.hold(False)
        log.warning("grants are served and invites are open again: %s", why)

    def _note_last(self) -> None:
        try:
            self.keeper.note(self.signed_until())
        except MeshError as fault:
            log.error("the mark of this home cannot be kept: %s", fault.message)

    async def accept(self, call: Call) -> object:
        """Go on with the old state: a person says that it is meant."""
        was = self.suspended
        if was:
            await self._go_on("a person accepted the old state")
        return {"accepted": was}
