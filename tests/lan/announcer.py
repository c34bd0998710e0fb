"""A process with a discovery and nothing else: prints what it announces and hears as JSON lines, until SIGTERM."""

from __future__ import annotations

import argparse
import json
import signal
import sys

import trio

from mesh.discovery import Discovery, Pace, open_discovery

FAST = Pace(
    first_rounds_s=(0.3, 0.6), round_s=(0.8, 1.6), poll_s=0.3, back_off_s=(0.3, 1.0), first_echo_s=1.5, echo_s=5.0
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9847)
    parser.add_argument("--tag", default="aaaaaaaaaaaaa")
    parser.add_argument("--advertise", action="append")
    parser.add_argument("--only", action="append")
    parser.add_argument("--fast", action="store_true", help="rounds of about a second instead of 10 to 30")
    trio.run(_run, parser.parse_args())


async def _run(options: argparse.Namespace) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with open_discovery(
            options.port,
            options.advertise,
            lambda: options.tag,
            interfaces=options.only,
            pace=FAST if options.fast else None,
        ) as discovery, trio.open_nursery() as nursery:
            nursery.start_soon(_report, discovery)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                return


async def _report(discovery: Discovery) -> None:
    last = ""
    while True:
        line = json.dumps(
            {
                "state": list(discovery.state),
                "instance": discovery.instance,
                "announced": discovery.addresses,
                "heard": sorted(
                    [sighting.instance, sighting.tag, sighting.addresses] for sighting in discovery.current()
                ),
            }
        )
        if line != last:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            last = line
        await trio.sleep(0.1 if len(line) < 2000 else 1.0)


if __name__ == "__main__":
    main()
