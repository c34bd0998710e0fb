"""Whole machines for runs: real keys, ledgers, folders, git and processes, joined by channels and records in memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mesh.base.clock import read_clock
from mesh.base.crypto import SigningKey
from mesh.base.db import Database
from mesh.base.names import MeshId, node_id
from mesh.base.ports import Member
from node.tasks.ledger import SCHEMA
from node.tasks.ports import RunSettings, RunTimes
from node.tasks.runs import Runs, open_runs
from tests.fakes.channels import FakeNetwork
from tests.fakes.records import FakeMesh, FakeNode

MESH = MeshId(b"mesh-of-the-test")
FAST = RunTimes(reach_s=1.0, detached_s=600.0, term_s=0.4, grace_s=0.3, retry_s=0.05, ask_s=600.0, refresh_s=300.0, git_s=60.0)


class Machine(FakeNode):
    """One machine that can ask for runs and take them on."""

    def __init__(
        self, fleet: Fleet, name: str, owner: str, roles: tuple[str, ...], settings: RunSettings, folder: Path, times: RunTimes
    ) -> None:
        super().__init__(fleet.mesh, name, owner, roles)
        self.fleet = fleet
        self.key = SigningKey(name.encode().ljust(32, b"."))
        self.node = node_id(self.key.public)
        self.sealer._me = self.node
        self.settings = settings
        self.times = times
        self.folder = folder
        self.free_bytes = 10**12
        self.environment = dict(os.environ)
        self.clock = read_clock
        self.state = "live"
        fleet.mesh.nodes.append(self)

    def member(self, seen_by: FakeNode) -> Member:
        linked = self.fleet.network.linked(self.node, seen_by.node)
        return dataclasses.replace(super().member(seen_by), public_key=self.key.public, linked=linked, state=self.state)

    @asynccontextmanager
    async def up(self) -> AsyncIterator[Runs]:
        """Run this machine; leaving the block is a crash as far as its tasks can tell."""
        self.folder.mkdir(parents=True, exist_ok=True)
        database = Database(self.folder / "tasks.db", SCHEMA)
        channels = self.fleet.network.join(self.node)
        try:
            async with open_runs(
                read_settings=lambda: self.settings,
                database=database,
                channels=channels,
                directory=self.directory,
                records=self.records,
                signing_key=self.key,
                mesh=MESH,
                sealer=self.sealer,
                folder=self.folder / "tasks",
                environment=self.environment,
                user="tester",
                clock=lambda: self.clock(),
                entropy=os.urandom,
                times=self.times,
                free=lambda _: self.free_bytes,
            ) as runs:
                yield runs
        finally:
            self.fleet.network.leave(self.node)
            database.close()


@dataclasses.dataclass
class Fleet:
    """Machines that may reach each other."""

    folder: Path
    mesh: FakeMesh = dataclasses.field(default_factory=FakeMesh)
    network: FakeNetwork = dataclasses.field(default_factory=FakeNetwork)

    def machine(
        self,
        name: str,
        owner: str = "me",
        *,
        roles: tuple[str, ...] = ("member", "worker"),
        settings: RunSettings | None = None,
        times: RunTimes = FAST,
    ) -> Machine:
        return Machine(self, name, owner, roles, settings or RunSettings(runs="mine"), self.folder / name, times)
