"""Runs: ask for one, follow it, read it again, cancel it, answer for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from mesh.base.clock import parse_duration_s
from mesh.base.errors import Refused, Usage
from mesh.base.ports import Member
from mesh.kinds import PRESENCE, WAITING
from mesh.replica import Replica
from node.calls import Call
from node.machines import find_machine, require_other, title
from node.tasks.output import Gap
from node.tasks.runs import Runs
from node.tasks.task import Key, Task

ARGV_MAX = 4096
ARGV_BYTES_MAX = 256 * 1024
UNTRACKED_SHOWN_MAX = 60
STREAMS = {1: "stdout", 2: "stderr"}
INBOX_LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class RunVerbs:
    """The parts these verbs ask."""

    replica: Replica
    runs: Runs

    async def run(self, call: Call) -> object:
        """Run a command on another machine; returns the task once it is over, or at once where detached."""
        member = find_machine(call.text("node", bytes_max=256), [self.replica.me, *self.replica.members()])
        require_other(member, self.replica.me)
        timeout = call.optional_text("timeout", bytes_max=16)
        cwd = call.optional_text("cwd", bytes_max=8192)
        if call.flag("tree") and cwd is not None and not member.mine and not call.flag("yes"):
            _refuse_strangers_tree(member, Path(cwd))
        begun = await self.runs.start(
            member.node,
            call.texts("argv", count_max=ARGV_MAX, bytes_max=ARGV_BYTES_MAX),
            cwd=None if cwd is None else Path(cwd),
            tree=call.flag("tree"),
            timeout_s=None if timeout is None else parse_duration_s(timeout),
            yes=call.flag("yes"),
            detach=call.flag("detach"),
        )
        if begun.untracked:
            shown = begun.untracked[:UNTRACKED_SHOWN_MAX]
            await call.event(
                {
                    "kind": "untracked",
                    "files": [{"path": one.path, "bytes": one.size_bytes} for one in shown],
                    "count": len(begun.untracked),
                    "bytes": sum(one.size_bytes for one in begun.untracked),
                }
            )
        for note in begun.notes:
            await call.event({"kind": "note", "text": note})
        await call.event({"kind": "task", "task": self.runs.json(begun.task)})
        if call.flag("detach"):
            return self.runs.json(begun.task)
        return await self._follow(call, begun.task.key, 0)

    async def _follow(self, call: Call, key: Key, offset: int, *, output: bool = True) -> object:
        """Tell of a task until it is over, and let the caller cancel it meanwhile."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take_signals, call, key)
            nursery.start_soon(self._tell_states, call, key)
            if output:
                await self._tell_output(call, key, offset, wait=True)
            task = await self.runs.wait_final(key)
            nursery.cancel_scope.cancel()
        return self.runs.json(task)

    async def _take_signals(self, call: Call, key: Key) -> None:
        async for word in call.signals:
            if word == "cancel":
                await self.runs.cancel(key)

    async def _tell_states(self, call: Call, key: Key) -> None:
        async for task in self.runs.watch(key):
            member = self.replica.member(task.worker)
            linked = member is not None and member.linked
            await call.event({"kind": "state", "state": task.state, "reason": task.reason, "linked": linked})

    async def _tell_output(self, call: Call, key: Key, offset: int, *, wait: bool) -> None:
        async for piece in self.runs.follow(key, offset, wait=wait):
            if isinstance(piece, Gap):
                await call.event({"kind": "gap", "from": piece.start, "to": piece.end})
            else:
                await call.output(STREAMS[piece.stream], piece.offset, piece.data)

    async def logs(self, call: Call) -> object:
        """A task's output, from an offset on; with ``follow`` until it is over."""
        task = self._task(call)
        since = call.optional_integer("since", low=0, high=1 << 62) or 0
        if call.flag("follow"):
            return await self._follow(call, task.key, since)
        await self._tell_output(call, task.key, since, wait=False)
        return self.runs.json(task)

    async def wait(self, call: Call) -> object:
        """Wait until a task is over."""
        return await self._follow(call, self._task(call).key, 0, output=False)

    def _task(self, call: Call) -> Task:
        return self.runs.task(call.text("task", bytes_max=128))

    async def task(self, call: Call) -> object:
        """One task, with every transition."""
        return self.runs.json(self._task(call))

    async def tasks(self, call: Call) -> object:
        """Tasks, newest first."""
        return [self.runs.json(task) for task in self.runs.tasks(all_=call.flag("all"))]

    async def cancel(self, call: Call) -> object:
        """Cancel a task; the answer says how it stands now."""
        return self.runs.json(await self.runs.cancel(self._task(call).key))

    async def inbox(self, call: Call) -> object:
        """What waits for a person, once or as it changes."""
        if not call.flag("watch"):
            return self.runs.inbox_json()
        changes = self.replica.changes({WAITING, PRESENCE})
        while True:
            await call.event({"kind": "inbox", "inbox": self.runs.inbox_json()})
            with trio.move_on_after(INBOX_LOOK_S):
                await changes.receive()

    async def answer(self, call: Call) -> object:
        """Answer what waits."""
        word = call.text("answer", bytes_max=4096)
        if word not in ("allow", "deny"):
            raise Usage("a run is answered with allow or deny", hint="hivemesh allow ID, or hivemesh deny ID")
        digest = call.optional_text("digest", bytes_max=256)
        item = await self.runs.answer(call.text("id", bytes_max=128), allow=word == "allow", digest=digest)
        return {"id": item.text_id, "answer": word}


def _refuse_strangers_tree(member: Member, cwd: Path) -> None:
    """Ask first before a repository's files go to another person's machine."""
    if any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        raise Refused(
            f"{title(member)} is {member.owner_name}'s, not yours: this tree would go to another person.",
            reason="needs_yes",
            hint="add --yes if that is what you want, or --no-tree to send none",
        )


def busy(runs: Runs) -> Callable[[], int]:
    """Count the tasks of this machine that are not over."""
    return lambda: sum(not task.final for task in runs.tasks())
