"""A home whose disk is full, read-only, or whose files are not what they were: a clear line, and nothing acknowledged lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process.nodes import Network, Node, git, open_network, repository, until

SMALL_BYTES = 256 << 20
"""Above what a run wants to be free, and small enough to be filled in a moment."""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with open_network(tmp_path_factory.mktemp("disk")) as found:
        yield found


@contextmanager
def private_disk(node: Node) -> Iterator[None]:
    """Put a node's home on a small disk of its own, in a mount namespace that its commands enter."""
    node.home.mkdir(mode=0o700)
    script = f"mount -t tmpfs -o size={SMALL_BYTES},mode=0700 none {node.home} && echo mounted && exec sleep 600"
    holder = subprocess.Popen(["unshare", "-m", "--propagation", "private", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert holder.stdout is not None
    try:
        if (said := holder.stdout.readline()) != "mounted\n":
            pytest.skip(f"no disk of one's own can be mounted here: {said.strip()}")
        node.prefix = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--"]
        yield
        if node.process is not None:
            node.end()
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def on_disk(node: Node, *words: str) -> str:
    return subprocess.run([*node.prefix, *words], capture_output=True, text=True, timeout=20, check=True).stdout


def fill(node: Node) -> Path:
    """Leave not one block free."""
    ballast = node.home / "ballast"
    subprocess.run([*node.prefix, "sh", "-c", f"cat /dev/zero > {ballast}"], capture_output=True, timeout=20, check=False)
    return ballast


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_full_disk_is_said_loses_nothing_and_is_over_when_there_is_room(network: Network) -> None:
    """O-B7's promise under another fault: what was acknowledged is there afterwards, also after a kill in between."""
    node, friend = network.node("small"), network.node("friend").up("--runs", "mine")
    with private_disk(node):
        node.up("--runs", "mine")
        kept = node.ask("invite", "--uses", "2")["link"]
        friend.ask("join", kept)
        until("linked", lambda: node.sees(friend) and friend.sees(node))
        folder = repository(node)
        git(node, folder, "status")
        granted = node.ask("access", "grant", "shop", "--expires", "1h")["grant"]
        ballast = fill(node)
        refused = 0
        for words in (("invite",), ("access", "grant", "shop"), ("config", "set", "name", "other"), ("run", "friend", "--", "true"), ("access", "revoke", granted)):
            ran = node.run("--json", *words, code=None)
            found = json.loads(ran.out.splitlines()[-1])
            if ran.code:
                refused += 1
                error = found.get("error") or {"message": found["reason"]}
                assert "\n" not in error["message"]
                assert "inside the node" not in error["message"], error
        assert refused >= 4
        assert node.ask("status")["node"]["name"] == "small"
        assert node.ask("peers")[0]["name"] == "friend"
        assert friend.run("run", "small", "--", "true", code=None).code in (0, 125)
        listed = {grant["grant"]: grant["state"] for grant in node.ask("access", "list")}
        node.kill()
        on_disk(node, "rm", str(ballast))
        node.up("--runs", "mine")
        assert {grant["grant"]: grant["state"] for grant in node.ask("access", "list")}.items() >= listed.items()
        until("linked again", lambda: node.sees(friend) and friend.sees(node))
        node.ask("invite")
        node.ask("access", "grant", "shop", "--expires", "1h")
        assert friend.run("run", "small", "--", "echo", "again").out == "again\n"
        ballast = fill(node)
        on_disk(node, "rm", str(ballast))
        assert node.ask("invite")["link"], "no restart is needed"
        friend.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_first_start_on_a_full_and_on_a_read_only_disk_says_so_and_a_later_one_is_whole(network: Network) -> None:
    node = network.node("tiny")
    with private_disk(node):
        ballast = fill(node)
        assert refused_start(node)["message"]
        on_disk(node, "rm", str(ballast))
        on_disk(node, "mount", "-o", "remount,ro", str(node.home))
        assert str(node.home) in refused_start(node)["message"]
        node.fault("status", code=3)
        on_disk(node, "mount", "-o", "remount,rw", str(node.home))
        node.up()
        assert node.ask("status")["mesh"]["members"] == 1


@pytest.fixture(scope="module")
def settled(network: Network) -> Node:
    """A home that was used and whose node was ended in order."""
    node = network.node("settled").up()
    network.secrets.add(node.ask("invite")["link"])
    node.end()
    return node


@contextmanager
def damaged(node: Node) -> Iterator[None]:
    """Let the block damage the home, and put it back afterwards."""
    aside = node.home.with_name("aside")
    shutil.copytree(node.home, aside, ignore=shutil.ignore_patterns("*.sock"))
    try:
        yield
    finally:
        if node.process is not None and node.process.poll() is None:
            node.end()
        shutil.rmtree(node.home)
        aside.rename(node.home)


def refused_start(node: Node) -> dict:
    node.up(wait=False)
    found = node.first_line()
    assert node.end(None) == 1, found
    return found["error"]


KEY_DAMAGE = {
    "owner.key: missing": ("owner.key", lambda path: path.unlink()),
    "node.key: short": ("node.key", lambda path: path.write_bytes(path.read_bytes()[:16])),
}
"""The others are in the test of mesh.identity; these show what a person sees of them."""


@pytest.mark.parametrize("damage", KEY_DAMAGE)
def test_a_key_that_is_not_what_it_was_stops_the_node_and_is_left_alone(settled: Node, damage: str) -> None:
    """O-P2: never a new identity beside old data; the file is named and untouched."""
    name, act = KEY_DAMAGE[damage]
    path = settled.home / "identity" / name
    with damaged(settled):
        act(path)
        before = path.read_bytes() if path.is_file() else None
        error = refused_start(settled)
        assert error["kind"] == "damaged"
        assert str(path) in error["message"]
        assert (path.read_bytes() if path.is_file() else None) == before
        assert not (settled.home / "moved").exists()


def _overwrite(path: Path, start: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(os.urandom(count))


DATABASE_DAMAGE = {
    "mesh.db: its first bytes": ("mesh.db", lambda path: _overwrite(path, 0, 16)),
    "mesh.db: half of it": ("mesh.db", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "grants.db: a folder": ("grants.db", lambda path: (path.unlink(), path.mkdir())),
}


@pytest.mark.parametrize("damage", DATABASE_DAMAGE)
def test_a_damaged_database_stops_the_node_with_its_name(settled: Node, damage: str) -> None:
    """O-B4: the pairings are hurt, so no quiet empty start; what is there is kept."""
    name, act = DATABASE_DAMAGE[damage]
    path = settled.home / name
    with damaged(settled):
        act(path)
        before = path.read_bytes() if path.is_file() else None
        error = refused_start(settled)
        assert name in error["message"]
        assert error["hint"]
        if before:
            assert path.read_bytes() == before
        assert (settled.home / "identity" / "node.key").exists()


def test_a_lost_journal_index_is_no_damage(settled: Node) -> None:
    """O-B4: a killed node leaves -wal and -shm; without -shm it starts as if nothing had been. O-P7: wide rights are mended."""
    with damaged(settled):
        settled.up()
        invite = settled.ask("invite")
        settled.kill()
        for leftover in settled.home.glob("*.db-shm"):
            leftover.unlink()
        key = settled.home / "identity" / "node.key"
        key.chmod(0o644)
        settled.up()
        assert key.stat().st_mode & 0o777 == 0o600
        assert settled.ask("status")["node"]["name"] == "settled"
        assert invite["link"]
