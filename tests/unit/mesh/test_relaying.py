"""Circuits between real machines over real sockets: two that cannot dial each other, and who is between them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mesh import circuits, relaying
from mesh.base.codec import encode
from mesh.base.errors import Unreachable
from mesh.certificates import Expulsion
from mesh.circuits import Why, read_answer_untrusted
from mesh.identity import Belongings
from mesh.kinds import EXPULSION, LESSON, Role
from mesh.messages import CIRCUIT_MESSAGES, CIRCUIT_PURPOSE, CircuitAnswer, CircuitOpen, CircuitRefused
from tests.fakes.overlays import WORKING, Machine, founder, open_machine, until

PURPOSES = range(64, 72)
NOWHERE = ("127.0.0.1:1",)
"""What a machine states that nobody can dial."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Circuits are opened at once: dialling an address where nobody listens fails at once here."""
    for name in ("APART_S", "OTHER_SIDE_S"):
        monkeypatch.setattr(circuits, name, 0.2)
    for name in ("LOOK_S", "WATCH_S"):
        monkeypatch.setattr(relaying, name, 0.05)


@asynccontextmanager
async def open_line(folder: Path, *, relays: bool = True) -> AsyncIterator[tuple[Machine, Machine, Machine]]:
    """Run two machines that nobody can dial and one between them that both dialled."""
    async with open_machine(folder / "between", founder("between"), relays=relays) as between:
        left_goods, right_goods = await between.invited("left"), await between.invited("right")
        async with (
            open_machine(folder / "left", left_goods, addresses=NOWHERE) as left,
            open_machine(folder / "right", right_goods, addresses=NOWHERE) as right,
        ):
            await until(lambda: between.linked(left, right))
            yield left, between, right


def via(one: Machine, other: Machine) -> tuple[bytes, ...]:
    held = one.overlay.links.get(other.id)
    return () if held is None else held.via


async def linked(left: Machine, between: Machine, right: Machine) -> None:
    await until(lambda: via(left, right) == via(right, left) == (between.id,))


async def ask(opener: Machine, relay: Machine, route: tuple[bytes, ...], at: int = 1) -> Why | str | bytes:
    """Ask a neighbour for a circuit by hand; gives what came back."""
    held = opener.overlay.links[relay.id]
    channel = await held.link.open_channel(CIRCUIT_PURPOSE, CIRCUIT_MESSAGES.encode(CircuitOpen(route, at, b"no hello")))
    try:
        with trio.fail_after(5):
            first = await channel.receive()
    except Unreachable as ended:
        return ended.message
    assert first is not None
    answer = read_answer_untrusted(first)
    return Why(answer.why) if isinstance(answer, CircuitRefused) else answer.reply


