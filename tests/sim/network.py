"""The network between the machines: connections with latency, bandwidth and processing time, cut one way or both.

A connection behaves as TCP does: bytes arrive in order or not at all. What a cut direction holds back is delivered
when the cut heals; a sender whose bytes are not taken for half a minute gives up, and its peer is not told (half-open)
until it sends something itself. Between connections everything may be reordered.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import trio

from mesh.base.errors import PeerFault, Refused, Unreachable
from mesh.pipe import MESSAGE_BYTES_MAX, SUBPROTOCOL, PipeLost
from tests.sim.clockwork import HOST, dice

WINDOW_BYTES = 512 * 1024
QUEUED_S = 0.05
"""What one machine may have queued on its line before senders wait."""
GIVES_UP_S = 30.0
LOOK_S = 5.0
FAR = float("inf")
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
TRACE_LINES = 400


@dataclass(eq=False)
class Station:
    """A machine as the network sees it.

    Attributes:
        listening: Whether something accepts connections; then ``arrivals`` takes them.
        frozen: Nothing goes in or out: it sleeps, or its power is gone.
        bytes_per_s: Its line, outwards.
        cpu_s: What taking one message costs it.
        loss: How often a message needs to be sent again.
    """

    name: str
    address: str
    listening: bool = False
    frozen: bool = False
    gone: bool = False
    bytes_per_s: float = 12.5e6
    cpu_s: float = 0.0001
    loss: float = 0.0
    delay_s: float = 0.0
    line_free_s: float = 0.0
    cpu_free_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    ends: list[End] = field(default_factory=list)
    arrivals: Any = None
    hellos: deque[bytes] = field(default_factory=lambda: deque(maxlen=4))


class Way:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Station, target: Station) -> None:
        self.network, self.source, self.target = network, source, target
        self.waiting: deque[tuple[float, bytes | None]] = deque()
        self.held: deque[tuple[float, bytes | None]] = deque()
        self.bytes = self.taken_bytes = 0
        self.last_s = 0.0
        self.news = trio.Event()
        self.room = trio.Event()
        self.broken = False

    def put(self, data: bytes | None) -> None:
        now = trio.current_time()
        self.bytes += len(data or b"")
        if self.held or self.network.is_cut(self.source, self.target):
            self.held.append((now, data))
            self.network.something_held.set()
        else:
            self._deliver(now, data)

    def _deliver(self, now: float, data: bytes | None) -> None:
        network, source, target = self.network, self.source, self.target
        size = len(data or b"") + 60
        start = max(now, source.line_free_s)
        source.line_free_s = start + size / source.bytes_per_s
        source.sent_bytes += size
        draw = network.dice.random
        at = source.line_free_s + network.latency_s(source, target) * (1 + 0.2 * draw()) + source.delay_s + target.delay_s
        if source.loss and draw() < source.loss:
            at += 0.2 + draw()
        at = max(at, self.last_s, target.cpu_free_s)
        target.cpu_free_s = at + target.cpu_s
        self.last_s = at
        self.waiting.append((at, data))
        network.note(source, target, data)
        if len(self.waiting) == 1:
            self.news.set()

    def mend(self) -> None:
        """Deliver what was held back, after the sender's next try."""
        now = trio.current_time()
        self.last_s = max(self.last_s, now + 2 * self.network.dice.random())
        held, self.held = self.held, deque()
        for _, data in held:
            self._deliver(now, data)

    def break_off(self) -> None:
        self.broken = True
        self.news.set()
        self.room.set()

    async def get(self) -> bytes | None:
        """Wait for the next message; None at an end in order."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self.broken:
                raise trio.BrokenResourceError
            if self.waiting:
                at, data = self.waiting[0]
                if at <= trio.current_time() + 1e-6:
                    self.waiting.popleft()
                    self.bytes -= len(data or b"")
                    self.taken_bytes += len(data or b"")
                    self.target.received_bytes += len(data or b"")
                    self.room.set()
                    return data
                if self.news.is_set():
                    self.news = trio.Event()
                with trio.move_on_at(at):
                    await self.news.wait()
                continue
            if self.news.is_set():
                self.news = trio.Event()
            await self.news.wait()


class End:
    """One machine's end of a connection: enough of a socket stream for the real listener and dialer."""

    def __init__(self, here: Station, there: Station, out: Way, into: Way) -> None:
        self.here, self.there, self.out, self.into = here, there, out, into
        self.other: End | None = None
        self.closed = False
        self.socket = SimpleNamespace(
            getpeername=lambda: (there.address.rpartition(":")[0], 40000), close=self.abort, setsockopt=lambda *_: None
        )
        here.ends.append(self)

    def setsockopt(self, *_: object) -> None:
        """Take any option."""

    async def send_all(self, data: bytes) -> None:
        """Send one message; waits for room and for the line."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.closed:
            busy_s = self.here.line_free_s - trio.current_time()
            if self.out.bytes > WINDOW_BYTES:
                self.out.room = trio.Event()
                await self.out.room.wait()
            elif busy_s > QUEUED_S:
                await trio.sleep(busy_s - QUEUED_S + 0.001)  # A step too small for a float would wait for ever.
            else:
                break
        if self.closed:
            raise trio.BrokenResourceError
        if self.other is not None and self.other.closed and not self.out.network.is_cut(self.here, self.there):
            self.fail()  # Nobody is there any more; the answer is a reset.
            raise trio.BrokenResourceError
        self.out.put(bytes(data))

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Wait for a message; empty at the end."""
        return await self.into.get() or b""

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        self.out.put(None)
        await trio.lowlevel.checkpoint()

    def fail(self) -> None:
        """Break this end; the other one is not told."""
        self.closed = True
        self.out.room.set()
        self.into.break_off()
        if self in self.here.ends:
            self.here.ends.remove(self)

    def abort(self) -> None:
        """Reset the connection: the other end learns of it where the network lets it."""
        if self.closed:
            return
        self.fail()
        if self.other is not None and not self.other.closed and not self.out.network.is_cut(self.here, self.there):
            self.out.waiting.append((max(self.out.last_s, trio.current_time() + 0.001), None))
            self.out.news.set()


