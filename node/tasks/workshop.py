"""Runs accepted tasks: slots, trees, supervisors, and what is left of them.

A task is ``starting`` on the disk before its supervisor exists, and is launched only on the step to that state; so it
never starts twice. After a restart of the node every unfinished task is taken up by its supervisor's lock, settled by
its exit file, or is lost; none is "running" without a process.
"""

from __future__ import annotations

import logging
from pathlib import Path

import trio

from mesh.base.errors import OurFault, Refused
from node.tasks.approvals import Approvals
from node.tasks.checkout import lay_out, remove_folders
from node.tasks.delegation import (
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
from node.tasks.environment import task_environment
from node.tasks.ground import Ground
from node.tasks.output import log_end
from node.tasks.task import WORKED, Key, Task
from node.tasks.tether import Exit, Tether, Work, has_file, is_supervised, launch, read_exit, reattach, sweep

WORKED_WITH = ("tree", "repo", "home", "tmp")
TIDY_WAIT_S = 120.0
TIDY_PAUSE_S = 0.01
AT_ONCE_S = 0.02

_log = logging.getLogger(__name__)


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
        self._slots = trio.Lock()
        self._launch_send, self._launches = trio.open_memory_channel[Key](64)

    async def run(self) -> None:
        """Take up what an earlier run of the node left, then run tasks until cancelled.

        If cancelled: supervisors run on, and are found again by the next run of the node.
        """
        async with trio.open_nursery() as nursery:
            for task in self._ground.ledger.live(WORKED):
                if task.state in ("starting", "running"):
                    nursery.start_soon(self._take_up, task)
            nursery.start_soon(self._fill_slots)
            nursery.start_soon(self._keep_asking)
            async for key in self._launches:
                nursery.start_soon(self._run_task, key)

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
            tether = await launch(folder, self._work(task, folder))
        except (Refused, OurFault) as fault:
            reason = fault.reason if isinstance(fault, Refused) else fault.kind
            await self._settle(key, Unfit(reason, fault.message))
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
            cwd=folder / "tree",
            timeout_s=min(task.spec.timeout_s, ground.settings.timeout_s),
            term_s=ground.times.term_s,
            grace_s=ground.times.grace_s,
            output_bytes_max=ground.settings.output_bytes_max,
        )

    async def _attend(self, key: Key, tether: Tether) -> None:
        """Listen to a supervisor until it has ended, then settle the task by what it wrote."""
        self._tethers[key] = tether
        try:
            async with trio.open_nursery() as nursery:
                while (news := await tether.wait_news()) is not None:
                    if b"s" in news and not await self._ends_at_once(tether):
                        # Beside the listening: on a full disk this waits for room that only the end may bring.
                        nursery.start_soon(self.advance, key, Started())
                    self._ground.pulses.wake(key)
                nursery.cancel_scope.cancel()
        finally:
            del self._tethers[key]
            await tether.aclose()
        await self._settle_by_exit(key, self._ground.folder_of(key))
        await tether.reap()

    async def _ends_at_once(self, tether: Tether) -> bool:
        """Whether a command is over in the moment it starts, so that "running" need not be written down twice."""
        with trio.move_on_after(AT_ONCE_S):
            while await tether.wait_news() is not None:
                continue
            return True
        return False

    async def _settle_by_exit(self, key: Key, folder: Path) -> None:
        exit_ = read_exit(folder)
        if exit_ is not None:
            await self._settle(key, _exited(exit_))
            return
        task = self._ground.ledger.get(key)
        assert task is not None
        killed = await trio.to_thread.run_sync(sweep, folder, task.text_id)
        _log.warning("task %s lost its supervisor; %d processes of it were ended", task.text_id, killed)
        await self._settle(key, Vanished(log_end(str(folder / "log"))))

    async def _settle(self, key: Key, event: WorkerEvent) -> None:
        """Record how a task ended, and meanwhile free what it filled: a full disk must not keep its own end unsaid."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.tidy, key)
            await self.advance(key, event)

    async def _take_up(self, task: Task) -> None:
        """Find the supervisor of a task an earlier run of the node started, or settle the task."""
        folder = self._ground.folder_of(task.key)
        tether = reattach(folder)
        if tether is None:
            await self._settle_by_exit(task.key, folder)
            return
        if has_file(folder, "birth"):
            await self.advance(task.key, Started())
        if task.cancel_asked:
            tether.cancel()
        await self._attend(task.key, tether)

    async def tidy(self, key: Key) -> None:
        """Remove what a task worked with; its log and exit status stay."""
        folder = self._ground.folder_of(key)
        with trio.move_on_after(TIDY_WAIT_S):
            # The supervisor's last word can be heard a moment before its lock is free.
            while is_supervised(folder):  # noqa: ASYNC110 - a file lock wakes nobody
                await trio.sleep(TIDY_PAUSE_S)
            await remove_folders(*(folder / name for name in WORKED_WITH))

    async def discard(self, key: Key) -> None:
        """Remove the whole folder of a task that is not recorded."""
        folder = self._ground.folder_of(key)
        if not is_supervised(folder):
            await remove_folders(folder)


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
    return Exited(exit_.outcome, exit_.code, exit_.started_ms, exit_.ended_ms, exit_.output_bytes, "".join(notes))
