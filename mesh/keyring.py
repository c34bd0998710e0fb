"""The symmetric keys of this machine: gate keys for every member, fleet keys for the machines of one person.

Both are handed over between members only, over links that proved who is at the other end, and taken only where a
signed commitment names them: an admin's for a gate key, the person's own machine's for a fleet key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.codec import encode
from mesh.base.crypto import KEY_BYTES, Entropy, digest
from mesh.base.db import Connection, Database
from mesh.base.names import NodeId
from mesh.certificates import EpochBody
from mesh.gates import RING_MAX, Gate, lacking, ring
from mesh.handshake import gate_commitment
from mesh.identity import FLEET, GATE
from mesh.kinds import EPOCH, FLEET_EPOCH
from mesh.messages import KEYS_MAX
from mesh.records import Record
from mesh.replica import Replica

FLEET_NUMBER_MAX = 65_535
FLEET_KEYS_MAX = 64
"""Fleet keys that are kept; beyond, the oldest is forgotten and what it sealed is not read any more."""


def fleet_commitment(key: bytes) -> bytes:
    """Commit to a fleet key without showing it."""
    return digest(key, person=b"hivemesh-fleet")


def fleet_number(commitment: bytes) -> int:
    """The number a sealed body names a fleet key by; 0 is the first key of a person, which nothing commits to."""
    return 1 + int.from_bytes(commitment[:4], "big") % FLEET_NUMBER_MAX


class Keyring:
    """The gate and fleet keys held here.

    Args:
        database: ``mesh.db``.
        replica: This machine's copy of the mesh.
        read_clock: Reads both clocks.
        entropy: Randomness.

    Attributes:
        fleet: Number to fleet key; the last one seals. Kept up to date in place.
        gained: Set, and made anew, whenever a key was taken or made.
        recent: The commitments of those keys.
    """

    def __init__(self, database: Database, replica: Replica, read_clock: Callable[[], Now], entropy: Entropy) -> None:
        self.database = database
        self._replica = replica
        self._read_clock = read_clock
        self._entropy = entropy
        self.fleet: dict[int, bytes] = {}
        self.gained = trio.Event()
        self.recent: tuple[bytes, ...] = ()
        self.order_fleet()

    # Gate keys -------------------------------------------------------------------------------------------------

    def ring(self) -> list[Gate]:
        """The gate keys to dial and answer with, newest first; never empty."""
        held = store.secrets(self.database.reader, GATE)
        found = ring(held.values(), self._replica.members_now.gate_epochs(), self._read_clock().wall_ms)
        # A store without its epochs (an old backup) still has what it was founded or joined with.
        return found or [Gate(key, gate_commitment(key), True) for key in held.values()][:1]

    def is_whole(self, commitment: bytes) -> bool:
        """Whether the gate key a link began with opens all of it; one nobody knows any more does not."""
        return any(gate.whole for gate in self.ring() if gate.commitment == commitment)

    # Fleet keys ------------------------------------------------------------------------------------------------

    def order_fleet(self) -> None:
        """Read the fleet keys anew, in the order their commitments stand in."""
        held = store.secrets(self.database.reader, FLEET)
        numbers = [0, *(fleet_number(commitment) for commitment in self._fleet_epochs())]
        ordered = {number: held[number] for number in sorted(held) if number not in numbers}
        ordered |= {number: held[number] for number in numbers if number in held}
        self.fleet.clear()
        self.fleet.update(ordered)

    def _fleet_epochs(self) -> list[bytes]:
        return self._replica.members_now.fleet_epochs(self._replica.me.owner)[-FLEET_KEYS_MAX:]

    # Handing over ----------------------------------------------------------------------------------------------

    def lacking(self) -> tuple[bytes, ...]:
        """The commitments whose keys this machine should have and does not."""
        gates = (gate_commitment(key) for key in store.secrets(self.database.reader, GATE).values())
        wanted = lacking(gates, self._replica.members_now.gate_epochs())
        fleet = [commitment for commitment in self._fleet_epochs() if fleet_number(commitment) not in self.fleet]
        return (*wanted, *fleet)[:KEYS_MAX]

    def keys_for(self, wanted: Sequence[bytes], peer: NodeId) -> tuple[bytes, ...]:
        """The keys a member may have among those it asks for.

        Args:
            wanted: Commitments, anything.
            peer: Who asks, proved by its link; fleet keys are for this person's machines only.
        """
        member = self._replica.member(peer)
        if member is None or member.state in ("expelled", "expired"):
            return ()
        held = {gate_commitment(key): key for key in store.secrets(self.database.reader, GATE).values()}
        if member.mine:
            held |= {fleet_commitment(key): key for key in self.fleet.values()}
        return tuple(held[commitment] for commitment in dict.fromkeys(wanted) if commitment in held)[:KEYS_MAX]

    async def take_untrusted(self, keys: Sequence[bytes]) -> bool:
        """Keep the keys that somebody handed over and that a signed commitment names.

        Args:
            keys: Anything of 32 bytes each.

        Returns:
            Whether any was kept, so that it makes sense to ask for more.

        Raises:
            StorageFull, OurFault: The disk refuses; none is kept.
        """
        wanted = set(self.lacking())
        gates = [key for key in keys if gate_commitment(key) in wanted]
        fleet = [key for key in keys if fleet_commitment(key) in wanted]
        if gates or fleet:
            await self.database.write(lambda connection: self._put(connection, gates, fleet))
            self._note_gain(gates, fleet)
        return bool(gates or fleet)

    def _put(self, connection: Connection, gates: Sequence[bytes], fleet: Sequence[bytes]) -> None:
        for key in gates:
            store.add_secret(connection, GATE, key, count_max=RING_MAX)
        for key in fleet:
            store.put_secret(connection, FLEET, fleet_number(fleet_commitment(key)), key)

    def _note_gain(self, gates: Sequence[bytes], fleet: Sequence[bytes]) -> None:
        self.order_fleet()
        self.recent = (*map(gate_commitment, gates), *map(fleet_commitment, fleet))[:KEYS_MAX]
        self.gained.set()
        self.gained = trio.Event()

    # New epochs ------------------------------------------------------------------------------------------------

    async def publish_with_new_keys(
        self, statements: Sequence[tuple[int, bytes, bytes]], *, gate: bool, fleet: bool
    ) -> None:
        """Publish this machine's statements together with fresh keys: all of it is on the disk, or nothing.

        Args:
            statements: Kind, key and body of each.
            gate: Begin a new epoch of the gate key; this machine must be an admin.
            fleet: Begin a new epoch of this person's fleet key.

        Raises:
            StorageFull, OurFault: The disk refuses; nothing was published.

        If cancelled: everything is published, or nothing.
        """
        gates = [self._entropy(KEY_BYTES)] if gate else []
        fleets = [self._entropy(KEY_BYTES)] if fleet else []
        epochs = [(EPOCH, gate_commitment(key)) for key in gates] + [(FLEET_EPOCH, fleet_commitment(key)) for key in fleets]
        said = [*statements, *((kind, commitment[:16], encode(EpochBody(commitment))) for kind, commitment in epochs)]
        records: list[Record] = [self._replica.sign(kind, key, body) for kind, key, body in said]
        now_ms = self._read_clock().wall_ms

        def keep(connection: Connection) -> None:
            store.put_records(connection, records, now_ms)
            self._put(connection, gates, fleets)

        with trio.CancelScope(shield=True):
            await self.database.write(keep)
            await self._replica.publish_signed(records)
        self._note_gain(gates, fleets)
