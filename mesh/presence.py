"""Who is live: a fold over what every machine says of itself, never over what one says of another.

Each presence lists all links of its author as short hashes salted by the author. A machine is live when it can be
reached from here over links that the newest presences of both ends state (of one end, where the other has none newer);
else it is stale. Nobody can make a machine stale that somebody reachable still holds a link to, and a lie about a link
lasts at most 2.5 periods. A machine that slept or lagged, or that hears of fewer than half its neighbours, doubts itself:
it calls nobody stale who was live until it has listened again.

Source: decisions/0004; SWIM (Das, 2002) for what is avoided here: death claimed by third parties.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from mesh.base.clock import Now
from mesh.base.codec import Count, Malformed, Range, Size, decode_untrusted
from mesh.base.crypto import digest
from mesh.base.names import NodeId
from mesh.records import Record

PERIOD_S_MIN = 30.0
LIVE_PERIODS = 2.5
GONE_PERIODS = 10.0
LINKS_MAX = 64
GATHER_S = 0.1
"""Changes within this time go out in one presence."""
FLAP_S = 60.0
STEADY_S = 5.0
"""A link to a machine whose last one ended within FLAP_S is stated only once it is so old; every other one at once."""
TICK_S = 1.0
LAG_S = 1.0
LISTEN_S = 5.0
JUMP_S = 15.0
"""A tick that comes LAG_S too late means that this machine lagged, one JUMP_S too late that it slept: it listens first."""


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
    """Hash a neighbour as its author states it.

    The salt is added by exclusive or, so that whoever knows the members reads a list by looking up, not by trying all.
    """
    return (_named(other) ^ _salt(author)).to_bytes(4, "big")


@lru_cache(maxsize=8192)
def _named(node: NodeId) -> int:
    return int.from_bytes(digest(node, size=4, person=b"hivemesh-links"), "big")


@lru_cache(maxsize=8192)
def _salt(author: NodeId) -> int:
    return int.from_bytes(digest(author, size=4, person=b"hivemesh-salts"), "big")


def links_stated(heard: Mapping[NodeId, Heard], node: NodeId) -> int:
    """How many links a machine states; 0 where nothing was heard of it."""
    return len(heard[node].presence.links) if node in heard else 0


def states_link(heard: Mapping[NodeId, Heard], node: NodeId, other: NodeId) -> bool:
    """Whether a machine's newest presence states a link to another one."""
    return node in heard and link_mark(node, other) in heard[node].presence.links


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
    says = _read_marks(ids, heard)
    near: dict[NodeId, set[NodeId]] = {node: set() for node in ids}
    for author, others in says.items():
        for other in others:
            near[author].add(other)
            near[other].add(author)
    reached: set[NodeId] = {node for node in ids if node in linked}
    frontier = list(reached)
    while frontier:
        here = frontier.pop()
        for there in near[here]:
            if there not in reached and _joined(here, there, heard, says, now_s):
                reached.add(there)
                frontier.append(there)
    return {node: "live" if node in reached else _without_link(heard.get(node), now_s) for node in ids}


def _read_marks(ids: Collection[NodeId], heard: Mapping[NodeId, Heard]) -> dict[NodeId, set[NodeId]]:
    """Read whom each machine states; two members with the same four bytes are both meant."""
    named: dict[int, list[NodeId]] = {}
    for node in ids:
        named.setdefault(_named(node), []).append(node)
    says: dict[NodeId, set[NodeId]] = {}
    for author in ids:
        if author in heard:
            salt = _salt(author)
            marks = heard[author].presence.links
            says[author] = {n for mark in marks for n in named.get(int.from_bytes(mark, "big") ^ salt, ())}
    return says


