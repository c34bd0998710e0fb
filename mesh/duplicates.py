"""One identity on two machines: the link that stood first stays, the other one carries the control lane only, both are told.

Nobody loses a full link by what another machine says: it takes this node's own live link to one boot while another boot
proves the same key. What two machines signed is gathered into a proof (``mesh.copies``), which only makes the warning
known everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import trio

from mesh import store
from mesh.base.clock import Now, version_ms
from mesh.base.codec import Malformed
from mesh.base.db import Database
from mesh.base.errors import MeshError, OurFault, Unreachable
from mesh.base.names import NodeId, suffix
from mesh.copies import OVERLAP_MS_MIN, ProofBody, Witness, boot_start_ms, copied, encode_proof, sign_of
from mesh.handshake import Statement
from mesh.kinds import COPY_PROOF, DAY_MS, KINDS, Lane, rule_of
from mesh.link import Link
from mesh.messages import MESSAGE_BYTES_MAX, MESSAGES, Copied, Records
from mesh.presence import read_untrusted
from mesh.reconcile import batches
from mesh.records import parse_untrusted
from mesh.replica import Replica

ANSWER_S = 5.0
"""A link that stands must answer within it, or the fresh one takes its place."""
PLACE_S = 60.0
"""So long after its link ended the place of the boot that stood first is kept for it, where a copy was seen."""
SECONDS_MAX = 64
"""Links of copies that carry the control lane; one more is closed."""
SPREAD_S = 2.0
"""Whoever finds a copy waits up to this long, and longer in a large mesh, whether somebody else publishes the proof."""
TELL_S = 60.0
"""The machines of one identity are told of each other, and warnings are logged, at most this often."""

CONTROL = frozenset(number for number, rule in KINDS.items() if rule.lane is Lane.CONTROL)
ADVICE = "on the copy: hivemesh leave gives it a key of its own; or remove its home"

log = logging.getLogger("hivemesh.duplicates")


class Duplicates:
    """What this node knows of identities in use twice, its own included.

    Args:
        replica: This machine's copy of the mesh.
        database: ``mesh.db``.
        boot: This node's.
        read_clock: Reads both clocks.
        draw: A number in [0, 1) from the node's randomness.
        speak: Says soon what this machine is, so that a fresh statement of it is there.
    """

    def __init__(
        self,
        replica: Replica,
        database: Database,
        boot: bytes,
        read_clock: Callable[[], Now],
        draw: Callable[[], float],
        speak: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._database = database
        self._boot = boot
        self._read_clock = read_clock
        self._draw = draw
        self._speak = speak
        self._witness = Witness()
        self._proven: dict[NodeId, int] = {}
        self._seen_at_s: dict[NodeId, float] = {}
        self._told_at_s: dict[object, float] = {}
        self._places: dict[NodeId, tuple[bytes, float]] = {}
        self._seconds: dict[NodeId, Link] = {}
        self._due: dict[NodeId, ProofBody] = {}
        self._something_due = trio.Event()
        self._challenged = trio.Event()

    # Knowing ---------------------------------------------------------------------------------------------------

    def known(self) -> Collection[NodeId]:
        """The machines whose identity is in use twice, as proofs or this node's own links show; for a day after the last."""
        now_s = self._read_clock().steady_s
        recent = {node for node, at_s in self._seen_at_s.items() if now_s - at_s < DAY_MS / 1000}
        return recent | self._proven.keys()

    def warnings(self, title: Callable[[NodeId], str]) -> list[str]:
        """Say what a person should know, one line each."""
        return [self._line(node, title(node)) for node in sorted(self.known())]

    def _line(self, node: NodeId, title: str) -> str:
        if node == self._replica.me.node:
            return f"duplicate identity: another machine runs with this machine's key (a copied home or disk); {ADVICE}"
        return f"duplicate identity: two machines run with the key of {title} (a copied home or disk); the link that stood first stays; {ADVICE}"

    def _note(self, node: NodeId) -> None:
        """Note a copy, and say so in the log, not more often than one wants to read it."""
        self._seen_at_s[node] = self._read_clock().steady_s
        if self._may_tell(("log", node)):
            log.warning("%s", self._line(node, suffix(node)))

    def _may_tell(self, what: object) -> bool:
        now_s = self._read_clock().steady_s
        if now_s - self._told_at_s.get(what, -TELL_S) < TELL_S:
            return False
        self._told_at_s[what] = now_s
        return True

    def see(self, link: Link) -> None:
        """Keep what the peer of a fresh link signed."""
        self._take(link.peer, self._witness.see(link.session.peer_public_key, link.session.statement))

    def _take(self, node: NodeId, proof: ProofBody | None) -> None:
        if proof is not None:
            self._note(node)
            self._due[node] = proof
            self._something_due.set()

    def told_untrusted(self, statement: Statement) -> None:
        """Take a statement that a peer says was signed with this machine's key by another boot.

        It counts only where this key signed it, and where that boot lived while this one did: an earlier start of this
        very machine did not.
        """
        me, mesh = self._replica.me, self._replica.members_now.mesh
        sign = sign_of(statement)
        if sign is None or statement.boot == self._boot or not statement.is_signed_by(me.public_key, mesh):
            return
        started_ms = boot_start_ms(self._boot)
        if sign.start_ms > started_ms or sign.end_ms >= started_ms + OVERLAP_MS_MIN:
            self._note(me.node)
            if self._may_tell("speak"):
                self._challenged.set()

    # Links -----------------------------------------------------------------------------------------------------

    def is_second(self, old: Link | None, fresh: Link) -> bool:
        """Whether a fresh link may be a copy's: another boot than the one that stands or whose place is kept.

        Where a copy is known already, any second link of one identity may be.
        """
        if old is not None and not old.closed.is_set():
            return old.session.peer_boot != fresh.session.peer_boot or fresh.peer in self.known()
        boot, until_s = self._places.get(fresh.peer, (b"", 0.0))
        return boot not in (b"", fresh.session.peer_boot) and self._read_clock().steady_s < until_s

    def ended(self, link: Link) -> None:
        """Keep the place of a link that stood first, where its identity is in use twice."""
        if link.peer in self.known():
            self._places[link.peer] = (link.session.peer_boot, self._read_clock().steady_s + PLACE_S)

    async def keep_second(self, first: Link | None, link: Link) -> None:
        """Keep a copy's link until it ends: the control lane goes over it and nothing else.

        Args:
            first: The live link of the other boot, or None where only its place is kept.
            link: The copy's.
        """
        self._note(link.peer)
        if first is not None and self._may_tell(("peers", link.peer)):
            first.send_message_nowait(MESSAGES.encode(Copied(link.session.statement)), control=True)
        link.send_message_nowait(MESSAGES.encode(Copied((first or link).session.statement)), control=True)
        earlier = self._seconds.get(link.peer)
        if earlier is not None:
            earlier.close_nowait("replaced")
        elif len(self._seconds) >= SECONDS_MAX:
            link.close_nowait("too many machines run with another one's key")
            return
        self._seconds[link.peer] = link
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_control, link)
                nursery.start_soon(self._take_control, link)
                nursery.start_soon(_refuse_channels, link)
                nursery.start_soon(self._watch_place, first, link)
                await link.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._seconds.get(link.peer) is link:
                del self._seconds[link.peer]

    async def _watch_place(self, first: Link | None, link: Link) -> None:
        """Let the copy dial anew once the place is free; whoever comes first then has it."""
        if first is not None:
            await first.closed.wait()
        await trio.sleep(PLACE_S)
        link.close_nowait("the other machine of this identity is gone; dial again")

    async def _send_control(self, link: Link) -> None:
        changes = self._replica.changes(CONTROL)
        sent: set[bytes] = set()
        try:
            while True:
                fresh = [r for r in store.lane_records(self._database.reader, Lane.CONTROL) if r.record_id not in sent]
                sent |= {record.record_id for record in fresh}
                for batch in batches([record.wire for record in fresh]):
                    await link.send_message(MESSAGES.encode(batch))
                await changes.receive()
        except Unreachable:
            return

    async def _take_control(self, link: Link) -> None:
        async for data in link.messages:
            try:
                message = MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX + 64)
                if isinstance(message, Records):
                    wires = [w for w in message.records if rule_of(parse_untrusted(w).kind).lane is Lane.CONTROL]
                    await self._replica.take_untrusted(wires, link.peer)
            except Malformed as error:
                link.close_nowait(f"malformed message: {error.message}")
            except OurFault as fault:
                log.error("records from a link could not be stored: %s", fault.message)

    # Proofs ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at presences and proofs as they come, and publish proofs found here, until cancelled."""
        self._fold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run_presences)
            nursery.start_soon(self._run_proofs)
            nursery.start_soon(self._run_publishing)
            nursery.start_soon(self._run_speaking)

    async def _run_presences(self) -> None:
        async for record in self._replica.presences:
            me = self._replica.me
            if record.author == me.node:
                said = read_untrusted(record)
                foreign = said is not None and said.boot != self._boot
                if foreign and version_ms(record.version) >= boot_start_ms(self._boot) + OVERLAP_MS_MIN:
                    self._note(me.node)
                continue
            certified = self._replica.members_now.certificates.get(record.author)
            if certified is not None:
                self._take(record.author, self._witness.see(certified.public_key, record))

    async def _run_speaking(self) -> None:
        """Sign something new, once the copy has lived long enough beside this machine for the two to be a proof."""
        while True:
            await self._challenged.wait()
            self._challenged = trio.Event()
            await trio.sleep(1.5 * OVERLAP_MS_MIN / 1000)
            self._speak()

    async def _run_proofs(self) -> None:
        async for _ in self._replica.changes({COPY_PROOF}):
            self._fold()

    def _fold(self) -> None:
        held = store.records_of(self._database.reader, COPY_PROOF, self._read_clock().wall_ms)
        self._proven = copied((record for record, _ in held), self._replica.members_now.mesh)
        for node in self._proven:
            self._note(node)

    async def _run_publishing(self) -> None:
        while True:
            await self._something_due.wait()
            self._something_due = trio.Event()
            await trio.sleep((SPREAD_S + 0.02 * len(self._replica.members_now.certificates)) * self._draw())
            due, self._due = self._due, {}
            for node, proof in due.items():
                age_ms = self._read_clock().wall_ms - version_ms(self._proven.get(node, 0))
                if age_ms > DAY_MS // 2:
                    await self._publish(node, proof)

    async def _publish(self, node: NodeId, proof: ProofBody) -> None:
        try:
            await self._replica.publish(COPY_PROOF, node, encode_proof(proof))
        except MeshError as fault:
            log.error("the proof of a copy was not published: %s", fault.message)


async def _refuse_channels(link: Link) -> None:
    async for incoming in link.incoming:
        await incoming.channel.aclose("another machine has this identity and stood here first")
