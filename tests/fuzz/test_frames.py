"""Whatever a member sends after the handshake, the multiplexer either takes it or names the peer's fault."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.errors import PeerFault
from mesh.frames import (
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    Kind,
    credit_frame,
    data_header,
    end_frame,
    open_frame,
    small_frame,
)
from mesh.mux import BULK_WINDOW_BYTES, Mux
from mesh.websocket import FrameBuffer

FLOWS = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8, 0xFFFFFFFE, 0xFFFFFFFF])


@st.composite
def plausible_frames(draw: st.DrawFn) -> bytes:
    flow = draw(FLOWS)
    body = draw(st.binary(max_size=200))
    return draw(
        st.sampled_from(
            [
                data_header(flow, len(body), more=draw(st.booleans())) + body,
                open_frame(flow, draw(st.integers(0, 0xFFFF)), bulk=draw(st.booleans())),
                end_frame(Kind.CLOSE, draw(st.text(max_size=20)), flow),
                credit_frame(flow, draw(st.integers(0, 0xFFFFFFFF))),
                small_frame(Kind.PING, draw(st.binary(min_size=8, max_size=8))),
                small_frame(Kind.PONG, draw(st.binary(min_size=8, max_size=8))),
                draw(st.binary(max_size=30)),
            ]
        )
    )


@settings(deadline=None, max_examples=300)
@given(st.lists(plausible_frames(), max_size=30), st.booleans())
def test_any_frames_raise_only_peer_fault_and_leave_bounded_state(frames: list[bytes], initiator: bool) -> None:
    mux = Mux(initiator=initiator)
    held = 0
    try:
        for payload in frames:
            for event in mux.receive_untrusted(payload):
                held += getattr(event, "cost", 0)
    except PeerFault:
        pass
    assert held <= 6 * BULK_WINDOW_BYTES
    for _ in range(10):
        payload = mux.next_payload(PAYLOAD_BYTES_MIN)
        assert payload is None or len(payload) <= PAYLOAD_BYTES_MIN


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=2000))
def test_any_bytes_raise_only_peer_fault(payload: bytes) -> None:
    try:
        Mux(initiator=False).receive_untrusted(payload)
    except PeerFault:
        return
    assert 0 < len(payload) <= PAYLOAD_BYTES_MAX


@settings(deadline=None, max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=20), st.booleans())
def test_any_bytes_behind_the_upgrade_are_frames_or_the_peers_fault(pieces: list[bytes], masked: bool) -> None:
    buffer = FrameBuffer(masked=masked, bytes_max=100)
    total = sum(map(len, pieces))
    try:
        for piece in pieces:
            buffer.add(piece)
            while (frame := buffer.next_untrusted()) is not None:
                assert len(frame[1]) <= 100
                total -= len(frame[1])
    except PeerFault:
        pass
    assert total >= 0
