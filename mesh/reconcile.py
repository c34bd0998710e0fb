"""Bring two stores level over one link: digests first, then ids where they differ, then only what is lacking.

One :class:`Reconciler` a link. It knows no I/O: it is told what arrived and answers with messages to send. The lanes'
content is read through ``ids_of``. Both sides run the same rules, so a link heals whichever side lacks something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mesh.base.crypto import digest
from mesh.kinds import Lane
from mesh.messages import IDS_MAX, MESSAGE_BYTES_MAX, RECORDS_MAX, Digests, Ids, Records, Want

WANTED_MAX = 8192
REJECTED_MAX = 4096
"""Ids this side refused and does not ask for again; beyond, the memory is emptied and they are asked for once more."""

LANES = tuple(Lane)
IdsOf = Callable[[Lane], Sequence[bytes]]
Message = Digests | Ids | Want | Records


def lane_digest(salt: bytes, ids: Sequence[bytes]) -> bytes:
    """Hash a lane's sorted ids with the session's salt: a member cannot prepare two stores that look equal."""
    return digest(b"".join(ids), size=16, key=salt, person=b"hivemesh-lanes")


def pages(lane: Lane, ids: Sequence[bytes]) -> list[Ids]:
    """Cut a lane's ids into messages; an empty lane is one empty last page."""
    starts = range(0, max(len(ids), 1), IDS_MAX)
    return [Ids(lane.value, tuple(ids[i : i + IDS_MAX]), i + IDS_MAX >= len(ids)) for i in starts]


def batches(wires: Collection[bytes]) -> list[Records]:
    """Pack records into messages within both bounds."""
    out: list[Records] = []
    batch: list[bytes] = []
    size = 0
    for wire in wires:
        if batch and (size + len(wire) + 4 > MESSAGE_BYTES_MAX - 64 or len(batch) == RECORDS_MAX):
            out.append(Records(tuple(batch)))
            batch, size = [], 0
        batch.append(wire)
        size += len(wire) + 4
    if batch:
        out.append(Records(tuple(batch)))
    return out


class Reconciler:
    """One link's side of keeping two stores level.

    Args:
        salt: 16 bytes from the handshake.
        ids_of: The sorted ids of a lane, as offered now.
        holds: Whether this store holds an id.
    """

    def __init__(self, salt: bytes, ids_of: IdsOf, holds: Callable[[bytes], bool]) -> None:
        self._salt = salt
        self._ids_of = ids_of
        self._holds = holds
        self._wanted: dict[bytes, Lane] = {}
        self._told: set[Lane] = set()
        self._rejected: set[bytes] = set()
        self._complete: set[Lane] = set()

    @property
    def control_settled(self) -> bool:
        """Whether the control lane is level as far as this side can know."""
        return Lane.CONTROL in self._complete and Lane.CONTROL not in self._wanted.values()

    def start(self) -> list[Message]:
        """Begin a comparison, at link-up and periodically."""
        self._told.clear()
        return [Digests(tuple(lane_digest(self._salt, self._ids_of(lane)) for lane in LANES))]

    def on_digests(self, message: Digests) -> list[Message]:
        """Send the ids of every lane in which the two stores differ, control first."""
        out: list[Message] = []
        for lane, theirs in zip(LANES, message.lanes, strict=False):
            ids = self._ids_of(lane)
            if lane_digest(self._salt, ids) == theirs:
                self._complete.add(lane)
            else:
                self._told.add(lane)
                out.extend(pages(lane, ids))
        return out

    def on_ids(self, message: Ids) -> list[Message]:
        """Ask for what is lacking here, and tell the lane's ids in turn where that has not been done.

        A store that changed between the two digests makes one side see a difference and the other none: without the
        answer the first would wait for ids that never come. Ids beyond the bound wait for the next comparison.
        """
        lane = LANES[message.lane]
        room = WANTED_MAX - len(self._wanted)
        lacking = [
            i
            for i in dict.fromkeys(message.ids)
            if i not in self._wanted and i not in self._rejected and not self._holds(i)
        ][:room]
        self._wanted.update(dict.fromkeys(lacking, lane))
        out: list[Message] = [Want(tuple(lacking))] if lacking else []
        if message.last:
            self._complete.add(lane)
            if lane not in self._told:
                self._told.add(lane)
                out.extend(pages(lane, self._ids_of(lane)))
        return out

    def on_arrived(self, record_id: bytes, *, rejected: bool) -> None:
        """Note that a record came, and whether the door refused it."""
        self._wanted.pop(record_id, None)
        if rejected:
            if len(self._rejected) >= REJECTED_MAX:
                self._rejected.clear()
            self._rejected.add(record_id)

    def give_up_waiting(self) -> None:
        """Forget what was asked for and never came; the next comparison asks again."""
        self._wanted.clear()
        self._complete.add(Lane.CONTROL)
