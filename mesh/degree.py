"""How many links a machine keeps, and to whom: everybody up to twelve members, a few and well spread ones beyond.

In a large mesh each machine dials three machines at random and its successor on the ring of ids, and keeps at most eight
that others dialled. The ring keeps the graph whole, the random links keep it short. A link beyond the bound is *passing*:
it carries what somebody wants now, lets a newcomer learn who else there is, and is let go when it is idle.

Everything here is a function of what one machine knows; the draw is a number made once a start.

Source: random graphs of degree three and more stay connected and short (Voulgaris, "CYCLON", 2005; HyParView, 2007).
"""

from __future__ import annotations

import re
from base64 import b32decode
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mesh.base.names import NodeId, base32

FULL_MESH_MAX = 12
"""Members up to which everybody links to everybody."""
DIALLED_RANDOM = 3
INBOUND_MAX = 8
DEGREE_MAX = 12
PASSING_MAX = 8
"""Links that others dialled beyond INBOUND_MAX, before further ones are refused at once."""
SETTLE_S = 10.0
"""A passing link lives at least so long: a newcomer learns by it who else there is."""
NAMED_MAX = 4

_FULL = "full; others have room: "
_NODE = re.compile(r"[a-z2-7]{26}\Z")


@dataclass(frozen=True, slots=True)
class Other:
    """One other member, as the choice sees it.

    Attributes:
        dialable: Whether an address is known that may be dialled.
        due: Whether it may be dialled now, by its own schedule.
        live: Whether it is live, as far as this machine knows.
        links: How many links it states, 0 where it was never heard.
    """

    node: NodeId
    dialable: bool
    due: bool
    live: bool
    links: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """One link that stands.

    Attributes:
        dialled: Whether this machine dialled it.
        busy: Whether channels are open on it, or somebody wants it now.
        age_s: How long it stands.
        links: How many links the machine at the other end states, this one included; 0 where it was never heard.
    """

    dialled: bool
    busy: bool
    age_s: float
    links: int


def spread(nodes: Iterable[NodeId], draw: int) -> list[NodeId]:
    """Order machines as this one tries them: at random, yet the same while the draw is, whoever comes or goes.

    Args:
        nodes: Any ids.
        draw: 128 random bits.

    Source: multiply-shift hashing (Dietzfelbinger, 1997).
    """
    factor, mask = draw | 1, (1 << 128) - 1
    return sorted(nodes, key=lambda node: int.from_bytes(node, "big") * factor & mask)


def successor(me: NodeId, nodes: Sequence[NodeId]) -> NodeId | None:
    """Name the next machine on the ring of ids.

    Args:
        me: This machine.
        nodes: The others, in ascending order.
    """
    return nodes[bisect_right(nodes, me) % len(nodes)] if nodes else None


def choose(
    me: NodeId,
    others: Sequence[Other],
    links: Mapping[NodeId, Neighbour],
    dialling: Collection[object],
    wanted: Collection[NodeId],
) -> list[NodeId]:
    """Choose whom to dial now.

    Args:
        me: This machine.
        others: All other members that may be linked to, in the order of :func:`spread`.
        links: The links that stand.
        dialling: Who is being dialled already.
        wanted: Who is wanted for a command now; they are dialled beyond the bound.

    Returns:
        Ids, the ones wanted first.
    """
    taken: set[NodeId] = {*links, *(NodeId(what) for what in dialling if isinstance(what, bytes))}
    free = [other for other in others if other.dialable and other.due and other.node not in taken]
    chosen = [other.node for other in free if other.node in wanted]
    if len(others) < FULL_MESH_MAX:
        return chosen + [other.node for other in free if other.node not in wanted]
    after = _next_on_ring(me, others, taken)
    if after is not None and after not in taken and after not in chosen:
        chosen.append(after)
    own = {node for node in taken if node not in links or links[node].dialled}
    missing = DIALLED_RANDOM - len(own - {after})
    # Live ones before others, ones with room before full ones; the order of the draw within each.
    spare = sorted((o for o in free if o.node not in chosen), key=lambda o: (not o.live, o.links >= DEGREE_MAX))
    return chosen + [other.node for other in spare[: max(0, missing)]]


def _next_on_ring(me: NodeId, others: Sequence[Other], taken: Collection[NodeId]) -> NodeId | None:
    """The successor among those that can be reached: linked, being dialled, or due."""
    reachable = sorted(o.node for o in others if o.node in taken or (o.dialable and o.due))
    return successor(me, reachable)


def may_enter(members: int, inbound: int) -> bool:
    """Whether one more machine that dialled this one gets a link, a passing one where there is no room.

    Args:
        members: All members but this one.
        inbound: Links that others dialled.
    """
    return members < FULL_MESH_MAX or inbound < INBOUND_MAX + PASSING_MAX


def surplus(me: NodeId, members: Collection[NodeId], links: Mapping[NodeId, Neighbour]) -> list[NodeId]:
    """Choose the links to let go now.

    Never one that is busy, nor the one to the neighbours on the ring, nor the only link of a machine, as far as it states
    its links. First the machines with most links, for they miss one least.

    Args:
        me: This machine.
        members: All other members that may be linked to.
        links: The links that stand.
    """
    if len(members) < FULL_MESH_MAX:
        return []
    ring = sorted(members)
    at = bisect_right(ring, me)
    kept = {ring[at % len(ring)], ring[at - 1]}
    idle = [n for n, link in links.items() if not link.busy and link.age_s >= SETTLE_S and n not in kept and link.links != 1]
    idle.sort(key=lambda node: (-links[node].links, links[node].age_s, node))
    inbound = [node for node in idle if not links[node].dialled]
    over = sum(not link.dialled for link in links.values()) - INBOUND_MAX
    gone = inbound[: max(0, over)]
    over = len(links) - len(gone) - DEGREE_MAX
    return gone + [node for node in idle if node not in gone][: max(0, over)]


def with_room(others: Iterable[Other], asking: NodeId, links: Collection[NodeId]) -> list[NodeId]:
    """Name machines another one may try in place of this one: live, dialable, with room, not linked here."""
    named: list[NodeId] = []
    for other in others:
        if other.node != asking and other.node not in links and other.live and other.dialable and other.links < DEGREE_MAX:
            named.append(other.node)
            if len(named) == NAMED_MAX:
                break
    return named


def full_reason(named: Sequence[NodeId]) -> str:
    """Write why a link is closed that there is no room for, with at most NAMED_MAX machines that have some."""
    return _FULL + " ".join(base32(node) for node in named[:NAMED_MAX])


def named_untrusted(reason: str) -> list[NodeId] | None:
    """Read the machines named in the reason of a close.

    Args:
        reason: As the peer stated it, at most 200 bytes, with or without words before it.

    Returns:
        At most NAMED_MAX ids; None where the close was for another reason.
    """
    _, found, names = reason.partition(_FULL)
    if not found:
        return None
    return [NodeId(b32decode(name.upper() + "======")) for name in names.split(" ")[:NAMED_MAX] if _NODE.match(name)]
