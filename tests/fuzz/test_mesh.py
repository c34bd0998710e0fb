"""Every door of the mesh cores takes anything: sound bytes changed a little, and bytes that are nothing.

A door is a function whose name ends in ``_untrusted``. It may return, or raise one of our peer faults or refusals;
anything else would end the node. The first line of each target is its invariant.
"""

from __future__ import annotations

import ast
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds, presence
from mesh.base.codec import Malformed, decode_untrusted, encode, load_untrusted
from mesh.base.crypto import seal_once
from mesh.base.errors import PeerFault, Refused
from mesh.base.names import NodeId
from mesh.certificates import SignedCertificate, certificate_body_untrusted, open_untrusted
from mesh.circuitpipe import CircuitPipe
from mesh.circuits import Relay, Surroundings, Why, read_answer_untrusted, read_open_untrusted
from mesh.codes import Code, read_code_untrusted
from mesh.copies import ProofBody, proven_untrusted, read_proof_untrusted
from mesh.exchange import control_only
from mesh.granting import JoinGrant
from mesh.handshake import HelloCache, Initiator, Refusal, Responder, Session
from mesh.identity import founding
from mesh.invites import BadInvite, InviteBody, OpenInvite, read_link_untrusted, write_link
from mesh.joining import Issuer, Joiner, invite_of_untrusted
from mesh.kinds import Role
from mesh.messages import CIRCUIT_MESSAGES, MESSAGE_BYTES_MAX, MESSAGES, CircuitAnswer, CircuitOpen, Ids, Keys
from mesh.pake import CodeIssuer, CodeJoiner, slot_of_untrusted
from mesh.presence import Presence
from mesh.records import Record, Verdict, parse_untrusted
from mesh.schemas import BODIES
from tests.fakes.channels import FakeNetwork
from tests.fakes.meshes import NOW, NOW_S, Drawn, Mesh

ROOT = Path(__file__).parents[2]
CORES = ("records", "presence", "circuits", "certificates", "members", "invites", "handshake", "copies", "base/codec")

MESH = Mesh("fuzz")
MINI = MESH.machine("mini")
MEMBERS = MESH.members()
GATE = bytes(32)
GOODS = founding(name="studio", owner_name="ana", entropy=Drawn("fuzz"), now=NOW)
PRESENCE = encode(Presence(bytes(8), 30, "studio", "0.1.0", ("192.0.2.1:1",), (bytes(4),), 1, 2))
RECORD = MESH.sign(MINI, kinds.PRESENCE, b"", PRESENCE)
INVITE = InviteBody(
    1, MESH.mesh, MESH.founder.key.public, bytes(16), bytes(16), int(Role.MEMBER), 1, NOW_S + 60, True, "ana", ("192.0.2.1:1",)
)  # fmt: skip


def initiator() -> Initiator:
    return Initiator(MESH.credentials(MESH.founder, MEMBERS), GATE, entropy=Drawn("i"), now=NOW, expected=None)


def responder() -> Responder:
    return Responder(MESH.credentials(MINI, MEMBERS), (GATE,), HelloCache(), entropy=Drawn("r"), now=NOW)


def initiated() -> Session:
    """The dialling side's session of a sound handshake."""
    here, there = initiator(), responder()
    return here.answer_untrusted(there.accept_untrusted(here.hello))[1]


def joiner() -> Joiner:
    return Joiner(INVITE, MINI.key, None, "mini", entropy=Drawn("j"))


def issuer() -> Issuer:
    chain = (MESH.founder.certificate,)
    return Issuer(OpenInvite(INVITE, 1), MESH.founder.key, MESH.ana, MESH.genesis, chain, entropy=Drawn("s"))


def exchange() -> dict[str, bytes]:
    """Every message of a sound handshake and of a sound pairing."""
    here, there = initiator(), responder()
    reply = there.accept_untrusted(here.hello)
    closing, _ = here.answer_untrusted(reply)
    asks, grants = joiner(), issuer()
    answer = grants.accept_untrusted(asks.hello, now_s=NOW_S)
    request = asks.request_untrusted(answer)
    offer, _ = grants.offer_untrusted(request)
    confirmation, _ = asks.confirm_untrusted(offer, now_s=NOW_S)
    grants.certificate_untrusted(confirmation, now_s=NOW_S)
    grant = grants.grant(MINI.record.wire, (GATE,), GATE, tuple(r.wire for r in MESH.records))
    return {
        "m1": here.hello, "m2": reply, "m3": closing, "j1": asks.hello, "j2": answer, "j3": request, "j4": offer, "j5": confirmation, "j6": grant,
    }  # fmt: skip