async def test_two_machines_that_cannot_dial_each_other_speak_through_a_third(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        assert left.replica.member(right.id).state == "live"  # type: ignore[union-attr]
        inbox = right.overlay.incoming(PURPOSES)
        channel = await left.overlay.open_channel(right.id, PURPOSES[0], b"hello")
        with trio.fail_after(10):
            incoming = await inbox.receive()
            assert (incoming.request, incoming.channel.peer) == (b"hello", left.id)
            large = bytes(range(256)) * 200
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    for _ in range(20):
                        await channel.send(large)
                    await channel.aclose()

                nursery.start_soon(send)
                got = [message async for message in _all(incoming.channel)]
        assert got == [large] * 20
        await left.replica.publish(LESSON, b"k" * 16, left.sealer.seal(b"x"))
        await until(lambda: right.replica.entries(LESSON))


async def _all(channel) -> AsyncIterator[bytes]:
    while (message := await channel.receive()) is not None:
        yield message


async def test_two_relays_in_a_row_and_the_way_back_is_the_same_way(tmp_path: Path):
    """Nobody is told where anybody is: each knows only whom it dials."""
    async with open_machine(tmp_path / "near", founder("near"), addresses=NOWHERE) as near:
        left_goods, far_goods, right_goods = [await near.invited(name) for name in ("left", "far", "right")]
        right_goods = Belongings(right_goods.keys, right_goods.genesis, right_goods.records, right_goods.gates, right_goods.fleet_key)
        async with (
            open_machine(tmp_path / "left", left_goods, addresses=NOWHERE) as left,
            open_machine(tmp_path / "far", far_goods, addresses=NOWHERE) as far,
            open_machine(tmp_path / "right", right_goods, addresses=NOWHERE) as right,
        ):
            await until(lambda: near.linked(left, far) and far.replica.member(right.id) is not None)
            await right.overlay.connect([far.address], far.id)
            await until(lambda: via(left, right) == (near.id, far.id) and via(right, left) == (far.id, near.id))
            assert via(left, far) == (near.id,)
            inbox = left.overlay.incoming(PURPOSES)
            await right.overlay.open_channel(left.id, PURPOSES[0], b"hello")
            with trio.fail_after(5):
                assert (await inbox.receive()).channel.peer == right.id


async def test_a_relay_holds_no_more_than_its_windows_for_an_end_that_does_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(circuits, "CIRCUIT_BYTES_S", 1 << 30)
    monkeypatch.setattr(circuits, "PEER_BYTES_S", 1 << 30)
    monkeypatch.setattr(circuits, "RELAYED_BYTES_S", 1 << 30)
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        taken = []
        monkeypatch.setattr(right.overlay.relaying, "take_nowait", lambda incoming, *, direct: taken.append(incoming))
        request = CIRCUIT_MESSAGES.encode(CircuitOpen((left.id, between.id, right.id), 1, b"no hello"))
        hop = await left.overlay.links[between.id].link.open_channel(CIRCUIT_PURPOSE, request)
        sent = 0
        while True:
            with trio.move_on_after(1) as stuck:
                await hop.send(bytes(60_000))
                sent += 60_000
            if stuck.cancelled_caught:
                break
            assert sent < 2 << 20, "somebody keeps it all"
        assert len(taken) == 1
        assert sent >= 4 * 200_000, "two windows and two queues"


async def test_a_circuit_states_no_link_and_is_no_way_for_another(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        left.overlay.speak()
        await trio.sleep(0.5)
        heard = between.replica.heard[left.id].presence
        assert len(heard.links) == 1


async def test_a_direct_link_replaces_a_circuit_and_a_circuit_no_direct_link(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        before = left.overlay.links[right.id].link
        await left.overlay.connect([right.address], right.id)
        await until(lambda: left.linked(right) and right.linked(left) and via(left, right) == via(right, left) == ())
        await until(lambda: before.closed.is_set() and not between.overlay.relaying.relay.circuits)
        await left.overlay.relaying._open(right.id, [(left.id, between.id, right.id)])
        assert via(left, right) == via(right, left) == ()
        assert left.linked(right)
        assert right.linked(left)


async def test_a_circuit_dies_with_a_link_on_its_way_and_comes_back_with_it(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        link = left.overlay.links[right.id].link
        (number,) = between.overlay.relaying.relay.circuits
        right.overlay.links[between.id].link._pipe.abort()
        await until(link.closed.is_set)
        await until(lambda: number not in between.overlay.relaying.relay.circuits)
        await linked(left, between, right)


async def test_an_expelled_machine_loses_its_circuits_at_the_relay_and_at_the_other_end(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        link = right.overlay.links[left.id].link
        await between.replica.publish(EXPULSION, bytes(left.id), encode(Expulsion(bytes(left.id), ())))
        await until(lambda: link.closed.is_set() and not between.overlay.relaying.relay.circuits, 5)
        await until(lambda: left.id not in right.overlay.links)
        assert await ask(right, between, (right.id, between.id, left.id)) == Why.NOT_A_MEMBER


async def test_a_machine_that_does_not_relay_says_so(tmp_path: Path):
    async with open_line(tmp_path, relays=False) as (left, between, right):
        assert await ask(left, between, (left.id, between.id, right.id)) == Why.NO_RELAY
        await trio.sleep(0.6)
        assert not left.linked(right)


async def test_a_member_without_the_role_forwards_nothing(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder()) as one:
        plain = await one.invited("plain", roles=Role.MEMBER)
        far = await one.invited("far")
        async with open_machine(tmp_path / "plain", plain) as between, open_machine(tmp_path / "far", far, addresses=NOWHERE) as right:
            await until(lambda: between.linked(one) and one.linked(right))
            assert await ask(one, between, (one.id, between.id, right.id)) == Why.NO_RELAY


async def test_a_circuit_inside_a_circuit_is_refused(tmp_path: Path):
    """SECURITY 30: at depth two already."""
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        assert await ask(left, right, (left.id, right.id, between.id)) == Why.NESTED
        assert await ask(right, left, (right.id, left.id, between.id)) == Why.NESTED


async def test_false_ways_and_false_hellos_are_refused_and_nothing_is_kept(tmp_path: Path):
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        count = len(between.overlay.relaying.relay.circuits)
        for route, at in [
            ((left.id, between.id, left.id), 1),
            ((left.id, between.id), 1),
            ((right.id, between.id, left.id), 1),
            ((left.id, right.id, between.id), 1),
            ((left.id, right.id, between.id), 2),
        ]:
            assert await ask(left, between, route, at) == Why.MALFORMED
        assert await ask(left, between, (left.id, between.id, b"n" * 16)) == Why.NOT_A_MEMBER
        assert await ask(left, between, (left.id, between.id, right.id)) == Why.NO_HANDSHAKE
        held = left.overlay.links[between.id]
        channel = await held.link.open_channel(CIRCUIT_PURPOSE, CIRCUIT_MESSAGES.encode(CircuitAnswer(b"x")))
        with trio.fail_after(5), pytest.raises(Unreachable):
            await channel.receive()
        assert between.linked(left)
        await until(lambda: len(between.overlay.relaying.relay.circuits) == count)


async def test_who_opens_must_be_who_the_route_says(tmp_path: Path):
    """A relay that claims another origin gets a circuit to nobody: the handshake inside is compared with the route."""
    async with open_line(tmp_path) as (left, between, right):
        await linked(left, between, right)
        relay = between.overlay.relaying
        fourth_goods = await between.invited("fourth", roles=WORKING)
        async with open_machine(tmp_path / "fourth", fourth_goods, addresses=NOWHERE) as fourth:
            await until(lambda: fourth.linked(between) and right.replica.member(fourth.id) is not None)
            route = (fourth.id, between.id, right.id)
            initiator = relay._initiators(right.id)
            channel = await relay._onward(right.id, CIRCUIT_MESSAGES.encode(CircuitOpen(route, 2, initiator.hello)))
            first = await channel.receive()
            assert first is not None
            answer = read_answer_untrusted(first)
            assert isinstance(answer, CircuitAnswer)
            closing, _ = initiator.answer_untrusted(answer.reply)
            await channel.send(b"\0" + closing)
            with trio.fail_after(5), pytest.raises(Unreachable):
                [message async for message in _all(channel)]
            assert via(right, between) == ()
            assert right.linked(between)
