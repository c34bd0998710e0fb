"""Knowledge: status, lessons, show, learn, forget; and the path from decisions in sessions to the hive."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from hive.curator import Curator
from hive.unit import APPROVE, DENY, Observation
from hive.view import Lesson
from mesh.base.clock import rfc3339
from mesh.base.errors import Damaged, OurFault
from node.calls import Call
from node.sessions.store import Decision
from node.sessions.watch import Watcher

DECISIONS_AT_ONCE = 200
RETRY_S = 10.0

log = logging.getLogger("node.hive")


@dataclass(frozen=True, slots=True)
class Hive:
    """The parts these verbs ask."""

    curator: Curator
    watcher: Watcher
    taking: trio.Lock

    async def status(self, call: Call) -> object:
        """Counts."""
        found = self.curator.status()
        return {**found, "last_learned": rfc3339(found["last_learned"])}

    async def lessons(self, call: Call) -> object:
        """Every lesson, heaviest first."""
        return [_shown(lesson) for lesson in self.curator.lessons()]

    async def show(self, call: Call) -> object:
        """One lesson, with who saw it."""
        found: dict[str, Any] = self.curator.show(call.text("lesson", bytes_max=64))
        return {
            **found,
            "last_observed": rfc3339(found["last_observed"]),
            "machines": [{**m, "last_observed": rfc3339(m["last_observed"])} for m in found["machines"]],
            "examples": [{**e, "at": rfc3339(e["at"])} for e in found["examples"]],
        }

    async def learn(self, call: Call) -> object:
        """Read this machine's sessions now and keep what they show."""
        report = await self.watcher.scan_once()
        while report.more:
            report = await self.watcher.scan_once()
        return {"learned": await self.take_decisions(), **_counts(self.curator.status())}

    async def forget(self, call: Call) -> object:
        """Forget a lesson, here and for good."""
        return {**_shown(await self.curator.forget(call.text("lesson", bytes_max=64))), "state": "muted"}

    async def take_decisions(self) -> int:
        """Hand every decision that waits to the hive; one is acknowledged only once the hive holds it.

        Returns:
            How many were new to the hive.
        """
        new = 0
        async with self.taking:
            while waiting := self.watcher.decisions(DECISIONS_AT_ONCE):
                new += await self.curator.observe(observations_of(waiting))
                await self.watcher.take_decisions(waiting)
        return new

    async def run_learning(self, changed: trio.MemoryReceiveChannel[None]) -> None:
        """Hand decisions to the hive as they are found, until cancelled.

        Args:
            changed: Wakes whenever the watcher saw something new.
        """
        while True:
            try:
                await self.take_decisions()
            except (OurFault, Damaged) as fault:
                log.error("decisions were not kept: %s", fault.message)
                await trio.sleep(RETRY_S)
                continue
            await changed.receive()


def observations_of(decisions: Sequence[Decision]) -> list[Observation]:
    """Turn what sessions showed into what the hive takes."""
    return [
        Observation(d.source_id, d.agent, d.session, d.project, d.tool, d.subject, APPROVE if d.verdict == APPROVE else DENY, d.at_ms, d.cwd)
        for d in decisions
    ]


def _shown(lesson: Lesson) -> dict[str, object]:
    return {**lesson.shown(), "last_observed": rfc3339(lesson.last_observed)}


def _counts(status: dict[str, Any]) -> dict[str, object]:
    return {"observations": status["observations"], "units": status["units"]}
