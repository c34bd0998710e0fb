"""One websocket as a pipe of whole messages: the only room that knows trio_websocket and what is under it.

Three things here are ours, because the library's own would not do:

* *Framing.* The library does the upgrade; from then on :mod:`mesh.websocket` cuts the socket's bytes into messages, and
  whoever receives is the reader, so nothing waits in a queue between. A client must mask what it sends, so that no
  script in a browser can choose the bytes on the wire (RFC 6455, section 10.3). What travels here is ciphertext under a
  key that no outsider knows, so the mask is all zeros: valid, understood by every server, and free.
* *Guarding.* The library's reader runs under a guard, because a stranger can make it raise nearly anything, and an
  exception there would end the nursery of every other connection. It sees no byte behind the upgrade.
* *Closing.* It takes at most CLOSE_S whatever the peer does, then the socket is reset.

Per-message compression is never offered or accepted: secrets must not be compressed beside chosen text.

Source: docs/decisions/0010-link.md and 0018-link-speed.md; docs/PROTOCOL.md, section 4.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import cast

import h11
import trio
import trio_websocket
from wsproto.utilities import ProtocolError

from mesh.base.crypto import STREAM_OVERHEAD_BYTES
from mesh.base.errors import MeshError, PeerFault, Refused, Unreachable
from mesh.frames import PAYLOAD_BYTES_MAX
from mesh.websocket import BINARY, CLOSE, NORMAL_CLOSURE, PING, PONG, TEXT, FrameBuffer, frame_head

SUBPROTOCOL = "hivemesh.v1"
MESH_PATH = "/mesh"
JOIN_PATH = "/join"
HELLO_HEADER = "Hivemesh-Hello"
MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX + STREAM_OVERHEAD_BYTES
"""The largest message of a link; a larger one ends it."""
JOIN_BYTES_MAX = 64 * 1024
"""The largest message of a joiner."""
CLOSE_S = 2.0
RECEIVE_BUFFER_BYTES = 192 * 1024
"""A whole large message at a time: reading 4 KiB at a time, as the library would, costs three times as much."""
FRAMES_A_TURN_MAX = 8
"""Frames handed out of one read before other tasks get their turn."""
USER_TIMEOUT_MS = 30_000
KEEPALIVE_S = 15
REFUSAL_CHARS_MAX = 200
UPGRADE_BYTES_MAX = 256 * 1024
"""What is read before the upgrade is done; the library would gather an endless refusal in memory."""

_HEAD_END = b"\r\n\r\n"
_SWITCHING = b"HTTP/1.1 101"

_LIBRARY_FAULTS = (
    trio_websocket.HandshakeError,
    trio_websocket.ConnectionClosed,
    ProtocolError,
    h11.ProtocolError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    OSError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What the library raises when a stranger feeds it: its own families, and the accidents of code that expects friends."""


class PipeLost(Unreachable):
    """The connection ended."""

    def __init__(self, message: str = "the connection ended") -> None:
        super().__init__(message)


class _Wire(trio.abc.Stream):
    """The socket. What the library reads of it ends with the head of the upgrade; the rest is for :meth:`read`.

    Args:
        stream: Connected.
        request: Of an accepting side: the head of the request, which is all the library gets to read.
    """

    def __init__(self, stream: trio.SocketStream, request: bytes = b"") -> None:
        self._stream = stream
        self._request = request
        self._head = b""
        self._sending = trio.StrictFIFOLock()
        self._upgraded = bool(request)
        self.behind_head = b""
        self.received_bytes = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Read for the library; once it has seen the whole head of a successful upgrade this never returns."""
        if self._request:
            request, self._request = self._request, b""
            return request
        if self._upgraded:
            await trio.sleep_forever()
        data = await self.read(max_bytes)
        self._head += data
        if len(self._head) > UPGRADE_BYTES_MAX:
            raise trio.BrokenResourceError("an answer without end")
        end = self._head.find(_HEAD_END)
        if end < 0 or not self._head.startswith(_SWITCHING):
            return data
        self._upgraded = True
        self.behind_head = self._head[end + len(_HEAD_END) :]
        return data[: len(data) - len(self.behind_head)]

    async def read(self, max_bytes: int | None = RECEIVE_BUFFER_BYTES) -> bytes:
        """Read what there is; empty at the end."""
        data = bytes(await self._stream.receive_some(max_bytes))
        self.received_bytes += len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        async with self._sending:
            await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def abort(self) -> None:
        """Reset the connection now; what was not sent is lost."""
        with suppress(OSError):
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._stream.socket.close()


class _ReaderGuard:
    """Stands in for the nursery the library wants: starts its reader so that no failure of it gets out.

    Args:
        nursery: Where it really runs.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.upgrading = trio.CancelScope()
        self.fault: BaseException | None = None

    def start_soon(self, reader: Callable[[], Awaitable[None]]) -> None:
        """Start the library's reader."""
        self._nursery.start_soon(self._run, reader)

    async def _run(self, reader: Callable[[], Awaitable[None]]) -> None:
        try:
            await reader()
        except _LIBRARY_FAULTS as fault:
            self.fault = fault
        finally:
            # Without a reader the library would wait for the end of the upgrade for ever.
            self.upgrading.cancel()