class SimPipe:
    """Whole messages over an end; what ``mesh.pipe.Pipe`` is over a websocket."""

    def __init__(self, end: End, *, is_client: bool, bytes_max: int) -> None:
        self._end, self.is_client, self._bytes_max = end, is_client, bytes_max
        self.remote = end.there.address if is_client else f"{end.there.address.rpartition(':')[0]}:40000"

    @property
    def received_bytes(self) -> int:
        """How many bytes came so far."""
        return self._end.into.taken_bytes

    async def send(self, message: bytes) -> None:
        """Send one message."""
        try:
            await self._end.send_all(message)
        except trio.BrokenResourceError:
            raise PipeLost from None

    async def receive(self) -> bytes:
        """Wait for the next message."""
        try:
            message = await self._end.into.get()
        except trio.BrokenResourceError:
            raise PipeLost from None
        if message is None:
            raise PipeLost
        if len(message) > self._bytes_max:
            raise PeerFault("the peer sent an overlong message", peer=self.remote)
        return message

    async def aclose(self) -> None:
        """Close in order."""
        if not self._end.closed:
            self._end.out.put(None)
        self.abort()
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        """Reset the connection now."""
        self._end.abort()


class Network:
    """Every station and what lies between them.

    Args:
        seed: Decides latencies, jitter and loss.
        canary: Bytes that must never be seen on a line.
    """

    def __init__(self, seed: object, canary: bytes) -> None:
        self.dice = dice(seed, "network")
        self._seed = seed
        self._canary = canary
        self.stations: dict[str, Station] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.something_held = trio.Event()
        self.leaked: list[str] = []
        self.messages = 0
        self._trace = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self._latencies: dict[tuple[str, str], float] = {}

    def station(self, name: str, address: str) -> Station:
        """Put a machine on the network."""
        self.stations[address] = found = Station(name, address)
        return found

    def latency_s(self, a: Station, b: Station) -> float:
        """How far apart two machines are: half a millisecond to eighty, the same both ways."""
        key = (min(a.name, b.name), max(a.name, b.name))
        if key not in self._latencies:
            self._latencies[key] = 0.0005 * 160 ** dice(self._seed, "latency", key).random()
        return self._latencies[key]

    def is_cut(self, a: Station, b: Station) -> bool:
        """Whether nothing gets from one machine to another now."""
        return a.frozen or b.frozen or a.gone or b.gone or (a.name, b.name) in self.cuts

    def note(self, source: Station, target: Station, data: bytes | None) -> None:
        """Keep a message in the trace, and look for what must never travel in the clear."""
        self.messages += 1
        self.say(f"{source.name} > {target.name} {len(data or b'')}", shown=False)
        if data and self._canary in data:
            self.leaked.append(f"{source.name} > {target.name}")

    def say(self, text: str, *, shown: bool = True) -> None:
        """Add a line to the trace."""
        line = f"{trio.current_time():.6f} {text}"
        self._trace.update(line.encode() + b"\n")
        if shown:
            self.lines.append(line)

    def digest(self) -> str:
        """The trace so far, as 32 characters."""
        return self._trace.hexdigest()

    def mend(self) -> None:
        """Deliver what no cut holds back any more; call after every change of a cut."""
        for station in self.stations.values():
            for end in list(station.ends):
                if end.out.held and not self.is_cut(end.here, end.there):
                    if end.other is not None and end.other.closed:
                        end.fail()
                    else:
                        end.out.mend()

    def reset(self, a: Station, b: Station) -> None:
        """Break every connection of two machines, as a router that restarts does."""
        for end in list(a.ends):
            if end.there is b:
                if end.other is not None:
                    end.other.fail()
                end.fail()

    def power_off(self, station: Station, *, silent: bool) -> None:
        """Take a machine away: in silence, or with resets for everybody it was connected to."""
        station.listening = False
        station.gone = silent
        for end in list(station.ends):
            if silent:
                end.fail()
            else:
                end.abort()

    async def run(self) -> None:
        """Let senders give up whose bytes nobody takes."""
        while True:
            await self.something_held.wait()
            await trio.sleep(LOOK_S)
            waiting = False
            for station in self.stations.values():
                for end in list(station.ends):
                    if end.out.held:
                        waiting = True
                        if trio.current_time() - end.out.held[0][0] > GIVES_UP_S:
                            end.fail()
            if not waiting:
                self.something_held = trio.Event()

    async def connect(self, host: str, port: int) -> End:
        """Open a connection from the machine whose task this is."""
        machine: Any = HOST.get()
        here: Station = machine.station
        there = self.stations.get(f"{host}:{port}")
        if there is not None:
            trip_s = 2 * self.latency_s(here, there) + here.delay_s + there.delay_s
            await trio.sleep(trip_s)
            while self.is_cut(here, there) or self.is_cut(there, here):  # noqa: ASYNC110
                await trio.sleep(1.0)  # Nobody answers; the dialer gives up by itself.
        if here.gone:
            raise Unreachable("no network")
        if there is None or not there.listening:
            await trio.lowlevel.checkpoint()
            raise Unreachable(f"{host}:{port}: connection refused")
        forth, back = Way(self, here, there), Way(self, there, here)
        near, far = End(here, there, forth, back), End(there, here, back, forth)
        near.other, far.other = far, near
        try:
            there.arrivals.send_nowait(far)
        except (trio.WouldBlock, trio.BrokenResourceError):
            near.abort()
            raise Unreachable(f"{host}:{port}: connection refused") from None
        return near


