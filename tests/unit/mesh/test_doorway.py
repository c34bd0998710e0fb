"""Who is let in: only the exact request, only from an address that does not knock too often."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.doorway import (
    ADDRESSES_MAX,
    HEAD_BYTES_MAX,
    KNOCKING_MAX,
    KNOCKING_SAFE_S,
    KNOCKS_MAX,
    KNOCKS_WINDOW_S,
    Admission,
    NotLetIn,
    host_allowed,
    read_request_untrusted,
    upgrade_required,
    write_hello,
)

GOOD = {
    "Host": "192.0.2.1:9847",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "hivemesh.v1",
    "Hivemesh-Hello": write_hello(b"\xff\xfe" * 28).decode(),
}


def head(path: str = "/mesh", first: str | None = None, **changes: str | None) -> bytes:
    headers = GOOD | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [first or f"GET {path} HTTP/1.1"] + [f"{n}: {v}" for n, v in headers.items() if v is not None]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def read(data: bytes, names: tuple[str, ...] = ()):
    return read_request_untrusted(data, names, "hivemesh.v1")


def test_the_right_requests_are_read() -> None:
    assert read(head()).path == "/mesh"
    assert read(head()).hello == b"\xff\xfe" * 28
    assert read(head("/join", Hivemesh_Hello=None)).path == "/join"
    assert read(head(Host="mini.local:9847"), ("mini.local",)).path == "/mesh"
    assert read(head(Connection="keep-alive, upgrade", Upgrade="WebSocket")).path == "/mesh"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head("/"),
        head("/mesh?x=1"),
        head("/mesh/"),
        head("//mesh"),
        head(first="POST /mesh HTTP/1.1"),
        head(first="GET http://x/mesh HTTP/1.1"),
        head(first="GET /mesh HTTP/1.0"),
        head(Origin="https://evil.example"),
        head(Origin="null"),
        head(Cookie="a=b"),
        head(Content_Length="3"),
        head(Transfer_Encoding="chunked"),
        head(Host="evil.example"),
        head(Host=None),
        head(Host="localhost.evil.example:80"),
        head(Upgrade=None),
        head(Connection="close"),
        head(Sec_WebSocket_Version="99"),
        head(Sec_WebSocket_Key="!"),
        head(Sec_WebSocket_Protocol="chat"),
        head(Hivemesh_Hello=None),
        head(Hivemesh_Hello=""),
        head(Hivemesh_Hello="A" * 1000),
        head(Hivemesh_Hello="AAAAA"),
        head(Hivemesh_Hello="=&!"),
        head() + b"x",
        head()[:-4] + b"\r\nHost: 192.0.2.1\r\n\r\n",
        head()[:-4] + b"\r\n folded: x\r\n\r\n",
        head()[:-4] + b"\r\nNul: \0\r\n\r\n",
        head()[:-4] + b"\r\nX: 1" * 40 + b"\r\n\r\n",
        head(X="a" * HEAD_BYTES_MAX),
    ],
)
def test_everything_else_is_not(data: bytes) -> None:
    """SECURITY.md 27: a browser, a scanner, a smuggler."""
    with pytest.raises(NotLetIn):
        read(data)


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 400))
def test_any_change_of_a_good_request_raises_only_not_let_in(noise: bytes, start: int, end: int) -> None:
    good = head()
    try:
        found = read(good[:start] + noise + good[end:])
    except NotLetIn:
        return
    assert found.path in ("/mesh", "/join")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:9847", True),
        ("[::1]", True),
        ("[fd00::1]:9847", True),
        ("LOCALHOST:80", True),
        ("mini.local:9847", True),
        ("", False),
        ("mini.local.evil", False),
        ("evil.example:127", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
        ("0x7f.1", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    assert host_allowed(host, {"mini.local"}) is allowed


def test_the_answer_to_another_version_is_short_and_plain() -> None:
    answer = upgrade_required("the peer speaks 2\r\nEvil: 1" + "ä" * 300)
    front, _, body = answer.partition(b"\r\n\r\n")
    assert front.startswith(b"HTTP/1.1 426 ")
    assert f"Content-Length: {len(body)}".encode() in front
    assert len(body) == 200


def test_places_are_bounded_and_the_oldest_makes_room_after_its_safe_time() -> None:
    admission = Admission()
    entries = [admission.enter("127.0.0.1", 0.0) for _ in range(KNOCKING_MAX)]
    assert all(entry is not None and entry.evicted is None for entry in entries)
    assert admission.enter("127.0.0.1", KNOCKING_SAFE_S / 2) is None
    late = admission.enter("127.0.0.1", KNOCKING_SAFE_S)
    assert late is not None
    assert entries[0] is not None
    assert late.evicted == entries[0].number
    admission.leave(late.number)
    admission.leave(late.number)
    free = admission.enter("127.0.0.1", KNOCKING_SAFE_S)
    assert free is not None
    assert free.evicted is None


def test_one_address_may_not_knock_too_often_and_others_may() -> None:
    admission = Admission()

    def knock(address: str, now_s: float) -> bool:
        entry = admission.enter(address, now_s)
        if entry is not None:
            admission.leave(entry.number)
        return entry is not None

    assert all(knock("192.0.2.1", 1.0) for _ in range(KNOCKS_MAX))
    assert not knock("192.0.2.1", 2.0)
    assert not knock("::ffff:192.0.2.1", 2.0)
    assert knock("192.0.2.2", 2.0)
    assert knock("192.0.2.1", 1.1 + KNOCKS_WINDOW_S)
    for n in range(KNOCKS_MAX):
        assert knock(f"2001:db8::{n:x}", 3.0)
    assert not knock("2001:db8::ffff", 3.0)
    assert knock("2001:db8:0:1::1", 3.0)
    assert all(knock("127.0.0.1", 3.0) and knock("::1", 3.0) for _ in range(3 * KNOCKS_MAX))


def test_the_table_of_addresses_is_bounded() -> None:
    admission = Admission()
    for n in range(ADDRESSES_MAX * 2):
        entry = admission.enter(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 1.0)
        assert entry is not None
        admission.leave(entry.number)
    assert len(admission._recent) == ADDRESSES_MAX
