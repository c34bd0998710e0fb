"""Outsiders' grants: mint, list, revoke here, and their way through the mesh.

The serving machine's own register is the authority. What it grants is replicated, so that the owner's other machines see
it and can revoke it; a revocation that arrives is applied there, whatever any clock says.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import trio

from mesh.base.clock import Now, parse_duration_s, read_clock, rfc3339
from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.errors import MeshError, Refused, Usage
from mesh.base.names import base32
from mesh.base.ports import Entry
from mesh.kinds import GRANT, GRANT_REVOCATION, Role
from mesh.replica import Replica
from mesh.schemas import ABOUT_BYTES_MAX, AboutBody
from node.calls import Call
from query.grants import PER_DAY_DEFAULT, RATE_PER_MIN_DEFAULT
from query.messages import CONTENT_BYTES_MAX, PER_DAY_MAX, RATE_PER_MIN_MAX, GrantBody, RevocationBody
from query.register import Register

SERVE_AT = "http://127.0.0.1:8787"
RETRY_S = 10.0
PUBLISH_S = 60.0
"""When what was refused is published again at the latest."""

log = logging.getLogger("node.access")


@dataclass(frozen=True, slots=True)
class Access:
    """The parts these verbs ask."""

    replica: Replica
    register: Register

    async def grant(self, call: Call) -> object:
        """Mint a token."""
        scopes = call.texts("scopes", count_max=4) or ["query"]
        if any("docs" in scope for scope in scopes):
            raise Refused("there is nothing yet that the scope docs would open", reason="not_yet", hint="grant --scope query")
        row, token = self.register.grant(
            call.text("project", bytes_max=128),
            scopes,
            label=call.optional_text("label", bytes_max=256) or "",
            life_s=parse_duration_s(call.optional_text("expires", bytes_max=16) or "30d"),
            rate_per_min=call.optional_integer("rate_per_min", low=1, high=RATE_PER_MIN_MAX) or RATE_PER_MIN_DEFAULT,
            per_day=call.optional_integer("per_day", low=1, high=PER_DAY_MAX) or PER_DAY_DEFAULT,
            serve_at=SERVE_AT,
            now=read_clock(),
        )
        await self._publish_now()
        return row.granted_json(token)

    async def list_grants(self, call: Call) -> object:
        """Every grant of this machine, and those of this person's other machines."""
        now = read_clock()
        here = [{**row.as_json(now.wall_ms), "node": None} for row in self.register.list()]
        return [*here, *(self._remote(entry, body, now) for entry, body in self._remote_grants())]

    def _remote_grants(self) -> list[tuple[Entry, GrantBody]]:
        me = self.replica.me
        found: list[tuple[Entry, GrantBody]] = []
        for entry in self.replica.entries(GRANT):
            if entry.author == me.node or entry.owner != me.owner:
                continue
            try:
                about = decode_untrusted(AboutBody, entry.body, bytes_max=512)
                found.append((entry, decode_untrusted(GrantBody, about.content, bytes_max=CONTENT_BYTES_MAX)))
            except Malformed:
                continue
        return found

    def _remote(self, entry: Entry, body: GrantBody, now: Now) -> dict[str, Any]:
        member = self.replica.member(entry.author)
        state = "expired" if body.expires_s * 1000 <= now.wall_ms else "active"
        if body.grant in self._revoked():
            state = "revoked"
        return {
            "grant": base32(body.grant),
            "project": body.project,
            "scopes": list(body.scopes),
            "label": body.label,
            "expires_at": rfc3339(body.expires_s * 1000),
            "rate_per_min": body.rate_per_min,
            "per_day": body.per_day,
            "serve_at": None,
            "state": state,
            "created_at": None,
            "revoked_at": None,
            "used_today": None,
            "uses": None,
            "last_used_at": None,
            "node": member.name if member else base32(entry.author),
        }

    def _revoked(self) -> set[bytes]:
        """Ids of grants that a record in the mesh revokes."""
        found: set[bytes] = set()
        for entry in self.replica.entries(GRANT_REVOCATION):
            try:
                about = decode_untrusted(AboutBody, entry.body, bytes_max=512)
                found.add(decode_untrusted(RevocationBody, about.content, bytes_max=CONTENT_BYTES_MAX).grant)
            except Malformed:
                continue
        return found

    async def revoke(self, call: Call) -> object:
        """End a grant, of this machine or of another one of this person."""
        prefix = call.text("grant", bytes_max=64)
        now = read_clock()
        try:
            row = self.register.revoke(prefix, now)
        except Usage as unknown:
            return await self._revoke_elsewhere(prefix, unknown)
        await self._publish_now()
        return row.as_json(now.wall_ms)

    async def _revoke_elsewhere(self, prefix: str, unknown: Usage) -> object:
        wanted = prefix.replace("-", "").strip().lower()
        found = [(e, b) for e, b in self._remote_grants() if len(wanted) >= 4 and base32(b.grant).startswith(wanted)]
        if len(found) != 1:
            raise unknown
        entry, body = found[0]
        content = encode(RevocationBody(body.grant))
        await self.replica.publish(GRANT_REVOCATION, body.grant, encode(AboutBody(body.serve_at, content)))
        return self._remote(entry, body, read_clock())

    async def _publish_now(self) -> None:
        """Publish what was just recorded; where that is refused it holds all the same, here, and is published later."""
        if not self.replica.may(Role.MEMBER):
            return  # A machine of few rights serves what it grants, and tells nobody.
        try:
            await self.publish()
        except MeshError as fault:
            log.warning("grants were not published: %s", fault.message)

    async def publish(self) -> None:
        """Replicate what the register holds and the mesh does not yet."""
        granted, revoked = self.register.unpublished()
        me, now_ms = self.replica.me.node, read_clock().wall_ms
        # What was published in a mesh this machine has left since is not in this one.
        present = {entry.key for entry in self.replica.entries(GRANT) if entry.author == me}
        new = {row.grant for row in granted}
        missing = (r for r in self.register.list() if r.grant not in present | new and r.state(now_ms) == "active")
        granted = [*granted, *missing]
        for row in granted:
            content = encode(row.body(me))
            assert len(content) <= ABOUT_BYTES_MAX
            await self.replica.publish(GRANT, row.grant, encode(AboutBody(me, content)))
        for end in revoked:
            await self.replica.publish(GRANT_REVOCATION, end.grant, encode(AboutBody(me, encode(end))))
        await self.register.mark_published([row.grant for row in granted], [end.grant for end in revoked])

    async def run_revocations(self) -> None:
        """Apply the revocations that arrive for grants served here, until cancelled."""
        changes = self.replica.changes({GRANT_REVOCATION})
        while True:
            await self._publish_now()
            pause_s = PUBLISH_S
            try:
                await self.apply()
            except MeshError as fault:
                log.error("revocations could not be applied: %s", fault.message)
                pause_s = RETRY_S
            with trio.move_on_after(pause_s):
                await changes.receive()

    async def apply(self) -> None:
        """Apply the revocations the mesh holds of grants served here: others', and own ones a restored register forgot."""
        me = self.replica.me.node
        known = {row.grant for row in self.register.list() if row.revoked_ms is not None}
        for entry in self.replica.entries(GRANT_REVOCATION):
            try:
                about = decode_untrusted(AboutBody, entry.body, bytes_max=512)
                body = decode_untrusted(RevocationBody, about.content, bytes_max=CONTENT_BYTES_MAX)
            except Malformed:
                continue
            if about.node == me and body.grant not in known:
                await self.register.apply_remote_revocation(body, read_clock())
