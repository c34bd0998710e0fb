"""The outsiders' server process: one listener, the door, hypercorn behind it, the jail around all of it.

It imports neither the indexer nor git nor any parser of documents, and of the mesh only its base.
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, ConnectionState, Scope

from mesh.base.clock import read_clock
from mesh.base.errors import OurFault, Usage
from query.answer import Desk
from query.door import REFUSED, Admitted, Hosts, Rejected, admit_untrusted, hosts_of
from query.http import make_app
from query.jail import lock_up
from query.register import Register

LISTEN_DEFAULT = "127.0.0.1:8787"
CONNECTIONS_MAX = 128
"""A further connection is closed at once."""
REQUEST_TIME_S = 5.0
"""From the first byte of a request to its last; then the connection is closed."""
IDLE_TIME_S = 15.0
"""A connection that asks nothing for so long is closed."""
SEND_TIME_S = 2.0
"""An answer that is not taken for so long is dropped with its connection."""
STOP_TIME_S = 2.0
"""What is being answered at the end may finish within this."""
LINGER_TIME_S = 0.5
LINGER_BYTES_MAX = 256 << 10
"""Bytes read and thrown away behind a refusal, so that it arrives before the connection is reset."""
RECEIVE_BYTES = 16 << 10
BACKLOG = 128

_LOG = logging.getLogger(__name__)


def run_serve(
    index_dir: Path,
    grants_path: Path,
    listen: str = LISTEN_DEFAULT,
    *,
    on_ready: Callable[[str], None],
    host_names: Sequence[str] = (),
) -> None:
    """Serve outsiders until SIGTERM or SIGINT. Blocking; call it in a process of its own, before threads start.

    The database is opened and the port bound first; then the process gives up every right to other files.

    Args:
        index_dir: Where indexes lie; need not exist yet.
        grants_path: The grants database; its folder exists.
        listen: Address and port; port 0 takes one from the system.
        on_ready: Called once with the address as ``http://HOST:PORT`` when questions are answered.
        host_names: Further names in Host headers that are answered, such as a reverse proxy's.

    Raises:
        Usage: ``listen`` is not an address and a port.
        OurFault: The port is taken, or the database cannot be opened.
    """
    host, port = _split(listen)
    try:
        index_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OurFault(f"{index_dir} cannot be made: {error.strerror}", hint="check the folder's rights") from error
    register = Register(grants_path)
    try:
        listener = _listen(host, port)
    except BaseException:
        register.close()
        raise
    if not hosts_of(host).is_loopback:
        print("hivemesh: reachable from other machines without encryption; put a TLS proxy in front", file=sys.stderr)
    try:
        files = [grants_path.with_name(grants_path.name + ending) for ending in ("", "-wal", "-shm")]
        reason = lock_up([index_dir], files)
        if reason:
            print(f"hivemesh: not locked up: {reason}; this process could open other files", file=sys.stderr)
        shown = f"[{host}]" if ":" in host else host
        ready = partial(on_ready, f"http://{shown}:{listener.getsockname()[1]}")
        trio.run(_serve, listener, register, index_dir, hosts_of(host, host_names), ready)
    finally:
        listener.close()
        register.close()


def _split(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise Usage(f"{listen[:80]!r} is not an address and a port", hint=f"--listen {LISTEN_DEFAULT}")
    return host.strip("[]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OurFault(
            f"{host}:{port} cannot be listened on: {error.strerror or error}", hint="choose another: --listen 127.0.0.1:0"
        ) from error
    return listener


async def _serve(listener: socket.socket, register: Register, index_dir: Path, hosts: Hosts, ready: Callable[[], None]) -> None:
    """Accept until a signal comes, then let what is being answered finish."""
    desk = Desk(register, index_dir, read_clock)
    server = _Server(desk, hosts)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(
                    trio.serve_listeners,
                    server.handle,
                    [trio.SocketListener(trio.socket.from_stdlib_socket(listener))],
                    handler_nursery=connections,
                )
            )
            ready()
            async for _ in signals:
                break
            await server.stop()
            connections.cancel_scope.deadline = trio.current_time() + STOP_TIME_S
            accepting.cancel_scope.cancel()
    desk.close()


class _Server:
    """What every connection shares.

    Args:
        desk: Answers the questions.
        hosts: Which hosts are answered.
    """

    def __init__(self, desk: Desk, hosts: Hosts) -> None:
        app = make_app(desk)
        self._hosts = hosts
        self._app = ASGIWrapper(partial(_shielded, app))
        self._config = Config()
        self._config.include_server_header = False
        self._config.keep_alive_timeout = 10 * IDLE_TIME_S
        self._config.h11_max_incomplete_size = 2 * RECEIVE_BYTES
        self._context = WorkerContext(None)
        self._open = 0

    async def stop(self) -> None:
        """Tell every connection to close when it is idle."""
        await self._context.terminated.set()

    async def handle(self, stream: trio.SocketStream) -> None:
        """Serve one connection; whatever happens to it ends here.

        Args:
            stream: Just accepted; always closed afterwards.
        """
        if self._open >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._open += 1
        try:
            with trio.CancelScope() as whole:
                guarded = _GuardedStream(stream, self._hosts, whole.cancel)
                server = TCPServer(self._app, self._config, self._context, ConnectionState({}), cast("Any", guarded))
                await server.run()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, h11.ProtocolError) as lost:
            _LOG.info("a connection ended early: %s", type(lost.exceptions[0]).__name__)
        finally:
            self._open -= 1
            await trio.aclose_forcefully(stream)


async def _shielded(app: Any, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Run the application with sends that its own end cannot cancel.

    Quart-trio cancels itself as soon as a response is complete, in the middle of the server's clean-up behind the last
    send, and connections that should close stay open.
    """

    async def send_whole(event: ASGISendEvent) -> None:
        with trio.CancelScope(shield=True):
            await send(event)

    await app(scope, receive, send_whole)


