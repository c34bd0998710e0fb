"""The worker against peers that misbehave: forged, relayed, stale and swapped offers, garbage, limits."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mesh.base.clock import Now, read_clock
from mesh.base.codec import encode
from mesh.base.crypto import Context
from mesh.base.errors import PeerFault, Unreachable
from mesh.base.names import NodeId, TaskId
from mesh.base.ports import Channel
from node.messages import (
    PURPOSE_ANSWER,
    PURPOSE_CANCEL,
    PURPOSE_FOLLOW,
    PURPOSE_OFFER,
    STATES,
    TASK_MESSAGES,
    TASK_PURPOSES,
    Answer,
    Answered,
    Cancel,
    Follow,
    Hop,
    Offer,
    OfferBody,
    PackChunk,
    PackEnd,
    TaskReport,
    TaskSpec,
    TaskUnknown,
    WantPack,
)
from node.tasks.incoming import KEPT_MAX, NEVER_MAX, NEVER_MS, TALKS_MAX, WAITING_MAX, read_offer_untrusted
from node.tasks.ledger import put_tasks
from node.tasks.ports import RunSettings
from node.tasks.runs import Runs
from node.tasks.task import WORKED, Key, Task
from tests.fakes.machines import MESH, Fleet, Machine

DEADLINE_S = 20


class Rogue:
    """A member's machine that speaks the protocol by hand."""

    def __init__(self, laptop: Machine, mini: Machine, works: Runs) -> None:
        self.laptop, self.mini, self.works = laptop, mini, works
        self.channels = laptop.fleet.network.join(laptop.node)

    def body(self, **change: object) -> OfferBody:
        now_ms = read_clock().wall_ms
        spec = TaskSpec(1, (b"true",), "", None, None, 60)
        body = OfferBody(b"t" * 16, 1, self.laptop.node, self.mini.node, spec, 0, now_ms, now_ms + 60_000)
        return dataclasses.replace(body, **change)  # type: ignore[arg-type]

    def signed(self, body: OfferBody, *, context: Context = Context.OFFER, mesh: bytes = MESH) -> Offer:
        data = encode(body)
        return Offer(data, self.laptop.key.sign(context, mesh, data))

    async def open(self, purpose: int, request: bytes) -> Channel:
        return await self.channels.open_channel(self.mini.node, purpose, request)

    async def open_wanted(self, offer: Offer) -> Channel:
        """Offer until the tree is wanted; an earlier offer of it may still be on its way out."""
        while True:
            channel = await self.open(PURPOSE_OFFER, TASK_MESSAGES.encode(offer))
            try:
                assert await channel.receive() == TASK_MESSAGES.encode(WantPack())
            except Unreachable:
                await trio.sleep(0.005)
            else:
                return channel

    async def ask(self, purpose: int, message: object) -> object:
        """Send one message and read one reply; the reason of a fault where the channel was closed with one."""
        channel = await self.open(purpose, message if isinstance(message, bytes) else TASK_MESSAGES.encode(message))  # type: ignore[arg-type]
        try:
            data = await channel.receive()
        except Unreachable as closed:
            return closed.message
        finally:
            await channel.aclose()
        return data and TASK_MESSAGES.decode_untrusted(data, bytes_max=60_000)

    async def offer(self, **change: object) -> tuple[str, str]:
        reply = await self.ask(PURPOSE_OFFER, self.signed(self.body(**change)))
        assert isinstance(reply, TaskReport), reply
        return STATES[reply.state], reply.reason

    async def begun(self) -> Task:
        """Offer until it is taken up."""
        while True:
            reply = await self.ask(PURPOSE_OFFER, self.signed(self.body()))
            if isinstance(reply, TaskReport):
                return self.works.tasks()[0]
            await trio.sleep(0.005)

    def nothing_ran(self) -> bool:
        return self.works.tasks(all_=True) == [] and not any((self.mini.folder / "tasks").iterdir())


@asynccontextmanager
async def rogue(tmp_path: Path, **settings: object) -> AsyncIterator[Rogue]:
    fleet = Fleet(tmp_path)
    laptop = fleet.machine("laptop")
    mini = fleet.machine("mini", settings=RunSettings(**{"runs": "mine", **settings}))  # type: ignore[arg-type]
    with trio.fail_after(DEADLINE_S):
        async with mini.up() as works:
            await trio.sleep(0.002)
            yield Rogue(laptop, mini, works)


