"""``demo``: the whole product on this machine, in under a minute."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

from mesh.base.errors import OurFault
from node.cli.console import Console


def register(name: str, parser: argparse.ArgumentParser) -> None:
    """Declare the words of ``demo``."""
    parser.set_defaults(act=_demo)


def _demo(arguments: argparse.Namespace, console: Console) -> int:
    from node.demo.stage import Stage, base_environ, interruptible
    from node.demo.story import Story

    if shutil.which("git") is None:
        raise OurFault("git is not installed", hint="install git, then try again")
    say = console.note if console.as_json else partial(_say, console)
    say("HiveMesh demo: three nodes on this machine, in a temporary folder that is removed at the end.")
    began_s = time.monotonic()
    with interruptible(), tempfile.TemporaryDirectory(prefix="hivemesh-demo-", ignore_cleanup_errors=True) as folder:
        stage = Stage(Path(folder), base_environ(Path(folder)))
        try:
            rows = Story(stage, say).tell()
        finally:
            stage.end()
    seconds = time.monotonic() - began_s
    if console.as_json:
        console.json({"steps": rows, "seconds": round(seconds, 2)})
    say(console.advice(f"\nAll {len(rows)} steps checked in {seconds:.0f} s; everything was removed. Next: hivemesh up -d, then hivemesh invite"))
    return 0


def _say(console: Console, text: str) -> None:
    console.line(text)
    console.flush()
