"""Names of nodes, owners, meshes, tasks and grants: how they are made, written and parsed.

A node has one name: its fingerprint, BLAKE2b-160 of its public key in base32. Its first 16 bytes stand in
records; the ``~suffix`` shown in tables and the prefixes people type come from the same hash.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from base64 import b32decode, b32encode
from typing import NewType

from mesh.base.errors import Usage

NodeId = NewType("NodeId", bytes)
"""16 bytes: the start of the fingerprint of a node's public key."""
OwnerId = NewType("OwnerId", bytes)
"""16 bytes: the start of the fingerprint of a person's public key."""
MeshId = NewType("MeshId", bytes)
"""16 bytes: BLAKE2b-128 of the genesis as encoded."""
TaskId = NewType("TaskId", bytes)
"""16 random bytes, chosen by the requester."""
GrantId = NewType("GrantId", bytes)
"""10 random bytes."""

ID_BYTES = 16
GRANT_ID_BYTES = 10
NAME_BYTES_MAX = 63
PROJECT_BYTES_MAX = 64
SUFFIX_CHARS = 4

_PROJECT = re.compile(r"[a-z0-9._-]{1,64}\Z")
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
"""What Unicode counts as letters or marks and draws as nothing."""


def fingerprint(public_key: bytes) -> bytes:
    """Hash a public key to the 20 bytes a person compares.

    Args:
        public_key: 32 bytes, Ed25519.

    Returns:
        BLAKE2b-160 of the key.
    """
    return hashlib.blake2b(public_key, digest_size=20).digest()


def node_id(public_key: bytes) -> NodeId:
    """Derive a node's id from its public key.

    Args:
        public_key: 32 bytes, Ed25519.

    Returns:
        The first 16 bytes of the fingerprint.
    """
    return NodeId(fingerprint(public_key)[:ID_BYTES])


def owner_id(public_key: bytes) -> OwnerId:
    """Derive an owner's id from the owner's public key.

    Args:
        public_key: 32 bytes, Ed25519.

    Returns:
        The first 16 bytes of the fingerprint.
    """
    return OwnerId(fingerprint(public_key)[:ID_BYTES])


def base32(data: bytes) -> str:
    """Write bytes in lower-case base32 without padding."""
    return b32encode(data).decode().rstrip("=").lower()


def unbase32(text: str) -> bytes:
    """Read base32 written by a person: case, dashes and spaces are ignored.

    Args:
        text: At most 64 characters.

    Returns:
        The bytes.

    Raises:
        Usage: Not base32.
    """
    clean = text.replace("-", "").replace(" ", "").upper()
    if len(clean) > 64:
        raise Usage("that identifier is too long")
    try:
        return b32decode(clean + "=" * (-len(clean) % 8))
    except ValueError:
        raise Usage("that is not an identifier (letters a-z and digits 2-7)") from None


def fingerprint_text(public_key: bytes) -> str:
    """Write a fingerprint in eight groups of four for people to compare."""
    text = base32(fingerprint(public_key))
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def suffix(node: bytes) -> str:
    """Shorten an id to the four characters shown behind a name (``mini~k7q2``)."""
    return base32(node)[:SUFFIX_CHARS]


def clean_name(text: str, *, fallback: str = "machine") -> str:
    """Make a display name safe to show and to announce.

    Control, bidirectional, zero-width and blank letters go; the rest is NFC, trimmed, and cut at a character
    boundary to 63 bytes of UTF-8, the limit of an mDNS label.

    Args:
        text: Anything a person typed or a peer stated.
        fallback: Used when nothing is left.

    Returns:
        A name of 1 to 63 bytes.
    """
    spaced = "".join(" " if c == "~" or c.isspace() else c for c in _BLANK.sub("", text[:400]))
    shown = "".join(c for c in spaced if unicodedata.category(c)[0] != "C")
    kept = " ".join(unicodedata.normalize("NFC", shown).split())
    while len(kept.encode()) > NAME_BYTES_MAX:
        kept = kept[:-1]
    return kept.strip() or fallback


def name_key(text: str) -> str:
    """Fold a name for comparison, so that look-alikes by case, width or hidden characters collide."""
    return unicodedata.normalize("NFKC", clean_name(text)).casefold()


def project_name(text: str) -> str:
    """Check a project's name.

    Args:
        text: What a person or a repository states.

    Returns:
        The name, unchanged.

    Raises:
        Usage: Not 1 to 64 of ``[a-z0-9._-]``, or it starts with a dot.
    """
    if not _PROJECT.match(text) or text.startswith("."):
        raise Usage(f"{text[:80]!r} is not a project name: 1 to 64 of a-z 0-9 . _ - and no leading dot")
    return text


def project_from(text: str) -> str:
    """Turn any folder name into a project name: lower case, other characters become dashes."""
    folded = re.sub(r"[^a-z0-9._-]+", "-", unicodedata.normalize("NFKC", text).casefold()).strip("-.")
    return folded[:PROJECT_BYTES_MAX] or "project"
