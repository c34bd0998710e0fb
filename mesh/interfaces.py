"""What this machine is on the network: its addresses, which of them are worth announcing, where multicast goes.

Ranking is pure; :func:`read_addresses` and :func:`read_host_mark` are the two doors to the system.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network

import ifaddr

ANNOUNCED_MAX = 4
"""Addresses announced; the best ranked are kept."""
MULTICAST_MAX = 16
"""Interfaces that multicast uses; the best ranked are kept. Linux lets one socket join 20 groups."""

_BRIDGE = re.compile(
    r"(docker|br-|veth|virbr|vnet|lxcbr|lxdbr|podman|cni|flannel|cali|kube|vmnet|vboxnet|bridge1\d\d)"
)
_ENDPOINT = re.compile(r"(?:\[(?P<literal>[^]]+)\]|(?P<host>[^:]+|[0-9A-Fa-f:.]+))(?::(?P<port>[0-9]{1,5}))?\Z")
_PRIVATE = tuple(ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"))
_TAILNET = ip_network("100.64.0.0/10")
_LOCAL_V6 = ip_network("fc00::/7")
_GET_FLAGS = {"linux": 0x8913, "darwin": 0xC0206911}
_FLAG_UP, _FLAG_RUNNING = 0x1, 0x40
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NETWORK_NAMESPACE = "/proc/self/ns/net"


@dataclass(frozen=True, slots=True)
class LocalAddress:
    """One address of this machine.

    Attributes:
        interface: The interface's name.
        index: The interface's number, or 0 where the system gives none.
        host: The address without a scope.
        prefix_bits: Length of its network's prefix.
        running: Whether the interface is up and has a carrier.
    """

    interface: str
    index: int
    host: str
    prefix_bits: int
    running: bool


def read_addresses() -> list[LocalAddress]:
    """Ask the system for the addresses of all interfaces, in its own order.

    Raises:
        OSError: The system refused, for example because no file can be opened any more.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for adapter in ifaddr.get_adapters():
            running = _is_running(control, adapter.name)
            for ip in adapter.ips:
                host = ip.ip[0] if isinstance(ip.ip, tuple) else ip.ip
                plain = host.partition("%")[0]
                found.append(LocalAddress(adapter.name, adapter.index or 0, plain, ip.network_prefix, running))
    return found


def read_host_mark() -> bytes | None:
    """Read 32 bytes that every process of this host and network namespace can read and nobody outside.

    Another network namespace of the same host has another mark, because its loopback is another one.

    Returns:
        The mark, or None where the system has no such thing (then nothing counts as the same host).
    """
    try:
        with open(_BOOT_ID, "rb") as file:
            boot = file.read(64)
        namespace = os.stat(_NETWORK_NAMESPACE)
    except OSError:
        return None
    return hashlib.blake2b(boot + b"%d:%d" % (namespace.st_dev, namespace.st_ino), digest_size=32).digest()


def choose_announced(addresses: Iterable[LocalAddress]) -> tuple[str, ...]:
    """Choose the addresses worth announcing.

    Private, tailnet and global ones, IPv4 first, one of each interface before the second of any. Those of
    container bridges only where there is nothing else, loopback only where there is not even that; link-local
    ones never, since they mean something else on every interface.

    Args:
        addresses: As :func:`read_addresses` gives them.

    Returns:
        At most ``ANNOUNCED_MAX`` addresses, best first.
    """
    ranked: list[tuple[tuple[int, ...], str]] = []
    seen: dict[tuple[str, int], int] = {}
    for place, local in enumerate(addresses):
        address = ip_address(local.host)
        kind = _kind(address)
        if not local.running or kind is None:
            continue
        nth = seen.get((local.interface, address.version), 0)
        seen[local.interface, address.version] = nth + 1
        level = 2 if address.is_loopback else 1 if is_bridge(local.interface) else 0
        ranked.append(((level, min(nth, 1), kind, place), local.host))
    ranked.sort()
    best = ranked[0][0][0] if ranked else 0
    chosen = dict.fromkeys(host for rank, host in ranked if rank[0] == best)
    return tuple(chosen)[:ANNOUNCED_MAX]


