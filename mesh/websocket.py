"""The frames of a websocket once the upgrade is done: the small part of RFC 6455, section 5, that links speak.

Every message is one binary frame; nothing is fragmented, nothing extended. The library that does the upgrade handles
frames of every kind, several Python calls for each, which costs more than the cipher; a link moves every byte through
here, so this is kept short and pure instead (docs/decisions/0018-link-speed.md).
"""

from __future__ import annotations

import struct

from mesh.base.errors import PeerFault

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
CONTROL_BYTES_MAX = 125
"""The largest body of a CLOSE, PING or PONG."""
NORMAL_CLOSURE = struct.pack("!H", 1000)

_FINAL = 0x80
_RESERVED = 0x70
_OPCODE = 0x0F
_MASKED = 0x80
_NO_MASK = bytes(4)
_KNOWN = (TEXT, BINARY, CLOSE, PING, PONG)


def frame_head(kind: int, size: int, *, masked: bool) -> bytes:
    """Make the head of one whole frame; a client's has a mask of zeros.

    Args:
        kind: One of the five above.
        size: Bytes of the body.
        masked: Whether a client sends it.
    """
    mask_bit, mask = (_MASKED, _NO_MASK) if masked else (0, b"")
    if size <= CONTROL_BYTES_MAX:
        return struct.pack("!BB", _FINAL | kind, mask_bit | size) + mask
    if size < 1 << 16:
        return struct.pack("!BBH", _FINAL | kind, mask_bit | 126, size) + mask
    return struct.pack("!BBQ", _FINAL | kind, mask_bit | 127, size) + mask


class FrameBuffer:
    """Bytes from the peer on one side, whole frames on the other.

    Args:
        masked: Whether the peer is a client, which must mask; a server must not.
        bytes_max: The largest body to take.
        first: What was read behind the upgrade already.
    """

    def __init__(self, *, masked: bool, bytes_max: int, first: bytes = b"") -> None:
        self._masked = masked
        self._bytes_max = bytes_max
        self._buffer = bytearray(first)

    def add(self, data: bytes) -> None:
        """Take what was read. The caller adds more only when there is no whole frame left, so this stays bounded."""
        self._buffer += data

    def next_untrusted(self) -> tuple[int, bytes] | None:
        """Take the next whole frame: its kind and its body; None where more has to be read.

        Raises:
            PeerFault: Not a frame that links use, or a body over the bound, of which nothing is waited for.
        """
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        kind = buffer[0] & _OPCODE
        if not buffer[0] & _FINAL or buffer[0] & _RESERVED or kind not in _KNOWN:
            raise PeerFault("the peer sent a websocket frame that links do not use")
        if bool(buffer[1] & _MASKED) is not self._masked:
            raise PeerFault("the peer masked its websocket frames wrongly")
        head = _body_bounds_untrusted(buffer)
        if head is None:
            return None
        at, size = head
        if kind >= CLOSE and size > CONTROL_BYTES_MAX:
            raise PeerFault("the peer sent an overlong websocket control frame")
        if size > self._bytes_max:
            raise PeerFault("the peer sent an overlong message")
        mask_at, at = at, at + 4 * self._masked
        if len(buffer) < at + size:
            return None
        mask = bytes(buffer[mask_at:at])
        with memoryview(buffer) as view:
            body = bytes(view[at : at + size])
        del buffer[: at + size]
        return kind, _unmasked(body, mask) if any(mask) else body


def _body_bounds_untrusted(buffer: bytearray) -> tuple[int, int] | None:
    """Read where the head's length ends and what it says; None where it is not all there.

    Raises:
        PeerFault: A length written longer than it needs.
    """
    size = buffer[1] & 0x7F
    if size < 126:
        return 2, size
    wide = size == 127
    at = 10 if wide else 4
    if len(buffer) < at:
        return None
    size = int.from_bytes(buffer[2:at], "big")
    if size < (1 << 16 if wide else 126):
        raise PeerFault("the peer wrote a websocket length wrongly")
    return at, size


def _unmasked(body: bytes, mask: bytes) -> bytes:
    """Undo a mask that is not all zeros: no node of ours sends one, so it need not be fast."""
    size = len(body)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(body, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")
