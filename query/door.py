"""The door of the outsiders' server: which bytes of a connection the HTTP server gets to see.

A strict reader in front of it takes in one whole request, checks it against a short list of what this server needs, and
writes it anew from the parts on that list. Whatever else arrives (an upgrade, another protocol, two lengths, a body in
chunks, folded or bare-newline headers, a foreign Host, any Origin, too much of anything) becomes one fixed request for
nothing, so it gets the same bytes as every other refusal and no parser behind the door ever meets it (the server
behind ends its whole process on bytes glued to an upgrade request: docs/decisions/0009-query-door.md).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

HEAD_BYTES_MAX = 16 << 10
TARGET_BYTES_MAX = 2 << 10
BODY_BYTES_MAX = 16 << 10
HEADERS_MAX = 64
"""Any of these exceeded: refused like everything else, and the connection ends."""

REFUSED = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
"""What a refused request becomes."""
CLOSE_HEADER = "hivemesh-close"
"""Tells the routes that the other side asked to close. Passing its own words on would let the server behind write the
refusal's ``connection: close`` in another place than the routes do."""

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.1\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}):[ \t]*([\x20-\x7e\t\x80-\xff]*)\Z")
_TARGET = re.compile(rb"/(?:[A-Za-z0-9._~-]+/)*[A-Za-z0-9._~-]*(?:\?[\x21-\x7e]*)?\Z")
_LENGTH = re.compile(rb"[0-9]{1,5}\Z")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?\Z")

_KEPT = (b"authorization", b"content-type")
_ONCE = frozenset((b"host", b"content-length", b"authorization", b"content-type", b"connection"))
_REFUSED_HEADERS = frozenset(
    (b"origin", b"upgrade", b"http2-settings", b"transfer-encoding", b"content-encoding", b"te", b"trailer")
)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Which Host headers are answered.

    Attributes:
        names: Lower-case names and bracketed or plain addresses.
        any_address: Whether any IP address is fine: when the server listens on every interface. A name that a web page
            has bound to this machine still is not.
        is_loopback: Whether only this machine reaches the server.
    """

    names: frozenset[str]
    any_address: bool = False
    is_loopback: bool = True

    def allow(self, header: str) -> bool:
        """Whether a Host header is answered; any port is."""
        found = _HOST.match(header)
        if not found:
            return False
        name = found["name"].lower().rstrip(".")
        return name in self.names or (self.any_address and _is_address(name))


def hosts_of(bound: str, names: Iterable[str] = ()) -> Hosts:
    """Make the allow-list of a server.

    Args:
        bound: The address it listens on, without a port.
        names: Further names, such as that of a reverse proxy in front.
    """
    address = bound.strip("[]")
    shown = f"[{address}]" if ":" in address else address
    wildcard = _is_address(address) and ipaddress.ip_address(address).is_unspecified
    loopback = address == "localhost" or (_is_address(address) and ipaddress.ip_address(address).is_loopback)
    return Hosts(frozenset((*_LOOPBACK, shown.lower(), *(name.lower() for name in names))), wildcard, loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Admitted:
    """One whole request, written anew.

    Attributes:
        data: What the server behind the door sees.
        used: How many bytes of the input it took.
    """

    data: bytes
    used: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The input is no request this server takes; nothing behind it on this connection is read either."""


def admit_untrusted(data: bytes, hosts: Hosts) -> Admitted | Rejected | None:
    """Look at the bytes that have come so far.

    Args:
        data: From the first byte of a request on; anything.
        hosts: Which hosts are answered.

    Returns:
        The request, once it is whole; a rejection, as soon as it is clear; None while more must come.
    """
    end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    if end < 0:
        return Rejected() if len(data) >= HEAD_BYTES_MAX or not _may_begin(data) else None
    head = _read_head(data[:end], hosts)
    if head is None:
        return Rejected()
    start = end + 4
    if len(data) < start + head.length:
        return None
    return Admitted(head.rewritten + data[start : start + head.length], start + head.length)


def _may_begin(data: bytes) -> bool:
    """Whether an unfinished head can still become one: lines end with CRLF and the first byte is a method's."""
    if not data[:1].isupper() or b"\n" in data.replace(b"\r\n", b""):
        return False
    line = data.partition(b"\r\n")[0]
    return len(line) <= TARGET_BYTES_MAX + 32


@dataclass(frozen=True, slots=True)
class _Head:
    rewritten: bytes
    length: int


def _read_head(head: bytes, hosts: Hosts) -> _Head | None:
    """Check a whole head and write the one for the server behind; None where anything is not as it must be."""
    first, *lines = head.split(b"\r\n")
    request = _REQUEST_LINE.match(first)
    if not request or len(request[2]) > TARGET_BYTES_MAX or not _TARGET.match(request[2]) or len(lines) > HEADERS_MAX:
        return None
    headers = _headers(lines)
    if headers is None or not hosts.allow(headers.get(b"host", b"").decode("latin-1")):
        return None
    connection = headers.get(b"connection", b"keep-alive").lower()
    length = headers.get(b"content-length", b"0")
    if connection not in (b"keep-alive", b"close") or not _LENGTH.match(length) or int(length) > BODY_BYTES_MAX:
        return None
    parts = [first, b"host: localhost"]
    if connection == b"close":
        parts.append(CLOSE_HEADER.encode() + b": 1")
    if int(length) or b"content-length" in headers:
        parts.append(b"content-length: " + str(int(length)).encode())
    parts += [name + b": " + headers[name] for name in _KEPT if name in headers]
    return _Head(b"\r\n".join(parts) + b"\r\n\r\n", int(length))


def _headers(lines: list[bytes]) -> dict[bytes, bytes] | None:
    """Read header lines; None where one is malformed, repeated though it decides something, or refused."""
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = _HEADER.match(line)
        if not found:
            return None
        name, value = found[1].lower(), found[2].strip(b" \t")
        if name in _REFUSED_HEADERS or (name in _ONCE and name in headers):
            return None
        headers[name] = value
    return headers
