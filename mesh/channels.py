"""What the users of a link hold: its channels and its stream of messages, with the credit that goes back as they take.

Source: docs/PROTOCOL.md, sections 4 and 5; the contract of a channel is :class:`mesh.base.ports.Channel`.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from mesh.base.errors import Unreachable
from mesh.base.names import NodeId
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX


class Carrier(Protocol):
    """What a channel asks of its link."""

    @property
    def peer(self) -> NodeId:
        """The machine at the other end."""
        ...

    def consume(self, flow: int, cost: int) -> None:
        """Give credit back."""
        ...

    def send_on(self, number: int, message: bytes) -> bool:
        """Queue a message; False where there is no room."""
        ...

    def close_channel(self, number: int, reason: str) -> None:
        """Close this side of a channel."""
        ...


class Arrivals:
    """Messages that came and wait to be taken, with a wake for the one who waits."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._waiting: deque[tuple[int, bytes, int]] = deque()
        self._news = trio.Event()
        self.over: str | None = None

    def put(self, flow: int, message: bytes, cost: int) -> None:
        """Append a message that came on a flow."""
        self._waiting.append((flow, message, cost))
        self._news.set()

    def end(self, reason: str) -> None:
        """Say that nothing more comes; the first reason is kept."""
        if self.over is None:
            self.over = reason
        self._news.set()

    def clear(self) -> None:
        """Drop what waits; its credit goes back by the close."""
        self._waiting.clear()

    def take_nowait(self) -> bytes | None:
        """Take the next message and give its credit back; None where none is there."""
        if not self._waiting:
            return None
        flow, message, cost = self._waiting.popleft()
        self._carrier.consume(flow, cost)
        return message

    async def take(self) -> bytes | None:
        """Wait for the next message; None at the end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._waiting or self.over is not None:
                return self.take_nowait()
            if self._news.is_set():
                self._news = trio.Event()
            await self._news.wait()


class Messages(trio.abc.ReceiveChannel[bytes]):
    """The messages of both lanes of a link, in the order they came; credit goes back as they are taken.

    Args:
        arrivals: Where the link puts them.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def receive_nowait(self) -> bytes:
        """Take the next message.

        Raises:
            trio.WouldBlock: None is there.
            trio.EndOfChannel: The link is closed and everything was taken.
        """
        message = self._arrivals.take_nowait()
        if message is None:
            raise trio.EndOfChannel if self._arrivals.over is not None else trio.WouldBlock
        return message

    async def receive(self) -> bytes:
        """Wait for the next message.

        Raises:
            trio.EndOfChannel: The link is closed and everything was taken.

        If cancelled: nothing is lost.
        """
        message = await self._arrivals.take()
        if message is None:
            raise trio.EndOfChannel
        return message

    async def aclose(self) -> None:
        """Do nothing: the link closes it."""
        await trio.lowlevel.checkpoint()


class LinkChannel:
    """One channel of a link; the contract is :class:`mesh.base.ports.Channel`."""

    def __init__(self, carrier: Carrier, number: int) -> None:
        self._carrier = carrier
        self._number = number
        self._arrivals = Arrivals(carrier)
        self._room = trio.Event()
        self._closed_here = False

    @property
    def peer(self) -> NodeId:
        """The machine at the other end."""
        return self._carrier.peer

    async def send(self, data: bytes) -> None:
        """Send one message; waits while a window's worth is queued.

        Args:
            data: At most CHANNEL_MESSAGE_BYTES_MAX bytes.

        Raises:
            Unreachable: The channel or its link ended.

        If cancelled: the message was not queued.
        """
        assert len(data) <= CHANNEL_MESSAGE_BYTES_MAX, "a channel message is at most 60 KiB"
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            self._check_open()
            if self._carrier.send_on(self._number, data):
                return
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    async def receive(self) -> bytes | None:
        """Wait for the next message.

        Returns:
            The message, or None once the peer has closed in order and everything was taken.

        Raises:
            Unreachable: The link ended, the peer closed with a fault, or the channel was closed here.

        If cancelled: nothing is lost.
        """
        if self._closed_here:
            raise Unreachable("this channel was closed here")
        message = await self._arrivals.take()
        if message is None and self._arrivals.over:
            raise Unreachable(f"the channel ended: {self._arrivals.over}")
        return message

    async def aclose(self, reason: str = "") -> None:
        """End the channel in both directions; a second call does nothing.

        Args:
            reason: Empty means in order, behind what was sent; else what is queued is dropped.
        """
        self.close_nowait(reason)
        await trio.lowlevel.checkpoint()

    def close_nowait(self, reason: str) -> None:
        """As :meth:`aclose`, for whoever cannot wait."""
        if not self._closed_here:
            self._closed_here = True
            self._arrivals.clear()
            self.end("this channel was closed here")
            self._carrier.close_channel(self._number, reason)

    def put(self, message: bytes, cost: int) -> None:
        """Take a message the link received."""
        self._arrivals.put(self._number, message, cost)

    def end(self, reason: str) -> None:
        """Learn that the channel or the link ended; an empty reason means in order."""
        self._arrivals.end(reason)
        self._room.set()

    def has_room(self) -> None:
        """Learn that there is room to send again."""
        self._room.set()

    def _check_open(self) -> None:
        if self._arrivals.over is not None:
            raise Unreachable(f"the channel ended: {self._arrivals.over or 'the other side closed it'}")
