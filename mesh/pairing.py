"""Mint invites, serve joiners, join: the shells around ``mesh.invites``.

A use is spent in the transaction that stores the certificate, so an acknowledged join survives any crash and a
one-use invite makes at most one member.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.crypto import Entropy, SigningKey
from mesh.base.db import Connection, Database
from mesh.base.errors import Refused, Unreachable
from mesh.base.names import NodeId, base32, node_id, suffix
from mesh.certificates import Certified
from mesh.codebook import Codebook, Pipe
from mesh.granting import GATES_MAX, JOIN_MESSAGE_BYTES_MAX, SNAPSHOT_MAX, Joined
from mesh.identity import Belongings, Identity
from mesh.invites import ADDRESSES_MAX, BadInvite, InviteBody, OpenInvite, write_link
from mesh.joining import Issuer, Joiner, invite_of_untrusted
from mesh.keyring import Keyring
from mesh.kinds import CERTIFICATE, EPOCH, EXPULSION, POLICY, Lane, Role
from mesh.pake import is_code_hello
from mesh.replica import Replica

STEP_TIMEOUT_S = 15.0
REFUSALS = {b"HJ-expired": ("expired", "this invite has expired"), b"HJ-used": ("used", "this invite was used already")}
"""What the issuer answers in place of J2 or J6 to somebody who proved the invite; anybody else gets nothing. It is not
signed: who can change it could as well have cut the line."""

log = logging.getLogger("hivemesh.pairing")


class Unfinished(Unreachable):
    """The issuer may have spent the invite, but its last message did not come."""

    kind = "join_unfinished"


class Pairing:
    """The issuing side of this node.

    Args:
        database: ``mesh.db``.
        identity: Who this machine is.
        replica: Its copy of the mesh.
        read_clock: Reads both clocks.
        entropy: Randomness.
        keyring: The gate and fleet keys.
        suspended: Whether nobody may be let in now: an old state came back, in which used invites look unused.
    """

    def __init__(
        self,
        database: Database,
        identity: Identity,
        replica: Replica,
        read_clock: Callable[[], Now],
        entropy: Entropy,
        keyring: Keyring,
        suspended: Callable[[], bool] = lambda: False,
    ) -> None:
        self._suspended = suspended
        self.codes = Codebook(database, read_clock, entropy)
        self._database = database
        self._identity = identity
        self._replica = replica
        self._read_clock = read_clock
        self._entropy = entropy
        self._keyring = keyring

    def is_open(self) -> bool:
        """Whether any invite can be used now; only then is there a ``/join`` at all."""
        return not self._suspended() and store.open_invites(self._database.reader, self._read_clock().wall_ms // 1000) > 0

    def warnings(self) -> tuple[str, ...]:
        """What a person should know: codes that strangers burned."""
        burned = self.codes.burned()
        return (f"{burned} invite code(s) burned after three wrong tries; make a new one, or use the link",) if burned else ()

    def find(self, text: str) -> OpenInvite | None:
        """Find an invite that was made here by its id as text."""
        return next((i for i in store.invites(self._database.reader) if base32(i.body.invite) == text), None)

    async def mint(
        self,
        *,
        for_person: str | None,
        roles: Role,
        uses: int,
        ttl_s: int,
        addresses: Sequence[str],
        life_s: int | None = None,
    ) -> tuple[str, InviteBody]:
        """Mint a link. Minting is the approval.

        Args:
            for_person: Another person's name, or None for one more machine of mine.
            roles: Never admin.
            uses: 1 to 100.
            ttl_s: Seconds it can be used.
            addresses: Where this machine listens; empty: the joiner finds it on the LAN.
            life_s: How long the joiner stays a member; None: as long as any.

        Returns:
            The link and what it says.

        Raises:
            Refused: This machine may not invite, or too many invites are open.
        """
        own = self._replica.me
        if self._suspended():
            raise Refused(
                "this machine's state came back from a backup; nobody is let in until it is up to date",
                reason="restored",
                hint="link to another machine of the mesh, or, if the old state is meant: hivemesh doctor --accept-restore",
            )
        if not self._replica.may(Role.ADMIN):
            raise Refused(
                "only an admin machine can invite",
                reason="role",
                hint="run `invite` on the machine that founded this mesh",
            )
        if for_person is None and self._identity.owner is None:
            raise Refused(
                f"this machine does not hold {own.owner_name}'s key",
                reason="owner_key",
                hint="run `invite` on the machine that founded this mesh, or name a person with --for",
            )
        body = InviteBody(
            version=1,
            mesh=self._identity.mesh,
            issuer_key=self._identity.node.public,
            invite=self._entropy(16),
            seed=self._entropy(16),
            roles=int(roles),
            uses=uses,
            expires_s=self._read_clock().wall_ms // 1000 + ttl_s,
            mine=for_person is None,
            owner_name=for_person or own.owner_name,
            addresses=tuple(addresses[:ADDRESSES_MAX]),
            life_s=life_s,
        )
        link = write_link(self._identity.node, body)
        if not await self._database.write(lambda connection: store.add_invite(connection, body)):
            raise Refused("too many invites are open", reason="limit", hint="wait until some expire")
        return link, body

    async def serve(self, pipe: Pipe) -> None:
        """Serve one joiner to the end.

        Args:
            pipe: A connection to ``/join``; the caller bounds its life and closes it.

        Raises:
            PeerFault, Refused: The joiner failed; nothing was spent before its confirmation.
            Unreachable: The connection ended.

        If cancelled: a use is spent only where the certificate is stored too.
        """
        hello = await _receive(pipe)
        if is_code_hello(hello):
            await self.codes.serve(hello, pipe)
            return
        invite = store.invite(self._database.reader, invite_of_untrusted(hello))
        if invite is None:
            raise BadInvite("that invite is not known on this machine", reason="unknown")
        me = self._identity.node_id
        issuer = Issuer(
            invite,
            self._identity.node,
            self._identity.owner if invite.body.mine else None,
            self._identity.genesis,
            self._replica.members_now.chain_of(me),
            entropy=self._entropy,
        )
        try:
            await pipe.send(issuer.accept_untrusted(hello, now_s=self._now_s()))
        except BadInvite as refused:
            await _refuse(pipe, refused)
            raise
        offer, request = issuer.offer_untrusted(await _receive(pipe))
        await pipe.send(offer)
        confirmation = await _receive(pipe)
        wire = issuer.certificate_untrusted(confirmation, now_s=self._now_s())
        record = self._replica.sign(CERTIFICATE, node_id(request.public_key), wire)
        now_ms = self._read_clock().wall_ms

        def spend(connection: Connection) -> bool:
            return store.spend_invite(connection, invite.body.invite, record, now_ms)

        with trio.CancelScope(shield=True):
            # A certificate on the disk must be known here, also where the joiner went away at this very moment.
            spent = await self._database.write(spend)
            if spent:
                await self._replica.publish_signed([record])
        if not spent:
            used = _refused(b"HJ-used")
            await _refuse(pipe, used)
            raise used
        log.info("%s joined by invite %s", suffix(node_id(request.public_key)), base32(invite.body.invite)[:8])
        await pipe.send(issuer.grant(record.wire, self._gates(), self._fleet_key(invite.body.mine), self._snapshot()))

    def _now_s(self) -> int:
        return self._read_clock().wall_ms // 1000

    def _gates(self) -> tuple[bytes, ...]:
        return tuple(gate.key for gate in self._keyring.ring())[:GATES_MAX]

    def _fleet_key(self, mine: bool) -> bytes | None:
        # Later fleet keys come over the first link; each is taken only where a record of this person commits to it.
        return self._keyring.fleet[0] if mine else None

    def _snapshot(self) -> tuple[bytes, ...]:
        """The part of the control lane a joiner needs for its first link: admins, gate commitments, expulsions."""
        first = (CERTIFICATE, EPOCH, POLICY, EXPULSION)
        members = self._replica.members_now
        chosen: list[bytes] = []
        size = 0
        records = sorted(store.lane_records(self._database.reader, Lane.CONTROL), key=lambda r: (first.index(r.kind) if r.kind in first else 9, r.order))
        for record in records:
            certified = members.certificates.get(NodeId(record.key)) if record.kind == CERTIFICATE else None
            wanted = record.kind in first[1:] or (certified is not None and bool(certified.roles & Role.ADMIN))
            if wanted and len(chosen) < SNAPSHOT_MAX and size + len(record.wire) < JOIN_MESSAGE_BYTES_MAX - 8192:
                chosen.append(record.wire)
                size += len(record.wire)
        return tuple(chosen)


def _refused(word: bytes) -> BadInvite:
    reason, message = REFUSALS[word]
    return BadInvite(message, reason=reason, hint="ask whoever made it for a new one")


async def _refuse(pipe: Pipe, refused: BadInvite) -> None:
    for word, (reason, _) in REFUSALS.items():
        if reason == refused.reason:
            await pipe.send(word)


async def _answer(pipe: Pipe) -> bytes:
    """Wait for the issuer's next message, or learn why there is none."""
    answer = await _receive(pipe)
    if answer in REFUSALS:
        raise _refused(answer)
    return answer


