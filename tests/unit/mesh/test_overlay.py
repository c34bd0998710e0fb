"""Links between real machines over real sockets: who is dialled, which link stays, what reaches whom, and who is let go."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh.base.clock import version_ms
from mesh.base.codec import encode
from mesh.base.errors import MeshError, OurFault, Refused, Unreachable
from mesh.certificates import Expulsion
from mesh.kinds import CERTIFICATE, EXPULSION, LESSON, Role
from mesh.presence import links_stated
from mesh.records import parse_untrusted
from tests.fakes.overlays import Clock, Machine, founder, open_machine, open_two, until

PURPOSES = range(64, 72)
YEAR_MS = 365 * 86_400_000


async def learn(machine: Machine, key: bytes, text: bytes = b"x") -> None:
    await machine.replica.publish(LESSON, key.ljust(16, b"."), machine.sealer.seal(text))


def lessons(machine: Machine) -> set[bytes]:
    return {entry.key.rstrip(b".") for entry in machine.replica.entries(LESSON)}


def state_of(at: Machine, other: Machine) -> str:
    member = at.replica.member(other.id)
    return "unknown" if member is None else member.state


async def test_three_machines_link_pairwise_and_news_reach_all_once(tmp_path: Path):
    """O-G3, O-G9: what is known already is not sent on; each store takes each record once."""
    async with open_two(tmp_path) as (one, two):
        goods = await one.invited("three")
        async with open_machine(tmp_path / "three", goods) as three:
            await until(lambda: one.linked(two, three) and two.linked(one, three) and three.linked(one, two))
            taken: list[bytes] = []
            for machine in (one, two, three):

                def counted(records, real=machine.replica._changed):
                    taken.extend(r.record_id for r in records if r.kind == LESSON)
                    real(records)

                machine.replica._changed = counted  # type: ignore[method-assign]
            for number in range(10):
                await learn(one, b"%d" % number)
            await until(lambda: len(lessons(two)) == len(lessons(three)) == 10 and len(taken) >= 30)
            await trio.sleep(0.1)
            assert len(taken) == 30
            assert {taken.count(record_id) for record_id in taken} == {3}


async def test_where_all_are_linked_news_travel_once_to_each_and_revocations_every_way(tmp_path: Path):
    """O-G9: nobody passes on what its receiver has from the same source; an expulsion goes round all the same."""
    async with open_two(tmp_path) as (one, two):
        goods = await one.invited("three")
        async with open_machine(tmp_path / "three", goods) as three:
            machines = (one, two, three)
            await until(lambda: one.linked(two, three) and two.linked(one, three) and three.linked(one, two))
            await until(lambda: all(links_stated(m.replica.heard, o.id) == 2 for m in machines for o in machines if o is not m))
            came: list[int] = []
            for machine in machines:

                async def counted(wires, source, real=machine.replica.take_untrusted):
                    came.extend(parse_untrusted(wire).kind for wire in wires)
                    return await real(wires, source)

                machine.replica.take_untrusted = counted  # type: ignore[method-assign]
            await learn(one, b"news")
            await until(lambda: len(lessons(two)) == len(lessons(three)) == 1)
            unknown = bytes(16)
            await one.replica.publish(EXPULSION, unknown, encode(Expulsion(unknown, ())))
            await until(lambda: came.count(EXPULSION) == 4)
            assert came.count(LESSON) == 2


async def test_a_machine_that_joined_while_another_was_away_is_known_to_it_afterwards(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: one.linked(two))
        await until(lambda: not one.overlay.links)
        third = await one.invited("three")
        async with open_machine(tmp_path / "three", third) as three:
            await until(lambda: one.linked(three))
            await learn(three, b"of three")
            await learn(one, b"of one")
            async with open_machine(tmp_path / "two") as two:
                await until(lambda: two.linked(one, three) and three.linked(two))
                await until(lambda: lessons(two) == {b"of three", b"of one"})
                assert {m.name for m in two.replica.members()} == {"one", "three"}


async def test_a_machine_is_stale_without_a_link_and_live_again_elsewhere(tmp_path: Path):
    """O-G1: the same key at another address is the same machine, at once."""
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: state_of(one, two) == "live" and two.linked(one))
            # A link younger than this is not stated; wait until the stated presence has gone out.
            await until(lambda: one.replica.boot_of(two.id) is not None)
            first = two.address
        await until(lambda: state_of(one, two) == "stale")
        async with open_machine(tmp_path / "two") as two:
            await until(lambda: state_of(one, two) == "live")
            await until(lambda: one.replica.member(two.id).addresses == (two.address,))  # type: ignore[union-attr]
            assert first != two.address
            assert len(one.replica.members()) == 1


async def test_a_second_proved_link_replaces_the_first_at_once(tmp_path: Path):
    """O-T6."""
    async with open_two(tmp_path) as (one, two):
        dialler, answerer = (one, two) if one.overlay.links[two.id].link.initiator else (two, one)
        before = dialler.overlay.links[answerer.id].link
        link = await dialler.overlay.connect([answerer.address], answerer.id)
        await until(before.closed.is_set)
        assert dialler.overlay.links[answerer.id].link is link
        await until(lambda: answerer.linked(dialler) and not answerer.overlay.links[dialler.id].link.closed.is_set())
        assert "replaced" in before.close_reason
        inbox = answerer.overlay.incoming(PURPOSES)
        channel = await dialler.overlay.open_channel(answerer.id, PURPOSES[0], b"hello")
        with trio.fail_after(5):
            assert (await inbox.receive()).request == b"hello"
        await channel.aclose()


async def test_connect_says_why_it_fails_and_an_address_proves_nothing(tmp_path: Path):
    async with open_two(tmp_path) as (one, two), open_machine(tmp_path / "stranger", founder("stranger")) as stranger:
        with pytest.raises(Unreachable):
            await one.overlay.connect(["127.0.0.1:1"], two.id)
        with pytest.raises(MeshError):
            await one.overlay.connect([stranger.address], two.id)
        with pytest.raises(MeshError):
            await one.overlay.connect([one.address], two.id)
        with pytest.raises(Unreachable):
            await one.overlay.connect([], two.id)
        assert one.linked(two)
        assert not stranger.overlay.links


async def test_an_expelled_machine_loses_its_link_and_gets_none_back(tmp_path: Path):
    """O-P10 as far as the mesh goes: closed within a moment of knowing, on both sides, and the redial is refused."""
    async with open_two(tmp_path) as (one, two):
        lineage = bytes(two.id)
        certificate = one.replica.members_now.certificates[two.id]
        assert bytes(certificate.lineage) == lineage
        before = two.overlay.links[one.id].link
        await one.replica.publish(EXPULSION, lineage, encode(Expulsion(lineage, ())))
        await until(lambda: not one.overlay.links and before.closed.is_set(), 5)
        assert "expelled" in before.close_reason
        assert state_of(one, two) == "expelled"
        with pytest.raises((Refused, Unreachable)):
            await two.overlay.connect([one.address], one.id)
        await trio.sleep(1.2)
        assert not one.overlay.links
        with pytest.raises(Unreachable):
            await one.overlay.open_channel(two.id, PURPOSES[0], b"")


async def test_news_of_another_certificate_leave_a_fresh_members_link_alone(tmp_path: Path):
    """Its chain was proved in the handshake; that its certificate has not come by record yet is no reason to part."""
    async with open_two(tmp_path) as (one, two):
        link = one.overlay.links[two.id].link
        known = one.replica.member
        one.replica.member = lambda node: None if node == two.id else known(node)  # type: ignore[method-assign]
        one.replica.wake({CERTIFICATE})
        with trio.move_on_after(0.3):
            await link.closed.wait()
        assert not link.closed.is_set()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.WORKER])
async def test_a_machine_of_few_rights_is_linked_and_seen(tmp_path: Path, role: Role):
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two", roles=role)
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: one.linked(two) and one.replica.boot_of(two.id) is not None)
            with pytest.raises(Refused):
                await learn(two, b"not allowed")


async def test_a_full_disk_stops_neither_links_nor_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Presence and remembered addresses are not written; the link stays, and what comes later is written again."""
    async with open_two(tmp_path) as (one, two):
        real = one.database.write

        async def full(work):
            raise OurFault("the disk is full")

        monkeypatch.setattr(one.database, "write", full)
        one.overlay.speak()
        await one.overlay.connect([two.address], two.id)
        await trio.sleep(0.4)
        assert one.linked(two)
        monkeypatch.setattr(one.database, "write", real)
        await learn(one, b"again")
        await until(lambda: lessons(two) == {b"again"})


