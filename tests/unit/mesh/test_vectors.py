"""Golden vectors: the bytes of the protocol, frozen. A change here is a change of the protocol and needs a decision.

Everything is made from fixed seeds, a fixed clock and fixed entropy, and compared with ``tests/vectors/*.json``.
``HIVEMESH_VECTORS=write pytest tests/unit/mesh/test_vectors.py`` writes the files anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mesh import kinds
from mesh.base.codec import encode
from mesh.base.crypto import (
    Context,
    SigningKey,
    StreamOpener,
    StreamSealer,
    content_id,
    derive,
    digest,
    seal,
    unseal,
    verify,
)
from mesh.base.names import MeshId, NodeId, fingerprint_text, node_id, owner_id, suffix
from mesh.certificates import Expulsion, LeavingBody, PolicyBody, RotationBody, found, mesh_id
from mesh.copies import ProofBody, make_counter, proven_untrusted
from mesh.handshake import HelloCache, Initiator, Responder, Statement, discovery_tag, gate_commitment
from mesh.identity import founding
from mesh.invites import InviteBody, OpenInvite, read_link_untrusted, write_link
from mesh.joining import Issuer, Joiner
from mesh.kinds import KINDS, Role
from mesh.messages import MESSAGE_BYTES_MAX, MESSAGES, Digests, Ids, Records, Want
from mesh.presence import Presence, link_mark
from mesh.reconcile import lane_digest
from mesh.records import Verdict, make, parse_untrusted
from mesh.schemas import AboutBody, SealedBody
from mesh.sealing import FleetSealer
from tests.fakes.meshes import NOW, NOW_S, Drawn, Machine, Mesh

FOLDER = Path(__file__).parents[2] / "vectors"
WRITE = os.environ.get("HIVEMESH_VECTORS") == "write"
GATE = bytes(range(32))
FLEET_KEY = bytes(range(32, 64))
VERSION = NOW.wall_ms << 16

Vectors = dict[str, Any]


@cache
def world() -> tuple[Mesh, Machine]:
    """A mesh with the founder and one more machine, always the same."""
    mesh = Mesh("vectors")
    return mesh, mesh.machine("mini", invite=bytes(range(16)))


def identity() -> Vectors:
    mesh, mini = world()
    root, owner, node = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
    genesis, certificate = found(root=root, owner=owner, node=node, name="studio", owner_name="ana", now_s=NOW_S, nonce=bytes(range(24)))
    goods = founding(name="studio", owner_name="ana", entropy=Drawn("founding"), now=NOW)
    return {
        "root_seed": root.seed, "root_public": root.public, "owner_seed": owner.seed, "owner_public": owner.public,
        "node_seed": node.seed, "node_public": node.public, "node_id": node_id(node.public), "owner_id": owner_id(owner.public),
        "fingerprint": fingerprint_text(node.public), "suffix": suffix(node_id(node.public)),
        "genesis": genesis, "mesh_id": mesh_id(genesis), "founding_certificate": certificate,
        "member_mesh": mesh.mesh, "member_certificate": mini.certificate, "member_chain": mesh.founder.certificate,
        "unproven_certificate": Mesh("unproven").machine("evil", countersigned=False).certificate,
        "founded_records": [record.wire for record in goods.records],
        "gate": GATE, "gate_commitment": gate_commitment(GATE), "discovery_tag": discovery_tag(GATE, NOW),
        "link_mark": link_mark(mesh.founder.node, mini.node),
        "signatures": {context.value: node.sign(context, mesh_id(genesis), b"bytes as sent") for context in Context},
        "derived": derive(GATE, "label", b"transcript"), "digest": digest(b"a", b"bc", size=16, key=GATE, person=b"hivemesh-test"),
        "content_id": content_id(b"bytes as sent"),
    }  # fmt: skip


def stated(machine: Machine, transcript: bytes) -> Statement:
    """What a machine signs in its seventh handshake, a minute after its start."""
    transcript, counter = transcript.rjust(32, b"0"), make_counter(60, 7)
    signed = transcript + machine.boot + counter.to_bytes(8, "big")
    return Statement(True, transcript, machine.boot, counter, machine.key.sign(Context.LINK_INITIATOR, world()[0].mesh, signed))


def bodies() -> dict[int, tuple[bytes, bytes]]:
    mesh, mini = world()
    presence = Presence(
        bytes(8), 30, "studio", "0.1.0", ("192.0.2.1:9847", "[2001:db8::1]:9847"), (link_mark(mesh.founder.node, mini.node),), 1, 2
    )
    sealed = encode(SealedBody(0, seal(FLEET_KEY, b"plain", entropy=Drawn("seal"), associated=mesh.founder.node)))
    commitment = gate_commitment(GATE)
    return {
        kinds.CERTIFICATE: (mini.node, mini.certificate),
        kinds.EPOCH: (commitment[:16], b"\x81\x58\x20" + commitment),
        kinds.POLICY: (b"", encode(PolicyBody(200))),
        kinds.EXPULSION: (mini.node, encode(Expulsion(mini.node, (content_id(mini.certificate),)))),
        kinds.ROTATION: (b"", encode(RotationBody(mesh.founder.key.public, mini.key.public, bytes(64)))),
        kinds.GRANT: (bytes(range(10)), encode(AboutBody(mini.node, b"content"))),
        kinds.GRANT_REVOCATION: (bytes(range(10)), encode(AboutBody(mini.node, b""))),
        kinds.COPY_PROOF: (mini.node, encode(ProofBody(mini.key.public, (stated(mini, b"1"), stated(mini, b"2")), ()))),
        kinds.FLEET_EPOCH: (commitment[:16], b"\x81\x58\x20" + commitment),
        kinds.LEAVING: (b"", encode(LeavingBody(1_800_000_000))),
        kinds.PRESENCE: (b"", encode(presence)),
        **dict.fromkeys((kinds.SESSION, kinds.WAITING, kinds.LESSON, kinds.ACCEPTANCE), (b"key", sealed)),
    }


def records() -> Vectors:
    mesh, _ = world()
    made = {f"{number} {KINDS[number].name}": (number, *pair) for number, pair in bodies().items()}
    made["48 lesson, withdrawn"] = (kinds.LESSON, b"key", b"")
    made["999 unknown"] = (999, bytes(range(32)), b"unread")
    out: Vectors = {"mesh_id": mesh.mesh, "author_seed": mesh.founder.key.seed, "author": mesh.founder.node, "version": VERSION}
    for name, (kind, key, body) in made.items():
        record = make(mesh.founder.key, mesh.mesh, kind, key, VERSION, body)
        out[name] = {"kind": kind, "key": key, "body": body, "record_id": record.record_id, "wire": record.wire}
    return out


def handshake() -> Vectors:
    mesh, mini = world()
    members = mesh.members()
    initiator = Initiator(mesh.credentials(mesh.founder, members, counter=7), GATE, entropy=Drawn("initiator"), now=NOW, expected=mini.node)
    responder = Responder(mesh.credentials(mini, members, counter=8), (GATE,), HelloCache(), entropy=Drawn("responder"), now=NOW)
    reply = responder.accept_untrusted(initiator.hello)
    closing, mine = initiator.answer_untrusted(reply)
    theirs = responder.finish_untrusted(closing)
    assert (mine.send_key, mine.receive_key, mine.salt) == (theirs.receive_key, theirs.send_key, theirs.salt)
    return {
        "gate": GATE, "wall_ms": NOW.wall_ms, "mesh_id": mesh.mesh,
        "initiator_seed": mesh.founder.key.seed, "initiator_boot": mesh.founder.boot, "initiator_counter": 7,
        "responder_seed": mini.key.seed, "responder_boot": mini.boot, "responder_counter": 8,
        "initiator_ephemeral_secret": Drawn("initiator")(32), "responder_ephemeral_secret": Drawn("responder")(32),
        "m1": initiator.hello, "m2": reply, "m3": closing,
        "initiator_to_responder_key": mine.send_key, "responder_to_initiator_key": mine.receive_key, "salt": mine.salt, "version": mine.version,
    }  # fmt: skip


def pairing(*, mine: bool) -> Vectors:
    goods = founding(name="studio", owner_name="ana", entropy=Drawn("founding"), now=NOW)
    mesh, node = mesh_id(goods.genesis), goods.keys["node"]
    invite = InviteBody(
        1, mesh, node.public, bytes(range(16)), bytes(range(16, 32)), int(Role.MEMBER | Role.WORKER), 1, NOW_S + 86_400, mine,
        "ana" if mine else "ben", ("192.0.2.1:9847", "[2001:db8::1]:9847"),
    )  # fmt: skip
    joiner_key, owner = SigningKey(bytes([4]) * 32), None if mine else SigningKey(bytes([5]) * 32)
    joiner = Joiner(invite, joiner_key, owner, "mini", entropy=Drawn("joiner"))
    issuer = Issuer(
        OpenInvite(invite, 1), node, goods.keys["owner"] if mine else None, goods.genesis, (goods.records[0].body,),
        entropy=Drawn("issuer"),
    )  # fmt: skip
    reply = issuer.accept_untrusted(joiner.hello, now_s=NOW_S)
    request = joiner.request_untrusted(reply)
    offer, _ = issuer.offer_untrusted(request)
    confirmation, _ = joiner.confirm_untrusted(offer, now_s=NOW_S)
    certificate = issuer.certificate_untrusted(confirmation, now_s=NOW_S)
    record = make(node, mesh, kinds.CERTIFICATE, node_id(joiner_key.public), VERSION + 2, certificate)
    grant = issuer.grant(record.wire, goods.gates, goods.fleet_key if mine else None, tuple(r.wire for r in goods.records))
    joined = joiner.finish_untrusted(grant, now_ms=NOW.wall_ms)
    assert joined.certified.wire == certificate
    return {
        "link": write_link(node, invite), "seed": invite.seed, "issuer_seed": node.seed, "joiner_seed": joiner_key.seed,
        "j1": joiner.hello, "j2": reply, "j3": request, "j4": offer, "j5": confirmation, "j6": grant, "certificate": certificate,
    }  # fmt: skip



def messages() -> Vectors:
    mesh, _ = world()
    ids = tuple(record.record_id for record in mesh.records)
    made = {
        "digests": Digests(tuple(bytes([n]) * 16 for n in range(4))),
        "ids": Ids(1, ids, True),
        "ids, more to come": Ids(0, (), False),
        "want": Want(ids),
        "records": Records(tuple(record.wire for record in mesh.records)),
    }
    return {name: MESSAGES.encode(message) for name, message in made.items()} | {"lane digest": lane_digest(bytes(range(16)), sorted(ids))}


def sealed() -> Vectors:
    mesh, _ = world()
    sealer = FleetSealer(mesh.founder.node, {0: bytes(32), 1: FLEET_KEY}, lambda node: True, entropy=Drawn("sealer"))
    return {
        "fleet_key": FLEET_KEY, "epoch": 1, "author": mesh.founder.node, "plain": b"only for ana's machines",
        "body": sealer.seal(b"only for ana's machines"),
        "seal": seal(GATE, b"plain", entropy=Drawn("seal"), associated=b"context"),
    }  # fmt: skip


def stream() -> Vectors:
    sealer = StreamSealer(GATE)
    return {"key": GATE, "frames": [sealer.push(b"one"), sealer.push(b""), sealer.push(b"end", final=True)]}


FILES: dict[str, Callable[[], Vectors]] = {
    "identity": identity,
    "records": records,
    "handshake": handshake,
    "pairing_mine": lambda: pairing(mine=True),
    "pairing_other": lambda: pairing(mine=False),
    "messages": messages,
    "sealed": sealed,
    "stream": stream,
}


def as_json(value: Any) -> Any:
    """Bytes as hex, the rest as it is."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list) else value


