"""The closed table of record kinds: lane, life, size, quota, and who may author one about whom.

Checked at the door before a record is stored, and again in every fold. A kind without a row is unknown: it is stored
and forwarded unread within one small quota a machine, and never enters the control lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntFlag


class Role(IntFlag):
    """What a certificate lets a machine do in the mesh; never what it may run on another machine."""

    VIEWER = 1
    MEMBER = 2
    WORKER = 4
    RELAY = 8
    ADMIN = 16


ROLES_ALL = 31
_NAMES = {"viewer": Role.VIEWER, "member": Role.MEMBER, "worker": Role.WORKER, "relay": Role.RELAY, "admin": Role.ADMIN}


def role_names(roles: Role) -> tuple[str, ...]:
    """Write a set of roles as words, least first."""
    return tuple(name for name, role in _NAMES.items() if roles & role)


def roles_named(names: list[str]) -> Role | None:
    """Read words as a set of roles; None where a word is not a role."""
    if any(name not in _NAMES for name in names):
        return None
    roles = Role(0)
    for name in names:
        roles |= _NAMES[name]
    return roles


class Lane(Enum):
    """Which records travel together; ``control`` is settled before any channel opens."""

    CONTROL = 0
    HIVE = 1
    PRESENCE = 2
    INVENTORY = 3


class Subject(Enum):
    """Whom a record is about, seen from its author."""

    SELF = "self"
    SAME_OWNER = "same owner"
    OTHER = "other"


DAY_MS = 86_400_000
SKEW_MS = 10 * 60 * 1000
"""Records are offered until this long before they expire and accepted until this long after."""


@dataclass(frozen=True, slots=True)
class KindRule:
    """One row of the table.

    Attributes:
        authors: Role -> the subjects a machine with that role may write about.
        root: Whether the mesh's root key may author it, about anybody.
        life_ms: How long after its version a record lives; None: for ever.
        quota: Most live records of one author; the greatest versions stay.
        body_bytes_max: Largest body.
        terminal: Applies on receipt whatever its version says of the time; so it lives for ever, since an end reckoned
            from the author's clock could lie in the past already.
    """

    number: int
    name: str
    lane: Lane
    authors: dict[Role, frozenset[Subject]]
    root: bool
    life_ms: int | None
    quota: int
    body_bytes_max: int
    terminal: bool = False


_ANYONE = frozenset(Subject)
_OWN = frozenset({Subject.SELF})
_OWNERS = frozenset({Subject.SELF, Subject.SAME_OWNER})
_EVERY_ROLE = tuple(Role)

CERTIFICATE = 1
EPOCH = 2
POLICY = 3
EXPULSION = 4
ROTATION = 5
GRANT = 6
GRANT_REVOCATION = 7
COPY_PROOF = 8
FLEET_EPOCH = 9
LEAVING = 10
PRESENCE = 16
SESSION = 32
WAITING = 33
LESSON = 48
ACCEPTANCE = 49

_TABLE = (
    KindRule(CERTIFICATE, "certificate", Lane.CONTROL, {Role.ADMIN: _ANYONE}, True, None, 4096, 1024),
    KindRule(EPOCH, "epoch", Lane.CONTROL, {Role.ADMIN: _ANYONE}, True, None, 256, 128),
    KindRule(POLICY, "policy", Lane.CONTROL, {Role.ADMIN: _ANYONE}, True, None, 64, 512),
    KindRule(EXPULSION, "expulsion", Lane.CONTROL, {Role.ADMIN: _ANYONE}, True, None, 4096, 2048, terminal=True),
    KindRule(
        ROTATION, "rotation", Lane.CONTROL, dict.fromkeys(_EVERY_ROLE, _OWN), False, None, 4, 512, terminal=True
    ),
    KindRule(GRANT, "grant", Lane.CONTROL, {Role.MEMBER: _OWNERS}, False, 366 * DAY_MS, 256, 512),
    KindRule(
        GRANT_REVOCATION,
        "grant revocation",
        Lane.CONTROL,
        {Role.MEMBER: _OWNERS, Role.ADMIN: _ANYONE},
        False,
        None,
        1024,
        256,
        terminal=True,
    ),
    KindRule(COPY_PROOF, "copy proof", Lane.CONTROL, dict.fromkeys(_EVERY_ROLE, _ANYONE), False, DAY_MS, 16, 2560),
    KindRule(FLEET_EPOCH, "fleet epoch", Lane.CONTROL, {Role.MEMBER: _OWN}, False, None, 64, 128),
    KindRule(LEAVING, "leaving", Lane.CONTROL, dict.fromkeys(_EVERY_ROLE, _OWN), False, None, 1, 64, terminal=True),
    KindRule(PRESENCE, "presence", Lane.PRESENCE, dict.fromkeys(_EVERY_ROLE, _OWN), False, 3_600_000, 1, 1024),
    KindRule(SESSION, "session", Lane.INVENTORY, {Role.MEMBER: _OWN}, False, 900_000, 256, 2304),
    KindRule(WAITING, "waiting", Lane.INVENTORY, {Role.MEMBER: _OWN}, False, 900_000, 64, 2304),
    KindRule(LESSON, "lesson", Lane.HIVE, {Role.MEMBER: _OWN}, False, 180 * DAY_MS, 200, 2304),
    KindRule(ACCEPTANCE, "acceptance", Lane.HIVE, {Role.MEMBER: _OWN}, False, 180 * DAY_MS, 200, 512),
)

KINDS: dict[int, KindRule] = {rule.number: rule for rule in _TABLE}

_UNKNOWN_LIFE_MS = 7 * DAY_MS
UNKNOWN_QUOTA = 64
UNKNOWN_BODY_BYTES_MAX = 512


def rule_of(kind: int) -> KindRule:
    """Look up a kind's row; an unknown kind gets the shared small one."""
    known = KINDS.get(kind)
    if known is not None:
        return known
    authors = dict.fromkeys(_EVERY_ROLE, _OWN)
    return KindRule(
        kind, "unknown", Lane.HIVE, authors, False, _UNKNOWN_LIFE_MS, UNKNOWN_QUOTA, UNKNOWN_BODY_BYTES_MAX
    )


def may_author(rule: KindRule, roles: Role, subject: Subject) -> bool:
    """Decide one cell of the rights table.

    Args:
        rule: The kind.
        roles: The author's roles.
        subject: Whom the record is about, seen from the author.

    Returns:
        Whether any of the author's roles allows it.
    """
    return any(roles & role and subject in subjects for role, subjects in rule.authors.items())
