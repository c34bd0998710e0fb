"""Who is a member: chains, owners, expulsions in every order, and folds over anything."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.crypto import Context, content_id, verify
from mesh.base.errors import PeerFault, Refused
from mesh.base.names import NodeId, node_id, owner_id
from mesh.certificates import (
    CertificateBody,
    Expulsion,
    Genesis,
    LeavingBody,
    SignedCertificate,
    found,
    issue,
    mesh_id,
    sign_owner,
)
from mesh.kinds import CERTIFICATE, EXPULSION, LEAVING, Role
from mesh.members import CLOCK_SKEW_S, Members
from mesh.records import Record, Verdict, make
from tests.fakes.meshes import NOW_S, WORKING, Drawn, Machine, Mesh

ADMIN = Role.ADMIN | Role.MEMBER


def refusal(members: Members, chain: tuple[bytes, ...], *, now_s: int = NOW_S, me: NodeId = NodeId(bytes(16))) -> str:
    """Why a chain is refused; empty where it is not."""
    try:
        members.check_untrusted(chain, now_s=now_s, me=me)
    except Refused as refused:
        return refused.reason
    return ""


# Founding and chains -------------------------------------------------------------------------------------------------


def test_a_mesh_is_named_by_its_genesis_and_begins_with_one_admin():
    mesh = Mesh()
    assert mesh.mesh == mesh_id(mesh.genesis) == content_id(mesh.genesis, size=16)
    founder = mesh.members().certificates[mesh.founder.node]
    assert founder.roles == WORKING | Role.ADMIN
    assert founder.issuer == node_id(mesh.root.public)
    assert founder.owner == owner_id(mesh.ana.public)
    assert founder.owner_proven
    assert founder.not_after_s is None
    genesis = decode_untrusted(Genesis, mesh.genesis, bytes_max=200)
    assert (genesis.root_key, genesis.admin_key) == (mesh.root.public, mesh.founder.key.public)
    assert found(
        root=mesh.root, owner=mesh.ana, node=mesh.founder.key, name="n", owner_name="o", now_s=1, nonce=bytes(24)
    ) != found(root=mesh.root, owner=mesh.ana, node=mesh.founder.key, name="n", owner_name="o", now_s=1, nonce=b"\x01" * 24)


def test_a_chain_is_root_admin_machine_and_no_longer():
    mesh = Mesh()
    mini = mesh.machine("mini")
    stranger = Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh)
    chain = (mini.certificate, mesh.founder.certificate)
    assert refusal(stranger, chain) == ""
    assert refusal(stranger, chain[:1]) == "unknown_issuer"
    assert refusal(mesh.members(), chain[:1]) == ""
    for bad in ((), (*chain, mini.certificate), (b"",), (b"\x80",), (mini.certificate[:-1],), (mini.certificate + b"\x00",)):
        with pytest.raises(Malformed):
            mesh.members().check_untrusted(bad, now_s=NOW_S, me=NodeId(bytes(16)))


def test_only_the_root_makes_admins_and_only_admins_make_members():
    mesh = Mesh()
    key = mesh.signing_key()
    by_admin = mesh.certificate(key, mesh.ana, issuer=mesh.founder.key, roles=ADMIN)
    assert refusal(mesh.members(), (by_admin,)) == "bad_chain"
    mini = mesh.machine("mini")
    by_member = mesh.certificate(key, mesh.ana, issuer=mini.key)
    assert refusal(mesh.members(), (by_member,)) == "bad_chain"
    assert refusal(mesh.members(), (by_member, mini.certificate)) == "bad_chain"
    by_sub_admin = mesh.certificate(key, mesh.ana, issuer=mesh.signing_key())
    assert refusal(mesh.members(), (by_sub_admin,)) == "unknown_issuer"
    by_root = mesh.certificate(key, mesh.ana, issuer=mesh.root)
    assert refusal(mesh.members(), (by_root,)) == ""
    endless = mesh.certificate(key, mesh.ana, not_after_s=None)
    assert refusal(mesh.members(), (endless,)) == "bad_chain"


def test_an_issuer_shown_beside_the_certificate_must_be_the_one_it_names():
    mesh = Mesh()
    other = mesh.machine("other", roles=ADMIN)
    stranger = Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh)
    wire = mesh.certificate(mesh.signing_key(), mesh.ana)
    assert refusal(stranger, (wire, other.certificate)) == "unknown_issuer"
    assert refusal(stranger, (wire, mesh.founder.certificate)) == ""


def test_a_certificate_of_another_mesh_is_refused():
    """SECURITY 10, even where the root, the admin and the machine are the same keys."""
    mesh, other = Mesh(), Mesh("other")
    assert refusal(mesh.members(), (other.founder.certificate,)) == "unknown_issuer"
    posed = CertificateBody(
        mesh.signing_key().public, mesh.ana.public, bytes(16), "n", "o", 2, node_id(mesh.root.public), bytes(8), NOW_S, NOW_S + 9, None
    )  # fmt: skip
    wire = issue(mesh.root, other.mesh, posed, None)
    assert refusal(mesh.members(), (wire,)) == "bad_signature"
    assert refusal(mesh.members(), (issue(mesh.root, mesh.mesh, posed, None),)) == ""


def test_every_changed_byte_of_a_certificate_is_refused_or_loses_its_owner():
    """The owner's signature is not the issuer's: where it breaks, the machine is nobody's; else nothing is left."""
    mesh = Mesh()
    key = mesh.signing_key()
    wire = mesh.certificate(key, mesh.ana)
    members = mesh.members()
    me = NodeId(bytes(16))
    good = members.check_untrusted((wire,), now_s=NOW_S, me=me)
    for at, change in itertools.product(range(len(wire)), (1, 0x20, 0x80)):
        changed = wire[:at] + bytes([wire[at] ^ change]) + wire[at + 1 :]
        try:
            got = members.check_untrusted((changed,), now_s=NOW_S, me=me)
        except (Malformed, Refused):
            continue
        assert not got.owner_proven
        assert got.owner != good.owner
        assert replace(got, owner=good.owner, owner_proven=True, fingerprint=b"", wire=b"") == replace(good, fingerprint=b"", wire=b"")


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.CERTIFICATE])
def test_nothing_signed_for_another_purpose_is_a_certificate(context: Context):
    """SECURITY 10."""
    mesh = Mesh()
    wire = mesh.certificate(mesh.signing_key(), mesh.ana)
    signed = decode_untrusted(SignedCertificate, wire, bytes_max=1024)
    posed = encode(SignedCertificate(signed.body, mesh.founder.key.sign(context, mesh.mesh, signed.body), signed.owner_signature))
    assert refusal(mesh.members(), (posed,)) == "bad_signature"


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(0, ""), (90 * 86_400, ""), (90 * 86_400 + 1, "expired"), (-CLOCK_SKEW_S, ""), (-CLOCK_SKEW_S - 1, "clock")],
)
def test_a_certificate_counts_between_its_times(seconds: int, reason: str):
    mesh = Mesh()
    assert refusal(mesh.members(), (mesh.machine().certificate,), now_s=NOW_S + seconds) == reason


