"""Both sides of a handshake as a node makes them: with its gate keys, its chain, and what it knows of the mesh now."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.base.clock import Now, read_clock
from mesh.base.codec import encode
from mesh.base.errors import MeshError
from mesh.base.names import NodeId
from mesh.certificates import Expulsion
from mesh.kinds import EXPULSION
from node import gatehouse as room
from node.gatehouse import HOUR_MS, Gatehouse
from tests.fakes.overlays import Machine, founder, open_machine, open_two


def gatehouse(machine: Machine) -> Gatehouse:
    return Gatehouse(machine.identity, machine.keyring, machine.replica, b"bootboot")


def shake(dialler: Gatehouse, answerer: Gatehouse, expected: NodeId | None = None):
    """Go through one handshake; gives both sessions."""
    initiator, responder = dialler.initiator(expected), answerer.responder()
    closing, near = initiator.answer_untrusted(responder.accept_untrusted(initiator.hello))
    return near, responder.finish_untrusted(closing)


async def test_two_members_meet_and_each_knows_whom(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        near, far = shake(gatehouse(one), gatehouse(two), two.id)
        assert (near.peer, far.peer) == (two.id, one.id)
        assert near.send_key == far.receive_key != near.receive_key


async def test_anybody_but_the_expected_machine_is_refused(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        with pytest.raises(MeshError):
            shake(gatehouse(one), gatehouse(two), NodeId(b"x" * 16))
        with pytest.raises(MeshError):
            shake(gatehouse(one), gatehouse(one))


async def test_a_stranger_gets_no_answer_and_an_expelled_machine_no_session(tmp_path: Path):
    async with open_two(tmp_path) as (one, two), open_machine(tmp_path / "stranger", founder("stranger")) as stranger:
        hello = gatehouse(stranger).initiator(None).hello
        with pytest.raises(MeshError):
            gatehouse(one).responder().accept_untrusted(hello)
        keeper, leaver = gatehouse(one), gatehouse(two)
        shake(leaver, keeper)
        await one.replica.publish(EXPULSION, bytes(two.id), encode(Expulsion(bytes(two.id), ())))
        with pytest.raises(MeshError):
            shake(leaver, keeper)


async def test_a_recorded_hello_is_answered_once(tmp_path: Path):
    """SECURITY 35: a recorder must not find out who is a member by asking again."""
    async with open_two(tmp_path) as (one, two):
        answerer = gatehouse(two)
        hello = gatehouse(one).initiator(None).hello
        answerer.responder().accept_untrusted(hello)
        with pytest.raises(MeshError):
            answerer.responder().accept_untrusted(hello)


async def test_every_session_has_its_own_counter(tmp_path: Path):
    async with open_two(tmp_path) as (one, two):
        house = gatehouse(one)
        first, second = shake(house, gatehouse(two)), shake(house, gatehouse(two))
        assert first[0].send_key != second[0].send_key


async def test_the_announced_tag_is_known_within_the_mesh_an_hour_off_and_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_two(tmp_path) as (one, two), open_machine(tmp_path / "stranger", founder("stranger")) as stranger:
        tag = gatehouse(one).tag()
        assert gatehouse(two).knows_tag(tag)
        assert not gatehouse(stranger).knows_tag(tag)
        for nonsense in (None, "", "a" * 200, tag[:-1], tag.upper() + "x"):
            assert not gatehouse(two).knows_tag(nonsense)
        now = read_clock()
        for hours, known in ((-1, True), (1, True), (3, False), (-3, False)):
            monkeypatch.setattr(room, "read_clock", lambda hours=hours: Now(now.wall_ms + hours * HOUR_MS, now.steady_s))
            assert gatehouse(two).knows_tag(tag) is known
