"""When a machine or an address may be dialled, how often others may dial in, and which of two links stays.

Back-off is exponential with full jitter, and forgets only after a link lived for a minute. An address that failed to
prove a key is tried less and less, whoever announced it and for whichever machine, so a liar's announcement does not make
a fleet hammer a victim. Whom to dial among those that are due is ``mesh.degree``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from mesh.base.names import NodeId

BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 60.0
STEADY_LINK_S = 60.0
SIGHTING_S_MIN = 5.0
"""A machine sighted on the LAN may be tried at once, but not more often than this."""
SIGHTED_FAILURES_MAX = 3
"""An address that failed so often is not tried earlier because it is announced again."""
ADDRESS_BACKOFF_S_MIN = 2.0
ADDRESS_BACKOFF_S_MAX = 3600.0
UNPROVED_A_S_MAX = 1.0
"""Dials a second to addresses that never proved a key."""
UNPROVED_BURST = 8
ACCEPTED_MAX = 6
ACCEPTED_S = 60.0
"""A machine is let in so often in so many seconds, however often it dials."""
ACCEPTED_KEPT_MAX = 1024
ADDRESSES_KEPT_MAX = 512
YOUNG_LINK_S = 5.0


@dataclass(slots=True)
class _Tries:
    failures: int = 0
    next_at_s: float = 0.0
    sighted_at_s: float = field(default=-1e9)


class Schedule:
    """When each machine or address may be dialled next.

    Args:
        backoff_s_min: The first ceiling of the pause, which doubles.
        backoff_s_max: The last one.
        kept_max: Most entries; beyond, the one that is due first is forgotten.
    """

    def __init__(
        self,
        *,
        backoff_s_min: float = BACKOFF_S_MIN,
        backoff_s_max: float = BACKOFF_S_MAX,
        kept_max: int = ADDRESSES_KEPT_MAX,
    ) -> None:
        self._tries: dict[object, _Tries] = {}
        self._backoff_s_min = backoff_s_min
        self._backoff_s_max = backoff_s_max
        self._kept_max = kept_max

    def may_dial(self, what: object, now_s: float) -> bool:
        """Whether this one is due."""
        tries = self._tries.get(what)
        return tries is None or now_s >= tries.next_at_s

    def failed(self, what: object, now_s: float, draw: float) -> float:
        """Note a failure.

        Args:
            what: A node id or an address.
            now_s: Steady clock.
            draw: A number in [0, 1), from the node's randomness.

        Returns:
            Seconds until it may be tried again: full jitter below a doubling ceiling.
        """
        if what not in self._tries and len(self._tries) >= self._kept_max:
            del self._tries[min(self._tries, key=lambda key: self._tries[key].next_at_s)]
        tries = self._tries.setdefault(what, _Tries())
        ceiling = min(self._backoff_s_max, self._backoff_s_min * 2.0**tries.failures)
        tries.failures = min(tries.failures + 1, 30)
        pause = self._backoff_s_min / 2 + draw * ceiling
        tries.next_at_s = now_s + pause
        return pause

    def sighted(self, what: object, now_s: float) -> None:
        """Let a machine that was just seen be tried at once, at most every five seconds."""
        tries = self._tries.get(what)
        if tries is not None and now_s - tries.sighted_at_s >= SIGHTING_S_MIN:
            tries.sighted_at_s = now_s
            tries.next_at_s = now_s

    def announced(self, what: object, now_s: float) -> None:
        """Let an address that was just announced be tried at once, unless it has failed too often already."""
        tries = self._tries.get(what)
        if tries is not None and tries.failures < SIGHTED_FAILURES_MAX:
            self.sighted(what, now_s)

    def proved(self, what: object) -> None:
        """Forget the failures of an address behind which a key was proved."""
        self._tries.pop(what, None)

    def lived(self, what: object, lived_s: float, now_s: float, draw: float) -> None:
        """Note the end of a link: one that lived long clears the record, a short one counts as a failure."""
        if lived_s >= STEADY_LINK_S:
            self._tries.pop(what, None)
        else:
            self.failed(what, now_s, draw)


class Allowance:
    """A bucket of acts: some in a burst, then so many a second.

    Args:
        burst: Acts in a burst, and at the start.
        a_second: How fast they come back.
        now_s: Steady clock.
    """

    def __init__(self, burst: float, a_second: float, now_s: float) -> None:
        self._burst = self._left = burst
        self._a_second = a_second
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next act is allowed; 0 where it is now."""
        self._left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self._a_second)
        self._at_s = now_s
        # What is short by less than the clock tells apart is not short.
        return 0.0 if self._left >= 1 - 1e-9 else (1 - self._left) / self._a_second

    def take(self, now_s: float) -> bool:
        """Take one act if it is allowed now."""
        allowed = self.wait_s(now_s) == 0
        if allowed:
            self._left -= 1
        return allowed


class Arrivals:
    """How often each machine was let in lately; it stays known when its link ends."""

    def __init__(self) -> None:
        self._at_s: dict[NodeId, list[float]] = {}

    def let_in(self, node: NodeId, now_s: float) -> bool:
        """Whether a machine that dialled is let in; at most ACCEPTED_MAX times in ACCEPTED_S.

        Args:
            node: Who proved its key.
            now_s: Steady clock.
        """
        lately = [at_s for at_s in self._at_s.pop(node, ()) if now_s - at_s < ACCEPTED_S]
        allowed = len(lately) < ACCEPTED_MAX
        if allowed:
            lately.append(now_s)
        self._at_s[node] = lately
        if len(self._at_s) > ACCEPTED_KEPT_MAX:
            # The one that dialled in longest ago goes first.
            del self._at_s[next(iter(self._at_s))]
        return allowed


def dialable(address: str, *, loopback: bool, public: bool = True) -> bool:
    """Whether an address another machine states may be dialled: never one that means something else here.

    Args:
        address: ``host:port``; a host name passes, and what it resolves to is asked again.
        loopback: Whether this node itself lives on loopback only, so that others' loopback is this host's too.
        public: Whether addresses of the open internet may be dialled on this machine's word.
    """
    host = address.rpartition(":")[0].strip("[]").split("%")[0].rstrip(".").lower()
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        label = host.rpartition(".")[2]
        if label == "localhost":
            return loopback
        # A last label that begins with a digit is no name but a number in a spelling only resolvers read (127.1, 0x7f.1).
        return bool(label) and not label[0].isdigit()
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return loopback
    if found.is_multicast or found.is_unspecified or found.is_link_local or found.is_reserved:
        return False
    return public or not found.is_global


@dataclass(frozen=True, slots=True)
class LinkFacts:
    """What decides between two links to one machine."""

    boot: bytes
    dialled_by_me: bool
    age_s: float
    direct: bool = True


def newer_wins(me: NodeId, peer: NodeId, held: LinkFacts, fresh: LinkFacts) -> bool:
    """Decide whether a fresh proved link replaces the one that is held.

    A circuit never replaces a direct link to the same start of a machine, and a direct link replaces a circuit at once.
    A quick redial after a change of address replaces the old link at once. Only where both machines dialled each other
    at the same moment would that make them close each other's: then the link dialled by the smaller id stays, on both
    sides alike.

    Returns:
        Whether the fresh one stays.
    """
    if held.direct != fresh.direct and held.boot == fresh.boot:
        return fresh.direct
    crossed = held.age_s < YOUNG_LINK_S and held.dialled_by_me != fresh.dialled_by_me and held.boot == fresh.boot
    if not crossed:
        return True
    return fresh.dialled_by_me == (me < peer)
