"""The websocket under a link: it speaks with the unchanged library on the other side, and ends in bounded time."""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
import trio
import trio_websocket

from mesh.base.errors import PeerFault, Refused, Unreachable
from mesh.pipe import CLOSE_S, MESSAGE_BYTES_MAX, Pipe, PipeLost, open_client_pipe, open_server_pipe, tune

SIZES = (0, 1, 125, 126, 65535, 65536, MESSAGE_BYTES_MAX)


@asynccontextmanager
async def sockets():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    near = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    far = await listeners[0].accept()
    try:
        yield near, far
    finally:
        for each in (near, far, *listeners):
            await each.aclose()


async def end_of(action) -> str:
    """Repeat until the pipe says that it ended."""
    while True:
        try:
            await action()
        except (PipeLost, PeerFault) as ended:
            return str(ended)


async def request_head(stream: trio.SocketStream) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await stream.receive_some()
    return head


@asynccontextmanager
async def pipes():
    async with sockets() as (near, far), trio.open_nursery() as nursery:
        made: list[Pipe] = []
        done = trio.Event()

        async def serve(task_status) -> None:
            head = await request_head(far)
            async with open_server_pipe(far, head) as pipe:
                made.append(pipe)
                task_status.started()
                await done.wait()

        async def dial(task_status) -> None:
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []) as pipe:
                made.append(pipe)
                task_status.started()
                await done.wait()

        async with trio.open_nursery() as starting:
            starting.start_soon(nursery.start, serve)
            starting.start_soon(nursery.start, dial)
        server, client = sorted(made, key=lambda pipe: pipe.is_client)
        yield client, server
        done.set()


async def test_messages_of_every_frame_size_cross_both_ways() -> None:
    async with pipes() as (client, server):
        for size in SIZES:
            message = os.urandom(size)
            for source, target in ((client, server), (server, client)):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(source.send, message)
                    assert await target.receive() == message


async def test_our_client_speaks_with_the_unchanged_library_as_server() -> None:
    async def echo(request: trio_websocket.WebSocketRequest) -> None:
        connection = await request.accept(subprotocol="hivemesh.v1")
        while True:
            try:
                await connection.send_message(await connection.get_message())
            except trio_websocket.ConnectionClosed:
                return

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = trio_websocket.WebSocketServer(echo, listeners, max_message_size=MESSAGE_BYTES_MAX)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        stream = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
        async with open_client_pipe(stream, "127.0.0.1", "/", []) as pipe:
            for size in SIZES:
                message = os.urandom(size)
                await pipe.send(message)
                assert await pipe.receive() == message
            await pipe.aclose()
        nursery.cancel_scope.cancel()


async def test_our_server_speaks_with_the_unchanged_library_as_client() -> None:
    """Its random masks are undone, also where one message comes in many reads."""
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def serve() -> None:
            head = await request_head(far)
            async with open_server_pipe(far, head) as pipe:
                while True:
                    try:
                        await pipe.send(await pipe.receive())
                    except PipeLost:
                        return

        nursery.start_soon(serve)
        connection = await trio_websocket.wrap_client_stream(
            nursery, near, "127.0.0.1", "/", subprotocols=["hivemesh.v1"], max_message_size=MESSAGE_BYTES_MAX
        )
        for size in SIZES:
            message = os.urandom(size)
            await connection.send_message(message)
            assert await connection.get_message() == message
        await connection.aclose()


async def test_a_mask_of_zeros_is_what_a_client_sends() -> None:
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def dial() -> None:
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []) as pipe:
                await pipe.send(b"abc")
                await trio.sleep_forever()

        nursery.start_soon(dial)
        key = next(
            line.split(b": ")[1] for line in (await request_head(far)).split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key")
        )
        accept = trio_websocket._impl.wsproto.utilities.generate_accept_token(key)
        await far.send_all(
            b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        received = b""
        while len(received) < 9:
            received += await far.receive_some()
        assert received == b"\x82\x83\0\0\0\0abc"
        nursery.cancel_scope.cancel()


async def test_too_much_and_text_are_the_peers_fault() -> None:
    async with pipes() as (client, server):
        with trio.move_on_after(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, bytes(MESSAGE_BYTES_MAX + 1))
                with pytest.raises(PeerFault, match="overlong"):
                    await server.receive()
    async with pipes() as (client, server):
        await client._wire.send_all(b"\x81\x84\0\0\0\0text")
        with pytest.raises(PeerFault, match="text"):
            await server.receive()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x82",
        b"\xff" * 40,
        b"\x82\x01a",
        b"\x82\xff" + b"\x7f" + b"\xff" * 7 + bytes(4),
        b"\x82\xff" + (2 << 30).to_bytes(8, "big") + bytes(100),
        b"\x88\x81\0\0\0\0a",
        b"\x81\x82\0\0\0\0\xff\xfe",
        b"\x80\x80\0\0\0\0",
        b"\x89\xfe\0\x80" + bytes(132),
        b"\x02\x81\0\0\0\0a\x80\x81\0\0\0\0b",
        b"\xc2\x81\0\0\0\0a",
        b"\x82\xfe\0\x01\0\0\0\0a",
    ],
    ids=range(12),
)
async def test_broken_websocket_frames_end_the_pipe_and_nothing_else(garbage: bytes) -> None:
    """O-T2: half a frame, a bad mask, a length of 2 GiB, a bad close, text that is not UTF-8."""
    async with pipes() as (client, server):
        await client._wire.send_all(garbage)
        client.abort()
        with trio.fail_after(3):
            assert await end_of(server.receive)
            assert await end_of(partial(server.send, bytes(1000)))


