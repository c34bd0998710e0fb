"""Every message the mesh itself puts on a link. Tags 0 to 63; a tag is never used again for another meaning.

The layers below (frames, channels, credit, pings) are fixed binary layouts in ``mesh.frames``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Range, Registry, Size
from mesh.base.names import ID_BYTES
from mesh.handshake import Statement
from mesh.records import RECORD_BYTES_MAX

MESSAGE_BYTES_MAX = 60_000
IDS_MAX = 1024
RECORDS_MAX = 512
LANES = 4
HOPS_MAX = 4
"""Links a circuit goes over; so at most three relays."""
HELLO_BYTES_MAX = 120
REPLY_BYTES_MAX = 4200
CIRCUIT_PURPOSE = 20
"""The purpose of the channels that carry circuits."""
KEYS_MAX = 16

Id32 = Annotated[bytes, Size(32, 32)]
Lane = Annotated[int, Range(0, LANES - 1)]
Node = Annotated[bytes, Size(ID_BYTES, ID_BYTES)]


@dataclass(frozen=True, slots=True)
class Digests:
    """At link-up and every minute: a salted hash of each lane's ids, so that equal stores cost one message."""

    lanes: Annotated[tuple[Annotated[bytes, Size(16, 16)], ...], Count(LANES)]


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of one lane, a page at a time, in ascending order; ``last`` ends them."""

    lane: Lane
    ids: Annotated[tuple[Id32, ...], Count(IDS_MAX)]
    last: bool


@dataclass(frozen=True, slots=True)
class Want:
    """Please send these records."""

    ids: Annotated[tuple[Id32, ...], Count(IDS_MAX)]


@dataclass(frozen=True, slots=True)
class Records:
    """Records, pushed or wanted."""

    records: Annotated[tuple[Annotated[bytes, Size(1, RECORD_BYTES_MAX)], ...], Count(RECORDS_MAX)]


@dataclass(frozen=True, slots=True)
class Copied:
    """Another boot signed this with your key: your identity is in use twice."""

    statement: Statement




@dataclass(frozen=True, slots=True)
class CircuitOpen:
    """The request of a channel that shall become one hop of a circuit.

    Attributes:
        route: Every machine on the way, from the one that opens it to the one it is for.
        at: The receiver's place in the route.
        hello: Message 1 of the handshake inside, for the last machine.
    """

    route: Annotated[tuple[Node, ...], Count(HOPS_MAX + 1)]
    at: Annotated[int, Range(1, HOPS_MAX)]
    hello: Annotated[bytes, Size(1, HELLO_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class CircuitRefused:
    """No: who says it (their place in the route), and why (a number of ``mesh.circuits.Why``)."""

    at: Annotated[int, Range(1, HOPS_MAX)]
    why: Annotated[int, Range(1, 255)]


@dataclass(frozen=True, slots=True)
class CircuitAnswer:
    """Message 2 of the handshake inside. From here on the channel carries the inner link's messages, in pieces."""

    reply: Annotated[bytes, Size(1, REPLY_BYTES_MAX)]


CIRCUIT_MESSAGES = Registry({20: CircuitOpen, 21: CircuitRefused, 22: CircuitAnswer})
"""On the channels of circuits only; on the lanes of a link these tags mean nothing."""
@dataclass(frozen=True, slots=True)
class WantKeys:
    """Please hand over the keys of these commitments."""

    commitments: Annotated[tuple[Id32, ...], Count(KEYS_MAX)]


@dataclass(frozen=True, slots=True)
class Keys:
    """Gate keys, and fleet keys to machines of one's own person."""

    keys: Annotated[tuple[Id32, ...], Count(KEYS_MAX)]


MESSAGES = Registry({1: Digests, 2: Ids, 3: Want, 4: Records, 30: WantKeys, 31: Keys, 36: Copied})
