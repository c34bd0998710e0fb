"""The open port: accepts connections and lets members and invited machines in.

A stranger never reaches the websocket library: the head of the request is read and judged here, and whoever is not let
in gets the one 404. Every connection runs under its own guard, so whatever one of them does, the port stays open. A
connection that is let in lives in the listener's tasks until its link ends.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from mesh.base.clock import Now, read_clock
from mesh.base.errors import MeshError, OurFault, PortTaken, Refused
from mesh.doorway import (
    HEAD_BYTES_MAX,
    NOT_FOUND,
    Admission,
    NotLetIn,
    Request,
    read_request_untrusted,
    upgrade_required,
)
from mesh.handshake import Incompatible, Session
from mesh.link import Link, confirm_link, run_link
from mesh.pipe import JOIN_BYTES_MAX, JOIN_PATH, SUBPROTOCOL, Pipe, open_server_pipe, remote_of, tune

HANDSHAKE_S = 5.0
"""From accepting a connection to a link, a pipe or a refusal."""
JOIN_S = 120.0
"""What one joiner may take in all."""
JOINING_MAX = 4
"""Joiners at a time; the next gets the 404."""
LINGER_S = 1.0
LINGER_BYTES_MAX = 256 * 1024
"""What is still read from somebody who was turned away, so that the answer is not lost in a reset."""
BACKLOG = 128
ACCEPT_PAUSE_S = 0.5
"""The wait when the system has no descriptors or memory for one more connection."""

log = logging.getLogger("hivemesh.listener")

_TRANSPORT = (MeshError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a mistake of ours may raise; a stranger who finds one ends a connection with it, not the node."""


class Responder(Protocol):
    """The accepting side of one handshake; :class:`mesh.handshake.Responder` is the one."""

    refusal: bytes | None
    """What to send to a peer that :meth:`finish_untrusted` refused."""

    def accept_untrusted(self, hello: bytes) -> bytes:
        """Take message 1; make message 2."""
        ...

    def finish_untrusted(self, closing: bytes) -> Session:
        """Take message 3; make the session."""
        ...


@dataclass(frozen=True, slots=True)
class Doors:
    """What is behind the port.

    Attributes:
        responder: Makes the accepting side of one handshake.
        join_open: Whether an invite can be used now; only then is there a ``/join``.
        join: Serves one joiner; bounded by JOIN_S, the pipe is closed behind it.
        host_names: Names in lower case under which this machine is advertised.
    """

    responder: Callable[[], Responder]
    join_open: Callable[[], bool]
    join: Callable[[Pipe], Awaitable[None]]
    host_names: Callable[[], Collection[str]]


async def open_listeners(addresses: Sequence[tuple[str, int]]) -> list[trio.SocketListener]:
    """Bind and listen.

    Args:
        addresses: Host and port each; an empty host means every interface, IPv4 and IPv6, under one port; port 0 takes
            a free one.

    Returns:
        One listener a bound address; whoever got them closes them.

    Raises:
        PortTaken: Named with the port.
        OurFault: An address this machine does not have, or a port it may not use.
    """
    listeners: list[trio.SocketListener] = []
    try:
        for host, port in addresses:
            families = (
                [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")] if not host else await _resolve(host)
            )
            chosen = port
            for family, address in families:
                listener = await _listen(family, address, chosen, optional=not host and bool(listeners))
                if listener is not None:
                    listeners.append(listener)
                    chosen = port or listener.socket.getsockname()[1]
    except MeshError:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


async def _resolve(host: str) -> list[tuple[int, str]]:
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OurFault(f"cannot listen on {host}: {error.strerror or error}") from None
    return [(family, str(address[0])) for family, _, _, _, address in found]


async def _listen(family: int, address: str, port: int, *, optional: bool) -> trio.SocketListener | None:
    """Bind one address; None where it is optional and this system has no such family."""
    shown = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    try:
        opened = trio.socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        if optional and error.errno == errno.EAFNOSUPPORT:
            return None
        raise OurFault(f"cannot listen on {shown}: {error.strerror}") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        await opened.bind((address, port))
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} is taken: another program listens on {shown}",
                hint="stop that program, or choose another port with --listen HOST:PORT",
            ) from None
        if optional and error.errno == errno.EADDRNOTAVAIL:
            return None
        raise OurFault(f"cannot listen on {shown}: {error.strerror}") from None
    return trio.SocketListener(opened)


