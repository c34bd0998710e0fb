"""A control message beside saturated bulk on a line of 10 Mb/s and 40 ms: how late it comes, one way.

``python -m tests.bench.bench_line``. Two processes in two namespaces, joined by a switch in user space; both read one
machine's clock. The line itself takes 20 ms each way. Needs root.
"""

from __future__ import annotations

import functools
import statistics
import struct
import sys
import time
from contextlib import suppress

import trio

from mesh.base.errors import Unreachable
from mesh.dialer import run_dial
from mesh.link import Link
from tests.fakes.links import Machines, open_port
from tests.lan.lab import missing, open_slow_lab

BITS_PER_S, DELAY_S = 10e6, 0.020
SECONDS = 12.0
WARM_S = 3.0
EVERY_S = 0.1


async def serve() -> None:
    """Take bulk without end and say when each control message came."""

    async def swallow(link: Link) -> None:
        async for incoming in link.incoming:
            with suppress(Unreachable):
                while True:
                    await incoming.channel.receive()

    async with open_port(Machines(), host="10.98.0.1") as port:
        print(port.number, flush=True)
        link = await port.links.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swallow, link)
            began = None
            async for message in link.messages:
                now = time.clock_gettime(time.CLOCK_MONOTONIC)
                began = began or now
                if now - began > WARM_S:
                    print((now - struct.unpack("!d", message)[0]) * 1000, flush=True)


async def pour(port: int) -> None:
    machines = Machines()

    async def bulk(link: Link) -> None:
        channel = await link.open_channel(1, b"", bulk=True)
        while True:
            await channel.send(bytes(60_000))

    async with trio.open_nursery() as nursery:
        link = await nursery.start(run_dial, [f"10.98.0.1:{port}"], functools.partial(machines.initiator, machines.mini))
        nursery.start_soon(bulk, link)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            link.send_message_nowait(struct.pack("!d", time.clock_gettime(time.CLOCK_MONOTONIC)), control=True)
            await trio.sleep(EVERY_S)
        nursery.cancel_scope.cancel()


def main() -> None:
    reason = missing()
    if reason is not None:
        print(f"control beside bulk on a slow line: not measured, {reason}")
        return
    module = [sys.executable, "-m", "tests.bench.bench_line"]
    with open_slow_lab("near", "far", delay_s=DELAY_S, bits_per_s=BITS_PER_S) as lab:
        server = lab.start("near", *module, "serve")
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        lab.run("far", *module, "pour", port, timeout_s=SECONDS + 30)
        lab.stop(server)
        delays = sorted(float(line) for line in server.stdout)
    print(f"control message beside saturated bulk, 10 Mb/s, 40 ms there and back, {len(delays)} messages, one way:")
    print(f"  p50 {statistics.median(delays):.0f} ms, p99 {delays[int(len(delays) * 0.99)]:.0f} ms, of which the line {DELAY_S * 1000:.0f} ms; goal p99 < 50 ms")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words == ["serve"]:
        trio.run(serve)
    elif words:
        trio.run(pour, int(words[1]))
    else:
        main()
