"""One lane or channel of a link, and whose turn it is to send.

Lanes and channels have ranks: control, gossip, channel, bulk. A lower rank goes first, the flows of one rank take turns.
While a higher-numbered rank waits it gets one byte in eight, so that nothing starves: counted in bytes, because a turn
of bulk would otherwise weigh as much as a hundred small messages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from mesh.frames import FRAME_COST_BYTES, HEADER_BYTES, PAYLOAD_BYTES_MAX, Kind, data_header, end_frame

PIECE_BYTES_MIN = 1024
"""A message is not cut into smaller pieces than this; only its last one may be."""
TURN_BYTES = 16 * 1024
"""The longest turn while others wait."""
LOWER_TURN_BYTES = 4 * 1024
"""The turn of a lower class while a higher one waits."""
BYTES_PER_LOWER_TURN = 7 * LOWER_TURN_BYTES

CHANNEL_RANK, BULK_RANK = 2, 3
_RANKS = 4


@dataclass(slots=True)
class Flow:
    """One lane or channel.

    Attributes:
        rank: Its class: 0 control, 1 gossip, 2 channel, 3 bulk.
        sent: How much of the first queued message already went.
        credit: What the peer still lets us send.
        granted: What we still let the peer send.
        owed: Taken out by the application, not yet granted again.
        unread: Handed to the application, not yet taken out.
        opening: The purpose, until the request is whole; only where the peer opened it.
        closing: Why this side closes it; None while it does not.
        ended: The peer's CLOSE came.
    """

    number: int
    rank: int
    window: int
    queue: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    sent: int = 0
    credit: int = 0
    granted: int = 0
    owed: int = 0
    unread: int = 0
    ready: bool = False
    waited: bool = False
    opening: int | None = None
    parts: list[bytes] = field(default_factory=list)
    parts_bytes: int = 0
    parts_cost: int = 0
    closing: str | None = None
    close_sent: bool = False
    ended: bool = False

    def sendable(self) -> bool:
        """Whether a frame of this flow can go now."""
        if self.queue:
            rest = len(self.queue[0]) - self.sent
            return self.credit >= FRAME_COST_BYTES + min(rest, PIECE_BYTES_MIN)
        return self.closing is not None and not self.close_sent

    def drop_queue(self) -> None:
        """Forget what was not sent."""
        self.queue.clear()
        self.queued_bytes = self.sent = 0


class Turns:
    """Who sends next: the flows that can send, by rank, each rank in a circle."""

    def __init__(self) -> None:
        self._ready: list[deque[Flow]] = [deque() for _ in range(_RANKS)]
        self._debts = [0] * _RANKS

    def touch(self, flow: Flow) -> None:
        """Line a flow up where it has something it may send."""
        if not flow.ready and flow.sendable():
            flow.ready = True
            self._ready[flow.rank].append(flow)

    def waiting(self) -> bool:
        """Whether any flow is lined up."""
        return any(self._ready)

    def pack(self, parts: list[bytes], room_bytes: int) -> tuple[Flow, int] | None:
        """Let the next flow have its turn.

        Args:
            parts: Its frames are appended here.
            room_bytes: How much it may use at most.

        Returns:
            The flow and the bytes it used; None where nobody waits or the room is too small to be worth a piece.
        """
        if room_bytes < HEADER_BYTES + PIECE_BYTES_MIN or not (turn := self._next()):
            return None
        rank, limit = turn
        ready = self._ready[rank]
        flow = ready[0]
        used = _pack_flow(flow, parts, min(room_bytes, limit))
        self._debts[rank] = self._debts[rank] + used if any(self._ready[rank + 1 :]) else 0
        if flow.sendable():
            ready.rotate(-1)
        else:
            ready.popleft()
            flow.ready = False
        return flow, used

    def _next(self) -> tuple[int, int] | None:
        """Choose the rank that sends next, and how many bytes its turn has."""
        yielded = False
        for rank, ready in enumerate(self._ready):
            if not ready:
                continue
            lower = any(self._ready[rank + 1 :])
            if lower and self._debts[rank] >= BYTES_PER_LOWER_TURN:
                self._debts[rank] -= BYTES_PER_LOWER_TURN
                yielded = True
                continue
            if yielded:
                return rank, LOWER_TURN_BYTES
            return rank, TURN_BYTES if lower or len(ready) > 1 else PAYLOAD_BYTES_MAX
        return None


def _pack_flow(flow: Flow, parts: list[bytes], limit: int) -> int:
    """Send what a flow may send within a limit, its CLOSE behind its last message."""
    used = 0
    while flow.queue:
        head = flow.queue[0]
        rest = len(head) - flow.sent
        room = min(limit - used - HEADER_BYTES, flow.credit - FRAME_COST_BYTES)
        if room < min(rest, PIECE_BYTES_MIN):
            return used
        size = min(rest, room)
        whole = size == rest
        parts.append(data_header(flow.number, size, more=not whole))
        parts.append(head if size == len(head) else head[flow.sent : flow.sent + size])
        flow.credit -= FRAME_COST_BYTES + size
        flow.queued_bytes -= size
        flow.sent = 0 if whole else flow.sent + size
        used += HEADER_BYTES + size
        if whole:
            flow.queue.popleft()
    if flow.closing is not None and not flow.close_sent:
        frame = end_frame(Kind.CLOSE, flow.closing, flow.number)
        if used + len(frame) <= limit:
            parts.append(frame)
            used += len(frame)
            flow.close_sent = True
    return used
