"""python-zeroconf behind its room: real packets, on loopback only."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
import trio
from zeroconf import DNSIncoming

from mesh import responder as room
from mesh.responder import Announcement, Inbox, NoMulticast, open_responder
from mesh.sightings import SERVICE_TYPE, SIGHTINGS_MAX, Heard

LOOPBACK = ["127.0.0.1"]


def _announcement(port: int = 7001, tag: str = "abcdefghijkl2", instance: str = "") -> Announcement:
    return Announcement(instance or f"test-{time.monotonic_ns()}", port, ("127.0.0.1",), tag)


def _inbox() -> Inbox:
    return Inbox(trio.lowlevel.current_trio_token())


async def _wait_for(inbox: Inbox, name: str, wanted: Callable[[Heard | None], bool]) -> Heard | None:
    with trio.fail_after(5):
        while True:
            await inbox.arrived.wait()
            taken = inbox.take()
            if name in taken and wanted(taken[name]):
                return taken[name]


def _listen() -> trio.socket.SocketType:
    """A socket that hears what is said to the multicast group on loopback."""
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    plain.bind(("", room.MDNS_PORT))
    group = struct.pack("4s4s", socket.inet_aton("224.0.0.251"), socket.inet_aton("127.0.0.1"))
    plain.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    return trio.socket.from_stdlib_socket(plain)


async def _next_query(wire: trio.socket.SocketType) -> DNSIncoming:
    with trio.fail_after(5):
        while True:
            message = DNSIncoming(await wire.recv(9000))
            if message.is_query() and [question for question in message.questions if question.name == SERVICE_TYPE]:
                return message


async def test_an_announcement_is_heard_changed_and_withdrawn() -> None:
    first = _announcement()
    mine, theirs = _inbox(), _inbox()
    async with open_responder(LOOPBACK, mine) as one, open_responder(LOOPBACK, theirs):
        await one.announce(first)
        heard = await _wait_for(theirs, first.name, lambda heard: heard is not None)
        assert heard == Heard(first.name, 7001, ((b"\x7f\0\0\1", 0),), b"\x03v=1\x0ft=abcdefghijkl2")
        assert await _wait_for(mine, first.name, lambda heard: heard is not None) == heard, "we hear ourselves"
        await one.announce(Announcement(first.instance, 7001, ("127.0.0.1",), "bbbbbbbbbbbbb"))
        await _wait_for(theirs, first.name, lambda heard: heard is not None and b"bbbbbbbbbbbbb" in heard.text)
        await one.announce(None)
        await _wait_for(theirs, first.name, lambda heard: heard is None)
        renamed = _announcement(7002, tag="")
        await one.announce(renamed)
        heard = await _wait_for(theirs, renamed.name, lambda heard: heard is not None)
        assert heard is not None
        assert heard.text == b"\x03v=1"
        another = _announcement(7003)
        await one.announce(another)
        await _wait_for(theirs, another.name, lambda heard: heard is not None)


async def test_leaving_says_goodbye_and_ends_the_thread() -> None:
    said = _announcement()
    inbox = _inbox()
    async with open_responder(LOOPBACK, inbox):
        async with open_responder(LOOPBACK, _inbox()) as short:
            await short.announce(said)
            await _wait_for(inbox, said.name, lambda heard: heard is not None)
            started = time.monotonic()
        assert time.monotonic() - started < room.GOODBYE_S + room.END_S
        await _wait_for(inbox, said.name, lambda heard: heard is None)
    assert not [thread for thread in threading.enumerate() if thread.name == "mdns"]


async def test_a_question_names_those_that_need_not_answer() -> None:
    said = _announcement()
    inbox = _inbox()
    wire = _listen()
    with wire:
        async with open_responder(LOOPBACK, _inbox()) as one, open_responder(LOOPBACK, inbox) as asker:
            await one.announce(said)
            await _wait_for(inbox, said.name, lambda heard: heard is not None)
            await asker.ask(frozenset({said.name}))
            known = [answer for answer in (await _next_query(wire)).answers() if answer.alias == said.name]
            assert known
            await asker.ask(frozenset())
            assert not (await _next_query(wire)).answers()
            await _wait_for(inbox, said.name, lambda heard: heard is not None)


async def test_an_announcer_that_says_too_little_is_asked_for_the_rest() -> None:
    """Somebody's pointer comes without port and address: the announcer is asked, and answers."""
    said = _announcement()
    inbox = _inbox()
    async with open_responder(LOOPBACK, _inbox()) as one:
        await one.announce(said)
        async with open_responder(LOOPBACK, inbox):
            name = b"".join(bytes([len(label)]) + label.encode() for label in said.name.split(".") if label)
            kind = b"".join(bytes([len(label)]) + label.encode() for label in SERVICE_TYPE.split(".") if label)
            pointer = kind + b"\0" + struct.pack("!HHIH", 12, 1, 120, len(name) + 1) + name + b"\0"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
                packet = struct.pack("!6H", 0, 0x8400, 0, 1, 0, 0) + pointer
                sender.sendto(packet, ("224.0.0.251", room.MDNS_PORT))
            heard = await _wait_for(inbox, said.name, lambda heard: heard is not None)
            assert heard is not None
            assert heard.port == 7001


