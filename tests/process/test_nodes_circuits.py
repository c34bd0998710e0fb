"""Two machines of Ana's that nobody can dial, and Ben's between them: everything works through it, and it learns nothing."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.sessions.sample import write_sample
from tests.process.nodes import Network, Node, open_network, repository, until

NOWHERE = "127.0.0.1:1"


@dataclass
class Line:
    """Ana's laptop and tower reach each other only through Ben's machine."""

    network: Network
    laptop: Node
    between: Node
    tower: Node


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    with open_network(tmp_path_factory.mktemp("line")) as network:
        laptop, between, tower = (network.node(name) for name in ("laptop", "between", "tower"))
        write_sample(laptop.user / ".claude", laptop.user / ".codex", int(time.time() * 1000))
        for node in (laptop, between, tower):
            node.up(wait=False)
        for node in (laptop, between, tower):
            node.facts = node.first_line()
        network.pair(laptop, between, "--for", "ben")
        network.pair(laptop, tower)
        until("all are linked", lambda: between.sees(laptop, tower) and tower.sees(between))
        # They listen on other ports from now on and tell a false one, so that only what they dial themselves is reached.
        for node in (laptop, tower):
            node.end()
        for node in (laptop, tower):
            node.up("--advertise", NOWHERE, "--runs", "mine", wait=False)
        for node in (laptop, tower):
            node.facts = node.first_line()
        until("both dialled the one between", lambda: between.sees(laptop, tower))
        until("a circuit stands", lambda: circuit(laptop, tower) and circuit(tower, laptop), 40)
        yield Line(network, laptop, between, tower)


def circuit(at: Node, other: Node) -> bool:
    return at.peer(other).get("link") == "circuit"


def test_status_and_peers_say_through_whom(line: Line) -> None:
    (link,) = [link for link in line.laptop.ask("status")["links"] if link["name"] == "tower"]
    assert (link["kind"], link["via"], link["address"]) == ("circuit", "between", None)
    assert "laptop circuit via between" in line.tower.run("status").out
    assert line.laptop.peer("tower")["state"] == "live"
    assert {link["kind"] for link in line.between.ask("status")["links"]} == {"direct"}


def held_in_memory(pid: int, needle: bytes) -> bool:
    """Whether a process of ours holds some bytes in any memory it can write."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for row in maps:
            bounds, rights = row.split()[:2]
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            if rights.startswith("rw"):
                memory.seek(start)
                try:
                    if needle in memory.read(end - start):
                        return True
                except OSError:
                    continue
    return False


def test_runs_and_knowledge_go_through_and_nothing_stays_between(line: Line) -> None:
    """I11: neither its store, nor its log, nor its memory ever holds what the two say to each other."""
    canary = f"canary-{secrets.token_hex(12)}"
    folder = repository(line.laptop)
    (folder / "words.txt").write_text(f"{canary}\n" * 200)
    ran = line.laptop.run("run", "tower", "--", "sh", "-c", f"cat words.txt; echo {canary} >&2; exit 7", cwd=folder, code=7)
    assert ran.out == f"{canary}\n" * 200
    assert canary in ran.err
    megabytes = "import sys; [sys.stdout.buffer.write(bytes(1 << 20)) for _ in range(3)]"
    assert len(line.laptop.run("run", "tower", "--no-tree", "--", sys.executable, "-c", megabytes).out) == 3 << 20
    line.laptop.ask("hive", "learn")
    until("lessons are known there", lambda: line.tower.ask("hive", "lessons"))
    sessions = {row["session"] for row in line.laptop.ask("fleet", "--all")}
    assert sessions
    until("sessions are seen there", lambda: {row["session"] for row in line.tower.ask("fleet", "--all")} == sessions)
    assert line.between.process is not None
    pid = line.between.process.pid
    assert held_in_memory(pid, b"between"), "the search itself is broken"
    assert not held_in_memory(pid, canary.encode())
    assert canary.encode() not in line.between.bytes_at_rest()
    assert circuit(line.laptop, line.tower)


def test_a_grant_is_revoked_from_the_other_end(line: Line) -> None:
    folder = repository(line.tower, "docs")
    line.tower.ask("query", "index", str(folder), "--project", "docs")
    grant = line.tower.ask("access", "grant", "docs", "--label", "carol", "--expires", "1h")["grant"]
    until("the laptop knows it", lambda: [g for g in line.laptop.ask("access", "list") if g["grant"] == grant])
    line.laptop.ask("access", "revoke", grant)
    until("it is revoked there", lambda: {g["state"] for g in line.tower.ask("access", "list")} == {"revoked"})


def test_a_direct_link_takes_over_while_a_command_speaks(line: Line, tmp_path: Path) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo $n; sleep 0.2; done"
    command = line.laptop.begin("run", "tower", "--no-tree", "--", "sh", "-c", script)
    until("it runs", lambda: any(task["state"] == "running" for task in line.laptop.ask("tasks")))
    line.laptop.ask("connect", "tower", line.tower.facts["listen"][0])
    until("the link is direct", lambda: line.laptop.sees(line.tower) and line.tower.sees(line.laptop))
    assert line.laptop.finish(command).out == "".join(f"{n}\n" for n in range(1, 17))
    assert line.laptop.ask("status")["links"]
    assert {link["kind"] for link in line.laptop.ask("status")["links"]} == {"direct"}


@pytest.mark.soak
def test_a_machine_that_does_not_relay_ends_what_it_carried(line: Line) -> None:
    """The tower moves to another port, so that the way is only through the one between again; then that one says no."""
    line.tower.end()
    line.tower.up("--advertise", NOWHERE, "--runs", "mine")
    until("a circuit stands again", lambda: circuit(line.laptop, line.tower), 40)
    line.between.ask("config", "set", "relay", "off")
    until("it is gone", lambda: line.laptop.peer(line.tower)["link"] is None)
    assert line.laptop.run("run", "tower", "--no-tree", "--", "true", code=None).code != 0
    line.between.ask("config", "set", "relay", "on")
