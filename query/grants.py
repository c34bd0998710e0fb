"""A grant: its token, its scopes, when it holds, and how much of it is left. Pure rules; the register keeps the rows.

A token is ``hmq_<grant id>_<secret>_<check>``: 80 bits that name the row, 256 random bits that prove it, and a CRC-32 so
that scanners recognise a leaked one without asking anybody. The register holds a keyed hash of the secret only.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from dataclasses import dataclass, replace

from mesh.base.crypto import Entropy, digest
from mesh.base.errors import Usage
from mesh.base.names import GRANT_ID_BYTES, GrantId, base32, unbase32
from query.messages import LABEL_BYTES_MAX, PER_DAY_MAX, RATE_PER_MIN_MAX

SECRET_BYTES = 32
SECRET_CHARS = 43
CHECK_CHARS = 6
LIFE_S_MIN = 60
LIFE_S_MAX = 366 * 86_400
"""A grant ends; there is no word for never."""
RATE_PER_MIN_DEFAULT = 20
PER_DAY_DEFAULT = 500
CLOCK_BACK_MS_MAX = 60_000
"""A clock that went back further than this is not believed."""
DAY_MS = 86_400_000

SCOPE_QUERY = "project.query"
SCOPE_DOCS = "project.docs"
_SCOPES = {"query": SCOPE_QUERY, "docs": SCOPE_DOCS, SCOPE_QUERY: SCOPE_QUERY, SCOPE_DOCS: SCOPE_DOCS}

_TOKEN = re.compile(r"hmq_([a-z2-7]{16})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})\Z", re.ASCII)
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """A token taken apart; its secret never appears in a representation.

    Attributes:
        grant: The row it names.
        secret: What proves it, 43 characters.
    """

    grant: GrantId
    secret: str

    def __repr__(self) -> str:
        return f"<Token {base32(self.grant)}>"

    def text(self) -> str:
        """Write it as it is handed to the outsider, once."""
        head = f"hmq_{base32(self.grant)}_{self.secret}"
        return f"{head}_{_check(head)}"


def mint(entropy: Entropy) -> Token:
    """Make a new token.

    Args:
        entropy: The source of its 80 + 256 random bits.
    """
    grant = GrantId(entropy(GRANT_ID_BYTES))
    return Token(grant, _base62(int.from_bytes(entropy(SECRET_BYTES), "big"), SECRET_CHARS))


def _base62(number: int, width: int) -> str:
    digits = []
    for _ in range(width):
        number, rest = divmod(number, 62)
        digits.append(_BASE62[rest])
    return "".join(reversed(digits))


def _check(head: str) -> str:
    return _base62(zlib.crc32(head.encode("ascii")), CHECK_CHARS)


def open_untrusted(header: str | None) -> Token | None:
    """Read an ``Authorization`` header.

    Args:
        header: Anything, or None where there is none.

    Returns:
        The token, or None where the header is not ``Bearer`` and one well-formed token.
    """
    if header is None or len(header) > 256:
        return None
    scheme, _, text = header.partition(" ")
    found = _TOKEN.match(text) if scheme.lower() == "bearer" else None
    if not found or _check(text.rpartition("_")[0]) != found[3]:
        return None
    return Token(GrantId(unbase32(found[1])), found[2])


def secret_hash(pepper: bytes, secret: str) -> bytes:
    """Hash a secret for the register; fast on purpose, since 256 random bits cannot be guessed.

    Args:
        pepper: 32 bytes of this home's own file.
        secret: 43 characters.
    """
    return digest(secret.encode(), key=pepper, person=b"hivemesh-grant")


def scope_from(text: str) -> str:
    """Read a scope as a person writes it.

    Raises:
        Usage: There is no such scope.
    """
    scope = _SCOPES.get(text.strip())
    if scope is None:
        raise Usage(f"{text[:40]!r} is not a scope", hint="scopes are query and docs")
    return scope


def label_from(text: str) -> str:
    """Make a label safe to show: one line, no control or bidirectional characters.

    Raises:
        Usage: It is longer than LABEL_BYTES_MAX bytes.
    """
    kept = "".join(c for c in unicodedata.normalize("NFC", text[:400]) if unicodedata.category(c)[0] != "C")
    kept = " ".join(kept.split())
    if len(kept.encode()) > LABEL_BYTES_MAX:
        raise Usage(f"a label has at most {LABEL_BYTES_MAX} bytes")
    return kept


def check_limits(life_s: int, rate_per_min: int, per_day: int) -> None:
    """Refuse a life or a budget out of range.

    Raises:
        Usage: One of them is; the message says the range.
    """
    if not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
        raise Usage("a grant lives from one minute to 366 days", hint="--expires 30d")
    if not 1 <= rate_per_min <= RATE_PER_MIN_MAX:
        raise Usage(f"the rate is 1 to {RATE_PER_MIN_MAX} questions a minute")
    if not 1 <= per_day <= PER_DAY_MAX:
        raise Usage(f"the budget is 1 to {PER_DAY_MAX} questions a day")


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a grant is used.

    Attributes:
        rate_per_min: Questions a minute; a whole minute's worth may come at once.
        per_day: Questions a UTC day.
        day: The day ``used`` counts, in days since 1970.
        used: Questions of that day.
        due_us: When the rate is even again, microseconds since 1970.
    """

    rate_per_min: int
    per_day: int
    day: int = 0
    used: int = 0
    due_us: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """A proven grant that must wait.

    Attributes:
        reason: ``rate`` or ``budget``.
        retry_after_s: Whole seconds, at least 1.
    """

    reason: str
    retry_after_s: int


