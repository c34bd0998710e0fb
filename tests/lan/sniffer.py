"""Print every multicast DNS packet that reaches or leaves this host's cables as one JSON line, until SIGTERM."""

from __future__ import annotations

import json
import socket
import struct
import sys

MDNS_PORT = 5353
_ETHERNET_BYTES = 14
_ALL_PROTOCOLS = 3


def main() -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)) as wire:
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        while True:
            frame, (interface, *_) = wire.recvfrom(65536)
            found = _payload(frame)
            if interface != "lo" and found is not None:
                source, payload = found
                line = {"source": source, "interface": interface, "mac": frame[6:12].hex(), "payload": payload.hex()}
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


def _payload(frame: bytes) -> tuple[str, bytes] | None:
    """Cut the UDP payload for the multicast DNS port out of an Ethernet frame."""
    (kind,) = struct.unpack_from("!H", frame, 12)
    packet = frame[_ETHERNET_BYTES:]
    if kind == 0x0800 and packet[9] == socket.IPPROTO_UDP:
        header_bytes = (packet[0] & 15) * 4
        source = socket.inet_ntop(socket.AF_INET, packet[12:16])
    elif kind == 0x86DD and packet[6] == socket.IPPROTO_UDP:
        header_bytes = 40
        source = socket.inet_ntop(socket.AF_INET6, packet[8:24])
    else:
        return None
    (port,) = struct.unpack_from("!H", packet, header_bytes + 2)
    return (source, packet[header_bytes + 8 :]) if port == MDNS_PORT else None


if __name__ == "__main__":
    main()
