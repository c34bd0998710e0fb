"""The requester's side: hand a task over, keep what it prints, learn how it ends.

Each task that is not over has one keeper. It delivers the offer, follows the worker's report and output into the log
and the ledger here, and tries again for as long as the machine is away; so ``logs`` and ``wait`` need nobody else, and
a restart of this node goes on where it stood.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import trio

from mesh.base.codec import decode_untrusted, encode
from mesh.base.crypto import Context
from mesh.base.errors import PeerFault, Unreachable
from mesh.base.names import base32
from mesh.base.ports import Channel
from node.messages import (
    OFFER_LIFE_MS_MAX,
    PACK_CHUNK_BYTES_MAX,
    PURPOSE_CANCEL,
    PURPOSE_FOLLOW,
    PURPOSE_OFFER,
    STATES,
    TASK_MESSAGES,
    Cancel,
    Follow,
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
from node.tasks.delegation import (
    Bounced,
    CancelAsked,
    Deliver,
    GaveUp,
    Leaving,
    Refusal,
    Reported,
    SendCancel,
    Strayed,
)
from node.tasks.ground import Ground, closing, receive_message
from node.tasks.log import FRAME_BYTES_MAX, SEGMENTS_MAX, LogWriter
from node.tasks.place import open_file, open_folder
from node.tasks.removal import remove_parts
from node.tasks.task import FINAL, REQUESTED, Key, Task

OFFER_BYTES_MAX = 58 * 1024
CANCEL_WAIT_S = 5.0
PAUSE_S_MIN = 0.05

_log = logging.getLogger(__name__)


class Outgoing:
    """Keeps every task this machine asked of others.

    Args:
        ground: What runs stand on.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._fresh_send, self._fresh = trio.open_memory_channel[Key](64)
        self._logs: dict[Key, LogWriter] = {}
        self._pokes: dict[Key, trio.Event] = {}
        self._unsent: set[Key] = set()

    async def run(self) -> None:
        """Keep tasks until cancelled: those of earlier runs of the node first, then new ones.

        If cancelled: every task stands where the ledger says, and is taken up again by the next run.
        """
        async with trio.open_nursery() as nursery:
            for task in self._ground.ledger.live(REQUESTED):
                nursery.start_soon(self._keep, task.key)
            async for key in self._fresh:
                nursery.start_soon(self._keep, key)

    async def keep(self, key: Key) -> None:
        """Take on a task that was just recorded, so that nothing of it was sent yet."""
        self._unsent.add(key)
        await self._fresh_send.send(key)

    def signed_offer(self, task: Task) -> bytes:
        """Sign the offer of a task, valid for ten minutes from now."""
        now_ms = self._ground.now_ms()
        body = encode(
            OfferBody(
                task.key.task,
                task.key.attempt,
                self._ground.me,
                task.worker,
                task.spec,
                task.pack_bytes,
                now_ms,
                now_ms + OFFER_LIFE_MS_MAX,
            )
        )
        return encode(Offer(body, self._ground.signing_key.sign(Context.OFFER, self._ground.mesh, body)))

    def stored_bytes(self, key: Key) -> int:
        """Say how much of a live task's output is stored here."""
        log = self._logs.get(key)
        return log.end if log else 0

    async def cancel(self, key: Key) -> None:
        """Record the wish to cancel, then tell the worker, now if it is reached, else when it is.

        If cancelled: the wish may or may not be recorded.
        """
        step = await self._ground.requested(key, CancelAsked())
        self._poke(key)
        if SendCancel() in step.actions:
            with trio.move_on_after(CANCEL_WAIT_S):
                try:
                    await self._send_cancel(step.task)
                except (Unreachable, PeerFault) as fault:
                    _log.info("cancel of %s waits: %s", step.task.text_id, fault)

    async def disown(self, key: Key) -> None:
        """End a task whose machine is no longer in this mesh; its keeper then finds it over."""
        task = self._ground.ledger.get(key)
        if task is not None and task.state == "queued":
            await self._ground.requested(key, Refusal("expelled", "its machine is no longer in this mesh; nothing was started"))
        else:
            await self._ground.requested(key, Strayed("expelled", "its machine is no longer in this mesh; it may have run"))
        self._poke(key)

    def _poke(self, key: Key) -> None:
        """Interrupt the keeper's pause."""
        event = self._pokes.get(key)
        if event is not None:
            event.set()

    async def _keep(self, key: Key) -> None:
        """Keep one task; whatever was made of its files ends that task and never the node."""
        try:
            if key not in self._logs:
                await self._keep_until_over(key)
        except OSError as error:
            _log.warning("task %s: %s", base32(key.task), error)
            await self._ground.requested(key, Strayed("log", "the folder of its output here is not as it was made; it may have run"))

    async def _keep_until_over(self, key: Key) -> None:
        """Do the next thing a task needs, until it is over."""
        ground = self._ground
        task = ground.ledger.get(key)
        assert task is not None
        folder = ground.folder_of(key)
        with await self._open_log(key, folder, task.inode):
            pause_s = PAUSE_S_MIN
            while (task := ground.ledger.get(key)) is not None and not task.final:
                self._pokes[key] = trio.Event()
                try:
                    await self._next(task)
                    pause_s = PAUSE_S_MIN
                except (Unreachable, PeerFault) as fault:
                    await self._after_fault(key, fault)
                    with trio.move_on_after(pause_s):
                        await self._pokes[key].wait()
                    pause_s = min(2 * pause_s, ground.times.retry_s)
        if task is not None:
            await remove_parts(folder, ("pack",), task.inode)

    async def _open_log(self, key: Key, folder: Path, inode: int) -> ExitStack:
        """Open a task's log here, waiting for as long as the disk is full.

        Returns:
            What lets go of it again.

        Raises:
            OSError: What stands there is not the task's folder, or no log.
        """
        with ExitStack() as stack:
            at = open_folder(folder, inode)
            stack.callback(os.close, at)
            log = await self._patiently(lambda: LogWriter(at, self._ground.settings.output_bytes_max))
            self._logs[key] = log
            stack.callback(self._let_go, key)
            return stack.pop_all()
        raise AssertionError("a stack swallows nothing")

    def _let_go(self, key: Key) -> None:
        self._unsent.discard(key)
        self._logs.pop(key).close()
        self._pokes.pop(key, None)

    async def _patiently(self, open_log: Callable[[], LogWriter]) -> LogWriter:
        while True:
            try:
                return open_log()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
                    raise
                _log.warning("a log cannot be opened: %s", error.strerror)
                await trio.sleep(self._ground.times.retry_s)

    async def _after_fault(self, key: Key, fault: Unreachable | PeerFault) -> None:
        """Give up what waited too long, or what nobody can tell of any more."""
        task = self._ground.ledger.get(key)
        assert task is not None
        if isinstance(fault, PeerFault):
            _log.warning("task %s: %s", task.text_id, fault)
        if self._ground.now_ms() >= task.until_ms:
            await self._ground.requested(key, GaveUp())
        worker = self._ground.directory.member(task.worker)
        if worker is None or worker.state == "expelled":
            await self.disown(key)

    async def _next(self, task: Task) -> None:
        if task.cancel_asked:
            await self._send_cancel(task)
            task = self._ground.ledger.get(task.key) or task
        if task.final:
            return
        if task.state in ("queued", "offered"):
            self._check_link(task)
            await self._deliver(task)
        else:
            await self._watch(task)

    def _check_link(self, task: Task) -> None:
        """Do without the two writes of a departure that would bounce at once."""
        worker = self._ground.directory.member(task.worker)
        if task.state == "queued" and (worker is None or not worker.linked):
            raise Unreachable("no link to that machine")

    async def _send_cancel(self, task: Task) -> None:
        channel = await self._ground.channels.open_channel(
            task.worker, PURPOSE_CANCEL, TASK_MESSAGES.encode(Cancel(task.key.task, task.key.attempt))
        )
        async with closing(channel):
            await self._take_report(task.key, await receive_message(channel))

    async def _deliver(self, task: Task) -> None:
        """Make the offer; with a tree, the moment of no return is the end of the pack, else the offer itself."""
        offer = task.offer or self.signed_offer(task)
        first = task.state == "queued" or task.key in self._unsent
        if not task.pack_bytes and not await self._leave(task.key, offer):
            return
        message = TASK_MESSAGES.encode(decode_untrusted(Offer, offer, bytes_max=OFFER_BYTES_MAX))
        try:
            channel = await self._ground.channels.open_channel(task.worker, PURPOSE_OFFER, message, bulk=task.pack_bytes > 0)
        except Unreachable:
            if first:
                await self._ground.requested(task.key, Bounced())
            raise
        self._unsent.discard(task.key)
        async with closing(channel):
            reply = await receive_message(channel)
            if isinstance(reply, WantPack):
                if not await self._send_pack(channel, task.key, offer):
                    return
                reply = await receive_message(channel)
            await self._take_report(task.key, reply)

    async def _leave(self, key: Key, offer: bytes) -> bool:
        step = await self._ground.requested(key, Leaving(offer))
        return Deliver() in step.actions

    async def _send_pack(self, channel: Channel, key: Key, offer: bytes) -> bool:
        """Stream the pack; whether its end was sent."""
        with self._ground.opened(self._ground.ledger.get(key)) as at:
            pack = open_file(at, "pack")
        try:
            while chunk := await trio.to_thread.run_sync(os.read, pack, PACK_CHUNK_BYTES_MAX):
                await channel.send(TASK_MESSAGES.encode(PackChunk(chunk)))
        finally:
            os.close(pack)
        if not await self._leave(key, offer):
            return False
        await channel.send(TASK_MESSAGES.encode(PackEnd()))
        return True

    async def _take_report(self, key: Key, message: object) -> bool:
        """Take in what the worker says about a task; whether that settles it."""
        if isinstance(message, TaskReport) and (message.task, message.attempt) == (key.task, key.attempt):
            step = await self._ground.requested(key, Reported(message, self.stored_bytes(key)))
            return step.task.final
        if isinstance(message, TaskUnknown):
            strayed = Strayed("unknown_there", "its machine no longer knows this task; it may have run")
            return (await self._ground.requested(key, strayed)).task.final
        if message is None:
            raise Unreachable("the other machine ended the talk early")
        raise PeerFault(f"an unexpected {type(message).__name__} came")

    async def _watch(self, task: Task) -> None:
        """Follow output and state until the task is over or the link is gone."""
        log = self._logs[task.key]
        follow = TASK_MESSAGES.encode(Follow(task.key.task, task.key.attempt, log.end))
        channel = await self._ground.channels.open_channel(task.worker, PURPOSE_FOLLOW, follow, bulk=True)
        inflow = Inflow(log)
        async with closing(channel):
            while True:
                message = await receive_message(channel)
                if isinstance(message, Output | OutputGap):
                    inflow.take_untrusted(message)
                    self._ground.pulses.wake(task.key)
                else:
                    if isinstance(message, TaskReport) and STATES[message.state] in FINAL:
                        await trio.to_thread.run_sync(log.sync)
                    if await self._take_report(task.key, message):
                        return


