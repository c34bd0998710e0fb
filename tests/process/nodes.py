"""Whole nodes for tests: each a real process with a home of its own on loopback, spoken to by the real command line.

Nodes run in the foreground as children of the test and end by their pid. Whatever any command of a network says is
kept, and at its end no log and no stderr may hold a secret that was handed out meanwhile.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mesh.base.errors import MeshError
from mesh.base.names import base32
from node.cli.client import call
from node.home import find_home

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, "-m", "node.cli.entry")
START_S = 40.0
NEAR_S = 25.0
"""A deadline for what takes a moment: it is only reached where something is wrong, or the machine is very busy."""


class Ran(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def until(what: str, true: Callable[[], Any], time_s: float = NEAR_S) -> Any:
    """Wait for a condition in other processes, with a deadline; gives what it returned."""
    end_s = time.monotonic() + time_s
    while not (found := true()):
        assert time.monotonic() < end_s, f"not within {time_s:.0f} s: {what}"
        time.sleep(0.03)
    return found


class Node:
    """One machine: a home, a user's home folder beside it, and its node while it runs."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.home = network.folder / name
        self.user = network.folder / f"{name}-user"
        self.user.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}
        self.prefix: list[str] = []
        """What goes before every command of this machine: entering a namespace, for example."""
        self.environ = {key: value for key, value in os.environ.items() if not key.startswith(("HIVEMESH_", "GIT_", "XDG_"))}
        self.environ |= {
            "HOME": str(self.user),
            "PYTHONPATH": str(ROOT),
            "GIT_AUTHOR_NAME": "Ana",
            "GIT_AUTHOR_EMAIL": "ana@example.invalid",
            "GIT_COMMITTER_NAME": "Ana",
            "GIT_COMMITTER_EMAIL": "ana@example.invalid",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    def words(self, *words: str) -> list[str]:
        """The command line of a command on this home."""
        return [*self.prefix, *PROGRAM, "--home", str(self.home), *words]

    def up(self, *options: str, listen: str = "127.0.0.1:0", wait: bool = True, crash: tuple[str, str, int] | None = None) -> Node:
        """Start the node; returns once it says that it is ready.

        ``crash`` names a call at which its process is killed: place, before or after, and which call of it.
        """
        assert self.process is None or self.process.poll() is not None, "it runs already"
        if not self.home.exists():
            self.home.mkdir(mode=0o700)
            (self.home / "config.toml").write_text(f'name = "{self.name}"\n')
        if self.prefix:
            options = (*options, "--name", self.name)
        words = self.words("up", "--json", "--listen", listen, "--no-discovery", "--api", "off", *options)
        if crash is not None:
            words[1:3] = [str(Path(__file__).with_name("crashing.py")), *map(str, crash)]
        with (self.network.folder / f"{self.name}.stderr").open("ab") as said:
            self.process = subprocess.Popen(
                words, env=self.environ, cwd=self.user, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
            )
        if wait:
            self.facts = self.first_line()
            assert "fingerprint" in self.facts, self.facts
        return self

    def first_line(self) -> dict[str, Any]:
        """Wait for what a start says of itself; empty where it ended without a word."""
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        assert ready, f"{self.name} said nothing"
        line = self.process.stdout.readline()
        return json.loads(line) if line else {}

    def end(self, number: int | None = signal.SIGTERM) -> int:
        """Signal the node's process (None: let it end by itself) and wait for its end; gives its exit code."""
        assert self.process is not None
        if self.process.poll() is None and number is not None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
        return code

    def kill(self) -> None:
        """End the node as a power cut would, as far as its process is concerned."""
        self.end(signal.SIGKILL)

    def run(self, *words: str, code: int | None = 0, stdin: str = "", cwd: Path | None = None, timeout_s: float = 60, **environ: str) -> Ran:
        """Run a command; its exit code must be ``code`` unless that is None."""
        return self.finish(self.begin(*words, cwd=cwd, **environ), words, code=code, stdin=stdin, timeout_s=timeout_s)

    def begin(self, *words: str, cwd: Path | None = None, **environ: str) -> subprocess.Popen[bytes]:
        """Begin a command that goes on."""
        pipe = subprocess.PIPE
        command = subprocess.Popen(
            self.words(*words), env=self.environ | environ, cwd=cwd or self.user, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self.network.begun.append(command)
        return command

    def finish(self, command: subprocess.Popen[bytes], words: tuple[str, ...] = (), *, code: int | None = 0, stdin: str = "", timeout_s: float = 60) -> Ran:
        """Wait for the end of a command that was begun."""
        try:
            out, err = command.communicate(stdin.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            command.kill()
            out, err = command.communicate()
            raise AssertionError(f"{self.name}: {' '.join(words)} goes on: {out[-500:]!r} {err[-500:]!r}") from None
        ran = Ran(command.returncode, out.decode(), err.decode())
        self.network.said.append(ran.err)
        assert "Traceback" not in ran.err, ran.err
        assert code is None or ran.code == code, f"{self.name}: {' '.join(words)}: exit {ran.code}\n{ran.out[-1500:]}\n{ran.err[-1500:]}"
        return ran

    def ask(self, *words: str, code: int = 0, cwd: Path | None = None, stdin: str = "") -> Any:
        """Run a command with ``--json`` and read its one document; secrets in it are remembered."""
        ran = self.run("--json", *words, code=code, cwd=cwd, stdin=stdin)
        assert ran.out.count("\n") == 1, ran.out[-1500:]
        found = json.loads(ran.out)
        if isinstance(found, dict):
            self.network.secrets.update(value for key in ("link", "token") if isinstance(value := found.get(key), str))
        return found

    def fault(self, *words: str, code: int, cwd: Path | None = None) -> dict[str, Any]:
        """Run a command that must fail so, and read its error."""
        error = self.ask(*words, code=code, cwd=cwd)["error"]
        assert error["message"]
        assert "\n" not in error["message"]
        return dict(error)

    def lines(self, *words: str, code: int = 0, cwd: Path | None = None) -> list[dict[str, Any]]:
        """Run a command with ``--json`` that streams, and read its lines."""
        return [json.loads(line) for line in self.run("--json", *words, code=code, cwd=cwd).out.splitlines()]

    @property
    def id(self) -> str:
        """This machine's id in its present mesh."""
        return str(self.ask("mesh", "identity")["node"])

    def peers(self) -> list[dict[str, Any]]:
        """What ``peers`` says, asked over the socket itself: for looking again and again, a process each time is too much."""
        if self.prefix:
            return list(self.ask("peers"))
        with suppress(MeshError):
            found = call(find_home(str(self.home), {}), "peers", timeout_s=10)
            assert isinstance(found, list)
            return found
        return []

    def peer(self, other: Node | str) -> dict[str, Any]:
        """What this machine says of another one; empty where it does not know it."""
        name = other if isinstance(other, str) else other.name
        return next((peer for peer in self.peers() if peer["name"] == name), {})

    def sees(self, *others: Node) -> bool:
        """Whether this machine is linked to all of these."""
        linked = {peer["name"] for peer in self.peers() if peer["state"] == "live" and peer["link"] == "direct"}
        return {other.name for other in others} <= linked

    def bytes_at_rest(self) -> bytes:
        """Every byte of every file of the home."""
        return b"".join(path.read_bytes() for path in sorted(self.home.rglob("*")) if path.is_file())


class Network:
    """Some machines, what was said, and the secrets that were handed out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.said: list[str] = []
        self.begun: list[subprocess.Popen[bytes]] = []
        self.secrets: set[str] = set()

    def node(self, name: str) -> Node:
        """Make a machine, not running yet."""
        self.nodes.append(Node(self, name))
        return self.nodes[-1]

    def pair(self, issuer: Node, joiner: Node, *options: str) -> dict[str, Any]:
        """Let one machine into the other's mesh, and wait until both see the link."""
        joined: dict[str, Any] = joiner.ask("join", issuer.ask("invite", *options)["link"])
        until(f"{issuer.name} and {joiner.name} are linked", lambda: issuer.sees(joiner) and joiner.sees(issuer))
        return joined

    def mesh(self, *names: str, options: tuple[str, ...] = ("--runs", "mine")) -> list[Node]:
        """Make machines of one person that all see each other."""
        nodes = [self.node(name) for name in names]
        for node in nodes:
            node.up(*options, wait=False)
        for node in nodes:
            node.facts = node.first_line()
        for joiner in nodes[1:]:
            joiner.ask("join", nodes[0].ask("invite")["link"])
        for node in nodes:
            until(f"{node.name} sees the others", lambda node=node: node.sees(*(o for o in nodes if o is not node)))
        return nodes

    def close(self) -> None:
        """End every command and every node that still runs."""
        for command in self.begun:
            if command.poll() is None:
                command.kill()
            command.wait()
            for pipe in (command.stdin, command.stdout, command.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGTERM)
        for node in self.nodes:
            if node.process is not None:
                node.end(signal.SIGKILL if node.process.poll() is None and not _ends(node.process) else signal.SIGTERM)

    def leaks(self) -> list[str]:
        """Name each log, and each stderr, that holds a secret: a key, an invite, a token."""
        needles = {secret.encode() for secret in self.secrets if len(secret) >= 16}
        for key in self.folder.glob("*/identity/*.key"):
            seed = key.read_bytes()
            needles |= {seed, seed.hex().encode(), b64encode(seed)[:40], urlsafe_b64encode(seed)[:40], base32(seed).encode()}
        found = []
        for path in [*self.folder.glob("*/log/*"), *self.folder.glob("*.stderr")]:
            found += [str(path) for needle in needles if needle in path.read_bytes()]
        said = "\n".join(self.said).encode()
        found += [f"stderr of a command: {needle[:8]!r}..." for needle in needles if needle in said]
        return found

    def tracebacks(self) -> list[str]:
        """What broke inside the nodes, as their logs say."""
        texts = [path.read_text(errors="replace") for path in [*self.folder.glob("*/log/*"), *self.folder.glob("*.stderr")]]
        return [line for text in texts for line in text.splitlines() if "Traceback" in line or re.search(r'"level": ?"critical"', line)]


def _ends(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def open_network(folder: Path) -> Iterator[Network]:
    """Make a network; at its end every node is ended, nothing broke inside one, and nothing secret was logged or said."""
    network = Network(folder)
    try:
        yield network
    finally:
        network.close()
    assert network.leaks() == []
    assert network.tracebacks() == []


def repository(node: Node, name: str = "shop") -> Path:
    """Make a git repository of two commits in a machine's user folder."""
    folder = node.user / name
    folder.mkdir()
    git(node, folder, "init", "-q", "-b", "main")
    (folder / "a.txt").write_text("one\n")
    git(node, folder, "add", "-A")
    git(node, folder, "commit", "-q", "-m", "one")
    return folder


def git(node: Node, folder: Path, *words: str) -> str:
    """Run git as a machine's user."""
    done = subprocess.run(["git", *words], cwd=folder, env=node.environ, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout
