"""What the local network says about who is there: read with distrust, kept within bounds.

An announcement is a hint and nothing else: whoever can send a packet on the local network can make one. So an
address is kept only where dialling it stays near (private, tailnet, or on a network this machine is on), loopback
only from an announcer that proves it runs on this very host, and the book of sightings has a fixed size.

Source: docs/PROTOCOL.md, section 8; docs/THREATS.md, "Strangers".
"""

from __future__ import annotations

import hashlib
import re
from base64 import b32decode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hmac import compare_digest
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from mesh.base.names import base32, clean_name

SERVICE_TYPE = "_hivemesh._tcp.local."
TEXT_VERSION = "1"
NONCE_BYTES = 5
PROOF_BYTES = 5
INSTANCE_BYTES_MAX = 63
ADDRESSES_MAX = 4
"""Addresses kept of one announcer; further ones are dropped, the nearest are kept."""
ADDRESSES_READ_MAX = 16
"""Addresses looked at of one announcer; further ones are not read."""
TEXT_BYTES_MAX = 400
"""A longer TXT record is not read: the announcer counts as one without a tag."""
SIGHTINGS_MAX = 256
"""Announcers kept; when one more comes, the one not heard for longest is dropped."""
LIFE_S = 90.0
"""A sighting not heard again for this long is dropped: three announcements lost at the longest interval."""
REPEAT_S = 5.0
"""An unchanged announcer is told again at most this often."""

