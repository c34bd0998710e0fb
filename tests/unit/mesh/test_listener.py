"""The open port: one 404 for every stranger, and it stays open whatever one connection does."""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio

from mesh.base.errors import OurFault, PeerFault
from mesh.dialer import run_dial
from mesh.doorway import NOT_FOUND, write_hello
from mesh.handshake import Incompatible
from mesh.listener import JOINING_MAX, PortTaken, open_listeners
from tests.fakes.links import HOST, Machines, Port, open_port, until
from tests.unit.mesh.test_doorway import head


async def ask(port: Port, data: bytes) -> bytes:
    """Send bytes and read the whole answer."""
    answer = b""
    with trio.fail_after(5):
        stream = await trio.open_tcp_stream(HOST, port.number)
        async with stream:
            try:
                await stream.send_all(data)
                while more := await stream.receive_some():
                    answer += more
            except trio.BrokenResourceError:
                return answer
    return answer


async def link_works(machines: Machines, port: Port) -> None:
    """A fresh member links within a second."""
    async with trio.open_nursery() as nursery:
        with trio.fail_after(3):
            link = await nursery.start(run_dial, [port.address], partial(machines.initiator, machines.mini))
            far = await port.links.receive()
            assert link.send_message_nowait(b"works")
            assert await far.messages.receive() == b"works"
        nursery.cancel_scope.cancel()


STRANGERS = {
    "plain": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "mesh without a websocket": b"GET /mesh HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "scanner": b"GET /.env HTTP/1.0\r\n\r\n",
    "browser on /mesh": head(Host="127.0.0.1", Origin="https://evil.example"),
    "browser on /join": head("/join", Host="127.0.0.1", Origin="https://evil.example"),
    "foreign host": head(Host="evil.example"),
    "wrong tag": head(Host="127.0.0.1"),
    "no tag": head(Host="127.0.0.1", Hivemesh_Hello=None),
    "join while no invite is open": head("/join", Host="127.0.0.1"),
    "unknown path": head("/fleet", Host="127.0.0.1"),
    "bytes behind the request": head(Host="127.0.0.1") + b"x",
    "oversized headers": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "request with a body": head(Host="127.0.0.1", Content_Length="3") + b"abc",
}


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_every_stranger_gets_the_same_answer(data: bytes) -> None:
    """SECURITY.md 27."""
    async with open_port(Machines()) as port:
        assert await ask(port, data) == NOT_FOUND


async def test_a_member_of_another_version_is_told() -> None:
    """O-T11: no overlap; both sides say so."""

    class Newer:
        def accept_untrusted(self, hello: bytes) -> bytes:
            raise Incompatible("the peer speaks versions 1 to 1, this machine 2 to 3", reason="version")

    machines = Machines()
    machines.responder = lambda machine: Newer()  # type: ignore[assignment,method-assign,return-value]
    async with open_port(machines) as port:
        answer = await ask(port, head(Host="127.0.0.1"))
        assert answer.startswith(b"HTTP/1.1 426 ")
        assert answer.endswith(b"this machine 2 to 3")


async def test_members_link_and_a_name_that_is_advertised_is_taken() -> None:
    machines = Machines()
    async with open_port(machines, host_names=("mini.local",)) as port:
        await link_works(machines, port)
        initiator = machines.initiator(machines.mini)
        stream = await trio.open_tcp_stream(HOST, port.number)
        async with stream:
            await stream.send_all(head(Host="mini.local", Hivemesh_Hello=write_hello(initiator.hello).decode()))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")


async def test_a_recorded_hello_is_not_answered_again() -> None:
    machines = Machines()
    async with open_port(machines) as port:
        data = head(Host="127.0.0.1", Hivemesh_Hello=write_hello(machines.initiator(machines.mini).hello).decode())
        stream = await trio.open_tcp_stream(HOST, port.number)
        async with stream:
            await stream.send_all(data)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
        assert await ask(port, data) == NOT_FOUND


async def test_who_does_not_finish_in_time_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-open: nothing, half a request, and a handshake that stops after the upgrade."""
    monkeypatch.setattr("mesh.listener.HANDSHAKE_S", 0.3)
    machines = Machines()
    async with open_port(machines) as port:
        hello = write_hello(machines.initiator(machines.mini).hello).decode()
        for data in (b"", b"GET / HT", head(Host="127.0.0.1", Hivemesh_Hello=hello)):
            stream = await trio.open_tcp_stream(HOST, port.number)
            async with stream:
                with trio.fail_after(3):
                    await stream.send_all(data)
                    try:
                        while await stream.receive_some():
                            pass
                    except trio.BrokenResourceError:
                        continue
        await link_works(machines, port)


async def test_handlers_that_fail_in_any_way_end_only_their_connection(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-T2: errors of one connection, also inside an exception group, and mistakes of this program."""
    monkeypatch.setattr("mesh.pipe.CLOSE_S", 0.1)
    failures = [
        PeerFault("bad joiner"),
        OSError("disk"),
        ExceptionGroup("several", [PeerFault("x"), trio.BrokenResourceError()]),
        AssertionError("a mistake"),
        ExceptionGroup("several", [KeyError("a mistake"), PeerFault("x")]),
    ]
    machines = Machines()

    async def join(pipe) -> None:
        raise failures.pop()

    async with open_port(machines, join=join) as port:
        while failures:
            left = len(failures)
            assert (await ask(port, head("/join", Host="127.0.0.1"))).startswith(b"HTTP/1.1 101 ")
            assert len(failures) == left - 1
        await link_works(machines, port)
    assert sum("mistake" in record.message for record in caplog.records) == 2


async def test_joiners_are_bounded_in_number_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.listener.JOIN_S", 1.0)
    waiting = []

    async def join(pipe) -> None:
        waiting.append(pipe)
        await trio.sleep_forever()

    request = head("/join", Host="127.0.0.1")
    async with open_port(Machines(), join=join) as port, trio.open_nursery() as nursery:
        for _ in range(JOINING_MAX):
            nursery.start_soon(ask, port, request)
        await until(lambda: len(waiting) == JOINING_MAX)
        assert await ask(port, request) == NOT_FOUND
    assert len(waiting) == JOINING_MAX


async def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        number = holder.getsockname()[1]
        with pytest.raises(PortTaken, match=str(number)) as caught:
            await open_listeners([(HOST, 0), (HOST, number)])
        assert caught.value.hint


async def test_addresses_this_machine_does_not_have_are_our_fault() -> None:
    with pytest.raises(OurFault, match=r"192\.0\.2\.1"):
        await open_listeners([("192.0.2.1", 0)])
    with pytest.raises(OurFault, match="nowhere"):
        await open_listeners([("nowhere.invalid", 0)])


async def test_an_empty_host_is_every_interface_under_one_port() -> None:
    listeners = await open_listeners([("", 0)])
    assert len({listener.socket.getsockname()[1] for listener in listeners}) == 1
    assert len(listeners) == (2 if socket.has_ipv6 else 1)
    for listener in listeners:
        await listener.aclose()


async def test_stopping_ends_every_link_at_once() -> None:
    """O-T10 at this level: open links do not hold the shutdown."""
    machines = Machines()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        async with open_port(machines) as port:
            links = []
            for _ in range(3):
                near = await nursery.start(run_dial, [port.address], partial(machines.initiator, machines.mini))
                links += [near, await port.links.receive()]
        with trio.fail_after(3):
            for link in links:
                await link.closed.wait()
    assert trio.current_time() - began < 4
