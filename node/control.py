"""The node's side of the control socket: one request a connection, typed arguments, events, one answer.

``node.wire`` says what goes over it. Whatever a caller sends, and whatever breaks in a verb, ends at most that one
connection.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import trio

from mesh.base.errors import Damaged, MeshError, OurFault, Refused
from node.calls import (
    NAME_CHARS_MAX,
    SIGNALS_MAX,
    Call,
    Caller,
    Request,
    Then,
    error_line,
    json_line,
    parse_request_untrusted,
    post_signal_untrusted,
)
from node.faults import mesh_error_in
from node.wire import REQUEST_BYTES_MAX, SIGNAL_BYTES_MAX, peer_of

CONNECTIONS_MAX = 64
"""Callers served at once; the next is told so and let go."""
REQUEST_S = 10.0
"""How long a caller may take to send its request."""
RECEIVE_BYTES = 16 * 1024

_log = logging.getLogger("node.control")


VerbHandler = Callable[[Call], Awaitable[object]]
"""What a verb does; it returns what JSON can hold and raises only the product's errors on purpose."""
Admit = Callable[[str, Caller], None]
"""Judges a caller before its verb runs; raises Refused."""


@asynccontextmanager
async def open_control_socket(address: str) -> AsyncIterator[trio.SocketListener]:
    """Listen on the control socket; only this user can open it from the moment it exists.

    A socket file that a killed node left is removed, but only once it has refused a connection. At the end the file
    is removed if it is still ours.

    Args:
        address: From ``node.lock.choose_control_address``.

    Raises:
        Refused: Another node answers on it.
        Damaged: Something that is no socket lies there.
        OurFault: It cannot be bound.
    """
    _clear_stale(address)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(address)
        listening.listen(CONNECTIONS_MAX)
    except OSError as error:
        listening.close()
        raise OurFault(f"the control socket {address} cannot be bound: {error.strerror}", hint="check the folder's rights and the disk") from None
    finally:
        os.umask(before)
    listening.setblocking(False)
    inode = os.stat(address).st_ino
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    try:
        yield listener
    finally:
        with trio.CancelScope(shield=True):
            await listener.aclose()
        try:
            if os.stat(address).st_ino == inode:
                os.unlink(address)
        except FileNotFoundError:
            pass


def _clear_stale(address: str) -> None:
    try:
        status = os.lstat(address)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise Damaged(f"{address} is in the way and is no socket", path=address, hint="move it away, then start again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            os.unlink(address)
            return
        except OSError:
            pass
    raise Refused(f"another node answers on {address}", reason="already_running", hint="see it with `hivemesh status`, stop it with `hivemesh down`")


async def run_control(listener: trio.SocketListener, verbs: Mapping[str, VerbHandler], admit: Admit) -> None:
    """Serve callers until cancelled.

    Args:
        listener: From ``open_control_socket``; closed at the end.
        verbs: What each verb does, by its name.
        admit: Judges a caller before its verb runs.

    If cancelled, verbs that run are cancelled and their callers see the connection close.
    """
    served = _Served(verbs, admit)
    await trio.serve_listeners(served.serve, [listener])


class _Served:
    """The connections that are open now."""

    def __init__(self, verbs: Mapping[str, VerbHandler], admit: Admit) -> None:
        self._verbs = verbs
        self._admit = admit
        self._count = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one caller; nothing but a cancellation leaves here."""
        self._count += 1
        try:
            async with stream:
                await self._converse(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            # The caller went away in the middle, or reads nothing: there is nobody to tell.
            _log.debug("a caller left before its answer")
        except* Exception:
            _log.exception("a control connection failed")
        finally:
            self._count -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        uid, pid = peer_of(stream.socket)  # type: ignore[arg-type]
        if uid not in (os.getuid(), 0):
            _log.warning("uid %d tried to use the control socket", uid)
            return
        try:
            if self._count > CONNECTIONS_MAX:
                raise Refused(f"the node already serves {CONNECTIONS_MAX} commands", reason="limit", hint="end some of them, then try again")
            with trio.fail_after(REQUEST_S):
                line, rest = await _read_line(stream)
            if line is None:
                return
            request = parse_request_untrusted(line)
            handler = self._verbs.get(request.verb)
            if handler is None:
                raise Refused(
                    f"the running node does not know {request.verb[:NAME_CHARS_MAX]!r}",
                    reason="version",
                    hint="restart the node: hivemesh down, then hivemesh up -d",
                )
        except MeshError as error:
            await _say_last(stream, error_line(error))
            return
        await self._run_verb(stream, rest, request, handler, Caller(uid, pid))

    async def _run_verb(self, stream: trio.SocketStream, rest: bytes, request: Request, handler: VerbHandler, caller: Caller) -> None:
        post, signals = trio.open_memory_channel[str](SIGNALS_MAX)
        call = Call(request, caller, stream, signals)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_signals, stream, rest, post, nursery.cancel_scope)
            answer, act = await self._answer(call, handler)
            try:
                await call.finish(answer)
            finally:
                act()
            nursery.cancel_scope.cancel()

    async def _answer(self, call: Call, handler: VerbHandler) -> tuple[dict[str, object], Callable[[], None]]:
        """Run a verb; turn whatever comes of it into an answer that JSON can hold, and what is to be done behind it."""
        then = Then(None, _nothing)
        failure: BaseExceptionGroup[Exception] | None = None
        try:
            self._admit(call.verb, call.caller)
            result = await handler(call)
            then = result if isinstance(result, Then) else Then(result, _nothing)
            json_line({"result": then.result})
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            raise
        except* Exception as group:  # The node outlives whatever breaks in a verb.
            failure = group
        if failure is None:
            return {"result": then.result}, then.act
        known = mesh_error_in(failure)
        if known is None:
            _log.error("%s failed", call.verb, exc_info=failure)
            known = OurFault(f"{call.verb} failed inside the node", hint="the log says more: hivemesh doctor names the file")
        elif isinstance(known, Refused):
            _log.info("%s refused (%s): %s", call.verb, known.reason, known.message)
        return error_line(known), _nothing


def _nothing() -> None:
    """What is to be done behind most answers."""


async def _read_line(stream: trio.SocketStream) -> tuple[bytes | None, bytes]:
    """Read up to the first line's end: the line, or None where the caller sent none, and what came behind it."""
    held = bytearray()
    while True:
        piece = await stream.receive_some(RECEIVE_BYTES)
        if not piece:
            return None, b""
        at = piece.find(b"\n")
        held += piece if at < 0 else piece[:at]
        if len(held) > REQUEST_BYTES_MAX:
            raise Refused(f"the request is longer than {REQUEST_BYTES_MAX} bytes", reason="limit")
        if at >= 0:
            return bytes(held), bytes(piece[at + 1 :])


async def _read_signals(stream: trio.SocketStream, rest: bytes, post: trio.MemorySendChannel[str], scope: trio.CancelScope) -> None:
    """Hand the caller's signals to the verb, and cancel it once the caller is gone or talks nonsense."""
    held = bytearray(rest)
    try:
        while len(held) <= SIGNAL_BYTES_MAX:
            *lines, left = bytes(held).split(b"\n")
            for line in lines:
                post_signal_untrusted(line, post)
            held = bytearray(left)
            piece = await stream.receive_some(RECEIVE_BYTES)
            if not piece:
                break
            held += piece
    except trio.BrokenResourceError:
        pass
    scope.cancel()


async def _say_last(stream: trio.SocketStream, answer: Mapping[str, object]) -> None:
    with trio.move_on_after(1.0):
        await stream.send_all(json_line(answer))
