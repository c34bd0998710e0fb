"""The audit trail as a hash chain: every row's link covers the row and the link before it, under a secret key.

A changed, moved or removed row in the middle breaks the chain; rows cut off the end do not show without an older link
to compare with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from mesh.base.crypto import digest, same

FIRST_LINK = bytes(32)
"""What stands before the first row."""
QUESTION_BYTES_MAX = 512
"""A question in the trail, escaped; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt or act.

    Attributes:
        number: Counts from 1 without gaps.
        at_ms: When.
        grant: The grant's id, or empty where none was proved.
        project: What was named, or empty.
        operation: ``ask``, ``grant`` or ``revoke``.
        outcome: ``done`` or ``denied``.
        reason: A stable word why, or empty.
        question: Escaped by :func:`escaped`.
        remote: Keyed hash of the address, or empty.
        quiet: Denied attempts before this row that were counted and not written.
    """

    number: int
    at_ms: int
    grant: bytes
    project: str
    operation: str
    outcome: str
    reason: str
    question: str
    remote: bytes
    quiet: int


def escaped(text: str) -> str:
    """Write outside text so that no log, terminal or parser can be fooled by it: JSON in ASCII, cut to the limit.

    Args:
        text: Anything.

    Returns:
        At most QUESTION_BYTES_MAX printable ASCII characters, without the quotes around; never half an escape.
    """
    pieces: list[str] = []
    left = QUESTION_BYTES_MAX
    for character in text[:QUESTION_BYTES_MAX]:
        piece = json.dumps(character)[1:-1].replace("\x7f", "\\u007f")
        left -= len(piece)
        if left < 0:
            break
        pieces.append(piece)
    return "".join(pieces)


def link(key: bytes, before: bytes, row: Row) -> bytes:
    """Compute a row's link.

    Args:
        key: 32 secret bytes.
        before: The link of the row before it, or FIRST_LINK.
        row: The row.

    Returns:
        32 bytes.
    """
    parts = (
        before, str(row.number).encode(), str(row.at_ms).encode(), row.grant, row.project.encode(), row.operation.encode(),
        row.outcome.encode(), row.reason.encode(), row.question.encode(), row.remote, str(row.quiet).encode(),
    )  # fmt: skip
    return digest(*parts, key=key, person=b"hivemesh-audit")


def first_break(key: bytes, before: bytes, rows: Iterable[tuple[Row, bytes]]) -> int | None:
    """Find where a chain is broken.

    Args:
        key: The same as when it was written.
        before: The link before the first row given.
        rows: Rows with their links, oldest first.

    Returns:
        The number of the first row that does not follow, or None.
    """
    number: int | None = None
    for row, stated in rows:
        if (number is not None and row.number != number + 1) or not same(link(key, before, row), stated):
            return row.number
        number, before = row.number, stated
    return None