SOUND = exchange()


def take_m2(data: bytes) -> None:
    initiator().answer_untrusted(data)


def take_m3(data: bytes) -> None:
    there = responder()
    there.accept_untrusted(SOUND["m1"])
    there.finish_untrusted(data)


def take_j2(data: bytes) -> None:
    joiner().request_untrusted(data)


def take_j3(data: bytes) -> None:
    grants = issuer()
    grants.accept_untrusted(SOUND["j1"], now_s=NOW_S)
    grants.offer_untrusted(data)


def take_j4(data: bytes) -> None:
    asks = joiner()
    asks.request_untrusted(SOUND["j2"])
    asks.confirm_untrusted(data, now_s=NOW_S)


def take_j5(data: bytes) -> None:
    grants = issuer()
    grants.accept_untrusted(SOUND["j1"], now_s=NOW_S)
    grants.offer_untrusted(SOUND["j3"])
    grants.certificate_untrusted(data, now_s=NOW_S)


def take_j6(data: bytes) -> None:
    asks = joiner()
    asks.request_untrusted(SOUND["j2"])
    asks.confirm_untrusted(SOUND["j4"], now_s=NOW_S)
    asks.finish_untrusted(data, now_ms=NOW.wall_ms)


def inside_j3(data: bytes) -> None:
    """Who holds the link holds the keys of the exchange, so what is inside the seal is as hostile as the seal."""
    asks, grants = joiner(), issuer()
    asks.request_untrusted(grants.accept_untrusted(asks.hello, now_s=NOW_S))
    assert asks.exchange is not None
    assert grants.exchange is not None
    asks.exchange.transcript = grants.exchange.transcript
    grants.offer_untrusted(asks.exchange.seal("join request", data))


def inside_j4(data: bytes) -> None:
    asks, grants = joiner(), issuer()
    request = asks.request_untrusted(grants.accept_untrusted(asks.hello, now_s=NOW_S))
    assert grants.exchange is not None
    grants.exchange.unseal_untrusted("join request", request)
    asks.confirm_untrusted(grants.exchange.seal("join offer", data), now_s=NOW_S)


def inside_j6(data: bytes) -> None:
    asks, grants = joiner(), issuer()
    offer, _ = grants.offer_untrusted(asks.request_untrusted(grants.accept_untrusted(asks.hello, now_s=NOW_S)))
    confirmation, _ = asks.confirm_untrusted(offer, now_s=NOW_S)
    assert grants.exchange is not None
    grants.exchange.unseal_untrusted("join confirmation", confirmation)
    asks.finish_untrusted(grants.exchange.seal("join grant", data), now_ms=NOW.wall_ms)


def take_record(data: bytes) -> None:
    record = parse_untrusted(data)
    if record.wire != RECORD.wire:
        assert MESH.judge(record, MEMBERS) is not Verdict.ADMIT or record in MESH.records


def take_presence(data: bytes) -> None:
    said = presence.read_untrusted(Record(kinds.PRESENCE, MINI.node, b"", 1, data, bytes(32), b""))
    assert said is None or isinstance(said, Presence)


def take_proof(data: bytes) -> None:
    """Whatever it is, it proves nothing: what is inside was not signed by two machines."""
    assert proven_untrusted(data, MESH.mesh) is None


def take_message(data: bytes) -> None:
    MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX)


def take_circuit(data: bytes) -> None:
    """Whatever is asked for, a relay hands on only what names it and its neighbour, each machine once."""
    relay = Relay(ROUTE[1])
    around = Surroundings(set(ROUTE), lambda node: node in ROUTE, True)
    opened = read_open_untrusted(data)
    verdict = relay.admit(opened, ROUTE[0], around, 0.0, direct=True)
    assert isinstance(verdict, Why) or opened.route[:3] == ROUTE[:3]


def take_piece(data: bytes) -> None:
    """A piece is a part of a message or a fault; nothing is gathered beyond a message."""
    pipe = CircuitPipe(FakeNetwork().join(ROUTE[0]), is_client=True, remote="via x")  # type: ignore[arg-type]
    pipe._take_untrusted(data)
    assert pipe._parts_bytes == len(data) - 1


