"""Signatures for one purpose and one mesh, seals, streams, and points an attacker would choose."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings

from mesh.base import crypto
from mesh.base.crypto import (
    BadSeal,
    Context,
    SigningKey,
    StreamOpener,
    StreamSealer,
    content_id,
    derive,
    digest,
    exchange,
    exchange_keypair,
    same,
    seal,
    seal_once,
    unseal,
    unseal_once,
    verify,
)
from mesh.base.errors import PeerFault
from tests.fakes.meshes import Drawn

KEY = SigningKey(bytes(range(32)))
MESH_A, MESH_B = b"a" * 16, b"b" * 16
DATA = b"what was said"
PRIME = 2**255 - 19

LOW_ORDER = [
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    PRIME - 1,
]
"""Every point of order 1, 2, 4 or 8 on the curve and its twist, in canonical form. Source: Bernstein, curve25519 page."""


@pytest.mark.parametrize("made_for", Context)
def test_a_signature_is_for_one_purpose_and_one_mesh(made_for: Context):
    """SECURITY 10: each type offered as each other type, and in another mesh, is refused."""
    signature = KEY.sign(made_for, MESH_A, DATA)
    for asked in Context:
        assert verify(KEY.public, asked, MESH_A, DATA, signature) is (asked is made_for)
        assert not verify(KEY.public, asked, MESH_B, DATA, signature)


def test_no_purpose_is_the_beginning_of_another():
    """Purpose, mesh and data stand side by side, so a purpose must not be readable as another one plus a mesh."""
    prefixes = [f"hivemesh/{context.value}/1".encode() for context in Context]
    assert len(set(prefixes)) == len(prefixes)
    assert not [(a, b) for a in prefixes for b in prefixes if a != b and b.startswith(a)]
    assert all("/" not in context.value for context in Context)


def test_every_changed_bit_of_a_signature_of_the_data_or_of_the_key_is_refused():
    signature = KEY.sign(Context.RECORD, MESH_A, DATA)
    assert len(signature) == crypto.SIGNATURE_BYTES
    assert verify(KEY.public, Context.RECORD, MESH_A, DATA, signature)
    for good, place in ((signature, 0), (DATA, 1), (KEY.public, 2)):
        for bit in range(8 * len(good)):
            changed = bytearray(good)
            changed[bit // 8] ^= 1 << bit % 8
            parts = [signature, DATA, KEY.public]
            parts[place] = bytes(changed)
            assert not verify(parts[2], Context.RECORD, MESH_A, parts[1], parts[0])


def test_a_signature_has_one_form_only():
    """A second valid signature of the same bytes by adding the group's order would give a record two forms."""
    order = 2**252 + 27742317777372353535851937790883648493
    signature = KEY.sign(Context.RECORD, MESH_A, DATA)
    other = signature[:32] + (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    assert not verify(KEY.public, Context.RECORD, MESH_A, DATA, other)


@pytest.mark.parametrize("y", [0, 1, PRIME - 1, PRIME, PRIME + 1, 2**255 - 1])
def test_a_public_key_of_low_order_or_not_canonical_verifies_nothing(y: int):
    """With the neutral point as key, R = neutral and S = 0 would fit every message."""
    for sign_bit in (0, 1 << 255):
        public = (y | sign_bit).to_bytes(32, "little")
        for forged in (public + bytes(32), b"\x01" + bytes(63)):
            assert not verify(public, Context.RECORD, MESH_A, DATA, forged)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytes(64)])
def test_keys_and_signatures_of_another_length_are_no_reason_to_raise(key: bytes):
    assert not verify(key, Context.RECORD, MESH_A, DATA, bytes(64))
    assert not verify(KEY.public, Context.RECORD, MESH_A, DATA, key[:63])


@pytest.mark.parametrize("mesh", [b"", bytes(15), bytes(17)])
def test_a_mesh_id_of_another_length_is_a_programming_mistake(mesh: bytes):
    with pytest.raises(AssertionError):
        KEY.sign(Context.RECORD, mesh, DATA)


