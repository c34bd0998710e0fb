"""Which gate keys open what: a ring of committed keys, so that machines that slept or were cut off find back.

Every expulsion begins an epoch that commits to a new key. Two admins who were cut off from each other begin one each;
both stand beside each other, and everybody dials with the newest by (version, id). The newest eight open a link. An
older one opens the control lane only, for as long as a certificate can live, so that a machine that slept can catch up.
The gate is no authentication: it only keeps strangers from probing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mesh.base.clock import version_ms
from mesh.certificates import LIFE_S
from mesh.handshake import gate_commitment

FULL_MAX = 8
"""Keys that open a whole link; older ones open the control lane only."""
RING_MAX = 64
"""Keys that are kept and tried; beyond, the oldest opens nothing any more."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate key of the ring.

    Attributes:
        whole: Whether it opens a whole link, or the control lane only.
    """

    key: bytes
    commitment: bytes
    whole: bool


def ring(keys: Iterable[bytes], epochs: Sequence[tuple[bytes, int]], now_ms: int) -> list[Gate]:
    """Order the gate keys held here.

    Args:
        keys: Held, any order.
        epochs: What admins committed to and its version, newest first; a key without a commitment opens nothing.
        now_ms: Wall clock.

    Returns:
        The keys to dial and to answer with, newest first, at most RING_MAX.
    """
    held = {gate_commitment(key): key for key in keys}
    found: list[Gate] = []
    for place, (commitment, version) in enumerate(epochs):
        whole = place < FULL_MAX
        if commitment in held and (whole or version_ms(version) + LIFE_S * 1000 > now_ms):
            found.append(Gate(held.pop(commitment), commitment, whole))
    return found[:RING_MAX]


def lacking(held: Iterable[bytes], epochs: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """Name the commitments of the newest epochs whose key is not held.

    Args:
        held: The commitments of the keys held.
        epochs: As in :func:`ring`.
    """
    known = set(held)
    return [commitment for commitment, _ in epochs[:FULL_MAX] if commitment not in known]