class Inflow:
    """What a worker sends of one task's output over one channel, stored as far as a log can be so.

    Args:
        log: Where the output goes; its end is where the channel was asked to begin.
    """

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._holes = 0
        self._came_bytes = 0

    def take_untrusted(self, message: Output | OutputGap) -> None:
        """Store what is new in a message.

        An honest log has at most SEGMENTS_MAX holes, and one more for each segment that is cut while it is read; so
        that many are taken, and a hole is taken only where the worker says it is one.

        Args:
            message: As received.

        Raises:
            PeerFault: It leaves out output without saying so, or there are more holes than a log can have.
        """
        start = message.start if isinstance(message, OutputGap) else message.offset
        if start > self._log.end:
            raise PeerFault("output was left out without a word")
        if isinstance(message, OutputGap):
            self._take_hole(message)
            return
        fresh = message.data[self._log.end - message.offset :]
        if fresh:
            self._came_bytes += len(fresh)
            self._log.append(message.stream, fresh)

    def _take_hole(self, hole: OutputGap) -> None:
        if hole.end <= self._log.end:
            return
        self._holes += 1
        if self._holes > SEGMENTS_MAX + self._came_bytes // FRAME_BYTES_MAX:
            raise PeerFault("the output has more holes than a log can have")
        self._log.skip_to(hole.end)
