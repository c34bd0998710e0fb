"""What this machine holds of everybody's units: the mesh's registers, unsealed, checked, and named."""

from __future__ import annotations

from typing import Any

from hive.ports import Sealer
from hive.unit import ACCEPTANCE_KIND, LESSON_KIND
from hive.view import Contribution, acceptance_untrusted, contribution_untrusted
from mesh.base.names import NodeId, OwnerId, base32, suffix
from mesh.base.ports import Directory, Entry, Records

DECODED_MAX = 50_000
"""Checked units kept in memory; beyond it all are dropped and checked anew."""


class Holdings:
    """Reads the lesson registers of the mesh; what does not unseal is another person's and passed over in silence.

    Args:
        records: The mesh's registers.
        directory: Who is in the mesh.
        sealer: Opens bodies sealed for the own person's machines.
    """

    def __init__(self, records: Records, directory: Directory, sealer: Sealer) -> None:
        self._records = records
        self._directory = directory
        self._sealer = sealer
        self._decoded: dict[bytes, Contribution] = {}

    def published(self) -> list[Contribution]:
        """List everybody's units in the mesh that this machine can read and that are sound."""
        if len(self._decoded) > DECODED_MAX:
            self._decoded.clear()
        entries = self._records.entries(LESSON_KIND)
        found = [self._decoded.get(entry.record_id) or self._decode(entry) for entry in entries]
        return [contribution for contribution in found if contribution is not None]

    def _decode(self, entry: Entry) -> Contribution | None:
        plain = self._sealer.unseal(entry.body, entry.author)
        contribution = None if plain is None else contribution_untrusted(entry, plain)
        if contribution is not None:
            self._decoded[entry.record_id] = contribution
        return contribution

    def accepted(self) -> dict[bytes, frozenset[bytes]]:
        """List the record ids accepted by hand on this machine, by lesson; what others accepted decides nothing here."""
        found: dict[bytes, frozenset[bytes]] = {}
        for entry in self._records.entries(ACCEPTANCE_KIND):
            if entry.author != self._directory.me.node:
                continue
            plain = self._sealer.unseal(entry.body, entry.author)
            acceptance = None if plain is None else acceptance_untrusted(entry, plain)
            if acceptance is not None:
                found[entry.key] = found.get(entry.key, frozenset()) | {acceptance.record_id}
        return found

    def owner_name(self, owner: OwnerId) -> str:
        """Name a person for display."""
        for member in (self._directory.me, *self._directory.members()):
            if member.owner == owner:
                return member.owner_name
        return suffix(owner)

    def _node_name(self, node: NodeId) -> str:
        me = self._directory.me
        member = me if node == me.node else self._directory.member(node)
        return suffix(node) if member is None else member.name

    def machine(self, contribution: Contribution) -> dict[str, Any]:
        """Describe one machine's part of a lesson; its time in milliseconds."""
        unit = contribution.unit
        return {
            "node": base32(contribution.author),
            "name": self._node_name(contribution.author),
            "owner": self.owner_name(contribution.owner),
            "mine": contribution.owner == self._directory.me.owner,
            "stance": unit.stance,
            "positive": unit.positive,
            "negative": unit.negative,
            "last_observed": unit.last_observed_ms,
            "record": base32(contribution.record_id) or None,
            "text": unit.text,
        }
