"""The loop around the hive's cores: keeps observations, publishes own units, folds everybody's into lessons."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from hive import store
from hive.distil import Evidence, Tally, evidence_untrusted, unit_of
from hive.holdings import Holdings
from hive.patterns import is_plain, is_tool_name, pattern_of, pattern_problem, tool_name, wildcards
from hive.ports import Sealer
from hive.redact import redact
from hive.unit import (
    APPROVE,
    DENY,
    GLOBAL,
    LESSON_KIND,
    PERMISSION,
    TEXT_BYTES_MAX,
    Observation,
    Topic,
    Verdict,
    encode_unit,
)
from hive.view import (
    OTHER_WEIGHT,
    OWN_WEIGHT,
    Contribution,
    Lesson,
    Viewpoint,
    fold,
    grouped,
)
from mesh.base.clock import Now
from mesh.base.crypto import digest
from mesh.base.db import Database
from mesh.base.errors import MeshError, Usage
from mesh.base.names import base32, project_name
from mesh.base.ports import Directory, Records

PUBLISHED_MAX = 200
"""Own units in the mesh; beyond it the one observed longest ago is not renewed, and the mesh's quota lets it go."""
BATCH_MAX = 500
"""Observations handled in one transaction; a longer list is cut into such batches."""
ROUND_PERIOD_S = 2.0
"""Least time between two rounds of publishing."""
REPUBLISH_PERIOD_MS = 60_000
"""Least time between two publications of one unit; what changed meanwhile goes out with the next."""
REFUSED_PERIOD_S = 60.0
"""Wait after the mesh or the disk refused a publication."""
Clock = Callable[[], Now]
_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_curator(
    database: Database, records: Records, directory: Directory, sealer: Sealer, clock: Clock
) -> AsyncIterator[Curator]:
    """Run the hive of this machine while the context lasts.

    Args:
        database: ``hive.db``, opened with ``hive.store.SCHEMA``.
        records: The mesh's registers.
        directory: Who is in the mesh.
        sealer: Seals unit bodies for the own person's machines.
        clock: Reads this machine's clocks.

    Returns:
        The curator.

    If cancelled: everything acknowledged is in the database; units not yet published are published after the next start.
    """
    curator = Curator(database, records, directory, sealer, clock)
    async with trio.open_nursery() as nursery:
        await nursery.start(curator.run_curator)
        try:
            yield curator
        finally:
            nursery.cancel_scope.cancel()