def test_an_admins_certificate_has_no_end_but_may_have_one():
    """SECURITY 22: the mesh works a century after the root went away."""
    mesh = Mesh()
    assert refusal(mesh.members(), (mesh.founder.certificate,), now_s=NOW_S + 100 * 365 * 86_400) == ""
    ending = mesh.machine("ending", roles=ADMIN, not_after_s=NOW_S + 5)
    assert refusal(mesh.members(), (ending.certificate,), now_s=NOW_S + 6) == "expired"


def test_a_machine_never_links_to_itself():
    mesh = Mesh()
    assert refusal(mesh.members(), (mesh.founder.certificate,), me=mesh.founder.node) == "self"


# Owners ---------------------------------------------------------------------------------------------------------------


def test_an_admin_without_alices_key_cannot_make_a_machine_of_alice():
    """SECURITY 5: every way an admin can write her name on a machine leaves it nobody's."""
    mesh = Mesh()
    alice = mesh.machine("alices", owner=mesh.signing_key())
    members = mesh.members()
    hers = members.certificates[alice.node].owner
    evil = mesh.signing_key()
    lineage = node_id(evil.public)
    real = decode_untrusted(SignedCertificate, alice.certificate, bytes_max=1024).owner_signature
    body = CertificateBody(
        evil.public, alice.owner.public, lineage, "alices", "ben", int(WORKING), mesh.founder.node, bytes(8), NOW_S, NOW_S + 99, None
    )  # fmt: skip
    attempts = [
        (body, None),
        (body, real),
        (body, sign_owner(mesh.ana, mesh.mesh, lineage, evil.public)),
        (body, sign_owner(evil, mesh.mesh, lineage, evil.public)),
        (body, alice.owner.sign(Context.OWNER, Mesh("elsewhere").mesh, lineage + evil.public)),
        (body, alice.owner.sign(Context.RECORD, mesh.mesh, lineage + evil.public)),
        (replace(body, lineage=alice.node), real),
        (replace(body, lineage=alice.node), sign_owner(mesh.ana, mesh.mesh, alice.node, evil.public)),
    ]
    owners = set()
    for content, signature in attempts:
        wire = issue(mesh.founder.key, mesh.mesh, content, signature)
        record = make(mesh.founder.key, mesh.mesh, CERTIFICATE, lineage, mesh.version(), wire)
        assert mesh.judge(record) is Verdict.ADMIT
        certified = mesh.members(record).certificates[node_id(evil.public)]
        assert not certified.owner_proven
        assert certified.owner not in (hers, owner_id(mesh.ana.public), owner_id(evil.public))
        owners.add(certified.owner)
        other = mesh.members(record).author(node_id(evil.public))
        assert other is not None
        assert other.owner == certified.owner
    assert len(owners) == 1, "a machine's unproven owner is an id of its own, always the same"


