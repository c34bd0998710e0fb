"""Whom this machine dials by itself: members that are due and sightings nobody has proved, over real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from mesh import degree
from mesh import dialling as room
from mesh.degree import named_untrusted
from mesh.link import Link
from mesh.presence import PERIOD_S_MIN
from mesh.topology import ACCEPTED_MAX
from tests.fakes.overlays import Machine, founder, open_machine, open_two, until


async def test_a_sighting_leads_to_a_member_and_a_lie_is_tried_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        unlisted = goods.__class__(goods.keys, goods.genesis, goods.records, goods.gates, goods.fleet_key)
        async with open_machine(tmp_path / "two", unlisted, addresses=()) as two:
            assert not two.overlay.links
            two.overlay.sighted("an-instance", (one.address,))
            await until(lambda: two.linked(one))
            tries = 0
            listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            address = f"127.0.0.1:{listener.socket.getsockname()[1]}"

            async def count() -> None:
                nonlocal tries
                while True:
                    stream = await listener.accept()
                    tries += 1
                    await stream.aclose()

            async with trio.open_nursery() as nursery, listener:
                nursery.start_soon(count)
                for _ in range(20):
                    one.overlay.sighted("a-liar", (address,))
                    await trio.sleep(0.05)
                await until(lambda: tries >= 1)
                nursery.cancel_scope.cancel()
            assert tries <= 6
            one.overlay.sighted("a-liar", ())
            assert one.linked(two)


async def test_a_crowd_of_sightings_is_bounded(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder()) as one:
        for number in range(2 * room.SIGHTED_MAX):
            one.overlay.sighted(f"liar-{number}", ("127.0.0.1:1",))
        assert len(one.overlay._dialling._sighted) == room.SIGHTED_MAX


async def test_a_member_announced_under_twenty_names_is_one_machine_with_one_link(tmp_path: Path):
    """O-D8: a machine is its key; what it is announced as changes nothing."""
    async with open_two(tmp_path) as (one, two):
        await until(lambda: all(m.addresses for m in (*one.replica.members(), *two.replica.members())))
        before = one.overlay.links[two.id].link
        for number in range(1, 21):
            name = "box" if number == 1 else f"box-{number}"
            one.overlay.sighted(name, (two.address,))
            await trio.sleep(0.01)
            if number < 20:
                one.overlay.sighted(name, ())
        await trio.sleep(0.2)
        assert [member.name for member in one.replica.members()] == ["other"]
        assert list(one.overlay.links) == [two.id]
        assert one.overlay.links[two.id].link is before
        assert not before.closed.is_set()


async def test_a_machine_that_dials_too_often_is_turned_away_and_told_so(tmp_path: Path):
    """SECURITY 21, 32: whatever becomes of the links, so many a minute."""
    async with open_two(tmp_path) as (one, two):
        one.cut_off = True  # It does not dial back meanwhile.
        for _ in range(ACCEPTED_MAX + 1):
            link = await _answered(one, two)
            if link.close_reason:
                break
        assert "too often" in link.close_reason


async def _answered(one: Machine, two: Machine) -> Link:
    """Dial once more, and wait until the other side has either kept the link or turned it away."""
    one.cut_off = False
    link = await two.overlay.connect([one.address], one.id)
    one.cut_off = True
    await until(lambda: link.closed.is_set() or (one.linked(two) and not one.overlay.links[two.id].link.initiator and _is_same(one, two, link)))
    return link


def _is_same(one: Machine, two: Machine, link: Link) -> bool:
    return one.overlay.links[two.id].link.session.salt == link.session.salt


@pytest.mark.soak
async def test_in_a_mesh_of_few_links_who_joins_and_who_dies_is_known_to_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nobody holds a link to everybody: what each says of itself is enough, long before a period is over."""
    for name, value in (("FULL_MESH_MAX", 3), ("DIALLED_RANDOM", 1), ("INBOUND_MAX", 2), ("DEGREE_MAX", 4), ("SETTLE_S", 0.5)):
        monkeypatch.setattr(degree, name, value)
    async with AsyncExitStack() as stack:
        machines = [await stack.enter_async_context(open_machine(tmp_path / "m0", founder("m0")))]
        for number in range(1, 6):
            goods = await machines[0].invited(f"m{number}")
            machines.append(await stack.enter_async_context(open_machine(tmp_path / f"m{number}", goods)))
        await until(lambda: all(_sees(m, machines, "live") for m in machines))
        await until(lambda: max(len(m.overlay.links) for m in machines) <= 4)
        assert any(len(m.overlay.links) < len(machines) - 1 for m in machines)
        await until(lambda: all(_sees(m, machines, "live") for m in machines))
        dead, *rest = machines[::-1]
        dead.cut()
        # A quarter of a period for who has just said much, and some seconds for who doubts itself on a busy machine.
        await until(lambda: all(_sees(m, [dead], "stale") and _sees(m, rest, "live") for m in rest), PERIOD_S_MIN)


def _sees(at: Machine, others: list[Machine], state: str) -> bool:
    found = {member.node: member.state for member in at.replica.members()}
    return all(found.get(other.id) == state for other in others if other is not at)


async def test_a_full_machine_turns_one_more_away_and_names_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("FULL_MESH_MAX", 1), ("INBOUND_MAX", 0), ("PASSING_MAX", 0)):
        monkeypatch.setattr(degree, name, value)
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        unlisted = goods.__class__(goods.keys, goods.genesis, goods.records, goods.gates, goods.fleet_key)
        async with open_machine(tmp_path / "two", unlisted, addresses=()) as two:
            link = await two.overlay.connect([one.address], one.id)
            await until(link.closed.is_set)
            assert named_untrusted(link.close_reason) == []
            assert not one.overlay.links