class Pipe:
    """Whole binary messages to and from one peer, in order. Made by the two functions below.

    Attributes:
        remote: The peer's address and port, as text.
        is_client: Whether this side dialled.
    """

    def __init__(self, wire: _Wire, remote: str, *, is_client: bool, bytes_max: int) -> None:
        self._wire = wire
        self._frames = FrameBuffer(masked=not is_client, bytes_max=bytes_max, first=wire.behind_head)
        self._turn = 0
        self._pong = b""
        self._closing = self._peer_closed = False
        self.remote = remote
        self.is_client = is_client

    @property
    def received_bytes(self) -> int:
        """How many bytes came so far, of whole messages or not."""
        return self._wire.received_bytes

    async def send(self, message: bytes) -> None:
        """Send one message; waits while the peer does not take it.

        Args:
            message: At most MESSAGE_BYTES_MAX bytes.

        Raises:
            PipeLost: The connection ended.

        If cancelled: the message may be half sent; the pipe must then be closed.
        """
        if self._closing or self._peer_closed:
            raise PipeLost
        pong, self._pong = self._pong, b""
        try:
            await self._wire.send_all(pong + frame_head(BINARY, len(message), masked=self.is_client) + message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise PipeLost from None

    async def receive(self) -> bytes:
        """Wait for the next message; one task at a time.

        Returns:
            At most as many bytes as the pipe was opened for.

        Raises:
            PipeLost: The connection ended.
            PeerFault: The peer sent text, too much, or what is no frame.

        If cancelled: nothing is lost.
        """
        while not self._peer_closed:
            kind, body = await self._frame()
            if kind == BINARY:
                return body
            if kind == TEXT:
                raise PeerFault("the peer sent text where only bytes are spoken", peer=self.remote)
            if kind == PING:
                # It goes out before the next message, so that the reader never waits for the peer; only the newest counts.
                self._pong = frame_head(PONG, len(body), masked=self.is_client) + body
            elif kind == CLOSE:
                self._peer_closed = True
                await self._say_close()
        raise PipeLost

    async def _frame(self) -> tuple[int, bytes]:
        self._turn = (self._turn + 1) % FRAMES_A_TURN_MAX
        await (trio.lowlevel.checkpoint_if_cancelled if self._turn else trio.lowlevel.checkpoint)()
        while (frame := self._frames.next_untrusted()) is None:
            try:
                data = await self._wire.read()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise PipeLost from None
            if not data:
                raise PipeLost
            self._frames.add(data)
        return frame

    async def _say_close(self) -> None:
        """Send our close once, for at most CLOSE_S: nothing follows it either way."""
        if self._closing:
            return
        self._closing = True
        with trio.move_on_after(CLOSE_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._wire.send_all(frame_head(CLOSE, len(NORMAL_CLOSURE), masked=self.is_client) + NORMAL_CLOSURE)

    async def aclose(self) -> None:
        """Close in order, for at most CLOSE_S, then by force; a second call does nothing.

        If cancelled: the connection is reset at once.
        """
        try:
            with trio.move_on_after(CLOSE_S), suppress(PipeLost, PeerFault, trio.BusyResourceError):
                first = not self._closing
                await self._say_close()
                while first:
                    await self.receive()
        finally:
            self.abort()

    def abort(self) -> None:
        """Reset the connection; whoever waits in ``send`` or ``receive`` gets PipeLost."""
        self._wire.abort()


def tune(stream: trio.SocketStream) -> None:
    """Set what the system should watch for us. trio itself sets TCP_NODELAY and a TCP_NOTSENT_LOWAT of 16 KiB.

    Without the user timeout a peer that vanished is noticed only after many minutes of retransmission.
    """
    for level, option, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_S),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        if hasattr(socket, option):
            with suppress(OSError):
                stream.setsockopt(level, getattr(socket, option), value)


def remote_of(stream: trio.SocketStream) -> str:
    """Write a peer's address and port; a connection that is gone already has none."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "unknown"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@asynccontextmanager
async def _open_pipe(
    stream: trio.SocketStream,
    request: bytes,
    upgrade: Callable[[_ReaderGuard, _Wire], Awaitable[trio_websocket.WebSocketConnection]],
    bytes_max: int,
) -> AsyncIterator[Pipe]:
    """Run the library's reader while the pipe is in use.

    An error of ours passes as it is, not in a group: it is taken around the nursery.
    """
    failure: MeshError | None = None
    remote = remote_of(stream)
    wire = _Wire(stream, request)
    async with trio.open_nursery() as nursery:
        guard = _ReaderGuard(nursery)
        try:
            connection = None
            with guard.upgrading, suppress(*_LIBRARY_FAULTS):
                connection = await upgrade(guard, wire)
            if connection is None:
                raise _refusal(guard.fault, remote)
            yield Pipe(wire, remote, is_client=not request, bytes_max=bytes_max)
        except MeshError as error:
            failure = error
        finally:
            wire.abort()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _refusal(fault: BaseException | None, remote: str) -> MeshError:
    """Say why there is no pipe."""
    if not isinstance(fault, trio_websocket.ConnectionRejected):
        return PipeLost(f"{remote} does not speak this protocol")
    if fault.status_code == 426:
        text = bytes(fault.body or b"")[:REFUSAL_CHARS_MAX].decode("ascii", errors="replace")
        said = "".join(c if c.isprintable() else " " for c in text).strip()
        return Refused(f"{remote}: {said}", reason="version", hint="update hivemesh on the older machine")
    return Refused(f"{remote} does not let this machine in", reason="not_let_in")


def open_client_pipe(
    stream: trio.SocketStream,
    host: str,
    path: str,
    headers: list[tuple[bytes, bytes]],
    *,
    bytes_max: int = MESSAGE_BYTES_MAX,
) -> AbstractAsyncContextManager[Pipe]:
    """Ask the other end of a connection for a pipe.

    Args:
        stream: Connected; it is closed on the way out.
        host: What the Host header says.
        path: What the request asks for.
        headers: More headers.
        bytes_max: The largest message to take.

    Returns:
        A context manager that gives the pipe. There is no limit of time: the caller sets one.

    Raises:
        Refused: The other side answered, but not with an upgrade.
        PipeLost: It does not speak this protocol, or went away.
    """

    async def upgrade(guard: _ReaderGuard, wire: _Wire) -> trio_websocket.WebSocketConnection:
        return await trio_websocket.wrap_client_stream(
            cast("trio.Nursery", guard),
            cast("trio.SocketStream", wire),
            host,
            path,
            subprotocols=[SUBPROTOCOL],
            extra_headers=headers,
        )

    return _open_pipe(stream, b"", upgrade, bytes_max)


def open_server_pipe(
    stream: trio.SocketStream, request: bytes, *, bytes_max: int = MESSAGE_BYTES_MAX
) -> AbstractAsyncContextManager[Pipe]:
    """Accept a request for a pipe.

    Args:
        stream: Connected; it is closed on the way out.
        request: The head of the request, read from the stream and found good, with nothing behind it.
        bytes_max: The largest message to take.

    Returns:
        A context manager that gives the pipe. There is no limit of time: the caller sets one.

    Raises:
        PipeLost: The other side went away.
    """

    async def upgrade(guard: _ReaderGuard, wire: _Wire) -> trio_websocket.WebSocketConnection:
        asked = await trio_websocket.wrap_server_stream(cast("trio.Nursery", guard), cast("trio.SocketStream", wire))
        return await asked.accept(subprotocol=SUBPROTOCOL)

    return _open_pipe(stream, request, upgrade, bytes_max)