@pytest.mark.parametrize("context", [c for c in Context if c is not Context.OWNER])
def test_nothing_an_owner_signed_for_another_purpose_makes_a_machine_theirs(context: Context):
    """SECURITY 10."""
    mesh = Mesh()
    key = mesh.signing_key()
    signed = decode_untrusted(SignedCertificate, mesh.certificate(key, mesh.ana), bytes_max=1024)
    posed = encode(replace(signed, owner_signature=mesh.ana.sign(context, mesh.mesh, node_id(key.public) + key.public)))
    certified = mesh.members().check_untrusted((posed,), now_s=NOW_S, me=NodeId(bytes(16)))
    assert not certified.owner_proven


def test_unproven_machines_share_no_owner():
    mesh = Mesh()
    two = [mesh.machine(str(n), countersigned=False) for n in range(2)]
    owners = {mesh.members().certificates[machine.node].owner for machine in two}
    assert len(owners | {owner_id(mesh.ana.public)}) == 3


@pytest.mark.parametrize("order", [0, 1])
def test_two_certificates_that_disagree_about_the_owner_freeze_the_machine(order: int):
    """SECURITY 5: the folds pick the same one everywhere, and nothing is decided on it."""
    mesh = Mesh()
    second = mesh.machine("second admin", roles=ADMIN)
    alice = mesh.machine("alices", owner=mesh.signing_key())
    wire = mesh.certificate(alice.key, mesh.ana, issuer=second.key, countersigned=bool(order))
    rival = make(second.key, mesh.mesh, CERTIFICATE, alice.node, mesh.version(), wire)
    members = [
        Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh, records)
        for records in itertools.permutations([*mesh.records, rival])
    ]
    assert {frozenset(m.frozen) for m in members} == {frozenset({alice.node})}
    assert len({m.certificates[alice.node].fingerprint for m in members}) == 1
    author = members[0].author(alice.node)
    assert author is not None
    assert author.owner not in (owner_id(alice.owner.public), owner_id(mesh.ana.public))
    if not order:
        assert members[0].certificates[alice.node].owner == owner_id(alice.owner.public), "the proven word is shown"


