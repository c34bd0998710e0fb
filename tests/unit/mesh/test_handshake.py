"""The three messages: who gets through, and everything that must not."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import handshake
from mesh.base.clock import Now
from mesh.base.codec import decode_untrusted, encode
from mesh.base.crypto import Context, SigningKey, derive, digest, exchange, seal_once
from mesh.base.errors import MeshError, PeerFault, Refused
from mesh.base.names import NodeId
from mesh.handshake import (
    HELLO_BYTES,
    HELLO_CACHE_MAX,
    HELLO_CACHE_S,
    HOURS_OFF_MAX,
    PROOF_BYTES_MAX,
    REPLY_HEAD_BYTES,
    Credentials,
    HelloCache,
    Incompatible,
    Initiator,
    NotForUs,
    Proof,
    Responder,
    Session,
    discovery_tag,
    gate_commitment,
)
from mesh.kinds import Role
from tests.fakes.meshes import NOW, NOW_S, Drawn, Machine, Mesh

GATE = bytes(range(32))


class Two:
    """Two members of one mesh, and the dialogue between them."""

    def __init__(self, mesh: Mesh | None = None, *, responder: Machine | None = None, initiator: Machine | None = None) -> None:
        self.mesh = mesh or Mesh("two")
        self.here = initiator or self.mesh.founder
        self.there = responder or self.mesh.machine("mini")
        self.members = self.mesh.members()
        self.gates: tuple[bytes, ...] = (GATE,)
        self.seen = HelloCache()

    def initiator(self, *, gate: bytes = GATE, expected: NodeId | None = None, now: Now = NOW, **more) -> Initiator:
        return Initiator(
            self.mesh.credentials(self.here, self.members, **more), gate, entropy=os.urandom, now=now, expected=expected
        )

    def responder(self, *, now: Now = NOW, **more) -> Responder:
        return Responder(
            self.mesh.credentials(self.there, self.members, **more), self.gates, self.seen, entropy=os.urandom, now=now
        )

    def link(self, *, change=lambda step, data: data, **more) -> tuple[Session, Session]:
        initiator, responder = self.initiator(**more), self.responder()
        reply = responder.accept_untrusted(change(1, initiator.hello))
        closing, mine = initiator.answer_untrusted(change(2, reply))
        return mine, responder.finish_untrusted(change(3, closing))


TWO = Two()


def test_two_members_prove_each_other_and_share_keys():
    mine, theirs = TWO.link(expected=TWO.there.node)
    assert (mine.peer, theirs.peer) == (TWO.there.node, TWO.here.node)
    assert (mine.send_key, mine.receive_key) == (theirs.receive_key, theirs.send_key)
    assert mine.send_key != mine.receive_key
    assert mine.salt == theirs.salt
    assert (mine.version, theirs.version) == (handshake.VERSION, handshake.VERSION)
    assert mine.peer_certificate == TWO.there.certificate
    assert theirs.peer_public_key == TWO.here.key.public
    assert mine.peer_boot == TWO.there.boot
    again, _ = TWO.link()
    assert len({mine.send_key, mine.receive_key, mine.salt, again.send_key, again.receive_key, again.salt}) == 6


def test_sizes_are_those_of_the_protocol():
    initiator, responder = TWO.initiator(), TWO.responder()
    reply = responder.accept_untrusted(initiator.hello)
    closing, _ = initiator.answer_untrusted(reply)
    assert len(initiator.hello) == HELLO_BYTES == 57
    assert REPLY_HEAD_BYTES < len(reply) <= REPLY_HEAD_BYTES + PROOF_BYTES_MAX + 16
    assert len(closing) <= PROOF_BYTES_MAX + 16
    assert len(initiator.hello) + len(reply) + len(closing) < 1500


@pytest.mark.parametrize("change", [1, 0x80])
def test_every_changed_byte_of_the_first_message_is_refused(change: int):
    responder = TWO.responder()
    hello = TWO.initiator().hello
    for at in range(len(hello)):
        with pytest.raises(NotForUs):
            responder.accept_untrusted(hello[:at] + bytes([hello[at] ^ change]) + hello[at + 1 :])
    assert responder.accept_untrusted(hello)


@pytest.mark.parametrize("change", [1, 0x80])
def test_every_changed_byte_of_the_second_message_is_refused(change: int):
    initiator = TWO.initiator()
    reply = TWO.responder().accept_untrusted(initiator.hello)
    for at in range(len(reply)):
        with pytest.raises((PeerFault, Incompatible)):
            initiator.answer_untrusted(reply[:at] + bytes([reply[at] ^ change]) + reply[at + 1 :])
    assert initiator.answer_untrusted(reply)


@pytest.mark.parametrize("change", [1, 0x80])
def test_every_changed_byte_of_the_third_message_is_refused(change: int):
    initiator, responder = TWO.initiator(), TWO.responder()
    closing, _ = initiator.answer_untrusted(responder.accept_untrusted(initiator.hello))
    for at in range(len(closing)):
        with pytest.raises(PeerFault):
            responder.finish_untrusted(closing[:at] + bytes([closing[at] ^ change]) + closing[at + 1 :])
    assert responder.finish_untrusted(closing).peer == TWO.here.node


@pytest.mark.parametrize("step", [1, 2, 3])
def test_every_shortened_and_lengthened_message_is_refused(step: int):
    lengths: list[int] = []
    TWO.link(change=lambda s, d: lengths.append(len(d)) or d)
    for keep in [*range(0, lengths[step - 1], 7), lengths[step - 1] - 1]:
        with pytest.raises(MeshError):
            TWO.link(change=lambda s, d, keep=keep: d[:keep] if s == step else d)
    for more in (b"\x00", bytes(5000)):
        with pytest.raises(MeshError):
            TWO.link(change=lambda s, d, more=more: d + more if s == step else d)


# Replay ---------------------------------------------------------------------------------------------------------------


def test_a_recorded_first_message_is_not_answered_again():
    """SECURITY 35: who recorded a hello cannot tell members from others with it."""
    two = Two(Mesh("two"))
    hello = two.initiator().hello
    two.responder().accept_untrusted(hello)
    for later_s in (0.0, 1.0, HELLO_CACHE_S):
        with pytest.raises(NotForUs) as caught:
            two.responder(now=Now(NOW.wall_ms, NOW.steady_s + later_s)).accept_untrusted(hello)
        assert caught.value.reason == "replay"


def test_messages_of_one_session_do_not_fit_another():
    first, second = (TWO.initiator(), TWO.responder()), (TWO.initiator(), TWO.responder())
    replies = [responder.accept_untrusted(initiator.hello) for initiator, responder in (first, second)]
    for (initiator, _), reply in zip((first, second), reversed(replies), strict=True):
        with pytest.raises(PeerFault):
            initiator.answer_untrusted(reply)
    closings = [initiator.answer_untrusted(reply)[0] for (initiator, _), reply in zip((first, second), replies, strict=True)]
    for (_, responder), closing in zip((first, second), reversed(closings), strict=True):
        with pytest.raises(PeerFault):
            responder.finish_untrusted(closing)


def test_no_message_passes_for_another_one():
    """Reflection: each message sent back in the place of each other one."""
    recorded: dict[int, bytes] = {}
    TWO.link(change=lambda s, d: recorded.setdefault(s, d))
    for step in (1, 2, 3):
        for other in {1, 2, 3} - {step}:
            with pytest.raises(MeshError):
                TWO.link(change=lambda s, d, step=step, other=other: recorded[other] if s == step else d)
    initiator = TWO.initiator()
    with pytest.raises(Incompatible):
        initiator.answer_untrusted(initiator.hello)


def test_the_cache_forgets_the_oldest_and_what_is_old():
    cache = HelloCache()
    assert cache.is_new(b"a", NOW)
    assert not cache.is_new(b"a", NOW)
    assert not cache.is_new(b"a", Now(NOW.wall_ms, NOW.steady_s + HELLO_CACHE_S))
    assert cache.is_new(b"a", Now(NOW.wall_ms, NOW.steady_s + HELLO_CACHE_S + 1))
    for number in range(HELLO_CACHE_MAX):
        assert cache.is_new(number.to_bytes(4, "big"), Now(NOW.wall_ms, NOW.steady_s + 200))
    assert len(cache._seen) == HELLO_CACHE_MAX
    assert cache.is_new(b"a", Now(NOW.wall_ms, NOW.steady_s + 200)), "pushed out by the flood, which only members can make"


@pytest.mark.parametrize(("hours", "accepted"), [(0, True), (HOURS_OFF_MAX, True), (-HOURS_OFF_MAX, True), (HOURS_OFF_MAX + 1, False), (-HOURS_OFF_MAX - 1, False)])
def test_a_recorded_hello_dies_with_its_hour_and_clocks_may_differ_by_a_day(hours: int, accepted: bool):
    initiator = TWO.initiator(now=Now(NOW.wall_ms + hours * 3_600_000, 0))
    if accepted:
        assert TWO.responder().accept_untrusted(initiator.hello)
    else:
        with pytest.raises(NotForUs):
            TWO.responder().accept_untrusted(initiator.hello)


# The gate ---------------------------------------------------------------------------------------------------------------


def test_without_a_gate_key_of_the_mesh_nothing_is_answered():
    with pytest.raises(NotForUs):
        TWO.responder().accept_untrusted(TWO.initiator(gate=bytes(32)).hello)


def test_an_older_gate_key_of_the_ring_opens_too():
    """SECURITY 8: a machine that slept through an epoch is let in."""
    two = Two(Mesh("two"))
    two.gates = (*(os.urandom(32) for _ in range(7)), GATE)
    mine, theirs = two.link()
    assert mine.send_key == theirs.receive_key
    two.gates = two.gates[:7]
    with pytest.raises(NotForUs):
        two.link()


def test_a_gate_key_alone_makes_nobody_a_member():
    stranger = Machine(SigningKey(os.urandom(32)), TWO.mesh.ana, TWO.here.certificate, TWO.here.record)
    two = Two(TWO.mesh, responder=TWO.there, initiator=stranger)
    with pytest.raises(PeerFault, match="does not hold the key"):
        two.link()


def test_a_commitment_shows_nothing_of_the_gate_key_and_the_tag_changes_by_the_hour():
    assert gate_commitment(GATE) != gate_commitment(bytes(32))
    assert GATE not in gate_commitment(GATE)
    tags = {discovery_tag(GATE, Now(NOW.wall_ms + hour * 3_600_000, 0)) for hour in range(3)}
    assert len(tags) == 3
    assert {len(tag) for tag in tags} == {8}
    assert discovery_tag(GATE, NOW) == discovery_tag(GATE, Now(NOW.wall_ms + 59 * 60_000, 7))


# Points and versions ------------------------------------------------------------------------------------------------


def crafted_hello(*, point: bytes | None = None, low: int = 1, high: int = 1) -> bytes:
    """A hello with a valid mac, as only a member can make it."""
    good = TWO.initiator().hello
    head = good[:3] + bytes((low, high)) + good[5:9] + (point or good[9:41])
    return head + digest(head, size=16, key=GATE, person=b"hivemesh-hello")


BAD_POINTS = [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255 - 1, 2**256 - 1,
              325606250916557431795983626356110631294008115727848805560023387167927233504]  # fmt: skip


@pytest.mark.parametrize("point", BAD_POINTS)
def test_a_low_order_or_non_canonical_point_is_refused_by_both_sides(point: int):
    """SECURITY 35."""
    raw = point.to_bytes(32, "little")
    with pytest.raises(PeerFault):
        TWO.responder().accept_untrusted(crafted_hello(point=raw))
    initiator = TWO.initiator()
    reply = TWO.responder().accept_untrusted(initiator.hello)
    with pytest.raises(PeerFault):
        initiator.answer_untrusted(reply[:3] + raw + reply[35:])


@pytest.mark.parametrize(("low", "high", "works"), [(1, 1, True), (1, 2, True), (0, 255, True), (2, 9, False), (0, 0, False), (255, 255, False)])
def test_versions_without_a_common_one_are_refused_with_a_reason(low: int, high: int, works: bool):
    """O-T11: never as a bad signature."""
    if works:
        assert TWO.responder().accept_untrusted(crafted_hello(low=low, high=high))[2] == handshake.VERSION
        return
    with pytest.raises(Incompatible) as caught:
        TWO.responder().accept_untrusted(crafted_hello(low=low, high=high))
    assert f"{low} to {high}" in caught.value.message
    assert caught.value.reason == "version"


def lying_reply(two: Two, hello: bytes, head3: bytes) -> bytes:
    """A reply by a member who really holds its keys, but says what it likes about versions."""
    public, secret = handshake.exchange_keypair(os.urandom)
    head = head3 + public
    first = digest(hello, head)
    root = digest(exchange(secret, hello[9:41]), first, key=GATE, person=b"hivemesh-link")
    proof = handshake._proof(two.mesh.credentials(two.there, two.members), Context.LINK_RESPONDER, first)
    return head + seal_once(derive(root, "responder proof", first), proof, first)


@pytest.mark.parametrize("versions", [(1, 1, 1), (0, 1, 1), (1, 9, 1)])
def test_the_highest_common_version_is_accepted(versions: tuple[int, int, int]):
    initiator = TWO.initiator()
    _, session = initiator.answer_untrusted(lying_reply(TWO, initiator.hello, bytes(versions)))
    assert session.version == 1


@pytest.mark.parametrize("versions", [(1, 1, 0), (1, 1, 2), (0, 0, 0), (0, 0, 1), (2, 9, 2), (2, 2, 1), (1, 9, 9), (0, 1, 0), (255, 255, 255)])
def test_a_version_that_was_not_offered_or_is_not_the_highest_is_refused(versions: tuple[int, int, int]):
    """SECURITY 35: also where the responder itself, with its own good keys, chose it."""
    initiator = TWO.initiator()
    with pytest.raises(Incompatible):
        initiator.answer_untrusted(lying_reply(TWO, initiator.hello, bytes(versions)))


# Who gets through ----------------------------------------------------------------------------------------------------


def test_a_machine_does_not_link_to_itself():
    """PROTOCOL 3: the prototype's self-connection succeeded."""
    mesh = Mesh("alone")
    two = Two(mesh, responder=mesh.founder, initiator=mesh.founder)
    initiator = two.initiator()
    reply = two.responder().accept_untrusted(initiator.hello)
    with pytest.raises(Refused) as caught:
        initiator.answer_untrusted(reply)
    assert caught.value.reason == "self"


