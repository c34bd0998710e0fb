"""The bytes of a link's frames are as the docstring of mesh.frames says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import PeerFault
from mesh.frames import (
    PAYLOAD_BYTES_MAX,
    REASON_BYTES_MAX,
    Kind,
    credit_frame,
    data_header,
    end_frame,
    open_frame,
    read_u16,
    read_u32,
    reason_untrusted,
    small_frame,
    split_untrusted,
)

GOLDEN = [
    (data_header(5, 3, more=True) + b"abc", "0101000300000005616263"),
    (data_header(1, 0, more=False), "0100000000000001"),
    (open_frame(3, 70, bulk=True), "02010002000000030046"),
    (end_frame(Kind.CLOSE, "", 4), "0300000000000004"),
    (credit_frame(2, 131072), "040000040000000200020000"),
    (small_frame(Kind.PING, b"12345678"), "05000008000000003132333435363738"),
    (small_frame(Kind.PONG, b"12345678"), "06000008000000003132333435363738"),
    (end_frame(Kind.BYE, "so"), "0700000200000000736f"),
]


@pytest.mark.parametrize(("frame", "expected"), GOLDEN)
def test_golden_bytes(frame: bytes, expected: str) -> None:
    assert frame.hex() == expected


def test_payload_splits_into_its_frames() -> None:
    payload = b"".join(frame for frame, _ in GOLDEN)
    found = list(split_untrusted(payload))
    assert [kind for kind, *_ in found] == [
        Kind.DATA, Kind.DATA, Kind.OPEN, Kind.CLOSE, Kind.CREDIT, Kind.PING, Kind.PONG, Kind.BYE,
    ]  # fmt: skip
    assert found[0] == (Kind.DATA, True, 5, b"abc")
    assert read_u16(found[2][3]) == 70
    assert read_u32(found[4][3]) == 131072


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\0\0",
        bytes(PAYLOAD_BYTES_MAX + 1),
        bytes.fromhex("0000000000000001"),
        bytes.fromhex("0800000000000000"),
        bytes.fromhex("0102000000000005"),
        bytes.fromhex("0301000000000005"),
        bytes.fromhex("0100000500000005") + b"abcd",
        bytes.fromhex("0500000800000001") + bytes(8),
        bytes.fromhex("0500000700000000") + bytes(7),
        bytes.fromhex("0200000300000003") + bytes(3),
        bytes.fromhex("0400000300000003") + bytes(3),
    ],
)
def test_malformed_payloads_are_the_peers_fault(payload: bytes) -> None:
    """O-T5 at this level: lengths, flags and kinds that the layout does not have."""
    with pytest.raises(PeerFault):
        list(split_untrusted(payload))


@given(st.text(max_size=300))
def test_reasons_are_cut_at_a_character_and_made_printable(reason: str) -> None:
    ((kind, _, flow, body),) = split_untrusted(end_frame(Kind.CLOSE, reason, 9))
    assert (kind, flow) == (Kind.CLOSE, 9)
    assert len(body) <= REASON_BYTES_MAX
    read = reason_untrusted(body)
    assert read.isprintable()
    if reason.isprintable() and len(reason.encode()) <= REASON_BYTES_MAX:
        assert read == reason


def test_overlong_reason_is_refused() -> None:
    with pytest.raises(PeerFault):
        reason_untrusted(b"x" * (REASON_BYTES_MAX + 1))
