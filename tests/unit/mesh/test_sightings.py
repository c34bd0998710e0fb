"""What the local network says: which announcements and addresses are kept, and how many."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.sightings import (
    ADDRESSES_MAX,
    LIFE_S,
    NONCE_BYTES,
    REPEAT_S,
    SERVICE_TYPE,
    SIGHTINGS_MAX,
    TEXT_BYTES_MAX,
    Book,
    Heard,
    Here,
    Sighting,
    is_same_host,
    is_tag,
    make_instance,
    may_dial,
    parse_heard_untrusted,
)

MARK = b"m" * 32
HERE = Here(MARK, (ip_network("192.0.2.0/24"), ip_network("2001:db8:1::/64")))
TAG = "abcdefghijkl2"


def _packed(*hosts: str, scope: int = 0) -> tuple[tuple[bytes, int], ...]:
    return tuple((ip_address(host).packed, scope) for host in hosts)


def _text(*pairs: str) -> bytes:
    return b"".join(bytes([len(pair.encode())]) + pair.encode() for pair in pairs)


def _heard(*hosts: str, label: str = "b", port: int = 9847, text: bytes = b"", scope: int = 0) -> Heard:
    return Heard(f"{label}.{SERVICE_TYPE}", port, _packed(*hosts, scope=scope), text)


def _hosts(heard: Heard) -> list[str]:
    sighting = parse_heard_untrusted(heard, HERE, 1.0)
    return [host for host, _ in sighting.addresses] if sighting else []


def _sighting(name: str, at: float, port: int = 1) -> Sighting:
    return Sighting(name, (("10.0.0.1", port),), None, at)


def test_a_plain_announcement_is_read_whole() -> None:
    heard = _heard("10.0.0.5", text=_text("v=1", f"t={TAG}"))
    assert parse_heard_untrusted(heard, HERE, 7.5) == Sighting("b", (("10.0.0.5", 9847),), TAG, 7.5)


@pytest.mark.parametrize(
    "heard",
    [
        Heard(f"{SERVICE_TYPE}", 1, _packed("10.0.0.5"), b""),
        Heard("", 1, _packed("10.0.0.5"), b""),
        Heard("b._http._tcp.local.", 1, _packed("10.0.0.5"), b""),
        Heard(f"b{SERVICE_TYPE}", 1, _packed("10.0.0.5"), b""),
        _heard("10.0.0.5", port=0),
        _heard("10.0.0.5", port=65536),
        _heard("10.0.0.5", port=-1),
        _heard("10.0.0.5", label="가" * 22),
        _heard(),
        Heard(f"b.{SERVICE_TYPE}", 1, ((b"", 0), (b"\x0a\x00\x00", 0)), b""),
    ],
)
def test_what_is_not_an_announcement_of_ours_is_nothing(heard: Heard) -> None:
    """O-D4: also names longer than a label may be."""
    assert parse_heard_untrusted(heard, HERE, 1.0) is None


@pytest.mark.parametrize("name", ["가" * 21, "a" * 63, "box.with.dots", "B", "esc\x1b"])
def test_odd_names_are_read_and_made_safe_to_show(name: str) -> None:
    """O-D4: any name a label can hold."""
    sighting = parse_heard_untrusted(_heard("10.0.0.5", label=name), HERE, 1.0)
    assert sighting is not None
    assert sighting.instance == name.removesuffix("\x1b")


def test_a_name_of_control_characters_still_has_one() -> None:
    sighting = parse_heard_untrusted(_heard("10.0.0.5", label="\x1b\x07"), HERE, 1.0)
    assert sighting is not None
    assert sighting.instance == "nameless"


@pytest.mark.parametrize(
    ("host", "kept"),
    [
        ("10.1.2.3", True),
        ("172.31.255.1", True),
        ("192.168.0.1", True),
        ("100.101.102.103", True),
        ("fd7a:115c:a1e0::1", True),
        ("192.0.2.77", True),
        ("2001:db8:1::5", True),
        ("8.8.8.8", False),
        ("2001:db8:2::5", False),
        ("172.32.0.1", False),
        ("0.0.0.0", False),
        ("0.1.2.3", False),
        ("::", False),
        ("224.0.0.251", False),
        ("ff02::fb", False),
        ("255.255.255.255", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("169.254.169.254", False),
        ("fe80::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_only_near_addresses_are_dialled(host: str, kept: bool) -> None:
    """SECURITY.md 31: no loopback, link-local, multicast, unspecified or far address from the wire."""
    assert _hosts(_heard(host)) == ([host] if kept else [])


def test_a_network_of_everything_makes_nothing_near() -> None:
    networks = (ip_network("0.0.0.0/0"), ip_network("::/0"), ip_network("2000::/3"))
    for host in ("8.8.8.8", "2001:db8::1"):
        assert not may_dial(ip_address(host), scoped=False, networks=networks, same_host=False)


def test_link_local_ipv6_is_kept_with_its_scope_only() -> None:
    """O-D3: bare and %0 are skipped, and the rest of the announcement stays."""
    assert _hosts(_heard("fe80::1", scope=3)) == ["fe80::1%3"]
    assert _hosts(_heard("fe80::1", "10.0.0.5")) == ["10.0.0.5"]
    assert _hosts(_heard("fe80::1", scope=1 << 31)) == []
    assert _hosts(_heard("fe80::1", scope=-1)) == []


def test_four_addresses_are_kept_nearest_first() -> None:
    """O-D2: an address on a network of our own comes before a bridge somewhere."""
    many = _heard("172.17.0.1", "fd00::1", "10.0.0.5", "10.0.0.5", "192.0.2.9", "10.0.0.6", "2001:db8:1::5")
    assert _hosts(many) == ["192.0.2.9", "2001:db8:1::5", "172.17.0.1", "10.0.0.5"]
    assert len(_hosts(many)) == ADDRESSES_MAX


def test_addresses_beyond_those_read_are_not_even_looked_at() -> None:
    assert _hosts(_heard(*["8.8.8.8"] * 16, "10.0.0.5")) == []


def test_loopback_is_kept_from_the_same_host_only() -> None:
    """SECURITY.md 31: proved by a mark that only this host can read, and for the announced port only."""
    ours = make_instance(b"12345", MARK, 9847)
    assert _hosts(_heard("127.0.0.1", "10.0.0.5", label=ours)) == ["127.0.0.1", "10.0.0.5"]
    assert _hosts(_heard("127.0.0.1", label=ours, port=6379)) == []
    assert _hosts(_heard("127.0.0.1", label=make_instance(b"12345", b"x" * 32, 9847))) == []
    assert _hosts(_heard("127.0.0.1", label=make_instance(b"12345", None, 9847))) == []
    assert not is_same_host(ours, None, 9847)


@given(st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES), st.integers(1, 65535), st.integers(1, 65535))
def test_the_proof_holds_for_one_port_and_one_host(nonce: bytes, port: int, other: int) -> None:
    instance = make_instance(nonce, MARK, port)
    assert len(instance) == 16
    assert is_same_host(instance, MARK, port)
    assert is_same_host(instance, MARK, other) == (port == other)
    assert not is_same_host(instance, MARK[::-1] + b"x", port)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        (_text("v=1", f"t={TAG}"), TAG),
        (_text(f"t={TAG}", "V=1", "x"), TAG),
        (_text("v=1", f"t={TAG}", "t=bbbbbbbbbbbbb"), TAG),
        (_text("v=2", f"t={TAG}"), None),
        (_text(f"t={TAG}"), None),
        (_text("v=1"), None),
        (_text("v=1", f"t={TAG}x"), None),
        (_text("v=1", "t=ABCDEFGHIJKL2"), None),
        (_text("v=1", "t=" + "가" * 5), None),
        (_text("v=1", f"t={TAG}") + b"\x00" * TEXT_BYTES_MAX, None),
        (b"\xff" + _text("v=1", f"t={TAG}"), None),
        (b"\x00\x00" + _text("v=1", f"t={TAG}"), TAG),
        (b"", None),
    ],
)
def test_the_tag_is_read_out_of_our_own_form_of_text_only(text: bytes, tag: str | None) -> None:
    sighting = parse_heard_untrusted(_heard("10.0.0.5", text=text), HERE, 1.0)
    assert sighting is not None
    assert sighting.tag == tag


def test_the_form_of_a_tag() -> None:
    assert is_tag(TAG.encode())
    assert not is_tag(TAG.encode() + b"\n")


def test_a_book_tells_what_is_new_changed_or_not_told_for_a_while() -> None:
    book = Book()
    assert book.note("B.x", _sighting("B", 0.0))
    assert not book.note("b.X", _sighting("B", REPEAT_S - 0.1))
    assert book.note("b.x", _sighting("B", 1.0, port=2)), "a changed port"
    assert not book.note("b.x", _sighting("B", 1.1, port=2))
    assert book.note("b.x", _sighting("B", 1.0 + REPEAT_S, port=2))
    assert book.current(1.0 + REPEAT_S) == [_sighting("B", 1.0 + REPEAT_S, port=2)]


def test_a_book_forgets_by_goodbye_and_by_age() -> None:
    """O-D8: twenty names of one machine are one entry while each earlier one says goodbye."""
    book = Book()
    for number in range(20):
        book.note(f"b-{number}", _sighting(f"b-{number}", float(number)))
        book.forget(f"B-{number - 1}")
    assert [kept.instance for kept in book.current(20.0)] == ["b-19"]
    book.forget("unknown")
    assert book.current(19.0 + LIFE_S) != []
    assert book.current(19.1 + LIFE_S) == []
    assert book.note("b-19", _sighting("b-19", 19.2 + LIFE_S)), "after it was dropped it is new again"


def test_a_full_book_drops_the_one_not_heard_for_longest() -> None:
    book = Book()
    for number in range(SIGHTINGS_MAX):
        book.note(str(number), _sighting(str(number), float(number) / 100))
    book.note("0", _sighting("0", 5.0))
    book.note("one too many", _sighting("one too many", 5.1))
    names = [kept.instance for kept in book.current(6.0)]
    assert len(names) == SIGHTINGS_MAX
    assert names[:2] == ["one too many", "0"]
    assert "1" not in names


def test_those_heard_lately_are_listed_for_the_next_question() -> None:
    book = Book()
    book.note("Old", _sighting("Old", 0.0))
    book.note("New", _sighting("New", 50.0))
    assert book.heard_within(60.0, 45.0) == {"new"}
