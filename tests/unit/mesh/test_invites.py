"""The pairing core: links, typos, the exchange, and what it refuses."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.clock import Now
from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.crypto import SigningKey
from mesh.base.errors import MeshError, PeerFault
from mesh.base.names import node_id
from mesh.certificates import Genesis, mesh_id
from mesh.identity import founding
from mesh.invites import BadInvite, InviteBody, OpenInvite, read_link_untrusted, write_link
from mesh.joining import Issuer, Joiner
from mesh.kinds import CERTIFICATE, Role
from mesh.members import Members
from mesh.records import make

NOW = Now(1_800_000_000_000, 5.0)
NOW_S = NOW.wall_ms // 1000


class Founded:
    def __init__(self) -> None:
        self.goods = founding(name="studio", owner_name="ana", entropy=os.urandom, now=NOW)
        self.mesh = mesh_id(self.goods.genesis)
        genesis = decode_untrusted(Genesis, self.goods.genesis, bytes_max=200)
        self.members = Members(genesis, self.mesh, self.goods.records)
        self.node = self.goods.keys["node"]

    def invite(self, *, mine: bool = True, uses: int = 1, expires_s: int = NOW_S + 60) -> InviteBody:
        return InviteBody(
            1, self.mesh, self.node.public, os.urandom(16), os.urandom(16), int(Role.MEMBER | Role.WORKER), uses,
            expires_s, mine, "ana" if mine else "ben", ("192.0.2.7:9847",),
        )

    def issuer(self, invite: InviteBody, uses_left: int = 1) -> Issuer:
        return Issuer(
            OpenInvite(invite, uses_left), self.node, self.goods.keys["owner"] if invite.mine else None,
            self.goods.genesis, self.members.chain_of(node_id(self.node.public)), entropy=os.urandom,
        )

    def grant(self, issuer: Issuer, wire: bytes, *, fleet: bool) -> bytes:
        assert issuer.request is not None
        record = make(self.node, self.mesh, CERTIFICATE, node_id(issuer.request.public_key), (NOW.wall_ms << 16) + 9, wire)
        records = tuple(r.wire for r in self.goods.records)
        return issuer.grant(record.wire, self.goods.gates, self.goods.fleet_key if fleet else None, records)


def pair(founded: Founded, invite: InviteBody, *, change=lambda step, data: data):
    owner = None if invite.mine else SigningKey(os.urandom(32))
    joiner = Joiner(invite, SigningKey(os.urandom(32)), owner, "mini", entropy=os.urandom)
    issuer = founded.issuer(invite)
    reply = issuer.accept_untrusted(change(1, joiner.hello), now_s=NOW_S)
    request = joiner.request_untrusted(change(2, reply))
    offer, _ = issuer.offer_untrusted(change(3, request))
    confirmation, seen = joiner.confirm_untrusted(change(4, offer), now_s=NOW_S)
    wire = issuer.certificate_untrusted(change(5, confirmation), now_s=NOW_S)
    joined = joiner.finish_untrusted(change(6, founded.grant(issuer, wire, fleet=invite.mine)), now_ms=NOW.wall_ms)
    return joined, seen


def test_a_machine_of_mine_joins_with_my_owner_and_fleet_key():
    founded = Founded()
    joined, issuer = pair(founded, founded.invite())
    assert joined.certified.owner == issuer.owner
    assert joined.certified.owner_proven
    assert joined.fleet_key == founded.goods.fleet_key
    assert joined.gates == founded.goods.gates
    assert joined.certified.name == "mini"
    assert joined.certified.roles == Role.MEMBER | Role.WORKER


def test_another_person_joins_with_a_key_of_their_own_and_no_fleet_key():
    founded = Founded()
    joined, issuer = pair(founded, founded.invite(mine=False))
    assert joined.certified.owner != issuer.owner
    assert joined.certified.owner_proven
    assert joined.certified.owner_name == "ben"
    assert joined.fleet_key is None


@pytest.mark.parametrize("step", range(1, 7))
def test_every_changed_byte_of_the_exchange_is_refused(step: int):
    founded = Founded()
    lengths: list[int] = []
    pair(founded, founded.invite(), change=lambda s, d: lengths.append(len(d)) or d)
    for at in range(0, lengths[step - 1], max(1, lengths[step - 1] // 40)):

        def flip(s: int, data: bytes, at: int = at) -> bytes:
            return data if s != step else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        with pytest.raises(MeshError):
            pair(founded, founded.invite(), change=flip)


def test_typos_are_caught_before_anything_is_sent_and_the_link_stays_good():
    """O-P3: each character of a link changed in turn fails locally."""
    founded = Founded()
    link = write_link(founded.node, founded.invite())
    assert len(link) <= 420
    for at, char in enumerate(link):
        other = "A" if char != "A" else "B"
        with pytest.raises(BadInvite):
            read_link_untrusted(link[:at] + other + link[at + 1 :])
        with pytest.raises(BadInvite):
            read_link_untrusted(link[:at])
    assert read_link_untrusted(link).mesh == founded.mesh


@pytest.mark.parametrize("wrap", ["{} \n", '"{}"', "\u00a0{}\u00a0", "\u201c{}\u201d", "> {}"])
def test_a_pasted_link_may_be_wrapped(wrap: str):
    """O-P4: white space, quotes and line breaks around and inside do not matter."""
    founded = Founded()
    link = write_link(founded.node, founded.invite())
    broken = link[:40] + "\n  " + link[40:90] + "\r\n" + link[90:]
    assert read_link_untrusted(wrap.format(link)) == read_link_untrusted(wrap.format(broken))
    assert read_link_untrusted(link.replace("-", "\u2013")) == read_link_untrusted(link)


@pytest.mark.parametrize("text", ["", "   ", "hmi_", "hmi_AAAA", "a" * 1_000_000, "hmi_" + "\u2013" * 50])
def test_what_is_no_link_gets_one_line(text: str):
    with pytest.raises(BadInvite) as caught:
        read_link_untrusted(text)
    assert "\n" not in caught.value.message
    assert caught.value.hint


def test_expired_and_used_invites_are_refused_by_the_issuer():
    """O-P8: expiry is judged by the issuer's clock."""
    founded = Founded()
    invite = founded.invite(expires_s=NOW_S - 1)
    joiner = Joiner(invite, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    with pytest.raises(BadInvite) as caught:
        founded.issuer(invite).accept_untrusted(joiner.hello, now_s=NOW_S)
    assert caught.value.reason == "expired"
    invite = founded.invite()
    joiner = Joiner(invite, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    with pytest.raises(BadInvite) as caught:
        founded.issuer(invite, uses_left=0).accept_untrusted(joiner.hello, now_s=NOW_S)
    assert caught.value.reason == "used"


def test_without_the_secret_nothing_is_answered():
    """O-P5: who knows the invite's id but not its secret gets nowhere."""
    founded = Founded()
    invite = founded.invite()
    guess = InviteBody(**{**{f: getattr(invite, f) for f in invite.__dataclass_fields__}, "seed": os.urandom(16)})
    joiner = Joiner(guess, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    with pytest.raises(PeerFault):
        founded.issuer(invite).accept_untrusted(joiner.hello, now_s=NOW_S)


def test_a_rogue_issuer_with_the_link_cannot_pose_as_the_machine_that_minted_it():
    founded, rogue = Founded(), Founded()
    invite = founded.invite()
    joiner = Joiner(invite, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    liar = Issuer(
        OpenInvite(invite, 1), rogue.node, rogue.goods.keys["owner"], founded.goods.genesis,
        founded.members.chain_of(node_id(founded.node.public)), entropy=os.urandom,
    )
    offer, _ = liar.offer_untrusted(joiner.request_untrusted(liar.accept_untrusted(joiner.hello, now_s=NOW_S)))
    with pytest.raises(PeerFault):
        joiner.confirm_untrusted(offer, now_s=NOW_S)


def test_a_certificate_other_than_promised_is_refused():
    """SECURITY 28: the joiner refuses a grant that differs from the signed invite."""
    founded = Founded()
    invite = founded.invite()
    more = InviteBody(**{**{f: getattr(invite, f) for f in invite.__dataclass_fields__}, "roles": 15})
    joiner = Joiner(invite, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    issuer = founded.issuer(more)
    offer, _ = issuer.offer_untrusted(joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S)))
    confirmation, _ = joiner.confirm_untrusted(offer, now_s=NOW_S)
    wire = issuer.certificate_untrusted(confirmation, now_s=NOW_S)
    with pytest.raises(PeerFault):
        joiner.finish_untrusted(founded.grant(issuer, wire, fleet=True), now_ms=NOW.wall_ms)


def test_a_gate_key_nobody_committed_to_is_refused():
    founded = Founded()
    invite = founded.invite()
    joiner = Joiner(invite, SigningKey(os.urandom(32)), None, "x", entropy=os.urandom)
    issuer = founded.issuer(invite)
    offer, _ = issuer.offer_untrusted(joiner.request_untrusted(issuer.accept_untrusted(joiner.hello, now_s=NOW_S)))
    confirmation, _ = joiner.confirm_untrusted(offer, now_s=NOW_S)
    wire = issuer.certificate_untrusted(confirmation, now_s=NOW_S)
    assert issuer.request is not None
    record = make(founded.node, founded.mesh, CERTIFICATE, node_id(issuer.request.public_key), (NOW.wall_ms << 16) + 9, wire)
    grant = issuer.grant(record.wire, (os.urandom(32),), founded.goods.fleet_key, tuple(r.wire for r in founded.goods.records))
    with pytest.raises(PeerFault):
        joiner.finish_untrusted(grant, now_ms=NOW.wall_ms)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=400), st.binary(max_size=300).map(lambda b: "hmi_" + b.hex())))
