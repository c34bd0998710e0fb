"""The shells around the pairing core: one use, one member, whatever breaks in between."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from mesh import invites as room_of_links
from mesh import pairing as room
from mesh import store
from mesh.base.clock import Now
from mesh.base.codec import decode_untrusted, encode
from mesh.base.crypto import Context, SigningKey
from mesh.base.db import Database
from mesh.base.errors import MeshError, PeerFault, Refused, Unreachable
from mesh.base.names import node_id, owner_id
from mesh.certificates import Certified, Genesis, certificate_body_untrusted, issue, mesh_id, sign_owner
from mesh.granting import Joined, JoinRequest
from mesh.identity import Belongings, Identity, decide_move, finish_move, founding, read_identity
from mesh.invites import BadInvite, InviteBody, OpenInvite, read_link_untrusted
from mesh.joining import Issuer, Joiner, JoinOffer
from mesh.keyring import Keyring
from mesh.kinds import CERTIFICATE, Lane, Role
from mesh.members import Members
from mesh.pairing import Pairing, join_over
from mesh.records import Record
from mesh.replica import Replica
from tests.fakes.meshes import NOW, NOW_S, Drawn

WORKING = Role.MEMBER | Role.WORKER


class Broken(Exception):
    """The test cuts the line here."""


class End:
    """One end of a pipe of whole messages; ``change`` sees each message that is sent."""

    def __init__(self, send: trio.MemorySendChannel[bytes], receive: trio.MemoryReceiveChannel[bytes]) -> None:
        self._send, self._receive = send, receive
        self.sent: list[bytes] = []
        self.change: Callable[[int, bytes], bytes] = lambda number, message: message

    async def send(self, message: bytes) -> None:
        self.sent.append(message)
        try:
            await self._send.send(self.change(len(self.sent), message))
        except trio.BrokenResourceError:
            raise Unreachable("the pipe is gone") from None

    async def receive(self) -> bytes:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            raise Unreachable("the pipe is gone") from None

    async def aclose(self) -> None:
        await self._send.aclose()
        await self._receive.aclose()


def pipe() -> tuple[End, End]:
    to_issuer, from_joiner = trio.open_memory_channel[bytes](1)
    to_joiner, from_issuer = trio.open_memory_channel[bytes](1)
    return End(to_issuer, from_issuer), End(to_joiner, from_joiner)


class Node:
    """A home on disk and the parts of a node that pair."""

    def __init__(self, folder: Path, goods: Belongings) -> None:
        folder.mkdir()
        self.folder = folder
        self.now = NOW
        decide_move(folder, goods, NOW.wall_ms)
        finish_move(folder)
        self.open()

    def open(self) -> None:
        self.database = Database(self.folder / "mesh.db", store.SCHEMA)
        self.identity: Identity = read_identity(self.folder, self.database)
        self.replica = Replica(self.database, self.identity, lambda: self.now, set, lambda: "studio")
        self.pairing = Pairing(self.database, self.identity, self.replica, lambda: self.now, os.urandom, Keyring(self.database, self.replica, lambda: self.now, os.urandom))

    def restart(self) -> None:
        self.database.close()
        self.open()

    def certificates(self) -> list[Record]:
        return [r for r in store.lane_records(self.database.reader, Lane.CONTROL) if r.kind == CERTIFICATE]

    async def invite(self, **more) -> InviteBody:
        asked = {"for_person": None, "roles": WORKING, "uses": 1, "ttl_s": 3600, "addresses": ["192.0.2.1:9847"]} | more
        link, body = await self.pairing.mint(**asked)  # type: ignore[arg-type]
        assert read_link_untrusted(link) == body
        return body


Outcome = tuple[Belongings, Joined, Certified] | MeshError


async def join(node: Node, invite: InviteBody, *, name: str = "mini", joiner_now: Now = NOW, change=None, serve_change=None) -> tuple[Outcome, MeshError | None]:
    """Run one pairing; returns what came of it on the joiner's and on the issuer's side."""
    joiner_end, issuer_end = pipe()
    joiner_end.change = change or joiner_end.change
    issuer_end.change = serve_change or issuer_end.change
    served: MeshError | None = None
    outcome: list[Outcome] = []

    async def serve() -> None:
        nonlocal served
        try:
            await node.pairing.serve(issuer_end)
        except MeshError as error:
            served = error
        except Broken:
            served = Unreachable("cut")
        await issuer_end.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            outcome.append(await join_over(joiner_end, invite, name, lambda: joiner_now, os.urandom))
        except MeshError as error:
            outcome.append(error)
        except Broken:
            outcome.append(Unreachable("cut"))
        await joiner_end.aclose()
    return outcome[0], served


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "founder", founding(name="studio", owner_name="ana", entropy=Drawn("founder"), now=NOW))
    yield made
    made.database.close()


async def test_a_joined_machine_settles_and_is_a_member_on_both_sides(node: Node, tmp_path: Path):
    invite = await node.invite()
    assert node.pairing.is_open()
    outcome, served = await join(node, invite)
    assert served is None
    assert isinstance(outcome, tuple)
    goods, joined, issuer = outcome
    assert issuer.node == node.identity.node_id
    there = Node(tmp_path / "there", goods)
    assert there.identity.mesh == node.identity.mesh
    assert there.identity.owner is None
    assert there.replica.me.mine
    assert there.replica.me.roles == {"member", "worker"}
    assert there.replica.me.owner == node.replica.me.owner
    seen = node.replica.member(there.identity.node_id)
    assert seen is not None
    assert (seen.name, seen.mine) == ("mini", True)
    assert [m.node for m in there.replica.members()] == [node.identity.node_id]
    assert store.secrets(there.database.reader, "gate") == store.secrets(node.database.reader, "gate")
    assert store.secrets(there.database.reader, "fleet") == store.secrets(node.database.reader, "fleet")
    assert goods.keys["node"].seed not in b"".join(p.read_bytes() for p in (tmp_path / "founder").rglob("*") if p.is_file())
    assert not node.pairing.is_open()
    assert joined.certified.invite == invite.invite
    there.database.close()


async def test_another_persons_machine_brings_its_own_owner_and_gets_no_fleet_key(node: Node, tmp_path: Path):
    invite = await node.invite(for_person="ben")
    outcome, _ = await join(node, invite)
    assert isinstance(outcome, tuple)
    goods, _, _ = outcome
    there = Node(tmp_path / "there", goods)
    assert there.identity.owner is not None
    assert there.replica.me.owner == owner_id(there.identity.owner.public) != node.replica.me.owner
    assert there.replica.me.owner_name == "ben"
    assert store.secrets(there.database.reader, "fleet") != store.secrets(node.database.reader, "fleet")
    seen = node.replica.member(there.identity.node_id)
    assert seen is not None
    assert not seen.mine
    with pytest.raises(Refused) as caught:
        await there.invite()
    assert caught.value.reason == "role"
    there.database.close()


@pytest.mark.parametrize("uses", [1, 3])
async def test_an_invite_makes_as_many_members_as_it_has_uses_also_when_all_come_at_once(node: Node, uses: int):
    """I7, O-P5."""
    invite = await node.invite(uses=uses)
    results: list[tuple[Outcome, MeshError | None]] = []

    async def one() -> None:
        results.append(await join(node, invite))

    async with trio.open_nursery() as nursery:
        for _ in range(uses + 4):
            nursery.start_soon(one)
    assert sum(isinstance(outcome, tuple) for outcome, _ in results) == uses
    assert len(node.certificates()) == 1 + uses
    assert {served.reason for _, served in results if isinstance(served, BadInvite)} == {"used"}
    assert not node.pairing.is_open()


async def test_a_use_survives_a_restart_and_so_does_its_being_spent(node: Node):
    invite = await node.invite(uses=2)
    node.restart()
    assert isinstance((await join(node, invite))[0], tuple)
    node.restart()
    assert isinstance((await join(node, invite))[0], tuple)
    node.restart()
    outcome, served = await join(node, invite)
    assert isinstance(outcome, MeshError)
    assert isinstance(served, BadInvite)
    assert len(node.certificates()) == 3


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("side", ["joiner", "issuer"])
async def test_a_line_cut_before_the_joiners_word_spends_nothing(node: Node, side: str, step: int):
    """O-P3, SECURITY 28: only "go on" (J5) spends a use; before it, nothing is known of the joiner but its wish."""

    def cut(number: int, message: bytes) -> bytes:
        if number == step:
            raise Broken
        return message

    invite = await node.invite()
    before = node.certificates()
    outcome, served = await join(node, invite, **{"change" if side == "joiner" else "serve_change": cut})
    assert isinstance(outcome, MeshError)
    spent = side == "issuer" and step == 3
    if spent:
        assert len(node.certificates()) == len(before) + 1, "the use and the certificate stand or fall together"
        assert not node.pairing.is_open()
        return
    assert served is not None
    assert node.certificates() == before
    assert node.pairing.is_open()
    assert isinstance((await join(node, invite))[0], tuple), "the true invitee can still pair"


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("side", ["change", "serve_change"])
async def test_a_changed_message_ends_the_pairing_on_both_sides(node: Node, side: str, step: int):
    def flip(number: int, message: bytes) -> bytes:
        return message[:-1] + bytes([message[-1] ^ 1]) if number == step else message

    outcome, _ = await join(node, await node.invite(), **{side: flip})
    assert isinstance(outcome, (PeerFault, Refused, Unreachable))


async def test_who_does_not_hold_the_invite_gets_nothing_and_leaves_no_trace(node: Node):
    """O-P5: (a) no request at all, (b) an unknown invite, (c) a guessed secret."""
    invite = await node.invite()
    before = node.certificates()
    changed = {f: getattr(invite, f) for f in invite.__dataclass_fields__}
    guesses = [InviteBody(**{**changed, "seed": os.urandom(16)}), InviteBody(**{**changed, "invite": os.urandom(16)})]
    for guess in guesses * 3:
        outcome, served = await join(node, guess)
        assert isinstance(outcome, Unreachable), "nothing is answered"
        assert isinstance(served, (PeerFault, BadInvite))
    for garbage in (b"", b"GET / HTTP/1.1", bytes(68), os.urandom(68), bytes(100_000)):
        joiner_end, issuer_end = pipe()
        await joiner_end.send(garbage)
        with pytest.raises((PeerFault, Refused)):
            await node.pairing.serve(issuer_end)
    assert node.certificates() == before
    assert isinstance((await join(node, invite))[0], tuple)


async def test_a_joiner_may_not_take_the_place_of_a_machine_it_is_not(node: Node, tmp_path: Path):
    """O-P5 (c): the id is derived from the proved key; an existing machine stays byte for byte."""
    outcome, _ = await join(node, await node.invite())
    assert isinstance(outcome, tuple)
    mini = outcome[0].keys["node"]
    before = {r.key: r.wire for r in node.certificates()}
    await join(node, await node.invite(for_person="mallory"), name="mini")
    after = {r.key: r.wire for r in node.certificates()}
    assert {key: after[key] for key in before} == before
    names = [m.name for m in node.replica.members()]
    assert names == ["mini", "mini"], "the same name is shown twice, told apart by the key"
    assert mini is not None


@pytest.mark.parametrize("offset_s", [-86_400, -600, -90, 90, 600, 86_400])
async def test_a_joiner_whose_clock_is_wrong_can_pair(node: Node, offset_s: int):
    """O-P8: expiry is judged by the issuer's clock alone."""
    joiner_now = Now(NOW.wall_ms + offset_s * 1000, 0)
    outcome, served = await join(node, await node.invite(ttl_s=900), joiner_now=joiner_now)
    assert isinstance(outcome, tuple), outcome
    assert served is None


