"""Calling the command line: inside this process where only words matter, as a process where files and signals do."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from node.cli.entry import main

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "import sys; from node.cli.entry import main; sys.exit(main())"]


class Ran(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def call_here(home: str | os.PathLike[str], *words: str, stdin: str = "", environ: dict[str, str] | None = None) -> Ran:
    """Call ``hivemesh`` inside this process, without terminals."""
    streams = io.TextIOWrapper(io.BytesIO(stdin.encode())), io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
    os.environ.pop("HIVEMESH_INVITE", None)
    os.environ.update({"HIVEMESH_HOME": os.fspath(home), **(environ or {})})
    sys.argv = ["hivemesh", *words]
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        try:
            code = main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        said = [stream.buffer.getvalue().decode() for stream in streams[1:]]  # type: ignore[attr-defined]
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = kept[:4]
        os.environ.clear()
        os.environ.update(kept[4])
    return Ran(code, said[0], said[1])


def environ_of(home: str | os.PathLike[str]) -> dict[str, str]:
    """The environment of a command as a process."""
    return {**os.environ, "HIVEMESH_HOME": os.fspath(home), "PYTHONPATH": str(ROOT)}


def call_process(home: str | os.PathLike[str], *words: str, stdin: int | str = subprocess.DEVNULL, timeout_s: float = 10) -> Ran:
    """Call ``hivemesh`` as a process of its own."""
    given = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin}
    done = subprocess.run([*PROGRAM, *words], env=environ_of(home), capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False, **given)  # type: ignore[call-overload]
    return Ran(done.returncode, done.stdout, done.stderr)
