"""Time as values: wall clock, a clock that runs through suspend, and hybrid logical versions.

Cores never read a clock; shells read it here and hand :class:`Now` in.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from mesh.base.errors import Usage

FUTURE_MS_MAX = 10 * 60 * 1000
"""A version further ahead than this is held back, not stored."""
VERSION_MAX = (1 << 63) - 1

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"([1-9][0-9]{0,4})([smhdw])\Z", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class Now:
    """One reading of both clocks.

    Attributes:
        wall_ms: Milliseconds since 1970, as this machine believes.
        steady_s: Seconds since some start; runs on while the machine sleeps, never jumps.
    """

    wall_ms: int
    steady_s: float


def read_clock() -> Now:
    """Read both clocks of this machine.

    Linux's monotonic clock stops during suspend, so the boot-time clock is used where it exists.
    """
    return Now(time.time_ns() // 1_000_000, time.clock_gettime(_BOOT_CLOCK))


def next_version(wall_ms: int, newest: int) -> int:
    """Issue the next hybrid logical version: 48 bits of milliseconds, 16 bits of counter.

    Args:
        wall_ms: This machine's wall clock.
        newest: The greatest version this author ever used, or 0.

    Returns:
        A version greater than ``newest`` and not older than the wall clock.

    Source: Kulkarni et al., "Logical Physical Clocks", 2014.
    """
    return max(wall_ms << 16, newest + 1)


def version_ms(version: int) -> int:
    """Read the wall-clock part of a version, in milliseconds."""
    return version >> 16


def parse_duration_s(text: str) -> int:
    """Read a duration such as ``90s``, ``24h`` or ``30d``.

    Args:
        text: One number of one to five digits and a unit of s, m, h, d, w.

    Returns:
        Seconds.

    Raises:
        Usage: Anything else.
    """
    found = _DURATION.match(text)
    if not found:
        raise Usage(f"{text[:40]!r} is not a duration", hint="write a number and a unit: 90s, 15m, 24h, 30d, 2w")
    return int(found[1]) * _SECONDS[found[2]]


def rfc3339(wall_ms: int | None) -> str | None:
    """Write a time for JSON: RFC 3339, UTC, milliseconds; None stays None."""
    if wall_ms is None:
        return None
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{wall_ms % 1000:03d}Z"


def parse_rfc3339_ms(text: str) -> int | None:
    """Read an RFC 3339 time with a zone; None where it is not one (transcripts hold anything)."""
    try:
        moment = datetime.fromisoformat(text[:40])
        if moment.tzinfo is None:
            return None
        wall_ms = (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None
    return wall_ms if 0 <= wall_ms < (1 << 47) else None
