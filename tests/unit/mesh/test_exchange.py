"""Records over one link: stores come level whatever each side lacks, and a broken or silent peer harms nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mesh import exchange as room
from mesh import mux, topology
from mesh.base.errors import OurFault
from mesh.exchange import FORGED_MAX, Exchange
from mesh.kinds import LESSON, Lane
from mesh.link import Link
from mesh.messages import MESSAGES, Digests, Ids, Records, Want
from mesh.reconcile import LANES, batches
from mesh.replica import Replica
from tests.fakes.links import open_links
from tests.fakes.overlays import Machine, founder, open_machine, open_two, until

PURPOSES = range(64, 72)


def ids(machine: Machine) -> list[list[bytes]]:
    return [machine.replica.ids_of(lane) for lane in LANES]


async def publish(machine: Machine, count: int, size: int = 2000, *, mark: bytes = b"") -> None:
    for number in range(count):
        await machine.replica.publish(LESSON, mark.ljust(8, b".") + number.to_bytes(8, "big"), machine.sealer.seal(bytes([number % 251]) * size))


async def test_stores_that_both_lack_much_come_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """O-T7: each side has more for the other than the window and the queue together hold, and both send at once."""
    monkeypatch.setattr(mux, "LANE_QUEUE_BYTES_MAX", 70_000)
    async with open_two(tmp_path) as (one, other):
        one.cut()
        other.cut()
        await until(lambda: not one.overlay.links and not other.overlay.links)
        await publish(one, 200)
        await publish(other, 200)
        one.cut_off = other.cut_off = False
        await until(lambda: len(one.replica.entries(LESSON)) == len(other.replica.entries(LESSON)) == 400)
        await until(lambda: ids(one)[Lane.HIVE.value] == ids(other)[Lane.HIVE.value])


async def test_after_every_reset_news_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """O-T7: twenty losses of the link, something new on either side during each."""
    monkeypatch.setattr(topology, "ACCEPTED_MAX", 1000)
    async with open_two(tmp_path) as (one, other):
        for round_number in range(20):
            one.cut()
            other.cut()
            await until(lambda: not one.overlay.links and not other.overlay.links)
            at = (one, other)[round_number % 2]
            await publish(at, 1, mark=b"%d" % round_number)
            one.cut_off = other.cut_off = False
            await one.overlay.connect([other.address], other.id)
            await until(lambda count=round_number + 1: len(one.replica.entries(LESSON)) == len(other.replica.entries(LESSON)) == count)
            assert len(one.overlay.links) == len(other.overlay.links) == 1


@asynccontextmanager
async def exchanging(tmp_path: Path) -> AsyncIterator[tuple[Exchange, Link, Replica]]:
    """One real exchange over a real link whose other end the test plays."""
    async with open_machine(tmp_path / "one", founder()) as machine, open_links() as (near, far), trio.open_nursery() as nursery:
        machine.keyring.is_whole = lambda commitment: True
        exchange = Exchange(near, machine.replica, machine.keyring, lambda: 0.5)
        nursery.start_soon(exchange.run)
        yield exchange, far, machine.replica
        nursery.cancel_scope.cancel()


async def heard(far: Link, kind: type) -> object:
    """The next message of one kind from the exchange."""
    with trio.fail_after(10):
        async for data in far.messages:
            message = MESSAGES.decode_untrusted(data, bytes_max=70_000)
            if isinstance(message, kind):
                return message
    raise AssertionError("the link ended")


async def test_it_begins_with_digests_and_is_settled_once_the_control_lane_is_level(tmp_path: Path):
    async with exchanging(tmp_path) as (exchange, far, _):
        digests = await heard(far, Digests)
        assert isinstance(digests, Digests)
        assert len(digests.lanes) == len(LANES)
        assert not exchange.settled.is_set()
        await far.send_message(MESSAGES.encode(digests))
        with trio.fail_after(5):
            await exchange.settled.wait()


async def test_what_is_wanted_is_sent_once_and_nothing_that_is_not_held(tmp_path: Path):
    async with exchanging(tmp_path) as (_, far, replica):
        held = replica.ids_of(Lane.CONTROL)
        await far.send_message(MESSAGES.encode(Want((*held, *held, bytes(32)))))
        records = await heard(far, Records)
        assert isinstance(records, Records)
        assert len(records.records) == len(held)


async def test_a_peer_that_never_answers_does_not_keep_channels_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "SETTLE_S", 0.1)
    async with exchanging(tmp_path) as (exchange, far, _):
        await far.send_message(MESSAGES.encode(Ids(0, (bytes(32),), True)))
        with trio.fail_after(5):
            await exchange.settled.wait()


async def test_a_message_that_is_none_ends_the_link_and_says_so(tmp_path: Path):
    for garbage in (b"", b"\xff" * 500, MESSAGES.encode(Want(()))[:-1] + b"\x61"):
        async with open_machine(tmp_path / garbage.hex()[:20].ljust(1, "e"), founder()) as machine, open_links() as (near, far):
            await far.send_message(garbage)
            with trio.fail_after(5):
                machine.keyring.is_whole = lambda commitment: True
                await Exchange(near, machine.replica, machine.keyring, lambda: 0.5).run()
            await until(far.closed.is_set)
            assert "malformed" in far.close_reason


async def test_a_message_of_a_later_version_is_passed_over(tmp_path: Path):
    async with exchanging(tmp_path) as (_, far, replica):
        await far.send_message(b"\x82\x18\x63\x80")
        await far.send_message(MESSAGES.encode(Want(tuple(replica.ids_of(Lane.CONTROL)))))
        assert await heard(far, Records)


async def test_forged_records_are_not_stored_and_many_end_the_link(tmp_path: Path):
    async with open_machine(tmp_path / "two", founder()) as stranger:
        await publish(stranger, FORGED_MAX + 2, 100)
        own = stranger.replica.wires([i for lane in LANES for i in stranger.replica.ids_of(lane)])
    flipped = [wire[:-1] + bytes([wire[-1] ^ 1]) for wire in own]
    async with exchanging(tmp_path) as (_, far, replica):
        before = {lane: replica.ids_of(lane) for lane in LANES}
        for batch in batches([*own, *[b"\x00" * 40] * (FORGED_MAX + 1), *flipped]):
            await far.send_message(MESSAGES.encode(batch))
        await until(far.closed.is_set)
        assert "false signatures" in far.close_reason
        after = {lane: replica.ids_of(lane) for lane in LANES}
        assert {lane: after[lane] for lane in LANES if lane is not Lane.PRESENCE} == {lane: before[lane] for lane in LANES if lane is not Lane.PRESENCE}


async def test_who_waits_for_an_exchange_whose_link_ends_is_not_left_waiting(tmp_path: Path):
    """A channel asked for before the stores were level, on a link that is lost meanwhile, fails instead of hanging."""
    async with open_machine(tmp_path / "one", founder()) as machine, open_links() as (near, far):
        machine.keyring.is_whole = lambda commitment: True
        exchange = Exchange(near, machine.replica, machine.keyring, lambda: 0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not exchange.settled.is_set()
            far.close_nowait("enough")
            with trio.fail_after(5):
                await exchange.settled.wait()


async def test_records_the_disk_refuses_are_asked_for_again_and_the_link_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "COMPARE_S", 0.1)

    async def full(*_: object) -> object:
        raise OurFault("the disk is full")

    async with open_machine(tmp_path / "two", founder()) as author:
        await publish(author, 1)
        (wanted,), wires = author.replica.ids_of(Lane.HIVE), author.replica.wires(author.replica.ids_of(Lane.HIVE))
    async with exchanging(tmp_path) as (_, far, replica):
        monkeypatch.setattr(replica, "take_untrusted", full)
        for _ in range(2):
            await far.send_message(MESSAGES.encode(Ids(Lane.HIVE.value, (wanted,), True)))
            assert await heard(far, Want) == Want((wanted,))
            await far.send_message(MESSAGES.encode(Records(tuple(wires))))
            await heard(far, Digests)
            await heard(far, Digests)
        assert not far.closed.is_set()


async def test_what_was_asked_for_and_never_came_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A record that was superseded on its way is never sent; it must not take a place of what is waited for, for ever."""
    monkeypatch.setattr(room, "COMPARE_S", 0.1)
    async with exchanging(tmp_path) as (_, far, _replica):
        for _ in range(3):
            await far.send_message(MESSAGES.encode(Ids(Lane.HIVE.value, (b"\x07" * 32,), True)))
            want = await heard(far, Want)
            assert want == Want((b"\x07" * 32,))
            await heard(far, Digests)
            await heard(far, Digests)


async def test_a_peer_that_reads_nothing_is_still_read_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Requests beyond the bound are dropped; records go on to be taken."""
    monkeypatch.setattr(mux, "LANE_QUEUE_BYTES_MAX", 70_000)
    async with open_machine(tmp_path / "one", founder()) as machine, open_links() as (near, far), trio.open_nursery() as nursery:
        await publish(machine, 200)
        machine.keyring.is_whole = lambda commitment: True
        nursery.start_soon(Exchange(near, machine.replica, machine.keyring, lambda: 0.5).run)
        wanted = machine.replica.ids_of(Lane.HIVE)
        news = b"\x00" * 40
        with trio.fail_after(10):
            for _ in range(room.DUE_MAX + 20):
                await far.send_message(MESSAGES.encode(Want(tuple(wanted))))
            for _ in range(FORGED_MAX + 1):
                await far.send_message(MESSAGES.encode(Records((news,))))
            await near.closed.wait()
        assert "false signatures" in near.close_reason
        nursery.cancel_scope.cancel()
