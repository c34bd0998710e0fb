"""The requester against workers that misbehave: garbage, lies about output, ends in the middle."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mesh.base.errors import Unreachable
from mesh.base.ports import Channel, Incoming
from node.messages import (
    PURPOSE_CANCEL,
    PURPOSE_FOLLOW,
    PURPOSE_OFFER,
    STATES,
    TASK_MESSAGES,
    TASK_PURPOSES,
    Offer,
    Output,
    OutputGap,
    PackEnd,
    TaskReport,
    TaskUnknown,
    WantPack,
)
from node.tasks.log import SEGMENTS_MAX
from node.tasks.output import Frame, Gap, Piece
from node.tasks.runs import Runs
from node.tasks.task import Task, folder_name
from tests.fakes.machines import Fleet, Machine

DEADLINE_S = 20


def report(task: Task, state: str, output_bytes: int = 0, code: int | None = None) -> TaskReport:
    return TaskReport(task.key.task, 1, STATES.index(state), code, "", "", None, None, output_bytes, ())


class Script:
    """A worker's end of every channel, answered by hand."""

    def __init__(self, laptop: Machine, mini: Machine, asks: Runs, inbox: trio.MemoryReceiveChannel[Incoming]) -> None:
        self.laptop, self.mini, self.asks, self.inbox = laptop, mini, asks, inbox

    async def start(self, *, detach: bool = False, cwd: Path | None = None) -> Task:
        return (await self.asks.start(self.mini.node, ["true"], detach=detach, cwd=cwd, yes=True)).task

    async def take(self, purpose: int) -> Channel:
        incoming = await self.inbox.receive()
        assert incoming.purpose == purpose
        return incoming.channel

    async def reply(self, purpose: int, *messages: object) -> None:
        channel = await self.take(purpose)
        for message in messages:
            await channel.send(message if isinstance(message, bytes) else TASK_MESSAGES.encode(message))  # type: ignore[arg-type]
        await channel.aclose()

    async def pieces(self, task: Task) -> list[Piece]:
        return [piece async for piece in self.asks.follow(task.key)]


@asynccontextmanager
async def scripted(tmp_path: Path) -> AsyncIterator[Script]:
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    inbox = fleet.network.join(mini.node).incoming(TASK_PURPOSES)
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            yield Script(laptop, mini, asks, inbox)


async def test_garbage_and_early_ends_are_tried_again(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, b"garbage")
        await s.reply(PURPOSE_OFFER)
        await s.reply(PURPOSE_OFFER, PackEnd())
        await s.reply(PURPOSE_OFFER, report(task, "starting"))
        await s.reply(PURPOSE_FOLLOW, report(task, "running"), Output(0, 1, b"one"), b"garbage")
        await s.reply(PURPOSE_FOLLOW, report(task, "running"))
        await s.reply(PURPOSE_FOLLOW, Output(3, 2, b"two"), report(task, "failed", 6, 9))
        over = await s.asks.wait_final(task.key)
        assert (over.state, over.exit_code) == ("failed", 9)
        assert await s.pieces(task) == [Frame(0, 1, b"one"), Frame(3, 2, b"two")]


async def test_output_that_repeats_overlaps_or_skips_is_stored_once_with_its_holes(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, report(task, "running"))
        await s.reply(
            PURPOSE_FOLLOW, Output(0, 1, b"abc"), Output(0, 1, b"abc"), Output(1, 1, b"bcde"), OutputGap(5, 10), Output(10, 1, b"k"), OutputGap(11, 20),
            OutputGap(0, 3), Output(20, 2, b"end"), report(task, "done", 30, 0),
        )  # fmt: skip
        assert s.asks.task(task.text_id).state in ("offered", "running")
        await s.reply(PURPOSE_FOLLOW, OutputGap(23, 30), report(task, "done", 30, 0))
        await s.asks.wait_final(task.key)
        assert await s.pieces(task) == [
            Frame(0, 1, b"abcde"), Gap(5, 10), Frame(10, 1, b"k"), Gap(11, 20), Frame(20, 2, b"end"), Gap(23, 30),
        ]  # fmt: skip


async def test_holes_nobody_could_have_end_the_follow_and_leave_no_crowd_of_files(tmp_path: Path):
    """A hostile worker: a file for every hole it speaks of, out of next to no payload."""
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, report(task, "running"))
        channel = await s.take(PURPOSE_FOLLOW)

        async def send_holes() -> None:
            for at in range(0, 8_000, 2):
                await channel.send(TASK_MESSAGES.encode(Output(at, 1, b"x")))
                await channel.send(TASK_MESSAGES.encode(OutputGap(at + 1, at + 2)))

        with pytest.raises(Unreachable):
            await send_holes()
        log = s.laptop.folder / "tasks" / folder_name(task.key) / "log"
        assert 0 < len(list(log.iterdir())) <= SEGMENTS_MAX
        assert not s.asks.task(task.text_id).final
        end = s.asks.task(task.text_id).output_bytes
        await s.reply(PURPOSE_FOLLOW, Output(end, 1, b"y"), report(task, "done", end + 1, 0))
        assert (await s.asks.wait_final(task.key)).state == "done"


async def test_output_that_skips_without_a_word_is_a_fault(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, report(task, "running"))
        await s.reply(PURPOSE_FOLLOW, Output(0, 1, b"ab"), Output(10, 1, b"k"))
        await s.reply(PURPOSE_FOLLOW, Output(2, 1, b"c"), report(task, "done", 3, 0))
        await s.asks.wait_final(task.key)
        assert await s.pieces(task) == [Frame(0, 1, b"abc")]


