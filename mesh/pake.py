"""From a code's password to the signed link it stands for: a password authenticated key exchange, both sides pure.

::

    C1 I->R  "HC1" slot u16 A          A, B: SPAKE2 elements of 33 bytes
    C2 R->I  B                         nothing that a guess could be checked against
    C3 I->R  mac(K, "joiner")          only now the issuer knows whether the joiner has the password
    C4 R->I  AEAD(K; signed link)      and only now the joiner learns anything

A wrong password costs the side that guessed one visible run and tells it nothing else; there is no transcript that could
be searched offline. What comes out is an ordinary link, which is then used like any other: who issued it, whose machine
it makes and with which roles is signed there, not in the code.

Source: RFC 9382 (SPAKE2), by the ``spake2`` package; docs/decisions/0013-codes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh.base.crypto import Entropy, derive, digest, same, seal_once, unseal_once
from mesh.base.errors import PeerFault
from mesh.codes import Code
from mesh.invites import LINK_CHARS_MAX, BadInvite

if TYPE_CHECKING:
    from spake2.spake2 import SPAKE2_A, SPAKE2_B

MAGIC = b"HC1"
ELEMENT_BYTES = 33
PROOF_BYTES = 32
_HELLO_BYTES = len(MAGIC) + 2 + ELEMENT_BYTES
_JOINER, _ISSUER = b"hivemesh joiner", b"hivemesh issuer"


def is_code_hello(message: bytes) -> bool:
    """Whether somebody's first message asks for a code's link."""
    return message[: len(MAGIC)] == MAGIC


def slot_of_untrusted(hello: bytes) -> int:
    """Read which code a C1 is about, and check that its element is one.

    Raises:
        PeerFault: Not a C1.
    """
    if len(hello) != _HELLO_BYTES or not is_code_hello(hello):
        raise PeerFault("not a request for a code's link")
    _element_checked(hello[-ELEMENT_BYTES:], b"A")
    return int.from_bytes(hello[len(MAGIC) : len(MAGIC) + 2], "big")


def _element_checked(message: bytes, side: bytes) -> bytes:
    """Check one SPAKE2 message: the right side, a point of the group, written in the one canonical way.

    The package would take a second way of writing the identity.

    Raises:
        PeerFault: It is not.
    """
    from spake2.ed25519_basic import NotOnCurve
    from spake2.spake2 import DefaultParams

    if len(message) != ELEMENT_BYTES or message[:1] != side:
        raise PeerFault("the peer sent no element of the code's exchange")
    group = DefaultParams.group
    try:
        element = group.bytes_to_element(message[1:])
        sound = element.to_bytes() == message[1:] and element.to_bytes() != group.Zero.to_bytes()
    except (ValueError, AssertionError, ArithmeticError, TypeError, NotOnCurve):
        sound = False
    if not sound:
        raise PeerFault("the peer sent an unusable element")
    return message


def _finish(exchange: SPAKE2_A | SPAKE2_B, message: bytes) -> bytes:
    from spake2.spake2 import SPAKEError

    try:
        return bytes(exchange.finish(message))
    except (SPAKEError, ValueError, AssertionError):
        raise PeerFault("the peer sent an unusable element") from None


class _Keys:
    """What both sides derive from the shared secret and everything that was said."""

    def __init__(self, shared: bytes, hello: bytes, reply: bytes) -> None:
        self.transcript = digest(hello, reply)
        self.proof = derive(shared, "code joiner proof", self.transcript)
        self.seal = derive(shared, "code link", self.transcript)


class CodeJoiner:
    """The side that typed the code.

    Args:
        code: From :func:`mesh.codes.read_code_untrusted`.
        entropy: Randomness.
    """

    def __init__(self, code: Code, *, entropy: Entropy) -> None:
        from spake2.spake2 import SPAKE2_A

        self._exchange = SPAKE2_A(code.password, idA=_JOINER, idB=_ISSUER, entropy_f=entropy)
        self.hello = MAGIC + code.slot.to_bytes(2, "big") + bytes(self._exchange.start())
        self._keys: _Keys | None = None

    def proof_untrusted(self, reply: bytes) -> bytes:
        """Take C2, make C3.

        Raises:
            PeerFault: Not a C2.
        """
        shared = _finish(self._exchange, _element_checked(reply, b"B"))
        self._keys = _Keys(shared, self.hello, reply)
        return self._keys.proof

    def link_untrusted(self, sealed: bytes) -> str:
        """Take C4: the signed link.

        Raises:
            BadInvite: The other side does not know the code either.
        """
        assert self._keys is not None
        try:
            if len(sealed) > 2 * LINK_CHARS_MAX:
                raise PeerFault("too long")
            return unseal_once(self._keys.seal, sealed, self._keys.transcript).decode()
        except (PeerFault, UnicodeDecodeError):
            raise BadInvite(
                "a machine answered that does not know the code", reason="not_proved", hint="ask whoever made it for a link instead"
            ) from None


class CodeIssuer:
    """The side that made the code, for one run.

    Args:
        password: As in the code.
        hello: A C1 that :func:`slot_of_untrusted` took.
        entropy: Randomness.
    """

    def __init__(self, password: bytes, hello: bytes, *, entropy: Entropy) -> None:
        from spake2.spake2 import SPAKE2_B

        exchange = SPAKE2_B(password, idA=_JOINER, idB=_ISSUER, entropy_f=entropy)
        self.reply = bytes(exchange.start())
        self._keys = _Keys(_finish(exchange, hello[-ELEMENT_BYTES:]), hello, self.reply)

    def is_proved(self, proof: bytes) -> bool:
        """Whether a C3 shows that the joiner has the password."""
        return len(proof) == PROOF_BYTES and same(proof, self._keys.proof)

    def link(self, link: str) -> bytes:
        """Make C4."""
        return seal_once(self._keys.seal, link.encode(), self._keys.transcript)
