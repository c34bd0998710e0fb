"""Watch the agents' files and processes, and say when the list of sessions changed.

One pass looks at what changed, reads a bounded number of new bytes in a worker thread, commits them with their
offsets, and judges every session again. A pass that did not get through everything is followed by the next at once;
otherwise a second passes. There is no dependence on notifications of the file system, so no limit of theirs is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from mesh.base.clock import Now
from mesh.base.db import Connection, Database
from mesh.base.errors import Damaged, OurFault
from node.sessions import detail, store
from node.sessions.cost import parse_prices
from node.sessions.fold import Redact
from node.sessions.formats import fit
from node.sessions.inventory import Place, SessionState
from node.sessions.listing import HOUR_MS, KEPT_MAX, Kept, Key, Listing
from node.sessions.place import read_place
from node.sessions.processes import Processes, Running
from node.sessions.reading import Found, Read, read_new
from node.sessions.store import Decision, Mark, Reading
from node.sessions.survey import Survey, roots

PERIOD_S = 1.0
PASS_BYTES_MAX = 32 << 20
PASS_FILES_MAX = 500
PROCESS_PERIOD_S = 2.0
"""Processes are looked at, and states judged by the clock alone, this often."""
BRANCH_PERIOD_S = 10.0
"""How old the branch of a living session may be; the others' projects are read once."""
PLACES_MAX = 2_000
RETRY_S = 30.0
"""Pause after a pass that could not store what it read (a full disk); nothing is lost, the bytes are read again."""
PRUNE_PERIOD_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What one pass did.

    Attributes:
        files: Files read.
        bytes_read: Bytes read from transcripts, fingerprints included.
        decisions: New decisions of the user's.
        changed: Whether the list of sessions differs from before.
        more: Whether there is more to read at once.
    """

    files: int
    bytes_read: int
    lines: int
    decisions: int
    changed: bool
    more: bool


class Watcher:
    """The sessions of this machine, as far as its files and processes show them.

    Args:
        database: ``sessions.db``, opened with :data:`node.sessions.store.SCHEMA`.
        claude_dir: Claude Code's folder (``~/.claude``); need not exist.
        codex_dir: Codex's folder (``~/.codex``); need not exist.
        listed_h: A session without a process is listed this long after its last activity, in hours.
        redact: Takes secrets and personal traces out of a text; called in a worker thread too.
        clock: Reads this machine's clocks.
    """

    def __init__(
        self,
        database: Database,
        claude_dir: Path,
        codex_dir: Path,
        listed_h: int,
        redact: Redact,
        clock: Callable[[], Now],
    ) -> None:
        prices = parse_prices(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))
        self._database = database
        self._redact = redact
        self._clock = clock
        self._prices = prices
        self._listing = Listing(prices, redact, listed_h)
        self._listed_ms = listed_h * HOUR_MS
        self._processes = Processes(claude_dir, roots(claude_dir, codex_dir)[1][1])
        self._sender, self.changed = trio.open_memory_channel[None](1)
        self._pass = trio.Lock()
        self._survey = Survey(claude_dir, codex_dir, store.known_files(database.reader))
        self._places: dict[str, tuple[Place, float]] = {}
        self._next_look_s = self._next_prune_s = float("-inf")
        self._running: list[Running] = []
        self.trouble = ""
        now = clock()
        for row in store.sessions_since(database.reader, now.wall_ms - self._listed_ms, KEPT_MAX):
            self._keep((row.agent, row.session))

    def listed(self) -> list[SessionState]:
        """List the sessions as of the last pass: living ones, and those active in the last ``listed_h`` hours."""
        return self._listing.listed()

    def pids(self) -> list[int]:
        """List the processes of the agents' sessions that live, as of the last look."""
        return [running.pid for running in self._running if running.pid is not None and running.life.state == "alive"]

    def missing(self) -> str:
        """Say why this system gives no evidence of processes, or nothing where it does."""
        return self._processes.missing

    def decisions(self, limit: int = 100) -> list[Decision]:
        """List decisions of the user's that nobody has taken yet, oldest first.

        They stay until :meth:`take_decisions` is told that they are stored, also across a crash.
        """
        return store.decisions_waiting(self._database.reader, limit)

    async def take_decisions(self, taken: Iterable[Decision]) -> None:
        """Note durably that decisions are stored elsewhere; they are not given again.

        If cancelled: they may be given once more; their ``source_id`` is the same.
        """
        names = [decision.source_id for decision in taken]
        now_ms = self._clock().wall_ms
        await self._database.write(lambda connection: store.take_decisions(connection, names, now_ms))

    async def session_detail(self, prefix: str) -> dict[str, Any]:
        """Describe one session of this machine for ``session show``.

        Args:
            prefix: The session's id or the start of it.

        Returns:
            Its state, its latest events, its tokens by model, its files and what is known of its process.

        Raises:
            Usage: No session, or several, begin so.
        """
        row = detail.pick(self._database.reader, prefix)
        state = next((s for s in self.listed() if (s.body.agent, s.body.session) == (row.agent, row.session)), None)
        life = self._listing.life((row.agent, row.session))
        return await trio.to_thread.run_sync(
            partial(detail.describe, detail.load(self._database.reader, row), state, life, self._prices, self._redact)
        )

    async def scan_once(self) -> ScanReport:
        """Do one pass: look, read what is new, commit, judge.

        Returns:
            What was done; ``more`` means that another pass has work at once.

        Raises:
            StorageFull, OurFault, Damaged: Nothing of this pass is stored; the next one reads it again.

        If cancelled: the pass is stored whole or not at all.
        """
        async with self._pass:
            now = self._clock()
            gone = await trio.to_thread.run_sync(self._survey.look, now)
            work = [(found, self._mark_for(found)) for found in self._survey.next_files(PASS_FILES_MAX)]
            readings, reads, unreadable = await trio.to_thread.run_sync(self._read_batch, work)
            moved = [(mark.path, found.path) for found, mark in work if mark is not None and mark.path != found.path]
            decisions = 0
            if readings or gone or moved or now.steady_s >= self._next_prune_s:
                decisions = await self._commit(readings, gone, moved, now)
            self._survey.forget([*gone, *(old_path for old_path, _ in moved)])
            for found in unreadable:
                self._survey.note_read(found.path, found.size, found.mtime_ns, found.inode, more=False)
            self._settle(reads, listed_again=bool(gone), now=now)
            changed = await self._judge(now, anew=bool(readings or gone))
            if changed or decisions:
                self._wake()
            size = sum(read.bytes_read for read in reads)
            return ScanReport(len(reads), size, sum(r.lines for r in reads), decisions, changed, self._survey.waiting)

    async def _judge(self, now: Now, *, anew: bool) -> bool:
        """Say where every session stands, when something was read and whenever the processes were looked at."""
        look = now.steady_s >= self._next_look_s
        if look:
            self._running = await trio.to_thread.run_sync(self._processes.look, now)
            self._next_look_s = now.steady_s + PROCESS_PERIOD_S
            self._note_running(now)
        if not (look or anew):
            return False
        await self._read_places(now)
        return self._listing.update({cwd: place for cwd, (place, _) in self._places.items()}, now.wall_ms)

    def _wake(self) -> None:
        try:
            self._sender.send_nowait(None)
        except trio.WouldBlock:
            return

    def _mark_for(self, found: Found) -> Mark | None:
        """Look up how far a file is read, also under the name it had before."""
        mark = store.mark_of(self._database.reader, found.path)
        if mark is None:
            before = store.mark_by_inode(self._database.reader, found.device, found.inode)
            if before is not None and not self._survey.stands(before.path, before.inode):
                mark = before
        return mark

    def _read_batch(self, work: list[tuple[Found, Mark | None]]) -> tuple[list[Reading], list[Read], list[Found]]:
        """Read the new lines of several files within the pass's budget. Runs in a worker thread.

        Returns:
            What to store, what was read, and which files could not be read at all.
        """
        budget_bytes = PASS_BYTES_MAX
        readings, reads, unreadable = [], [], []
        for found, mark in work:
            if budget_bytes <= 0:
                break
            read = read_new(found, mark, budget_bytes, self._redact)
            if read is None:
                unreadable.append(found)
                continue
            budget_bytes -= read.bytes_read
            reads.append(read)
            readings.append(Reading(read.mark, read.fresh, read.usages, tuple(self._decisions_of(read))))
        return readings, reads, unreadable

    def _decisions_of(self, read: Read) -> Iterable[Decision]:
        for label in read.labels:
            place = read_place(label.cwd)
            yield Decision(
                source_id=store.source_id(read.mark.agent, label.call_id),
                agent=read.mark.agent,
                session=read.mark.session,
                project=place.project,
                cwd=fit(label.cwd or "", 4_096),
                tool=fit(label.tool, 800),
                subject=fit(self._redact(label.subject), 2_048),
                verdict=label.verdict,
                at_ms=label.at_ms,
            )

    async def _commit(self, readings: list[Reading], gone: list[str], moved: list[tuple[str, str]], now: Now) -> int:
        prune = now.steady_s >= self._next_prune_s

        def work(connection: Connection) -> int:
            for old_path, new_path in moved:
                store.rename_file(connection, old_path, new_path)
            renamed = {old_path for old_path, _ in moved}
            store.note_gone(connection, [path for path in gone if path not in renamed], now.wall_ms)
            if prune:
                store.prune(connection, now.wall_ms)
            return store.commit_readings(connection, readings, now.wall_ms)

        found = await self._database.write(work)
        if prune:
            self._next_prune_s = now.steady_s + PRUNE_PERIOD_S
        return found

    def _settle(self, reads: list[Read], *, listed_again: bool, now: Now) -> None:
        """Remember what is stored now, and take the sessions it touched into the list."""
        touched: set[Key] = set()
        if listed_again:
            touched |= {(state.body.agent, state.body.session) for state in self.listed()}
        for read in reads:
            mark = read.mark
            self._survey.note_read(mark.path, mark.size, mark.mtime_ns, mark.inode, more=read.more)
            if mark.last_ms >= now.wall_ms - self._listed_ms or self._listing.knows((mark.agent, mark.session)):
                touched.add((mark.agent, mark.session))
        for key in touched:
            self._keep(key)

    def _keep(self, key: Key) -> None:
        """Load a session's row into the list; a helper's session without a transcript of its own is not one."""
        reader = self._database.reader
        row = store.session_row(reader, *key)
        mark = store.main_mark(reader, *key)
        if row is None or mark is None:
            return
        totals = store.totals_of(reader, *key)
        deleted = store.is_gone(reader, mark.path)
        self._listing.keep(Kept(*key, mark.fold, totals, row.last_ms, row.helpers, row.bad, deleted))

    def _note_running(self, now: Now) -> None:
        found = {}
        self._survey.live = []
        for running in self._running:
            key = self._session_of(running)
            if key is None:
                continue
            found[key] = (running.life, running.note)
            if running.life.state == "alive":
                mark = store.main_mark(self._database.reader, *key)
                self._survey.live += [mark.path] if mark else []
                if not self._listing.knows(key):
                    self._keep(key)
        self._listing.note_running(found, now.wall_ms)

    def _session_of(self, running: Running) -> Key | None:
        if running.path is None:
            return running.agent, running.session
        mark = store.mark_of(self._database.reader, running.path)
        return None if mark is None or mark.helper else (mark.agent, mark.session)

    async def _read_places(self, now: Now) -> None:
        """Read project and branch of folders not read yet, and again where a session lives."""
        living = self._listing.living_folders()
        wanted = [
            cwd
            for cwd in self._listing.folders()
            if cwd not in self._places or (cwd in living and now.steady_s - self._places[cwd][1] >= BRANCH_PERIOD_S)
        ]
        if not wanted:
            return
        places = await trio.to_thread.run_sync(lambda: [read_place(cwd) for cwd in wanted])
        for cwd, place in zip(wanted, places, strict=True):
            self._places[cwd] = (place, now.steady_s)
        while len(self._places) > PLACES_MAX:
            del self._places[next(iter(self._places))]


async def run_watch(watcher: Watcher, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Watch until cancelled; started once the first pass is done.

    What cannot be stored is tried again after RETRY_S; meanwhile ``watcher.trouble`` says why.

    Args:
        watcher: The watcher.
        task_status: Told when the first pass is done.

    If cancelled: the pass in hand is stored whole or not at all.
    """
    started = False
    while True:
        pause_s = PERIOD_S
        try:
            report = await watcher.scan_once()
            watcher.trouble = ""
            pause_s = 0 if report.more else PERIOD_S
        except (OurFault, Damaged) as error:
            watcher.trouble = error.message
            pause_s = RETRY_S
        if not started:
            task_status.started()
            started = True
        await trio.sleep(pause_s)
