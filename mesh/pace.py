"""How much a link sends at once, and whether its peer is still there: two small decisions, without clocks of their own."""

from __future__ import annotations

from enum import Enum

from mesh.base.clock import Now

HOLD_S = 0.010
"""One payload should not hold the link longer than this."""
START_BYTES = 32 * 1024
BUDGET_BYTES_MIN = 4 * 1024
BUDGET_BYTES_MAX = 192 * 1024
"""Three whole channel messages. Measured on loopback: less costs more system calls, more leaves the caches."""

TICK_S = 5.0
"""How often :meth:`Liveness.tick` is asked."""
PING_EVERY_S = 15.0
SILENT_S = 40.0
"""Nothing heard for this long: the peer is gone. With the tick, it is noticed within 45 s."""
PROBE_S = 10.0
"""The time a peer has to answer after this machine slept."""
JUMP_S = 15.0
"""A tick that comes this much too late by either clock means that the machine slept or the clock was set."""
WRITE_S = 30.0
"""A payload the peer does not take for this long: it is too slow."""


class PayloadBudget:
    """The size of the next payload, so that one in flight holds the link for about HOLD_S.

    A fast network moves bulk in large payloads; on a slow line a heartbeat never waits behind much. Only a payload of
    at least half the budget says anything about the line. The system takes data in bursts, so one quick payload proves
    little: a step up is at most a quarter, a step down at most a half.
    """

    def __init__(self) -> None:
        self.bytes_max = START_BYTES

    def sent(self, payload_bytes: int, took_s: float) -> None:
        """Learn from one payload.

        Args:
            payload_bytes: Its size.
            took_s: How long handing it to the system took, waiting included.
        """
        if payload_bytes * 2 < self.bytes_max:
            return
        factor = min(1.25, max(0.5, HOLD_S / max(took_s, 1e-6)))
        self.bytes_max = min(BUDGET_BYTES_MAX, max(BUDGET_BYTES_MIN, int(self.bytes_max * factor)))


class Verdict(Enum):
    """What a tick asks for."""

    REST = "rest"
    PING = "ping"
    SILENT = "silent"
    TOO_SLOW = "too slow"


class Liveness:
    """Whether the peer of a link is still there. Any authenticated payload counts as a sign of life.

    After a sleep nothing was heard for long, yet the link may be whole: the peer then gets PROBE_S to answer.

    Args:
        now: The clock at the start.
    """

    def __init__(self, now: Now) -> None:
        self._last_tick = now
        self._heard_s = self._pinged_s = now.steady_s
        self._probe_until_s: float | None = None

    def tick(self, now: Now, *, heard: bool, writing_s: float) -> Verdict:
        """Judge once every TICK_S.

        Args:
            now: The clock.
            heard: Whether anything came since the last tick.
            writing_s: For how long the payload in flight has been waiting; 0 where none is.

        Returns:
            What to do; PING at once after a jump of either clock.
        """
        steady_s = now.steady_s - self._last_tick.steady_s
        wall_s = (now.wall_ms - self._last_tick.wall_ms) / 1000
        jumped = steady_s > TICK_S + JUMP_S or abs(wall_s - steady_s) > JUMP_S
        self._last_tick = now
        if heard:
            self._heard_s, self._probe_until_s = now.steady_s, None
        if jumped:
            self._probe_until_s, self._pinged_s = now.steady_s + PROBE_S, now.steady_s
            return Verdict.PING
        return self._judge(now.steady_s, writing_s)

    def _judge(self, steady_s: float, writing_s: float) -> Verdict:
        if self._probe_until_s is not None:
            return Verdict.SILENT if steady_s >= self._probe_until_s else Verdict.REST
        if steady_s - self._heard_s >= SILENT_S:
            return Verdict.SILENT
        if writing_s >= WRITE_S:
            return Verdict.TOO_SLOW
        if steady_s - self._pinged_s >= PING_EVERY_S:
            self._pinged_s = steady_s
            return Verdict.PING
        return Verdict.REST
