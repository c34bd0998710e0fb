"""Turns: lower ranks first, one byte in eight for the ones behind, a circle within a rank."""

from __future__ import annotations

from mesh.flows import BULK_RANK, CHANNEL_RANK, Flow, Turns
from mesh.frames import FRAME_COST_BYTES, HEADER_BYTES, Kind, split_untrusted


def flow_with(number: int, rank: int, messages: int, size: int) -> Flow:
    flow = Flow(number, rank, 1 << 30, credit=1 << 30, granted=1 << 30)
    flow.queue.extend([bytes(size)] * messages)
    flow.queued_bytes = messages * size
    return flow


def drain(turns: Turns, bytes_each: int, payloads: int) -> list[tuple[int, int]]:
    sent = []
    for _ in range(payloads):
        parts: list[bytes] = []
        room = bytes_each
        while turn := turns.pack(parts, room):
            room -= turn[1]
        if parts:
            sent += [(flow, len(body)) for _, _, flow, body in split_untrusted(b"".join(parts))]
    return sent


def test_higher_rank_goes_first_and_the_lower_gets_an_eighth() -> None:
    turns = Turns()
    for flow in (flow_with(2, BULK_RANK, 400, 16000), flow_with(1, 1, 4000, 200)):
        turns.touch(flow)
    sent = drain(turns, 16 * 1024, 20)
    assert sent[0][0] == 1
    gossip = sum(size for flow, size in sent if flow == 1)
    bulk = sum(size for flow, size in sent if flow == 2)
    assert 0.10 < bulk / (bulk + gossip) < 0.15


def test_every_rank_gets_something_under_saturation() -> None:
    turns = Turns()
    for rank in range(4):
        turns.touch(flow_with(rank, rank, 4000, 2000))
    totals = dict.fromkeys(range(4), 0)
    for flow, size in drain(turns, 64 * 1024, 60):
        totals[flow] += size
    assert totals[0] > totals[1] > totals[2] > totals[3] > 0


def test_flows_of_one_rank_take_turns() -> None:
    turns = Turns()
    for number in (2, 4, 6):
        turns.touch(flow_with(number, CHANNEL_RANK, 100, 8000))
    totals = dict.fromkeys((2, 4, 6), 0)
    for flow, size in drain(turns, 64 * 1024, 12):
        totals[flow] += size
    assert max(totals.values()) < 1.2 * min(totals.values())


def test_alone_a_flow_fills_the_payload_with_whole_messages() -> None:
    turns = Turns()
    turns.touch(flow_with(2, BULK_RANK, 3, 60_000))
    assert drain(turns, 256 * 1024, 1) == [(2, 60_000)] * 3


def test_a_flow_without_credit_waits_and_its_close_with_it() -> None:
    turns = Turns()
    flow = flow_with(2, CHANNEL_RANK, 2, 3000)
    flow.credit = FRAME_COST_BYTES + 3000
    flow.closing = ""
    turns.touch(flow)
    assert drain(turns, 8192, 2) == [(2, 3000)]
    flow.credit += 2 * FRAME_COST_BYTES + 3000
    turns.touch(flow)
    parts: list[bytes] = []
    assert turns.pack(parts, 8192)
    assert [kind for kind, *_ in split_untrusted(b"".join(parts))] == [Kind.DATA, Kind.CLOSE]
    assert flow.close_sent
    assert turns.pack(parts, 8192) is None


def test_room_too_small_for_a_piece_is_left_empty() -> None:
    turns = Turns()
    turns.touch(flow_with(2, CHANNEL_RANK, 1, 3000))
    assert turns.pack([], HEADER_BYTES + 100) is None
