"""The mesh's own messages: numbers that stay, bounds that hold."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.codec import Malformed
from mesh.messages import (
    IDS_MAX,
    LANES,
    MESSAGE_BYTES_MAX,
    MESSAGES,
    RECORDS_MAX,
    Copied,
    Digests,
    Ids,
    Keys,
    Records,
    Want,
    WantKeys,
)
from mesh.records import RECORD_BYTES_MAX

TAGS = {1: Digests, 2: Ids, 3: Want, 4: Records, 30: WantKeys, 31: Keys, 36: Copied}


def test_numbers_stay_what_they_are_and_within_the_meshs_range():
    assert MESSAGES.tags == TAGS
    assert all(0 <= tag < 64 for tag in MESSAGES.tags)


ids = st.binary(min_size=32, max_size=32)
messages = st.one_of(
    st.builds(Digests, st.lists(st.binary(min_size=16, max_size=16), max_size=LANES).map(tuple)),
    st.builds(Ids, st.integers(0, LANES - 1), st.lists(ids, max_size=5).map(tuple), st.booleans()),
    st.builds(Want, st.lists(ids, max_size=5).map(tuple)),
    st.builds(Records, st.lists(st.binary(min_size=1, max_size=50), max_size=5).map(tuple)),
)


@given(messages)
def test_every_message_is_read_back(message: object):
    assert MESSAGES.decode_untrusted(MESSAGES.encode(message), bytes_max=MESSAGE_BYTES_MAX) == message


def test_the_largest_of_each_that_the_mesh_makes_fits_one_message():
    for message in (Digests((bytes(16),) * LANES), Ids(3, (bytes(32),) * IDS_MAX, True), Want((bytes(32),) * IDS_MAX)):
        assert len(MESSAGES.encode(message)) <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    "fields",
    [
        [1, [bytes(16)] * 5], [1, [bytes(15)]], [1, [bytes(17)]], [1, b""], [1, None],
        [2, 4, [], True], [2, -1, [], True], [2, 0, [bytes(31)], True], [2, 0, [], 1], [2, 0, []], [2, 0, [bytes(32)] * (IDS_MAX + 1), True],
        [3, [bytes(33)]], [3, [1]], [3],
        [4, [b""]], [4, [bytes(RECORD_BYTES_MAX + 1)]], [4, ["x"]], [4, [b"x"] * (RECORDS_MAX + 1)],
    ],
    ids=lambda fields: str(fields)[:40],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(fields: list[object]):
    with pytest.raises(Malformed):
        MESSAGES.decode_untrusted(cbor2.dumps(fields), bytes_max=MESSAGE_BYTES_MAX)


def test_a_message_of_a_later_version_is_passed_over():
    assert MESSAGES.decode_untrusted(cbor2.dumps([63, "later"]), bytes_max=100) is None


@settings(max_examples=200)
@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_malformed(data: bytes):
    try:
        message = MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX)
    except Malformed:
        return
    assert message is None or type(message) in TAGS.values()
