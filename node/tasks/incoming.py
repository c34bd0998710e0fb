"""The worker's side: what other machines open channels for. Takes offers in, reports, streams output, takes cancels.

Everything here comes from outside: the offer's signature, its requester and its limits are checked before anything is
stored, and the tree before anything is laid out. What may run is decided by ``policy`` on this machine's own settings.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import trio

from mesh.base.codec import Malformed, decode_untrusted
from mesh.base.crypto import Context, verify
from mesh.base.db import StorageFull
from mesh.base.errors import MeshError, OurFault, PeerFault, Refused, Unreachable
from mesh.base.names import NodeId, TaskId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel, Incoming
from node.messages import (
    ARGV_BYTES_MAX,
    OFFER_LIFE_MS_MAX,
    STATES,
    TASK_MESSAGES,
    TASK_PURPOSES,
    TASK_TAGS,
    Answer,
    Answered,
    Cancel,
    Follow,
    Hop,
    Offer,
    OfferBody,
    Output,
    OutputGap,
    PackChunk,
    PackEnd,
    TaskReport,
    TaskUnknown,
    WantPack,
)
from node.tasks.approvals import Approvals, Decision
from node.tasks.asks import OPEN_ASKS_MAX
from node.tasks.checkout import take_pack_untrusted
from node.tasks.delegation import CancelAsked, Judged, PersonSaid, work
from node.tasks.ground import Ground, closing, receive_message
from node.tasks.ledger import NEVER_SPEC
from node.tasks.output import Frame, LogReader, Piece
from node.tasks.policy import Ask, Deny, Verdict, decide, who_is_denied
from node.tasks.ports import DISK_FREE_BYTES_MIN
from node.tasks.task import WORKED, Key, Task, cut, ended, folder_name, report_of, spec_digest
from node.tasks.tether import prepare_folder
from node.tasks.workshop import Workshop

TALKS_MAX = 128
"""Channels of other machines served at once; the next one is closed as busy."""
WAITING_MAX = 100
"""Tasks of one requester that are not over; the next offer is refused."""
KEPT_MAX = 10_000
"""Tasks of one requester in the ledger; the next offer is refused until old ones are swept."""
NEVER_MAX = 100
"""Tasks of one requester that were cancelled before they came; the next such cancel is not taken until old ones go."""
CLOCK_SLACK_MS = 60_000
NEVER_MS = 2 * (OFFER_LIFE_MS_MAX + CLOCK_SLACK_MS)
"""How long such a cancel is remembered at least; an offer made before that is too old to be taken."""
CHUNK_WAIT_S = 60.0
OFFER_BYTES_MAX = 56 * 1024

_log = logging.getLogger(__name__)


def read_offer_untrusted(offer: Offer, mesh: bytes, peer: NodeId, public_key: bytes, me: NodeId) -> OfferBody:
    """Check an offer's signature, whom it names, and its command.

    Args:
        offer: As received.
        mesh: This mesh.
        peer: The machine at the other end of the channel.
        public_key: That machine's, from its certificate.
        me: This machine.

    Returns:
        The body, every field checked.

    Raises:
        PeerFault: It is not this peer's offer to this machine, or not one that can run.
    """
    if not verify(public_key, Context.OFFER, mesh, offer.body, offer.signature):
        raise PeerFault("the offer's signature is not its sender's")
    body = decode_untrusted(OfferBody, offer.body, bytes_max=OFFER_BYTES_MAX)
    if body.requester != peer:
        raise PeerFault("the offer was signed by its sender for another requester")
    if body.worker != me:
        raise PeerFault("the offer is for another machine")
    argv = body.spec.argv
    if not argv or not argv[0] or any(b"\0" in argument for argument in argv):
        raise Malformed("the offer holds no command that could run")
    if sum(map(len, argv)) > ARGV_BYTES_MAX:
        raise Malformed("the offer's command is too long")
    folder = body.spec.folder
    if folder and (body.spec.tree is None or b"\0" in folder or not {b"", b".", b".."}.isdisjoint(folder.split(b"/"))):
        raise Malformed("the offer's folder is not one of its tree")
    if (body.spec.tree is None) != (body.pack_bytes == 0):
        raise Malformed("the offer's tree and pack do not belong together")
    return body


class IncomingTalks:
    """Serves the channels other machines open for runs.

    Args:
        ground: What runs stand on.
        workshop: Runs what is accepted.
        approvals: Asks people.
    """

    def __init__(self, ground: Ground, workshop: Workshop, approvals: Approvals) -> None:
        self._ground = ground
        self._workshop = workshop
        self._approvals = approvals
        self._incoming = ground.channels.incoming(TASK_PURPOSES)
        self._arriving: set[str] = set()
        self._talks = 0

    async def run(self) -> None:
        """Serve channels until cancelled.

        If cancelled: open channels end; tasks run on.
        """
        async with trio.open_nursery() as nursery:
            async for incoming in self._incoming:
                if self._talks >= TALKS_MAX:
                    nursery.start_soon(incoming.channel.aclose, "busy")
                    continue
                self._talks += 1
                nursery.start_soon(self._serve, incoming)

    async def _serve(self, incoming: Incoming) -> None:
        """Serve one channel; what its peer does wrong ends that channel and nothing else."""
        try:
            async with closing(incoming.channel):
                await self._answer(incoming)
        except Unreachable:
            return
        except (MeshError, OSError) as fault:
            _log.warning("a talk about tasks ended: %s", fault)
        finally:
            self._talks -= 1

    async def _answer(self, incoming: Incoming) -> None:
        message = TASK_MESSAGES.decode_untrusted(incoming.request, bytes_max=CHANNEL_MESSAGE_BYTES_MAX)
        if type(message) is not TASK_TAGS[incoming.purpose]:
            raise Malformed("the first message does not fit the channel's purpose")
        channel = incoming.channel
        if isinstance(message, Offer):
            await self._take_offer(channel, message)
        elif isinstance(message, Follow):
            await self._send_output(channel, message)
        elif isinstance(message, Cancel):
            await self._take_cancel(channel, message)
        elif isinstance(message, Answer):
            await self._take_answer(channel, message)

    async def _take_offer(self, channel: Channel, offer: Offer) -> None:
        ground = self._ground
        member = ground.directory.member(channel.peer)
        if member is None:
            raise PeerFault("the offer comes from a stranger")
        body = read_offer_untrusted(offer, ground.mesh, channel.peer, member.public_key, ground.me)
        key = Key(WORKED, channel.peer, TaskId(body.task), body.attempt)
        folder = folder_name(key)
        if folder in self._arriving:
            raise PeerFault("a task of this id is on its way already")
        self._arriving.add(folder)
        try:
            report = await self._admit(channel, key, body)
        finally:
            self._arriving.discard(folder)
        await channel.send(TASK_MESSAGES.encode(report))

    async def _admit(self, channel: Channel, key: Key, body: OfferBody) -> TaskReport:
        """Say what becomes of an offer; what is said is on the disk."""
        ground = self._ground
        fresh = _fresh_task(key, body, ground.now_ms())
        known = ground.ledger.get(key)
        if known is not None:
            return _report_again(known, fresh)
        stale = _staleness(body, ground.now_ms(), ground.started_ms)
        if stale is not None:
            return _turned_down(fresh, ground.now_ms(), *stale)
        verdict = decide(ground.settings, ground.directory.me, ground.directory.member(key.requester), body.spec, sandbox=False)
        refused = _denial(verdict) or self._no_room(key, verdict)
        if refused is not None:
            return _turned_down(fresh, ground.now_ms(), "refused", *refused)
        try:
            await self._receive_tree(channel, fresh)
        except (Refused, PeerFault, OurFault) as fault:
            await self._workshop.discard(key)
            reason = fault.reason if isinstance(fault, Refused) else fault.kind
            return _turned_down(fresh, ground.now_ms(), "refused", reason, fault.message)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._workshop.discard(key)
            raise
        return await self._record(fresh, verdict)

    async def _record(self, fresh: Task, verdict: Verdict) -> TaskReport:
        ground = self._ground
        request = ground.entropy(16) if isinstance(verdict, Ask) else b""
        until_ms = ground.now_ms() + int(ground.times.ask_s * 1000)
        try:
            return report_of(await self._workshop.admit(fresh, Judged(verdict, request, until_ms)))
        except StorageFull as full:
            await self._workshop.discard(fresh.key)
            return _turned_down(fresh, ground.now_ms(), "refused", "disk_full", full.message)

    def _no_room(self, key: Key, verdict: Verdict) -> tuple[str, str] | None:
        """Check this machine's limits."""
        ground = self._ground
        waiting, asking = ground.ledger.waiting(key.requester)
        if waiting >= WAITING_MAX:
            return "queue_full", f"{WAITING_MAX} tasks of yours wait or run here already; wait for one to end"
        if isinstance(verdict, Ask) and asking >= OPEN_ASKS_MAX:
            return "asks_full", f"{OPEN_ASKS_MAX} of your requests wait for an answer already"
        if ground.ledger.kept(WORKED, key.requester) >= KEPT_MAX:
            return "ledger_full", f"{KEPT_MAX} tasks of yours are on record here; the oldest go after some days"
        if ground.free_bytes(ground.folder) < DISK_FREE_BYTES_MIN:
            return "disk_full", f"its disk has less than {DISK_FREE_BYTES_MIN // 1_000_000} MB free; free some there"
        if any(folder_name(task.key) == folder_name(key) for task in ground.ledger.find(folder_name(key)[:16])):
            return "id_taken", "another task here has such an id; try again"
        return None

    async def _receive_tree(self, channel: Channel, task: Task) -> None:
        """Make the task's folder and take its tree in."""
        folder = self._ground.folder_of(task.key)
        await self._workshop.discard(task.key)
        prepare_folder(folder)
        if task.spec.tree is None:
            return
        await channel.send(TASK_MESSAGES.encode(WantPack()))
        await take_pack_untrusted(self._ground.strange_git, folder, task.spec.tree, task.pack_bytes, _PackStream(channel))

    async def _take_cancel(self, channel: Channel, cancel: Cancel) -> None:
        """Cancel for good: also a task that has not come yet never starts, whatever arrives later."""
        ground = self._ground
        key = Key(WORKED, channel.peer, TaskId(cancel.task), cancel.attempt)
        if ground.ledger.get(key) is None:
            never = _never(key, ground.me, ground.now_ms())
            denied = who_is_denied(ground.settings, ground.directory.me, ground.directory.member(key.requester))
            if denied is not None:
                # Nothing of this machine could start, so there is nothing to remember.
                await channel.send(TASK_MESSAGES.encode(_turned_down(never, ground.now_ms(), "refused", denied.reason, denied.detail)))
                return
            before_ms = ground.now_ms() - NEVER_MS
            if not await ground.ledger.put_never(work(never, CancelAsked(), ground.now_ms()).task, before_ms=before_ms, count_max=NEVER_MAX):
                raise PeerFault("too many tasks of this machine were cancelled before they came; try again later")
        step = await self._workshop.advance(key, CancelAsked())
        await channel.send(TASK_MESSAGES.encode(report_of(step.task)))

    async def _take_answer(self, channel: Channel, answer: Answer) -> None:
        """Carry a person's decision out, if it counts."""
        judged = self._approvals.judge_untrusted(answer, channel.peer)
        if isinstance(judged, Decision):
            await self._workshop.advance(judged.key, PersonSaid(judged.allowed))
            reply = Answered(True, "", "")
        else:
            reply = Answered(False, judged.reason, cut(judged.detail, 400))
        await channel.send(TASK_MESSAGES.encode(reply))

    async def _send_output(self, channel: Channel, follow: Follow) -> None:
        """Stream a task's output from an offset, and its state whenever that changes, until it is over."""
        ground = self._ground
        key = Key(WORKED, channel.peer, TaskId(follow.task), follow.attempt)
        with ground.opened(ground.ledger.get(key)) as at:
            await self._send_pieces(channel, follow, key, LogReader(at, follow.offset))

    async def _send_pieces(self, channel: Channel, follow: Follow, key: Key, reader: LogReader) -> None:
        ground = self._ground
        told: TaskReport | None = None
        try:
            while True:
                news = ground.pulses.next(key)
                task = ground.ledger.get(key)
                if task is None:
                    await channel.send(TASK_MESSAGES.encode(TaskUnknown(follow.task, follow.attempt)))
                    return
                pieces = reader.read_to(task.output_bytes) if task.final else reader.read()
                for piece in pieces:
                    await channel.send(TASK_MESSAGES.encode(_as_message(piece)))
                report = report_of(task)
                if report != told and not (task.final and pieces):
                    await channel.send(TASK_MESSAGES.encode(report))
                    told = report
                if task.final and not pieces:
                    return
                if not pieces:
                    await news.wait()
        finally:
            reader.close()