async def test_forged_relayed_and_misdirected_offers_end_their_channel(tmp_path: Path):
    """SECURITY: another signer, requester, worker, mesh, purpose of signature, or bytes changed afterwards."""
    async with rogue(tmp_path) as r:
        sound = r.signed(r.body())
        bad = [
            Offer(sound.body, bytes(64)),
            Offer(sound.body[:-1] + bytes([sound.body[-1] ^ 1]), sound.signature),
            r.signed(r.body(), context=Context.ANSWER),
            r.signed(r.body(), mesh=b"another-mesh-id!"),
            r.signed(r.body(requester=b"x" * 16)),
            r.signed(r.body(worker=b"x" * 16)),
            r.signed(r.body(spec=TaskSpec(1, (), "", None, None, 60))),
            r.signed(r.body(spec=TaskSpec(1, (b"",), "", None, None, 60))),
            r.signed(r.body(spec=TaskSpec(1, (b"a\0b",), "", None, None, 60))),
            r.signed(r.body(spec=TaskSpec(1, (b"x" * 25_000, b"y" * 25_000), "", None, None, 60))),
            r.signed(r.body(pack_bytes=5)),
            r.signed(r.body(spec=TaskSpec(1, (b"true",), "", None, "ab" * 20, 60))),
        ]
        for offer in bad:
            assert isinstance(await r.ask(PURPOSE_OFFER, offer), str)
        assert r.nothing_ran()
        other = r.laptop.fleet.machine("other")
        relay = r.laptop.fleet.network.join(other.node)
        channel = await relay.open_channel(r.mini.node, PURPOSE_OFFER, TASK_MESSAGES.encode(sound))
        with pytest.raises(Unreachable):
            await channel.receive()
        assert r.nothing_ran()


async def test_garbage_and_messages_out_of_turn_end_their_channel_and_nothing_else(tmp_path: Path):
    async with rogue(tmp_path) as r:
        for purpose in TASK_PURPOSES:
            for request in (b"", b"\xff" * 50, b"\x81\x18\x46", TASK_MESSAGES.encode(WantPack()), b"\x81\x18\x7f"):
                assert isinstance(await r.ask(purpose, request), str)
        assert await r.ask(PURPOSE_FOLLOW, TASK_MESSAGES.encode(Cancel(b"t" * 16, 1))) == "the first message does not fit the channel's purpose"
        assert (await r.offer())[0] in ("starting", "running", "done")
        assert len(r.works.tasks()) == 1


async def test_stale_and_impossible_times_are_refused(tmp_path: Path):
    async with rogue(tmp_path) as r:
        now_ms = read_clock().wall_ms
        assert await r.offer(issued_ms=now_ms - 700_000, accept_until_ms=now_ms - 100_000) == ("refused", "expired")
        assert await r.offer(accept_until_ms=now_ms + 700_000) == ("refused", "clock")
        assert await r.offer(issued_ms=now_ms + 700_000, accept_until_ms=now_ms + 800_000) == ("refused", "clock")
        assert await r.offer(issued_ms=now_ms - 120_000) == ("lost", "restarted")
        assert r.nothing_ran()


async def test_the_same_attempt_with_another_command_is_refused(tmp_path: Path):
    async with rogue(tmp_path) as r:
        assert (await r.offer())[0] in ("starting", "running", "done")
        await r.works.wait_final(r.works.tasks()[0].key)
        assert await r.offer(spec=TaskSpec(1, (b"false",), "", None, None, 60)) == ("refused", "other_spec")
        assert await r.offer() == ("done", "")
        assert [task.state for task in r.works.tasks()] == ["done"]


async def test_a_cancel_first_means_never(tmp_path: Path):
    """O-X4: it may overtake the offer by any way."""
    async with rogue(tmp_path) as r:
        for _ in range(2):
            reply = await r.ask(PURPOSE_CANCEL, Cancel(b"t" * 16, 1))
            assert isinstance(reply, TaskReport)
            assert STATES[reply.state] == "cancelled"
        assert await r.offer() == ("cancelled", "cancelled")
        assert (await r.offer(attempt=2))[0] in ("starting", "running", "done"), "another attempt is another thing"


