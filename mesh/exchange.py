"""Records over one link: compare at link-up and every minute, answer wants, take what comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import trio

from mesh.base.codec import Malformed
from mesh.base.errors import OurFault, Unreachable
from mesh.handshake import Statement
from mesh.keyring import Keyring
from mesh.kinds import CERTIFICATE, EPOCH, FLEET_EPOCH, Lane, rule_of
from mesh.link import Link
from mesh.messages import MESSAGE_BYTES_MAX, MESSAGES, Copied, Digests, Ids, Keys, Records, Want, WantKeys
from mesh.reconcile import Message, Reconciler, batches
from mesh.records import parse_untrusted
from mesh.replica import Replica

COMPARE_S = 60.0
SETTLE_S = 5.0
"""Channels open after this long even where the control lane is not level yet; it catches up behind them."""
FORGED_MAX = 8
"""So many records with false signatures end a link: a sound peer sends none."""

DUE_MAX = 64
"""Requests of the peer and own ones that wait for a slow peer to read; one more is dropped, and repeated by the next
comparison. A sound peer has nine under way."""

log = logging.getLogger("hivemesh.exchange")


@dataclass(frozen=True, slots=True)
class _Own:
    """A message of this side that waits for its turn."""

    message: Message | WantKeys


def control_only(wires: Sequence[bytes]) -> list[bytes]:
    """Choose the records of the control lane; what is no record is left out too."""
    found: list[bytes] = []
    for wire in wires:
        try:
            if rule_of(parse_untrusted(wire).kind).lane is Lane.CONTROL:
                found.append(wire)
        except Malformed:
            continue
    return found


class Exchange:
    """One link's record exchange.

    Args:
        link: An open link.
        replica: This machine's copy.
        keyring: The keys that are handed over between members.
        draw: A number in [0, 1) from the node's randomness, to spread the comparisons of a fleet.
    """

    def __init__(
        self,
        link: Link,
        replica: Replica,
        keyring: Keyring,
        draw: Callable[[], float],
        reduced: Callable[[], str] = lambda: "",
    ) -> None:
        self._link = link
        self._replica = replica
        self._keyring = keyring
        self._reduced = reduced
        self._caught_up = keyring.is_whole(link.session.gate)
        self._draw = draw
        self._reconciler = Reconciler(link.session.salt, self._ids_of, replica.holds)
        self._forged = 0
        self._due_in, self._due = trio.open_memory_channel[Message | WantKeys | _Own](DUE_MAX)
        self._copied_in, self.copied = trio.open_memory_channel[Statement](1)
        self.settled = trio.Event()
        self.level = trio.Event()
        """Set where the control lane was found level before anybody gave up waiting for it."""

    @property
    def reduced(self) -> str:
        """Why only the control lane is open on this link now; empty where all of it is."""
        return self._reduced() or ("" if self._caught_up else "the machines still exchange who is a member")

    def _ids_of(self, lane: Lane) -> list[bytes]:
        return [] if self.reduced and lane is not Lane.CONTROL else self._replica.ids_of(lane)

    async def compare(self) -> None:
        """Compare now, beside the periodic comparisons: more lanes are open than before."""
        await self._send(self._reconciler.start())

    async def run(self) -> None:
        """Exchange until the link closes or this is cancelled. A broken message ends the link, nothing else.

        What comes is read whatever the peer does with what is sent: two sides that each waited for the other to read
        first would wait for ever.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_comparisons)
                nursery.start_soon(self._run_answers)
                nursery.start_soon(self._bound_settling)
                nursery.start_soon(self._run_keys)
                nursery.start_soon(self._run_key_pushes)
                async for data in self._link.messages:
                    try:
                        message = MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX + 64)
                    except Malformed as error:
                        self._link.close_nowait(f"malformed message: {error.message}")
                        break
                    await self._handle(message)
                    self._note_settled()
                nursery.cancel_scope.cancel()
        finally:
            self.settled.set()  # Who waits for it goes on, and finds the link ended.

    async def _run_comparisons(self) -> None:
        while True:
            await self._send(self._reconciler.start())
            await trio.sleep(COMPARE_S * (0.75 + 0.5 * self._draw()))
            # What was asked for and never came may have been superseded meanwhile; it is not waited for for ever.
            self._reconciler.give_up_waiting()

    async def _run_answers(self) -> None:
        """Say what is due, as fast as the peer takes it."""
        async for due in self._due:
            if isinstance(due, _Own):
                await self._send([due.message])
            elif isinstance(due, Digests):
                await self._send(self._reconciler.on_digests(due))
                self._note_settled()
            elif isinstance(due, Want):
                wires = self._replica.wires(due.ids)
                await self._send(batches(control_only(wires) if self.reduced else wires))
            elif isinstance(due, WantKeys):
                await self._send_keys(due.commitments)

    async def _send_keys(self, commitments: Sequence[bytes]) -> None:
        if keys := self._keyring.keys_for(commitments, self._link.peer):
            await self._send([Keys(keys)])

    def _note_settled(self) -> None:
        if self._reconciler.control_settled and not self.settled.is_set():
            self.level.set()
            self.settled.set()

    async def _bound_settling(self) -> None:
        with trio.move_on_after(SETTLE_S):
            await self.settled.wait()
        self._reconciler.give_up_waiting()
        self.settled.set()

    async def _handle(self, message: object) -> None:
        if isinstance(message, (Digests, Want)):
            self._put_due(message)
        elif isinstance(message, Ids) and self.reduced and message.lane != Lane.CONTROL.value:
            log.debug("another lane than the control lane is not open on this link")
        elif isinstance(message, Ids):
            for own in self._reconciler.on_ids(message):
                self._put_due(_Own(own))
        elif isinstance(message, Records):
            await self._take(message)
        elif isinstance(message, Copied):
            with suppress(trio.WouldBlock):
                self._copied_in.send_nowait(message.statement)
        elif isinstance(message, WantKeys):
            self._put_due(message)
        elif isinstance(message, Keys):
            await self._take_keys(message)

    async def _take_keys(self, message: Keys) -> None:
        try:
            if await self._keyring.take_untrusted(message.keys) and (lacking := self._keyring.lacking()):
                self._put_due(_Own(WantKeys(lacking)))
        except OurFault as fault:
            log.error("keys from a link could not be stored: %s", fault.message)

    async def _run_keys(self) -> None:
        """Ask for the keys this machine lacks, once the control lane is level and whenever that lane changes."""
        with self._replica.changes({CERTIFICATE, EPOCH, FLEET_EPOCH}) as changes:
            await self.settled.wait()
            await self._catch_up()
            while True:
                self._keyring.order_fleet()
                await self._ask_keys()
                await changes.receive()

    async def _run_key_pushes(self) -> None:
        """Hand on a key that was just made or taken here; the other side keeps it only where it lacks it."""
        await self.settled.wait()
        while True:
            await self._keyring.gained.wait()
            await self._send_keys(self._keyring.recent)

    async def _catch_up(self) -> None:
        """Open a link that began with an old gate key, once the control lane is level and the newest keys are offered."""
        if not self._caught_up:
            await self._send_keys([gate.commitment for gate in self._keyring.ring() if gate.whole])
            self._caught_up = True
            await self.compare()

    async def _ask_keys(self) -> None:
        if lacking := self._keyring.lacking():
            await self._send([WantKeys(lacking)])

    def _put_due(self, due: Message | WantKeys | _Own) -> None:
        try:
            self._due_in.send_nowait(due)
        except trio.WouldBlock:
            log.debug("a request was passed over: %d wait already; the next comparison repeats it", DUE_MAX)

    async def _take(self, message: Records) -> None:
        try:
            wires = control_only(message.records) if self.reduced else message.records
            taken = await self._replica.take_untrusted(wires, self._link.peer)
        except OurFault as fault:
            # The link serves runs and presence all the same; a later comparison asks for these records again.
            log.error("records from a link could not be stored: %s", fault.message)
            return
        for record_id, rejected in taken.arrived:
            self._reconciler.on_arrived(record_id, rejected=rejected)
        self._forged += taken.forged
        if self._forged > FORGED_MAX:
            self._link.close_nowait("records with false signatures")

    async def _send(self, messages: Sequence[Message | WantKeys | Keys]) -> None:
        try:
            for message in messages:
                await self._link.send_message(MESSAGES.encode(message))
        except Unreachable:
            return  # The link ended; the next one compares anew.
