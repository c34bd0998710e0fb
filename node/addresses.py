"""Addresses people write: a host and a port."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from mesh.base.errors import Usage

MESH_PORT = 9847
"""Where nodes listen for each other, unless told otherwise."""
API_PORT = 9876
"""Where the HTTP interface of the default home listens."""
TEXT_CHARS_MAX = 300

_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}\Z")
_PORT = re.compile(r"[0-9]{1,5}\Z")


class Endpoint(NamedTuple):
    """A host and a port; an empty host is every interface, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, *, port: int | None = None) -> Endpoint:
    """Read ``HOST:PORT``, ``[IPv6]:PORT`` or ``:PORT``, and refuse the rest.

    Args:
        text: As a person types it.
        port: What holds where none is written; None demands one.

    Returns:
        Host and port; the host may be empty.

    Raises:
        Usage: Anything else.
    """
    found = read_endpoint(text, port=port)
    if found is None:
        raise Usage(f"{text[:80]!r} is not HOST:PORT", hint=f"write an address or a name and a port, such as 192.168.1.5:{MESH_PORT}")
    return found


def read_endpoint(text: str, *, port: int | None = None) -> Endpoint | None:
    """Read an address like :func:`parse_endpoint`, with None for what is not one."""
    text = text.strip()
    if len(text) > TEXT_CHARS_MAX:
        return None
    if port is not None:
        text = _with_port(text, port)
    host, _, digits = text.rpartition(":")
    if not _PORT.match(digits) or int(digits) > 65_535:
        return None
    if host.startswith("[") and host.endswith("]"):
        return Endpoint(host[1:-1], int(digits)) if _is_ipv6(host[1:-1]) else None
    return Endpoint(host, int(digits)) if not host or _HOST.match(host) else None


def _with_port(text: str, port: int) -> str:
    """Complete an address without a port; a bare IPv6 address gets its brackets."""
    if _is_ipv6(text):
        return f"[{text}]:{port}"
    return f"{text}:{port}" if ":" not in text or text.endswith("]") else text


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
