"""An encrypted link against bare trio-websocket: messages and megabytes a second, as ratios in one run.

``python -m tests.bench.bench_link [--seconds S] [--rounds N]``. Two processes on loopback, one connection, one way; the
subjects take turns within each round, so that load by others hits all of them; medians of the rounds are printed. Bare
trio-websocket reads 64 KiB at a time. A link's message is at most 60 KiB, so the last size is compared by MB/s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import trio
import trio_websocket

from mesh.base.ports import CHANNEL_MESSAGE_BYTES_MAX
from mesh.dialer import run_dial
from mesh.link import Link
from tests.fakes.links import HOST, Machines, open_port

SIZES = (200, 4096, 65536)
READ_BYTES = 65536
WARM_S = 0.1


async def serve_bare() -> None:
    """Each connection: a request ``up|down size seconds``, then the messages, then how many came."""

    async def handle(request: trio_websocket.WebSocketRequest) -> None:
        connection = await request.accept()
        await act(await connection.get_message(), connection.send_message, connection.get_message)
        await connection.get_message()

    listeners = await trio.open_tcp_listeners(0, host=HOST)
    server = trio_websocket.WebSocketServer(
        handle, listeners, max_message_size=1 << 20, receive_buffer_size=READ_BYTES, message_queue_size=8
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        print(listeners[0].socket.getsockname()[1], flush=True)


async def act(request: bytes, send: Callable[[bytes], Awaitable[None]], receive: Callable[[], Awaitable[bytes]]) -> None:
    way, size, seconds = request.decode().split()
    if way == "down":
        await pour(send, int(size), float(seconds))
    else:
        await send(b"%d" % await count(receive))


async def pour(send: Callable[[bytes], Awaitable[None]], size: int, seconds: float) -> int:
    message = bytes(size)
    end = time.perf_counter() + seconds
    sent = 0
    while time.perf_counter() < end:
        for _ in range(20):
            await send(message)
        sent += 20
    await send(b"end")
    return sent


async def count(receive: Callable[[], Awaitable[bytes]]) -> int:
    got = 0
    while await receive() != b"end":
        got += 1
    return got


async def serve_link() -> None:
    async def handle(link: Link) -> None:
        async for message in link.messages:
            await act(message, link.send_message, link.messages.receive)

    async def handle_channels(link: Link) -> None:
        async for incoming in link.incoming:
            await act(incoming.request, incoming.channel.send, incoming.channel.receive)  # type: ignore[arg-type]

    async with open_port(Machines()) as port, trio.open_nursery() as nursery:
        print(port.number, flush=True)
        async for link in port.links:
            nursery.start_soon(handle, link)
            nursery.start_soon(handle_channels, link)


async def run_bare(port: int, way: str, size: int, seconds: float) -> float:
    async with trio_websocket.open_websocket(
        HOST, port, "/", use_ssl=False, max_message_size=1 << 20, receive_buffer_size=READ_BYTES, message_queue_size=8
    ) as connection:
        await connection.send_message(b"%s %d %f" % (way.encode(), size, seconds))
        rate = await measure(way, size, seconds, connection.send_message, connection.get_message)
        await connection.send_message(b"bye")
        return rate


async def measure(
    way: str,
    size: int,
    seconds: float,
    send: Callable[[bytes], Awaitable[None]],
    receive: Callable[[], Awaitable[bytes]],
) -> float:
    """Messages a second."""
    began = time.perf_counter()
    if way == "down":
        return await count(receive) / (time.perf_counter() - began)
    await pour(send, size, seconds)
    return int(await receive()) / (time.perf_counter() - began)


async def run_link(port: int, way: str, size: int, seconds: float, *, channel: bool) -> float:
    machines = Machines()
    async with trio.open_nursery() as nursery:
        link = await nursery.start(run_dial, [f"{HOST}:{port}"], partial(machines.initiator, machines.mini))
        request = b"%s %d %f" % (way.encode(), size, seconds)
        if channel:
            end = await link.open_channel(1, request, bulk=True)
            rate = await measure(way, size, seconds, end.send, end.receive)
        else:
            await link.send_message(request)
            rate = await measure(way, size, seconds, link.send_message, link.messages.receive)
        link.close_nowait("measured")
        await link.closed.wait()
        nursery.cancel_scope.cancel()
    return rate


SUBJECTS = {
    "bare trio-websocket": ("bare", run_bare),
    "link, messages": ("link", partial(run_link, channel=False)),
    "link, bulk channel": ("link", partial(run_link, channel=True)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=("bare", "link"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        trio.run(serve_bare if options.serve == "bare" else serve_link)
        return
    print(f"{'size':>7}  {'way':4}  {'subject':20}  {'messages/s':>11}  {'MB/s':>7}  ratio of MB/s")
    servers = {}
    for kind in ("bare", "link"):
        command = [sys.executable, "-m", "tests.bench.bench_link", "--serve", kind]
        servers[kind] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        ports = {kind: int(server.stdout.readline()) for kind, server in servers.items() if server.stdout}
        for size in SIZES:
            for way in ("up", "down"):
                compare(ports, size, way, options.seconds, options.rounds)
    finally:
        for server in servers.values():
            server.kill()
            server.wait()


def compare(ports: dict[str, int], size: int, way: str, seconds: float, rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    sizes = {name: size if kind == "bare" else min(size, CHANNEL_MESSAGE_BYTES_MAX) for name, (kind, _) in SUBJECTS.items()}
    for _ in range(rounds):
        for name, (kind, run) in SUBJECTS.items():
            rates[name].append(trio.run(run, ports[kind], way, sizes[name], seconds))
    megabytes = {name: statistics.median(found) * sizes[name] / 1e6 for name, found in rates.items()}
    base = megabytes["bare trio-websocket"]
    for name, found in rates.items():
        print(
            f"{size:>7}  {way:4}  {name:20}  {statistics.median(found):>11.0f}  {megabytes[name]:>7.1f}  {megabytes[name] / base:.2f}"
        )


if __name__ == "__main__":
    main()