def test_any_text_is_read_or_refused(text: str):
    try:
        read_link_untrusted(text)
    except BadInvite:
        return
    pytest.fail("random text must not be a signed invite")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_at_any_step_raise_only_our_errors(data: bytes):
    founded = FOUNDED
    invite = founded.invite()
    with pytest.raises(MeshError):
        founded.issuer(invite).accept_untrusted(data, now_s=NOW_S)
    joiner = Joiner(invite, SigningKey(bytes(32)), None, "x", entropy=os.urandom)
    issuer = founded.issuer(invite)
    reply = issuer.accept_untrusted(joiner.hello, now_s=NOW_S)
    with pytest.raises(MeshError):
        issuer.offer_untrusted(data)
    if len(data) != 32:
        with pytest.raises(MeshError):
            joiner.request_untrusted(data)
    joiner.request_untrusted(reply)
    with pytest.raises(MeshError):
        joiner.confirm_untrusted(data, now_s=NOW_S)


FOUNDED = Founded()


def test_encoding_is_stable():
    founded = Founded()
    invite = founded.invite()
    assert encode(invite) == encode(invite)


def test_a_link_of_before_machines_could_be_let_in_for_a_while_is_still_read():
    """The field came later; without it a member stays as long as any."""
    old = (
        "hmi_gliGiwFQ7E6d3TkpRugpVgvCzO50fFggTLTwLyqYIoBW-IWLOg5_Ur5DRyaoLDY7UQwtFQFbNQ5QAAECAwQFBgcICQoLDA0O"
        "D1AQERITFBUWFxgZGhscHR4fBgEaa0sjgPVjYW5hgm4xOTIuMC4yLjE6OTg0N3JbMjAwMTpkYjg6OjFdOjk4NDdYQKHzYjqyvUGC"
        "DNZeLzf1CdQuFS2-nE99-B5ZwI1-bG4Bd6Y5tT6Ez4aG0IwH-GyOxGBUH39XrT72jUbelbysZQk"
    )
    body = read_link_untrusted(old)
    assert (body.life_s, body.owner_name) == (None, "ana")


@pytest.mark.parametrize("life_s", [59, 7 * 86_400 + 1])
def test_a_while_has_bounds(life_s: int):
    key = SigningKey(bytes(32))
    with pytest.raises(Malformed):
        write_link(key, InviteBody(1, bytes(16), key.public, bytes(16), bytes(16), 2, 1, 1, True, "ana", (), life_s))
