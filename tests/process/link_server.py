"""A machine that listens, as a process of its own: ``python -m tests.process.link_server`` prints its port.

It echoes messages, and floods a channel without end when asked to.
"""

from __future__ import annotations

import logging
import sys

import trio

from mesh.base.errors import Unreachable
from mesh.base.ports import Incoming
from mesh.link import Link
from tests.fakes.links import Machines, open_port


async def flood(incoming: Incoming) -> None:
    try:
        while True:
            await incoming.channel.send(bytes(50_000))
    except Unreachable as ended:
        logging.getLogger("test").info("flood ended: %s", ended)


async def serve(link: Link) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(echo, link)
        async for incoming in link.incoming:
            nursery.start_soon(flood, incoming)


async def echo(link: Link) -> None:
    async for message in link.messages:
        link.send_message_nowait(message)


async def main() -> None:
    async with open_port(Machines()) as port, trio.open_nursery() as nursery:
        print(port.number, flush=True)
        async for link in port.links:
            nursery.start_soon(serve, link)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    trio.run(main)