class _GuardedStream:
    """The stream hypercorn works on: what comes in has passed the door, and everything has a time limit.

    Args:
        stream: The connection.
        hosts: Which hosts are answered.
        end: Ends everything that is done for this connection. The server behind would wait for its own idle limit after
            the other side has left, and hold the connection's place meanwhile.
    """

    def __init__(self, stream: trio.SocketStream, hosts: Hosts, end: Callable[[], None]) -> None:
        self._stream = stream
        self._hosts = hosts
        self._end = end
        self._held = b""
        self._rejected = False
        self._drained = trio.Event()
        self._closed = trio.Event()
        self.socket = stream.socket

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for the next whole request, written anew; empty when no more comes.

        Raises:
            trio.BrokenResourceError: The connection broke.
            trio.ClosedResourceError: It was closed here.
        """
        del max_bytes
        while not self._rejected:
            verdict = admit_untrusted(self._held, self._hosts) if self._held else None
            if isinstance(verdict, Admitted):
                self._held = self._held[verdict.used :]
                return verdict.data
            if isinstance(verdict, Rejected):
                self._rejected, self._held = True, b""
                return REFUSED
            if not await self._receive_more():
                self._end()
                return b""
        await self._drain()
        await self._closed.wait()
        return b""

    async def _receive_more(self) -> bool:
        """Add to what is held; False where the other side has ended or a time limit is over."""
        if not self._held:
            with trio.move_on_after(IDLE_TIME_S):
                self._held = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            return bool(self._held)
        with trio.move_on_after(REQUEST_TIME_S):
            while admit_untrusted(self._held, self._hosts) is None:
                more = bytes(await self._stream.receive_some(RECEIVE_BYTES))
                if not more:
                    return False
                self._held += more
            return True
        return False

    async def _drain(self) -> None:
        """Throw away what follows a refusal, up to a limit, so that the refusal is not lost to a reset."""
        left = LINGER_BYTES_MAX
        try:
            with trio.move_on_after(LINGER_TIME_S):
                while left > 0 and (more := await self._stream.receive_some(RECEIVE_BYTES)):
                    left -= len(more)
        finally:
            self._drained.set()

    async def send_all(self, data: bytes) -> None:
        """Send, or break the connection when the other side does not take it in time.

        Raises:
            trio.BrokenResourceError: It did not, or is gone.
        """
        with trio.move_on_after(SEND_TIME_S, shield=True):
            await self._stream.send_all(data)
            return
        raise trio.BrokenResourceError

    async def send_eof(self) -> None:
        """Say that no more is sent."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close; behind a refusal, once what the other side still sends was thrown away or its time is over."""
        if self._rejected:
            with trio.move_on_after(2 * LINGER_TIME_S, shield=True):
                await self._drained.wait()
        await trio.aclose_forcefully(self._stream)
        self._closed.set()
