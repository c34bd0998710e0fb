"""Commands on other machines, end to end: the exit code is theirs, the output is theirs, and nobody runs what may not run."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.process import shapes
from tests.process.nodes import Network, Node, git, open_network, repository, until
from tests.process.shapes import check

MEGABYTES = 20
FLOOD = "import sys,random; r=random.Random(7); [sys.stdout.buffer.write(r.randbytes(1<<20)) for _ in range(20)]"


@dataclass
class Fleet:
    """Ana's laptop asks; her mini runs what she asks, her tower asks first; Ben's machine is another person's.

    One more of hers has gone; a command waits for it from the beginning, since it waits for ten seconds.
    """

    network: Network
    laptop: Node
    mini: Node
    tower: Node
    ben: Node
    gone: Node
    away: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_network(tmp_path_factory.mktemp("runs")) as network:
        laptop, mini, tower = network.mesh("laptop", "mini", "tower", options=())
        assert mini.ask("config", "set", "runs", "mine")["applied"] is True
        assert {node.ask("status")["runs"] for node in (laptop, tower)} == {"ask"}, "without a word nobody runs anything unasked"
        ben = network.node("bens").up("--runs", "mine")
        network.pair(laptop, ben, "--for", "ben")
        until("ben sees all", lambda: ben.sees(laptop, mini, tower) and mini.sees(ben))
        gone = network.node("gone").up("--runs", "mine")
        network.pair(laptop, gone)
        gone.end()
        until("gone is gone", lambda: laptop.peer(gone)["link"] is None)
        away = laptop.begin("--json", "run", "gone", "--", "touch", str(network.folder / "never"))
        yield Fleet(network, laptop, mini, tower, ben, gone, away)


def sh(at: Node, node: str, script: str, *options: str, code: int | None = 0, cwd: Path | None = None):
    return at.run("run", node, *options, "--", "sh", "-c", script, code=code, cwd=cwd)


def last(ran) -> dict:
    return json.loads(ran.out.splitlines()[-1])


def test_exit_code_and_both_streams_come_back_apart(fleet: Fleet) -> None:
    ran = sh(fleet.laptop, "mini", "echo out; echo err >&2; echo more; exit 7", code=7)
    assert ran.out == "out\nmore\n"
    assert ran.err.startswith("err\n")
    lines = fleet.laptop.lines("run", "mini", "--", "sh", "-c", "printf out; printf err >&2; exit 5", code=5)
    *output, task = lines
    for line in output:
        check(line, shapes.OUTPUT)
    assert {(line["stream"], line["data"]) for line in output} == {("stdout", "out"), ("stderr", "err")}
    check(task, shapes.TASK)
    assert (task["state"], task["exit_code"], task["argv"][0], task["output_bytes"], task["name"]) == ("failed", 5, "sh", 6, "mini")
    assert [t["state"] for t in task["transitions"]][-1] == "failed"
    assert sh(fleet.laptop, "mini", "true").out == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "mini", "--", "no-such-program-anywhere"), 127),
        (("run", "mini", "--", "/etc/hostname"), 126),
        (("run", "nobody", "--", "true"), 125),
        (("run", "laptop", "--", "true"), 125),
        (("run", "bens", "--", "true"), 125),
        (("run", "mini", "true"), 125),
        (("run", "mini", "--"), 125),
        (("run",), 125),
        (("run", "mini", "--timeout", "never", "--", "true"), 125),
        (("run", "mini", "--timeout", "1s", "--", "sleep", "60"), 124),
        (("run", "mini", "--", "sh", "-c", "kill -9 $$"), 137),
        (("run", "mini", "--", "sh", "-c", "exit 3"), 3),
        (("wait", "zzzz"), 125),
        (("logs", "-f", "zzzz"), 125),
        (("logs", "zzzz"), 2),
    ],
    ids=lambda words: " ".join(words)[:40] if isinstance(words, tuple) else str(words),
)
def test_exit_codes_of_the_contract(fleet: Fleet, words: tuple[str, ...], code: int) -> None:
    ran = fleet.laptop.run("--json", *words, code=code)
    found = last(ran)
    check(found, shapes.ERROR if "error" in found else shapes.TASK)
    if words[:2] == ("run", "nobody"):
        assert "nobody" in fleet.laptop.run(*words, code=code).err, "without --json, stderr says which of ours it was"


def test_a_machine_that_runs_nothing_refuses_and_is_told_how_to_change_it(fleet: Fleet) -> None:
    fleet.tower.ask("config", "set", "runs", "off")
    try:
        ran = fleet.laptop.run("--json", "run", "tower", "--", "true", code=125)
        task = last(ran)
        assert (task["state"], task["reason"]) == ("refused", "policy")
        assert "config set runs" in fleet.laptop.run("run", "tower", "--", "true", code=125).err
        assert "another" in (found := fleet.laptop.run("run", "bens", "--", "true", code=125).err) or "belongs to ben" in found
    finally:
        fleet.tower.ask("config", "set", "runs", "ask")


def waiting(at: Node, task: str) -> dict:
    return until(f"{at.name} shows the request", lambda: next((item for item in at.ask("inbox") if item["task"] == task), None))


def started(node: Node, *words: str):
    """Begin a run with --json and wait until it is known; gives the command and the task's id."""
    known = {task["task"] for task in node.ask("tasks")}
    command = node.begin("--json", "run", *words)
    fresh = until("the task", lambda: [task["task"] for task in node.ask("tasks") if task["task"] not in known])
    return command, fresh[0]


