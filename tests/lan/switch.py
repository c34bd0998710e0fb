"""A switch in user space that delays, loses and throttles, since not every kernel can: ``python switch.py JSON``.

The argument is an object: ``hosts`` (namespace and address of each), ``delay_s`` and ``jitter_s`` one way, ``loss`` (a
probability), ``bits_per_s`` (0: no limit) for what each host sends, ``queue_bytes`` that wait for the line before more is
dropped, and ``seed``. Frames to one host keep their order, as on a cable. It prints ``ready`` when every host is plugged
in by a TAP device named ``eth0``, and runs until it is ended.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_TUNSETIFF, _TAP, _NO_PACKET_HEAD = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
FRAME_BYTES_MAX = 65_536
FRAMES_A_TURN = 64


def plug(namespace: str, address: str) -> int:
    """Make ``eth0`` in a namespace; what the host sends there is read from the descriptor, and the other way round."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP | _NO_PACKET_HEAD))
    finally:
        libc.setns(here, _CLONE_NEWNET)
        os.close(here)
        os.close(there)
    for words in (("addr", "add", address, "dev", "eth0"), ("link", "set", "eth0", "up")):
        subprocess.run(["ip", "-n", namespace, *words], check=True)
    return tap


@dataclass
class Line:
    """How the frames of this switch travel.

    Attributes:
        free_at: When each sender's line has sent what it was given.
        last_at: When the newest frame of each pair arrives, so that none overtakes another.
    """

    delay_s: float
    jitter_s: float
    loss: float
    bits_per_s: float
    queue_bytes: int
    chance: random.Random
    free_at: dict[int, float] = field(default_factory=dict)
    last_at: dict[tuple[int, int], float] = field(default_factory=dict)

    def departs_at(self, sender: int, frame_bytes: int, now: float) -> float | None:
        """When a frame has left its sender; None where it is lost or the queue is full."""
        if self.loss and self.chance.random() < self.loss:
            return None
        if not self.bits_per_s:
            return now
        start = max(now, self.free_at.get(sender, 0.0))
        if (start - now) * self.bits_per_s / 8 > self.queue_bytes:
            return None
        self.free_at[sender] = start + frame_bytes * 8 / self.bits_per_s
        return self.free_at[sender]

    def arrives_at(self, sender: int, receiver: int, departed: float) -> float:
        """When a frame arrives."""
        at = departed + self.delay_s + self.chance.uniform(0, self.jitter_s)
        at = self.last_at[sender, receiver] = max(at, self.last_at.get((sender, receiver), 0.0))
        return at


def run(taps: list[int], line: Line) -> None:
    """Switch until the process is ended."""
    learned: dict[bytes, int] = {}
    waiting: list[tuple[float, int, int, bytes]] = []
    ready = select.epoll()
    for tap in taps:
        ready.register(tap, select.EPOLLIN)
    number = 0
    while True:
        pause_s = min(1.0, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 1.0
        for sender, _ in ready.poll(pause_s):
            for frame in _frames(sender):
                now = time.monotonic()
                learned[frame[6:12]] = sender
                to = learned.get(frame[:6])
                departed = line.departs_at(sender, len(frame), now)
                if departed is None:
                    continue
                for receiver in [to] if to is not None else [tap for tap in taps if tap != sender]:
                    number += 1
                    heapq.heappush(waiting, (line.arrives_at(sender, receiver, departed), number, receiver, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, receiver, frame = heapq.heappop(waiting)
            try:
                os.write(receiver, frame)
            except OSError:
                continue  # The host is gone or does not take it: lost, as on a cable.


def _frames(tap: int) -> list[bytes]:
    found = []
    for _ in range(FRAMES_A_TURN):
        try:
            found.append(os.read(tap, FRAME_BYTES_MAX))
        except BlockingIOError:
            break
    return found


def main() -> None:
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    taps = [plug(namespace, address) for namespace, address in wanted.pop("hosts")]
    line = Line(chance=random.Random(wanted.pop("seed")), **wanted)
    print("ready", flush=True)
    run(taps, line)


if __name__ == "__main__":
    main()
