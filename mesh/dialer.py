"""Reach a member at one of the addresses it is said to have.

An address proves nothing. All are tried, a little apart; the first one behind which the handshake proves the expected
key is the link, the others are dropped. No proxy is ever used and no redirect followed. What a name resolves to is judged
like an address, so a name that another machine stated leads nowhere an address of it could not.
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import trio

from mesh.base.clock import Now, read_clock
from mesh.base.errors import MeshError, PeerFault, Refused, Unreachable, Usage
from mesh.doorway import write_hello
from mesh.handshake import Session
from mesh.link import Link, confirm_link, run_link
from mesh.pipe import (
    HELLO_HEADER,
    JOIN_BYTES_MAX,
    JOIN_PATH,
    MESH_PATH,
    Pipe,
    PipeLost,
    open_client_pipe,
    tune,
)

ADDRESSES_MAX = 8
"""More addresses of one machine are not tried."""
STAGGER_S = 0.25
"""The head start of each address over the next; none is waited for once it failed."""
DIAL_S = 10.0
"""For all addresses together."""
JOIN_DIAL_S = 10.0
ADDRESS_CHARS_MAX = 280
RESOLVED_MAX = 4
"""Addresses of one stated name that are tried, one after the other."""


class Initiator(Protocol):
    """The dialling side of one handshake; :class:`mesh.handshake.Initiator` is the one."""

    hello: bytes

    def answer_untrusted(self, reply: bytes) -> tuple[bytes, Session]:
        """Take message 2; make message 3 and the session."""
        ...


class Caution(Protocol):
    """Says which addresses may be tried that other machines stated, and learns which of them failed."""

    def allows(self, address: str) -> bool:
        """Whether to connect to this address, ``IP:PORT``, now; counts as a try where it says yes."""
        ...

    def failed(self, address: str) -> None:
        """Note that no key was proved behind it."""
        ...


def parse_address(text: str, *, port: int | None = None) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[IPV6]:PORT``, or a host alone where there is a usual port.

    Args:
        text: At most ADDRESS_CHARS_MAX characters.
        port: What to take where none is written.

    Returns:
        Host, without brackets, and port.

    Raises:
        Usage: It is neither.
    """
    host, colon, digits = text.rpartition(":")
    if text.startswith("["):
        closing = text.find("]")
        host, colon, digits = text[1:closing], text[closing + 1 : closing + 2], text[closing + 2 :]
    elif text.count(":") != 1:
        host, colon, digits = text, "", ""
    number = (
        int(digits)
        if digits.isascii() and digits.isdigit() and len(digits) <= 5
        else port
        if not colon
        else None
    )
    if (
        not host
        or number is None
        or not 0 < number < 65536
        or len(text) > ADDRESS_CHARS_MAX
        or not host.isprintable()
    ):
        raise Usage(f"{text[:80]!r} is not an address", hint="write HOST:PORT, or [ADDRESS]:PORT for IPv6")
    return host, number