def test_what_the_root_said_of_a_machine_no_admin_changes():
    mesh = Mesh()
    second = mesh.machine("second admin", roles=ADMIN)
    wire = mesh.certificate(mesh.founder.key, mesh.signing_key(), issuer=second.key, roles=Role.VIEWER)
    rival = make(second.key, mesh.mesh, CERTIFICATE, mesh.founder.node, mesh.version(), wire)
    members = mesh.members(rival)
    assert members.certificates[mesh.founder.node].wire == mesh.founder.certificate
    assert not members.frozen


def test_a_newer_certificate_of_the_same_owner_replaces_the_older():
    mesh = Mesh()
    mini = mesh.machine("mini")
    renewed = mesh.certificate(mini.key, mini.owner, roles=Role.VIEWER, name="renamed")
    record = make(mesh.founder.key, mesh.mesh, CERTIFICATE, mini.node, mesh.version(), renewed)
    members = mesh.members(record)
    assert members.certificates[mini.node].name == "renamed"
    assert members.certificates[mini.node].roles == Role.VIEWER
    assert not members.frozen


def test_a_certificate_counts_in_its_issuers_own_record_only():
    """Else any admin could bring back a machine's older, stronger certificate under a newer version."""
    mesh = Mesh()
    boss = mesh.machine("boss", roles=ADMIN)
    demoted = mesh.certificate(boss.key, boss.owner, issuer=mesh.root, roles=Role.MEMBER, not_after_s=NOW_S + 99)
    mesh.records.append(make(mesh.root, mesh.mesh, CERTIFICATE, boss.node, mesh.version(), demoted))
    assert mesh.members().certificates[boss.node].roles == Role.MEMBER
    replay = make(mesh.founder.key, mesh.mesh, CERTIFICATE, boss.node, mesh.version(), boss.certificate)
    assert mesh.members(replay).certificates[boss.node].roles == Role.MEMBER


# Expulsion -------------------------------------------------------------------------------------------------------------


def test_an_expelled_machine_is_refused_in_every_lane():
    mesh = Mesh()
    mini = mesh.machine("mini")
    record = mesh.expel(mesh.founder.key, mini.node)
    assert mesh.judge(record) is Verdict.ADMIT
    members = mesh.members()
    assert refusal(members, (mini.certificate,)) == "expelled"
    author = members.author(mini.node)
    assert author is not None
    assert author.expelled
    assert mesh.judge(mesh.sign(mini, 999, b"k", b"x"), members) is Verdict.EXPELLED


def test_an_expulsion_needs_an_admin_or_the_root():
    mesh = Mesh()
    mini, other = mesh.machine("mini"), mesh.machine("other")
    mesh.expel(mini.key, other.node)
    assert refusal(mesh.members(), (other.certificate,)) == ""
    mesh.expel(mesh.root, other.node)
    assert refusal(mesh.members(), (other.certificate,)) == "expelled"


def test_an_expulsion_names_the_lineage_also_of_a_later_key():
    """SECURITY 6: the successor of an expelled machine's key is out with it, in whatever order it comes."""
    mesh = Mesh()
    mini = mesh.machine("mini")
    successor = mesh.machine("mini", lineage=mini.node)
    expulsion = mesh.expel(mesh.founder.key, mini.node)
    for records in itertools.permutations([mini.record, successor.record, expulsion]):
        members = Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh, [mesh.founder.record, *records])
        assert refusal(members, (mini.certificate,)) == "expelled"
        assert refusal(members, (successor.certificate,)) == "expelled"


def test_concurrent_expulsions_of_each_other_both_win_in_every_order():
    """PROTOCOL 1: they commute, at the door and in the fold, so no two stores end apart."""
    mesh = Mesh()
    one, two = mesh.machine("one", roles=ADMIN), mesh.machine("two", roles=ADMIN)
    first = mesh.sign(one, EXPULSION, two.node, encode(Expulsion(two.node, ())))
    second = mesh.sign(two, EXPULSION, one.node, encode(Expulsion(one.node, ())))
    outcomes = set()
    for order in itertools.permutations([first, second]):
        held: list[Record] = []
        for record in order:
            if mesh.judge(record, mesh.members(*held)) is Verdict.ADMIT:
                held.append(record)
        outcomes.add(frozenset(mesh.members(*held).expelled_lineages))
    assert outcomes == {frozenset({one.node, two.node})}