def test_a_private_key_never_shows_in_text():
    """SECURITY 3, O-P7: neither repr nor str nor a format shows a byte of it."""
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY])):
        assert KEY.seed.hex() not in text
        assert repr(KEY.seed) not in text
    with pytest.raises(AssertionError):
        SigningKey(bytes(31))


@pytest.mark.parametrize("point", LOW_ORDER)
def test_points_of_low_order_are_refused(point: int):
    """SECURITY 35: with such a point the shared secret would be the same for everybody."""
    with pytest.raises(PeerFault):
        exchange(os.urandom(32), point.to_bytes(32, "little"))


@pytest.mark.parametrize("point", [PRIME, PRIME + 1, PRIME + 9, 2**255 - 1, 2**255 + 9, 2**256 - 1])
def test_points_not_in_canonical_form_are_refused(point: int):
    """SECURITY 35: two encodings of one point would give one session two transcripts."""
    with pytest.raises(PeerFault, match="canonical"):
        exchange(os.urandom(32), point.to_bytes(32, "little"))


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_points_of_another_length_are_refused(length: int):
    with pytest.raises(PeerFault):
        exchange(os.urandom(32), b"\x09" * length)


@given(st.binary(min_size=32, max_size=32))
def test_any_point_is_used_or_refused(point: bytes):
    try:
        assert len(exchange(b"\x11" * 32, point)) == 32
    except PeerFault:
        return


def test_both_sides_of_an_exchange_get_the_same_secret():
    one_public, one = exchange_keypair(Drawn("one"))
    other_public, other = exchange_keypair(Drawn("other"))
    assert exchange(one, other_public) == exchange(other, one_public)
    assert exchange(one, other_public) != exchange(one, one_public)


# Hashes -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_different_lists_of_parts_have_different_digests(one: list[bytes], other: list[bytes]):
    assert (digest(*one) == digest(*other)) is (one == other)


def test_a_digest_depends_on_its_key_its_use_and_its_size():
    assert len({digest(b"x"), digest(b"x", key=b"k"), digest(b"x", person=b"p"), digest(b"x", key=b"k", person=b"p")}) == 4
    assert [len(digest(b"x", size=size)) for size in (1, 16, 32, 64)] == [1, 16, 32, 64]
    assert digest(b"x", size=16) != digest(b"x", size=32)[:16]
    assert content_id(b"x") != digest(b"x")
    assert len(content_id(b"x", size=16)) == 16


def test_derived_keys_differ_by_label_and_transcript():
    key = bytes(32)
    made = {derive(key, "a"), derive(key, "b"), derive(key, "a", b"t"), derive(key, "a", b"t", b""), derive(bytes(31) + b"\x01", "a")}
    assert len(made) == 5
    assert all(len(one) == 32 for one in made)


def test_secrets_are_compared_whole():
    assert same(b"abc", b"abc")
    assert not same(b"abc", b"abd")
    assert not same(b"abc", b"ab")


# Seals ------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100), st.binary(max_size=20))
def test_what_is_sealed_opens_with_the_same_key_and_context_only(plain: bytes, associated: bytes):
    sealed = seal(bytes(32), plain, entropy=os.urandom, associated=associated)
    assert len(sealed) == len(plain) + crypto.SEAL_OVERHEAD_BYTES
    assert unseal(bytes(32), sealed, associated=associated) == plain
    with pytest.raises(BadSeal):
        unseal(b"\x01" * 32, sealed, associated=associated)
    with pytest.raises(BadSeal):
        unseal(bytes(32), sealed, associated=associated + b"x")