class _PackStream:
    """The chunks of a pack as they come over a channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with trio.move_on_after(CHUNK_WAIT_S):
            message = await receive_message(self._channel)
            if isinstance(message, PackEnd):
                raise StopAsyncIteration
            if isinstance(message, PackChunk):
                return message.data
            raise Unreachable("the tree was not sent to its end")
        raise Unreachable("the tree stopped coming")


def _as_message(piece: Piece) -> Output | OutputGap:
    if isinstance(piece, Frame):
        return Output(piece.offset, piece.stream, piece.data)
    return OutputGap(piece.start, piece.end)


def _fresh_task(key: Key, body: OfferBody, now_ms: int) -> Task:
    return Task(
        key=key,
        worker=NodeId(body.worker),
        spec=body.spec,
        pack_bytes=body.pack_bytes,
        state="offered",
        created_ms=now_ms,
        hops=(Hop(STATES.index("offered"), now_ms),),
    )


def _never(key: Key, me: NodeId, now_ms: int) -> Task:
    """Record a task that was cancelled before it came; an empty command marks it."""
    return Task(key, me, NEVER_SPEC, 0, "offered", now_ms)


def _report_again(known: Task, offered: Task) -> TaskReport:
    """Answer a repeated offer with the present state; another command under the same name is refused."""
    if known.spec.argv and spec_digest(known.spec) != spec_digest(offered.spec):
        now_ms = offered.created_ms
        return _turned_down(offered, now_ms, "refused", "other_spec", "this attempt was offered before with another command")
    return report_of(known)


def _staleness(body: OfferBody, now_ms: int, started_ms: int) -> tuple[str, str, str] | None:
    """Tell an offer that may have been taken up before, or is out of its time, from a fresh one."""
    if body.accept_until_ms - body.issued_ms > OFFER_LIFE_MS_MAX or body.issued_ms > now_ms + OFFER_LIFE_MS_MAX:
        return "refused", "clock", "the offer's times are not possible; compare the clocks of the two machines"
    if body.accept_until_ms < now_ms - CLOCK_SLACK_MS:
        return "refused", "expired", "the offer is too old, or the clocks of the two machines differ"
    if body.issued_ms < started_ms:
        return "lost", "restarted", "its machine was restarted after the offer was made and does not know it; not run again"
    return None


def _denial(verdict: Verdict) -> tuple[str, str] | None:
    return (verdict.reason, verdict.detail) if isinstance(verdict, Deny) else None


def _turned_down(task: Task, now_ms: int, state: str, reason: str, detail: str) -> TaskReport:
    """Report an offer that is not recorded."""
    return report_of(ended(task, state, now_ms, reason=reason, detail=cut(detail, 400)))
