"""Who stays a member and who stops being one: renew, expel, leave."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import trio

from mesh import store
from mesh.base.clock import Now, rfc3339
from mesh.base.codec import encode
from mesh.base.db import Database
from mesh.base.errors import MeshError, Refused
from mesh.base.names import base32, fingerprint_text
from mesh.base.ports import Member
from mesh.certificates import KEEP_MAX, Certified, Expulsion, LeavingBody, mesh_id, renewal
from mesh.identity import Belongings, Identity, founding
from mesh.keyring import Keyring
from mesh.kinds import CERTIFICATE, EXPULSION, LEAVING, Role
from mesh.overlay import Overlay
from mesh.replica import Replica
from node.calls import Call, Then
from node.machines import find_machine, require_other, title
from node.tasks.runs import Runs

FRESH_MS = 24 * 3_600_000
"""A certificate first seen within this time is not kept by default: who is about to be expelled may have made it."""

EPOCH_WAIT_S = 2.0
"""Time for an expeller's own fleet epoch to arrive behind its expulsion, before another one is begun here."""
TELL_S = 3.0
"""How long a machine that leaves waits for the others to hear of it."""
RENEW_LOOK_S = 5.0
"""How often an admin machine looks whose certificate is due, among those it is linked to."""

log = logging.getLogger("node.members")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate that a machine about to be expelled issued for another one."""

    certified: Certified
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Membership:
    """The parts these verbs ask.

    Attributes:
        busy: Tasks of this machine that are not final, asked or running.
        decide_move: Makes a new identity durable, blocking; it is in force once the inside is opened anew.
        reopen: Ends this inside, so that a new one is opened.
    """

    identity: Identity
    replica: Replica
    keyring: Keyring
    overlay: Overlay
    database: Database
    runs: Runs
    read_clock: Callable[[], Now]
    busy: Callable[[], int]
    decide_move: Callable[[Belongings, int], None]
    reopen: Callable[[], None]

    # Expelling -------------------------------------------------------------------------------------------------

    async def expel_plan(self, call: Call) -> object:
        """What an expulsion would do; nothing is done."""
        member = self._victim(call)
        return self._plan(member, self._kept(member, call))

    async def expel(self, call: Call) -> object:
        """Expel a machine: its lineage, every key in it, for ever."""
        member = self._victim(call)
        kept = self._kept(member, call)
        plan = self._plan(member, kept)
        lineage = self._certified(member).lineage
        body = Expulsion(lineage, tuple(issued.certified.fingerprint for issued in kept))
        await self.keyring.publish_with_new_keys([(EXPULSION, lineage, encode(body))], gate=True, fleet=member.mine)
        log.warning("%s was expelled from the mesh", title(member))
        return plan

    # Leaving ---------------------------------------------------------------------------------------------------

    async def leave(self, call: Call) -> object:
        """Leave the mesh: a fresh key and a mesh of one; the others hear of it and never take the old key back."""
        me = self.replica.me
        others = [m for m in self.replica.members() if m.state not in ("expelled", "gone")]
        doubts = [f"{busy} tasks are not over"] if (busy := self.busy()) else []
        if "admin" in me.roles and others:
            doubts.append("nobody can let machines in or put them out any more unless another admin machine stays")
        if doubts and not call.flag("yes"):
            raise Refused(f"{me.name} stays: {'; '.join(doubts)}", reason="needs_yes", hint="hivemesh leave --yes leaves all the same")
        goods = founding(name=me.name, owner_name=me.owner_name, entropy=os.urandom, now=self.read_clock())
        await trio.to_thread.run_sync(self.decide_move, goods, self.read_clock().wall_ms)
        try:
            await self.replica.publish(LEAVING, b"", encode(LeavingBody(self.replica.now_ms() // 1000)))
        except MeshError as fault:
            log.warning("the others were not told that this machine left: %s", fault.message)
        told = len(self.overlay.links)
        with trio.move_on_after(TELL_S):
            while self.overlay.links:  # noqa: ASYNC110 - each of them ends its link once it knows
                await trio.sleep(0.02)
        return Then({"left": base32(self.identity.mesh), "told": told, "mesh": base32(mesh_id(goods.genesis))}, self.reopen)

    # Renewing --------------------------------------------------------------------------------------------------

    async def run_renewals(self) -> None:
        """Renew the certificates of machines this admin is linked to when they are due, until cancelled."""
        while self.replica.may(Role.ADMIN):
            for node in list(self.overlay.links):
                due = self.replica.members_now.renewable(node, self.replica.now_ms() // 1000)
                if due is not None:
                    try:
                        await self._renew(due)
                    except MeshError as fault:
                        log.error("a certificate was not renewed: %s", fault.message)
            await trio.sleep(RENEW_LOOK_S)

    async def renew(self, call: Call) -> object:
        """Renew a machine's certificate because a person says so: it may have ended long ago."""
        if not self.replica.may(Role.ADMIN):
            raise Refused("only an admin machine can renew a certificate", reason="role", hint="run it on the machine that founded this mesh")
        member = require_other(find_machine(call.text("node", bytes_max=256), self.replica.members()), self.replica.me)
        certified = self._certified(member)
        if not self.replica.members_now.may_renew(certified):
            raise Refused(f"the certificate of {title(member)} is not an admin's to renew", reason="root", hint="admin machines' certificates come from the root")
        await self._renew(certified)
        end_s = self._certified(member).not_after_s
        return {"node": base32(member.node), "name": member.name, "expires_at": rfc3339(None if end_s is None else end_s * 1000)}

    async def _renew(self, certified: Certified) -> None:
        now_s = self.replica.now_ms() // 1000
        wire = renewal(certified.wire, self.identity.node, self.identity.mesh, serial=os.urandom(8), now_s=now_s)
        await self.replica.publish(CERTIFICATE, certified.node, wire)
        log.info("the certificate of %s was renewed", certified.name)

    async def run_fleet_epochs(self) -> None:
        """Begin a new fleet key where another person's admin expelled a machine of this person, until cancelled.

        The machine that holds the person's key does it; an expeller of the same person did it with the expulsion itself.
        """
        if self.identity.owner is None or not self.replica.may(Role.MEMBER):
            return
        changes = self.replica.changes({EXPULSION})
        while True:
            epochs = self.replica.members_now.fleet_epochs(self.replica.me.owner)
            if self.replica.me.state != "expelled" and self._mine_expelled() > len(epochs):
                try:
                    await self.keyring.publish_with_new_keys([], gate=False, fleet=True)
                except MeshError as fault:
                    log.error("no new fleet key could be made: %s", fault.message)
            await changes.receive()
            await trio.sleep(EPOCH_WAIT_S)

    def _mine_expelled(self) -> int:
        """Count this person's machines that are out."""
        return sum(member.mine and member.state == "expelled" for member in self.replica.members())

    def _victim(self, call: Call) -> Member:
        if not self.replica.may(Role.ADMIN):
            raise Refused("only an admin machine can expel", reason="role", hint="run `expel` on the machine that founded this mesh")
        member = require_other(find_machine(call.text("node", bytes_max=256), self.replica.members()), self.replica.me)
        if self._certified(member).lineage == self._certified(self.replica.me).lineage:
            raise Refused("that is an earlier key of this machine itself", reason="self")
        return member

    def _certified(self, member: Member) -> Certified:
        return self.replica.members_now.certificates[member.node]

    def _issued(self, member: Member) -> list[Issued]:
        """List the certificates held here that the machine's lineage issued and that stand in force."""
        members = self.replica.members_now
        lineage = self._certified(member).lineage
        found: list[Issued] = []
        for record, seen_ms in store.records_of(self.database.reader, CERTIFICATE, self.read_clock().wall_ms):
            author = members.certificates.get(record.author)
            certified = next((c for c in members.certificates.values() if c.wire == record.body), None)
            if author is not None and author.lineage == lineage and certified is not None and certified.lineage != lineage:
                found.append(Issued(certified, seen_ms))
        return [issued for issued in found if not members.is_out(issued.certified)]

    def _kept(self, member: Member, call: Call) -> list[Issued]:
        """Choose whose certificates stay, of those the expelled issued."""
        issued = self._issued(member)
        words = call.texts("keep", count_max=KEEP_MAX, bytes_max=8192)
        if words == ["none"]:
            return []
        if words:
            chosen = {find_machine(word, self.replica.members()).node for word in words}
            kept = [one for one in issued if one.certified.node in chosen]
            if len(kept) < len(chosen):
                raise Refused(f"a machine to keep was not let in by {title(member)}", reason="keep", hint="leave it out: it stays by itself")
        else:
            fresh_ms = self.read_clock().wall_ms - FRESH_MS
            kept = [one for one in issued if one.seen_ms <= fresh_ms]
        if len(kept) > KEEP_MAX:
            raise Refused(
                f"{title(member)} let {len(kept)} machines in; one expulsion keeps at most {KEEP_MAX}",
                reason="limit",
                hint="name those to keep with --keep, and invite the others again",
            )
        return kept

    def _plan(self, member: Member, kept: list[Issued]) -> dict[str, object]:
        keeping = {issued.certified.node for issued in kept}
        lineage = self._certified(member).lineage
        keys = [c for c in self.replica.members_now.certificates.values() if c.lineage == lineage]
        return {
            "node": base32(member.node),
            "name": member.name,
            "fingerprint": fingerprint_text(member.public_key),
            "owner": member.owner_name,
            "mine": member.mine,
            "keys": [fingerprint_text(certified.public_key) for certified in keys],
            "issued": [
                {
                    "node": base32(issued.certified.node),
                    "name": issued.certified.name,
                    "first_seen": rfc3339(issued.seen_ms),
                    "kept": issued.certified.node in keeping,
                }
                for issued in self._issued(member)
            ],
            "tasks": [base32(task.key.task) for task in self.runs.tasks() if not task.final and member.node in (task.key.requester, task.worker)],
            "checklist": _checklist(member),
        }


def _checklist(member: Member) -> list[str]:
    """What an expulsion cannot do and a person should."""
    return [
        f"replace every API key, token and password that was on {member.name}: an expulsion takes nothing off its disk",
        f"outsiders' grants that {member.name} served are not answered by any other machine; make new ones elsewhere: hivemesh access grant",
        f"what {member.name} was running or had queued for your machines has ended; look through hivemesh tasks",
        "machines that are offline now learn of it when they meet any other member",
    ]