def test_a_dialled_machine_must_be_the_one_expected_and_learns_nothing_before():
    two = Two(Mesh("expected"))
    with pytest.raises(Refused) as caught:
        two.link(expected=NodeId(bytes(16)))
    assert caught.value.reason == "other_machine"
    assert "mini" in caught.value.message


@pytest.mark.parametrize("which", ["initiator", "responder"])
@pytest.mark.parametrize("fault", ["expired", "clock", "expelled", "unknown_issuer", "bad_signature", "bad_chain"])
def test_a_certificate_that_does_not_hold_is_refused_on_either_side(which: str, fault: str):
    """SECURITY 35: mesh, time, role, chain and expulsion, each on its own."""
    mesh = Mesh("fault")
    times = {"expired": {"not_after_s": NOW_S - 1}, "clock": {"not_before_s": NOW_S + 10**6}}.get(fault, {})
    bad = mesh.machine("bad", **times)
    if fault == "expelled":
        mesh.expel(mesh.founder.key, bad.node)
    if fault == "unknown_issuer":
        bad.certificate = mesh.certificate(bad.key, bad.owner, issuer=mesh.signing_key())
    if fault == "bad_chain":
        plain = mesh.machine("plain")
        bad.certificate = mesh.certificate(bad.key, bad.owner, issuer=plain.key)
    if fault == "bad_signature":
        other = Mesh("elsewhere")
        other.founder, other.root = mesh.founder, mesh.root
        bad.certificate = other.certificate(bad.key, bad.owner)
    good = mesh.machine("good")
    two = Two(mesh, responder=good, initiator=bad) if which == "initiator" else Two(mesh, responder=bad, initiator=good)
    with pytest.raises(Refused) as caught:
        two.link()
    assert caught.value.reason == fault