async def test_an_expired_invite_is_refused_whatever_the_joiners_clock_says(node: Node):
    """O-P8."""
    invite = await node.invite(ttl_s=900)
    node.now = Now(NOW.wall_ms + 901_000, NOW.steady_s + 901)
    assert not node.pairing.is_open()
    outcome, served = await join(node, invite, joiner_now=NOW)
    assert isinstance(outcome, MeshError)
    assert isinstance(served, BadInvite)
    assert served.reason == "expired"


async def test_only_a_machine_that_may_invite_mints(node: Node, tmp_path: Path):
    goods, _, _ = (await join(node, await node.invite()))[0]  # type: ignore[misc]
    there = Node(tmp_path / "there", goods)
    for person in (None, "ben"):
        with pytest.raises(Refused) as caught:
            await there.invite(for_person=person)
        assert caught.value.hint
    there.database.close()


async def test_a_founder_without_the_persons_key_invites_others_only(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(node.pairing, "_identity", Identity(node.identity.node, None, node.identity.genesis, node.identity.mesh))
    with pytest.raises(Refused) as caught:
        await node.invite()
    assert caught.value.reason == "owner_key"
    assert isinstance((await join(node, await node.invite(for_person="ben")))[0], tuple)


async def test_open_invites_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store, "INVITES_MAX", 2)
    await node.invite()
    await node.invite()
    with pytest.raises(Refused) as caught:
        await node.invite()
    assert caught.value.reason == "limit"


