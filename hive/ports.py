"""What the hive asks of the floor above it."""

from __future__ import annotations

from typing import Protocol

from mesh.base.names import NodeId


class Sealer(Protocol):
    """Keeps bodies for the eyes of one person's machines."""

    def seal(self, plain: bytes) -> bytes:
        """Seal a body for this owner's machines.

        Args:
            plain: At most ``hive.unit.UNIT_BYTES_MAX`` bytes.
        """
        ...

    def unseal(self, body: bytes, author: NodeId) -> bytes | None:
        """Open a body, or say None where it is another person's or was changed.

        Args:
            body: A record's body.
            author: Who signed the record.
        """
        ...
