"""Whole commands against what they compete with: ``status`` against bare imports, ``run`` against ssh, in one run.

Each pair is timed in turn (A B A B ...), so a machine whose speed drifts shifts both.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROUNDS = 15
BARE = "import argparse, json, socket"


def timed(command: list[str], **how: object) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, **how)
    return time.perf_counter() - began


def binary() -> list[str]:
    beside = Path(sys.executable).with_name("hivemesh")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "node.cli.entry"]


def pair(a: list[str], b: list[str], rounds: int = ROUNDS, **how: object) -> tuple[float, float, float]:
    """Time two commands in turn: median of each in ms, and the median of the ratios."""
    timed(a, **how), timed(b, **how)
    ones, others = [], []
    for _ in range(rounds):
        ones.append(timed(a, **how))
        others.append(timed(b, **how))
    ratios = [x / y for x, y in zip(ones, others, strict=True)]
    return statistics.median(ones) * 1000, statistics.median(others) * 1000, statistics.median(ratios)


@contextlib.contextmanager
def node(home: Path, *words: str) -> Iterator[dict[str, object]]:
    command = [*binary(), "--home", str(home), "--json", "up", "--listen", "127.0.0.1:0", "--no-discovery", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        process.stdout.close()


def ask(home: Path, *words: str) -> object:
    done = subprocess.run([*binary(), "--home", str(home), "--json", *words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def ssh(folder: Path) -> Iterator[tuple[list[str], list[str]] | None]:
    """An sshd of our own on loopback; the command for a cold and for a shared connection, or None where there is none."""
    sshd = shutil.which("sshd") or next((p for p in ("/usr/sbin/sshd",) if os.path.exists(p)), None)
    if sshd is None or shutil.which("ssh-keygen") is None:
        yield None
        return
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    os.chmod(folder / "authorized", 0o600)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"StrictModes no\nUsePAM no\nPidFile {folder}/pid\nPermitRootLogin yes\n"
    )
    os.makedirs("/run/sshd", exist_ok=True)
    server = subprocess.Popen([sshd, "-D", "-f", str(config)], stderr=subprocess.DEVNULL)
    base = ["ssh", "-F", "none", "-i", str(folder / "user"), "-p", str(port), "-o", "StrictHostKeyChecking=no",
            "-o", f"UserKnownHostsFile={folder}/known", "-o", "BatchMode=yes"]  # fmt: skip
    shared = [*base, "-o", f"ControlPath={folder}/mux", "-o", "ControlMaster=auto", "-o", "ControlPersist=60"]
    try:
        for _ in range(100):
            if subprocess.run([*base, "127.0.0.1", "true"], capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        yield [*base, "127.0.0.1", "true"], [*shared, "127.0.0.1", "true"]
    finally:
        subprocess.run([*shared, "-O", "exit", "127.0.0.1"], capture_output=True)
        server.terminate()
        server.wait()


def main() -> None:
    print("\nwhole commands, medians in ms, and the median of the ratios pair by pair")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory(prefix="hivemesh-bench-") as text:
        folder = Path(text)
        one, other = folder / "one", folder / "other"
        with node(one), node(other, "--runs", "mine"):
            link = ask(one, "invite")
            assert isinstance(link, dict)
            ask(other, "join", str(link["link"]))
            while not (peers := ask(one, "peers")) or not peers[0]["link"]:  # type: ignore[index]
                time.sleep(0.05)
            name = peers[0]["node"]  # type: ignore[index]
            status = [*binary(), "--home", str(one), "status"]
            a, b, ratio = pair(status, [sys.executable, "-c", BARE], env=environ)
            print(f"  status {a:7.1f}   bare imports {b:7.1f}   ratio {ratio:.2f}  (goal <= 1.5)")
            run = [*binary(), "--home", str(one), "run", str(name), "--", "true"]
            with ssh(folder) as commands:
                if commands is None:
                    print("  no sshd here: `run` has nothing to be compared with")
                    return
                for kind, command in zip(("cold ssh", "shared ssh"), commands, strict=True):
                    a, b, ratio = pair(run, command, cwd="/", env=environ)
                    print(f"  run -- true {a:7.1f}   {kind} {b:7.1f}   ratio {ratio:.2f}" + ("  (goal <= 0.4)" if "cold" in kind else ""))


if __name__ == "__main__":
    main()