async def test_cancels_of_what_never_came_are_bounded_forgotten_and_not_listed(tmp_path: Path):
    async with rogue(tmp_path) as r:
        async def cancel(number: int) -> object:
            return await r.ask(PURPOSE_CANCEL, Cancel(number.to_bytes(16, "big"), 1))

        for number in range(NEVER_MAX):
            assert isinstance(await cancel(number), TaskReport)
        assert isinstance(await cancel(NEVER_MAX), str)
        assert r.works.tasks(all_=True) == []
        assert r.works._ground.ledger.find("aaaaaaaa") == []
        kept = r.works._ground.ledger.kept(WORKED, r.laptop.node)
        assert kept == NEVER_MAX
        r.mini.clock = lambda: Now(read_clock().wall_ms + NEVER_MS + 60_000, read_clock().steady_s)
        assert isinstance(await cancel(NEVER_MAX), TaskReport)
        assert r.works._ground.ledger.kept(WORKED, r.laptop.node) == 1


@pytest.mark.parametrize(("owner", "runs", "reason"), [("somebody", "mine", "other_person"), ("me", "off", "policy")])
async def test_a_cancel_of_whom_nothing_could_run_is_not_recorded(tmp_path: Path, owner: str, runs: str, reason: str):
    async with rogue(tmp_path, runs=runs) as r:
        other = Rogue(r.laptop.fleet.machine("other", owner), r.mini, r.works)
        reply = await other.ask(PURPOSE_CANCEL, Cancel(b"t" * 16, 1))
        assert isinstance(reply, TaskReport)
        assert (STATES[reply.state], reply.reason) == ("refused", reason)
        assert r.works._ground.ledger.kept(WORKED, other.laptop.node) == 0


async def test_what_is_unknown_is_said(tmp_path: Path):
    async with rogue(tmp_path) as r:
        assert await r.ask(PURPOSE_FOLLOW, Follow(b"x" * 16, 1, 0)) == TaskUnknown(b"x" * 16, 1)
        reply = await r.ask(PURPOSE_ANSWER, Answer(b"x", bytes(64)))
        assert reply == Answered(False, "signature", "the answer is not signed by the machine that sent it")
        signed = b"garbage"
        assert isinstance(await r.ask(PURPOSE_ANSWER, Answer(signed, r.laptop.key.sign(Context.ANSWER, MESH, signed))), str)


async def test_one_requesters_tasks_are_bounded(tmp_path: Path):
    async with rogue(tmp_path) as r:
        spec = TaskSpec(1, (b"true",), "", None, None, 60)
        waiting = [
            Task(Key(WORKED, r.laptop.node, TaskId(n.to_bytes(16, "big")), 1), r.mini.node, spec, 0, "asking", n,
                 request=n.to_bytes(16, "big"), until_ms=1 << 46, hops=(Hop(2, n),))
            for n in range(1, WAITING_MAX + 1)
        ]  # fmt: skip
        ledger = r.works._ground.ledger
        await ledger.put(*waiting)
        assert await r.offer() == ("refused", "queue_full")
        ledger._database.write_now(lambda c: c.execute("UPDATE task SET state = 'refused', final = 1"))
        assert (await r.offer())[0] in ("starting", "running", "done")
        many = (
            dataclasses.replace(waiting[0], state="refused", key=dataclasses.replace(waiting[0].key, task=TaskId(n.to_bytes(16, "big"))))
            for n in range(1_000, 1_000 + KEPT_MAX)
        )
        ledger._database.write_now(lambda c: put_tasks(c, many))
        assert await r.offer(task=b"u" * 16) == ("refused", "ledger_full")