async def test_a_clock_that_jumps_far_ahead_while_linked_stays_within_reach_of_the_others(tmp_path: Path):
    """SECURITY 7, O-G7: versions follow the peers' clocks; after the clock is mended the next records count at once."""
    clock = Clock()
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods, clock=clock) as two:
            await until(lambda: two.linked(one) and two.replica.boot_of(one.id) is not None)
            clock.shift_ms = 50 * YEAR_MS
            await learn(two, b"ahead")
            (entry,) = two.replica.entries(LESSON) or one.replica.entries(LESSON) or [None]
            newest = two.replica.newest
            assert version_ms(newest) <= clock().wall_ms - 50 * YEAR_MS + 11 * 60_000
            clock.shift_ms = 0
            await learn(two, b"mended")
            await until(lambda: b"mended" in lessons(one))
            assert entry is None or entry.author == two.id


@pytest.mark.parametrize("shift_ms", [-200 * 86_400_000, -50 * YEAR_MS, 86_400_000, 50 * YEAR_MS], ids=["-200d", "-50y", "+1d", "+50y"])
async def test_a_wrong_clock_alone_keeps_no_machine_out_and_ends_no_node(tmp_path: Path, shift_ms: int):
    """O-P8, SECURITY 7: it starts, links, and sees the others; it goes on when its clock is put right."""
    clock = Clock(shift_ms)
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods, clock=clock) as two:
            await until(lambda: two.linked(one) and one.linked(two))
            with trio.move_on_after(0.3):
                await two.overlay._replica.run_sweep()
            clock.shift_ms = 0
            two.overlay.speak()
            await learn(two, b"afterwards")
            await trio.sleep(0.1)
            assert two.linked(one)
            assert lessons(two) == {b"afterwards"}


