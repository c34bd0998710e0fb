"""How many tries at codes a machine answers: few for each address, some in all, so that guessing stays hopeless.

Source: docs/decisions/0013-codes.md.
"""

from __future__ import annotations

import ipaddress
from collections import deque

WINDOW_S = 60.0
EACH_MAX = 5
"""Tries in a minute from one IPv4 address or one IPv6 /64."""
ALL_MAX = 20
"""Tries in a minute from all of them; one's own limit is asked first, so that a single guesser cannot use these up."""
SOURCES_MAX = 256


class Guesses:
    """Counts tries. Pure; one a node."""

    def __init__(self) -> None:
        self._all: deque[float] = deque()
        self._each: dict[str, deque[float]] = {}

    def admit(self, remote: str, now_s: float) -> bool:
        """Count one try, unless there were too many.

        Args:
            remote: The peer's address and port, as text.
            now_s: Steady clock.
        """
        source = source_of(remote)
        mine = self._each.get(source)
        if mine is None:
            if len(self._each) >= SOURCES_MAX:
                del self._each[min(self._each, key=lambda key: self._each[key][-1])]
            mine = self._each[source] = deque(maxlen=EACH_MAX + 1)
        for times in (mine, self._all):
            while times and now_s - times[0] >= WINDOW_S:
                times.popleft()
        allowed = len(mine) < EACH_MAX and len(self._all) < ALL_MAX
        if allowed:
            self._all.append(now_s)
            mine.append(now_s)
        elif not mine:
            del self._each[source]
        return allowed


def source_of(remote: str) -> str:
    """Name what counts as one source: an IPv4 address, or the /64 an IPv6 address lies in."""
    host = remote.rpartition(":")[0].strip("[]").split("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)
