"""The node's wire messages: bounds, numbers, and bytes that never change."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import Malformed, decode_untrusted, encode
from node.messages import (
    ARGUMENTS_MAX,
    ARGV_BYTES_MAX,
    STATES,
    TASK_MESSAGES,
    TASK_PURPOSES,
    TASK_TAGS,
    Answer,
    AnswerBody,
    Cancel,
    Follow,
    Hop,
    Offer,
    OfferBody,
    Output,
    OutputGap,
    PackEnd,
    TaskReport,
    TaskSpec,
    WaitingBody,
    WantPack,
)

SPEC = TaskSpec(1, (b"make", b"test"), "shop", b"r" * 16, "ab" * 20, 600)
BODY = OfferBody(b"t" * 16, 1, b"q" * 16, b"w" * 16, SPEC, 1234, 1_700_000_000_000, 1_700_000_600_000)


def test_bytes_on_the_wire_never_change():
    assert encode(BODY).hex() == (
        "8850747474747474747474747474747474740150717171717171717171717171717171715077777777777777777777777777777777"
        "8801824"
        "46d616b654474657374"
        "6473686f705072727272727272727272727272727272"
        "782861626162616261626162616261626162616261626162616261626162616261626162616261626162"
        "19025880401904d21b0000018bcfe568001b0000018bcfee8fc0"
    )
    assert TASK_MESSAGES.encode(Cancel(b"t" * 16, 2)).hex() == "831842" + "50" + "74" * 16 + "02"
    assert TASK_MESSAGES.encode(Output(5, 1, b"hi")).hex() == "84184905014268" + "69"
    assert TASK_MESSAGES.encode(WantPack()).hex() == "811846"


def test_numbers_are_fixed():
    assert {tag: cls.__name__ for tag, cls in TASK_TAGS.items()} == {
        64: "Offer", 65: "Follow", 66: "Cancel", 67: "Answer", 68: "TaskReport", 69: "TaskUnknown", 70: "WantPack",
        71: "PackChunk", 72: "PackEnd", 73: "Output", 74: "OutputGap", 75: "Answered",
    }  # fmt: skip
    assert all(purpose in TASK_TAGS for purpose in TASK_PURPOSES)
    assert STATES.index("done") == 6
    assert len(STATES) == 12


@pytest.mark.parametrize(
    "message",
    [
        Offer(encode(BODY), b"s" * 64),
        Follow(b"t" * 16, 1, 1 << 40),
        Answer(encode(AnswerBody(b"w" * 16, b"r" * 16, b"d" * 32, 2, 5)), b"s" * 64),
        TaskReport(b"t" * 16, 1, 7, 3, "exit", "", 1, 2, 3, (Hop(1, 5), Hop(7, 9))),
        OutputGap(1, 2),
        PackEnd(),
    ],
)
def test_messages_survive_the_wire(message: object):
    assert TASK_MESSAGES.decode_untrusted(TASK_MESSAGES.encode(message), bytes_max=60 * 1024) == message  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"task": b"short"},
        {"attempt": 0},
        {"attempt": 101},
        {"pack_bytes": -1},
        {"pack_bytes": (1 << 30) + 1},
        {"spec": dataclasses.replace(SPEC, timeout_s=0)},
        {"spec": dataclasses.replace(SPEC, argv=(b"x",) * (ARGUMENTS_MAX + 1))},
        {"spec": dataclasses.replace(SPEC, argv=(b"x" * (ARGV_BYTES_MAX + 1),))},
        {"spec": dataclasses.replace(SPEC, env=("A",) * 33)},
        {"spec": dataclasses.replace(SPEC, tree="ab" * 33)},
        {"spec": dataclasses.replace(SPEC, project="p" * 65)},
    ],
)
def test_a_field_out_of_its_bounds_is_refused(change: dict[str, object]):
    with pytest.raises(Malformed):
        encode(dataclasses.replace(BODY, **change))  # type: ignore[arg-type]


def test_the_largest_waiting_body_fits_one_record():
    body = WaitingBody(
        "permission", b"r" * 16, "s" * 64, b"t" * 16, b"q" * 16, "w" * 300, "c" * 1200, False, b"d" * 32, (1 << 47) - 1
    )
    assert len(encode(body)) <= 2_048
    assert decode_untrusted(WaitingBody, encode(body), bytes_max=2_048) == body


@given(st.binary(max_size=400))
def test_garbage_is_malformed_and_nothing_else(data: bytes):
    try:
        TASK_MESSAGES.decode_untrusted(data, bytes_max=300)
    except Malformed:
        return