async def test_talks_are_bounded_and_free_themselves(tmp_path: Path):
    async with rogue(tmp_path) as r:
        await r.offer(spec=TaskSpec(1, (b"sleep", b"300"), "", None, None, 60))
        follow = TASK_MESSAGES.encode(Follow(b"t" * 16, 1, 0))
        talks = []
        for _ in range(TALKS_MAX):
            talks.append(await r.open(PURPOSE_FOLLOW, follow))
            assert await talks[-1].receive() is not None
        assert await r.ask(PURPOSE_FOLLOW, Follow(b"t" * 16, 1, 0)) == "busy"
        r.laptop.fleet.network.cut(r.laptop.node, r.mini.node)
        r.laptop.fleet.network.mend(r.laptop.node, r.mini.node)
        await r.works.cancel(r.works.tasks()[0].key)
        await r.works.wait_final(r.works.tasks()[0].key)
        reply = await r.ask(PURPOSE_FOLLOW, Follow(b"t" * 16, 1, 0))
        assert isinstance(reply, TaskReport)


async def test_a_pack_that_breaks_off_leaves_nothing_and_may_come_again(tmp_path: Path):
    async with rogue(tmp_path) as r:
        offer = r.signed(r.body(pack_bytes=100, spec=TaskSpec(1, (b"true",), "", None, "ab" * 20, 60)))
        for ending in ("close", "end", "garbage", "cut"):
            channel = await r.open_wanted(offer)
            await channel.send(TASK_MESSAGES.encode(PackChunk(b"x" * 10)))
            if ending == "close":
                await channel.aclose()
            elif ending == "end":
                await channel.send(TASK_MESSAGES.encode(PackEnd()))
                report = TASK_MESSAGES.decode_untrusted(await channel.receive() or b"", bytes_max=60_000)
                assert isinstance(report, TaskReport)
                assert (STATES[report.state], report.reason) == ("refused", "bad_tree")
            elif ending == "garbage":
                await channel.send(b"garbage")
                report = TASK_MESSAGES.decode_untrusted(await channel.receive() or b"", bytes_max=60_000)
                assert isinstance(report, TaskReport)
                assert (STATES[report.state], report.reason) == ("refused", "malformed")
            else:
                r.laptop.fleet.network.cut(r.laptop.node, r.mini.node)
                r.laptop.fleet.network.mend(r.laptop.node, r.mini.node)
            while not r.nothing_ran():  # noqa: ASYNC110 - the folder's removal wakes nobody
                await trio.sleep(0.005)


async def test_one_id_arrives_once_at_a_time_whoever_sends_it(tmp_path: Path):
    """SECURITY: the same task id of another requester neither joins nor harms the one on its way."""
    async with rogue(tmp_path) as r:
        spec = TaskSpec(1, (b"true",), "", None, "ab" * 20, 60)
        mine = await r.open(PURPOSE_OFFER, TASK_MESSAGES.encode(r.signed(r.body(pack_bytes=100, spec=spec))))
        assert await mine.receive() == TASK_MESSAGES.encode(WantPack())
        other = Rogue(r.laptop.fleet.machine("other"), r.mini, r.works)
        assert isinstance(await other.ask(PURPOSE_OFFER, other.signed(other.body())), str)
        await mine.aclose()
        while not r.nothing_ran():  # noqa: ASYNC110 - the folder's removal wakes nobody
            await trio.sleep(0.005)
        await r.works.wait_final((await other.begun()).key)
        assert await r.offer() == ("refused", "id_taken")


async def test_a_worker_with_a_clock_far_ahead_refuses_with_a_reason(tmp_path: Path):
    async with rogue(tmp_path) as r:
        r.mini.clock = lambda: Now(read_clock().wall_ms + 3_600_000, read_clock().steady_s)
        assert await r.offer() == ("refused", "expired")


def test_an_offer_is_read_only_from_its_requester(tmp_path: Path):
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    body = encode(OfferBody(b"t" * 16, 1, laptop.node, mini.node, TaskSpec(1, (b"x",), "", None, None, 60), 0, 1, 2))
    offer = Offer(body, laptop.key.sign(Context.OFFER, MESH, body))
    assert read_offer_untrusted(offer, MESH, laptop.node, laptop.key.public, mini.node).task == b"t" * 16
    for peer, key, me in ((mini.node, laptop.key, mini.node), (laptop.node, mini.key, mini.node), (laptop.node, laptop.key, laptop.node)):
        with pytest.raises(PeerFault):
            read_offer_untrusted(offer, MESH, NodeId(peer), key.public, NodeId(me))