def _head(host: str, path: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1".encode(), b"Host: " + host.encode(), b"Upgrade: websocket", b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: " + b"A" * 22 + b"==",
        b"Sec-WebSocket-Protocol: " + SUBPROTOCOL.encode(),
        *(name + b": " + value for name, value in headers),
    ]  # fmt: skip
    return b"\r\n".join(lines) + b"\r\n\r\n"


@asynccontextmanager
async def open_client_pipe(
    stream: End, host: str, path: str, headers: list[tuple[bytes, bytes]], *, bytes_max: int = MESSAGE_BYTES_MAX
) -> AsyncIterator[SimPipe]:
    """Stand in for ``mesh.pipe.open_client_pipe``: the same request, the same refusals, no websocket."""
    try:
        try:
            head = _head(host, path, headers)
            stream.there.hellos.append(head)
            await stream.send_all(head)
            answer = await stream.receive_some()
        except trio.BrokenResourceError:
            raise PipeLost from None
        if answer.startswith(b"HTTP/1.1 426"):
            raise Refused(f"{stream.there.address}: another version", reason="version")
        if answer != ACCEPTED:
            raise Refused(f"{stream.there.address} does not let this machine in", reason="not_let_in")
        yield SimPipe(stream, is_client=True, bytes_max=bytes_max)
    finally:
        stream.abort()


@asynccontextmanager
async def open_server_pipe(stream: End, request: bytes, *, bytes_max: int = MESSAGE_BYTES_MAX) -> AsyncIterator[SimPipe]:
    """Stand in for ``mesh.pipe.open_server_pipe``."""
    try:
        try:
            await stream.send_all(ACCEPTED)
        except trio.BrokenResourceError:
            raise PipeLost from None
        yield SimPipe(stream, is_client=False, bytes_max=bytes_max)
    finally:
        stream.abort()

