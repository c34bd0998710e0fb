"""Pairing: invite, join."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import trio

from mesh.base.clock import Now, parse_duration_s, rfc3339
from mesh.base.errors import MeshError, Refused, Unreachable, Usage
from mesh.base.names import MeshId, base32, clean_name
from mesh.certificates import Certified
from mesh.codebook import Pipe, open_code
from mesh.codes import Code, read_code_untrusted
from mesh.discovery import Discovery
from mesh.identity import Belongings
from mesh.invites import (
    LIFE_S_MAX,
    LIFE_S_MIN,
    TTL_S_MAX,
    USES_MAX,
    BadInvite,
    InviteBody,
    read_link_untrusted,
)
from mesh.kinds import Role, role_names, roles_named
from mesh.pairing import Pairing, Unfinished, join_over
from mesh.replica import Replica
from node.addresses import Endpoint
from node.calls import Call, Then

JOIN_TIMEOUT_S = 45.0
CLOCK_TOLERANCE_S = 300
LOOKS_MAX = 6
BROWSE_S = 3.0
TRIES_MAX = 3
"""Machines that fail to know a code before the joiner stops: a stranger on the LAN gets no more guesses than that."""
_TRIED = ("wrong", "burned", "not_proved")

DialJoin = Callable[[str, Callable[[Pipe], Awaitable[None]]], Awaitable[None]]
"""Connects to an address's ``/join``, runs the given conversation over it, and closes it."""