def expelled_admin() -> tuple[Mesh, Machine, list[Machine]]:
    """An admin and three machines it issued."""
    mesh = Mesh()
    gone = mesh.machine("gone", roles=ADMIN)
    return mesh, gone, [mesh.machine(f"issued {n}", issuer=gone.key) for n in range(3)]


def test_what_an_expelled_admin_issued_dies_unless_its_exact_bytes_are_kept():
    """SECURITY 9: same serial, same body with another key, more roles: dead; the kept bytes live."""
    mesh, gone, (kept, other, _) = expelled_admin()
    signed = decode_untrusted(SignedCertificate, kept.certificate, bytes_max=1024)
    body = decode_untrusted(CertificateBody, signed.body, bytes_max=700)
    mesh.expel(mesh.founder.key, gone.node, keep=(content_id(kept.certificate),))
    members = mesh.members()
    chain = (gone.certificate,)
    assert refusal(members, (kept.certificate, *chain)) == ""
    assert refusal(members, (other.certificate, *chain)) == "expelled"
    evil = mesh.signing_key()
    forged = [
        issue(gone.key, mesh.mesh, replace(body, public_key=evil.public), signed.owner_signature),
        issue(gone.key, mesh.mesh, replace(body, roles=15), signed.owner_signature),
        issue(gone.key, mesh.mesh, body, None),
        encode(SignedCertificate(signed.body, signed.signature, None)),
        mesh.certificate(kept.key, kept.owner, issuer=gone.key),
    ]
    for wire in forged:
        assert refusal(members, (wire, *chain)) == "expelled"
    assert mesh.judge(mesh.sign(kept, 999, b"k", b"x"), members) is Verdict.ADMIT
    assert mesh.judge(mesh.sign(other, 999, b"k", b"x"), members) is Verdict.EXPELLED


@pytest.mark.parametrize("way", ["own expulsion", "somebody else's", "an invented machine's", "a friend who is out too"])
def test_an_expelled_admin_cannot_write_its_own_keep_list(way: str):
    """SECURITY 9: a keep list signed by who is out keeps nobody in."""
    mesh, gone, issued = expelled_admin()
    friend = mesh.machine("friend", roles=ADMIN)
    keep = tuple(content_id(machine.certificate) for machine in issued)
    author, lineage = {
        "own expulsion": (gone, gone.node),
        "somebody else's": (gone, friend.node),
        "an invented machine's": (gone, bytes(16)),
        "a friend who is out too": (friend, gone.node),
    }[way]
    mesh.expel(author.key, lineage, keep=keep)
    mesh.expel(mesh.founder.key, gone.node)
    mesh.expel(mesh.founder.key, friend.node)
    for machine in issued:
        assert refusal(mesh.members(), (machine.certificate, gone.certificate)) == "expelled"


def test_a_keep_list_counts_for_the_lineage_it_is_written_about():
    mesh, gone, issued = expelled_admin()
    mesh.expel(mesh.founder.key, bytes(16), keep=(content_id(issued[0].certificate),))
    mesh.expel(mesh.founder.key, gone.node)
    assert refusal(mesh.members(), (issued[0].certificate, gone.certificate)) == "expelled"


def test_an_admin_who_certified_everybody_before_it_was_expelled_takes_nobody_along():
    """SECURITY 9: who holds certificates of two admins keeps the one that lives, in every order of arrival."""
    mesh = Mesh()
    gone = mesh.machine("gone", roles=ADMIN)
    mini = mesh.machine("mini")
    for countersigned in (True, False):
        mesh.records.append(
            make(gone.key, mesh.mesh, CERTIFICATE, mini.node + bytes([countersigned]), mesh.version(),
                 mesh.certificate(mini.key, mini.owner, issuer=gone.key, countersigned=countersigned))
        )  # fmt: skip
    assert mini.node in mesh.members().frozen
    mesh.expel(mesh.founder.key, gone.node)
    for records in itertools.permutations(mesh.records):
        members = Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh, records)
        author = members.author(mini.node)
        assert author is not None
        assert not author.expelled
        assert author.owner == owner_id(mini.owner.public)
        assert not members.frozen
        assert members.chain_of(mini.node) == (mini.certificate, mesh.founder.certificate)