def test_an_admin_who_poses_as_alices_machine_links_as_nobodys():
    """SECURITY 5: the link comes to be, and the owner it proves is not hers."""
    mesh = Mesh("posing")
    alice = mesh.machine("alices", owner=mesh.signing_key())
    evil = mesh.machine("alices", owner=alice.owner, countersigned=False)
    two = Two(mesh, responder=mesh.founder, initiator=evil)
    _, theirs = two.link()
    certified = two.members.check_untrusted((theirs.peer_certificate,), now_s=NOW_S, me=mesh.founder.node)
    assert not certified.owner_proven
    assert certified.owner != two.members.certificates[alice.node].owner


def test_two_members_who_hold_different_control_lanes_still_prove_each_other():
    """The issuer's certificate travels along, so a machine certified by an admin unknown here gets through."""
    mesh = Mesh("lanes")
    second = mesh.machine("second", roles=Role.ADMIN)
    mini = mesh.machine("mini", issuer=second.key)
    full = mesh.members()
    two = Two(mesh, responder=mini, initiator=mesh.founder)
    old = Mesh("lanes").members()
    assert mini.node not in old.certificates
    here = Initiator(
        replace(mesh.credentials(mesh.founder, full), check=lambda c: old.check_untrusted(c, now_s=NOW_S, me=mesh.founder.node)),
        GATE, entropy=os.urandom, now=NOW, expected=mini.node,
    )  # fmt: skip
    closing, session = here.answer_untrusted(two.responder().accept_untrusted(here.hello))
    assert session.peer == mini.node
    assert closing


