"""Sign, verify, seal, derive: the only room that touches libsodium.

Every signature is over ``"hivemesh/<type>/1" || mesh id || bytes as sent``, with the types in one registry, so that
nothing signed for one purpose or one mesh is ever valid for another (THREATS, "replay across meshes").
Randomness comes in as an argument.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from enum import Enum

from nacl import bindings
from nacl.exceptions import CryptoError

from mesh.base.errors import PeerFault

Entropy = Callable[[int], bytes]
"""Returns that many unpredictable bytes."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEAL_OVERHEAD_BYTES = 24 + 16
_FIELD_PRIME = 2**255 - 19


class BadSeal(PeerFault):
    """Sealed bytes do not open with this key."""

    kind = "bad_seal"


class Context(Enum):
    """What a signature may be for. Closed: a new kind of signed thing gets a new word here."""

    CERTIFICATE = "certificate"
    OWNER = "owner"
    RECORD = "record"
    INVITE = "invite"
    LINK_RESPONDER = "link-responder"
    LINK_INITIATOR = "link-initiator"
    JOIN_RESPONDER = "join-responder"
    JOIN_INITIATOR = "join-initiator"
    OFFER = "offer"
    ANSWER = "answer"
    ROTATION = "rotation"


class SigningKey:
    """An Ed25519 private key; its bytes never appear in text.

    Args:
        seed: 32 secret bytes.
    """

    __slots__ = ("_secret", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        assert len(seed) == KEY_BYTES
        self.public, self._secret = bindings.crypto_sign_seed_keypair(seed)
        self.seed = seed

    def __repr__(self) -> str:
        return "<SigningKey>"

    def sign(self, context: Context, mesh: bytes, data: bytes) -> bytes:
        """Sign bytes for one purpose in one mesh.

        Args:
            context: The purpose.
            mesh: 16 bytes of mesh id.
            data: The bytes exactly as they will be sent.

        Returns:
            64 bytes.
        """
        return bindings.crypto_sign(_signed(context, mesh, data), self._secret)[:SIGNATURE_BYTES]


def _signed(context: Context, mesh: bytes, data: bytes) -> bytes:
    assert len(mesh) == 16
    return b"hivemesh/" + context.value.encode() + b"/1" + mesh + data


def verify(public_key: bytes, context: Context, mesh: bytes, data: bytes, signature: bytes) -> bool:
    """Check a signature.

    Args:
        public_key: 32 bytes.
        context: The purpose it must have been made for.
        mesh: 16 bytes of mesh id.
        data: The bytes as received.
        signature: 64 bytes.

    Returns:
        Whether it is valid; never raises for bad input.
    """
    if len(public_key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        bindings.crypto_sign_open(signature + _signed(context, mesh, data), public_key)
    except (CryptoError, ValueError, TypeError):
        return False
    return True


def digest(*parts: bytes, size: int = 32, key: bytes = b"", person: bytes = b"") -> bytes:
    """Hash parts, each with its length in front, so that no two lists of parts collide by concatenation.

    Args:
        parts: Anything.
        size: 1 to 64 bytes of output.
        key: At most 64 bytes.
        person: At most 16 bytes, names the use.
    """
    state = hashlib.blake2b(digest_size=size, key=key, person=person)
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return state.digest()


def content_id(data: bytes, *, size: int = 32) -> bytes:
    """Hash one byte string, as it is: plain BLAKE2b of the given size."""
    return hashlib.blake2b(data, digest_size=size).digest()


def same(a: bytes, b: bytes) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(a, b)


def derive(key: bytes, label: str, *parts: bytes) -> bytes:
    """Derive a 32-byte key from a key, a label and a transcript by keyed, personalised BLAKE2b."""
    return digest(label.encode(), *parts, key=key, person=b"hivemesh-derive")


def exchange_keypair(entropy: Entropy) -> tuple[bytes, bytes]:
    """Make an ephemeral X25519 pair: public, secret."""
    secret = entropy(KEY_BYTES)
    return bindings.crypto_scalarmult_base(secret), secret


def exchange(secret: bytes, public: bytes) -> bytes:
    """Compute the shared X25519 secret.

    Raises:
        PeerFault: The peer's point is of low order, not canonical, or not 32 bytes.
    """
    if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _FIELD_PRIME:
        raise PeerFault("the peer sent a key that is not in canonical form")
    try:
        return bindings.crypto_scalarmult(secret, public)
    except (CryptoError, ValueError, TypeError, RuntimeError):
        raise PeerFault("the peer sent an unusable key") from None


def seal(key: bytes, plain: bytes, *, entropy: Entropy, associated: bytes = b"") -> bytes:
    """Encrypt and authenticate with a random 24-byte nonce in front (XChaCha20-Poly1305)."""
    nonce = entropy(24)
    return nonce + bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, associated, nonce, key)


def unseal(key: bytes, sealed: bytes, *, associated: bytes = b"") -> bytes:
    """Open what :func:`seal` made.

    Raises:
        BadSeal: Wrong key, or the bytes were changed.
    """
    if len(sealed) < SEAL_OVERHEAD_BYTES:
        raise BadSeal("sealed bytes are too short")
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed[24:], associated, sealed[:24], key)
    except (CryptoError, ValueError, TypeError):
        raise BadSeal("sealed bytes do not open with this key") from None


