"""Every message the mesh itself puts on a link. Tags 0 to 63; a tag is never used again for another meaning.

The layers below (frames, channels, credit, pings) are fixed binary layouts in ``mesh.frames``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Range, Registry, Size
from mesh.records import RECORD_BYTES_MAX

MESSAGE_BYTES_MAX = 60_000
IDS_MAX = 1024
RECORDS_MAX = 512
LANES = 4

Id32 = Annotated[bytes, Size(32, 32)]
Lane = Annotated[int, Range(0, LANES - 1)]


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


MESSAGES = Registry({1: Digests, 2: Ids, 3: Want, 4: Records})
