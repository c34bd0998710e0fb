"""Whatever the local network says, reading it gives a bounded sighting or nothing."""

from __future__ import annotations

import string
from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mesh.sightings import (
    ADDRESSES_MAX,
    INSTANCE_BYTES_MAX,
    SERVICE_TYPE,
    SIGHTINGS_MAX,
    Book,
    Heard,
    Here,
    Sighting,
    is_tag,
    make_instance,
    parse_heard_untrusted,
)

_labels = st.one_of(
    st.text(max_size=80),
    st.text(alphabet=string.ascii_lowercase + "234567", min_size=16, max_size=16),
    st.builds(make_instance, st.binary(min_size=5, max_size=5), st.just(b"m" * 32), st.integers(1, 65535)),
)
_names = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=120), _labels.map(lambda label: f"{label}.{SERVICE_TYPE}")
)
_packed = st.one_of(
    st.binary(max_size=20),
    st.ip_addresses().map(lambda address: address.packed),
    st.sampled_from(["127.0.0.1", "::1", "fe80::1", "10.0.0.1", "::ffff:127.0.0.1", "0.0.0.0"]).map(
        lambda text: ip_address(text).packed
    ),
)
_texts = st.one_of(
    st.binary(max_size=500),
    st.lists(st.binary(max_size=30), max_size=6).map(lambda items: b"".join(bytes([len(i)]) + i for i in items)),
    st.binary(min_size=13, max_size=13).map(lambda tag: b"\x03v=1\x0ft=" + tag),
    st.text(alphabet=string.ascii_lowercase + "234567", min_size=13, max_size=13).map(
        lambda tag: b"\x03v=1\x0ft=" + tag.encode()
    ),
)
_heard = st.builds(
    Heard,
    _names,
    st.integers(-(2**31), 2**31),
    st.lists(st.tuples(_packed, st.integers(-(2**40), 2**40)), max_size=30).map(tuple),
    _texts,
)
_here = st.builds(
    Here,
    st.sampled_from([None, b"m" * 32, b"x" * 32]),
    st.lists(st.sampled_from(["192.0.2.0/24", "0.0.0.0/0", "2001:db8::/64", "::/0"]).map(ip_network), max_size=3).map(tuple),
)


@given(_heard, _here)
def test_any_announcement_is_bounded_or_nothing(heard: Heard, here: Here) -> None:
    sighting = parse_heard_untrusted(heard, here, 1.0)
    if sighting is None:
        return
    assert 0 < len(sighting.instance.encode()) <= INSTANCE_BYTES_MAX
    assert sighting.instance.isprintable()
    assert 0 < len(sighting.addresses) == len(set(sighting.addresses)) <= ADDRESSES_MAX
    assert sighting.tag is None or is_tag(sighting.tag.encode())
    for host, port in sighting.addresses:
        plain, _, scope = host.partition("%")
        address = ip_address(plain)
        assert 0 < port < 65536
        assert bool(scope) == address.is_link_local
        assert not address.is_multicast
        assert not address.is_unspecified
        assert not (address.is_loopback and here.host_mark is None)
        assert not (address.version == 4 and address.is_link_local)
        assert getattr(address, "ipv4_mapped", None) is None


_steps = st.lists(
    st.tuples(st.sampled_from(["note", "note", "forget", "list"]), st.integers(0, 400), st.floats(0, 20)), max_size=200
)


@given(_steps, st.integers(1, 5))
def test_a_book_is_bounded_whatever_happens_to_it(steps: list[tuple[str, int, float]], size: int) -> None:
    book, now_s = Book(size), 0.0
    for what, number, passed_s in steps:
        now_s += passed_s
        if what == "note":
            told = book.note(f"n{number % 9}", Sighting(f"n{number % 9}", (("10.0.0.1", number + 1),), None, now_s))
            assert isinstance(told, bool)
        elif what == "forget":
            book.forget(f"n{number % 9}")
        current = book.current(now_s)
        assert len(current) <= size < SIGHTINGS_MAX
        assert current == sorted(current, key=lambda kept: -kept.seen_at)
        assert len(book._told_at) <= len(book._sightings) <= size