def take_body(data: bytes) -> None:
    for number, body in BODIES.items():
        try:
            about = body(b"", data, NOW.wall_ms)
        except Malformed:
            continue
        assert about is None or len(about) == 16, number


def take_chain(data: bytes) -> None:
    MEMBERS.check_untrusted((data,), now_s=NOW_S, me=NodeId(bytes(16)))


def take_link(data: bytes) -> None:
    read_link_untrusted(data.decode("latin-1"))


def sound_inside() -> dict[str, bytes]:
    """What is inside the seals of a sound pairing: the issuer reads J3, the joiner J4 and J6."""
    asks, grants = joiner(), issuer()
    request = asks.request_untrusted(grants.accept_untrusted(asks.hello, now_s=NOW_S))
    reader = issuer()
    reader.accept_untrusted(asks.hello, now_s=NOW_S)
    assert reader.exchange is not None
    plain3 = reader.exchange.unseal_untrusted("join request", request)
    offer, _ = grants.offer_untrusted(request)
    other = joiner()
    other.request_untrusted(SOUND["j2"])
    assert other.exchange is not None
    plain4 = other.exchange.unseal_untrusted("join offer", offer)
    plain6 = encode(JoinGrant(MINI.record.wire, (GATE,), GATE, tuple(r.wire for r in MESH.records)))
    return {"j3": plain3, "j4": plain4, "j6": plain6}


SOUND_INSIDE = sound_inside()
LINK = write_link(MESH.founder.key, INVITE).encode()
ROUTE = tuple(NodeId(bytes((number,)) * 16) for number in range(4))
CIRCUIT = CIRCUIT_MESSAGES.encode(CircuitOpen(ROUTE, 1, bytes(57)))
COPIES = encode(ProofBody(MINI.key.public, (), (RECORD.wire, RECORD.wire)))
REFUSAL = encode(Refusal("expelled", "mini was expelled from this mesh", RECORD.wire))
SESSION = initiated()


def inside_refusal(data: bytes) -> None:
    """A member that refuses may say anything under the seal."""
    SESSION.refused_untrusted(seal_once(SESSION.refusal_key, data, b""))


TARGETS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "handshake accept_untrusted": (lambda data: responder().accept_untrusted(data), SOUND["m1"]),
    "handshake answer_untrusted": (take_m2, SOUND["m2"]),
    "handshake finish_untrusted": (take_m3, SOUND["m3"]),
    "invites accept_untrusted": (lambda data: issuer().accept_untrusted(data, now_s=NOW_S), SOUND["j1"]),
    "invites invite_of_untrusted": (invite_of_untrusted, SOUND["j1"]),
    "invites request_untrusted": (take_j2, SOUND["j2"]),
    "invites offer_untrusted": (take_j3, SOUND["j3"]),
    "invites confirm_untrusted": (take_j4, SOUND["j4"]),
    "invites certificate_untrusted": (take_j5, SOUND["j5"]),
    "invites finish_untrusted": (take_j6, SOUND["j6"]),
    "invites inside J3": (inside_j3, SOUND_INSIDE["j3"]),
    "invites inside J4": (inside_j4, SOUND_INSIDE["j4"]),
    "invites inside J6": (inside_j6, SOUND_INSIDE["j6"]),
    "invites read_link_untrusted": (take_link, LINK),
    "records parse_untrusted": (take_record, RECORD.wire),
    "presence read_untrusted": (take_presence, PRESENCE),
    "copies read_proof_untrusted": (read_proof_untrusted, COPIES),
    "copies proven_untrusted": (take_proof, COPIES),
    "members check_untrusted": (take_chain, MINI.certificate),
    "certificates certificate_body_untrusted": (certificate_body_untrusted, MINI.certificate),
    "certificates open_untrusted": (open_untrusted, MINI.certificate),
    "handshake refused_untrusted": (SESSION.refused_untrusted, seal_once(SESSION.refusal_key, REFUSAL, b"")),
    "handshake inside a refusal": (inside_refusal, REFUSAL),
    "exchange control_only": (lambda data: control_only([data]), MINI.record.wire),
    "messages Keys": (take_message, MESSAGES.encode(Keys((bytes(32),) * 2))),
    "base/codec load_untrusted": (lambda data: load_untrusted(data, bytes_max=4096), MINI.certificate),
    "base/codec decode_untrusted": (lambda data: decode_untrusted(SignedCertificate, data, bytes_max=4096), MINI.certificate),
    "messages decode_untrusted": (take_message, MESSAGES.encode(Ids(1, (bytes(32),) * 3, True))),
    "circuits read_open_untrusted": (take_circuit, CIRCUIT),
    "circuits read_answer_untrusted": (read_answer_untrusted, CIRCUIT_MESSAGES.encode(CircuitAnswer(bytes(300)))),
    "circuitpipe pieces": (take_piece, bytes(300)),
    "schemas bodies": (take_body, PRESENCE),
}


