"""Who is live: a fold over what every machine says of itself, never over what one says of another.

Each presence lists all links of its author as short hashes salted by the author. A machine is live when it can be
reached from here over links that the newest presences of both ends state (of one end, where the other has none newer);
else it is stale. Nobody can make a machine stale that somebody reachable still holds a link to, and a lie about a link
lasts at most 2.5 periods. A machine that slept or lagged judges nobody until it has listened again.

Source: decisions/0004; SWIM (Das, 2002) for what is avoided here: death claimed by third parties.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Malformed, Range, Size, decode_untrusted
from mesh.base.crypto import digest
from mesh.base.names import NodeId
from mesh.records import Record

PERIOD_S_MIN = 30.0
LIVE_PERIODS = 2.5
GONE_PERIODS = 10.0
LINKS_MAX = 64
LINK_AGE_S_MIN = 1.0
"""A link younger than this is not stated yet, so that flapping is not amplified."""
BURST_S = 2.0


@dataclass(frozen=True, slots=True)
class Presence:
    """What a machine says of itself.

    Attributes:
        boot: Random per start.
        period_s: How often it speaks when nothing changes.
        links: A 4-byte hash of every machine it is linked to, salted with its own id.
        running: Tasks it runs for others now.
    """

    boot: Annotated[bytes, Size(8, 8)]
    period_s: Annotated[int, Range(1, 3600)]
    name: Annotated[str, Size(1, 63)]
    software: Annotated[str, Size(1, 32)]
    addresses: Annotated[tuple[Annotated[str, Size(3, 80)], ...], Count(4)]
    links: Annotated[tuple[Annotated[bytes, Size(4, 4)], ...], Count(LINKS_MAX)]
    running: Annotated[int, Range(0, 10_000)]
    slots: Annotated[int, Range(0, 10_000)]


@dataclass(frozen=True, slots=True)
class Heard:
    """The newest presence of one machine, and when it came, on this machine's steady clock."""

    presence: Presence
    version: int
    at_s: float


def period_s(members: int) -> int:
    """How often a machine speaks when nothing changes, in a mesh of this size."""
    return int(max(PERIOD_S_MIN, 0.03 * members))


def link_mark(author: NodeId, other: NodeId) -> bytes:
    """Hash a neighbour as its author states it."""
    return digest(author, other, size=4, person=b"hivemesh-links")


def read_untrusted(record: Record) -> Presence | None:
    """Read a presence record's body; None for a tombstone (the machine left in order) or anything unsound."""
    if not record.body:
        return None
    try:
        return decode_untrusted(Presence, record.body, bytes_max=1024)
    except Malformed:
        return None


def states(
    me: NodeId,
    members: Iterable[NodeId],
    linked: Collection[NodeId],
    heard: Mapping[NodeId, Heard],
    now_s: float,
) -> dict[NodeId, str]:
    """Judge every member but me.

    Args:
        me: This machine.
        members: Every member's id.
        linked: The machines this one holds a link to now.
        heard: The newest presences.
        now_s: This machine's steady clock.

    Returns:
        Id to ``live``, ``stale`` or ``gone``.
    """
    ids = [node for node in members if node != me]
    marks = {node: set(heard[node].presence.links) for node in ids if node in heard}
    reached: set[NodeId] = {node for node in ids if node in linked}
    frontier = list(reached)
    while frontier:
        here = frontier.pop()
        for there in ids:
            if there not in reached and _joined(here, there, heard, marks, now_s):
                reached.add(there)
                frontier.append(there)
    return {node: "live" if node in reached else _without_link(heard.get(node), now_s) for node in ids}


def _joined(
    here: NodeId,
    there: NodeId,
    heard: Mapping[NodeId, Heard],
    marks: Mapping[NodeId, set[bytes]],
    now_s: float,
) -> bool:
    """Whether the newest statements of two machines say that they hold a link."""
    one, other = heard.get(here), heard.get(there)
    if other is None or now_s - other.at_s > LIVE_PERIODS * other.presence.period_s:
        return False
    there_says = link_mark(there, here) in marks[there]
    if one is None:
        return there_says
    here_says = link_mark(here, there) in marks[here]
    if here_says and there_says:
        return True
    # One end says yes and the other no: the one heard last is believed.
    newest_says = here_says if one.at_s > other.at_s else there_says
    return newest_says


def _without_link(last: Heard | None, now_s: float) -> str:
    if last is None or now_s - last.at_s > GONE_PERIODS * last.presence.period_s:
        return "gone"
    return "stale"