async def test_a_silent_other_side_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "STEP_TIMEOUT_S", 0.05)
    invite = await node.invite()
    joiner_end, issuer_end = pipe()
    with trio.fail_after(10):
        with pytest.raises(Unreachable, match="stopped answering"):
            await node.pairing.serve(issuer_end)
        with pytest.raises(Unreachable, match="stopped answering"):
            await join_over(joiner_end, invite, "mini", lambda: NOW, os.urandom)


async def test_a_joiner_knows_every_admin_and_every_expulsion_before_its_first_link(node: Node):
    """PROTOCOL 2: the snapshot of the control lane in J6."""
    for _ in range(3):
        await join(node, await node.invite())
    outcome, _ = await join(node, await node.invite())
    assert isinstance(outcome, tuple)
    goods, joined, _ = outcome
    members = Members(decode_untrusted(Genesis, goods.genesis, bytes_max=200), mesh_id(goods.genesis), goods.records)
    assert node.identity.node_id in members.certificates
    assert joined.certified.node in members.certificates
    assert len(members.certificates) == 2, "other machines' certificates come with the first link"


async def test_who_proved_the_invite_is_told_why_it_is_refused(node: Node):
    """Not a silence that looks like a lost connection: used, expired, or gone away when it may have been spent."""
    invite = await node.invite()
    assert isinstance((await join(node, invite))[0], tuple)
    outcome, _ = await join(node, invite)
    assert isinstance(outcome, BadInvite)
    assert outcome.reason == "used"
    late = await node.invite(ttl_s=900)
    node.now = Now(NOW.wall_ms + 901_000, NOW.steady_s + 901)
    outcome, _ = await join(node, late)
    assert isinstance(outcome, BadInvite)
    assert outcome.reason == "expired"

    def cut(number: int, message: bytes) -> bytes:
        if number == 3:
            raise Broken
        return message

    outcome, _ = await join(node, await node.invite(), serve_change=cut)
    assert isinstance(outcome, room.Unfinished)


