"""Circuits: links through other machines, to those that cannot be dialled. Which way, when, and what a relay allows.

Whoever opens a circuit names the whole way. Ways are found in the newest presences: only over links that both ends state,
only through machines with the role relay, never twice through one machine, over at most HOPS_MAX links. A relay takes
an opening only over a direct link and hands it on only over a direct link, so a circuit never runs inside another one
and no byte is paid for more than HOPS_MAX times. It bounds circuits, openings and bytes for the whole machine, and for
each neighbour, whatever the neighbour claims about who is behind it.

What is in here decides and does no I/O; ``mesh.relaying`` does what it says.

Source: decisions/0014; docs/PROTOCOL.md, section 9.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from mesh.base.codec import Malformed
from mesh.base.crypto import digest
from mesh.base.names import NodeId
from mesh.messages import CIRCUIT_MESSAGES, HOPS_MAX, CircuitAnswer, CircuitOpen, CircuitRefused
from mesh.presence import LIVE_PERIODS, Heard, link_mark
from mesh.topology import Schedule

CIRCUITS_MAX = 64
"""Circuits that run through or end at this machine, those it opened itself apart."""
CIRCUITS_A_PEER_MAX = 16
"""Of those, the ones over one direct link."""
OPENS_A_MINUTE_MAX = 10
"""Openings over one direct link; it counts on when the link is made anew."""
OPENS_WINDOW_S = 60.0
CIRCUIT_BYTES_S = 1 << 20
PEER_BYTES_S = 2 << 20
RELAYED_BYTES_S = 4 << 20
"""What this machine relays in all, both directions together; whoever wants more waits."""
SHARE_BURST_S = 0.25
IDLE_S = 120.0
"""A circuit on which nothing passes for so long is closed; the link inside pings far more often."""
MESSAGE_BYTES_MAX = 4400
ROUTES_MAX = 3
"""Ways tried for one circuit."""
FALSE_LINK_S = 60.0
FALSE_LINKS_MAX = 256
APART_S = 3.0
"""So long dialling has time to succeed before a circuit is opened."""
OTHER_SIDE_S = 5.0
"""Of two machines that miss each other the one with the greater id waits this much longer, so that one circuit is made."""
ASKED_S = 120.0
ASKED_MAX = 64
"""Machines somebody asked for that are held to be wanted for ASKED_S; one more makes the oldest forgotten."""

Route = tuple[NodeId, ...]
"""From the machine that opens, over the relays, to the machine it is for."""


class Why(IntEnum):
    """Why a circuit is refused."""

    MALFORMED = 1
    NESTED = 2
    TOO_OFTEN = 3
    NOT_A_MEMBER = 4
    NO_RELAY = 5
    NO_LINK = 6
    FULL = 7
    NO_HANDSHAKE = 8


WORDS: dict[int, str] = {
    Why.MALFORMED: "the request for a circuit is malformed",
    Why.NESTED: "a circuit does not run inside another one",
    Why.TOO_OFTEN: "too many circuits were opened over this link",
    Why.NOT_A_MEMBER: "a machine on the way is not a member",
    Why.NO_RELAY: "a machine on the way does not relay",
    Why.NO_LINK: "a machine on the way has no direct link to the next",
    Why.FULL: "a machine on the way relays as much as it will",
    Why.NO_HANDSHAKE: "the other machine does not take this handshake",
}


# Which way ------------------------------------------------------------------------------------------------------


def choose_routes(
    me: NodeId,
    target: NodeId,
    heard: Mapping[NodeId, Heard],
    linked: Collection[NodeId],
    relays: Collection[NodeId],
    now_s: float,
    false_links: Collection[tuple[NodeId, NodeId]] = (),
) -> list[Route]:
    """Find ways to a machine, the shortest first.

    Args:
        me: This machine.
        target: Whom to reach.
        heard: The newest presences.
        linked: The machines this one holds a direct link to now.
        relays: Current members with the role relay.
        now_s: This machine's steady clock.
        false_links: Links that were stated and proved not to be there.

    Returns:
        At most ROUTES_MAX ways of one length, at least one relay each; empty where the presences show none.
    """

    def fresh(node: NodeId) -> bool:
        said = heard.get(node)
        return said is not None and now_s - said.at_s <= LIVE_PERIODS * said.presence.period_s

    between = [relay for relay in relays if relay not in (me, target) and fresh(relay)]
    if not fresh(target) or target == me:
        return []
    marks = {node: frozenset(heard[node].presence.links) for node in (*between, target)}

    def joined(one: NodeId, other: NodeId) -> bool:
        both = link_mark(one, other) in marks[one] and link_mark(other, one) in marks[other]
        return both and (one, other) not in false_links

    # A hash spreads the circuits of a fleet over its relays.
    between.sort(key=lambda relay: digest(me, target, relay, size=8, person=b"hivemesh-route"))
    first = [relay for relay in between if relay in linked and (me, relay) not in false_links]
    last = [relay for relay in between if joined(relay, target)]
    if not first or not last:
        return []
    found: list[Route] = []
    for ways in (_over_one(first, last), _over_two(first, last, joined), _over_three(first, last, between, joined)):
        for way in ways:
            found.append((me, *way, target))
            if len(found) == ROUTES_MAX:
                return found
        if found:
            break
    return found


def _over_one(first: list[NodeId], last: list[NodeId]) -> Iterator[Route]:
    return ((relay,) for relay in first if relay in last)


def _over_two(first: list[NodeId], last: list[NodeId], joined: Callable[[NodeId, NodeId], bool]) -> Iterator[Route]:
    return ((one, two) for one in first for two in last if one != two and joined(one, two))


def _over_three(
    first: list[NodeId], last: list[NodeId], between: list[NodeId], joined: Callable[[NodeId, NodeId], bool]
) -> Iterator[Route]:
    for one in first:
        for two in between:
            if two != one and joined(one, two):
                yield from ((one, two, three) for three in last if three not in (one, two) and joined(two, three))


def false_link(route: Route, refused: CircuitRefused) -> tuple[NodeId, NodeId] | None:
    """Name the link to leave out of the next ways after a refusal; None where the target itself refused.

    Whoever stands on the way may blame another one: that costs the ways over one link for a while, nothing else.
    """
    if refused.at >= len(route) - 1:
        return None
    at = refused.at if refused.why == Why.NO_LINK else refused.at - 1
    return route[at], route[at + 1]


# When -----------------------------------------------------------------------------------------------------------


class Openings:
    """Which machines a circuit is due to, and which stated links are not believed for a while.

    Args:
        me: This machine.
    """

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._apart_since_s: dict[NodeId, float] = {}
        self._asked_s: dict[NodeId, float] = {}
        self._tries = Schedule()
        self._false_links: dict[tuple[NodeId, NodeId], float] = {}

    def ask_for(self, node: NodeId, now_s: float) -> None:
        """Somebody wants this machine now."""
        self._asked_s.pop(node, None)
        if len(self._asked_s) >= ASKED_MAX:
            del self._asked_s[next(iter(self._asked_s))]
        self._asked_s[node] = now_s
        self._tries.sighted(node, now_s)

    def asked(self, node: NodeId, now_s: float) -> bool:
        """Whether somebody wanted it lately."""
        return now_s - self._asked_s.get(node, -ASKED_S) < ASKED_S

    def due(self, apart: Iterable[NodeId], now_s: float) -> list[NodeId]:
        """Choose whom to open a circuit to.

        Args:
            apart: The machines this one wants a link to and holds none, not even a circuit. What is not among them is
                forgotten.
            now_s: Steady clock.

        Returns:
            Those that have been apart long enough for dialling to succeed, and are not being backed off from.
        """
        since = {node: self._apart_since_s.get(node, now_s) for node in apart}
        self._apart_since_s = since
        return [node for node, at_s in since.items() if now_s - at_s >= self._patience_s(node) and self._tries.may_dial(node, now_s)]

    def _patience_s(self, node: NodeId) -> float:
        return APART_S if self._me < node or node in self._asked_s else APART_S + OTHER_SIDE_S

    def failed(self, node: NodeId, now_s: float, draw: float) -> None:
        """Note that no way led there; ``draw`` is a number in [0, 1)."""
        self._tries.failed(node, now_s, draw)

    def lived(self, node: NodeId, lived_s: float, now_s: float, draw: float) -> None:
        """Note the end of a circuit."""
        self._tries.lived(node, lived_s, now_s, draw)

    def disbelieve(self, link: tuple[NodeId, NodeId], now_s: float) -> None:
        """Leave a stated link out of the ways for FALSE_LINK_S."""
        if len(self._false_links) >= FALSE_LINKS_MAX:
            del self._false_links[next(iter(self._false_links))]
        self._false_links[link] = now_s + FALSE_LINK_S

    def disbelieved(self, now_s: float) -> frozenset[tuple[NodeId, NodeId]]:
        """The stated links that are left out now."""
        self._false_links = {link: until_s for link, until_s in self._false_links.items() if until_s > now_s}
        return frozenset(self._false_links)


# What a relay allows --------------------------------------------------------------------------------------------


class Share:
    """An equal flow of bytes: how long to wait before some more may pass.

    Args:
        bytes_s: Bytes a second; SHARE_BURST_S of it may pass at once.
    """

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_at_s = float("-inf")

    def take(self, size: int, now_s: float) -> float:
        """Book some bytes; returns the seconds to wait before they may pass."""
        self._free_at_s = max(self._free_at_s, now_s - SHARE_BURST_S) + size / self._bytes_s
        return max(0.0, self._free_at_s - now_s)


@dataclass(slots=True)
class Circuit:
    """One circuit as a machine on it sees it.

    Attributes:
        before: The neighbour it came from.
        after: The neighbour it goes on to; None where it ends here.
    """

    number: int
    route: Route
    before: NodeId
    after: NodeId | None
    used_s: float
    share: Share = field(default_factory=lambda: Share(CIRCUIT_BYTES_S))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a relay knows at the moment of an opening.

    Attributes:
        linked: The machines it holds a direct link to.
        current: Whether a machine is a member now: neither expelled nor expired.
        relays: Whether this machine relays at all: by its role and by its setting.
    """

    linked: Collection[NodeId]
    current: Callable[[NodeId], bool]
    relays: bool


