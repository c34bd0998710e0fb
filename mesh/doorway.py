"""Who may come in from the network: the request that opens a websocket, and how many may knock at a time.

A node looks like a server that has nothing: whatever is not exactly the request of a member or of an invited machine
gets the same 404, byte for byte. A browser always sends an Origin, so no web page comes in; a foreign Host means that
somebody's name server points at this machine (docs/THREATS.md, "Web pages").
"""

from __future__ import annotations

import binascii
import ipaddress
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from mesh.base.errors import Refused

HEAD_BYTES_MAX = 8 * 1024
HEADERS_MAX = 32
HELLO_BYTES_MAX = 120

KNOCKING_MAX = 64
"""Connections that have not proved anything yet."""
KNOCKING_SAFE_S = 1.0
"""When all places are taken, the one that knocks longest makes room, but not before it had this long."""
KNOCKS_MAX, KNOCKS_WINDOW_S = 30, 10.0
"""Connections of one address (IPv6: of one /64) in that time; the next is closed unanswered. This machine has no limit."""
ADDRESSES_MAX = 1024
"""Addresses remembered for that; the one unseen longest is forgotten."""

NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\nNot found\n"

_REQUEST_LINE = re.compile(rb"GET (/mesh|/join) HTTP/1\.1\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):([\x20-\x7e\t]*)\Z")
_PORT = re.compile(r":[0-9]{1,5}\Z")
_FORBIDDEN = (b"origin", b"content-length", b"transfer-encoding", b"expect", b"trailer", b"cookie")


class NotLetIn(Refused):
    """Not a request of a member or of an invited machine."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may open a websocket; ``hello`` is unchecked, and empty unless the path is ``/mesh``."""

    path: str
    hello: bytes


def write_hello(hello: bytes) -> bytes:
    """Write the first message of the handshake as the value of its header."""
    return urlsafe_b64encode(hello).rstrip(b"=")


def upgrade_required(message: str) -> bytes:
    """Make the answer to a member of another version: only who holds the gate key gets it."""
    body = message.encode("ascii", errors="replace")[:200]
    head = b"HTTP/1.1 426 Upgrade Required\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % len(body) + body


def read_request_untrusted(head: bytes, host_names: Collection[str], subprotocol: str) -> Request:
    """Read the head of a request.

    Args:
        head: Anything; what is wanted ends with an empty line and has nothing behind it.
        host_names: Names, in lower case, this machine is advertised under.
        subprotocol: What the websocket must speak.

    Returns:
        What is asked for.

    Raises:
        NotLetIn: It is anything else.
    """
    if len(head) > HEAD_BYTES_MAX or not head.endswith(b"\r\n\r\n"):
        raise NotLetIn("not a request")
    request_line, *lines = head[:-4].split(b"\r\n")
    asked = _REQUEST_LINE.match(request_line)
    if asked is None or len(lines) > HEADERS_MAX:
        raise NotLetIn("not a request this machine answers")
    headers = _headers_untrusted(lines)
    if any(name in headers for name in _FORBIDDEN):
        raise NotLetIn("a request of a browser, or with a body")
    if not host_allowed(headers.get(b"host", b"").decode("ascii"), host_names):
        raise NotLetIn("a request for another host")
    if not _wants_websocket(headers, subprotocol):
        raise NotLetIn("not a request for this websocket")
    path = asked[1].decode("ascii")
    return Request(path, _hello_untrusted(headers) if path == "/mesh" else b"")


def _headers_untrusted(lines: list[bytes]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for line in lines:
        found = _HEADER.match(line)
        if found is None or found[1].lower() in headers:
            raise NotLetIn("a malformed or repeated header")
        headers[found[1].lower()] = found[2].strip(b" \t")
    return headers


def _wants_websocket(headers: dict[bytes, bytes], subprotocol: str) -> bool:
    tokens = [token.strip().lower() for token in headers.get(b"connection", b"").split(b",")]
    offered = [offer.strip() for offer in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    return (
        b"upgrade" in tokens
        and headers.get(b"upgrade", b"").lower() == b"websocket"
        and headers.get(b"sec-websocket-version") == b"13"
        and re.fullmatch(rb"[A-Za-z0-9+/]{22}==", headers.get(b"sec-websocket-key", b"")) is not None
        and subprotocol.encode() in offered
    )


def _hello_untrusted(headers: dict[bytes, bytes]) -> bytes:
    text = headers.get(b"hivemesh-hello", b"")
    if not 0 < len(text) <= HELLO_BYTES_MAX * 4 // 3 + 2 or not re.fullmatch(rb"[A-Za-z0-9_-]+", text):
        raise NotLetIn("no hello")
    try:
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise NotLetIn("no hello") from None


def host_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine: an address, localhost, or an advertised name.

    Args:
        host: As it came, with or without a port.
        names: In lower case.
    """
    bare = _PORT.sub("", host).lower()
    if bare == "localhost" or (bare and bare in names):
        return True
    literal = bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare
    try:
        ipaddress.ip_address(literal)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Entry:
    """A place among those who knock; ``evicted`` has to leave for it."""

    number: int
    evicted: int | None


class Admission:
    """How many may knock: KNOCKING_MAX at a time, KNOCKS_MAX of one address in KNOCKS_WINDOW_S."""

    def __init__(self) -> None:
        self._knocking: dict[int, float] = {}
        self._recent: dict[str, deque[float]] = {}
        self._last_number = 0

    def enter(self, address: str, now_s: float) -> Entry | None:
        """Ask for a place.

        Args:
            address: Where the connection comes from, an IP address as text.
            now_s: Seconds that never run backwards.

        Returns:
            The place, or None where the connection must be closed.
        """
        if not self._in_rate(address, now_s):
            return None
        evicted = None
        if len(self._knocking) >= KNOCKING_MAX:
            evicted, since = next(iter(self._knocking.items()))
            if now_s - since < KNOCKING_SAFE_S:
                return None
            del self._knocking[evicted]
        self._last_number += 1
        self._knocking[self._last_number] = now_s
        return Entry(self._last_number, evicted)

    def leave(self, number: int) -> None:
        """Give a place back; a second time does nothing."""
        self._knocking.pop(number, None)

    def _in_rate(self, address: str, now_s: float) -> bool:
        key = _network_of(address)
        if key is None:
            return True
        times = self._recent.pop(key, None) or deque(maxlen=KNOCKS_MAX)
        while times and times[0] <= now_s - KNOCKS_WINDOW_S:
            times.popleft()
        allowed = len(times) < KNOCKS_MAX
        if allowed:
            times.append(now_s)
        if len(self._recent) >= ADDRESSES_MAX:
            del self._recent[next(iter(self._recent))]
        self._recent[key] = times
        return allowed


def _network_of(address: str) -> str | None:
    """Name what the rate counts for: an IPv4 address or an IPv6 /64; None for this machine itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return _network_of(str(parsed.ipv4_mapped))
        if not parsed.is_loopback:
            return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
    return None if parsed.is_loopback else address
