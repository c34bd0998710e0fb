"""Runs accepted tasks: slots, trees, supervisors, and what is left of them.

A task is ``starting`` on the disk before its supervisor exists, and is launched only on the step to that state; so it
never starts twice. After a restart of the node every unfinished task is taken up by its supervisor's lock, settled by
its exit file, or is lost; none is "running" without a process.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from mesh.base.errors import MeshError, OurFault, Refused
from mesh.base.names import base32
from node.tasks.approvals import Approvals
from node.tasks.checkout import lay_out
from node.tasks.delegation import (
    CANCELLED_CODE,
    TIMED_OUT_CODE,
    Action,
    AskExpired,
    AskPerson,
    EndProcesses,
    Exited,
    Judged,
    Launch,
    Queue,
    Settle,
    SlotFree,
    Started,
    Step,
    Unask,
    Unfit,
    Vanished,
    WorkerEvent,
    work,
)
from node.tasks.ending import sweep, wake
from node.tasks.environment import task_environment
from node.tasks.ground import Ground
from node.tasks.output import log_end
from node.tasks.place import inode_of
from node.tasks.processes import stat_fields
from node.tasks.removal import remove_folder, remove_parts
from node.tasks.task import WORKED, Key, Task
from node.tasks.tether import Exit, Tether, Work, has_birth, is_supervised, launch, read_exit, reattach

WORKED_WITH = ("tree", "repo", "home", "tmp")
TIDY_WAIT_S = 120.0
TIDY_PAUSE_S = 0.01
AT_ONCE_S = 0.02
NEWS_PAUSE_S = 0.002

_log = logging.getLogger(__name__)


def _start_folder(tree: Path, folder: bytes) -> Path:
    """Where a command starts: in the requester's folder of the tree, unless a link or a file stands on the way there."""
    here = tree
    for part in filter(None, folder.split(b"/")):
        here /= os.fsdecode(part)
        if here.is_symlink() or not here.is_dir():
            return tree
    return here


