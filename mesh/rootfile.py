"""What the root's key says while no node holds it: words on paper, and records in a file that any node can take.

The root makes admins and expels them. Its key is 24 words kept away from every machine; with them a person signs records
into a file on any member, and any member applies the file, whether or not it has a link to anybody.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mnemonic import Mnemonic

from mesh.base.clock import next_version
from mesh.base.codec import Count, Malformed, Size, decode_untrusted, encode
from mesh.base.crypto import KEY_BYTES, SigningKey
from mesh.base.errors import Refused, Usage
from mesh.base.names import MeshId, NodeId, node_id
from mesh.certificates import CertificateBody, Certified, Expulsion, issue, open_untrusted
from mesh.kinds import CERTIFICATE, EXPULSION, Role
from mesh.records import RECORD_BYTES_MAX, Record, make, parse_untrusted

WORDS = 24
KEEP_MAX = 48
"""Certificates an expulsion keeps; those of more machines have to be issued again."""
RECORDS_MAX = 8
FILE_BYTES_MAX = 49_152
FIRST_LINE = "hivemesh root 1"
LINE_CHARS = 76


@dataclass(frozen=True, slots=True)
class RootBody:
    """What a file holds: the mesh, and records the root signed."""

    mesh: Annotated[bytes, Size(16, 16)]
    records: Annotated[tuple[Annotated[bytes, Size(1, RECORD_BYTES_MAX)], ...], Count(RECORDS_MAX)]


def write_words(key: SigningKey) -> str:
    """Write a key as 24 words of the BIP39 list; the last one holds a checksum."""
    return Mnemonic("english").to_mnemonic(key.seed)


def read_words(text: str) -> SigningKey:
    """Read 24 words back.

    Raises:
        Usage: Not 24 words of the list, or one is wrong.
    """
    words = text.lower().split()
    if len(words) != WORDS:
        raise Usage(f"the root's key is {WORDS} words; {min(len(words), 1000)} were given", hint="write all of them, in order, with spaces between")
    try:
        seed = bytes(Mnemonic("english").to_entropy(words))
    except (ValueError, LookupError):
        raise Usage("those are not the words of a key: one is misspelled or in the wrong place", hint="compare each word with what was written down") from None
    assert len(seed) == KEY_BYTES
    return SigningKey(seed)


def write_file(mesh: MeshId, records: Sequence[Record]) -> str:
    """Write records as a text file."""
    text = b64encode(encode(RootBody(mesh, tuple(record.wire for record in records)))).decode()
    lines = [text[at : at + LINE_CHARS] for at in range(0, len(text), LINE_CHARS)]
    return "\n".join([FIRST_LINE, *lines, ""])


def read_file_untrusted(text: str, mesh: MeshId, root: NodeId) -> list[Record]:
    """Read a file; the door judges each record as if it came over a link.

    Args:
        text: Anything.
        mesh: This mesh.
        root: Its root's id.

    Returns:
        Records that claim to be the root's, of this mesh.

    Raises:
        Usage: It is no such file, or is of another mesh.
    """
    first, _, rest = text.partition("\n")
    try:
        if first.strip() != FIRST_LINE or len(text) > FILE_BYTES_MAX:
            raise Malformed("no root file")
        body = decode_untrusted(RootBody, b64decode("".join(rest.split()), validate=True), bytes_max=FILE_BYTES_MAX)
        records = [parse_untrusted(wire) for wire in body.records]
    except (Malformed, ValueError):
        raise Usage("that is no file of the root", hint="make one: hivemesh mesh root sign") from None
    if body.mesh != mesh:
        raise Usage("that file is of another mesh", hint="apply it on a machine of the mesh it was made for")
    if any(record.author != root for record in records):
        raise Usage("that file holds what the root did not sign", hint="make one: hivemesh mesh root sign")
    return records


def expel(root: SigningKey, mesh: MeshId, lineage: bytes, keep: Sequence[bytes], *, wall_ms: int, newest: int) -> Record:
    """Sign that a machine is out for ever; what it wrote of others, its own expulsions included, counts no more.

    Args:
        root: The root's key.
        mesh: The mesh.
        lineage: The machine's.
        keep: Hashes of the certificates it issued that stay; at most KEEP_MAX.
        wall_ms: Wall clock.
        newest: The greatest version of the root that is known.
    """
    if len(keep) > KEEP_MAX:
        raise Refused(f"that machine issued {len(keep)} certificates; an expulsion keeps {KEEP_MAX} at most", reason="limit", hint="let an admin issue the others anew")
    return make(root, mesh, EXPULSION, lineage, next_version(wall_ms, newest), encode(Expulsion(lineage, tuple(keep))))


def promote(root: SigningKey, mesh: MeshId, member: Certified, serial: bytes, *, wall_ms: int, newest: int) -> Record:
    """Sign a member's certificate anew, as an admin and without an end.

    Args:
        root: The root's key.
        mesh: The mesh.
        member: Its present certificate; the owner's signature in it goes along.
        serial: 8 unpredictable bytes.
        wall_ms: Wall clock.
        newest: The greatest version of the root that is known.
    """
    signed, old = open_untrusted(member.wire)
    roles = int(Role(old.roles) | Role.ADMIN | Role.MEMBER)
    from_s = min(old.not_before_s, wall_ms // 1000)
    body = CertificateBody(
        old.public_key, old.owner_key, old.lineage, old.name, old.owner_name, roles, node_id(root.public), serial, from_s, None, None
    )
    wire = issue(root, mesh, body, signed.owner_signature)
    return make(root, mesh, CERTIFICATE, member.node, next_version(wall_ms, newest), wire)