def _joined(
    here: NodeId,
    there: NodeId,
    heard: Mapping[NodeId, Heard],
    says: Mapping[NodeId, set[NodeId]],
    now_s: float,
) -> bool:
    """Whether the newest statements of two machines say that they hold a link."""
    one, other = heard.get(here), heard.get(there)
    if other is None or now_s - other.at_s > LIVE_PERIODS * other.presence.period_s:
        return False
    there_says = here in says[there]
    if one is None:
        return there_says
    here_says = there in says[here]
    if here_says and there_says:
        return True
    # One end says yes and the other no: the one heard last is believed.
    newest_says = here_says if one.at_s > other.at_s else there_says
    return newest_says


def _without_link(last: Heard | None, now_s: float) -> str:
    if last is None or now_s - last.at_s > GONE_PERIODS * last.presence.period_s:
        return "gone"
    return "stale"


class Doubt:
    """Whether this machine's own ears can be trusted now; only then does it call others stale.

    Without a first tick there is none.
    """

    def __init__(self) -> None:
        self._last: Now | None = None
        self._until_s = 0.0
        self._before: dict[NodeId, str] = {}

    def tick(self, now: Now) -> None:
        """Note one tick a TICK_S; one that is late by either clock makes this machine listen before it judges."""
        last, self._last = self._last or now, now
        steady_s = now.steady_s - last.steady_s
        wall_s = (now.wall_ms - last.wall_ms) / 1000
        if steady_s > TICK_S + JUMP_S or abs(wall_s - steady_s) > JUMP_S:
            self._until_s = now.steady_s + JUMP_S
        elif steady_s > TICK_S + LAG_S:
            self._until_s = max(self._until_s, now.steady_s + LISTEN_S)

    def judge(
        self,
        me: NodeId,
        members: Iterable[NodeId],
        linked: Collection[NodeId],
        heard: Mapping[NodeId, Heard],
        now_s: float,
    ) -> dict[NodeId, str]:
        """Judge every member but me, as :func:`states` does, with what doubt there is."""
        found = states(me, members, linked, heard, now_s)
        self._before = keep_live(self._before, found) if self.holds(linked, heard, now_s) else found
        return self._before

    def holds(self, linked: Collection[NodeId], heard: Mapping[NodeId, Heard], now_s: float) -> bool:
        """Whether this machine doubts itself: it listens, or hears nothing new of more than half its neighbours.

        Args:
            linked: The machines it holds a link to now.
            heard: The newest presences.
            now_s: The steady clock.
        """
        if self._last is None:
            return False
        if now_s < self._until_s or now_s - self._last.steady_s > TICK_S + LAG_S:
            return True
        said = [heard[node] for node in linked if node in heard]
        fresh = sum(now_s - h.at_s <= LIVE_PERIODS * h.presence.period_s for h in said)
        return 2 * fresh < len(said)


def keep_live(before: Mapping[NodeId, str], found: Mapping[NodeId, str]) -> dict[NodeId, str]:
    """Judge with doubt: who was live stays so, nobody is called worse than before."""
    return {node: "live" if before.get(node) == "live" else state for node, state in found.items()}


@dataclass(slots=True)
class Flapping:
    """Which links are stated: every one at once, but that of a machine which just lost one only when it is steady.

    The machines whose link ended within FLAP_S are kept, at most ``kept_max``.
    """

    kept_max: int = 1024
    _ended_s: dict[NodeId, float] = field(default_factory=dict)

    def ended(self, node: NodeId, now_s: float) -> None:
        """Note the end of a link."""
        self._ended_s.pop(node, None)
        self._ended_s[node] = now_s
        if len(self._ended_s) > self.kept_max:
            del self._ended_s[next(iter(self._ended_s))]

    def wait_s(self, node: NodeId, since_s: float, now_s: float) -> float:
        """Seconds until a link may be stated; 0 where it may be now.

        Args:
            node: The machine at the other end.
            since_s: When the link began, on the steady clock.
            now_s: The steady clock.
        """
        if since_s - self._ended_s.get(node, -FLAP_S) >= FLAP_S:
            return 0.0
        return max(0.0, since_s + STEADY_S - now_s)
