"""A node whose state came back from a backup: held until another member told what it knows, or a person accepts it.

SECURITY 23.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mesh.base.clock import read_clock
from mesh.base.errors import Refused
from mesh.base.names import base32
from mesh.kinds import LESSON, Role
from node.mark import Keeper
from node.recovery import Recovery
from node.verbs.access import Access
from query.grants import open_untrusted
from query.permits import Attempt, Denied, Permit
from query.register import Register
from tests.fakes.overlays import Machine, founder, open_machine, until


@asynccontextmanager
async def open_recovery(machine: Machine, register: Register) -> AsyncIterator[Recovery]:
    """The part as the node composes it, running."""
    keeper = Keeper(machine.folder / "mark", base32(machine.id), [machine.database.path, register._database.path])
    machine.replica.raise_newest(keeper.mark.newest)
    access = Access(machine.replica, register)
    recovery = Recovery(keeper, machine.replica, register, machine.overlay.links, lambda: machine.replica.newest, access.apply)
    machine.pairing._suspended = lambda: recovery.suspended
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recovery.run)
        nursery.start_soon(access.run_revocations)
        yield recovery
        nursery.cancel_scope.cancel()


def backup(folder: Path, name: str) -> None:
    """Copy a database whose node does not run."""
    shutil.copy(folder / name, folder / f"{name}.backup")


def restore(folder: Path, name: str) -> None:
    for ending in ("-wal", "-shm"):
        (folder / (name + ending)).unlink(missing_ok=True)
    shutil.copy(folder / f"{name}.backup", folder / name)


async def test_a_used_invite_stays_used_and_own_writes_win_after_the_database_came_back(tmp_path: Path):
    """O-B8 and SECURITY 23: one-use invites, and versions above everything this author ever wrote."""
    one_dir = tmp_path / "one"
    async with open_machine(one_dir, founder()) as one:
        port = int(one.address.rpartition(":")[2])
        register = Register(one_dir / "grants.db")
        async with open_recovery(one, register):
            _, invite = await one.pairing.mint(for_person=None, roles=Role.MEMBER, uses=1, ttl_s=600, addresses=[one.address])
        register.close()
    backup(one_dir, "mesh.db")
    async with open_machine(one_dir, port=port) as one:
        register = Register(one_dir / "grants.db")
        async with open_recovery(one, register) as recovery:
            assert not recovery.suspended
            assert recovery.warnings() == []
            goods = await one.invited("two")
            async with open_machine(tmp_path / "two", goods) as two:
                await until(lambda: one.linked(two))
                await one.replica.publish(LESSON, b"k" * 16, one.sealer.seal(b"late"))
                await until(lambda: two.replica.entries(LESSON))
                newest = one.replica.newest
        register.close()
    restore(one_dir, "mesh.db")
    async with open_machine(one_dir, port=port) as one:
        register = Register(one_dir / "grants.db")
        async with open_recovery(one, register) as recovery:
            assert recovery.suspended
            assert "backup" in recovery.warnings()[0]
            assert not one.pairing.is_open()
            with pytest.raises(Refused, match="backup"):
                await one.invited("three")
            async with open_machine(tmp_path / "two") as two:
                await until(lambda: one.linked(two) and not recovery.suspended)
                await until(lambda: one.replica.entries(LESSON))
                assert one.replica.newest >= newest
                await one.replica.publish(LESSON, b"k" * 16, one.sealer.seal(b"later still"))
                await until(lambda: {one.sealer.unseal(e.body, e.author) for e in two.replica.entries(LESSON)} == {b"later still"})
            assert one.pairing.is_open(), "the invite that nobody used"
            assert invite.uses == 1
        register.close()


async def test_a_member_that_holds_more_of_ours_than_we_do_makes_us_wait(tmp_path: Path):
    """Also where no mark tells: fewer own records than a peer holds."""
    one_dir = tmp_path / "one"
    async with open_machine(one_dir, founder()) as one:
        port = int(one.address.rpartition(":")[2])
        goods = await one.invited("two")
    backup(one_dir, "mesh.db")
    async with open_machine(tmp_path / "two", goods) as two:
        async with open_machine(one_dir, port=port) as one:
            await until(lambda: one.linked(two))
            await one.replica.publish(LESSON, b"k" * 16, one.sealer.seal(b"late"))
            await until(lambda: two.replica.entries(LESSON))
        await until(lambda: not two.overlay.links)
        restore(one_dir, "mesh.db")
        async with open_machine(one_dir, port=port) as one:
            assert not one.replica.own_came_back
            await until(lambda: one.replica.own_came_back)


async def test_a_revoked_grant_stays_revoked_when_its_register_came_back(tmp_path: Path):
    """The mesh's own record of the revocation is applied again before anything is served; a mesh of one waits for a person."""
    folder, now = tmp_path / "one", read_clock()
    async with open_machine(folder, founder()) as one:
        register = Register(folder / "grants.db")
        row, token = register.grant("p", ["query"], life_s=3600, now=now)
        attempt = Attempt(open_untrusted(f"Bearer {token}"), "p", "project.query", "q", "10.0.0.1")
        _, other = register.grant("p", ["query"], life_s=3600, now=now)
        lasting = Attempt(open_untrusted(f"Bearer {other}"), "p", "project.query", "q", "10.0.0.1")
        async with open_recovery(one, register):
            assert isinstance(await register.authorise_and_charge_untrusted(attempt, now), Permit)
        register.close()
        backup(folder, "grants.db")
        register = Register(folder / "grants.db")
        async with open_recovery(one, register):
            register.revoke(base32(row.grant), now)
            await Access(one.replica, register).publish()
        register.close()
        restore(folder, "grants.db")
        register = Register(folder / "grants.db")
        async with open_recovery(one, register) as recovery:
            await until(lambda: register._database.reader.execute("SELECT held FROM clock").get)
            assert await register.authorise_and_charge_untrusted(lasting, now) == Denied("held")
            assert recovery.keeper.old == ("grants.db",)
            assert await recovery.accept(None) == {"accepted": True}  # type: ignore[arg-type]
            assert await recovery.accept(None) == {"accepted": False}  # type: ignore[arg-type]
            assert await register.authorise_and_charge_untrusted(attempt, now) == Denied("revoked")
            assert isinstance(await register.authorise_and_charge_untrusted(lasting, now), Permit)
        register.close()
    assert os.stat(folder / "mark").st_mode & 0o077 == 0