def test_every_door_of_the_cores_has_a_target():
    """A new door without one fails here; doors of the shells are fuzzed beside them."""
    doors = set()
    for core in CORES:
        for item in ast.walk(ast.parse((ROOT / "mesh" / f"{core}.py").read_text())):
            if isinstance(item, ast.FunctionDef) and item.name.endswith("_untrusted") and not item.name.startswith("_"):
                doors.add(f"{core} {item.name}")
    assert doors <= TARGETS.keys()


def test_the_sound_bytes_pass_every_door_but_the_last():
    """Else the changes below would begin from something refused already."""
    for name, (take, sound) in TARGETS.items():
        if name in ("invites finish_untrusted", "invites inside J6"):
            with pytest.raises(PeerFault, match="certificate granted"):
                take(sound)
        else:
            take(sound)


def mutate(sound: bytes, chance: random.Random) -> bytes:
    """Change sound bytes as a fuzzer does: flips, cuts, copies, insertions, numbers at their ends."""
    data = bytearray(sound)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        action = chance.randrange(6)
        if action == 0 and data:
            data[at % len(data)] ^= 1 << chance.randrange(8)
        elif action == 1:
            del data[at : at + chance.choice([1, 2, 8, 64])]
        elif action == 2:
            data[at:at] = chance.randbytes(chance.choice([1, 2, 8, 64]))
        elif action == 3:
            data[at:at] = data[at : at + chance.choice([1, 8, 64])]
        elif action == 4 and data:
            data[at % len(data)] = chance.choice([0, 0x17, 0x18, 0x1B, 0x1F, 0x3B, 0x5B, 0x7B, 0x80, 0x9B, 0x9F, 0xA0, 0xC1, 0xF4, 0xF6, 0xF9, 0xFB, 0xFF])
        else:
            data = data[:at]
    return bytes(data)


def drive(name: str, seed: int) -> None:
    take, sound = TARGETS[name]
    refusal = refused(take, mutate(sound, random.Random(seed)))
    assert "\n" not in refusal, "one line for a person"
    assert len(refusal) < 400


def refused(take: Callable[[bytes], object], data: bytes) -> str:
    """What a door said; nothing where it let the bytes in. Any other error goes on up and fails the test."""
    try:
        take(data)
    except (PeerFault, Refused) as refusal:
        return refusal.message
    return ""


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_changed_bytes_are_taken_or_refused(name: str, seed: int):
    drive(name, seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(name: str, data: bytes):
    assert "\n" not in refused(TARGETS[name][0], data)


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_changed_bytes_for_a_long_time(name: str):
    start = int.from_bytes(os.urandom(4), "big")
    for seed in range(start, start + 20_000):
        drive(name, seed)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(["abandon", "ability", "zoo", "7K", "Q4T9F", "M", "-", " "]), max_size=9).map(" ".join)))
def test_any_text_is_a_code_or_a_bad_invite(text: str) -> None:
    with suppress(BadInvite):
        assert read_code_untrusted(text).password


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.binary(max_size=80), st.binary(min_size=32, max_size=32).map(lambda e: b"HC1\0\0A" + e)), st.binary(max_size=200))
def test_any_bytes_of_a_codes_exchange_are_taken_or_the_peers_fault(hello: bytes, answer: bytes) -> None:
    with suppress(PeerFault):
        slot_of_untrusted(hello)
        CodeIssuer(bytes(10), hello, entropy=Drawn("c")).is_proved(answer)
    joiner = CodeJoiner(Code(1, None, bytes(10)), entropy=Drawn("d"))
    with suppress(PeerFault, BadInvite):
        joiner.proof_untrusted(answer)
        joiner.link_untrusted(hello)