class Relay:
    """The circuits through and to this machine, and what they may use.

    Args:
        me: This machine.
    """

    def __init__(self, me: NodeId) -> None:
        self._me = me
        self._next = 1
        self.circuits: dict[int, Circuit] = {}
        self._opens: dict[NodeId, deque[float]] = {}
        self._peer_shares: dict[NodeId, Share] = {}
        self._share = Share(RELAYED_BYTES_S)

    def admit(
        self, opened: CircuitOpen, peer: NodeId, around: Surroundings, now_s: float, *, direct: bool
    ) -> Circuit | Why:
        """Judge the request for a circuit, whole of fields but otherwise unchecked.

        Args:
            opened: The request.
            peer: Who sent it, proved by the link it came over.
            around: What this machine knows.
            now_s: Steady clock.
            direct: Whether that link is no circuit itself.

        Returns:
            The circuit, booked until :meth:`close`; or why not.
        """
        if not direct:
            return Why.NESTED
        route: Route = tuple(NodeId(node) for node in opened.route)
        if not _is_sound(route, opened.at, self._me, peer):
            return Why.MALFORMED
        if not self._may_open(peer, now_s):
            return Why.TOO_OFTEN
        if not all(around.current(node) for node in route if node != self._me):
            return Why.NOT_A_MEMBER
        after = route[opened.at + 1] if opened.at + 1 < len(route) else None
        if after is not None and not around.relays:
            return Why.NO_RELAY
        if after is not None and after not in around.linked:
            return Why.NO_LINK
        if len(self.circuits) >= CIRCUITS_MAX or max(self._count(peer), self._count(after)) >= CIRCUITS_A_PEER_MAX:
            return Why.FULL
        circuit = Circuit(self._next, route, peer, after, now_s)
        self._next += 1
        self.circuits[circuit.number] = circuit
        return circuit

    def _may_open(self, peer: NodeId, now_s: float) -> bool:
        opens = self._opens.setdefault(peer, deque())
        while opens and now_s - opens[0] >= OPENS_WINDOW_S:
            opens.popleft()
        if len(opens) >= OPENS_A_MINUTE_MAX:
            return False
        opens.append(now_s)
        return True

    def _count(self, peer: NodeId | None) -> int:
        if peer is None:
            return 0
        return sum(peer in (circuit.before, circuit.after) for circuit in self.circuits.values())

    def passes(self, circuit: Circuit, source: NodeId, size: int, now_s: float) -> float:
        """Book bytes that came from a neighbour.

        Args:
            circuit: Which.
            source: The neighbour they came from, to whose account they go.
            size: How many.
            now_s: Steady clock.

        Returns:
            Seconds to wait before they are handed on.
        """
        circuit.used_s = now_s
        shares = (circuit.share, self._peer_shares.setdefault(source, Share(PEER_BYTES_S)), self._share)
        return max(share.take(size, now_s) for share in shares)

    def close(self, circuit: Circuit) -> None:
        """Forget a circuit; nothing happens where it is forgotten already."""
        self.circuits.pop(circuit.number, None)

    def overdue(self, around: Surroundings, now_s: float) -> list[tuple[Circuit, str]]:
        """Find the circuits to close: nothing passes, somebody on them is no member any more, relaying was switched off.

        A circuit that ends here is a link like any other and watched as one, its members apart.

        Returns:
            Each with the reason, for a person.
        """
        found: list[tuple[Circuit, str]] = []
        for circuit in self.circuits.values():
            if not all(around.current(node) for node in circuit.route if node != self._me):
                found.append((circuit, WORDS[Why.NOT_A_MEMBER]))
            elif circuit.after is not None and not around.relays:
                found.append((circuit, WORDS[Why.NO_RELAY]))
            elif circuit.after is not None and now_s - circuit.used_s >= IDLE_S:
                found.append((circuit, "nothing passed for two minutes"))
        busy = {peer for circuit in self.circuits.values() for peer in (circuit.before, circuit.after)}
        self._peer_shares = {peer: share for peer, share in self._peer_shares.items() if peer in busy}
        self._opens = {peer: opens for peer, opens in self._opens.items() if opens and now_s - opens[-1] < OPENS_WINDOW_S}
        return found


def _is_sound(route: Route, at: int, me: NodeId, peer: NodeId) -> bool:
    """Whether a route is one: two links or more, nobody twice, this machine and its neighbour where it says."""
    return (
        3 <= len(route) <= HOPS_MAX + 1
        and 1 <= at < len(route)
        and len(set(route)) == len(route)
        and route[at] == me
        and route[at - 1] == peer
    )


def read_open_untrusted(data: bytes) -> CircuitOpen:
    """Read the request of a circuit's channel.

    Raises:
        Malformed: It is none.
    """
    message = CIRCUIT_MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX)
    if not isinstance(message, CircuitOpen):
        raise Malformed("not a request for a circuit")
    return message


def read_answer_untrusted(data: bytes) -> CircuitAnswer | CircuitRefused:
    """Read the first message that comes back.

    Raises:
        Malformed: It is neither an answer nor a refusal.
    """
    message = CIRCUIT_MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX)
    if not isinstance(message, (CircuitAnswer, CircuitRefused)):
        raise Malformed("not an answer to a request for a circuit")
    return message