# A side that holds its keys and lies -----------------------------------------------------------------------------------


def cores(node: Node, invite: InviteBody, owner: SigningKey | None = None) -> tuple[Joiner, Issuer]:
    joiner = Joiner(invite, SigningKey(os.urandom(32)), owner, "mini", entropy=os.urandom)
    me = node.identity
    issuer = Issuer(
        OpenInvite(invite, 1), me.node, me.owner, me.genesis, node.replica.members_now.chain_of(me.node_id), entropy=os.urandom
    )
    return joiner, issuer


def key_of(exchange_end: Joiner | Issuer):
    assert exchange_end.exchange is not None
    return exchange_end.exchange


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.INVITE])
async def test_a_link_signed_for_another_purpose_is_no_link(node: Node, context: Context):
    """SECURITY 10."""
    body = encode(await node.invite())
    signed = encode(room_of_links._SignedInvite(body, node.identity.node.sign(context, node.identity.mesh, body)))
    link = room_of_links.PREFIX + base64.urlsafe_b64encode(signed).decode().rstrip("=")
    with pytest.raises(BadInvite) as caught:
        read_link_untrusted(link)
    assert caught.value.reason == "typo"


@pytest.mark.parametrize("change", [{"version": 2}, {"roles": int(Role.ADMIN | Role.MEMBER)}])
async def test_a_well_signed_link_of_another_version_or_with_admin_is_refused(node: Node, change: dict[str, int]):
    """SECURITY 4: an invite can never carry admin, whoever signs it."""
    invite = await node.invite()
    body = encode(InviteBody(**{**{f: getattr(invite, f) for f in invite.__dataclass_fields__}, **change}))
    signed = encode(room_of_links._SignedInvite(body, node.identity.node.sign(Context.INVITE, node.identity.mesh, body)))
    with pytest.raises(BadInvite) as caught:
        read_link_untrusted(room_of_links.PREFIX + base64.urlsafe_b64encode(signed).decode().rstrip("="))
    assert caught.value.reason == "version"


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.JOIN_INITIATOR])
async def test_a_joiners_signature_for_another_purpose_does_not_prove_its_key(node: Node, context: Context):
    joiner, issuer = cores(node, await node.invite())
    joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S))
    before = key_of(issuer).transcript
    key = SigningKey(os.urandom(32))
    request = JoinRequest(key.public, "mini", None, None, key.sign(context, node.identity.mesh, before))
    key_of(joiner).transcript = before
    with pytest.raises(PeerFault, match="does not hold the key"):
        issuer.offer_untrusted(key_of(joiner).seal("join request", encode(request)))


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.JOIN_RESPONDER])
async def test_an_issuers_signature_for_another_purpose_does_not_prove_its_key(node: Node, context: Context):
    joiner, issuer = cores(node, await node.invite())
    request = joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S))
    key_of(issuer).unseal_untrusted("join request", request)
    me = node.identity
    signature = me.node.sign(context, me.mesh, key_of(issuer).transcript)
    offer = JoinOffer(me.genesis, node.replica.members_now.chain_of(me.node_id), signature)
    with pytest.raises(PeerFault, match="does not hold the key"):
        joiner.confirm_untrusted(key_of(issuer).seal("join offer", encode(offer)), now_s=NOW_S)


