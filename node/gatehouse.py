"""Both sides of handshakes, made from this node's identity, its gate keys and what it knows of the mesh."""

from __future__ import annotations

import secrets

from mesh.base.clock import Now, read_clock
from mesh.base.names import NodeId, base32
from mesh.certificates import Certified
from mesh.copies import make_counter
from mesh.handshake import Credentials, HelloCache, Initiator, Responder, discovery_tag
from mesh.identity import Identity
from mesh.keyring import Keyring
from mesh.replica import Replica
from node.rootword import learn_untrusted, shown

HOUR_MS = 3_600_000


class Gatehouse:
    """Makes both sides of handshakes.

    Args:
        identity: Who this machine is.
        keyring: Holds the gate keys.
        replica: What is known of the mesh.
        boot: From :func:`mesh.copies.make_boot`, new at each start of the node.
    """

    def __init__(self, identity: Identity, keyring: Keyring, replica: Replica, boot: bytes) -> None:
        self._identity = identity
        self._database = keyring.database
        self._keyring = keyring
        self._replica = replica
        self._boot = boot
        self._started_s = read_clock().steady_s
        self._handshakes = 0
        self._seen = HelloCache()

    def gates(self) -> list[bytes]:
        """The gate keys, newest first."""
        return [gate.key for gate in self._keyring.ring()]

    def tag(self) -> str:
        """What is announced on the LAN in this hour."""
        return base32(discovery_tag(self.gates()[0], read_clock()))

    def knows_tag(self, tag: str | None) -> bool:
        """Whether an announced tag is of this mesh: of this hour or a neighbouring one, since clocks differ."""
        if tag is None:
            return False
        now = read_clock()
        hours = (Now(now.wall_ms + shift * HOUR_MS, now.steady_s) for shift in (0, -1, 1))
        return any(tag == base32(discovery_tag(gate, hour)) for hour in hours for gate in self.gates())

    def _check(self, chain: tuple[bytes, ...]) -> Certified:
        now_s = read_clock().wall_ms // 1000
        return self._replica.members_now.check_untrusted(chain, now_s=now_s, me=self._identity.node_id, expired_too=True)

    def _learn(self, wires: tuple[bytes, ...]) -> None:
        learn_untrusted(wires, self._identity, self._database, self._replica)

    def _credentials(self) -> Credentials:
        self._handshakes += 1
        counter = make_counter(read_clock().steady_s - self._started_s, self._handshakes)
        chain = self._replica.members_now.chain_of(self._identity.node_id)
        return Credentials(
            self._identity.node, self._identity.mesh, chain, self._boot, counter, self._check, shown(self._database, self._replica), self._learn
        )

    def initiator(self, expected: NodeId | None, older: int = 0) -> Initiator:
        """Dial somebody, with the gate key so many before the newest."""
        gates = self.gates()
        return Initiator(
            self._credentials(), gates[older % len(gates)], entropy=secrets.token_bytes, now=read_clock(), expected=expected
        )

    def responder(self) -> Responder:
        """Answer somebody."""
        return Responder(self._credentials(), self.gates(), self._seen, entropy=secrets.token_bytes, now=read_clock())