def choose_multicast(addresses: Iterable[LocalAddress]) -> tuple[str | int, ...]:
    """Choose where multicast is sent and heard.

    Args:
        addresses: As :func:`read_addresses` gives them.

    Returns:
        At most ``MULTICAST_MAX`` entries, loopback first, container bridges last: an IPv4 address for each
        interface that has one, and the number of each interface with IPv6.
    """
    chosen: dict[tuple[str, int], tuple[int, int, str | int]] = {}
    for place, local in enumerate(addresses):
        address = ip_address(local.host)
        if not local.running or (address.version == 6 and (address.is_loopback or not local.index)):
            continue
        level = 0 if address.is_loopback else 2 if is_bridge(local.interface) else 1
        entry: str | int = local.host if address.version == 4 else local.index
        chosen.setdefault((local.interface, address.version), (level, place, entry))
    ranked = sorted(chosen.values(), key=lambda choice: choice[:2])
    return tuple(entry for _, _, entry in ranked[:MULTICAST_MAX])


def choose_networks(addresses: Iterable[LocalAddress]) -> tuple[IPv4Network | IPv6Network, ...]:
    """List the networks this machine is on: those of running interfaces, without loopback and link-local ones."""
    networks = []
    for local in addresses:
        address = ip_address(local.host)
        if local.running and not address.is_loopback and not address.is_link_local:
            networks.append(ip_interface(f"{local.host}/{local.prefix_bits}").network)
    return tuple(dict.fromkeys(networks))


def choose_endpoint(
    port: int, advertise: Sequence[str] | None, addresses: Iterable[LocalAddress]
) -> tuple[int, tuple[str, ...]]:
    """Decide which port and addresses an announcement carries.

    An announcement on the local network has one port and no host names: of ``advertise``, entries that are not IP
    addresses and those with another port than the first are left to invites and the mesh's own records.

    Args:
        port: The port the node listens on.
        advertise: ``HOST:PORT``, ``[HOST]:PORT`` or ``HOST`` as configured; it replaces the machine's own
            addresses. None means those.
        addresses: As :func:`read_addresses` gives them.

    Returns:
        The port and at most ``ANNOUNCED_MAX`` addresses; no address means that nothing is announced.
    """
    if advertise is None:
        return port, choose_announced(addresses)
    endpoints = [found for text in advertise if (found := _literal_endpoint(text, port)) is not None]
    if not endpoints:
        return port, ()
    first_port = endpoints[0][1]
    return first_port, tuple(dict.fromkeys(host for host, at in endpoints if at == first_port))[:ANNOUNCED_MAX]


def is_bridge(interface: str) -> bool:
    """Tell whether an interface belongs to containers or virtual machines, by its name."""
    return _BRIDGE.match(interface) is not None


def _kind(address: IPv4Address | IPv6Address) -> int | None:
    """Rank an address by how likely a peer on the same network reaches it; None: it is not announced."""
    if address.is_multicast or address.is_unspecified or address.is_link_local:
        return None
    if address.version == 4:
        if any(address in network for network in _PRIVATE):
            return 0
        return 1 if address in _TAILNET else 2
    return 3 if address in _LOCAL_V6 else 4


def _literal_endpoint(text: str, port: int) -> tuple[str, int] | None:
    """Read ``HOST:PORT`` with an IP address in it; None where it is not one."""
    found = _ENDPOINT.match(text)
    if not found:
        return None
    if found["port"]:
        port = int(found["port"])
    bare = found["literal"] or found["host"]
    try:
        address = ip_address(bare)
    except ValueError:
        return None
    return (str(address), port) if _kind(address) is not None and 0 < port < 65536 else None


def _is_running(control: socket.socket, interface: str) -> bool:
    """Ask whether an interface is up and has a carrier; True where the system cannot say."""
    request = _GET_FLAGS.get(sys.platform)
    if request is None:
        return True
    try:
        answer = fcntl.ioctl(control, request, struct.pack("16sH14x", interface.encode()[:15], 0))
    except OSError:
        return True
    flags: int = struct.unpack_from("16xH", answer)[0]
    return bool(flags & _FLAG_UP and flags & _FLAG_RUNNING)