def test_a_machine_known_only_by_an_expelled_admins_word_is_shown_as_expelled():
    mesh, gone, issued = expelled_admin()
    mesh.expel(mesh.founder.key, gone.node)
    members = mesh.members()
    for machine in issued:
        author = members.author(machine.node)
        assert author is not None
        assert author.expelled


def test_the_root_has_the_last_word_over_an_admin_it_expelled():
    """SECURITY 22: what a rogue admin expelled comes back when the root expels the rogue."""
    mesh = Mesh()
    rogue, mini = mesh.machine("rogue", roles=ADMIN), mesh.machine("mini")
    mesh.expel(rogue.key, mini.node)
    mesh.expel(rogue.key, mesh.founder.node)
    assert refusal(mesh.members(), (mini.certificate,)) == "expelled"
    mesh.expel(mesh.root, rogue.node)
    members = mesh.members()
    assert refusal(members, (mini.certificate,)) == ""
    assert refusal(members, (mesh.founder.certificate,)) == ""
    assert refusal(members, (rogue.certificate,)) == "expelled"


def test_an_issuer_nobody_here_knows_is_judged_by_its_lineage_too():
    """A rotated admin's certificate travels only in the chain; its lineage was expelled."""
    mesh = Mesh()
    old = mesh.machine("boss", roles=ADMIN)
    new = Machine(mesh.signing_key(), mesh.ana, b"", old.record)
    shown = mesh.certificate(new.key, mesh.ana, roles=ADMIN, lineage=old.node)
    mini = mesh.certificate(mesh.signing_key(), mesh.ana, issuer=new.key)
    assert refusal(mesh.members(), (mini, shown)) == ""
    mesh.expel(mesh.founder.key, old.node)
    assert refusal(mesh.members(), (mini, shown)) == "expelled"


@pytest.mark.parametrize("way", ["before", "after"])
def test_a_machine_that_left_is_gone_for_good_and_only_by_its_own_word(way: str):
    """O-G5: also a renewal of its certificate, by whoever has not heard, brings nobody back."""
    mesh = Mesh()
    mini, other = mesh.machine("mini"), mesh.machine("other")
    body = encode(LeavingBody(NOW_S))
    forged = mesh.sign(other, LEAVING, b"", body)
    assert mesh.judge(forged) is Verdict.ADMIT, "it is about its author, whoever that is"
    leaving = mesh.sign(mini, LEAVING, b"", body)
    wire = mesh.certificate(mini.key, mini.owner)
    renewed = make(mesh.founder.key, mesh.mesh, CERTIFICATE, mini.node, mesh.version() - (10 if way == "before" else 0), wire)
    members = mesh.members(leaving, renewed)
    assert refusal(members, (wire,)) == refusal(members, (mini.certificate,)) == "left"
    assert refusal(members, (other.certificate,)) == ""
    assert members.renewable(mini.node, NOW_S + 80 * 86_400) is None
    assert not members.expelled_lineages


# Folds over anything ---------------------------------------------------------------------------------------------------

FOLDED = Mesh("folded")
FOLDED_MACHINES = [FOLDED.founder, FOLDED.machine("one", roles=ADMIN), FOLDED.machine("two")]
SIGNED = decode_untrusted(SignedCertificate, FOLDED_MACHINES[2].certificate, bytes_max=1024)


def certificates() -> st.SearchStrategy[bytes]:
    node_ids = st.sampled_from([m.node for m in FOLDED_MACHINES] + [bytes(16), node_id(FOLDED.root.public)])
    keys = st.sampled_from([m.key.public for m in FOLDED_MACHINES] + [bytes(32), FOLDED.root.public])
    names = st.text(min_size=1, max_size=10).filter(lambda t: 0 < len(t.encode("utf-8", "replace")) <= 60 and t.isprintable())
    contents = st.builds(
        CertificateBody, keys, keys, node_ids, names, names, st.integers(1, 31), node_ids, st.binary(min_size=8, max_size=8),
        st.integers(0, 1 << 40), st.none() | st.integers(0, 1 << 40), st.none() | st.binary(min_size=16, max_size=16),
    )  # fmt: skip
    signers = st.sampled_from([FOLDED.root, *(m.key for m in FOLDED_MACHINES)])

    def sign(content: CertificateBody, signer) -> bytes:
        data = encode(content)
        return encode(SignedCertificate(data, signer.sign(Context.CERTIFICATE, FOLDED.mesh, data), None))

    return st.builds(sign, contents, signers)


