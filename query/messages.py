"""What query replicates over the mesh: grants and their revocations, as contents of the mesh's *about* envelope.

The mesh decides who may author them about whom and carries them as bytes; the kinds are 6 and 7 (docs/PROTOCOL.md,
section 3).
A replicated grant shows the owner's other machines what is open and lets them revoke it; only the machine it names serves
it, from its own register.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Range, Size
from mesh.base.names import GRANT_ID_BYTES, PROJECT_BYTES_MAX

KIND_GRANT = 6
KIND_REVOCATION = 7

LABEL_BYTES_MAX = 80
REASON_BYTES_MAX = 120
SCOPE_BYTES_MAX = 16
SCOPES_MAX = 4
EXPIRES_S_MAX = 1 << 36
RATE_PER_MIN_MAX = 6_000
PER_DAY_MAX = 1_000_000
CONTENT_BYTES_MAX = 450


@dataclass(frozen=True, slots=True)
class GrantBody:
    """A grant as other machines of the same owner see it.

    Attributes:
        grant: Its id.
        hash: Keyed hash of the secret; the key never leaves the serving machine, so this proves nothing elsewhere.
        project: What it opens.
        scopes: What may be done there.
        expires_s: When it ends, seconds since 1970.
        rate_per_min: Questions a minute.
        per_day: Questions a UTC day.
        serve_at: The machine that serves it.
        label: What its owner calls it.
    """

    grant: Annotated[bytes, Size(GRANT_ID_BYTES, GRANT_ID_BYTES)]
    hash: Annotated[bytes, Size(32, 32)]
    project: Annotated[str, Size(1, PROJECT_BYTES_MAX)]
    scopes: Annotated[tuple[Annotated[str, Size(1, SCOPE_BYTES_MAX)], ...], Count(SCOPES_MAX)]
    expires_s: Annotated[int, Range(0, EXPIRES_S_MAX)]
    rate_per_min: Annotated[int, Range(1, RATE_PER_MIN_MAX)]
    per_day: Annotated[int, Range(1, PER_DAY_MAX)]
    serve_at: Annotated[bytes, Size(16, 16)]
    label: Annotated[str, Size(0, LABEL_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class RevocationBody:
    """The end of a grant; it applies on receipt, whatever any clock says.

    Attributes:
        grant: Which.
        reason: Why, for the owner's eyes.
    """

    grant: Annotated[bytes, Size(GRANT_ID_BYTES, GRANT_ID_BYTES)]
    reason: Annotated[str, Size(0, REASON_BYTES_MAX)] = ""
