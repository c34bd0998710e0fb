"""Rude, broken and slow peers against a real listening process: it goes on serving, and its memory stays bounded."""

from __future__ import annotations

import os
import random
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mesh.dialer import run_dial
from mesh.doorway import write_hello
from mesh.link import Link
from tests.fakes.links import HOST, Machines, until
from tests.unit.mesh.test_doorway import head

ROOT = Path(__file__).parents[2]
UPGRADE = (
    b"GET /any HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
RUDE = [
    UPGRADE + b"\r\nx",
    UPGRADE + b"Content-Length: 3\r\n\r\nabc",
    UPGRADE + b"\r\n\x81\x83\0\0\0\0abc",
    UPGRADE.replace(b"==", b"!") + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET /\0 HTTP/1.1\r\n\r\n",
    b"GET / HT",
    b"",
    os.urandom(5000),
]
AFTER_UPGRADE = [
    b"\x82",
    b"\x82\x01a",
    b"\xff" * 100,
    b"\x82\xff" + (2 << 30).to_bytes(8, "big") + bytes(1000),
    b"\x88\x82\0\0\0\0\x03\xe8" + b"\x82\x81\0\0\0\0a",
    b"\x82\x85\0\0\0\0hello",
    b"\x81\x85\0\0\0\0hello",
    b"",
]


class Server:
    """The process and its port."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.process.link_server"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.machines = Machines()

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def hello(self) -> bytes:
        """A request that is let in, of a member."""
        hello = write_hello(self.machines.initiator(self.machines.mini).hello).decode()
        return head(Host="127.0.0.1", Hivemesh_Hello=hello)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        async with trio.open_nursery() as nursery:
            dial = partial(run_dial, [f"{HOST}:{self.port}"], partial(self.machines.initiator, self.machines.mini))
            with trio.fail_after(5):
                yield await nursery.start(dial)
            nursery.cancel_scope.cancel()

    async def check_serves(self) -> None:
        """A fresh member links and is answered."""
        assert self.process.poll() is None
        async with self.link() as link:
            link.send_message_nowait(b"still there?")
            assert await link.messages.receive() == b"still there?"


@pytest.fixture
def server() -> Iterator[Server]:
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc to count descriptors and memory")
    running = Server()
    yield running
    running.process.kill()
    _, errors = running.process.communicate(timeout=10)
    assert "Traceback" not in errors


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def be_rude(server: Server, first: bytes, then: bytes, *, by_reset: bool) -> None:
    """Send, perhaps wait for the upgrade, send more, vanish."""
    stream = await trio.open_tcp_stream(HOST, server.port)
    try:
        await stream.send_all(first)
        if then or first.endswith(b"\r\n\r\n"):
            with trio.move_on_after(2):
                await stream.receive_some()
        await stream.send_all(then)
    except trio.BrokenResourceError:
        by_reset = True
    if by_reset:
        reset(stream)
    stream.socket.close()


async def test_rude_requests_do_not_stop_the_port(server: Server) -> None:
    """O-T1, O-T2: bytes glued to an upgrade, bodies, garbage, halves; after each a member is served."""
    for data in RUDE:
        await be_rude(server, data, b"", by_reset=False)
        await server.check_serves()


async def test_two_hundred_broken_clients_at_once_then_a_member_links(server: Server) -> None:
    """O-T2 and O-T3: resets, half frames, bad masks, 2 GiB lengths, before and after the upgrade; descriptors come back."""
    await server.check_serves()
    before = server.descriptors()
    chance = random.Random(7)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for n in range(200):
                if n % 2:
                    nursery.start_soon(partial(be_rude, server, chance.choice(RUDE), b"", by_reset=chance.random() < 0.5))
                else:
                    then = chance.choice(AFTER_UPGRADE)
                    nursery.start_soon(partial(be_rude, server, server.hello(), then, by_reset=chance.random() < 0.5))
    with trio.fail_after(3):
        await server.check_serves()
    await until(lambda: server.descriptors() <= before + 3, 10)


async def test_links_that_vanish_rudely_free_their_descriptors(server: Server) -> None:
    """O-T3: the peer resets a live link, or leaves without a word."""
    await server.check_serves()
    before = server.descriptors()
    for n in range(20):
        async with server.link() as link:
            if n % 2:
                reset(link._pipe._wire._stream)
            else:
                link._pipe._wire._stream.socket.shutdown(socket.SHUT_WR)
            with trio.fail_after(3):
                await link.closed.wait()
    await until(lambda: server.descriptors() <= before + 3, 10)
    await server.check_serves()


async def test_a_peer_that_does_not_read_costs_bounded_memory_and_disturbs_nobody(server: Server) -> None:
    """O-T9: the process floods a peer whose socket nobody reads."""
    async with server.link() as slow:
        await slow.open_channel(1, b"flood", bulk=True)
        await slow.open_channel(1, b"flood", bulk=True)
        slow._pipe._wire.read = trio.sleep_forever  # type: ignore[method-assign,assignment]
        before = server.resident_bytes()
        async with server.link() as other:
            for n in range(20):
                sent = trio.current_time()
                other.send_message_nowait(b"%d" % n)
                assert await other.messages.receive() == b"%d" % n
                assert trio.current_time() - sent < 1
                await trio.sleep(0.05)
        assert server.resident_bytes() - before < 32 * 1024 * 1024


class Cut:
    """A TCP proxy in front of the server that can hold everything while it keeps the sockets open."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.passing = trio.Event()
        self.passing.set()

    async def run(self, task_status: trio.TaskStatus[int]) -> None:
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._one, listeners)

    async def _one(self, near: trio.SocketStream) -> None:
        far = await trio.open_tcp_stream(HOST, self._target)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, near, far)
            nursery.start_soon(self._pump, far, near)

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65536):
                await self.passing.wait()
                await target.send_all(data)
            await target.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reset(target)


async def test_a_held_line_is_noticed_and_a_new_link_works(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-T4, scaled: the line moves nothing and gives no error; seconds stand for the real ones."""
    for name, value in {"QUIET_S": 0.2, "QUIET_FAR_S": 0.3, "SILENT_S": 0.6, "LAG_S": 60.0, "JUMP_S": 60.0}.items():
        monkeypatch.setattr(f"mesh.pace.{name}", value)
    monkeypatch.setattr("mesh.link.TICK_S", 0.1)
    cut = Cut(server.port)
    dialled = partial(run_dial, initiator=partial(server.machines.initiator, server.machines.mini))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(cut.run)
        link = await nursery.start(dialled, [f"{HOST}:{port}"])
        await trio.sleep(1.0)
        assert not link.closed.is_set()
        cut.passing = trio.Event()
        with trio.fail_after(8):
            await link.closed.wait()
        assert link.close_reason == "the other side is silent"
        cut.passing.set()
        fresh = await nursery.start(dialled, [f"{HOST}:{port}"])
        fresh.send_message_nowait(b"back")
        with trio.fail_after(3):
            assert await fresh.messages.receive() == b"back"
        nursery.cancel_scope.cancel()