@dataclass(frozen=True, slots=True)
class PairingVerbs:
    """The parts these verbs ask.

    Attributes:
        mesh: The mesh this machine is in.
        advertised: Where this machine says it can be reached, ``host:port``.
        busy: Tasks of this machine that are not final, asked or running.
        decide_move: Makes a new identity durable, blocking; it is in force once the inside is opened anew.
        reopen: Ends this inside, so that a new one is opened.
    """

    mesh: MeshId
    replica: Replica
    pairing: Pairing
    discovery: Discovery | None
    advertised: Callable[[], tuple[str, ...]]
    busy: Callable[[], int]
    read_clock: Callable[[], Now]
    dial_join: DialJoin
    decide_move: Callable[[Belongings, int], None]
    reopen: Callable[[], None]

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
        ephemeral = call.optional_text("ephemeral", bytes_max=16)
        life_s = None if ephemeral is None else parse_duration_s(ephemeral)
        if life_s is not None and not LIFE_S_MIN <= life_s <= LIFE_S_MAX:
            raise Usage("a machine is let in for a while of 1 minute to 7 days", hint="choose another --ephemeral, or leave it out")
        uses = call.optional_integer("uses", low=1, high=USES_MAX) or 1
        coded = call.flag("code") or call.flag("words")
        if coded and uses > 1:
            raise Usage("a code or a phrase is for one machine", hint="leave out --uses, or use the link")
        address = self._code_address() if coded else None
        link, body = await self.pairing.mint(
            for_person=None if person is None else clean_name(person, fallback="somebody"),
            roles=roles,
            uses=uses,
            ttl_s=ttl_s,
            addresses=() if call.flag("no_addresses") else self.advertised(),
            life_s=life_s,
        )
        minted = await self.pairing.codes.mint(link, body.invite, address) if coded else None
        return {
            "id": base32(body.invite),
            "link": link,
            "expires_at": rfc3339(body.expires_s * 1000),
            "code": minted.code if minted and call.flag("code") else None,
            "words": minted.words if minted and call.flag("words") else None,
            "code_expires_at": rfc3339(minted.expires_s * 1000) if minted else None,
            "uses": body.uses,
            "roles": sorted(role_names(Role(body.roles))),
            "owner": body.owner_name,
            "addresses": list(body.addresses),
            "ephemeral_s": body.life_s,
        }

    def _code_address(self) -> tuple[str, int] | None:
        """What a code has to name: nothing where the joiner can find this machine on the LAN, else an IPv4 address."""
        if self.discovery is not None and self.discovery.state[0] == "on":
            return None
        for text in self.advertised():
            host, _, port = text.rpartition(":")
            if host.count(".") == 3 and host.replace(".", "").isdigit():
                return host, int(port)
        raise Refused(
            "a code needs discovery, or an IPv4 address of this machine to name",
            reason="no_address",
            hint="use the link that `hivemesh invite` prints",
        )

    async def invite_state(self, call: Call) -> object:
        """What became of an invite and its code."""
        wanted = call.text("id", bytes_max=64)
        invite = self.pairing.find(wanted)
        if invite is None:
            raise Usage("no such invite was made here", hint="hivemesh invite makes one")
        joined = [c.name for c in self.replica.members_now.certificates.values() if c.invite == invite.body.invite]
        code = self.pairing.codes.state(invite.body.invite)
        expired = self.read_clock().wall_ms // 1000 > invite.body.expires_s
        word = "used" if invite.uses_left < 1 else "expired" if expired else "open"
        return {
            "id": wanted,
            "state": code.word if code is not None else word,
            "tries_left": None if code is None else code.tries_left,
            "uses_left": invite.uses_left,
            "joined": joined,
        }

    async def join_open(self, call: Call) -> object:
        """Get the link a code or a phrase stands for, and where."""
        code = read_code_untrusted(call.text("code", bytes_max=4096))
        failures: list[MeshError] = []
        tried: set[str] = set()
        with trio.move_on_after(JOIN_TIMEOUT_S):
            for look in range(1 if code.address else LOOKS_MAX):
                for addresses in [[code.address]] if code.address else await self._announcers(call, look):
                    if tried.isdisjoint(addresses):
                        tried.update(addresses)
                        found = await self._open_at(addresses, code, failures)
                        if found is not None:
                            return {"link": found[0], "address": found[1]}
                if sum(failure.reason in _TRIED for failure in failures if isinstance(failure, BadInvite)) >= TRIES_MAX:
                    break
        raise _code_failure(failures, code)

    async def _announcers(self, call: Call, look: int) -> list[list[str]]:
        """The addresses of each machine that announces itself on the LAN."""
        if self.discovery is None:
            raise Refused("discovery is off on this machine, and the code names no address", reason="no_discovery", hint="use the link")
        if look == 0:
            await call.event({"kind": "note", "text": "looking for the machine on the LAN"})
        sightings = await self.discovery.browse(BROWSE_S)
        return [[str(Endpoint(host, port)) for host, port in sighting.addresses] for sighting in sightings]

    async def _open_at(self, addresses: list[str], code: Code, failures: list[MeshError]) -> tuple[str, str] | None:
        """Ask one machine, at the first of its addresses that answers: each answer may cost one of three tries."""
        for address in addresses:
            links: list[str] = []

            async def converse(pipe: Pipe, links: list[str] = links) -> None:
                links.append(await open_code(pipe, code, os.urandom))

            try:
                await self.dial_join(address, converse)
            except BadInvite as failure:
                failures.append(failure)
                return None
            except MeshError as failure:
                failures.append(failure)
                continue
            return links[0], address
        return None

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
        if invite.mesh == self.mesh and self.replica.me.state != "expelled":
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
            known = call.optional_text("address", bytes_max=280)
            return [*([known] if known else []), *invite.addresses]
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


def _code_failure(failures: list[MeshError], code: Code) -> MeshError:
    """Choose what to tell: what a machine said that holds such a code, before that none does, before silence."""
    said = sorted((f for f in failures if isinstance(f, BadInvite)), key=lambda f: f.reason == "no_open_code")
    if said:
        return said[0]
    where = code.address or "this LAN"
    if any(isinstance(failure, Refused) for failure in failures):
        return BadInvite(
            f"no code is open at {where}: it was used, has expired, or is another machine's",
            reason="no_open_code",
            hint="ask whoever made it for a new one",
        )
    detail = f" ({failures[-1].message})" if failures else ""
    return Unreachable(
        f"the machine that made this code was not found at {where}{detail}",
        hint="is hivemesh running there? then try again: nothing was spent. Across networks use the link",
    )


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