class Workshop:
    """Runs what this machine accepted, at most ``tasks.slots`` at once.

    Args:
        ground: What runs stand on.
        approvals: Asks people.
    """

    def __init__(self, ground: Ground, approvals: Approvals) -> None:
        self._ground = ground
        self._approvals = approvals
        self._tethers: dict[Key, Tether] = {}
        self._cancels: dict[Key, trio.Event] = {}
        self._slots = trio.Lock()
        self._launch_send, self._launches = trio.open_memory_channel[Key](64)

    async def run(self) -> None:
        """Take up what an earlier run of the node left, then run tasks until cancelled.

        If cancelled: supervisors run on, and are found again by the next run of the node.
        """
        async with trio.open_nursery() as nursery:
            for task in self._ground.ledger.live(WORKED):
                if task.state in ("starting", "running"):
                    nursery.start_soon(self._see_through, task.key, self._take_up)
            nursery.start_soon(self._fill_slots)
            nursery.start_soon(self._keep_asking)
            async for key in self._launches:
                nursery.start_soon(self._see_through, key, self._run_task)

    async def _see_through(self, key: Key, way: Callable[[Key], Awaitable[None]]) -> None:
        """Do what one task needs; whatever it made of its files ends that task and never the node."""
        with _contained(key):
            await way(key)
            return
        with _contained(key):
            await self.advance(key, Vanished(0))

    async def _keep_asking(self) -> None:
        """Publish open requests again while they are open, and refuse those nobody answers."""
        await self._approvals.withdraw_strays()
        while True:
            for task in self._ground.ledger.live(WORKED):
                if task.state == "asking" and self._ground.now_ms() >= task.until_ms:
                    await self.advance(task.key, AskExpired())
                elif task.state == "asking":
                    await self._approvals.ask(task)
            await trio.sleep(self._ground.times.refresh_s)

    async def admit(self, task: Task, judged: Judged) -> Task:
        """Record a task that policy looked at, and start it at once where a slot is free.

        Args:
            task: Complete and sound, not recorded yet.
            judged: The verdict on it.

        Returns:
            The task as it is on the disk.

        If cancelled: it is recorded and will run, or it never was.
        """
        task = dataclasses.replace(task, inode=inode_of(self._ground.folder_of(task.key)))
        async with self._slots:
            step = work(task, judged, self._ground.now_ms())
            if Queue() in step.actions and self._free_slots() > 0:
                step = work(step.task, SlotFree(), self._ground.now_ms())
            with trio.CancelScope(shield=True):
                await self._ground.ledger.put(step.task)
                await self._perform(step)
        self._ground.pulses.wake(task.key)
        return step.task

    async def advance(self, key: Key, event: WorkerEvent) -> Step:
        """Advance a task and do what follows."""
        step = await self._ground.worked(key, event)
        await self._perform(step)
        if Settle() in step.actions or Queue() in step.actions:
            await self._fill_slots()
        return step

    async def _perform(self, step: Step) -> None:
        for action in step.actions:
            await self._do(action, step.task)

    async def _do(self, action: Action, task: Task) -> None:
        if isinstance(action, Launch):
            await self._launch_send.send(task.key)
        elif isinstance(action, AskPerson):
            await self._approvals.ask(task)
        elif isinstance(action, Unask):
            await self._approvals.withdraw(task.request)
        elif isinstance(action, EndProcesses):
            self.end_processes(task.key)
        elif isinstance(action, Settle) and task.started_ms is None:
            await self.tidy(task.key)

    def end_processes(self, key: Key) -> None:
        """Tell a task's supervisor to end everything; one that is only just starting is told when it has."""
        tether = self._tethers.get(key)
        if tether is not None:
            self._cancels[key].set()
            tether.cancel()

    def _free_slots(self) -> int:
        busy = sum(task.state in ("starting", "running") for task in self._ground.ledger.live(WORKED))
        return self._ground.settings.slots - busy

    async def _fill_slots(self) -> None:
        """Give free slots to the tasks that wait longest."""
        async with self._slots:
            free = self._free_slots()
            for task in self._ground.ledger.live(WORKED):
                if free <= 0:
                    return
                if task.state == "accepted":
                    step = await self._ground.worked(task.key, SlotFree())
                    await self._perform(step)
                    free -= 1

    async def _run_task(self, key: Key) -> None:
        """Launch one task and see it through."""
        ground = self._ground
        task = ground.ledger.get(key)
        assert task is not None
        folder = ground.folder_of(key)
        try:
            if task.spec.tree is not None:
                await lay_out(ground.strange_git, folder, task.spec.tree)
            task = ground.ledger.get(key) or task
            if task.cancel_asked:
                now_ms = ground.now_ms()
                await self._settle(key, Exited("cancelled", 130, now_ms, now_ms, 0, ""))
                return
            tether = await launch(folder, self._work(task, folder), task.inode)
        except (Refused, OurFault) as fault:
            reason = fault.reason if isinstance(fault, Refused) else fault.kind
            await self._settle(key, Unfit(reason, fault.message))
            return
        except OSError as error:
            await self._settle(key, Unfit(OurFault.kind, f"its folder is not as it was made: {error.strerror}"))
            return
        await self._attend(key, tether)

    def _work(self, task: Task, folder: Path) -> Work:
        ground = self._ground
        return Work(
            argv=task.spec.argv,
            env=task_environment(
                ground.environment,
                task=task.text_id,
                home=str(folder / "home"),
                temporary=str(folder / "tmp"),
                user=ground.user,
            ),
            cwd=_start_folder(folder / "tree", task.spec.folder),
            timeout_s=min(task.spec.timeout_s, ground.settings.timeout_s),
            term_s=ground.times.term_s,
            grace_s=ground.times.grace_s,
            output_bytes_max=ground.settings.output_bytes_max,
        )

    async def _attend(self, key: Key, tether: Tether) -> None:
        """Listen to a supervisor until it has ended or let its time pass, then settle the task."""
        self._tethers[key] = tether
        self._cancels[key] = trio.Event()
        overdue = ""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, key, tether, nursery)
                overdue = await self._wait_overdue(key, tether)
                nursery.cancel_scope.cancel()
        finally:
            del self._tethers[key], self._cancels[key]
            await tether.aclose()
        task = self._ground.ledger.get(key)
        assert task is not None
        if overdue and self._lives(task, tether.pid):
            await self._end_by_force(task, overdue, tether.pid)
        else:
            await self._settle_by_exit(task, tether.pid)
        await tether.reap()

    async def _listen(self, key: Key, tether: Tether, nursery: trio.Nursery) -> None:
        """Pass on what a supervisor says, and end the nursery when it has ended."""
        while (news := await tether.wait_news()) is not None:
            if b"s" in news and not await self._ends_at_once(tether):
                # Beside the listening: on a full disk this waits for room that only the end may bring.
                nursery.start_soon(self.advance, key, Started())
            self._ground.pulses.wake(key)
            # A task can write into this pipe too, so nothing that comes is worth more than a look now and then.
            await trio.sleep(NEWS_PAUSE_S)
        nursery.cancel_scope.cancel()

    async def _wait_overdue(self, key: Key, tether: Tether) -> str:
        """Wait until a supervisor should long have ended its task; it is woken and told once more before this returns.

        Its own clock decides as long as it runs; but a task can stop it, as it can stop any process of this user.

        Returns:
            ``timed_out`` or ``cancelled``.
        """
        task = self._ground.ledger.get(key)
        assert task is not None
        times = self._ground.times
        ending_s = times.term_s + times.grace_s + times.slack_s
        outcome = "timed_out"
        if task.cancel_asked:
            self._cancels[key].set()
        with trio.move_on_after(min(task.spec.timeout_s, self._ground.settings.timeout_s) + ending_s):
            await self._cancels[key].wait()
            outcome = "cancelled"
        if outcome == "cancelled":
            await trio.sleep(ending_s)
        await trio.to_thread.run_sync(wake, task.text_id)
        if outcome == "cancelled":
            tether.cancel()
        await trio.sleep(ending_s)
        return outcome

    def _lives(self, task: Task, pid: int) -> bool:
        """Whether a task's supervisor is there, by its lock or as a child of this process."""
        if pid and stat_fields(pid)[:1] not in ([], [b"Z"]):
            return True
        return is_supervised(self._ground.folder_of(task.key), task.inode)

    async def _end_by_force(self, task: Task, outcome: str, pid: int) -> None:
        """End a task together with a supervisor that no longer does it."""
        ground = self._ground
        await trio.to_thread.run_sync(sweep, ground.folder_of(task.key), task.text_id, task.inode, pid)
        _log.warning("task %s: its supervisor did not obey and was ended", task.text_id)
        now_ms = ground.now_ms()
        code = TIMED_OUT_CODE if outcome == "timed_out" else CANCELLED_CODE
        note = "its supervisor did not obey and was ended too. "
        await self._settle(task.key, Exited(outcome, code, task.started_ms or now_ms, now_ms, self._log_end(task), note))

    def _log_end(self, task: Task) -> int:
        with self._ground.opened(task) as at:
            return log_end(at)

    async def _ends_at_once(self, tether: Tether) -> bool:
        """Whether a command is over in the moment it starts, so that "running" need not be written down twice."""
        with trio.move_on_after(AT_ONCE_S):
            while await tether.wait_news() is not None:
                continue
            return True
        return False

    async def _settle_by_exit(self, task: Task, pid: int = 0) -> None:
        folder = self._ground.folder_of(task.key)
        exit_ = read_exit(folder, task.inode)
        if exit_ is not None:
            await self._settle(task.key, _exited(exit_))
            return
        killed = await trio.to_thread.run_sync(sweep, folder, task.text_id, task.inode, pid)
        _log.warning("task %s lost its supervisor; %d processes of it were ended", task.text_id, killed)
        await self._settle(task.key, Vanished(self._log_end(task)))

    async def _settle(self, key: Key, event: WorkerEvent) -> None:
        """Record how a task ended, and meanwhile free what it filled: a full disk must not keep its own end unsaid."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tidy, key)
            await self.advance(key, event)

    async def _take_up(self, key: Key) -> None:
        """Find the supervisor of a task an earlier run of the node started, or settle the task."""
        task = self._ground.ledger.get(key)
        assert task is not None
        folder = self._ground.folder_of(task.key)
        tether = reattach(folder, task.inode)
        if tether is None:
            await self._settle_by_exit(task)
            return
        if has_birth(folder, task.inode):
            await self.advance(task.key, Started())
        if task.cancel_asked:
            tether.cancel()
        await self._attend(task.key, tether)

    async def tidy(self, key: Key) -> None:
        """Remove what a task worked with; its log and exit status stay, and so does whatever is not its folder."""
        task = self._ground.ledger.get(key)
        folder, inode = self._ground.folder_of(key), task.inode if task else 0
        with trio.move_on_after(TIDY_WAIT_S):
            # The supervisor's last word can be heard a moment before its lock is free.
            while is_supervised(folder, inode):  # noqa: ASYNC110 - a file lock wakes nobody
                await trio.sleep(TIDY_PAUSE_S)
            await remove_parts(folder, WORKED_WITH, inode)

    async def discard(self, key: Key) -> None:
        """Remove the whole folder of a task that is not recorded."""
        folder = self._ground.folder_of(key)
        if not is_supervised(folder):
            await remove_folder(folder)


@contextmanager
def _contained(key: Key) -> Iterator[None]:
    """Log what goes wrong with one task's files or records, and go on behind the block."""
    try:
        yield
    except* (OSError, MeshError) as group:
        _log.warning("task %s: %s", base32(key.task), "; ".join(map(str, group.exceptions)))


def _exited(exit_: Exit) -> Exited:
    notes = []
    if exit_.leftovers:
        notes.append(f"{exit_.leftovers} processes it left behind were ended. ")
    if exit_.unkillable:
        notes.append(f"{exit_.unkillable} processes could not be ended. ")
    if exit_.lost_bytes:
        notes.append(f"{exit_.lost_bytes} bytes of output were lost: the disk was full. ")
    if exit_.cut_bytes:
        notes.append(f"{exit_.cut_bytes} bytes were cut from the middle of the output. ")
    return Exited(exit_.outcome, exit_.code, exit_.started_ms, exit_.ended_ms, exit_.output_bytes, "".join(notes), exit_.signalled)
