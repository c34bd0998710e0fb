"""This machine's sessions out to the owner's other machines, and theirs in: when to publish what, and the whole fleet.

A change of status goes out at once, a change of counters at most every few seconds, and what stays the same often
enough that its record never runs out while its machine lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mesh.base.clock import Now
from mesh.base.codec import Malformed, encode
from mesh.base.crypto import digest
from mesh.base.names import NodeId, base32
from mesh.base.ports import Entry, Member
from node.sessions.inventory import SessionBody, SessionState, body_untrusted, fleet_row

COUNTERS_S_MIN = 5.0
COUNTERS_S_A_MEMBER = 0.03
REFRESH_S = 300.0
"""A third of a session record's life."""


@dataclass(frozen=True, slots=True)
class Published:
    """What was last published of one session, and when on the steady clock."""

    body: SessionBody
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to publish and to withdraw now, by register key, and when to look again at the latest."""

    publish: tuple[tuple[bytes, SessionBody], ...]
    withdraw: tuple[bytes, ...]
    next_look_s: float


def register_key(body: SessionBody) -> bytes:
    """The register a session is kept under: a hash, since other people's machines see it."""
    return digest(body.agent.encode(), body.session.encode(), size=16, person=b"hivemesh-session")


def _urgent(old: SessionBody, new: SessionBody) -> bool:
    """Whether something a person waits for changed, not only counters."""
    return _calm(old) != _calm(new)


def _calm(body: SessionBody) -> SessionBody:
    """A session without what moves all the time."""
    return replace(
        body, input=None, output=None, cache_read=None, cache_write=None, cost_micro=None, context_pct=None, last_active_ms=0
    )


def plan(
    listed: Sequence[SessionState], published: Mapping[bytes, Published], *, members: int, now_s: float
) -> Plan:
    """Decide what of this machine's sessions goes out now.

    Args:
        listed: The sessions as they are.
        published: What went out before, by register key.
        members: Machines in the mesh; more of them make counters rarer.
        now_s: Steady clock.

    Returns:
        The plan.
    """
    pause_s = max(COUNTERS_S_MIN, COUNTERS_S_A_MEMBER * members)
    out: list[tuple[bytes, SessionBody]] = []
    next_look_s = now_s + REFRESH_S
    present: set[bytes] = set()
    for state in listed:
        key = register_key(state.body)
        present.add(key)
        old = published.get(key)
        if old is None or _urgent(old.body, state.body):
            out.append((key, state.body))
        else:
            due_s = old.at_s + (REFRESH_S if old.body == state.body else pause_s)
            if due_s <= now_s:
                out.append((key, state.body))
            else:
                next_look_s = min(next_look_s, due_s)
    return Plan(tuple(out), tuple(key for key in published if key not in present), next_look_s)


class Sealer(Protocol):
    """Seals bodies for the owner's machines."""

    def seal(self, plain: bytes) -> bytes:
        """Seal a body."""
        ...

    def unseal(self, body: bytes, author: NodeId) -> bytes | None:
        """Open a body, or say None."""
        ...


def remote_bodies_untrusted(
    entries: Iterable[Entry], me: NodeId, sealer: Sealer
) -> list[tuple[NodeId, SessionBody, int]]:
    """Open the session records of the owner's other machines; what does not open or is unsound is passed over.

    Returns:
        Machine, session, and when its record came, by this machine's clock.
    """
    found: list[tuple[NodeId, SessionBody, int]] = []
    for entry in entries:
        plain = None if entry.author == me else sealer.unseal(entry.body, entry.author)
        if plain is None:
            continue
        try:
            found.append((entry.author, body_untrusted(plain), entry.received_ms))
        except Malformed:
            continue
    return found


def seal_body(body: SessionBody, sealer: Sealer) -> bytes:
    """Make the record body of a session."""
    return sealer.seal(encode(body))


_ORDER = ("needs_you", "stuck", "limited", "your_turn", "working", "unknown", "ended")


def fleet_rows(
    local: Sequence[SessionState],
    remote: Sequence[tuple[NodeId, SessionBody, int]],
    me: Member,
    member_of: Callable[[NodeId], Member | None],
    now: Now,
) -> list[dict[str, Any]]:
    """Every session of the owner's machines, those that need a person first.

    Args:
        local: This machine's.
        remote: Other machines', from :func:`remote_bodies_untrusted`.
        me: This machine.
        member_of: Looks up a machine.
        now: The clock.

    Returns:
        Rows of ``fleet --json``.
    """
    rows = [
        fleet_row(s.body, node=base32(me.node), node_name=me.name, heard_ms=now.wall_ms, stale=False, now_ms=now.wall_ms)
        for s in local
    ]
    for node, body, received_ms in remote:
        member = member_of(node)
        if member is None or member.state == "expelled":
            continue
        live = member.state == "live"
        heard_ms = now.wall_ms if member.linked else max(received_ms, member.last_seen_ms or 0)
        rows.append(
            fleet_row(
                body,
                node=base32(node),
                node_name=member.name,
                heard_ms=heard_ms,
                stale=not live,
                now_ms=now.wall_ms,
            )
        )
    return sorted(rows, key=lambda r: (_ORDER.index(r["status"]), r["name"], r["session"] or ""))