@pytest.mark.parametrize("lie", ["an owner where none is asked for", "no owner where one is", "another's owner key"])
async def test_a_joiner_brings_an_owner_exactly_where_the_invite_says_and_proves_it(node: Node, lie: str):
    """SECURITY 5: nobody becomes a machine of somebody whose key they lack."""
    mine = lie == "an owner where none is asked for"
    joiner, issuer = cores(node, await node.invite(for_person=None if mine else "ben"), SigningKey(os.urandom(32)))
    joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S))
    before = key_of(issuer).transcript
    mesh = node.identity.mesh
    key, owner = SigningKey(os.urandom(32)), SigningKey(os.urandom(32))
    signature = key.sign(Context.JOIN_INITIATOR, mesh, before)
    proof = sign_owner(owner, mesh, node_id(key.public), key.public)
    request = {
        "an owner where none is asked for": JoinRequest(key.public, "mini", owner.public, proof, signature),
        "no owner where one is": JoinRequest(key.public, "mini", None, None, signature),
        "another's owner key": JoinRequest(key.public, "mini", SigningKey(bytes(32)).public, proof, signature),
    }[lie]
    key_of(joiner).transcript = before
    with pytest.raises(PeerFault, match="owner"):
        issuer.offer_untrusted(key_of(joiner).seal("join request", encode(request)))