async def _receive(pipe: Pipe) -> bytes:
    with trio.move_on_after(STEP_TIMEOUT_S):
        return await pipe.receive()
    raise Unreachable("the other side stopped answering")


async def join_over(
    pipe: Pipe,
    invite: InviteBody,
    name: str,
    read_clock: Callable[[], Now],
    entropy: Entropy,
) -> tuple[Belongings, Joined, Certified]:
    """Go through the pairing exchange as the joiner, with a fresh key.

    Args:
        pipe: A connection to the issuer's ``/join``.
        invite: What the link says.
        name: This machine's display name.
        read_clock: Reads both clocks.
        entropy: Randomness.

    Returns:
        What to settle in this home, what was granted, and the issuer.

    Raises:
        PeerFault, Refused: The other side is not the issuer, or refused.
        Unfinished: The connection ended when the issuer might have spent the use already.
        Unreachable: The connection ended before.
    """
    key = SigningKey(entropy(32))
    owner = None if invite.mine else SigningKey(entropy(32))
    joiner = Joiner(invite, key, owner, name, entropy=entropy)
    await pipe.send(joiner.hello)
    await pipe.send(joiner.request_untrusted(await _answer(pipe)))
    confirmation, issuer = joiner.confirm_untrusted(await _receive(pipe), now_s=read_clock().wall_ms // 1000)
    try:
        await pipe.send(confirmation)
        grant = await _answer(pipe)
    except Unreachable:
        raise Unfinished(
            "the issuer went away in the middle; this machine is where it was, but the invite may be used now",
            hint="try once more; if it is refused as used, ask whoever made it for a new one",
        ) from None
    joined = joiner.finish_untrusted(grant, now_ms=read_clock().wall_ms)
    keys = {"node": key} if owner is None else {"node": key, "owner": owner}
    fleet_key = joined.fleet_key if joined.fleet_key is not None else entropy(32)
    return Belongings(keys, joined.genesis, joined.records, joined.gates, fleet_key), joined, issuer