_TAG = re.compile(rb"[a-z2-7]{13}\Z")
_INSTANCE = re.compile(r"[a-z2-7]{16}\Z")
_NEAR = tuple(
    ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
_PREFIX_MIN = {4: 8, 6: 32}

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Sighting:
    """One announcer on the local network, as it was last heard. Nothing of it is proved.

    Attributes:
        instance: The name of the announcement, safe to show; random with every start of a node.
        addresses: 1 to 4 pairs of an IP address (link-local ones with their scope) and a port, nearest first.
        tag: 13 characters that members of one mesh have in common in one hour, or None.
        seen_at: When it was last heard, in seconds of the steady clock (``mesh.base.clock.Now.steady_s``).
    """

    instance: str
    addresses: tuple[tuple[str, int], ...]
    tag: str | None
    seen_at: float


@dataclass(frozen=True, slots=True)
class Heard:
    """What the records of one announcer said, unchecked.

    Attributes:
        name: The full name, with the service type.
        port: The port of its SRV record.
        addresses: Packed addresses, each with the number of the interface it came by, or 0.
        text: The bytes of its TXT record.
    """

    name: str
    port: int
    addresses: tuple[tuple[bytes, int], ...]
    text: bytes


@dataclass(frozen=True, slots=True)
class Here:
    """What this machine knows of itself when it judges an announcement.

    Attributes:
        host_mark: Bytes that every process of this host and network namespace can read and nobody else, or None.
        networks: The networks of this machine's own interfaces.
    """

    host_mark: bytes | None
    networks: tuple[Network, ...]


def make_instance(nonce: bytes, host_mark: bytes | None, port: int) -> str:
    """Make the name of an announcement: random to strangers, a proof of the same host to its neighbours.

    Only who can read the host's mark can make the second half, and it is bound to the port: a stranger who
    repeats the name can point this host at no other port of its own.

    Args:
        nonce: 5 random bytes, new with every start.
        host_mark: As in :class:`Here`; without one the second half proves nothing to anybody.
        port: The port announced.

    Returns:
        16 characters of lower-case base32.
    """
    assert len(nonce) == NONCE_BYTES, "a nonce of five bytes"
    return base32(nonce + _proof(nonce, host_mark or nonce, port))


def is_same_host(instance: str, host_mark: bytes | None, port: int) -> bool:
    """Tell whether an announcement was made on this very host, for this port.

    Args:
        instance: The name of the announcement, as heard.
        host_mark: As in :class:`Here`; None proves nothing.
        port: The port announced, 0 to 65535.

    Returns:
        True only where the announcer could read this host's mark.
    """
    if host_mark is None or not _INSTANCE.match(instance):
        return False
    raw = b32decode(instance.upper())
    return compare_digest(raw[NONCE_BYTES:], _proof(raw[:NONCE_BYTES], host_mark, port))


def is_tag(text: bytes) -> bool:
    """Tell whether this has the form of a mesh's hourly tag: 8 bytes in lower-case base32."""
    return _TAG.match(text) is not None


def parse_heard_untrusted(heard: Heard, here: Here, now_s: float) -> Sighting | None:
    """Read what one announcer said.

    Args:
        heard: Its records, as they came.
        here: What this machine knows of itself.
        now_s: The steady clock, in seconds.

    Returns:
        A sighting, or None where there is nothing worth dialling: a foreign or oversized name, no port, no
        address that may be dialled.
    """
    label = heard.name[: -len(SERVICE_TYPE) - 1]
    if heard.name.lower() != f"{label}.{SERVICE_TYPE}".lower() or not 0 < heard.port < 65536:
        return None
    if not 0 < len(label.encode(errors="replace")) <= INSTANCE_BYTES_MAX:
        return None
    same_host = is_same_host(label, here.host_mark, heard.port)
    hosts = _hosts(heard.addresses[:ADDRESSES_READ_MAX], here.networks, same_host)
    if not hosts:
        return None
    addresses = tuple((host, heard.port) for host in hosts[:ADDRESSES_MAX])
    return Sighting(clean_name(label, fallback="nameless"), addresses, _tag(heard.text), now_s)


class Book:
    """The announcers heard lately, by their full name. Holds at most ``sightings_max``."""

    def __init__(self, sightings_max: int = SIGHTINGS_MAX) -> None:
        self._sightings_max = sightings_max
        self._sightings: dict[str, Sighting] = {}
        self._told_at: dict[str, float] = {}

    def note(self, name: str, sighting: Sighting) -> bool:
        """Keep the newest of one announcer.

        Args:
            name: The full name it was heard under.
            sighting: What was read of it.

        Returns:
            Whether it is worth telling: new, changed, or not told for a while.
        """
        key = name.lower()
        before = self._sightings.pop(key, None)
        self._sightings[key] = sighting
        if len(self._sightings) > self._sightings_max:
            self._drop(next(iter(self._sightings)))
        told_at = self._told_at.get(key)
        unchanged = before is not None and replace(before, seen_at=sighting.seen_at) == sighting
        if unchanged and told_at is not None and sighting.seen_at - told_at < REPEAT_S:
            return False
        self._told_at[key] = sighting.seen_at
        return True

    def forget(self, name: str) -> None:
        """Drop an announcer that said goodbye; an unknown one is none."""
        if name.lower() in self._sightings:
            self._drop(name.lower())

    def current(self, now_s: float) -> list[Sighting]:
        """List who was heard within ``LIFE_S``, newest first; older ones are dropped for good."""
        for key in [key for key, kept in self._sightings.items() if now_s - kept.seen_at > LIFE_S]:
            self._drop(key)
        return list(reversed(self._sightings.values()))

    def heard_within(self, now_s: float, age_s: float) -> frozenset[str]:
        """List the full names, in lower case, of those heard within ``age_s`` seconds."""
        return frozenset(key for key, kept in self._sightings.items() if now_s - kept.seen_at <= age_s)

    def _drop(self, key: str) -> None:
        del self._sightings[key]
        self._told_at.pop(key, None)


def may_dial(address: Address, *, scoped: bool, networks: Iterable[Network], same_host: bool) -> bool:
    """Decide whether an announced address may be dialled at all.

    Args:
        address: The address, without a scope.
        scoped: Whether the interface it was heard on is known.
        networks: The networks of this machine's own interfaces.
        same_host: Whether the announcer proved that it runs on this host.

    Returns:
        True for private and tailnet addresses and those on a network of this machine's own; for loopback, of the
        same host only; for link-local IPv6, with a scope only. Link-local IPv4 never: the metadata servers of
        clouds live there.
    """
    if address.is_loopback:
        return same_host
    if address.is_multicast or address.is_unspecified:
        return False
    if address.is_link_local:
        return address.version == 6 and scoped
    return any(address in network for network in _NEAR) or _is_on(address, networks)


def _is_on(address: Address, networks: Iterable[Network]) -> bool:
    """Tell whether an address lies in one of these networks; ones wide enough to mean "anything" do not count."""
    return any(address in network for network in networks if network.prefixlen >= _PREFIX_MIN[network.version])


def _hosts(
    addresses: Iterable[tuple[bytes, int]], networks: tuple[Network, ...], same_host: bool
) -> list[str]:
    """Read packed addresses and keep those that may be dialled, nearest first, each once."""
    kept: dict[str, tuple[bool, bool, int]] = {}
    for packed, scope in addresses:
        if len(packed) not in (4, 16):
            continue
        address = ip_address(packed)
        scoped = 0 < scope < 1 << 31
        if not may_dial(address, scoped=scoped, networks=networks, same_host=same_host):
            continue
        host = f"{address}%{scope}" if address.is_link_local else str(address)
        kept[host] = (not address.is_loopback, not _is_on(address, networks), address.version)
    return sorted(kept, key=lambda host: kept[host])


def _tag(text: bytes) -> str | None:
    """Read the tag out of a TXT record of our version; None where there is none to read."""
    if len(text) > TEXT_BYTES_MAX:
        return None
    pairs: dict[bytes, bytes] = {}
    while text:
        size = text[0]
        key, _, value = text[1 : 1 + size].partition(b"=")
        pairs.setdefault(key.lower(), value)
        text = text[1 + size :]
    tag = pairs.get(b"t", b"")
    return tag.decode() if pairs.get(b"v") == TEXT_VERSION.encode() and is_tag(tag) else None


def _proof(nonce: bytes, host_mark: bytes, port: int) -> bytes:
    return hashlib.blake2b(nonce + port.to_bytes(2, "big"), digest_size=PROOF_BYTES, key=host_mark).digest()
