"""Sessions everywhere: the fleet, and one session in detail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from mesh.base.clock import Now
from mesh.base.errors import MeshError, Usage
from mesh.base.names import base32
from mesh.kinds import PRESENCE, SESSION, Role
from mesh.replica import Replica
from mesh.sealing import FleetSealer
from node.calls import Call
from node.machines import find_machine
from node.sessions.sharing import Published, fleet_rows, plan, remote_bodies_untrusted, seal_body
from node.sessions.watch import Watcher

WATCH_S_MIN = 0.25
"""A changing fleet is told to a watcher at most this often."""
WATCH_S_MAX = 5.0
"""Ages move, so a watcher is told at least this often."""
RETRY_S = 10.0
"""When sessions are published again that the disk or the mesh refused."""

log = logging.getLogger("node.fleet")


@dataclass(slots=True)
class Fleet:
    """The parts these verbs ask, and what of this machine's sessions went out."""

    replica: Replica
    watcher: Watcher
    sealer: FleetSealer
    read_clock: Callable[[], Now]
    _published: dict[bytes, Published] = field(default_factory=dict)

    def rows(self) -> list[dict[str, Any]]:
        """Every session of this person's machines."""
        remote = remote_bodies_untrusted(self.replica.entries(SESSION), self.replica.me.node, self.sealer)
        return fleet_rows(
            self.watcher.listed(), remote, self.replica.me, self.replica.member, self.read_clock()
        )

    async def fleet(self, call: Call) -> object:
        """Every session, once or as it changes."""
        wanted = self._filter(call)
        if not call.flag("watch"):
            return [row for row in self.rows() if wanted(row)]
        changes = self.replica.changes({SESSION, PRESENCE})
        while True:
            rows = [row for row in self.rows() if wanted(row)]
            await call.event({"kind": "fleet", "fleet": rows})
            await trio.sleep(WATCH_S_MIN)
            with trio.move_on_after(WATCH_S_MAX):
                await changes.receive()

    def _filter(self, call: Call) -> Callable[[dict[str, Any]], bool]:
        everything = call.flag("all")
        status, project = call.optional_text("status"), call.optional_text("project")
        named = call.optional_text("node", bytes_max=256)
        node = None
        if named is not None:
            node = base32(find_machine(named, [self.replica.me, *self.replica.members()]).node)

        def wanted(row: dict[str, Any]) -> bool:
            if status is None and not everything and row["status"] == "ended":
                return False
            return (
                (status is None or row["status"] == status)
                and (project is None or row["project"] == project)
                and (node is None or row["node"] == node)
            )

        return wanted

    async def session_show(self, call: Call) -> object:
        """One session: this machine's in full, another machine's as it was published."""
        prefix = call.text("session", bytes_max=128)
        try:
            found = await self.watcher.session_detail(prefix)
            rows = [row for row in self.rows() if row["session"] == found["session"] and row["agent"] == found["agent"]]
            return {**found, "state": rows[0] if rows else found["state"]}
        except Usage as unknown:
            rows = [row for row in self.rows() if str(row["session"]).startswith(prefix)] if prefix else []
            if len(rows) != 1:
                raise unknown from None
            return {"session": rows[0]["session"], "agent": rows[0]["agent"], "state": rows[0]}

    async def run_publishing(self, changed: trio.MemoryReceiveChannel[None]) -> None:
        """Publish this machine's sessions as they change, until cancelled. What is refused is tried again.

        Args:
            changed: Wakes whenever the watcher saw something new.
        """
        self._adopt_published()
        while True:
            now, next_look_s = self.read_clock(), RETRY_S
            members = len(self.replica.members_now.certificates)
            # A machine whose role lets it publish nothing keeps its sessions to itself.
            listed = self.watcher.listed() if self.replica.may(Role.MEMBER) else []
            todo = plan(listed, self._published, members=members, now_s=now.steady_s)
            try:
                for key, body in todo.publish:
                    await self.replica.publish(SESSION, key, seal_body(body, self.sealer))
                    self._published[key] = Published(body, now.steady_s)
                for key in todo.withdraw:
                    await self.replica.withdraw(SESSION, key)
                    del self._published[key]
                next_look_s = todo.next_look_s - now.steady_s
            except MeshError as fault:
                log.error("sessions were not published: %s", fault.message)
            if todo.publish or todo.withdraw:
                self.replica.wake({SESSION})
            with trio.move_on_after(max(WATCH_S_MIN, next_look_s)):
                await changed.receive()
            await trio.sleep(WATCH_S_MIN)

    def _adopt_published(self) -> None:
        """Take over what an earlier start published, so that sessions which ended meanwhile are withdrawn."""
        from node.sessions.inventory import body_untrusted

        for entry in self.replica.entries(SESSION):
            if entry.author != self.replica.me.node:
                continue
            plain = self.sealer.unseal(entry.body, entry.author)
            try:
                if plain is not None:
                    self._published[entry.key] = Published(body_untrusted(plain), float("-inf"))
            except MeshError:
                continue
