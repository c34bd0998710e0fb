"""The codec: what is written can be read, what is hostile is refused before any work, every field is bounded."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import dataclass
from typing import Annotated, Any, NewType

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base import codec
from mesh.base.codec import Count, Malformed, Range, Registry, Size, decode_untrusted, encode, load_untrusted

Name = NewType("Name", bytes)


@dataclass(frozen=True, slots=True)
class Inner:
    number: Annotated[int, Range(-5, 1 << 62)]


@dataclass(frozen=True, slots=True)
class Outer:
    number: Annotated[int, Range(0, 100)]
    raw: Annotated[bytes, Size(0, 8)]
    text: Annotated[str, Size(1, 8)]
    flag: bool
    name: Annotated[Name, Size(2, 2)]
    maybe: Annotated[bytes, Size(1, 4)] | None
    inner: Inner
    many: Annotated[tuple[Inner, ...], Count(3)]
    texts: Annotated[tuple[Annotated[str, Size(0, 4)], ...], Count(3)] = ()


@dataclass(frozen=True, slots=True)
class Grown:
    """``Inner`` as a later version of the protocol has it."""

    number: Annotated[int, Range(-5, 1 << 62)]
    more: Annotated[int, Range(0, 9)] = 7
    even_more: Annotated[bytes, Size(0, 9)] | None = None


inners = st.builds(Inner, st.integers(-5, 1 << 62))
texts = st.text(max_size=4).filter(lambda t: len(t.encode()) <= 4)
outers = st.builds(
    Outer,
    st.integers(0, 100),
    st.binary(max_size=8),
    st.text(min_size=1, max_size=8).filter(lambda t: len(t.encode()) <= 8),
    st.booleans(),
    st.binary(min_size=2, max_size=2).map(Name),
    st.none() | st.binary(min_size=1, max_size=4),
    inners,
    st.lists(inners, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
)
GOOD = Outer(7, b"raw", "text", True, Name(b"ab"), None, Inner(3), (Inner(1), Inner(2)), ("x",))


@given(outers)
def test_what_is_written_is_read_back_and_always_has_the_same_bytes(value: Outer):
    data = encode(value)
    assert decode_untrusted(Outer, data, bytes_max=len(data)) == value
    assert encode(value) == data
    assert load_untrusted(data, bytes_max=len(data)) == cbor2.loads(data)


def as_list(value: Outer = GOOD) -> list[Any]:
    return cbor2.loads(encode(value))


def test_a_longer_array_is_accepted_and_a_shorter_one_where_fields_have_defaults():
    """O-T11: fields that a newer or older version knows do not break the link."""
    assert decode_untrusted(Outer, cbor2.dumps([*as_list(), 1, b"new", ["x"]]), bytes_max=200) == GOOD
    assert decode_untrusted(Outer, cbor2.dumps(as_list()[:8]), bytes_max=200).texts == ()
    assert decode_untrusted(Grown, encode(Inner(4)), bytes_max=20) == Grown(4)
    assert decode_untrusted(Inner, encode(Grown(4, 2, b"z")), bytes_max=20) == Inner(4)
    for length in range(8):
        with pytest.raises(Malformed, match="missing"):
            decode_untrusted(Outer, cbor2.dumps(as_list()[:length]), bytes_max=200)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, -1), (0, 101), (0, True), (0, 1.0), (0, "1"), (0, b"1"), (0, None), (0, [1]), (0, 1 << 63),
        (1, bytes(9)), (1, "raw"), (1, 1), (1, None),
        (2, ""), (2, "a" * 9), (2, "é" * 5), (2, b"text"), (2, 1), (2, None),
        (3, 1), (3, 0), (3, None), (3, "true"),
        (4, b"a"), (4, b"abc"), (4, None),
        (5, b""), (5, bytes(5)), (5, "x"), (5, False), (5, 0),
        (6, None), (6, 3), (6, []), (6, [1 << 63]), (6, [-6]), (6, [True]), (6, b""),
        (7, None), (7, [[1]] * 4), (7, [1]), (7, [None]), (7, [[]]), (7, b"\x80"),
        (8, ["a", 1]), (8, ["a" * 5]), (8, [["a"]]), (8, None), (8, ""),
    ],
)  # fmt: skip
def test_a_field_of_another_type_or_out_of_its_bounds_is_refused(at: int, value: Any):
    """O-T11 (e): each field with another type, and one beyond each end of its range."""
    changed = as_list()
    changed[at] = value
    with pytest.raises(Malformed) as caught:
        decode_untrusted(Outer, cbor2.dumps(changed), bytes_max=300)
    assert "\n" not in caught.value.message
    assert caught.value.message.startswith("Outer.") or type(value) is float


@pytest.mark.parametrize("value", [GOOD.number, "x", b"x", None, True, -1])
def test_what_is_no_array_is_no_struct(value: Any):
    with pytest.raises(Malformed, match="not a structure"):
        decode_untrusted(Outer, cbor2.dumps(value), bytes_max=100)


def test_a_value_beyond_its_own_bounds_is_never_sent():
    for bad in (Inner(-6), Inner(1 << 63), Inner(True), Inner("x")):
        with pytest.raises(Malformed):
            encode(bad)
    with pytest.raises(Malformed, match="not valid Unicode"):
        encode(Outer(1, b"", "\ud800", True, Name(b"ab"), None, Inner(1), ()))
    with pytest.raises(Malformed, match="too many"):
        encode(Outer(1, b"", "x", True, Name(b"ab"), None, Inner(1), (Inner(1),) * 4))


@pytest.mark.parametrize(
    "annotation",
    [int, bytes, str, Annotated[int, Size(0, 1)], Annotated[bytes, Range(0, 1)], Annotated[tuple[int, ...], Size(0, 1)],
     tuple[int, ...], dict[str, int], Annotated[int, Range(0, 1)] | Annotated[bytes, Size(0, 1)], float],
)  # fmt: skip
def test_a_field_without_a_bound_is_a_programming_mistake(annotation: Any):
    with pytest.raises(AssertionError):
        codec._check_of(annotation, "Some.field")


# Hostile bytes --------------------------------------------------------------------------------------------------


def hostile() -> dict[str, bytes]:
    """Every family of bytes that a CBOR reader was ever hurt by, each under a name. Source: O-T5, RFC 8949 appendix F."""
    good = encode(GOOD)
    blobs = {
        "empty": b"",
        "trailing byte": good + b"\x00",
        "trailing item": good + b"\x80",
        "two documents": good + good,
        "nested arrays": b"\x81" * 10_000 + b"\x00",
        "nested arrays without end": b"\x81" * 100_000,
        "nested maps": b"\xa1\x00" * 5_000 + b"\x00",
        "nested tags": b"\xc1" * 10_000 + b"\x00",
        "many empty lists": b"\x99\xff\xff" + b"\x80" * 65_535,
        "huge array": b"\x9b\x7f" + b"\xff" * 7,
        "huge array of the greatest length": b"\x9b" + b"\xff" * 8,
        "huge bytes": b"\x5b\x7f" + b"\xff" * 7,
        "huge text": b"\x7b" + b"\xff" * 8,
        "huge map": b"\xbb" + b"\xff" * 8,
        "array of 4 GiB": b"\x9a\xff\xff\xff\xff",
        "bytes of 2 GiB": b"\x5a\x7f\xff\xff\xff",
        "map with a double key": b"\xa2\x00\x01\x00\x02",
        "empty map": b"\xa0",
        "map in an array": b"\x81\xa1\x00\x00",
        "indefinite array": b"\x9f\x00\xff",
        "indefinite bytes": b"\x5f\x41\x00\xff",
        "indefinite text": b"\x7f\x61a\xff",
        "indefinite map": b"\xbf\xff",
        "lone break": b"\xff",
        "regex object": bytes.fromhex("d82361") + b"(",
        "regex bomb": bytes.fromhex("d8236c") + b"(a+)+(a+)+(a",
        "cyclic list": bytes.fromhex("d81c81d81d00"),
        "shared reference": bytes.fromhex("d81d00"),
        "big number": b"\xc2\x5a\x00\x01\x00\x00" + b"\xff" * 65_536,
        "negative big number": b"\xc3\x41\xff",
        "decimal fraction": bytes.fromhex("c4821b7fffffffffffffff01"),
        "big float": bytes.fromhex("c5821b7fffffffffffffff01"),
        "date": bytes.fromhex("c074") + b"2013-03-21T20:04:00Z",
        "epoch date": bytes.fromhex("c11b7fffffffffffffff"),
        "set": bytes.fromhex("d9010281 00".replace(" ", "")),
        "self-described": bytes.fromhex("d9d9f700"),
        "address object": bytes.fromhex("d9010444c0000201"),
        "mail object": bytes.fromhex("d8246161"),
        "undefined": b"\xf7",
        "simple value 0": b"\xe0",
        "simple value 255": b"\xf8\xff",
        "true in two bytes": b"\xf8\x15",
        "half float": bytes.fromhex("f93c00"),
        "NaN": bytes.fromhex("f97e00"),
        "infinity": bytes.fromhex("f97c00"),
        "single float": bytes.fromhex("fa3f800000"),
        "double float": bytes.fromhex("fb3ff0000000000000"),
        "reserved length 28": b"\x1c",
        "reserved length in a text": b"\x7d",
        "reserved length in an array": b"\x9e",
        "text not UTF-8": b"\x61\xff",
        "text overlong UTF-8": b"\x62\xc0\x80",
        "text surrogate": b"\x63\xed\xa0\x80",
        "text cut in a character": b"\x61\xc3",
    }
    for info in range(0x18, 0x20):
        for major in range(8):
            first = bytes([major << 5 | info])
            blobs[f"head {first.hex()} alone"] = first
    for cut in range(len(good)):
        blobs[f"cut at {cut}"] = good[:cut]
    return blobs


@pytest.mark.parametrize("blob", hostile().values(), ids=hostile().keys())
def test_hostile_bytes_are_refused_before_any_work(blob: bytes):
    """O-T5: the right error, at once, without memory."""
    tracemalloc.start()
    began_s = time.monotonic()
    try:
        with pytest.raises(Malformed):
            decode_untrusted(Outer, blob, bytes_max=1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began_s < 2
    assert peak_bytes < 8 << 20


@pytest.mark.parametrize("head", ["f90014", "f90015", "f97c16", "fa00000014", "fb0000000000000015", "f8f4"])
def test_a_float_whose_last_byte_looks_like_a_truth_value_is_still_a_float(head: str):
    """O-T5: the low byte of a float once passed for false, true or null, so the library built floats from it."""
    with pytest.raises(Malformed, match="outside the subset"):
        load_untrusted(bytes.fromhex(head), bytes_max=100)


def test_eight_levels_are_read_and_nine_are_not():
    assert load_untrusted(b"\x81" * 7 + b"\x80", bytes_max=100) == [[[[[[[[]]]]]]]]
    with pytest.raises(Malformed, match="deep"):
        load_untrusted(b"\x81" * 8 + b"\x80", bytes_max=100)


def test_the_number_of_items_is_bounded():
    def listed(count: int) -> bytes:
        return b"\x99" + count.to_bytes(2, "big") + b"\x00" * count

    assert len(load_untrusted(listed(codec.ITEMS_MAX - 1), bytes_max=100_000)) == codec.ITEMS_MAX - 1
    with pytest.raises(Malformed, match="too many items"):
        load_untrusted(listed(codec.ITEMS_MAX), bytes_max=100_000)


def test_size_comes_before_everything():
    with pytest.raises(Malformed, match="11 bytes where at most 10"):
        load_untrusted(b"\xff" * 11, bytes_max=10)


def test_integers_of_64_bits_are_read_whole():
    for value in (0, 23, 24, 255, 256, (1 << 64) - 1, -1, -(1 << 64)):
        assert load_untrusted(cbor2.dumps(value), bytes_max=20) == value


PLAIN = (int, str, bytes, bool, type(None), list)


def only_plain(value: Any) -> bool:
    return type(value) in PLAIN and (type(value) is not list or all(map(only_plain, value)))


def cbor_like() -> st.SearchStrategy[bytes]:
    """Bytes that look like CBOR: heads with arguments of every width, and a little content."""

    def head(major: int, argument: int, width: int) -> bytes:
        if width == 0:
            return bytes([major << 5 | argument % 24])
        size = 1 << (width - 1)
        return bytes([major << 5 | (23 + width)]) + (argument % (1 << 8 * size)).to_bytes(size, "big")

    heads = st.builds(head, st.integers(0, 7), st.integers(0, 40), st.integers(0, 4))
    return st.lists(heads | st.binary(max_size=3), max_size=12).map(b"".join)


@settings(max_examples=600, deadline=None)
@given(st.binary(max_size=60) | cbor_like())
def test_any_bytes_are_refused_or_read_as_plain_values_as_another_reader_reads_them(data: bytes):
    try:
        value = load_untrusted(data, bytes_max=200)
    except Malformed:
        return
    assert only_plain(value)
    assert cbor2.loads(data) == value


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 400), st.integers(1, 255))
def test_a_changed_byte_gives_another_value_or_a_refusal_never_another_error(at: int, change: int):
    data = bytearray(encode(GOOD))
    data[at % len(data)] ^= change
    try:
        value = decode_untrusted(Outer, bytes(data), bytes_max=200)
    except Malformed:
        return
    assert type(value) is Outer
    assert encode(value) != encode(GOOD) or value == GOOD


def test_a_registry_carries_its_own_messages_and_passes_over_numbers_it_does_not_know():
    registry = Registry({1: Inner, 2: Outer})
    assert registry.decode_untrusted(registry.encode(GOOD), bytes_max=200) == GOOD
    assert registry.decode_untrusted(cbor2.dumps([3, "of", "the future"]), bytes_max=200) is None
    assert registry.decode_untrusted(cbor2.dumps([-1]), bytes_max=200) is None
    for bad in ([], [True], ["1"], [None, 1], [1], [1, "x"], 1, "x"):
        with pytest.raises(Malformed):
            registry.decode_untrusted(cbor2.dumps(bad), bytes_max=200)
    with pytest.raises(KeyError):
        registry.encode(Grown(1))
    with pytest.raises(AssertionError, match="one tag"):
        Registry({1: Inner, 2: Inner})