def seal_once(key: bytes, plain: bytes, associated: bytes) -> bytes:
    """Encrypt under a key that is used exactly once (a handshake message), so the nonce is fixed."""
    return bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, associated, bytes(24), key)


def unseal_once(key: bytes, sealed: bytes, associated: bytes) -> bytes:
    """Open what :func:`seal_once` made.

    Raises:
        BadSeal: Wrong key, or the bytes were changed.
    """
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, associated, bytes(24), key)
    except (CryptoError, ValueError, TypeError):
        raise BadSeal("a handshake message does not open") from None


STREAM_OVERHEAD_BYTES = bindings.crypto_aead_aegis256_ABYTES
REKEY_BYTES = 1 << 30
_NONCE_BYTES = bindings.crypto_aead_aegis256_NPUBBYTES
_FRAME, _FINAL_FRAME = b"frame", b"final"


class _Stream:
    """What both halves of a stream count alike: the key in use, and which frame comes next under it."""

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self._key = key
        self._frames = self._bytes = 0

    def _nonce(self) -> bytes:
        return self._frames.to_bytes(_NONCE_BYTES, "little")

    def _step(self, plain_bytes: int) -> None:
        """Count a frame; behind the one that fills a gibibyte both halves go on under a key derived from the old one."""
        self._frames += 1
        self._bytes += plain_bytes
        if self._bytes >= REKEY_BYTES:
            self._key, self._frames, self._bytes = derive(self._key, "stream rekey"), 0, 0


class StreamSealer(_Stream):
    """The sending half of a link: frames in order, each authenticated, keys renewed every GiB (AEGIS-256).

    The nonce is the frame's number: a key is derived from both sides' ephemerals and used for one direction of one
    link only, so no pair of key and nonce comes twice.

    Args:
        key: 32 bytes, this direction's only.
    """

    def push(self, plain: bytes, *, final: bool = False) -> bytes:
        """Seal the next frame; ``final`` marks the last one, so truncation shows."""
        associated = _FINAL_FRAME if final else _FRAME
        sealed = bindings.crypto_aead_aegis256_encrypt(plain, associated, self._nonce(), self._key)
        self._step(len(plain))
        return sealed


class StreamOpener(_Stream):
    """The receiving half of a link.

    Args:
        key: 32 bytes, this direction's only.
    """

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.finished = False

    def pull(self, sealed: bytes) -> bytes:
        """Open the next frame.

        Raises:
            BadSeal: Changed, reordered, repeated, or behind the final frame.
        """
        if self.finished:
            raise BadSeal("a frame came behind the final one")
        if len(sealed) < STREAM_OVERHEAD_BYTES:
            raise BadSeal("a frame is too short")
        plain = self._opened(sealed, _FRAME)
        if plain is None:
            # Which of the two it is stands in what is authenticated, not in a byte of its own; one more try, at the end.
            plain = self._opened(sealed, _FINAL_FRAME)
            self.finished = plain is not None
        if plain is None:
            raise BadSeal("a frame was changed on its way")
        self._step(len(plain))
        return plain

    def _opened(self, sealed: bytes, associated: bytes) -> bytes | None:
        try:
            return bindings.crypto_aead_aegis256_decrypt(sealed, associated, self._nonce(), self._key)
        except (CryptoError, ValueError, TypeError):
            return None