def is_usable(host: str) -> bool:
    """Whether a host can be dialled at all: a link-local IPv6 address without its interface cannot."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return True
    if isinstance(address, ipaddress.IPv6Address) and address.is_link_local:
        return bool(address.scope_id) and address.scope_id != "0"
    return not (address.is_unspecified or address.is_multicast)


async def run_dial(
    addresses: Sequence[str],
    initiator: Callable[[], Initiator],
    *,
    clock: Callable[[], Now] = read_clock,
    caution: Caution | None = None,
    task_status: trio.TaskStatus[Link],
) -> None:
    """Link to a member and run the link until it ends: ``link = await nursery.start(run_dial, addresses, initiator)``.

    Args:
        addresses: ``HOST:PORT`` each, the likeliest first; at most ADDRESSES_MAX are tried, within DIAL_S together.
        initiator: Makes the dialling side of one handshake; one is made for each address.
        clock: Reads both clocks.
        caution: Judges addresses that other machines stated; None where a person gave them.
        task_status: Started with the link, once both sides have proved their keys.

    Raises:
        Refused: Somebody answered, but is not whom we expected or does not let this machine in.
        Unreachable: No address answered. Neither is raised once the link was handed out.

    If cancelled: every connection is reset; a link handed out is closed.
    """
    race = _Race(initiator, clock, caution, task_status)
    targets: list[tuple[str, int]] = []
    for text in addresses[:ADDRESSES_MAX]:
        try:
            host, port = parse_address(text)
        except Usage as wrong:
            race.faults.append(Unreachable(wrong.message))
            continue
        if is_usable(host):
            targets.append((host, port))
        else:
            race.faults.append(Unreachable(f"{text} cannot be dialled from here"))
    async with trio.open_nursery() as nursery:
        deadline = trio.current_time() + DIAL_S
        for target in targets:
            if race.won:
                break
            over = trio.Event()
            nursery.start_soon(race.try_one, target, deadline, over)
            with trio.move_on_after(STAGGER_S):
                await over.wait()
    if not race.won:
        raise _verdict(race.faults)


class _Race:
    """The attempts at one member; the first proof wins."""

    def __init__(
        self,
        initiator: Callable[[], Initiator],
        clock: Callable[[], Now],
        caution: Caution | None,
        task_status: trio.TaskStatus[Link],
    ) -> None:
        self._initiator = initiator
        self._clock = clock
        self._caution = caution
        self._task_status = task_status
        self._scopes: set[trio.CancelScope] = set()
        self.faults: list[MeshError] = []
        self.won = False

    async def try_one(self, target: tuple[str, int], deadline: float, over: trio.Event) -> None:
        """Try one address; the winner runs its link in here."""
        with trio.CancelScope(deadline=deadline) as scope:
            self._scopes.add(scope)
            try:
                await self._link(target, scope, over)
            except MeshError as fault:
                self._failed(target, fault)
            finally:
                self._scopes.discard(scope)
                over.set()
        if scope.cancelled_caught and not self.won:
            self._failed(target, Unreachable(f"{_shown(*target)} did not answer"))

    def _failed(self, target: tuple[str, int], fault: MeshError) -> None:
        self.faults.append(fault)
        if self._caution is not None and not isinstance(fault, _NotTried):
            self._caution.failed(_shown(*target))

    async def _link(self, target: tuple[str, int], scope: trio.CancelScope, over: trio.Event) -> None:
        initiator = self._initiator()
        headers = [(HELLO_HEADER.encode(), write_hello(initiator.hello))]
        stream = await self._connect(*target)
        async with open_client_pipe(stream, _host_of(stream), MESH_PATH, headers) as pipe:
            closing, session = initiator.answer_untrusted(await pipe.receive())
            await pipe.send(closing)
            try:
                link = await confirm_link(pipe, session, clock=self._clock)
            except PipeLost:
                raise Unreachable(
                    f"{pipe.remote} ended the connection when it saw who this machine is",
                    hint="look on that machine whether this one is still a member",
                ) from None
            if self.won:
                return
            self.won = True
            for other in self._scopes - {scope}:
                other.cancel()
            scope.deadline = math.inf
            over.set()
            self._task_status.started(link)
            await run_link(link)


    async def _connect(self, host: str, port: int) -> trio.SocketStream:
        """Connect with the caution there is: to the first address of a name that may be tried and answers."""
        if self._caution is None:
            return await _connect(host, port)
        fault: MeshError = _NotTried(f"{_shown(host, port)} is not tried now")
        for address in await _resolve(host, port):
            if self._caution.allows(_shown(address, port)):
                try:
                    return await _connect(address, port)
                except Unreachable as failed:
                    fault = failed
                    if address != host:
                        self._caution.failed(_shown(address, port))
        raise fault


class _NotTried(Unreachable):
    """Nothing was connected to, so nothing failed."""


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses a host stands for, at most RESOLVED_MAX; an address stands for itself.

    Raises:
        Unreachable: The name is not known.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{_shown(host, port)}: {_why(error)}") from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:RESOLVED_MAX]
    return [host]


@asynccontextmanager
async def open_join(address: str) -> AsyncIterator[Pipe]:
    """Open a pipe to a machine's ``/join``.

    Args:
        address: ``HOST:PORT``.

    Raises:
        Refused: Somebody answered, but has no open invite.
        Unreachable: Nobody answered within JOIN_DIAL_S, or the address is not one.

    If cancelled: the connection is reset.
    """
    try:
        target = parse_address(address)
    except Usage as wrong:
        raise Unreachable(wrong.message, hint=wrong.hint) from None
    with trio.CancelScope(deadline=trio.current_time() + JOIN_DIAL_S) as scope:
        stream = await _connect(*target)
        async with open_client_pipe(
            stream, _host_of(stream), JOIN_PATH, [], bytes_max=JOIN_BYTES_MAX
        ) as pipe:
            scope.deadline = math.inf
            yield pipe
            await pipe.aclose()
    if scope.cancelled_caught:
        raise Unreachable(f"{_shown(*target)} did not answer")


async def _connect(host: str, port: int) -> trio.SocketStream:
    """Connect, over whichever of the host's addresses answers first."""
    try:
        stream = await trio.open_tcp_stream(host, port)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{_shown(host, port)}: {_why(error)}") from None
    tune(stream)
    return stream


def _why(error: BaseException) -> str:
    """Say in a few words why a connection failed; trio hides the system's words in a group."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    number = getattr(cause, "errno", None)
    text = os.strerror(number) if number and number > 0 else getattr(cause, "strerror", None) or str(cause)
    return str(text).lower() or "no connection"


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_of(stream: trio.SocketStream) -> str:
    """Name the peer's address for the Host header, without the interface of a link-local one."""
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        raise PipeLost from None
    return _shown(str(host).split("%")[0], port)


def _verdict(faults: Sequence[MeshError]) -> MeshError:
    """Choose what to tell: a machine that refused for a reason, before one that let nobody in, before silence."""
    for fault in faults:
        if isinstance(fault, Refused) and fault.reason != "not_let_in":
            return fault
    for fault in faults:
        if isinstance(fault, PeerFault):
            return Refused(
                f"a machine answered but failed the handshake: {fault.message}", reason="handshake"
            )
    for fault in faults:
        if isinstance(fault, Refused):
            return fault
    if not faults:
        return Unreachable(
            "no address is known for that machine", hint="name one: hivemesh connect NODE HOST:PORT"
        )
    return Unreachable("no address answered: " + "; ".join(fault.message for fault in faults[:4]))