# What the proof covers ------------------------------------------------------------------------------------------------


def open_and_reseal(credentials: Credentials, change) -> None:
    """Play a responder that holds the session's keys and changes its own proof after signing it."""
    initiator = TWO.initiator()
    public, secret = handshake.exchange_keypair(os.urandom)
    head = bytes((1, 1, 1)) + public
    first = digest(initiator.hello, head)
    root = digest(exchange(secret, initiator.hello[9:41]), first, key=GATE, person=b"hivemesh-link")
    proof = decode_untrusted(Proof, handshake._proof(credentials, Context.LINK_RESPONDER, first), bytes_max=PROOF_BYTES_MAX)
    plain = encode(change(proof))
    initiator.answer_untrusted(head + seal_once(derive(root, "responder proof", first), plain, first))


def test_boot_counter_and_transcript_are_covered_by_the_signature():
    """SECURITY 26: two statements that conflict are proof, so nobody else may be able to make one."""
    credentials = TWO.mesh.credentials(TWO.there, TWO.members, counter=7)
    open_and_reseal(credentials, lambda proof: proof)
    for change in (
        lambda p: replace(p, boot=b"\x01" * 8),
        lambda p: replace(p, counter=8),
        lambda p: replace(p, counter=6),
        lambda p: replace(p, signature=bytes(64)),
        lambda p: replace(p, chain=(TWO.here.certificate,)),
    ):
        with pytest.raises(MeshError):
            open_and_reseal(credentials, change)


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.LINK_RESPONDER])
def test_a_proof_made_for_another_purpose_is_refused(context: Context):
    """SECURITY 10: also the initiator's own kind of signature does not serve the responder."""
    credentials = TWO.mesh.credentials(TWO.there, TWO.members)

    def sign_again(proof: Proof, transcript: bytes) -> Proof:
        signed = transcript + proof.boot + proof.counter.to_bytes(8, "big")
        return replace(proof, signature=TWO.there.key.sign(context, TWO.mesh.mesh, signed))

    initiator = TWO.initiator()
    public, secret = handshake.exchange_keypair(os.urandom)
    head = bytes((1, 1, 1)) + public
    first = digest(initiator.hello, head)
    root = digest(exchange(secret, initiator.hello[9:41]), first, key=GATE, person=b"hivemesh-link")
    proof = decode_untrusted(Proof, handshake._proof(credentials, Context.LINK_RESPONDER, first), bytes_max=PROOF_BYTES_MAX)
    sealed = seal_once(derive(root, "responder proof", first), encode(sign_again(proof, first)), first)
    with pytest.raises(PeerFault, match="does not hold the key"):
        initiator.answer_untrusted(head + sealed)


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.LINK_INITIATOR])
def test_an_initiators_proof_made_for_another_purpose_is_refused(context: Context):
    initiator, responder = TWO.initiator(), TWO.responder()
    reply = responder.accept_untrusted(initiator.hello)
    second = digest(digest(initiator.hello, reply[:REPLY_HEAD_BYTES]), reply)
    proof = handshake._proof(TWO.mesh.credentials(TWO.here, TWO.members), context, second)
    closing = seal_once(derive(responder._root, "initiator proof", second), proof, second)
    with pytest.raises(PeerFault, match="does not hold the key"):
        responder.finish_untrusted(closing)


