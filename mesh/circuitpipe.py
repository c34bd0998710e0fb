"""The end of a circuit as the pipe a link runs over: whole messages, carried in pieces by a channel of another link.

The relays on the way see the pieces: sizes and times of what the link inside has sealed end to end.

Source: docs/PROTOCOL.md, section 9.
"""

from __future__ import annotations

from mesh.base.errors import PeerFault
from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX, Channel
from mesh.pipe import MESSAGE_BYTES_MAX, PipeLost

PIECE_BYTES_MAX = CHANNEL_MESSAGE_BYTES_MAX - 1
_LAST, _MORE = b"\x00", b"\x01"


class CircuitPipe:
    """Whole messages to and from the machine at the other end of a circuit; used as :class:`mesh.pipe.Pipe` is.

    Args:
        channel: The channel to the neighbour; its first messages each way have been taken.
        is_client: Whether this side opened the circuit.
        remote: The way, for a person.

    Attributes:
        remote: As given; proves nothing.
        is_client: As given.
        received_bytes: How many bytes came so far, of whole messages or not.
    """

    def __init__(self, channel: Channel, *, is_client: bool, remote: str) -> None:
        self._channel = channel
        self.is_client = is_client
        self.remote = remote
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self.received_bytes = 0

    async def send(self, message: bytes) -> None:
        """Send one message; waits while the way does not take it.

        Args:
            message: At most MESSAGE_BYTES_MAX bytes, not empty.

        Raises:
            Unreachable: The circuit ended.

        If cancelled: the message may be half sent; the pipe must then be closed.
        """
        for start in range(0, len(message), PIECE_BYTES_MAX):
            more = start + PIECE_BYTES_MAX < len(message)
            await self._channel.send((_MORE if more else _LAST) + message[start : start + PIECE_BYTES_MAX])

    async def receive(self) -> bytes:
        """Wait for the next message.

        Returns:
            At most MESSAGE_BYTES_MAX bytes.

        Raises:
            Unreachable: The circuit ended.
            PeerFault: What came is no piece of a message, or too much.

        If cancelled: nothing is lost.
        """
        while True:
            piece = await self._channel.receive()
            if piece is None:
                raise PipeLost("the circuit ended")
            self.received_bytes += len(piece)
            if self._take_untrusted(piece):
                message = b"".join(self._parts)
                self._parts, self._parts_bytes = [], 0
                return message

    def _take_untrusted(self, piece: bytes) -> bool:
        """Take one piece; whether the message is whole now."""
        if len(piece) < 2 or piece[:1] not in (_LAST, _MORE):
            raise PeerFault("the peer sent something else than a piece of a message", peer=self.remote)
        self._parts_bytes += len(piece) - 1
        if self._parts_bytes > MESSAGE_BYTES_MAX:
            raise PeerFault("the peer sent an overlong message", peer=self.remote)
        self._parts.append(piece[1:])
        return piece[:1] == _LAST

    async def aclose(self) -> None:
        """Close in order, behind what was sent; a second call does nothing."""
        await self._channel.aclose()

    def abort(self) -> None:
        """End the circuit now; whoever waits in ``send`` or ``receive`` gets Unreachable."""
        self._channel.close_nowait("the circuit was dropped")