def test_what_asks_is_allowed_from_a_third_machine_and_never_by_who_wants_it(fleet: Fleet) -> None:
    """SECURITY 2: shown on the worker and on a third machine; the requester's own answer does not count."""
    command, task = started(fleet.laptop, "tower", "--", "sh", "-c", "echo allowed; exit 4")
    item = waiting(fleet.tower, task)
    check(fleet.tower.ask("inbox"), shapes.INBOX)
    assert "echo allowed" in item["command"]
    assert waiting(fleet.mini, task)["digest"] == item["digest"]
    assert fleet.ben.ask("inbox") == []
    assert fleet.laptop.run("allow", item["id"], code=None).code in (2, 5)
    assert fleet.ben.run("allow", item["id"], code=None).code in (2, 5)
    assert fleet.laptop.ask("task", task)["state"] == "asking"
    fleet.mini.ask("answer", item["id"], "allow")
    ran = fleet.laptop.finish(command, code=4)
    assert json.loads(ran.out.splitlines()[0])["data"] == "allowed\n"
    until("nothing waits", lambda: fleet.tower.ask("inbox") == fleet.mini.ask("inbox") == [])
    assert fleet.mini.run("allow", item["id"], code=None).code in (2, 5)


def test_what_is_denied_does_not_run(fleet: Fleet, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    command, task = started(fleet.laptop, "tower", "--", "touch", str(canary))
    item = waiting(fleet.tower, task)
    fleet.tower.ask("deny", item["id"])
    ran = fleet.laptop.finish(command, code=125)
    assert (last(ran)["state"], canary.exists()) == ("refused", False)
    command, task = started(fleet.laptop, "tower", "--", "touch", str(canary))
    waiting(fleet.mini, task)
    fleet.laptop.ask("cancel", task)
    assert last(fleet.laptop.finish(command, code=130))["state"] == "cancelled"
    until("nothing waits", lambda: fleet.tower.ask("inbox") == fleet.mini.ask("inbox") == [])
    assert not canary.exists()


def test_the_tree_travels_as_it_is_and_stays_as_it_was(fleet: Fleet) -> None:
    folder = repository(fleet.laptop)
    (folder / ".gitignore").write_text("secret*\n")
    (folder / "a.txt").write_text("changed\n")
    (folder / "new.txt").write_text("untracked\n")
    (folder / "secret.txt").write_text("stays home\n")
    git(fleet.laptop, folder, "add", ".gitignore")
    before = git(fleet.laptop, folder, "status", "--porcelain=v2", "--branch")
    refs = git(fleet.laptop, folder, "for-each-ref")
    ran = sh(fleet.laptop, "mini", "cat a.txt new.txt; ls -A; cat sub/../.gitignore; mkdir sub; rm a.txt; touch made", cwd=folder)
    assert ran.out.startswith("changed\nuntracked\n")
    assert "secret.txt" not in ran.out
    assert "new.txt" in ran.err, "what travels untracked is listed"
    assert git(fleet.laptop, folder, "status", "--porcelain=v2", "--branch") == before
    assert git(fleet.laptop, folder, "for-each-ref") == refs
    assert (folder / "a.txt").read_text() == "changed\n"
    assert not (folder / "made").exists()
    assert sh(fleet.laptop, "mini", "ls -A", "--no-tree", cwd=folder).out == ""
    empty = fleet.laptop.user / "empty"
    empty.mkdir()
    git(fleet.laptop, empty, "init", "-q")
    ran = sh(fleet.laptop, "mini", "ls -A", cwd=empty, code=None)
    assert ran.code in (0, 125)


def test_the_environment_there_holds_nothing_of_the_node(fleet: Fleet) -> None:
    names = {line.split("=")[0] for line in fleet.laptop.run("run", "mini", "--", "env").out.splitlines()}
    assert "PATH" in names
    assert not [name for name in names if name.startswith("HIVEMESH_") and name != "HIVEMESH_TASK"]
    assert "PYTHONPATH" not in names
    assert sh(fleet.laptop, "mini", "cat").out == "", "its stdin is empty"


def test_much_output_arrives_byte_for_byte(fleet: Fleet) -> None:
    process = fleet.laptop.begin("run", "mini", "--", sys.executable, "-c", FLOOD)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, len(out)) == (0, MEGABYTES << 20), err
    import random

    source = random.Random(7)
    wanted = hashlib.sha256(b"".join(source.randbytes(1 << 20) for _ in range(MEGABYTES)))
    assert hashlib.sha256(out).digest() == wanted.digest()
    newest = fleet.laptop.ask("tasks")[0]
    assert (newest["state"], newest["output_bytes"]) == ("done", MEGABYTES << 20)
    tail = fleet.laptop.lines("logs", newest["task"], "--since", str((MEGABYTES << 20) - 10))
    assert sum(len(base64.b64decode(line["data_b64"])) if "data_b64" in line else len(line["data"]) for line in tail[:-1]) == 10
    for node in (fleet.laptop, fleet.mini):
        assert len(node.run("logs", newest["task"], "--since", str(MEGABYTES << 20)).out) == 0