def test_boot_and_counter_reach_the_other_side():
    mesh = Mesh("counted")
    two = Two(mesh)
    initiator = two.initiator(counter=41)
    responder = two.responder(counter=42)
    closing, mine = initiator.answer_untrusted(responder.accept_untrusted(initiator.hello))
    theirs = responder.finish_untrusted(closing)
    assert (mine.peer_boot, mine.peer_counter) == (two.there.boot, 42)
    assert (theirs.peer_boot, theirs.peer_counter) == (two.here.boot, 41)


def test_an_extra_field_of_a_later_version_does_not_break_the_proof():
    """O-T11 (b)."""
    credentials = TWO.mesh.credentials(TWO.there, TWO.members)
    initiator = TWO.initiator()
    public, secret = handshake.exchange_keypair(os.urandom)
    head = bytes((1, 1, 1)) + public
    first = digest(initiator.hello, head)
    root = digest(exchange(secret, initiator.hello[9:41]), first, key=GATE, person=b"hivemesh-link")
    plain = handshake._proof(credentials, Context.LINK_RESPONDER, first)
    longer = b"\x86" + plain[1:] + b"\x07"
    assert plain[0] == 0x85
    _, session = initiator.answer_untrusted(head + seal_once(derive(root, "responder proof", first), longer, first))
    assert session.peer == TWO.there.node