def frozen(name: str) -> Vectors:
    return json.loads((FOLDER / f"{name}.json").read_text())


def raw(value: str) -> bytes:
    return bytes.fromhex(value)


@pytest.mark.parametrize("name", FILES)
def test_the_bytes_are_those_that_were_frozen(name: str):
    made = as_json(FILES[name]())
    if WRITE:
        (FOLDER / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n")
    assert made == frozen(name)


def test_every_file_is_tested_and_no_file_is_stray():
    assert {path.stem for path in FOLDER.glob("*.json")} == {*FILES}


# What was frozen is still understood -------------------------------------------------------------------------------


def test_frozen_records_are_read_and_admitted_as_far_as_their_author_may():
    mesh, _ = world()
    vectors = frozen("records")
    assert {entry["kind"] for entry in vectors.values() if isinstance(entry, dict)} == {*KINDS, 999}
    for entry in (entry for entry in vectors.values() if isinstance(entry, dict)):
        record = parse_untrusted(raw(entry["wire"]))
        assert (record.kind, record.key, record.body) == (entry["kind"], raw(entry["key"]), raw(entry["body"]))
        assert record.record_id == raw(entry["record_id"])
        assert record.version == vectors["version"]
        assert mesh.judge(record) is Verdict.ADMIT


def test_a_frozen_proof_of_a_copy_holds():
    body = raw(frozen("records")["8 copy proof"]["body"])
    assert proven_untrusted(body, world()[0].mesh) is not None


def test_a_frozen_record_of_another_mesh_or_kind_is_refused():
    mesh, other = world()[0], Mesh("other")
    other.founder = mesh.founder
    for entry in (entry for entry in frozen("records").values() if isinstance(entry, dict)):
        assert other.judge(parse_untrusted(raw(entry["wire"])), mesh.members()) is Verdict.FORGED


def test_frozen_signatures_are_valid_for_their_purpose_only():
    vectors = frozen("identity")
    mesh, public = MeshId(raw(vectors["mesh_id"])), raw(vectors["node_public"])
    assert vectors["signatures"].keys() == {context.value for context in Context}
    for name, signature in vectors["signatures"].items():
        valid = {context.value for context in Context if verify(public, context, mesh, b"bytes as sent", raw(signature))}
        assert valid == {name}


def test_a_frozen_handshake_is_answered_and_finished():
    """Another implementation that sends these bytes is understood by either side of this one."""
    mesh, mini = world()
    vectors = frozen("handshake")
    members = mesh.members()
    responder = Responder(mesh.credentials(mini, members, counter=8), (GATE,), HelloCache(), entropy=Drawn("responder"), now=NOW)
    assert responder.accept_untrusted(raw(vectors["m1"])) == raw(vectors["m2"])
    session = responder.finish_untrusted(raw(vectors["m3"]))
    assert session.receive_key == raw(vectors["initiator_to_responder_key"])
    assert (session.peer, session.peer_counter) == (mesh.founder.node, 7)


@pytest.mark.parametrize(("name", "mine"), [("pairing_mine", True), ("pairing_other", False)])
def test_a_frozen_link_is_read(name: str, mine: bool):
    body = read_link_untrusted(frozen(name)["link"])
    assert body.mine is mine
    assert body.seed == raw(frozen(name)["seed"])
    assert body.addresses == ("192.0.2.1:9847", "[2001:db8::1]:9847")


def test_frozen_messages_are_read():
    vectors = frozen("messages")
    read = {name: MESSAGES.decode_untrusted(raw(data), bytes_max=MESSAGE_BYTES_MAX) for name, data in vectors.items() if name != "lane digest"}
    assert {type(message) for message in read.values()} == {Digests, Ids, Want, Records}


def test_a_frozen_seal_opens():
    vectors = frozen("sealed")
    author = NodeId(raw(vectors["author"]))
    sealer = FleetSealer(author, {1: FLEET_KEY}, lambda node: True, entropy=os.urandom)
    assert sealer.unseal(raw(vectors["body"]), author) == raw(vectors["plain"])
    assert unseal(GATE, raw(vectors["seal"]), associated=b"context") == b"plain"


def test_a_frozen_stream_opens():
    vectors = frozen("stream")
    opener = StreamOpener(raw(vectors["key"]))
    assert [opener.pull(raw(frame)) for frame in vectors["frames"]] == [b"one", b"", b"end"]
    assert opener.finished
