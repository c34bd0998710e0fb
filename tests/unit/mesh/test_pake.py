"""The exchange behind a code: one guess a run for either side, nothing to search offline."""

from __future__ import annotations

import os

import pytest

from mesh.base.errors import PeerFault
from mesh.codes import code_of, slot_payload
from mesh.invites import BadInvite
from mesh.pake import ELEMENT_BYTES, CodeIssuer, CodeJoiner, is_code_hello, slot_of_untrusted

RIGHT, WRONG = (code_of(slot_payload(9, secret), long=False) for secret in (1, 2))
IDENTITY = b"\x01" + bytes(31)


def test_both_sides_with_the_password_get_the_link_across():
    joiner = CodeJoiner(RIGHT, entropy=os.urandom)
    assert is_code_hello(joiner.hello)
    assert slot_of_untrusted(joiner.hello) == 9
    issuer = CodeIssuer(RIGHT.password, joiner.hello, entropy=os.urandom)
    assert issuer.is_proved(joiner.proof_untrusted(issuer.reply))
    assert joiner.link_untrusted(issuer.link("hmi_abc")) == "hmi_abc"


def test_a_wrong_password_proves_nothing_to_either_side():
    joiner = CodeJoiner(WRONG, entropy=os.urandom)
    issuer = CodeIssuer(RIGHT.password, joiner.hello, entropy=os.urandom)
    assert not issuer.is_proved(joiner.proof_untrusted(issuer.reply))
    with pytest.raises(BadInvite, match="does not know the code"):
        joiner.link_untrusted(issuer.link("hmi_abc"))


def test_the_joiners_own_element_sent_back_is_refused():
    joiner = CodeJoiner(RIGHT, entropy=os.urandom)
    with pytest.raises(PeerFault):
        joiner.proof_untrusted(b"B" + joiner.hello[-32:])


@pytest.mark.parametrize(
    "element",
    [
        IDENTITY,
        b"\xee" + b"\xff" * 30 + b"\x7f",
        b"\x01" + bytes(30) + b"\x80",
        bytes(32),
        b"\xff" * 32,
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
        bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        *(n.to_bytes(32, "little") for n in (2, 5, 6, 7)),
    ],
    ids=["identity", "identity plus p", "identity with a sign", "zero", "ones", "order 8", "order 2", "2", "5", "6", "7"],
)
def test_elements_that_are_unsound_or_written_in_a_second_way_are_refused(element: bytes):
    """A non-canonical identity would be taken by the package."""
    joiner = CodeJoiner(RIGHT, entropy=os.urandom)
    with pytest.raises(PeerFault):
        slot_of_untrusted(joiner.hello[:-32] + element)
    with pytest.raises(PeerFault):
        joiner.proof_untrusted(b"B" + element)


@pytest.mark.parametrize("length", [0, 1, ELEMENT_BYTES - 1, ELEMENT_BYTES + 1, 1000])
def test_other_lengths_and_sides_are_refused(length: int):
    joiner = CodeJoiner(RIGHT, entropy=os.urandom)
    with pytest.raises(PeerFault):
        joiner.proof_untrusted(bytes(length))
    with pytest.raises(PeerFault):
        slot_of_untrusted(joiner.hello[:-1] if length else b"")
    with pytest.raises(PeerFault):
        slot_of_untrusted(joiner.hello[:5] + b"B" + joiner.hello[6:])


def test_anything_in_place_of_the_proof_or_the_link_is_no_proof_and_no_link():
    joiner = CodeJoiner(RIGHT, entropy=os.urandom)
    issuer = CodeIssuer(RIGHT.password, joiner.hello, entropy=os.urandom)
    proof = joiner.proof_untrusted(issuer.reply)
    for other in (b"", proof[:-1], bytes(32), proof + b"\0", bytes([proof[0] ^ 1]) + proof[1:]):
        assert not issuer.is_proved(other)
    for sealed in (b"", bytes(16), bytes(100), os.urandom(5000), issuer.link("hmi_abc")[:-1]):
        with pytest.raises(BadInvite):
            joiner.link_untrusted(sealed)