# Any bytes ------------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=HELLO_BYTES + 3) | st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES))
def test_any_first_message_is_refused(data: bytes):
    with pytest.raises(NotForUs):
        TWO.responder().accept_untrusted(data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_any_second_and_third_message_is_refused(data: bytes):
    initiator, responder = TWO.initiator(), TWO.responder()
    responder.accept_untrusted(initiator.hello)
    for take in (initiator.answer_untrusted, responder.finish_untrusted):
        with pytest.raises((PeerFault, Incompatible)):
            take(data)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_proof_sealed_by_a_member_is_refused(plain: bytes):
    """A member holds the keys of the session, so what is inside the seal is as hostile as what is outside."""
    initiator = TWO.initiator()
    public, secret = handshake.exchange_keypair(Drawn(plain))
    head = bytes((1, 1, 1)) + public
    first = digest(initiator.hello, head)
    root = digest(exchange(secret, initiator.hello[9:41]), first, key=GATE, person=b"hivemesh-link")
    with pytest.raises((PeerFault, Refused)):
        initiator.answer_untrusted(head + seal_once(derive(root, "responder proof", first), plain, first))


def test_a_third_message_before_the_first_is_a_programming_mistake():
    with pytest.raises(AssertionError):
        TWO.responder().finish_untrusted(b"")