def charge(budget: Budget, wall_ms: int) -> Budget | Wait:
    """Take one question out of a budget.

    Args:
        budget: As it stands.
        wall_ms: The believed time.

    Returns:
        The budget afterwards, or how long to wait; a refused question costs nothing.

    Source: the generic cell rate algorithm, ITU-T I.371.
    """
    now_us = wall_ms * 1000
    due_us = max(budget.due_us, now_us) + 60_000_000 // budget.rate_per_min
    early_us = due_us - 60_000_000 - now_us
    if early_us > 0:
        return Wait("rate", max(1, -(-early_us // 1_000_000)))
    day = wall_ms // DAY_MS
    used = budget.used if budget.day == day else 0
    if used >= budget.per_day:
        return Wait("budget", max(1, -(-((day + 1) * DAY_MS - wall_ms) // 1000)))
    return replace(budget, day=day, used=used + 1, due_us=due_us)


def believed_ms(wall_ms: int, newest_ms: int) -> int:
    """Decide what time it is for expiry and budgets: a clock set back does not revive anything.

    Args:
        wall_ms: What the clock says.
        newest_ms: The latest time the register ever saw, or 0.
    """
    return newest_ms if wall_ms < newest_ms - CLOCK_BACK_MS_MAX else wall_ms


def fault(
    *, known: bool, proven: bool, revoked: bool, expired: bool, granted: tuple[str, tuple[str, ...]], wanted: tuple[str, str]
) -> str | None:
    """Say why a request is no use of a grant, for the owner's audit only; the outsider never learns it.

    Args:
        known: Whether the id names a row.
        proven: Whether the secret is the row's.
        revoked: Whether it was revoked.
        expired: Whether its time is over.
        granted: The row's project and scopes.
        wanted: The project and scope asked for; both are compared whole.

    Returns:
        A stable word, or None where the grant holds.
    """
    checks = (
        (not known, "unknown"),
        (not proven, "bad_secret"),
        (revoked, "revoked"),
        (expired, "expired"),
        (granted[0] != wanted[0], "project"),
        (wanted[1] not in granted[1], "scope"),
    )
    return next((word for holds, word in checks if holds), None)
