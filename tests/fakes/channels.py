"""Channels between machines in one process: messages in order, credit, cut links. Verified by tests/contract/test_channels.py."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import trio

from mesh.base.errors import Unreachable
from mesh.base.names import NodeId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Incoming

CREDIT_BYTES = 256 * 1024
INCOMING_MAX = 64


class _Way:
    """One direction of a channel."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.bytes = 0
        self.ended: str | None = None
        self.changed = trio.Event()

    def wake(self) -> None:
        event, self.changed = self.changed, trio.Event()
        event.set()

    def end(self, reason: str, *, drop: bool = False) -> None:
        if self.ended is None or drop:
            self.ended = reason
        if drop:
            self.waiting.clear()
        self.wake()


class FakeChannel:
    """One end. Satisfies ``mesh.base.ports.Channel``."""

    def __init__(self, peer: NodeId, out: _Way, into: _Way) -> None:
        self.peer = peer
        self._out = out
        self._into = into
        self._closed = False

    async def send(self, data: bytes) -> None:
        assert type(data) is bytes
        assert len(data) <= CHANNEL_MESSAGE_BYTES_MAX
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed or self._out.ended is not None:
                raise Unreachable(self._out.ended or "this channel is closed")
            if self._out.bytes < CREDIT_BYTES:
                break
            await self._out.changed.wait()
        self._out.waiting.append(data)
        self._out.bytes += len(data)
        self._out.wake()

    async def receive(self) -> bytes | None:
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise Unreachable("this channel is closed")
            if self._into.waiting:
                data = self._into.waiting.popleft()
                self._into.bytes -= len(data)
                self._into.wake()
                return data
            if self._into.ended is not None:
                if self._into.ended:
                    raise Unreachable(self._into.ended)
                return None
            await self._into.changed.wait()

    async def aclose(self, reason: str = "") -> None:
        self.close_nowait(reason)
        await trio.lowlevel.checkpoint()

    def close_nowait(self, reason: str) -> None:
        if not self._closed:
            self._closed = True
            self._out.end(reason)
            self._into.end(reason or "the other machine closed the channel", drop=True)

    def break_off(self) -> None:
        for way in (self._out, self._into):
            way.end("the link was lost", drop=True)


@dataclass
class FakeNetwork:
    """Every machine is linked to every other one, until a link is cut."""

    ends: dict[NodeId, FakeChannels] = field(default_factory=dict)
    lost: set[frozenset[NodeId]] = field(default_factory=set)
    open: list[tuple[frozenset[NodeId], FakeChannel]] = field(default_factory=list)
    opened: list[tuple[NodeId, NodeId, int]] = field(default_factory=list)

    def join(self, node: NodeId) -> FakeChannels:
        """Put a machine on the network; one that joins again replaces itself, as after a restart."""
        self.ends[node] = FakeChannels(self, node)
        return self.ends[node]

    def leave(self, node: NodeId) -> None:
        self.ends.pop(node, None)
        self._break({pair for pair, _ in self.open if node in pair})

    def linked(self, a: NodeId, b: NodeId) -> bool:
        return a in self.ends and b in self.ends and frozenset((a, b)) not in self.lost

    def cut(self, a: NodeId, b: NodeId) -> None:
        """Lose the link with every channel on it, at once."""
        pair = frozenset((a, b))
        self.lost.add(pair)
        self._break({pair})

    def _break(self, pairs: set[frozenset[NodeId]]) -> None:
        for pair, channel in self.open:
            if pair in pairs:
                channel.break_off()
        self.open = [(pair, channel) for pair, channel in self.open if pair not in pairs]

    def mend(self, a: NodeId, b: NodeId) -> None:
        self.lost.discard(frozenset((a, b)))


class FakeChannels:
    """Satisfies ``mesh.base.ports.Channels``."""

    def __init__(self, network: FakeNetwork, me: NodeId) -> None:
        self._network = network
        self._me = me
        self._incoming: list[tuple[range, trio.MemorySendChannel[Incoming]]] = []

    async def open_channel(self, node: NodeId, purpose: int, request: bytes, *, bulk: bool = False) -> FakeChannel:
        assert type(request) is bytes
        assert len(request) <= CHANNEL_MESSAGE_BYTES_MAX
        await trio.lowlevel.checkpoint()
        if not self._network.linked(self._me, node):
            raise Unreachable("no link to that machine")
        there, back = _Way(), _Way()
        mine, theirs = FakeChannel(node, there, back), FakeChannel(self._me, back, there)
        pair = frozenset((self._me, node))
        self._network.open = [(p, c) for p, c in self._network.open if not c._closed][-10_000:]
        self._network.open += [(pair, mine), (pair, theirs)]
        self._network.opened.append((self._me, node, purpose))
        await self._network.ends[node].take(Incoming(theirs, purpose, request))
        return mine

    async def take(self, incoming: Incoming) -> None:
        for purposes, send in self._incoming:
            if incoming.purpose in purposes:
                try:
                    send.send_nowait(incoming)
                except (trio.WouldBlock, trio.BrokenResourceError):
                    await incoming.channel.aclose("busy")
                return
        await incoming.channel.aclose("nobody here serves that purpose")

    def incoming(self, purposes: range) -> trio.MemoryReceiveChannel[Incoming]:
        send, receive = trio.open_memory_channel[Incoming](INCOMING_MAX)
        self._incoming.append((purposes, send))
        return receive
