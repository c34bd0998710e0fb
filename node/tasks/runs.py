"""Runs, as the rest of the node uses them: ask for one, look at it, follow it, cancel it, answer for it.

``open_runs`` puts the rooms together; :class:`Runs` is what the control socket and the API call.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from mesh.base.clock import Now
from mesh.base.crypto import Entropy, SigningKey
from mesh.base.db import Database
from mesh.base.errors import OurFault, Refused, Usage
from mesh.base.names import MeshId, NodeId, TaskId, base32
from mesh.base.ports import Channels, Directory, Records
from node.messages import FOLDER_BYTES_MAX, KIND_RUN, STATES, Hop, TaskSpec
from node.tasks.approvals import Approvals, InboxItem
from node.tasks.asks import ALLOW, DENY
from node.tasks.belongings import Untracked
from node.tasks.command import checked_command, checked_digest, checked_seconds
from node.tasks.delegation import CancelAsked, Leaving, PersonSaid, request
from node.tasks.departures import run_departures
from node.tasks.git import Git
from node.tasks.ground import Ground
from node.tasks.incoming import IncomingTalks
from node.tasks.ledger import Ledger
from node.tasks.outgoing import Outgoing
from node.tasks.output import LogReader, Piece, log_end
from node.tasks.place import inode_of
from node.tasks.ports import DISK_FREE_BYTES_MIN, FreeBytes, RunSettings, RunTimes, Sealer, free_bytes
from node.tasks.removal import remove_folder
from node.tasks.repository import Snapshot, find_repository, take_snapshot
from node.tasks.sweeping import run_sweeps, sweep_strays
from node.tasks.task import FINAL, REQUESTED, Key, Task, task_json
from node.tasks.workshop import Workshop

REQUESTED_MAX = 256
"""Tasks of this machine that are not over; the next one is refused."""
LISTED_MS = 24 * 3_600_000
ALL_MS = 366 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Begun:
    """A task that was recorded and is on its way.

    Attributes:
        untracked: The untracked files that travel with it.
        notes: What a person should be told, one line each.
    """

    task: Task
    untracked: tuple[Untracked, ...]
    notes: tuple[str, ...]


class Runs:
    """Everything this machine asks of others and does for them.

    Args:
        ground: What runs stand on.
        outgoing: Keeps what was asked of others.
        workshop: Runs what was accepted.
        approvals: Asks people.
    """

    def __init__(self, ground: Ground, outgoing: Outgoing, workshop: Workshop, approvals: Approvals) -> None:
        self._ground = ground
        self._outgoing = outgoing
        self._workshop = workshop
        self._approvals = approvals

    async def start(
        self,
        node: NodeId,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        tree: bool = True,
        timeout_s: int | None = None,
        yes: bool = False,
        detach: bool = False,
    ) -> Begun:
        """Ask another machine to run a command.

        Args:
            node: Which.
            argv: The command and its arguments; surrogates stand for bytes that are not UTF-8.
            cwd: Where the person stands; absolute, or None for nowhere.
            tree: Send the tree of the repository that folder lies in.
            timeout_s: 1 to 30 days; the worker's own limit counts too.
            yes: Send untracked files without asking.
            detach: Wait for the machine for days instead of ten seconds.

        Returns:
            The task, recorded on the disk, with what travels. How it ends is learned by :meth:`wait_final`.

        Raises:
            Usage: The command or the machine cannot be.
            Refused: The tree cannot travel, or wants a yes (reason ``untracked``); too many tasks; disk full.
            OurFault: The disk.

        If cancelled: nothing is recorded, or the task is and goes on.
        """
        ground = self._ground
        command = checked_command(argv)
        self._check_room(node)
        key = Key(REQUESTED, ground.me, TaskId(ground.entropy(16)), 1)
        folder = ground.folder_of(key)
        _make_folder(folder)
        try:
            snapshot = await self._snapshot(cwd, folder, yes) if tree and cwd is not None else None
            task = self._new_task(key, node, command, cwd, snapshot, checked_seconds(timeout_s, ground.settings.timeout_s), detach)
            await ground.ledger.put(task)
        except BaseException:
            with trio.CancelScope(shield=True):
                await remove_folder(folder)
            raise
        await self._outgoing.keep(key)
        return Begun(task, snapshot.untracked if snapshot else (), snapshot.notes if snapshot else ())

    def _check_room(self, node: NodeId) -> None:
        ground = self._ground
        if node == ground.me:
            raise Usage("that is this machine", hint="run the command itself, or name another machine: hivemesh peers")
        member = ground.directory.member(node)
        if member is None or member.state in ("expelled", "expired"):
            raise Usage("no such machine in this mesh", hint="see hivemesh peers")
        if len(ground.ledger.live(REQUESTED)) >= REQUESTED_MAX:
            raise Refused(f"{REQUESTED_MAX} tasks of this machine are not over yet", reason="limit", hint="see hivemesh tasks")
        if ground.free_bytes(ground.folder) < DISK_FREE_BYTES_MIN:
            raise Refused(f"less than {DISK_FREE_BYTES_MIN // 1_000_000} MB of disk are free here", reason="disk_full", hint="free some")

    async def _snapshot(self, cwd: Path, folder: Path, yes: bool) -> Snapshot | None:
        repository = await find_repository(self._ground.own_git, cwd)
        if repository is None:
            return None
        return await take_snapshot(self._ground.own_git, repository, folder / "pack", yes=yes)

    def _new_task(
        self,
        key: Key,
        node: NodeId,
        argv: tuple[bytes, ...],
        cwd: Path | None,
        snapshot: Snapshot | None,
        timeout_s: int,
        detach: bool,
    ) -> Task:
        """Build the task; one without a tree, to a machine in reach, is already on its way: one commit for both steps."""
        ground = self._ground
        now_ms = ground.now_ms()
        repository = snapshot.repository if snapshot else None
        spec = TaskSpec(
            kind=KIND_RUN,
            argv=argv,
            project=repository.project if repository else "",
            repository=repository.repository_id if repository else None,
            tree=snapshot.commit if snapshot else None,
            timeout_s=timeout_s,
            folder=_folder_in(repository.top, cwd) if repository is not None and cwd is not None else b"",
        )
        patience_s = min(ground.times.detached_s, timeout_s) if detach else ground.times.reach_s
        task = Task(
            key=key,
            worker=node,
            spec=spec,
            pack_bytes=snapshot.pack_bytes if snapshot else 0,
            state="queued",
            created_ms=now_ms,
            until_ms=now_ms + int(patience_s * 1000),
            inode=inode_of(ground.folder_of(key)),
            hops=(Hop(STATES.index("queued"), now_ms),),
        )
        if task.pack_bytes or not self._is_linked(node):
            return task
        return request(task, Leaving(self._outgoing.signed_offer(task)), now_ms).task

    def _is_linked(self, node: NodeId) -> bool:
        member = self._ground.directory.member(node)
        return member is not None and member.linked

    def task(self, text: str) -> Task:
        """Find one task by what a person typed.

        Args:
            text: A prefix of its id; case and dashes do not matter.

        Returns:
            The newest attempt of the one task it can mean, with the output stored so far counted.

        Raises:
            Usage: None, or several.
        """
        found = self._ground.ledger.find(text)
        ids = {task.key.task for task in found}
        if not ids:
            raise Usage(f"no task {text[:40]!r} here", hint="see hivemesh tasks --all")
        if len(ids) > 1:
            names = ", ".join(sorted(base32(task)[:12] for task in ids)[:5])
            raise Usage(f"{text[:40]!r} may mean several tasks: {names}", hint="write more of the id")
        return self._counted(max(found, key=lambda task: task.key.attempt))

    def tasks(self, *, all_: bool = False) -> list[Task]:
        """List tasks of both sides, newest first: those not over and those of the last day, or all; at most 1000."""
        since_ms = self._ground.now_ms() - (ALL_MS if all_ else LISTED_MS)
        return [self._counted(task) for task in self._ground.ledger.recent(since_ms)]

    def _counted(self, task: Task) -> Task:
        if task.final:
            return task
        with self._ground.opened(task) as at:
            stored = log_end(at)
        return dataclasses.replace(task, output_bytes=max(task.output_bytes, stored))

    def json(self, task: Task) -> dict[str, object]:
        """Show a task in the shape scripts rely on."""
        return task_json(task, self._name)

    def _name(self, node: NodeId) -> str:
        member = self._ground.directory.me if node == self._ground.me else self._ground.directory.member(node)
        return member.name if member else base32(node)[:8]

    async def follow(self, key: Key, offset: int = 0, *, wait: bool = True) -> AsyncIterator[Piece]:
        """Read a task's output as it is stored here.

        Args:
            key: Whose.
            offset: Where to start, in payload bytes of both streams.
            wait: Go on until the task is over; else stop at what is there.

        Yields:
            Pieces of output, and gaps where output is nowhere kept.
        """
        with self._ground.opened(self._ground.ledger.get(key)) as at:
            async for piece in self._pieces(key, LogReader(at, offset), wait=wait):
                yield piece

    async def _pieces(self, key: Key, reader: LogReader, *, wait: bool) -> AsyncIterator[Piece]:
        try:
            while True:
                news = self._ground.pulses.next(key)
                task = self._ground.ledger.get(key)
                over = task is None or task.final
                pieces = reader.read_to(task.output_bytes) if task is not None and over else reader.read()
                for piece in pieces:
                    yield piece
                if not pieces:
                    if over or not wait:
                        return
                    await news.wait()
                await trio.lowlevel.checkpoint()
        finally:
            reader.close()

    async def watch(self, key: Key) -> AsyncIterator[Task]:
        """Follow a task's state.

        Yields:
            The task now, and again each time its state is another one, the final one last.
        """
        told = ""
        while told not in FINAL:
            news = self._ground.pulses.next(key)
            task = self._ground.ledger.get(key)
            assert task is not None, "only recorded tasks are watched"
            if task.state != told:
                told = task.state
                yield task
            else:
                await news.wait()

    async def wait_final(self, key: Key) -> Task:
        """Wait until a task is over and its output is stored here.

        Returns:
            The task.
        """
        while True:
            news = self._ground.pulses.next(key)
            task = self._ground.ledger.get(key)
            assert task is not None, "only recorded tasks are waited for"
            if task.final:
                return task
            await news.wait()

    async def cancel(self, key: Key) -> Task:
        """Cancel a task, on either side; doing it twice, or after its end, changes nothing.

        Returns:
            The task as it is now: still running where its machine has not said otherwise yet.
        """
        if key.side == REQUESTED:
            await self._outgoing.cancel(key)
        else:
            await self._workshop.advance(key, CancelAsked())
        task = self._ground.ledger.get(key)
        assert task is not None
        return task

    def inbox(self) -> list[InboxItem]:
        """List what waits for a person on any machine of this owner, oldest first."""
        return self._approvals.inbox()

    def inbox_json(self) -> list[dict[str, object]]:
        """Show the inbox in the shape scripts rely on."""
        return [item.json(self._name(item.node)) for item in self.inbox()]

    async def answer(self, text: str, *, allow: bool, digest: str | None = None) -> InboxItem:
        """Answer a request.

        Args:
            text: A prefix of its id.
            allow: Or deny.
            digest: Of what the person was shown, hexadecimal; None takes what is shown now.

        Returns:
            What was answered.

        Raises:
            Usage: No such request, or several.
            Refused: The answer does not count.
            Unreachable: The machine that asks is not reached.
        """
        item = self._item(text)
        seen = item.body.digest if digest is None else checked_digest(digest)
        decision = await self._approvals.answer(item, ALLOW if allow else DENY, seen)
        if decision is not None:
            await self._workshop.advance(decision.key, PersonSaid(decision.allowed))
        return item

    def _item(self, text: str) -> InboxItem:
        prefix = text.lower().replace("-", "").strip()
        found = [item for item in self.inbox() if prefix and item.text_id.startswith(prefix)]
        if len(found) != 1:
            what = "no open request" if not found else "several open requests begin with"
            raise Usage(f"{what} {text[:40]!r}", hint="see hivemesh inbox")
        return found[0]


def _folder_in(top: Path, cwd: Path) -> bytes:
    """Where a person stands within their work tree; one too deep to be told is the root."""
    inside = os.path.relpath(os.path.realpath(cwd), os.path.realpath(top))
    folder = b"" if inside == "." or inside.startswith("..") else os.fsencode(inside)
    return folder if len(folder) <= FOLDER_BYTES_MAX else b""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OurFault(f"{folder} cannot be made: {error.strerror}", hint="check the disk and the folder's rights") from error


@asynccontextmanager
async def open_runs(
    *,
    read_settings: Callable[[], RunSettings],
    database: Database,
    channels: Channels,
    directory: Directory,
    records: Records,
    signing_key: SigningKey,
    mesh: MeshId,
    sealer: Sealer,
    folder: Path,
    environment: Mapping[str, str],
    user: str,
    clock: Callable[[], Now],
    entropy: Entropy,
    times: RunTimes | None = None,
    free: FreeBytes = free_bytes,
) -> AsyncIterator[Runs]:
    """Take up the tasks of earlier runs of the node, and serve new ones while the block runs.

    Args:
        read_settings: Gives this machine's settings of runs as they hold now.
        database: ``tasks.db``, opened with ``ledger.SCHEMA``, durable.
        channels: To and from other machines.
        directory: Who they are.
        records: Where open requests are published.
        signing_key: This machine's.
        mesh: Which mesh signatures are for.
        sealer: Seals what only this owner's machines may read.
        folder: ``tasks``; made if need be.
        environment: The node's own; a task gets a few named things from it.
        user: Name of the account the node runs as.
        clock: Reads both clocks.
        entropy: Randomness.
        times: Spans that tests shorten.
        free: Asks for free disk space.

    Yields:
        The runs.

    If cancelled: tasks run on under their supervisors; the ledger says where each stands.
    """
    times = times or RunTimes()
    _make_folder(folder)
    ground = Ground(
        read_settings=read_settings,
        times=times,
        ledger=Ledger(database),
        channels=channels,
        directory=directory,
        records=records,
        sealer=sealer,
        signing_key=signing_key,
        mesh=mesh,
        folder=folder,
        environment=dict(environment),
        user=user,
        clock=clock,
        entropy=entropy,
        free_bytes=free,
        own_git=Git(environment, time_limit_s=times.git_s, trusted_home=True),
        strange_git=Git(environment, time_limit_s=times.git_s, trusted_home=False),
        started_ms=clock().wall_ms,
    )
    approvals = Approvals(ground)
    workshop = Workshop(ground, approvals)
    outgoing = Outgoing(ground)
    talks = IncomingTalks(ground, workshop, approvals)
    await sweep_strays(ground)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(workshop.run)
        nursery.start_soon(outgoing.run)
        nursery.start_soon(talks.run)
        nursery.start_soon(run_sweeps, ground)
        nursery.start_soon(run_departures, ground, workshop, outgoing)
        yield Runs(ground, outgoing, workshop, approvals)
        nursery.cancel_scope.cancel()