def control_records() -> st.SearchStrategy[Record]:
    authors = st.sampled_from([FOLDED.root, *(m.key for m in FOLDED_MACHINES)])
    lineages = st.sampled_from([m.node for m in FOLDED_MACHINES] + [bytes(16)])
    expulsions = st.builds(lambda lineage, keep: encode(Expulsion(lineage, tuple(keep))), lineages, st.lists(st.binary(min_size=32, max_size=32), max_size=2))
    return st.builds(
        lambda author, kind, version, body: make(author, FOLDED.mesh, kind, b"k", version, body),
        authors, st.sampled_from([CERTIFICATE, EXPULSION]), st.integers(1, 1 << 60), st.binary(max_size=60) | certificates() | expulsions,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(control_records(), max_size=6), st.randoms(use_true_random=False))
def test_any_records_fold_to_the_same_members_in_any_order(records: list[Record], chance):
    """SECURITY 17: the fold never raises, whatever stands in the store, and depends on the set alone."""
    genesis = decode_untrusted(Genesis, FOLDED.genesis, bytes_max=200)
    held = [*FOLDED.records, *records]
    first = Members(genesis, FOLDED.mesh, held)
    chance.shuffle(held)
    second = Members(genesis, FOLDED.mesh, held)
    assert first.certificates == second.certificates
    assert (first.frozen, first.expelled_lineages) == (second.frozen, second.expelled_lineages)
    for node in [*first.certificates, NodeId(bytes(16)), first.root]:
        assert first.author(node) == second.author(node)
    assert first.author(first.root).root
    for node in first.certificates:
        assert 1 <= len(first.chain_of(node)) <= 2


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=300) | certificates(), max_size=3))
def test_any_chain_is_a_certificate_or_one_of_our_refusals(chain: list[bytes]):
    members = FOLDED.members()
    try:
        certified = members.check_untrusted(tuple(chain), now_s=NOW_S, me=NodeId(bytes(16)))
    except (PeerFault, Refused):
        return
    body = decode_untrusted(SignedCertificate, chain[0], bytes_max=1024)
    assert verify(
        FOLDED.root.public if certified.issuer == members.root else members.certificates[NodeId(certified.issuer)].public_key,
        Context.CERTIFICATE, FOLDED.mesh, body.body, body.signature,
    )  # fmt: skip


def test_tombstones_and_other_kinds_are_passed_over():
    mesh = Mesh()
    mini = mesh.machine("mini")
    withdrawn = make(mesh.founder.key, mesh.mesh, CERTIFICATE, mini.node, mesh.version(), b"")
    policy = make(mesh.founder.key, mesh.mesh, kinds.POLICY, b"", mesh.version(), b"\x81\x18\x32")
    others = [r for r in mesh.records if r is not mini.record]
    members = Members(decode_untrusted(Genesis, mesh.genesis, bytes_max=200), mesh.mesh, [*others, withdrawn, policy])
    assert mini.node not in members.certificates
    assert members.author(mini.node) is None


def test_names_in_certificates_are_cleaned_before_anybody_sees_them():
    mesh = Mesh()
    machine = mesh.machine("\u202eevil\x1b[31m~k7q2")
    certified = mesh.members().certificates[machine.node]
    assert certified.name == "evil[31m k7q2"


def test_founding_draws_all_it_needs():
    assert Mesh(os.urandom(4)).mesh != Mesh(os.urandom(4)).mesh
    assert Drawn(1)(40) == Drawn(1)(40)
    assert Mesh("same").records == Mesh("same").records