async def test_a_ping_is_answered_with_the_next_message_and_never_holds_the_reader() -> None:
    async with pipes() as (client, server):
        await client._wire.send_all(b"\x89\x81\0\0\0\0a" * 50 + b"\x89\x81\0\0\0\0z" + b"\x8a\x80\0\0\0\0")
        await client.send(b"question")
        assert await server.receive() == b"question"
        await server.send(b"answer")
        received = b""
        while len(received) < 11:
            received += await client._wire.read()
        assert received == b"\x8a\x01z\x82\x06answer"


async def test_bytes_that_come_with_the_upgrade_are_not_lost() -> None:
    """A fast server's first message may be in one packet with its answer."""
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def serve() -> None:
            key = next(
                line.split(b": ")[1] for line in (await request_head(far)).split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key")
            )
            accept = trio_websocket._impl.wsproto.utilities.generate_accept_token(key)
            answer = b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + accept
            await far.send_all(answer + b"\r\nSec-WebSocket-Protocol: hivemesh.v1\r\n\r\n\x82\x01a\x82\x02b")
            await trio.sleep(0.05)
            await far.send_all(b"c")

        nursery.start_soon(serve)
        with trio.fail_after(5):
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []) as pipe:
                assert [await pipe.receive(), await pipe.receive()] == [b"a", b"bc"]


async def test_closing_a_peer_that_never_answers_is_bounded() -> None:
    """O-T3: the peer ignores our close and keeps TCP open."""
    async with pipes() as (_, server):
        server._wire._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        began = trio.current_time()
        await server.aclose()
        await server.aclose()
        assert trio.current_time() - began < CLOSE_S + 1


async def test_closing_in_order_lets_the_peer_read_what_was_sent() -> None:
    async with pipes() as (client, server):
        await client.send(b"last words")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.aclose)
            assert await server.receive() == b"last words"
            with pytest.raises(PipeLost):
                await server.receive()
        with pytest.raises(PipeLost):
            await client.send(b"")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Unreachable),
        (b"\x15\x03\x01\x00\x02\x02\x16", Unreachable),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno", Refused),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", Refused),
        (b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n", Unreachable),
        (b"HTTP/1.1 101 \r\nUpgrade: \xff\r\nConnection: \xff\r\n\r\n", Unreachable),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000, Unreachable),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Unreachable),
    ],
    ids=range(8),
)
async def test_servers_of_other_kinds_are_typed_errors(answer: bytes, error: type[Exception]) -> None:
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def serve() -> None:
            await request_head(far)
            with suppress(trio.BrokenResourceError):
                await far.send_all(answer)
                await far.send_eof()

        nursery.start_soon(serve)
        with trio.fail_after(5), pytest.raises(error):
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []):
                raise AssertionError("there is no pipe")
        nursery.cancel_scope.cancel()


async def test_a_refusal_without_end_is_cut() -> None:
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def serve() -> None:
            await request_head(far)
            await far.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 99999999\r\n\r\n")
            with suppress(trio.BrokenResourceError):
                while True:
                    await far.send_all(bytes(65536))

        nursery.start_soon(serve)
        with trio.fail_after(5), pytest.raises(Unreachable):
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []):
                raise AssertionError("there is no pipe")
        nursery.cancel_scope.cancel()


async def test_a_refusal_by_version_says_what_the_other_side_said() -> None:
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def serve() -> None:
            await request_head(far)
            await far.send_all(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 12\r\n\r\nversion 7\x1b[m")
            await trio.sleep_forever()

        nursery.start_soon(serve)
        with trio.fail_after(5), pytest.raises(Refused, match=r"version 7 \[m") as caught:
            async with open_client_pipe(near, "127.0.0.1", "/mesh", []):
                pass
        assert caught.value.reason == "version"
        nursery.cancel_scope.cancel()


async def test_the_system_watches_the_connection_for_us() -> None:
    async with sockets() as (near, _):
        tune(near)
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