class Curator:
    """What this machine learns, publishes and believes.

    Args:
        database: ``hive.db``, opened with ``hive.store.SCHEMA``.
        records: The mesh's registers.
        directory: Who is in the mesh.
        sealer: Seals unit bodies for the own person's machines.
        clock: Reads this machine's clocks.
    """

    def __init__(
        self, database: Database, records: Records, directory: Directory, sealer: Sealer, clock: Clock
    ) -> None:
        self._database = database
        self._records = records
        self._directory = directory
        self._sealer = sealer
        self._clock = clock
        self._holdings = Holdings(records, directory, sealer)
        self._publishing = trio.Lock()
        self._wake_send, self._wake_receive = trio.open_memory_channel[None](1)

    async def run_curator(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish what changed, and follow what this machine withdrew elsewhere, until cancelled.

        Args:
            task_status: Told once ``hive.db`` was compared with the mesh for the first time.
        """
        changes = self._records.changes({LESSON_KIND})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forward, changes)
            pause_s = await self._round(self.reconcile)
            task_status.started()
            while True:
                pause_s = max(pause_s, await self._round(self._publish_changed))
                await trio.sleep(pause_s)
                with trio.move_on_after(REPUBLISH_PERIOD_MS / 1000):
                    await self._wake_receive.receive()
                pause_s = await self._round(self.reconcile)

    async def _round(self, work: Callable[[], Awaitable[None]]) -> float:
        """Do one part of a round; returns how long to pause. A refusal of the mesh or the disk ends no node."""
        try:
            await work()
        except MeshError as error:
            _log.warning("lessons could not be published: %s", error.kind)
            return REFUSED_PERIOD_S
        return ROUND_PERIOD_S

    async def _forward(self, changes: trio.MemoryReceiveChannel[None]) -> None:
        async for _ in changes:
            self._wake()

    def _wake(self) -> None:
        try:
            self._wake_send.send_nowait(None)
        except trio.WouldBlock:
            return  # one pending wake is enough

    async def observe(self, observations: Sequence[Observation]) -> int:
        """Learn from decisions; they are redacted, and durable when this returns.

        Args:
            observations: In any order; known ones change nothing.

        Returns:
            How many were new.

        Raises:
            StorageFull, Damaged, OurFault: Some were not kept; handing all in again is safe.

        If cancelled: each batch of BATCH_MAX is kept whole or not at all.
        """
        now_ms = self._clock().wall_ms
        new = 0
        for start in range(0, len(observations), BATCH_MAX):
            batch = observations[start : start + BATCH_MAX]
            evidence = await trio.to_thread.run_sync(_evidence_of, batch, now_ms)
            new += await self._database.write(partial(store.add_evidence, evidence=evidence, now_ms=now_ms))
        if new:
            self._wake()
        return new

    async def learn_by_hand(
        self, tool: str, pattern_or_command: str, verdict: Verdict, text: str = "", *, project: str = ""
    ) -> Lesson:
        """Keep a lesson the user states; it decides the stance here and lifts an earlier forgetting.

        Args:
            tool: ``Bash``, ``Edit``, ``WebFetch``, or an agent's name of such a tool.
            pattern_or_command: A pattern with ``*``, or a command, path or address to generalise.
            verdict: ``approve`` or ``deny``.
            text: A remark for people, at most TEXT_BYTES_MAX bytes.
            project: Only for this project; empty: everywhere.

        Returns:
            The lesson as it stands now; durable, and published with the next round.

        Raises:
            Usage: The pattern or the remark is not sound.
        """
        topic = _topic_by_hand(tool_name(tool), pattern_or_command.strip(), project, verdict)
        remark = " ".join(redact(text).split())
        if verdict not in (APPROVE, DENY):
            raise Usage("a lesson either approves or denies")
        if len(remark.encode()) > TEXT_BYTES_MAX or not is_plain(remark):
            raise Usage(f"the remark is longer than {TEXT_BYTES_MAX} bytes, or holds control characters")
        now_ms = self._clock().wall_ms
        source = digest(b"by hand", topic.key, str(now_ms).encode(), verdict.encode(), size=16)
        piece = Evidence(source, topic, verdict, now_ms, "", "", topic.pattern)
        async with self._publishing:  # a publication under way would otherwise put this one off
            lifted = self._records.withdrawn(LESSON_KIND).get(topic.key, 0)
            await self._database.write(lambda c: store.teach(c, piece, remark, lifted, now_ms))
        self._wake()
        return next(lesson for lesson in self.lessons() if lesson.key == topic.key)

    async def forget(self, prefix: str) -> Lesson:
        """Forget a lesson on this machine: an own one is withdrawn from the mesh, a peer's is muted here.

        No observation brings it back; ``learn_by_hand`` does.

        Args:
            prefix: The start of the lesson's id.

        Returns:
            The lesson as it was.

        Raises:
            Usage: No lesson, or more than one, starts like that.
            Refused: Too many are forgotten already.

        If cancelled: it is forgotten here or not; a withdrawal that is missing is made up for at the next start.
        """
        lesson = self._resolve(prefix)
        now_ms = self._clock().wall_ms
        async with self._publishing:
            await self._database.write(lambda c: store.forget(c, lesson.key, now_ms))
            await self._records.withdraw(LESSON_KIND, lesson.key)
        return lesson

    def lessons(self) -> list[Lesson]:
        """Fold everybody's units, own unpublished ones included, into lessons, heaviest first."""
        return fold(self._contributions(), self._viewpoint())

    def show(self, prefix: str) -> dict[str, Any]:
        """Tell everything about one lesson.

        Args:
            prefix: The start of its id.

        Returns:
            The fields of the lesson, its whole id under ``id``, ``machines`` (node, name, owner, mine, stance, positive,
            negative, last_observed in ms, record, text) and ``examples`` of this machine (subject, verdict, at in ms).

        Raises:
            Usage: No lesson, or more than one, starts like that.
        """
        lesson = self._resolve(prefix)
        group = grouped(self._contributions(), self._viewpoint())[lesson.key]
        shown = store.examples(self._database.reader, lesson.key)
        return {
            **lesson.shown(),
            "id": base32(lesson.key),
            "machines": [self._holdings.machine(contribution) for contribution in group],
            "examples": [{"subject": subject, "verdict": verdict, "at": at_ms} for subject, verdict, at_ms in shown],
        }

    def status(self) -> dict[str, Any]:
        """Count: observations, own units, peers' units, forgotten lessons; and when something was last learned, in ms."""
        me = self._directory.me.node
        observations, units, last_learned_ms = store.counts(self._database.reader)
        return {
            "observations": observations,
            "units": units,
            "peers_units": sum(c.author != me for c in self._holdings.published()),
            "forgotten": len(store.forgotten_keys(self._database.reader)),
            "last_learned": last_learned_ms,
        }

    async def reconcile(self) -> None:
        """Follow the mesh where it knows more of this machine than ``hive.db``, which may be an older copy.

        What was withdrawn is forgotten; what was published is never contradicted by smaller counters.
        """
        async with self._publishing:
            now_ms = self._clock().wall_ms
            unknown = store.not_forgotten(self._database.reader, self._records.withdrawn(LESSON_KIND))
            if unknown:
                await self._database.write(lambda c: store.forget_all(c, unknown, now_ms))
            forgotten = store.forgotten_keys(self._database.reader)
            for contribution in self._holdings.published():
                if contribution.author != self._directory.me.node:
                    continue
                key = contribution.unit.topic.key
                if key in forgotten:
                    await self._records.withdraw(LESSON_KIND, key)
                else:
                    await self._adopt(key, contribution)

    async def _adopt(self, key: bytes, contribution: Contribution) -> None:
        said = contribution.unit
        known = store.unit(self._database.reader, key)
        if known is not None and known.tally.positive >= said.positive and known.tally.negative >= said.negative:
            return
        stated = Tally(said.positive, said.negative, said.last_observed_ms)
        await self._database.write(lambda c: store.adopt_stated(c, key, said.topic, stated))

    async def _publish_changed(self) -> None:
        """Publish changed units among the newest PUBLISHED_MAX, oldest first; one published lately waits its time.

        A unit without a record is published too, whatever ``hive.db`` says: this machine may have moved to another mesh.
        """
        me = self._directory.me.node
        present = {c.unit.topic.key for c in self._holdings.published() if c.author == me}
        for own in reversed(store.newest_units(self._database.reader, PUBLISHED_MAX)):
            lately = 0 <= self._clock().wall_ms - own.published_ms < REPUBLISH_PERIOD_MS
            if own.topic.key not in present or (own.changed and not (own.published_ms and lately)):
                await self._publish(own.topic)

    async def _publish(self, topic: Topic) -> None:
        key = topic.key
        async with self._publishing:
            own = store.unit(self._database.reader, key)
            if own is None:
                return  # forgotten while others were published
            now_ms = self._clock().wall_ms
            unit = unit_of(topic, own.tally, stance=own.stance, text=own.text)
            await self._records.publish(LESSON_KIND, key, self._sealer.seal(encode_unit(unit)))
            await self._database.write(lambda c: store.mark_published(c, key, own.tally, now_ms))

    def _contributions(self) -> list[Contribution]:
        """The mesh's units, with this machine's own as they are now instead of as they were published."""
        me = self._directory.me
        published = self._holdings.published()
        records = {c.unit.topic.key: c for c in published if c.author == me.node}
        found = [c for c in published if c.author != me.node]
        for own in store.newest_units(self._database.reader, store.UNITS_MAX):
            record = records.get(own.topic.key)
            unit = unit_of(own.topic, own.tally, stance=own.stance, text=own.text)
            same = record is not None and record.unit == unit
            found.append(Contribution(me.node, me.owner, record.record_id if record and same else b"", 0, unit))
        return found

    def _viewpoint(self) -> Viewpoint:
        me = self._directory.me
        return Viewpoint(
            me=me.node,
            owner=me.owner,
            now_ms=self._clock().wall_ms,
            weigh=lambda owner: OWN_WEIGHT if owner == me.owner else OTHER_WEIGHT,
            name_of=self._holdings.owner_name,
            accepted=self._holdings.accepted(),
            muted=store.forgotten_keys(self._database.reader),
        )

    def _resolve(self, prefix: str) -> Lesson:
        wanted = prefix.replace("-", "").strip().lower()
        found = [lesson for lesson in self.lessons() if base32(lesson.key).startswith(wanted)] if wanted else []
        if len(found) == 1:
            return found[0]
        if not found:
            raise Usage(f"no lesson starts with {prefix[:40]!r}", hint="hivemesh hive lessons lists them")
        some = ", ".join(base32(lesson.key)[:12] for lesson in found[:5])
        raise Usage(f"{len(found)} lessons start with {prefix[:40]!r}: {some}", hint="give more of the id")


def _evidence_of(observations: Sequence[Observation], now_ms: int) -> list[Evidence]:
    pieces = (evidence_untrusted(observation, now_ms) for observation in observations)
    return [piece for piece in pieces if piece is not None]


def _topic_by_hand(tool: str, pattern_or_command: str, project: str, verdict: Verdict) -> Topic:
    if project:
        project_name(project)
    if not is_tool_name(tool) or redact(tool) != tool:
        raise Usage(f"{tool[:40]!r} is not the name of a tool", hint="for a shell command say Bash")
    by_hand = wildcards(pattern_or_command) > 0
    pattern = pattern_or_command if by_hand else pattern_of(tool, pattern_or_command, denied=verdict == DENY)
    if pattern is None:
        raise Usage("nothing can be learned from that", hint="it is empty, too long, of several lines, or holds a secret")
    problem = pattern_problem(tool, pattern)
    if problem or redact(pattern) != pattern:
        raise Usage(f"that pattern cannot be kept: {problem or 'it holds a secret'}", hint="name the program and its first argument")
    return Topic(f"project:{project}" if project else GLOBAL, PERMISSION, tool, pattern)
