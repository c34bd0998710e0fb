"""One identity on two machines, over real links: the first link stays, the copy gets the control lane, everybody is told.

SECURITY 26, O-P1, O-G2.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from mesh import duplicates as room
from mesh.base.codec import encode
from mesh.base.errors import MeshError
from mesh.certificates import PolicyBody
from mesh.copies import make_boot
from mesh.kinds import COPY_PROOF, LESSON, POLICY
from tests.fakes.overlays import Machine, founder, open_machine, until


@asynccontextmanager
async def open_copied(folder: Path) -> AsyncIterator[tuple[Machine, Machine, Machine]]:
    """Two linked machines, and a copy of the second one's home running beside it."""
    async with open_machine(folder / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(folder / "two", goods) as two:
            await until(lambda: one.linked(two) and two.linked(one))
        await until(lambda: not one.overlay.links)
        shutil.copytree(folder / "two", folder / "copy")
        async with open_machine(folder / "two") as two:
            await until(lambda: one.linked(two) and two.linked(one))
            async with open_machine(folder / "copy") as copy:
                yield one, two, copy


async def test_the_first_link_stays_and_every_side_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """O-P1: one link, no flapping; the witness, the machine and its copy all know, and a proof is there for the rest."""
    monkeypatch.setattr(room, "SPREAD_S", 0.1)
    async with open_copied(tmp_path) as (one, two, copy):
        first = one.overlay.links[two.id].link
        boot = first.session.peer_boot
        await until(lambda: two.id in one.overlay.duplicates.known())
        await until(lambda: two.id in two.overlay.duplicates.known())
        await until(lambda: copy.id in copy.overlay.duplicates.known())
        await until(lambda: one.overlay.duplicates._proven and two.overlay.duplicates._proven and copy.overlay.duplicates._proven, 30)
        assert {len(m.replica.entries(COPY_PROOF)) for m in (one, two)} == {1}, "one proof, not one a witness"
        assert one.overlay.links[two.id].link is first
        assert not first.closed.is_set()
        assert one.overlay.links[two.id].link.session.peer_boot == boot
        (line,) = one.overlay.duplicates.warnings(lambda node: "two")
        assert "duplicate identity" in line
        assert "hivemesh leave" in line
        (line,) = copy.overlay.duplicates.warnings(lambda node: "two")
        assert "this machine's key" in line


async def test_the_copy_gets_the_control_lane_and_nothing_else(tmp_path: Path):
    async with open_copied(tmp_path) as (one, two, copy):
        await until(lambda: copy.linked(one) and one.overlay.duplicates._seconds)
        await one.replica.publish(LESSON, b"k" * 16, one.sealer.seal(b"only for machines that stand"))
        await one.replica.publish(POLICY, b"", encode(PolicyBody(77)))
        await until(lambda: copy.replica.entries(POLICY) and two.replica.entries(LESSON))
        await copy.replica.publish(LESSON, b"c" * 16, copy.sealer.seal(b"of the copy"))
        channel = await copy.overlay.open_channel(one.id, 64, b"hello")
        with trio.fail_after(5), pytest.raises(MeshError):
            await channel.receive()
        assert not copy.replica.entries(LESSON) or {e.author for e in copy.replica.entries(LESSON)} == {copy.id}
        assert {e.author for e in one.replica.entries(LESSON)} == {one.id}


async def test_the_other_machines_states_do_not_change(tmp_path: Path):
    """O-G2: the conflict is confined to the one identity."""
    async with open_copied(tmp_path) as (one, _, copy), open_machine(tmp_path / "three", await one.invited("three")) as three:
        await until(lambda: three.linked(one) and one.linked(three))
        await until(lambda: copy.id in copy.overlay.duplicates.known())
        link = one.overlay.links[three.id].link
        changes = 0
        for _ in range(40):
            changes += one.replica.member(three.id).state != "live" or three.replica.member(one.id).state != "live"  # type: ignore[union-attr]
            await trio.sleep(0.05)
        assert changes == 0
        assert one.overlay.links[three.id].link is link


async def test_a_restart_is_no_copy_and_a_link_that_is_dead_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine that lost its power leaves a link that looks alive: the fresh boot waits for the answer that never comes."""
    monkeypatch.setattr("mesh.overlay.ANSWER_S", 0.3)
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: one.linked(two) and two.linked(one))
            dead = one.overlay.links[two.id].link
            held = one.overlay.links[two.id]
        await until(lambda: not one.overlay.links)
        for _ in range(3):
            async with open_machine(tmp_path / "two") as two:
                await until(lambda: one.linked(two) and two.linked(one))
            await until(lambda: not one.overlay.links)
        assert not one.overlay.duplicates.known()
        dead.closed = trio.Event()
        monkeypatch.setattr(type(dead), "answers", _never)
        one.overlay.links[two.id] = held
        async with open_machine(tmp_path / "two") as two:
            await until(lambda: one.overlay.links.get(two.id) not in (None, held))
            assert not one.overlay.duplicates.known()


async def _never(link: object, within_s: float) -> bool:
    await trio.sleep(within_s)
    return False


async def test_a_statement_of_somebody_else_or_of_an_earlier_start_is_no_news(tmp_path: Path):
    """Nobody without the key can make a machine warn of itself; its own past is no copy."""
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: one.linked(two) and two.linked(one))
            mine = two.overlay.links[one.id].link.session.statement
            theirs = one.overlay.links[two.id].link.session.statement
            later = replace(mine, boot=make_boot(1 << 47, lambda count: b"x" * count))
            for statement in (mine, theirs, later):
                one.overlay.duplicates.told_untrusted(statement)
            assert not one.overlay.duplicates.known()
        await until(lambda: not one.overlay.links)
    async with open_machine(tmp_path / "one") as one:
        one.overlay.duplicates.told_untrusted(mine)
        assert not one.overlay.duplicates.known()
