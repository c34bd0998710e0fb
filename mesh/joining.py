"""The pairing exchange: six messages, both sides pure.

It has the handshake's shape, with the invite's secret in place of the gate key::

    J1 I->R  "HJ1" version invite e_I mac(seed)
    J2 R->I  e_R
    J3 I->R  AEAD{joiner's key, name, owner key and its signature, Sig}
    J4 R->I  AEAD{genesis, issuer's chain, Sig}          the joiner can now show mesh, issuer, owner, roles
    J5 I->R  AEAD{}                                      "go on": only now a use is spent
    J6 R->I  AEAD{certificate, gate keys, fleet key, control lane}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Size, decode_untrusted, encode
from mesh.base.crypto import (
    Context,
    Entropy,
    SigningKey,
    digest,
    exchange_keypair,
    same,
    verify,
)
from mesh.base.errors import PeerFault
from mesh.base.names import MeshId, node_id
from mesh.certificates import (
    Certified,
    sign_owner,
)
from mesh.granting import JOIN_MESSAGE_BYTES_MAX, Exchange, Issuing, Joining, JoinRequest
from mesh.invites import VERSION, BadInvite, InviteBody, Signature

MAGIC = b"HJ1"


@dataclass(frozen=True, slots=True)
class JoinOffer:
    """What the issuer shows (J4)."""

    genesis: Annotated[bytes, Size(1, 200)]
    chain: Annotated[tuple[Annotated[bytes, Size(1, 1024)], ...], Count(2)]
    signature: Signature


_HELLO_BYTES = len(MAGIC) + 1 + 16 + 32 + 16


def _mac(seed: bytes, head: bytes) -> bytes:
    return digest(head, size=16, key=seed, person=b"hivemesh-join")


def invite_of_untrusted(hello: bytes) -> bytes:
    """Read which invite a J1 is for.

    Raises:
        PeerFault: Not a J1.
    """
    if len(hello) != _HELLO_BYTES or hello[:3] != MAGIC or hello[3] != VERSION:
        raise PeerFault("not a request to join")
    return hello[4:20]


class Joiner(Joining):
    """The side that holds a link.

    Args:
        invite: From :func:`mesh.invites.read_link_untrusted`.
        key: The joiner's fresh key.
        owner: The joiner's owner key, where the invite is for another person than the issuer.
        name: The joiner's display name.
        entropy: Randomness.
    """

    def __init__(
        self, invite: InviteBody, key: SigningKey, owner: SigningKey | None, name: str, *, entropy: Entropy
    ) -> None:
        super().__init__(key, owner, name)
        self.invite = invite
        public, self._secret = exchange_keypair(entropy)
        head = MAGIC + bytes((VERSION,)) + invite.invite + public
        self.hello = head + _mac(invite.seed, head)

    def request_untrusted(self, reply: bytes) -> bytes:
        """Take J2, make J3.

        Raises:
            PeerFault: Not a reply.
        """
        if len(reply) != 32:
            raise PeerFault("the answer to the request to join has the wrong length")
        assert self.invite is not None
        ours = self.exchange = Exchange(self.invite.seed, self._secret, reply, self.hello, reply)
        mesh = MeshId(self.invite.mesh)
        me = node_id(self._key.public)
        owner_key = owner_signature = None
        if self._owner is not None:
            owner_key, owner_signature = self._owner.public, sign_owner(self._owner, mesh, me, self._key.public)
        signature = self._key.sign(Context.JOIN_INITIATOR, mesh, ours.transcript)
        request = JoinRequest(self._key.public, self._name, owner_key, owner_signature, signature)
        return ours.seal("join request", encode(request))

    def confirm_untrusted(self, sealed: bytes, *, now_s: int) -> tuple[bytes, Certified]:
        """Take J4, make J5.

        Args:
            sealed: Anything.
            now_s: Wall clock.

        Returns:
            J5, and who issued the invite, for the person to see.

        Raises:
            PeerFault, Refused: The other side is not the issuer the link names, or not of that mesh.
        """
        assert self.exchange is not None
        before = self.exchange.transcript
        plain = self.exchange.unseal_untrusted("join offer", sealed)
        offer = decode_untrusted(JoinOffer, plain, bytes_max=JOIN_MESSAGE_BYTES_MAX)
        issuer = self._take_issuer_untrusted(offer.genesis, offer.chain, offer.signature, before, now_s)
        return self.exchange.seal("join confirmation", b""), issuer


class Issuer(Issuing):
    """The side that minted the link."""

    def accept_untrusted(self, hello: bytes, *, now_s: int) -> bytes:
        """Take J1, make J2.

        Raises:
            PeerFault: Not made with the invite's secret.
            BadInvite: Expired or used up.
        """
        body = self.invite.body
        if invite_of_untrusted(hello) != body.invite or not same(_mac(body.seed, hello[:-16]), hello[-16:]):
            raise PeerFault("the request to join does not prove the invite")
        if now_s > body.expires_s:
            raise BadInvite("this invite has expired", reason="expired", hint="make a new one: hivemesh invite")
        if self.invite.uses_left < 1:
            raise BadInvite("this invite was used already", reason="used", hint="make a new one: hivemesh invite")
        public, secret = exchange_keypair(self._entropy)
        self.exchange = Exchange(body.seed, secret, hello[20:52], hello, public)
        return public

    def offer_untrusted(self, sealed: bytes) -> tuple[bytes, JoinRequest]:
        """Take J3, make J4.

        Raises:
            PeerFault: The joiner does not prove its key or, where it must bring one, its owner key.
        """
        assert self.exchange is not None
        mesh = MeshId(self.invite.body.mesh)
        before = self.exchange.transcript
        plain = self.exchange.unseal_untrusted("join request", sealed)
        request = decode_untrusted(JoinRequest, plain, bytes_max=JOIN_MESSAGE_BYTES_MAX)
        if not verify(request.public_key, Context.JOIN_INITIATOR, mesh, before, request.signature):
            raise PeerFault("the joiner does not hold the key it shows")
        self._check_owner(request)
        self.request = request
        signature = self._key.sign(Context.JOIN_RESPONDER, mesh, self.exchange.transcript)
        return self.exchange.seal("join offer", encode(JoinOffer(self._genesis, self._chain, signature))), request

    def certificate_untrusted(self, sealed: bytes, *, now_s: int) -> bytes:
        """Take J5, sign the joiner's certificate; the caller spends one use in the transaction that stores it.

        Raises:
            PeerFault: Not the confirmation.
        """
        assert self.exchange is not None
        self.exchange.unseal_untrusted("join confirmation", sealed)
        return self._certificate(now_s)