def test_every_changed_byte_and_every_length_of_a_seal_is_refused():
    sealed = seal(bytes(32), b"plain", entropy=os.urandom)
    once = seal_once(bytes(32), b"plain", b"context")
    for at in range(len(sealed)):
        with pytest.raises(BadSeal):
            unseal(bytes(32), sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
    for at in range(len(once)):
        with pytest.raises(BadSeal):
            unseal_once(bytes(32), once[:at] + bytes([once[at] ^ 1]) + once[at + 1 :], b"context")
    for length in range(len(sealed)):
        with pytest.raises(BadSeal):
            unseal(bytes(32), sealed[:length])
    for length in range(len(once)):
        with pytest.raises(BadSeal):
            unseal_once(bytes(32), once[:length], b"context")
    with pytest.raises(BadSeal):
        unseal_once(bytes(32), once, b"another context")
    assert unseal_once(bytes(32), once, b"context") == b"plain"


# Streams ----------------------------------------------------------------------------------------------------------


def stream(key: bytes = bytes(32)) -> tuple[StreamSealer, StreamOpener]:
    return StreamSealer(key), StreamOpener(key)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=64), max_size=8))
def test_frames_come_out_as_they_went_in(frames: list[bytes]):
    sealer, opener = stream()
    for frame in frames:
        sealed = sealer.push(frame)
        assert len(sealed) == len(frame) + crypto.STREAM_OVERHEAD_BYTES
        assert opener.pull(sealed) == frame
    assert not opener.finished


@pytest.mark.parametrize("attack", ["reorder", "repeat", "drop", "change", "short", "empty", "other key", "reflect"])
def test_a_stream_notices_what_was_done_to_it(attack: str):
    sealer, opener = stream()
    frames = [sealer.push(bytes([number]) * 10) for number in range(3)]
    opener.pull(frames[0])
    bad = {
        "reorder": frames[2],
        "repeat": frames[0],
        "drop": frames[2],
        "change": frames[1][:-1] + bytes([frames[1][-1] ^ 1]),
        "short": frames[1][: crypto.STREAM_OVERHEAD_BYTES - 1],
        "empty": b"",
        "other key": stream(b"\x01" * 32)[0].push(b"x"),
        "reflect": stream(derive(bytes(32), "back"))[0].push(b"x"),
    }[attack]
    with pytest.raises(BadSeal):
        opener.pull(bad)
    assert not opener.finished


def test_the_last_frame_says_so_and_nothing_comes_behind_it():
    sealer, opener = stream()
    opener.pull(sealer.push(b"one"))
    assert opener.pull(sealer.push(b"", final=True)) == b""
    assert opener.finished
    with pytest.raises(BadSeal, match="behind"):
        opener.pull(sealer.push(b"two"))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=30), st.booleans())
def test_no_key_and_nonce_come_twice(sizes: list[int], final: bool):
    """I6, across renewals of the key too."""
    used: set[tuple[bytes, bytes]] = set()
    encrypt = bindings.crypto_aead_aegis256_encrypt

    def noting(plain: bytes, associated: bytes, nonce: bytes, key: bytes) -> bytes:
        assert (key, nonce) not in used
        used.add((key, nonce))
        return encrypt(plain, associated, nonce, key)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(crypto, "REKEY_BYTES", 100)
        patched.setattr(bindings, "crypto_aead_aegis256_encrypt", noting)
        sealer, opener = stream()
        for size in sizes:
            opener.pull(sealer.push(bytes(size)))
        opener.pull(sealer.push(b"", final=final))
    assert len(used) == len(sizes) + 1


def test_keys_are_renewed_after_a_gibibyte_and_both_sides_agree(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crypto, "REKEY_BYTES", 100)
    keys: list[bytes] = []
    encrypt = bindings.crypto_aead_aegis256_encrypt
    monkeypatch.setattr(bindings, "crypto_aead_aegis256_encrypt", lambda p, a, n, key: keys.append(key) or encrypt(p, a, n, key))
    sealer, opener = stream()
    for _ in range(7):
        assert opener.pull(sealer.push(bytes(40))) == bytes(40)
    assert [keys.index(key) for key in keys] == [0, 0, 0, 3, 3, 3, 6]
