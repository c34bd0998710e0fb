"""Bodies for the eyes of one person's machines: sealed with the owner's fleet key, bound to their author.

The key is handed over when a machine joins as the owner's own; other people see that a record exists and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.crypto import BadSeal, Entropy, seal, unseal
from mesh.base.errors import Refused
from mesh.base.names import NodeId
from mesh.schemas import SEALED_PLAIN_BYTES_MAX, SealedBody


class FleetSealer:
    """Seals and opens this owner's bodies.

    Args:
        me: This machine, the author of what it seals.
        keys: Number to fleet key; the last one seals. Looked at anew each time.
        is_mine: Whether a machine is proven to be this owner's.
        entropy: Randomness.
    """

    def __init__(
        self, me: NodeId, keys: Mapping[int, bytes], is_mine: Callable[[NodeId], bool], *, entropy: Entropy
    ) -> None:
        self._me = me
        self._keys = keys
        self._is_mine = is_mine
        self._entropy = entropy

    def seal(self, plain: bytes) -> bytes:
        """Seal a body for this owner's machines.

        Args:
            plain: At most 2048 bytes.

        Returns:
            A body for the record.

        Raises:
            Refused: It is too large.
        """
        if len(plain) > SEALED_PLAIN_BYTES_MAX:
            raise Refused(f"{len(plain)} bytes are too many for one record (at most {SEALED_PLAIN_BYTES_MAX})", reason="limit")
        epoch = list(self._keys)[-1]
        return encode(SealedBody(epoch, seal(self._keys[epoch], plain, entropy=self._entropy, associated=self._me)))

    def unseal(self, body: bytes, author: NodeId) -> bytes | None:
        """Open a body, or say None where it is another person's, of an unknown epoch, or changed.

        Args:
            body: A record's body.
            author: Who signed the record; a body copied under another author does not open.

        Returns:
            The plain bytes, or None.
        """
        if author != self._me and not self._is_mine(author):
            return None
        try:
            sealed = decode_untrusted(SealedBody, body, bytes_max=SEALED_PLAIN_BYTES_MAX + 128)
            key = self._keys.get(sealed.epoch)
            return None if key is None else unseal(key, sealed.sealed, associated=author)
        except (Malformed, BadSeal):
            return None
