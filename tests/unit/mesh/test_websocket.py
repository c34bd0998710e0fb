"""Frames behind the upgrade: an independent implementation makes and reads the same bytes; nothing else is taken."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol, Opcode

from mesh.base.errors import PeerFault
from mesh.websocket import BINARY, CLOSE, PING, PONG, TEXT, FrameBuffer, frame_head

SIZES = (0, 1, 125, 126, 127, 65535, 65536, 70_000)
KINDS = {BINARY: Opcode.BINARY, TEXT: Opcode.TEXT, PING: Opcode.PING, PONG: Opcode.PONG, CLOSE: Opcode.CLOSE}


def all_of(buffer: FrameBuffer) -> list[tuple[int, bytes]]:
    found = []
    while (frame := buffer.next_untrusted()) is not None:
        found.append(frame)
    return found


@pytest.mark.parametrize("client", [True, False], ids=["client", "server"])
@pytest.mark.parametrize("size", SIZES)
def test_the_library_reads_what_is_written_here(size: int, client: bool):
    body = os.urandom(size)
    reader = FrameProtocol(client=not client, extensions=[])
    reader.receive_bytes(frame_head(BINARY, size, masked=client) + body)
    parts = list(reader.received_frames())
    assert b"".join(bytes(part.payload) for part in parts) == body
    assert parts[-1].message_finished


@pytest.mark.parametrize("client", [True, False], ids=["client", "server"])
@pytest.mark.parametrize("size", SIZES)
def test_what_the_library_writes_is_read_here(size: int, client: bool):
    """Its client masks with random bytes."""
    body = os.urandom(size)
    buffer = FrameBuffer(masked=client, bytes_max=100_000)
    buffer.add(FrameProtocol(client=client, extensions=[]).send_data(body))
    assert all_of(buffer) == [(BINARY, body)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.binary(max_size=200)), max_size=6), st.lists(st.integers(1, 40), min_size=1), st.booleans())
def test_frames_come_out_whole_however_they_were_cut(frames: list[tuple[int, bytes]], cuts: list[int], masked: bool):
    frames = [(kind, body if kind in (TEXT, BINARY) else body[:125]) for kind, body in frames]
    wire = b"".join(frame_head(kind, len(body), masked=masked) + body for kind, body in frames)
    buffer, found, at, turn = FrameBuffer(masked=masked, bytes_max=200), [], 0, 0
    while at < len(wire):
        step = cuts[turn % len(cuts)]
        buffer.add(wire[at : at + step])
        found += all_of(buffer)
        at, turn = at + step, turn + 1
    assert found == frames


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (b"\x02\x01a", "do not use"),
        (b"\x80\x01a", "do not use"),
        (b"\x83\x01a", "do not use"),
        (b"\xc2\x01a", "do not use"),
        (b"\x82\x81\0\0\0\0a", "masked"),
        (b"\x82\x7e\x00\x7d", "length"),
        (b"\x82\x7f" + (65535).to_bytes(8, "big"), "length"),
        (b"\x82\x7e\x03\xe9", "overlong message"),
        (b"\x82\x7f" + b"\xff" * 8, "overlong message"),
        (b"\x89\x7e\x00\x7e", "control"),
    ],
)
def test_what_links_do_not_use_is_the_peers_fault(wire: bytes, why: str):
    """Before its body came: nothing is gathered for it."""
    buffer = FrameBuffer(masked=False, bytes_max=1000)
    buffer.add(wire)
    with pytest.raises(PeerFault, match=why):
        buffer.next_untrusted()