async def test_a_port_that_is_not_shared_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-D5: the reason is for a person, and nothing is left open."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as squatter:
        squatter.bind(("", 0))
        monkeypatch.setattr(room, "MDNS_PORT", squatter.getsockname()[1])
        with pytest.raises(NoMulticast, match=rf"UDP port {room.MDNS_PORT}: Address already in use"):
            async with open_responder(LOOPBACK, _inbox()):
                pytest.fail("it opened")


async def test_an_interface_that_is_not_there_is_a_fault_of_ours() -> None:
    with pytest.raises(NoMulticast):
        async with open_responder(["192.0.2.250"], _inbox()):
            pytest.fail("it opened")
    assert not [thread for thread in threading.enumerate() if thread.name == "mdns"]


async def test_moving_to_other_interfaces_and_back() -> None:
    said = _announcement()
    inbox = _inbox()
    async with open_responder(LOOPBACK, _inbox()) as one, open_responder(LOOPBACK, inbox):
        await one.announce(said)
        with pytest.raises(NoMulticast, match="no network interface takes multicast"):
            await one.use([])
        await one.use(LOOPBACK)
        await one.announce(_announcement(instance=said.instance, tag="bbbbbbbbbbbbb"))
        await _wait_for(inbox, said.name, lambda heard: heard is not None and b"bbbbbbbbbbbbb" in heard.text)


async def test_cancelling_a_command_leaves_a_working_responder() -> None:
    said = _announcement()
    inbox = _inbox()
    async with open_responder(LOOPBACK, inbox) as one:
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.announce(said)
        assert scope.cancelled_caught
        await one.announce(said)
        await _wait_for(inbox, said.name, lambda heard: heard is not None)


async def test_a_stuck_responder_counts_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_responder(LOOPBACK, _inbox()) as one:
        monkeypatch.setattr(room, "CALL_S", 0.05)
        with pytest.raises(NoMulticast, match="did not answer"):
            await one.announce(_announcement())


async def test_the_inbox_keeps_the_newest_and_has_a_bound() -> None:
    inbox = _inbox()
    for number in range(SIGHTINGS_MAX + 44):
        inbox.put(f"n{number}", None)
    newest = Heard("n50", 1, (), b"")
    inbox.put("n50", newest)
    with trio.fail_after(5):
        await inbox.arrived.wait()
    taken = inbox.take()
    assert len(taken) == SIGHTINGS_MAX
    assert next(iter(taken)) == "n44"
    assert taken["n50"] is newest
    assert list(taken)[-1] == "n50"
    assert inbox.take() == {}
