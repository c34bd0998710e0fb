"""Send broken, mutated and hostile packets to the multicast group from a fixed seed, then print a line."""

from __future__ import annotations

import json
import random
import socket
import struct
import sys

GROUP = ("224.0.0.251", 5353)
TYPE = b"\x09_hivemesh\x04_tcp\x05local\x00"


def main() -> None:
    address, count = sys.argv[1], int(sys.argv[2])
    chance = random.Random(7)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
        wire.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        for number in range(count):
            wire.sendto(_packet(chance, number), GROUP)
    sys.stdout.write(json.dumps({"sent": count}) + "\n")


def _packet(chance: random.Random, number: int) -> bytes:
    if number % 3 == 0:
        return chance.randbytes(chance.randrange(0, 1400))
    whole = bytearray(_announcement(chance, number))
    if number % 3 == 1:
        for _ in range(chance.randrange(1, 6)):
            whole[chance.randrange(len(whole))] = chance.randrange(256)
    return bytes(whole)


def _announcement(chance: random.Random, number: int) -> bytes:
    """Make a sound announcement of a machine that is not there, or a goodbye, or one of a far address."""
    label = b"fake-%d" % number
    name = bytes([len(label)]) + label + TYPE
    ttl = chance.choice([0, 1, 120, 0xFFFFFFFF])
    address = chance.choice([b"\x0a\x63\x00\x63", b"\x7f\x00\x00\x01", b"\x08\x08\x08\x08", b"\xa9\xfe\xa9\xfe"])
    records = [
        TYPE + struct.pack("!HHIH", 12, 1, ttl, len(name)) + name,
        name + struct.pack("!HHIH", 33, 0x8001, ttl, 6 + len(name)) + struct.pack("!HHH", 0, 0, 9847) + name,
        name + struct.pack("!HHIH", 16, 0x8001, ttl, 4) + b"\x03v=1",
        name + struct.pack("!HHIH", 1, 0x8001, ttl, 4) + address,
    ]
    return struct.pack("!6H", 0, 0x8400, 0, len(records), 0, 0) + b"".join(records)


if __name__ == "__main__":
    main()
