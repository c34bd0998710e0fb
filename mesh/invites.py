"""The signed link invite: what it says, how it is written, and how a pasted one is read.

A link carries 128 bits of secret and the issuer's public key, so nobody in between can pose as either side of the
pairing (``mesh.joining``); its signature catches every typo and truncation before anything is sent.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Malformed, Range, Size, decode_untrusted, encode
from mesh.base.crypto import (
    Context,
    SigningKey,
    verify,
)
from mesh.base.errors import Refused
from mesh.base.names import MeshId
from mesh.kinds import ROLES_ALL, Role

PREFIX = "hmi_"
LINK_CHARS_MAX = 1024
VERSION = 1
USES_MAX = 100
TTL_S_MAX = 30 * 86_400
ADDRESSES_MAX = 3
LIFE_S_MIN, LIFE_S_MAX = 60, 7 * 86_400
"""How long a machine that is let in for a while stays one."""

Id16 = Annotated[bytes, Size(16, 16)]
Key32 = Annotated[bytes, Size(32, 32)]
Signature = Annotated[bytes, Size(64, 64)]
Name = Annotated[str, Size(1, 63)]


class BadInvite(Refused):
    """The invite cannot be used."""

    kind = "bad_invite"


@dataclass(frozen=True, slots=True)
class InviteBody:
    """What the issuer signs.

    Attributes:
        seed: The secret that makes the link worth anything.
        roles: What the joiner will get; never admin.
        owner_name: Whose machine it will be; the issuer's own person where ``mine``.
        addresses: Where the issuer listens, ``host:port``; empty: find it on the LAN.
        life_s: How long the joiner's certificate lives; None: as long as any.
    """

    version: Annotated[int, Range(1, 255)]
    mesh: Id16
    issuer_key: Key32
    invite: Id16
    seed: Id16
    roles: Annotated[int, Range(1, ROLES_ALL)]
    uses: Annotated[int, Range(1, USES_MAX)]
    expires_s: Annotated[int, Range(0, 1 << 40)]
    mine: bool
    owner_name: Name
    addresses: Annotated[tuple[Annotated[str, Size(3, 80)], ...], Count(ADDRESSES_MAX)]
    life_s: Annotated[int, Range(LIFE_S_MIN, LIFE_S_MAX)] | None = None


@dataclass(frozen=True, slots=True)
class _SignedInvite:
    body: Annotated[bytes, Size(1, 640)]
    signature: Signature


def sign_invite(key: SigningKey, body: InviteBody) -> bytes:
    """Sign an invite, as it stands in a link."""
    assert body.issuer_key == key.public
    assert not body.roles & Role.ADMIN, "an invite never carries admin"
    body_bytes = encode(body)
    return encode(_SignedInvite(body_bytes, key.sign(Context.INVITE, MeshId(body.mesh), body_bytes)))


def write_link(key: SigningKey, body: InviteBody) -> str:
    """Sign an invite and write it as a link."""
    return PREFIX + base64.urlsafe_b64encode(sign_invite(key, body)).decode().rstrip("=")


def _read_signed_untrusted(raw: bytes) -> InviteBody:
    """Read a signed invite.

    Args:
        raw: Anything.

    Raises:
        Malformed: Not one, or its signature is not by the key inside.
        BadInvite: Of another version, or it carries admin.
    """
    signed = decode_untrusted(_SignedInvite, raw, bytes_max=LINK_CHARS_MAX)
    body = decode_untrusted(InviteBody, signed.body, bytes_max=640)
    if not verify(body.issuer_key, Context.INVITE, body.mesh, signed.body, signed.signature):
        raise Malformed("an invite that its issuer did not sign")
    if body.version != VERSION or body.roles & Role.ADMIN:
        raise BadInvite("this invite was made by another version of hivemesh", reason="version", hint="update hivemesh on both machines")
    return body


def read_link_untrusted(text: str) -> InviteBody:
    """Read a pasted link; spaces, line breaks, quotes and typographic dashes do not matter.

    Args:
        text: Anything a person pasted.

    Returns:
        The signed content.

    Raises:
        BadInvite: Mistyped, cut short, changed, or not a link.
    """
    if len(text) > 8 * LINK_CHARS_MAX:
        raise BadInvite("that is too long to be an invite", reason="not_an_invite", hint="paste the link that `hivemesh invite` printed")
    for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212":
        text = text.replace(dash, "-")
    clean = "".join(c for c in text if c.isascii() and (c.isalnum() or c in "-_"))
    if not clean.startswith(PREFIX) or len(clean) > LINK_CHARS_MAX:
        raise BadInvite("that is not an invite link", reason="not_an_invite", hint="paste the whole link; it starts with hmi_")
    coded = clean[len(PREFIX) :]
    try:
        raw = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        if base64.urlsafe_b64encode(raw).decode().rstrip("=") != coded:
            raise Malformed("trailing bits")
        return _read_signed_untrusted(raw)
    except (Malformed, binascii.Error, ValueError):
        raise _typo() from None


def _typo() -> BadInvite:
    return BadInvite(
        "the invite was changed or cut short on its way; nothing was sent, it can be used again",
        reason="typo",
        hint="copy the whole link once more",
    )


@dataclass(frozen=True, slots=True)
class OpenInvite:
    """An invite as its issuer keeps it."""

    body: InviteBody
    uses_left: int
