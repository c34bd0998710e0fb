"""The frames of a link: what one sealed message holds, byte for byte.

A link carries *payloads*: the plaintext of one sealed websocket message each, at most PAYLOAD_BYTES_MAX. A payload is
one or more *frames*, back to back, so that many small messages cost one encryption and one system call. A frame is a
header of eight bytes, big-endian, and a body::

    kind u8 | flags u8 | length of the body u16 | flow u32 | body

    1 DATA    flag 1: the message goes on in the next DATA of this flow    body: a piece of the message
    2 OPEN    flag 1: bulk      body: purpose u16; the first message on the flow is the request
    3 CLOSE                     body: why, UTF-8, at most 200 bytes; empty means in order
    4 CREDIT                    body: u32, how many more bytes the peer may send on this flow
    5 PING    flow 0            body: 8 bytes, returned in a PONG
    6 PONG    flow 0            body: the 8 bytes
    7 BYE     flow 0            body: why, as in CLOSE; the link ends

Flow 0 is the control lane, flow 1 the gossip lane; both are open from the start and are never closed. Channels that the
dialling side opens have odd numbers from 3, the other side's even ones from 2; numbers only rise and are never used
again. What the frames mean together is in :mod:`mesh.mux`.

Source: docs/PROTOCOL.md, section 4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from mesh.base.errors import PeerFault

PAYLOAD_BYTES_MAX = 256 * 1024
PAYLOAD_BYTES_MIN = 4 * 1024
"""A payload may always be this large, however slow the line."""
REASON_BYTES_MAX = 200
PURPOSE_MAX = 0xFFFF
FLOW_MAX = 0xFFFFFFFF
PING_BYTES = 8

CONTROL_LANE, GOSSIP_LANE = 0, 1
_HEADER = struct.Struct("!BBHI")
_U32 = struct.Struct("!I")
_U16 = struct.Struct("!H")
HEADER_BYTES = _HEADER.size
FRAME_COST_BYTES = 64
"""What a DATA frame costs in credit besides its body: about what the smallest message takes in memory."""


class Kind(IntEnum):
    """What a frame is."""

    DATA = 1
    OPEN = 2
    CLOSE = 3
    CREDIT = 4
    PING = 5
    PONG = 6
    BYE = 7


_KINDS = {int(kind): kind for kind in Kind}
_FLAGGED = (Kind.DATA, Kind.OPEN)
_LINKWIDE = (Kind.PING, Kind.PONG, Kind.BYE)
_BODY_BYTES = {Kind.OPEN: 2, Kind.CREDIT: 4, Kind.PING: PING_BYTES, Kind.PONG: PING_BYTES}


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """A whole message on a lane; ``cost`` goes back to :meth:`mesh.mux.Mux.consume` when it was taken."""

    lane: int
    message: bytes
    cost: int


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """The peer opened a channel; ``request`` is its first message."""

    channel: int
    purpose: int
    request: bytes
    bulk: bool
    cost: int


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A whole message on a channel."""

    channel: int
    message: bytes
    cost: int


@dataclass(frozen=True, slots=True)
class ChannelEnded:
    """The peer closed a channel behind its last message; an empty reason means in order."""

    channel: int
    reason: str


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping of ours."""

    token: bytes


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """The peer ends the link and says why."""

    reason: str


Event = MessageArrived | ChannelOpened | ChannelMessage | ChannelEnded | Pong | PeerLeft


def data_header(flow: int, size: int, *, more: bool) -> bytes:
    """Make the header of a DATA frame; its body of ``size`` bytes follows."""
    return _HEADER.pack(Kind.DATA, more, size, flow)


def open_frame(flow: int, purpose: int, *, bulk: bool) -> bytes:
    """Make the frame that opens a channel."""
    return _HEADER.pack(Kind.OPEN, bulk, 2, flow) + _U16.pack(purpose)


def credit_frame(flow: int, amount_bytes: int) -> bytes:
    """Make the frame that lets the peer send that much more."""
    return _HEADER.pack(Kind.CREDIT, 0, 4, flow) + _U32.pack(amount_bytes)


def small_frame(kind: Kind, body: bytes) -> bytes:
    """Make a PING or PONG."""
    return _HEADER.pack(kind, 0, len(body), 0) + body


def end_frame(kind: Kind, reason: str, flow: int = 0) -> bytes:
    """Make a CLOSE or BYE; the reason is cut, at a character, to REASON_BYTES_MAX."""
    body = reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return _HEADER.pack(kind, 0, len(body), flow) + body


def read_u16(body: bytes) -> int:
    """Read the purpose of an OPEN; its length was checked."""
    return int(_U16.unpack(body)[0])


def read_u32(body: bytes) -> int:
    """Read the amount of a CREDIT; its length was checked."""
    return int(_U32.unpack(body)[0])


def reason_untrusted(body: bytes) -> str:
    """Read why the peer closed, as one printable line.

    Args:
        body: Anything.

    Raises:
        PeerFault: Longer than REASON_BYTES_MAX.
    """
    if len(body) > REASON_BYTES_MAX:
        raise PeerFault("the peer closed with an overlong reason")
    text = body.decode(errors="replace")
    return "".join(c if c.isprintable() else " " for c in text)


def split_untrusted(payload: bytes) -> Iterator[tuple[Kind, bool, int, bytes]]:
    """Cut a payload into its frames.

    Args:
        payload: Anything.

    Yields:
        Kind, flag, flow number and body of each frame, the body's length right for its kind.

    Raises:
        PeerFault: Not a payload; the frames before the fault were given out already.
    """
    if not 0 < len(payload) <= PAYLOAD_BYTES_MAX:
        raise PeerFault("the peer sent a payload of a wrong size")
    at, end = 0, len(payload)
    while at < end:
        if end - at < HEADER_BYTES:
            raise PeerFault("the peer sent half a frame")
        number, flags, size, flow = _HEADER.unpack_from(payload, at)
        kind = _KINDS.get(number)
        if kind is None:
            raise PeerFault("the peer sent a frame of an unknown kind")
        at += HEADER_BYTES + size
        if at > end or flags > (kind in _FLAGGED) or (kind in _LINKWIDE and flow):
            raise PeerFault("the peer sent a malformed frame")
        if _BODY_BYTES.get(kind, size) != size:
            raise PeerFault("the peer sent a frame of a wrong length")
        yield kind, bool(flags), flow, payload[at - size : at]