@pytest.mark.parametrize("instead", ["file", "fifo", "link", "folder"])
async def test_a_folder_here_that_is_no_longer_it_loses_that_task_only(tmp_path: Path, instead: str):
    """A task of this machine reaches what another one stores here."""
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    fleet.network.join(mini.node)
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            task = (await asks.start(mini.node, ["true"], detach=True)).task
        folder, victim = laptop.folder / "tasks" / folder_name(task.key), tmp_path / "victim"
        victim.mkdir()
        (victim / "pack").write_text("kept")
        folder.rename(tmp_path / "moved")
        if instead == "file":
            folder.touch()
        elif instead == "fifo":
            os.mkfifo(folder)
        elif instead == "link":
            folder.symlink_to(victim)
        else:
            folder.mkdir()
        async with laptop.up() as asks:
            assert (await asks.wait_final(task.key)).state == "lost"
            assert [piece async for piece in asks.follow(task.key)] == []
        assert (victim / "pack").read_text() == "kept"
        assert sorted(victim.iterdir()) == [victim / "pack"]


async def test_a_final_word_without_its_output_is_not_believed_yet(tmp_path: Path):
    """O-X9: also when the cancel's or the offer's reply says it first."""
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, report(task, "done", 4, 0))
        assert not s.asks.task(task.text_id).final
        await s.reply(PURPOSE_OFFER, report(task, "running"))
        await s.reply(PURPOSE_FOLLOW, Output(0, 1, b"four"), report(task, "done", 4, 0))
        assert (await s.asks.wait_final(task.key)).state == "done"


async def test_a_worker_that_knows_nothing_of_it_makes_it_lost(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        await s.reply(PURPOSE_OFFER, report(task, "running"))
        await s.reply(PURPOSE_FOLLOW, TaskUnknown(task.key.task, 1))
        assert (await s.asks.wait_final(task.key)).reason == "unknown_there"


async def test_a_report_about_another_task_is_a_fault(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        other = TaskReport(b"x" * 16, 1, STATES.index("done"), 0, "", "", None, None, 0, ())
        await s.reply(PURPOSE_OFFER, other)
        await s.reply(PURPOSE_OFFER, report(task, "done", 0, 0))
        assert (await s.asks.wait_final(task.key)).state == "done"


async def test_repeated_deliveries_carry_the_same_signed_bytes(tmp_path: Path):
    async with scripted(tmp_path) as s:
        task = await s.start()
        seen = []
        for _ in range(3):
            incoming = await s.inbox.receive()
            offer = TASK_MESSAGES.decode_untrusted(incoming.request, bytes_max=60_000)
            assert isinstance(offer, Offer)
            seen.append(offer)
            await incoming.channel.aclose("try again")
        assert seen[0] == seen[1] == seen[2]
        await s.reply(PURPOSE_OFFER, report(task, "done", 0, 0))
        await s.asks.wait_final(task.key)


async def test_a_tree_is_sent_only_where_it_is_wanted_and_counts_from_its_end(tmp_path: Path):
    import subprocess

    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "a").write_text("1")
    await trio.run_process(["git", "init", "-q"], cwd=folder, stderr=subprocess.DEVNULL)
    async with scripted(tmp_path / "fleet") as s:
        task = await s.start(cwd=folder, detach=True)
        channel = await s.take(PURPOSE_OFFER)
        await channel.send(TASK_MESSAGES.encode(WantPack()))
        while s.asks.task(task.text_id).state == "queued":
            message = TASK_MESSAGES.decode_untrusted(await channel.receive() or b"", bytes_max=60_000)
            if isinstance(message, PackEnd):
                break
        assert s.asks.task(task.text_id).state == "offered", "recorded before its end was sent"
        await channel.aclose("broke off")
        await s.reply(PURPOSE_OFFER, report(task, "refused"))
        assert (await s.asks.wait_final(task.key)).state == "refused"


async def when_cut(s: Script, task: Task) -> None:
    s.laptop.fleet.network.cut(s.laptop.node, s.mini.node)
    await s.asks.cancel(task.key)
    s.laptop.fleet.network.mend(s.laptop.node, s.mini.node)


async def when_linked(s: Script, task: Task) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(s.asks.cancel, task.key)
        while (await s.inbox.receive()).purpose != PURPOSE_CANCEL:
            continue
        # The reply is lost: the worker dies before it answers.
        s.laptop.fleet.network.cut(s.laptop.node, s.mini.node)
        s.laptop.fleet.network.mend(s.laptop.node, s.mini.node)


@pytest.mark.parametrize("moment", [when_cut, when_linked])
async def test_a_cancel_is_said_again_before_anything_else(tmp_path: Path, moment: Callable[[Script, Task], Awaitable[None]]):
    """O-X4 a, and a lost reply."""
    async with scripted(tmp_path) as s:
        task = await s.start()
        channel = await s.take(PURPOSE_OFFER)
        await channel.send(TASK_MESSAGES.encode(report(task, "running")))
        await channel.receive()
        await s.take(PURPOSE_FOLLOW)
        await moment(s, task)
        assert s.asks.json(s.asks.task(task.text_id))["cancel_requested"] is True
        await s.reply(PURPOSE_CANCEL, report(task, "running"))
        await s.reply(PURPOSE_FOLLOW, report(task, "cancelled", 0, 130))
        assert (await s.asks.wait_final(task.key)).exit_code == 130