async def run_listener(
    listeners: Sequence[trio.SocketListener],
    doors: Doors,
    links: trio.MemorySendChannel[Link],
    *,
    clock: Callable[[], Now] = read_clock,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled.

    Args:
        listeners: From :func:`open_listeners`; closed on the way out.
        doors: What is behind the port.
        links: Where links go that members opened; while it is full, the next member waits within HANDSHAKE_S.
        clock: Reads both clocks.
        task_status: Started when connections are accepted.

    If cancelled: every connection that came in is reset, and its link's ``closed`` is set.
    """
    port = _Port(doors, links, clock)
    try:
        async with trio.open_nursery() as nursery:
            for listener in listeners:
                nursery.start_soon(port.accept, listener, nursery)
            task_status.started()
    finally:
        for listener in listeners:
            listener.socket.close()


class _Port:
    """The connections of one listener."""

    def __init__(self, doors: Doors, links: trio.MemorySendChannel[Link], clock: Callable[[], Now]) -> None:
        self._doors = doors
        self._links = links
        self._clock = clock
        self._admission = Admission()
        self._knocking: dict[int, trio.CancelScope] = {}
        self._joining = 0

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                log.warning("cannot accept a connection: %s", error.strerror)
                await trio.sleep(ACCEPT_PAUSE_S)
            else:
                nursery.start_soon(self._guarded, stream)

    async def _guarded(self, stream: trio.SocketStream) -> None:
        """Serve one connection; nothing it causes gets out, cancellation excepted."""
        remote = remote_of(stream)
        try:
            await self._admit(stream)
        except* _TRANSPORT as group:
            log.debug("connection from %s ended: %s", remote, group.exceptions[0])
        except* _MISTAKES:
            log.exception("a connection from %s was ended by a mistake of this program", remote)
        finally:
            stream.socket.close()

    async def _admit(self, stream: trio.SocketStream) -> None:
        entry = self._admission.enter(str(stream.socket.getpeername()[0]), self._clock().steady_s)
        if entry is None:
            return
        if entry.evicted in self._knocking:
            self._knocking.pop(entry.evicted).cancel()
        scope = self._knocking[entry.number] = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_S)

        def let_in(more_s: float) -> None:
            self._knocking.pop(entry.number, None)
            self._admission.leave(entry.number)
            scope.deadline = trio.current_time() + more_s

        try:
            with scope:
                tune(stream)
                await self._answer(stream, let_in)
        finally:
            self._knocking.pop(entry.number, None)
            self._admission.leave(entry.number)

    async def _answer(self, stream: trio.SocketStream, let_in: Callable[[float], None]) -> None:
        head = await _read_head(stream)
        try:
            request = read_request_untrusted(head, self._doors.host_names(), SUBPROTOCOL)
            if request.path == JOIN_PATH:
                await self._join(stream, head, let_in)
            else:
                await self._link(stream, head, request, let_in)
        except NotLetIn:
            await _turn_away(stream, NOT_FOUND)

    async def _join(self, stream: trio.SocketStream, head: bytes, let_in: Callable[[float], None]) -> None:
        if not self._doors.join_open() or self._joining >= JOINING_MAX:
            raise NotLetIn("no invite is open")
        self._joining += 1
        try:
            async with open_server_pipe(stream, head, bytes_max=JOIN_BYTES_MAX) as pipe:
                let_in(JOIN_S)
                try:
                    await self._doors.join(pipe)
                finally:
                    await pipe.aclose()
        finally:
            self._joining -= 1

    async def _link(
        self, stream: trio.SocketStream, head: bytes, request: Request, let_in: Callable[[float], None]
    ) -> None:
        responder = self._doors.responder()
        try:
            reply = responder.accept_untrusted(request.hello)
        except Incompatible as refused:
            await _turn_away(stream, upgrade_required(refused.message))
            return
        except MeshError as refused:
            raise NotLetIn(refused.message) from None
        async with open_server_pipe(stream, head) as pipe:
            await pipe.send(reply)
            try:
                session = responder.finish_untrusted(await pipe.receive())
            except Refused:
                # Whoever holds a gate key and a certificate learns why it is not let in, under the handshake's seal.
                if responder.refusal is not None:
                    await pipe.send(responder.refusal)
                    await pipe.aclose()
                raise
            link = await confirm_link(pipe, session, clock=self._clock)
            with suppress(trio.BrokenResourceError):
                await self._links.send(link)
                let_in(math.inf)
                await run_link(link)


async def _read_head(stream: trio.SocketStream) -> bytes:
    """Read up to the empty line behind a request's headers, a little too much, or the end."""
    head = b""
    while len(head) <= HEAD_BYTES_MAX and b"\r\n\r\n" not in head:
        more = await stream.receive_some(HEAD_BYTES_MAX)
        if not more:
            break
        head += more
    return head


async def _turn_away(stream: trio.SocketStream, answer: bytes) -> None:
    """Answer, then read on a little, because closing with unread bytes would reset the answer away."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(LINGER_S):
        await stream.send_all(answer)
        await stream.send_eof()
        left = LINGER_BYTES_MAX
        while left > 0 and (more := await stream.receive_some(HEAD_BYTES_MAX)):
            left -= len(more)
