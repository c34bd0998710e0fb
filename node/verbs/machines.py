"""Machines: status, peers, mesh, invite, join, discover, connect."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from mesh import store
from mesh.base.clock import Now, parse_duration_s, rfc3339
from mesh.base.db import Database
from mesh.base.errors import MeshError, Refused, Unreachable, Usage
from mesh.base.names import base32, clean_name, fingerprint_text
from mesh.base.ports import Member
from mesh.discovery import Discovery
from mesh.identity import Belongings, Identity
from mesh.invites import TTL_S_MAX, USES_MAX, BadInvite, InviteBody, read_link_untrusted
from mesh.kinds import Role, role_names, roles_named
from mesh.members import Certified
from mesh.overlay import Overlay
from mesh.pairing import Pairing, Pipe, Unfinished, join_over
from mesh.replica import Replica
from node.addresses import MESH_PORT, Endpoint, parse_endpoint
from node.calls import Call, Then
from node.machines import find_machine, namesakes, require_other, title

JOIN_TIMEOUT_S = 45.0
DISCOVER_S_MAX = 30
CLOCK_WARN_MS = 10 * 60 * 1000
CLOCK_TOLERANCE_S = 300
LOOKS_MAX = 6
BROWSE_S = 3.0

DialJoin = Callable[[str, Callable[[Pipe], Awaitable[None]]], Awaitable[None]]
"""Connects to an address's ``/join``, runs the given conversation over it, and closes it."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The parts these verbs ask.

    Attributes:
        knows_tag: Whether an announced tag is of this mesh.
        advertised: Where this machine says it can be reached, ``host:port``.
        listening: Where it listens.
        busy: Tasks of this machine that are not final, asked or running.
        decide_move: Makes a new identity durable, blocking; it is in force once the inside is opened anew.
        reopen: Ends this inside, so that a new one is opened.
    """

    identity: Identity
    replica: Replica
    overlay: Overlay
    pairing: Pairing
    database: Database
    discovery: Discovery | None
    knows_tag: Callable[[str | None], bool]
    boot: bytes
    started: Now
    version: str
    advertised: Callable[[], tuple[str, ...]]
    listening: tuple[str, ...]
    settings_warnings: Callable[[], tuple[str, ...]]
    runs: Callable[[], str]
    busy: Callable[[], int]
    read_clock: Callable[[], Now]
    dial_join: DialJoin
    decide_move: Callable[[Belongings, int], None]
    reopen: Callable[[], None]

    # Reading ---------------------------------------------------------------------------------------------------

    async def status(self, call: Call) -> object:
        """What runs here."""
        me, now = self.replica.me, self.read_clock()
        return {
            "node": {
                "id": base32(me.node),
                "name": me.name,
                "fingerprint": fingerprint_text(me.public_key),
                "owner": me.owner_name,
                "version": self.version,
                "boot": self.boot.hex(),
                "uptime_s": int(now.steady_s - self.started.steady_s),
            },
            "mesh": {
                "id": base32(self.identity.mesh),
                "members": 1 + sum(m.state != "expelled" for m in self.replica.members()),
                "roles": sorted(me.roles),
            },
            "listen": list(self.listening),
            "advertise": list(self.advertised()),
            "api": None,
            "discovery": self._discovery_state(),
            "links": self._links(now),
            "runs": self.runs(),
            "sandbox": "none",
            "warnings": self._warnings(),
        }

    def _discovery_state(self) -> dict[str, object]:
        if self.discovery is None:
            return {"on": False, "reason": "switched off"}
        word, reason = self.discovery.state
        return {"on": word == "on", "reason": reason or None}

    def _links(self, now: Now) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for node, held in self.overlay.links.items():
            member = self.replica.member(node)
            rows.append(
                {
                    "node": base32(node),
                    "name": member.name if member else None,
                    "kind": "direct",
                    "via": None,
                    "address": held.address,
                    "rtt_ms": _rounded(held.link.rtt_ms),
                    "since": rfc3339(held.since.wall_ms),
                }
            )
        return rows

    def _warnings(self) -> list[str]:
        found = list(self.settings_warnings())
        if self.discovery is not None and self.discovery.state[0] != "on" and self.discovery.state[1] != "starting":
            found.append(f"discovery is off: {self.discovery.state[1]}")
        if self.replica.clock_ahead_ms > CLOCK_WARN_MS:
            found.append("this machine has written records with a clock far ahead; others hold them back")
        for alike in namesakes([self.replica.me, *self.replica.members()]).values():
            found.append("machines with one name: " + ", ".join(title(m) for m in alike))
        for node in self.replica.members_now.frozen:
            frozen = self.replica.member(node)
            found.append(f"two certificates disagree about whose {title(frozen) if frozen else node.hex()} is")
        return found

    async def peers(self, call: Call) -> object:
        """The other machines."""
        now = self.read_clock()
        return [self._peer(member, now) for member in self.replica.members()]

    def _peer(self, member: Member, now: Now) -> dict[str, object]:
        held = self.overlay.links.get(member.node)
        seen_s = None if member.last_seen_ms is None else max(0, (now.wall_ms - member.last_seen_ms) // 1000)
        return {
            "node": base32(member.node),
            "name": member.name,
            "fingerprint": fingerprint_text(member.public_key),
            "owner": member.owner_name,
            "mine": member.mine,
            "roles": sorted(member.roles),
            "state": member.state,
            "link": "direct" if held else None,
            "rtt_ms": _rounded(held.link.rtt_ms) if held else None,
            "last_seen_s": seen_s,
            "addresses": list(member.addresses),
            "version": member.version,
        }

    async def mesh_show(self, call: Call) -> object:
        """The mesh as this machine knows it."""
        me = self.replica.me
        rows = [
            {
                "node": base32(m.node),
                "name": m.name,
                "owner": m.owner_name,
                "mine": m.mine,
                "roles": sorted(m.roles),
                "state": m.state,
                "expires_at": self._expiry(m),
            }
            for m in (me, *self.replica.members())
        ]
        return {"id": base32(self.identity.mesh), "created_at": rfc3339(self._created_ms()), "members": rows}

    def _created_ms(self) -> int:
        return self.replica.members_now.genesis.created_s * 1000

    def _expiry(self, member: Member) -> str | None:
        certified = self.replica.members_now.certificates.get(member.node)
        end_s = None if certified is None else certified.not_after_s
        return rfc3339(None if end_s is None else end_s * 1000)

    async def mesh_identity(self, call: Call) -> object:
        """Who this machine is: what another person compares."""
        me = self.replica.me
        return {
            "node": base32(me.node),
            "name": me.name,
            "fingerprint": fingerprint_text(me.public_key),
            "owner": me.owner_name,
            "mesh": base32(self.identity.mesh),
            "roles": sorted(me.roles),
            "holds_owner_key": self.identity.owner is not None,
        }

    # Pairing ---------------------------------------------------------------------------------------------------

    async def invite(self, call: Call) -> object:
        """Mint a link."""
        person = call.optional_text("for", bytes_max=63)
        words = [w for text in call.texts("roles", count_max=8) for w in text.replace(",", " ").split()]
        roles = roles_named(words or ["member", "worker", "relay"])
        if roles is None or roles & Role.ADMIN:
            raise Usage(
                "roles of an invite are viewer, member, worker, relay",
                hint="admin is never carried by an invite",
            )
        if roles & Role.MEMBER:
            roles |= Role.RELAY
        ttl_s = parse_duration_s(call.optional_text("ttl", bytes_max=16) or "24h")
        if ttl_s > TTL_S_MAX:
            raise Usage("an invite lives at most 30 days", hint="choose a shorter --ttl")
        uses = call.optional_integer("uses", low=1, high=USES_MAX) or 1
        link, body = await self.pairing.mint(
            for_person=None if person is None else clean_name(person, fallback="somebody"),
            roles=roles,
            uses=uses,
            ttl_s=ttl_s,
            addresses=() if call.flag("no_addresses") else self.advertised(),
        )
        return {
            "id": base32(body.invite),
            "link": link,
            "expires_at": rfc3339(body.expires_s * 1000),
            "code": None,
            "words": None,
            "code_expires_at": None,
            "uses": body.uses,
            "roles": sorted(role_names(Role(body.roles))),
            "owner": body.owner_name,
            "addresses": list(body.addresses),
        }

    async def join(self, call: Call) -> object:
        """Move this machine into the mesh of an invite."""
        invite = read_link_untrusted(call.text("invite", bytes_max=65_536))
        self._may_leave(invite, leave=call.flag("leave_current"))
        now_s = self.read_clock().wall_ms // 1000
        if now_s > invite.expires_s + CLOCK_TOLERANCE_S:
            at = rfc3339(invite.expires_s * 1000)
            await call.event({"kind": "note", "text": f"by this machine's clock the invite expired at {at}; asking its issuer anyway"})
        name = self.replica.me.name
        at_issuer: list[MeshError] = []
        tried: set[str] = set()
        with trio.move_on_after(JOIN_TIMEOUT_S):
            for look in range(LOOKS_MAX):
                # Somebody at the very address of the invite said no: one look at the LAN is enough, in case it moved.
                if look > 1 and any(isinstance(error, Refused) for error in at_issuer):
                    break
                for address in await self._issuer_addresses(call, invite, look):
                    if address in tried:
                        continue
                    tried.add(address)
                    try:
                        return await self._join_at(address, invite, name)
                    except (BadInvite, Unfinished):
                        raise  # Only the issuer can say these.
                    except MeshError as error:
                        if look == 0:
                            at_issuer.append(error)
        raise _join_failure(at_issuer, invite)

    def _may_leave(self, invite: InviteBody, *, leave: bool) -> None:
        if invite.mesh == self.identity.mesh:
            raise Refused("this machine is in that mesh already", reason="member", hint="see `hivemesh peers`")
        others = [m for m in self.replica.members() if m.state != "expelled"]
        if (others or self.busy()) and not leave:
            what = f"{len(others)} other machine(s)" if others else "tasks that are not finished"
            raise Refused(
                f"this machine is in a mesh with {what}",
                reason="in_a_mesh",
                hint="join --leave-current leaves it for the new one",
            )

    async def _issuer_addresses(self, call: Call, invite: InviteBody, look: int) -> list[str]:
        """The addresses to try: those in the link first, then whoever announces itself on the LAN."""
        if look == 0:
            return list(invite.addresses)
        if self.discovery is None:
            return []
        if look == 1:
            await call.event({"kind": "note", "text": "looking for the issuer on the LAN"})
        sightings = await self.discovery.browse(BROWSE_S)
        return [str(Endpoint(host, port)) for sighting in sightings for host, port in sighting.addresses]

    async def _join_at(self, address: str, invite: InviteBody, name: str) -> Then:
        done: list[tuple[Belongings, Certified, Certified]] = []

        async def converse(pipe: Pipe) -> None:
            belongings, joined, issuer = await join_over(pipe, invite, name, self.read_clock, os.urandom)
            done.append((belongings, joined.certified, issuer))

        await self.dial_join(address, converse)
        belongings, own, issuer = done[0]
        belongings = replace(belongings, addresses=((issuer.node, address),))
        await trio.to_thread.run_sync(self.decide_move, belongings, self.read_clock().wall_ms)
        found = {
            "mesh": base32(invite.mesh),
            "node": base32(own.node),
            "name": own.name,
            "via": issuer.name,
            "owner": own.owner_name,
            "roles": sorted(role_names(own.roles)),
        }
        return Then(found, self.reopen)

    # The neighbourhood -----------------------------------------------------------------------------------------

    async def discover(self, call: Call) -> object:
        """Who announces itself on the LAN."""
        if self.discovery is None:
            raise Refused(
                "discovery is switched off on this machine",
                reason="off",
                hint="start the node without --no-discovery and with the setting discovery true",
            )
        timeout_s = parse_duration_s(call.optional_text("timeout", bytes_max=16) or "3s")
        sightings = await self.discovery.browse(float(min(timeout_s, DISCOVER_S_MAX)))
        rows: list[dict[str, object]] = []
        for sighting in sightings:
            addresses = [str(Endpoint(host, port)) for host, port in sighting.addresses]
            rows.append(
                {
                    "instance": sighting.instance,
                    "addresses": [a.rpartition(":")[0].strip("[]") for a in addresses],
                    "port": sighting.addresses[0][1] if sighting.addresses else None,
                    "known": self._known(addresses, sighting.tag),
                }
            )
        return rows

    def _known(self, addresses: list[str], tag: str | None) -> str | None:
        for node, held in self.overlay.links.items():
            member = self.replica.member(node)
            if member is not None and (held.address in addresses or set(member.addresses) & set(addresses)):
                return member.name
        for member in self.replica.members():
            if set(addresses) & {*member.addresses, *store.addresses(self.database.reader, member.node)}:
                return member.name
        return "member" if self.knows_tag(tag) else None

    async def connect(self, call: Call) -> object:
        """Reach a known member at an address a person gives."""
        member = find_machine(call.text("node", bytes_max=256), self.replica.members())
        require_other(member, self.replica.me)
        endpoint = parse_endpoint(call.text("address", bytes_max=256), port=MESH_PORT)
        try:
            link = await self.overlay.connect([str(endpoint)], member.node)
        except Unreachable as error:
            raise Unreachable(
                f"{title(member)} does not answer at {endpoint}: {error.message}",
                hint="check the address, and that hivemesh runs there",
            ) from None
        return {"node": base32(link.peer), "name": member.name, "address": str(endpoint), "rtt_ms": _rounded(link.rtt_ms)}


def _rounded(rtt_ms: float | None) -> float | None:
    return None if rtt_ms is None else round(rtt_ms, 2)


def _join_failure(failures: list[MeshError], invite: InviteBody) -> MeshError:
    """Choose what to tell the person, from what came of the invite's own addresses; strangers on the LAN do not count."""
    if any(isinstance(error, Refused) for error in failures):
        return BadInvite(
            "no invite is open there: this one was used, has expired, or is another machine's",
            reason="no_open_invite",
            hint="ask whoever made it for a new one",
        )
    where = ", ".join(invite.addresses) or "the LAN"
    detail = f" ({failures[-1].message})" if failures else ""
    return Unreachable(
        f"the machine that issued this invite was not reached at {where}{detail}",
        hint="is hivemesh running there, and is the invite unused and in time? then try again: nothing was spent",
    )