def test_a_detached_run_is_followed_waited_for_and_read_again(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo one; while ! [ -e {gate} ]; do sleep 0.05; done; echo two; exit 6"
    task = fleet.laptop.ask("run", "mini", "--detach", "--", "sh", "-c", script)
    check(task, shapes.TASK)
    until("it runs and its first line is here", lambda: fleet.laptop.run("logs", task["task"]).out == "one\n")
    follower = fleet.laptop.begin("logs", "-f", task["task"][:8])
    waiter = fleet.laptop.begin("--json", "wait", task["task"])
    gate.touch()
    assert fleet.laptop.finish(follower, code=6).out == "one\ntwo\n"
    assert last(fleet.laptop.finish(waiter, code=6))["exit_code"] == 6
    assert fleet.laptop.run("wait", task["task"], code=6)
    assert fleet.mini.ask("task", task["task"])["state"] == "failed"
    check(fleet.laptop.ask("tasks"), [shapes.TASK])
    created = [one["created_at"] for one in fleet.laptop.ask("tasks")]
    assert created == sorted(created, reverse=True)


def test_a_cancelled_run_ends_with_everything_it_started(fleet: Fleet, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command, task = started(fleet.laptop, "mini", "--", "sh", "-c", f"setsid sleep 300 & echo $! > {pids}; sleep 300 & echo $! >> {pids}; wait")
    until("both run", lambda: pids.exists() and len(pids.read_text().split()) == 2)
    fleet.laptop.ask("cancel", task)
    assert last(fleet.laptop.finish(command, code=130))["state"] == "cancelled"
    until("nothing is left", lambda: not [pid for pid in pids.read_text().split() if _lives(int(pid))])


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_machine_that_is_away_is_given_up_or_waited_for(fleet: Fleet, tmp_path: Path) -> None:
    """A foreground run leaves nothing queued; a detached one starts when the machine comes back, once."""
    ran = tmp_path / "ran"
    task = fleet.laptop.ask("run", "gone", "--detach", "--", "sh", "-c", f"echo x >> {ran}")
    assert task["state"] in ("queued", "offered")
    found = last(fleet.laptop.finish(fleet.away, code=125))
    assert (found["state"], found["reason"], found["exit_code"]) == ("failed", "unreachable", None)
    fleet.gone.up("--runs", "mine")
    assert fleet.laptop.run("wait", task["task"])
    assert ran.read_text() == "x\n"
    assert not (fleet.network.folder / "never").exists()
    states = {one["task"]: one["state"] for one in fleet.laptop.ask("tasks", "--all")}
    assert not {"queued", "offered", "running"} & set(states.values())
    fleet.gone.end()


def test_a_worker_killed_in_the_middle_tells_the_truth_afterwards(fleet: Fleet, tmp_path: Path) -> None:
    """The task outlives its machine's node, runs once, and its end and its output come back."""
    gate, ran = tmp_path / "gate", tmp_path / "ran"
    script = f"echo x >> {ran}; echo one; while ! [ -e {gate} ]; do sleep 0.05; done; echo two; exit 9"
    command, task = started(fleet.laptop, "mini", "--", "sh", "-c", script)
    until("it runs", lambda: fleet.laptop.run("logs", task).out == "one\n")
    fleet.mini.kill()
    until("the laptop sees it", lambda: fleet.laptop.peer("mini")["link"] is None)
    gate.touch()
    fleet.mini.up()
    found = last(fleet.laptop.finish(command, code=None))
    assert (found["state"], found["exit_code"]) == ("failed", 9)
    assert fleet.laptop.run("logs", task).out == "one\ntwo\n"
    assert fleet.mini.ask("task", task)["state"] == "failed"
    assert ran.read_text() == "x\n"


def test_a_requester_killed_in_the_middle_has_all_of_it_afterwards(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo one; while ! [ -e {gate} ]; do sleep 0.05; done; echo two; exit 8"
    command, task = started(fleet.laptop, "mini", "--", "sh", "-c", script)
    until("it runs", lambda: fleet.laptop.run("logs", task).out == "one\n")
    fleet.laptop.kill()
    assert fleet.laptop.finish(command, code=125)
    gate.touch()
    until("it ended there", lambda: fleet.mini.ask("task", task)["state"] == "failed")
    fleet.laptop.up()
    assert fleet.laptop.run("wait", task, code=8)
    assert fleet.laptop.run("logs", task).out == "one\ntwo\n"


def test_ctrl_c_twice_cancels_there(fleet: Fleet, tmp_path: Path) -> None:
    began = tmp_path / "began"
    command, _ = started(fleet.laptop, "mini", "--", "sh", "-c", f"touch {began}; exec sleep 300")
    until("it runs", began.exists)
    command.send_signal(signal.SIGINT)
    assert command.stderr is not None
    assert "keeps running" in command.stderr.readline().decode()
    command.send_signal(signal.SIGINT)
    assert last(fleet.laptop.finish(command, code=130))["state"] == "cancelled"
    assert os.path.exists(fleet.mini.home)
