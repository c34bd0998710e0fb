"""Bodies only one person's machines can read."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.codec import decode_untrusted
from mesh.base.errors import Refused
from mesh.base.names import NodeId
from mesh.kinds import rule_of
from mesh.schemas import SEALED_PLAIN_BYTES_MAX, SealedBody
from mesh.sealing import FleetSealer

ME, MINE, BENS = (NodeId(bytes([n]) * 16) for n in range(3))
KEYS = {0: bytes(32), 1: b"\x01" * 32}


def sealer(me: NodeId = ME, keys: dict[int, bytes] | None = None) -> FleetSealer:
    return FleetSealer(me, KEYS if keys is None else keys, lambda node: node in (ME, MINE), entropy=os.urandom)


@given(st.binary(max_size=SEALED_PLAIN_BYTES_MAX))
def test_my_other_machines_read_what_i_sealed(plain: bytes):
    body = sealer().seal(plain)
    assert sealer(MINE).unseal(body, ME) == plain
    assert sealer().unseal(body, ME) == plain


def test_other_people_and_other_authors_read_nothing():
    """SECURITY 33: the canary is not in the bytes, and a body copied under another author does not open."""
    canary = b"rm -rf canary"
    body = sealer().seal(canary)
    assert canary not in body
    assert FleetSealer(BENS, {0: os.urandom(32)}, lambda node: node == BENS, entropy=os.urandom).unseal(body, ME) is None
    assert sealer(MINE).unseal(body, MINE) is None
    assert sealer(MINE).unseal(body, BENS) is None
    assert FleetSealer(MINE, {1: os.urandom(32)}, lambda node: True, entropy=os.urandom).unseal(body, ME) is None


def test_the_newest_epoch_seals_and_older_ones_still_open():
    """An expulsion begins an epoch; what was sealed before stays readable for who holds the old key."""
    old, new = sealer(keys={0: KEYS[0]}), sealer()
    assert decode_untrusted(SealedBody, new.seal(b"x"), bytes_max=200).epoch == 1
    assert new.unseal(old.seal(b"before"), ME) == b"before"
    assert old.unseal(new.seal(b"after"), ME) is None


def test_two_seals_of_one_plain_differ():
    assert sealer().seal(b"same") != sealer().seal(b"same")


@pytest.mark.parametrize("length", [SEALED_PLAIN_BYTES_MAX + 1, 100_000])
def test_too_much_is_refused_with_the_limit_named(length: int):
    """O-G8: one item above the cap is refused where it is made."""
    with pytest.raises(Refused, match=str(SEALED_PLAIN_BYTES_MAX)) as caught:
        sealer().seal(bytes(length))
    assert caught.value.reason == "limit"


def test_the_largest_seal_fits_a_record():
    body = sealer().seal(bytes(SEALED_PLAIN_BYTES_MAX))
    for kind in (kinds.SESSION, kinds.WAITING, kinds.LESSON):
        assert len(body) <= rule_of(kind).body_bytes_max


def test_every_changed_byte_opens_nothing():
    body = sealer().seal(b"plain")
    for at in range(len(body)):
        assert sealer().unseal(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], ME) is None


@given(st.binary(max_size=120))
def test_any_body_opens_to_nothing(body: bytes):
    assert sealer().unseal(body, ME) is None