async def test_an_issuer_that_shows_another_machines_certificate_is_refused(node: Node):
    outcome, _ = await join(node, await node.invite())
    assert isinstance(outcome, tuple)
    mini = outcome[1].certified
    joiner, issuer = cores(node, await node.invite())
    request = joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S))
    key_of(issuer).unseal_untrusted("join request", request)
    me = node.identity
    signature = me.node.sign(Context.JOIN_RESPONDER, me.mesh, key_of(issuer).transcript)
    offer = JoinOffer(me.genesis, (mini.wire, *node.replica.members_now.chain_of(me.node_id)), signature)
    with pytest.raises(PeerFault, match="not the issuer's"):
        joiner.confirm_untrusted(key_of(issuer).seal("join offer", encode(offer)), now_s=NOW_S)


@pytest.mark.parametrize("lie", ["no certificate", "no fleet key", "another owner", "another owner for ben", "another invite", "endless roles", "too large"])
async def test_a_grant_that_differs_from_the_invite_is_refused(node: Node, lie: str):
    """SECURITY 28: the joiner refuses what was not promised: owner, roles, mesh, keys."""
    ben = SigningKey(os.urandom(32)) if lie == "another owner for ben" else None
    joiner, issuer = cores(node, await node.invite(for_person="ben" if ben else None), ben)
    me = node.identity
    offer, request = issuer.offer_untrusted(joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S)))
    confirmation, _ = joiner.confirm_untrusted(offer, now_s=NOW_S)
    honest = issuer.certificate_untrusted(confirmation, now_s=NOW_S)
    body = certificate_body_untrusted(honest)
    assert body is not None
    other = SigningKey(bytes([9]) * 32)
    changed = {
        "another owner": {"owner_key": other.public}, "another owner for ben": {"owner_key": other.public},
        "another invite": {"invite": bytes(16)}, "endless roles": {"roles": 15},
    }.get(lie, {})  # fmt: skip
    signer = other if "owner_key" in changed else ben or me.owner
    assert signer is not None
    wire = issue(me.node, me.mesh, replace(body, **changed), sign_owner(signer, me.mesh, body.lineage, body.public_key))
    record = node.replica.sign(CERTIFICATE, node_id(request.public_key), wire)
    fleet = None if ben or lie == "no fleet key" else bytes(32)
    shown = node.certificates()[0].wire if lie == "no certificate" else record.wire
    snapshot = tuple(r.wire for r in store.lane_records(node.database.reader, Lane.CONTROL))
    grant = issuer.grant(shown, tuple(store.secrets(node.database.reader, "gate").values()), fleet, snapshot)
    if lie == "too large":
        grant = bytes(60_001)
    with pytest.raises(PeerFault):
        joiner.finish_untrusted(grant, now_ms=NOW.wall_ms)


async def test_a_joiner_that_goes_away_while_its_use_is_spent_leaves_both_or_neither(node: Node):
    """What stands in the database is what this node knows: its members agree with its certificates at every moment."""
    for number in range(12):
        invite = await node.invite()
        with trio.move_on_after(0.004 + 0.0007 * number):
            await join(node, invite)
        assert len(node.replica.members()) + 1 == len(node.certificates())


async def test_a_machine_let_in_for_a_while_is_a_member_for_that_long_and_then_not_even_listed(node: Node):
    invite = await node.invite(life_s=3600)
    outcome, served = await join(node, invite)
    assert served is None
    assert isinstance(outcome, tuple)
    own = outcome[1].certified
    assert own.not_after_s is not None
    assert own.not_after_s - own.not_before_s == 3600
    assert [member.name for member in node.replica.members()] == ["mini"]
    with pytest.raises(Refused, match="expired"):
        node.replica.members_now.check_untrusted((own.wire, *node.replica.members_now.chain_of(node.identity.node_id)), now_s=NOW_S + 3601, me=node.identity.node_id)
    node.now = Now(NOW.wall_ms + 3_601_000, NOW.steady_s + 3601)
    assert node.replica.members() == []


async def test_a_joiner_refuses_to_be_a_member_for_longer_than_the_invite_said(node: Node):
    """What is granted must be what was shown before: the issuer cannot change its mind about the end."""
    invite = await node.invite()
    promised = replace(invite, life_s=60)
    outcome, _ = await join(node, promised)
    assert isinstance(outcome, PeerFault)
    assert "longer" in outcome.message
