"""Records over one link: compare at link-up and every minute, answer wants, take what comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from mesh.base.codec import Malformed
from mesh.base.errors import OurFault, Unreachable
from mesh.link import Link
from mesh.messages import MESSAGE_BYTES_MAX, MESSAGES, Digests, Ids, Records, Want
from mesh.reconcile import Message, Reconciler, batches
from mesh.replica import Replica

COMPARE_S = 60.0
SETTLE_S = 5.0
"""Channels open after this long even where the control lane is not level yet; it catches up behind them."""
FORGED_MAX = 8
"""So many records with false signatures end a link: a sound peer sends none."""

log = logging.getLogger("hivemesh.exchange")


class Exchange:
    """One link's record exchange.

    Args:
        link: An open link.
        replica: This machine's copy.
        draw: A number in [0, 1) from the node's randomness, to spread the comparisons of a fleet.
    """

    def __init__(self, link: Link, replica: Replica, draw: Callable[[], float]) -> None:
        self._link = link
        self._replica = replica
        self._draw = draw
        self._reconciler = Reconciler(link.session.salt, replica.ids_of, replica.holds)
        self._forged = 0
        self.settled = trio.Event()

    async def run(self) -> None:
        """Exchange until the link closes or this is cancelled. A broken message ends the link, nothing else."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_comparisons)
            nursery.start_soon(self._bound_settling)
            async for data in self._link.messages:
                try:
                    message = MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX + 64)
                except Malformed as error:
                    self._link.close_nowait(f"malformed message: {error.message}")
                    break
                await self._handle(message)
                if self._reconciler.control_settled:
                    self.settled.set()
            nursery.cancel_scope.cancel()

    async def _run_comparisons(self) -> None:
        while True:
            await self._send(self._reconciler.start())
            await trio.sleep(COMPARE_S * (0.75 + 0.5 * self._draw()))

    async def _bound_settling(self) -> None:
        with trio.move_on_after(SETTLE_S):
            await self.settled.wait()
        self._reconciler.give_up_waiting()
        self.settled.set()

    async def _handle(self, message: object) -> None:
        if isinstance(message, Digests):
            await self._send(self._reconciler.on_digests(message))
        elif isinstance(message, Ids):
            await self._send(self._reconciler.on_ids(message))
        elif isinstance(message, Want):
            await self._send(batches(self._replica.wires(message.ids)))
        elif isinstance(message, Records):
            await self._take(message)

    async def _take(self, message: Records) -> None:
        try:
            taken = await self._replica.take_untrusted(message.records, self._link.peer)
        except OurFault as fault:
            log.error("records could not be stored", extra={"fields": {"why": fault.message}})
            self._link.close_nowait("this machine cannot store records now")
            return
        for record_id, rejected in taken.arrived:
            self._reconciler.on_arrived(record_id, rejected=rejected)
        self._forged += taken.forged
        if self._forged > FORGED_MAX:
            self._link.close_nowait("records with false signatures")

    async def _send(self, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                await self._link.send_message(MESSAGES.encode(message))
        except Unreachable:
            return  # The link ended; the next one compares anew.
