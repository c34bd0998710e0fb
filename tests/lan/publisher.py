"""A foreign announcer of our service type, made with python-zeroconf alone; prints a line and waits for SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys

from zeroconf import IPVersion, ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

TYPE = "_hivemesh._tcp.local."


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--name", default="foreign")
    parser.add_argument("--port", type=int, default=9847)
    parser.add_argument("--address", action="append", required=True)
    parser.add_argument("--ipv6", action="store_true", help="IPv6 only")
    asyncio.run(_run(parser.parse_args()))


async def _run(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with AsyncZeroconf(ip_version=IPVersion.V6Only if options.ipv6 else IPVersion.V4Only) as zeroconf:
        names = [f"{options.name}-{number}" for number in range(options.count)] if options.count > 1 else [options.name]
        sent = [
            await zeroconf.async_register_service(
                ServiceInfo(
                    TYPE,
                    f"{name}.{TYPE}",
                    port=options.port,
                    properties={"v": "1"},
                    server=f"{name}.local.",
                    parsed_addresses=options.address,
                ),
                cooperating_responders=True,
            )
            for name in names
        ]
        await asyncio.gather(*sent)
        sys.stdout.write(json.dumps({"ready": True}) + "\n")
        sys.stdout.flush()
        await stopped.wait()


if __name__ == "__main__":
    main()
