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

TICK_S = 1.0
"""How often :meth:`Liveness.tick` is asked."""
QUIET_S = 2.0
"""Nothing heard for this long: the dialling side asks. One question and its answer are a sign of life for both."""
QUIET_FAR_S = 3.5
"""The same on the other side: it asks only where the dialling side does not."""
SILENT_S = 6.0
"""Nothing heard for this long: the peer is gone. With the tick, it is noticed within 7 s."""
LAG_S = 1.0
"""A tick that comes this much too late: this machine slept or was busy, and its own silence says nothing."""
JUMP_S = 15.0
"""The two clocks went apart by this between two ticks: the machine slept or its clock was set."""
WRITE_S = 30.0
"""A payload that is not taken, or not whole, for this long: the peer is too slow."""


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

    A peer that is slow is kept: bytes of a payload that is still on its way count for as long as WRITE_S. So is the
    peer of a machine that is slow itself: after a late tick the count begins anew, with a question.

    Args:
        now: The clock at the start.
        initiator: Whether this side dialled.
    """

    def __init__(self, now: Now, *, initiator: bool = True) -> None:
        self._last_tick = now
        self._heard_s = self._whole_s = now.steady_s
        self._quiet_s = QUIET_S if initiator else QUIET_FAR_S
        self._asked = False

    def tick(self, now: Now, *, heard: bool, arriving: bool = False, writing_s: float = 0.0) -> Verdict:
        """Judge once every TICK_S.

        Args:
            now: The clock.
            heard: Whether a payload came since the last tick.
            arriving: Whether bytes came since the last tick that are no whole payload yet.
            writing_s: For how long the payload in flight has been waiting; 0 where none is.

        Returns:
            What to do; PING at once after a late tick or a jump of a clock.
        """
        steady_s = now.steady_s - self._last_tick.steady_s
        wall_s = (now.wall_ms - self._last_tick.wall_ms) / 1000
        unsure = steady_s > TICK_S + LAG_S or abs(wall_s - steady_s) > JUMP_S
        self._last_tick = now
        if heard or unsure:
            self._heard_s = self._whole_s = now.steady_s
            self._asked = False
        elif arriving and now.steady_s - self._whole_s < WRITE_S:
            self._heard_s = now.steady_s
        return Verdict.PING if unsure else self._judge(now.steady_s, writing_s)

    def _judge(self, steady_s: float, writing_s: float) -> Verdict:
        silence_s = steady_s - self._heard_s
        if silence_s >= SILENT_S:
            return Verdict.SILENT
        if writing_s >= WRITE_S:
            return Verdict.TOO_SLOW
        if silence_s >= self._quiet_s and not self._asked:
            self._asked = True
            return Verdict.PING
        return Verdict.REST
