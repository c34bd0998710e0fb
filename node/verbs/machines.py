"""Machines: status, peers, mesh, discover, connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mesh import store
from mesh.base.clock import Now, parse_duration_s, rfc3339
from mesh.base.db import Database
from mesh.base.errors import Refused, Unreachable
from mesh.base.names import NodeId, base32, fingerprint_text
from mesh.base.ports import Member
from mesh.certificates import RENEW_GRACE_S
from mesh.discovery import Discovery
from mesh.identity import Identity
from mesh.overlay import Overlay
from mesh.replica import Replica
from mesh.rootfile import FILE_BYTES_MAX, read_file_untrusted
from node.addresses import MESH_PORT, Endpoint, parse_endpoint
from node.calls import Call
from node.machines import find_machine, namesakes, require_other, title
from node.rootword import apply_records

DISCOVER_S_MAX = 30
CLOCK_WARN_MS = 10 * 60 * 1000

@dataclass(frozen=True, slots=True)
class Machines:
    """The parts these verbs ask.

    Attributes:
        knows_tag: Whether an announced tag is of this mesh.
        advertised: Where this machine says it can be reached, ``host:port``.
        listening: Where it listens.
    """

    identity: Identity
    replica: Replica
    overlay: Overlay
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
    read_clock: Callable[[], Now]

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
                    "kind": "direct" if held.is_direct else "circuit",
                    "via": ", ".join(self._name_of(relay) for relay in held.via) or None,
                    "address": held.address,
                    "rtt_ms": _rounded(held.link.rtt_ms),
                    "since": rfc3339(held.since.wall_ms),
                }
            )
        return rows

    def _name_of(self, node: NodeId) -> str:
        member = self.replica.member(node)
        return base32(node) if member is None else member.name

    def _warnings(self) -> list[str]:
        found = [*self.settings_warnings(), *self._standing()]
        if self.discovery is not None and self.discovery.state[0] != "on" and self.discovery.state[1] != "starting":
            found.append(f"discovery is off: {self.discovery.state[1]}")
        if self.replica.clock_ahead_ms > CLOCK_WARN_MS:
            found.append("this machine has written records with a clock far ahead; others hold them back")
        for alike in namesakes([self.replica.me, *self.replica.members()]).values():
            found.append("machines with one name: " + ", ".join(title(m) for m in alike))
        found += self.overlay.duplicates.warnings(self._title)
        for node in self.replica.members_now.frozen:
            frozen = self.replica.member(node)
            found.append(f"two certificates disagree about whose {title(frozen) if frozen else node.hex()} is")
        return found

    def _title(self, node: NodeId) -> str:
        member = self.replica.member(node)
        return title(member) if member else base32(node)[:8]

    def _standing(self) -> list[str]:
        """What a person must know about this machine's own membership."""
        me = self.replica.me
        if me.state == "expelled":
            members = self.replica.members_now
            said = members.expulsions.get(members.certificates[me.node].lineage)
            who = None if said is None else self.replica.member(said.author)
            by = f" by {title(who)}" if who is not None else ""
            return [f"this machine was expelled from its mesh{by}: it gets no links; a new invite lets it in again with a new key"]
        if me.state == "expired":
            return [f"this machine's certificate ended at {self._expiry(me)}: on an admin machine run hivemesh mesh renew {me.name}"]
        if "admin" not in me.roles:
            return []
        now_s = self.read_clock().wall_ms // 1000
        ended = (m for m in self.replica.members() if m.state == "expired" and self._ended_s(m) + RENEW_GRACE_S < now_s)
        return [f"the certificate of {title(m)} ended at {self._expiry(m)}; to let it in again: hivemesh mesh renew {m.name}" for m in ended]

    def _ended_s(self, member: Member) -> int:
        return self.replica.members_now.certificates[member.node].not_after_s or 0

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
            "link": None if held is None else "direct" if held.is_direct else "circuit",
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

    async def root_apply(self, call: Call) -> object:
        """Take what the root signed into a file."""
        members = self.replica.members_now
        records = read_file_untrusted(call.text("file", bytes_max=FILE_BYTES_MAX), self.identity.mesh, members.root)
        return await apply_records(self.replica, records)

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
