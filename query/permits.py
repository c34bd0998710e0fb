"""What the register hands out: a grant as it stands, and the answer to one attempt to use it. Values, no rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mesh.base.clock import rfc3339
from mesh.base.names import GrantId, base32
from query.grants import DAY_MS, Budget, Token
from query.messages import GrantBody


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One grant as the register holds it.

    Attributes:
        hash: Keyed hash of its secret.
        serve_at: The address it is served at, as its owner stated it.
        revoked_ms: When it was revoked, or None.
    """

    grant: GrantId
    hash: bytes
    project: str
    scopes: tuple[str, ...]
    label: str
    created_ms: int
    expires_ms: int
    serve_at: str | None
    budget: Budget
    uses: int
    last_ms: int | None
    revoked_ms: int | None
    revoked_reason: str

    def state(self, wall_ms: int) -> str:
        """Say ``active``, ``expired`` or ``revoked``."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if wall_ms >= self.expires_ms else "active"

    def as_json(self, wall_ms: int) -> dict[str, Any]:
        """Give the grant as ``access list --json`` shows it; never its token or hash."""
        day = wall_ms // DAY_MS
        return {
            **self._public(),
            "state": self.state(wall_ms),
            "created_at": rfc3339(self.created_ms),
            "revoked_at": rfc3339(self.revoked_ms),
            "used_today": self.budget.used if self.budget.day == day else 0,
            "uses": self.uses,
            "last_used_at": rfc3339(self.last_ms),
        }

    def granted_json(self, token: str) -> dict[str, Any]:
        """Give the grant as ``access grant --json`` shows it, with its token, once."""
        return {"grant": base32(self.grant), "token": token, **self._public()}

    def _public(self) -> dict[str, Any]:
        return {
            "grant": base32(self.grant),
            "project": self.project,
            "scopes": list(self.scopes),
            "label": self.label,
            "expires_at": rfc3339(self.expires_ms),
            "rate_per_min": self.budget.rate_per_min,
            "per_day": self.budget.per_day,
            "serve_at": self.serve_at,
        }

    def body(self, serve_at: bytes) -> GrantBody:
        """Give the grant as it is replicated.

        Args:
            serve_at: 16 bytes, the machine that serves it.
        """
        return GrantBody(
            self.grant, self.hash, self.project, self.scopes, self.expires_ms // 1000, self.budget.rate_per_min,
            self.budget.per_day, serve_at, self.label,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Permit:
    """One question was allowed and charged.

    Attributes:
        budget: What stands after it.
    """

    grant: GrantId
    budget: Budget

    def as_json(self) -> dict[str, Any]:
        """Give the budget as an answer shows it to its holder."""
        return {
            "per_day": self.budget.per_day,
            "used": self.budget.used,
            "remaining": self.budget.per_day - self.budget.used,
            "rate_per_min": self.budget.rate_per_min,
            "resets_at": rfc3339((self.budget.day + 1) * DAY_MS),
        }


@dataclass(frozen=True, slots=True)
class Denied:
    """One question was not allowed.

    Attributes:
        reason: A stable word for the owner; an outsider never sees it.
        retry_after_s: Seconds to wait, for the holder of a proven token that is over its rate or budget; else None, and
            then nothing may be told.
    """

    reason: str
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an outsider tries.

    Attributes:
        token: As read, or None where it was not a token.
        project: The project named, or empty.
        scope: What the route needs.
        question: For the trail.
        remote: The address, for the trail; only its keyed hash is kept.
    """

    token: Token | None
    project: str
    scope: str
    question: str
    remote: str