async def test_a_purpose_whose_reader_has_gone_is_closed_not_fatal(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        two.overlay.incoming(PURPOSES).close()
        channel = await one.overlay.open_channel(two.id, PURPOSES[0], b"hello")
        with trio.fail_after(5), pytest.raises(Unreachable):
            await channel.receive()
        assert one.linked(two)


async def test_many_channels_at_the_moment_of_loss_all_end(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        inbox = two.overlay.incoming(PURPOSES)
        ended = 0

        async def talk() -> None:
            nonlocal ended
            try:
                channel = await one.overlay.open_channel(two.id, PURPOSES[0], b"")
                while await channel.receive() is not None:
                    pass
            except Unreachable:
                ended += 1

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for _ in range(30):
                    nursery.start_soon(talk)
                for _ in range(30):
                    await inbox.receive()
                one.cut()
        assert ended == 30


async def test_the_goodbye_says_why(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        link = two.overlay.links[one.id].link
        one.cut_off = two.cut_off = True
        one.overlay.close_nowait("this machine stops")
        await until(link.closed.is_set)
        assert "this machine stops" in link.close_reason
        await until(lambda: not two.overlay.links)


async def test_what_was_written_is_passed_on_although_its_command_was_cancelled(tmp_path: Path):
    """A command that goes away in the middle of a publication leaves it done whole or not at all, here and there."""
    async with open_two(tmp_path) as (one, two):
        async with trio.open_nursery() as nursery:
            for number in range(40):

                async def hasty(number=number) -> None:
                    with trio.move_on_after(0.0004 * number):
                        await learn(one, b"%d" % number)

                nursery.start_soon(hasty)
        await until(lambda: lessons(two) == lessons(one), 5)
