"""Runs end to end: two machines, real ledgers, git, supervisors and processes, joined by channels in memory.

The long ways a task can take are here; what single rooms do is in their unit tests.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from mesh.base.errors import Refused, Unreachable, Usage
from mesh.base.names import base32
from node.messages import PURPOSE_FOLLOW, PURPOSE_OFFER
from node.tasks.output import Frame, Gap
from node.tasks.ports import RunSettings
from node.tasks.processes import stat_fields
from node.tasks.runs import Runs
from node.tasks.task import Key, Task, exit_code_of, fault_of, folder_name
from tests.fakes.machines import FAST, Fleet, Machine

DEADLINE_S = 30


@dataclass
class Pair:
    fleet: Fleet
    laptop: Machine
    mini: Machine
    asks: Runs
    works: Runs

    async def start(self, *argv: str, **options: object) -> Task:
        return (await self.asks.start(self.mini.node, list(argv), **options)).task  # type: ignore[arg-type]

    async def sh(self, script: str, **options: object) -> Task:
        return await self.start("sh", "-c", script, **options)

    def there(self, task: Task) -> Task | None:
        found = [t for t in self.works.tasks(all_=True) if t.key.task == task.key.task]
        return found[0] if found else None


@asynccontextmanager
async def pair(tmp_path: Path, **settings: object) -> AsyncIterator[Pair]:
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini", settings=RunSettings(**{"runs": "mine", **settings}))  # type: ignore[arg-type]
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks, mini.up() as works:
            yield Pair(fleet, laptop, mini, asks, works)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the state of processes and files is all there is to watch
        await trio.sleep(0.005)


async def output(runs: Runs, key: Key, offset: int = 0, *, wait: bool = True) -> tuple[bytes, bytes, list[Gap]]:
    streams, gaps = {1: b"", 2: b""}, []
    parts: dict[int, list[bytes]] = {1: [], 2: []}
    async for piece in runs.follow(key, offset, wait=wait):
        if isinstance(piece, Frame):
            parts[piece.stream].append(piece.data)
        else:
            gaps.append(piece)
    streams = {stream: b"".join(data) for stream, data in parts.items()}
    return streams[1], streams[2], gaps


def marked(task: Task) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HIVEMESH_TASK={task.text_id}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def commands(task: Task) -> list[int]:
    """Find the processes of a task's command: the supervisor carries the mark too, and may still be ending itself."""
    found = []
    for pid in marked(task):
        with suppress(OSError):
            if b"node.tasks.supervisor" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def git(folder: Path, *args: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@e.invalid",
           "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t@e.invalid"}  # fmt: skip
    return subprocess.run(["git", *args], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder


@pytest.mark.parametrize(
    ("argv", "state", "code", "out", "err"),
    [
        (["true"], "done", 0, b"", b""),
        (["sh", "-c", "echo out; echo err >&2; exit 7"], "failed", 7, b"out\n", b"err\n"),
        (["sh", "-c", "kill -9 $$"], "failed", 137, b"", b""),
        (["no-such-program-here"], "failed", 127, b"", b""),
        (["/etc/passwd"], "failed", 126, b"", b""),
    ],
)
async def test_a_command_runs_there_as_if_it_ran_here(tmp_path: Path, argv: list[str], state: str, code: int, out: bytes, err: bytes):
    async with pair(tmp_path) as two:
        task = await two.start(*argv)
        assert (await output(two.asks, task.key))[:2] == (out, err)
        over = await two.asks.wait_final(task.key)
        assert (over.state, over.exit_code, exit_code_of(over), over.output_bytes) == (state, code, code, len(out + err))
        there = two.there(task)
        assert there is not None
        assert (there.state, there.exit_code) == (state, code)
        shown = two.asks.json(over)
        assert (shown["name"], shown["state"], shown["argv"], shown["node"]) == ("mini", state, argv, base32(two.mini.node))


async def test_twenty_megabytes_stream_and_are_kept_here(tmp_path: Path):
    async with pair(tmp_path) as two:
        task = await two.sh("head -c 20000000 /dev/zero; echo end")
        out, _, gaps = await output(two.asks, task.key)
        assert len(out) == 20_000_004
        assert out.endswith(b"end\n")
        assert gaps == []
        two.fleet.network.cut(two.laptop.node, two.mini.node)
        again, _, _ = await output(two.asks, task.key, 19_999_990)
        assert again == out[19_999_990:], "logs need nobody else later"


async def test_the_tree_as_it_is_now_is_there(tmp_path: Path):
    """O-X16: a changed, an untracked and an unpushed file; the command finds a clean work tree at a stated commit."""
    folder = repository(tmp_path / "shop", tracked="old\n")
    (folder / "tracked").write_text("changed\n")
    (folder / "untracked").write_text("new\n")
    async with pair(tmp_path / "fleet") as two:
        begun = await two.asks.start(two.mini.node, ["sh", "-c", "cat tracked untracked; git status --short; git rev-parse HEAD"], cwd=folder)
        assert [file.path for file in begun.untracked] == ["untracked"]
        over = await two.asks.wait_final(begun.task.key)
        out, err, _ = await output(two.asks, over.key)
        assert out == b"changed\nnew\n" + str(over.spec.tree).encode() + b"\n", err
        assert (over.state, over.spec.project) == ("done", "shop")
        assert git(folder, "status", "--short").splitlines() == ["M tracked", "?? untracked"]
        for machine in (two.laptop, two.mini):
            place = machine.folder / "tasks" / folder_name(over.key)
            await until(lambda place=place: not any((place / name).exists() for name in ("repo", "tree", "home", "tmp", "pack")))


async def test_a_command_starts_in_the_folder_it_was_asked_from(tmp_path: Path):
    folder = repository(tmp_path / "shop", tracked="old\n")
    (folder / "api" / "tests").mkdir(parents=True)
    (folder / "api" / "tests" / "here").write_text("1")
    (folder / "web").symlink_to("api")
    async with pair(tmp_path / "fleet") as two:
        for cwd, expected in ((folder / "api" / "tests", b"tree/api/tests\n"), (folder, b"tree\n"), (folder / "web", b"tree/api\n")):
            begun = await two.asks.start(two.mini.node, ["sh", "-c", "pwd | sed 's,.*/tree,tree,'"], cwd=cwd)
            over = await two.asks.wait_final(begun.task.key)
            out, err, _ = await output(two.asks, over.key)
            assert out == expected, err


async def test_a_code_above_128_is_an_exit_unless_a_signal_ended_it(tmp_path: Path):
    async with pair(tmp_path / "fleet") as two:
        for command, reason, code in (("exit 200", "exit", 200), ("kill -9 $$", "signal", 137)):
            begun = await two.asks.start(two.mini.node, ["sh", "-c", command], tree=False)
            over = await two.asks.wait_final(begun.task.key)
            assert (over.reason, over.exit_code) == (reason, code)


async def test_outside_a_repository_and_without_a_tree_the_folder_is_empty(tmp_path: Path):
    folder = repository(tmp_path / "shop", a="1")
    async with pair(tmp_path / "fleet") as two:
        for options in ({}, {"cwd": tmp_path}, {"cwd": folder, "tree": False}):
            task = await two.sh("ls -A; pwd", **options)
            out, _, _ = await output(two.asks, task.key)
            assert out.count(b"\n") == 1
            assert out.endswith(b"/tree\n")
            assert task.spec.tree is None


async def test_a_tree_that_cannot_travel_leaves_nothing_behind(tmp_path: Path):
    folder = repository(tmp_path / "shop", a="1")
    (folder / ".env").write_text("TOKEN=canary")
    async with pair(tmp_path / "fleet") as two:
        with pytest.raises(Refused) as refused:
            await two.sh("true", cwd=folder)
        assert refused.value.reason == "untracked"
        assert two.asks.tasks(all_=True) == []
        assert not list((two.laptop.folder / "tasks").iterdir())
        task = await two.sh("cat .env", cwd=folder, yes=True)
        assert (await output(two.asks, task.key))[0] == b"TOKEN=canary"


async def test_a_hostile_repository_runs_nothing_anywhere(tmp_path: Path):
    """O-X23: neither where it is packed nor where it is laid out."""
    folder = repository(tmp_path / "r", **{"a.txt": "ok\n", ".gitattributes": "* filter=evil\n"})
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.smudge"):
        git(folder, "config", name, f"touch {tmp_path}/PWNED; cat")
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (folder / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
        (folder / ".git" / "hooks" / hook).chmod(0o755)
    (folder / "up").symlink_to("../../..")
    (folder / "a.txt").write_text("changed\n")
    async with pair(tmp_path / "fleet") as two:
        task = await two.sh("cat a.txt; readlink up", cwd=folder)
        assert (await output(two.asks, task.key))[0] == b"changed\n../../..\n"
        await two.asks.wait_final(task.key)
    assert not (tmp_path / "PWNED").exists()


async def test_a_refusing_machine_says_why(tmp_path: Path):
    async with pair(tmp_path, runs="off") as two:
        over = await two.asks.wait_final((await two.sh("echo ran > /tmp/x")).key)
        fault = fault_of(over)
        assert over.state == "refused"
        assert isinstance(fault, Refused)
        assert fault.reason == "policy"
        assert exit_code_of(over) == 125
        assert two.there(over) is None
        assert not list((two.mini.folder / "tasks").iterdir())


async def test_another_persons_machine_is_refused(tmp_path: Path):
    fleet = Fleet(tmp_path)
    laptop, bens = fleet.machine("laptop", "ana"), fleet.machine("mini", "ben", settings=RunSettings(runs="mine"))
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks, bens.up():
            over = await asks.wait_final((await asks.start(bens.node, ["true"])).task.key)
            assert (over.state, over.reason) == ("refused", "other_person")


async def test_what_cannot_be_asked_is_a_usage_error(tmp_path: Path):
    async with pair(tmp_path) as two:
        for node, argv in ((two.laptop.node, ["true"]), (b"x" * 16, ["true"]), (two.mini.node, [])):
            with pytest.raises(Usage):
                await two.asks.start(node, argv)  # type: ignore[arg-type]
        for text in ("", "zzzz", "a" * 99):
            with pytest.raises(Usage):
                two.asks.task(text)


async def test_an_unreachable_machine_fails_in_time_and_nothing_stays_queued(tmp_path: Path):
    async with pair(tmp_path) as two:
        two.fleet.network.cut(two.laptop.node, two.mini.node)
        over = await two.asks.wait_final((await two.sh("true")).key)
        assert isinstance(fault_of(over), Unreachable)
        assert exit_code_of(over) == 125
        two.fleet.network.mend(two.laptop.node, two.mini.node)
        await trio.sleep(0.2)
        assert two.there(over) is None
        assert all(task.final for task in two.asks.tasks())


async def test_a_detached_run_waits_for_its_machine(tmp_path: Path):
    folder = repository(tmp_path / "shop", a="at that moment\n")
    async with pair(tmp_path / "fleet") as two:
        two.fleet.network.cut(two.laptop.node, two.mini.node)
        task = await two.sh("cat a", cwd=folder, detach=True)
        (folder / "a").write_text("later\n")
        await trio.sleep(1.2)
        assert two.asks.task(task.text_id).state == "queued"
        two.fleet.network.mend(two.laptop.node, two.mini.node)
        over = await two.asks.wait_final(task.key)
        assert (await output(two.asks, over.key))[0] == b"at that moment\n"


@pytest.mark.parametrize("moment", ["at once", "running", "twice", "ended"])
async def test_cancel_at_any_moment_ends_the_same_on_both_sides(tmp_path: Path, moment: str):
    """O-X1, O-X4 b, d, e: the whole tree is gone before it is called cancelled."""
    async with pair(tmp_path) as two:
        task = await two.sh("true" if moment == "ended" else "setsid sleep 300 & sleep 300 | cat")
        if moment in ("running", "twice"):
            await until(lambda: len(marked(task)) >= 3)
        if moment == "ended":
            await two.asks.wait_final(task.key)
        await two.asks.cancel(task.key)
        if moment == "twice":
            await two.asks.cancel(task.key)
        over = await two.asks.wait_final(task.key)
        expected = ("done", 0) if moment == "ended" else ("cancelled", 130)
        assert (over.state, over.exit_code) == expected
        assert commands(task) == []
        await until(lambda: marked(task) == [])
        there = two.there(task)
        assert there is None or (there.state, there.exit_code) == expected
        await two.asks.cancel(task.key)
        assert two.asks.task(task.text_id).state == over.state


async def test_a_cancel_while_the_line_is_cut_is_applied_when_it_is_back(tmp_path: Path):
    """O-X4 a: durable here, shown as asked for until the worker has said so."""
    async with pair(tmp_path) as two:
        task = await two.sh("sleep 300")
        await until(lambda: bool(marked(task)))
        two.fleet.network.cut(two.laptop.node, two.mini.node)
        shown = two.asks.json(await two.asks.cancel(task.key))
        assert (shown["state"] in ("starting", "running", "offered", "accepted"), shown["cancel_requested"]) == (True, True)
        await trio.sleep(0.2)
        assert marked(task)
        two.fleet.network.mend(two.laptop.node, two.mini.node)
        assert (await two.asks.wait_final(task.key)).state == "cancelled"
        assert marked(task) == []


async def test_a_cancel_that_overtakes_its_task_still_counts(tmp_path: Path):
    """O-X4: the worker hears the cancel before the offer, and never starts it."""
    async with pair(tmp_path, slots=1) as two:
        blocker = await two.sh("sleep 300")
        await until(lambda: bool(marked(blocker)))
        waiting = await two.sh("echo ran")
        await until(lambda: (two.there(waiting) or waiting).state == "accepted")
        await two.asks.cancel(waiting.key)
        over = await two.asks.wait_final(waiting.key)
        assert over.state == "cancelled"
        assert over.started_ms is None
        await two.asks.cancel(blocker.key)
        await two.asks.wait_final(blocker.key)
        assert (two.there(waiting) or waiting).state == "cancelled"


async def test_the_worker_can_cancel_too(tmp_path: Path):
    async with pair(tmp_path) as two:
        task = await two.sh("sleep 300")
        await until(lambda: bool(marked(task)))
        await two.works.cancel(two.works.task(task.text_id).key)
        assert (await two.asks.wait_final(task.key)).state == "cancelled"


async def test_the_time_limit_ends_the_tree(tmp_path: Path):
    async with pair(tmp_path) as two:
        over = await two.asks.wait_final((await two.sh("echo before; setsid sleep 300 & sleep 300", timeout_s=1)).key)
        assert (over.state, over.exit_code, over.reason) == ("timed_out", 124, "timeout")
        assert (await output(two.asks, over.key))[0] == b"before\n"
        assert marked(over) == []


async def test_slots_are_kept_and_the_rest_waits_its_turn(tmp_path: Path):
    async with pair(tmp_path, slots=2) as two:
        tasks = [await two.sh("echo $$; sleep 0.3") for _ in range(5)]
        busiest = 0
        while not all(two.asks.task(task.text_id).final for task in tasks):
            busiest = max(busiest, sum(task.state in ("starting", "running") for task in two.works.tasks()))
            await trio.sleep(0.01)
        assert busiest == 2
        assert {two.asks.task(task.text_id).state for task in tasks} == {"done"}


async def test_output_goes_on_where_it_stopped_when_the_line_comes_back(tmp_path: Path):
    async with pair(tmp_path) as two:
        task = await two.sh("for i in $(seq 1 40); do seq $i 1 2000; echo mark $i; sleep 0.02; done; exit 3")
        for _ in range(3):
            await trio.sleep(0.15)
            two.fleet.network.cut(two.laptop.node, two.mini.node)
            await trio.sleep(0.05)
            two.fleet.network.mend(two.laptop.node, two.mini.node)
        over = await two.asks.wait_final(task.key)
        out, _, gaps = await output(two.asks, task.key)
        assert over.exit_code == 3
        assert gaps == []
        assert out == (await output(two.works, two.works.task(task.text_id).key))[0]
        assert [line for line in out.split(b"\n") if line.startswith(b"mark")] == [b"mark %d" % n for n in range(1, 41)]
        opened = [purpose for a, _, purpose in two.fleet.network.opened if a == two.laptop.node]
        assert opened.count(PURPOSE_FOLLOW) >= 3
        assert opened.count(PURPOSE_OFFER) == 1


async def test_many_logs_end_whole(tmp_path: Path):
    """O-X9: each log has all its lines and both last ones, and its exit code."""
    async with pair(tmp_path, slots=8) as two:
        tasks = [await two.sh("seq 1 20000; echo LAST-OUT; echo LAST-ERR >&2; exit 3") for _ in range(12)]
        for task in tasks:
            out, err, gaps = await output(two.asks, task.key)
            assert out.count(b"\n") == 20_001
            assert out.endswith(b"LAST-OUT\n")
            assert err == b"LAST-ERR\n"
            assert gaps == []
            assert (await two.asks.wait_final(task.key)).exit_code == 3


async def test_cut_output_is_marked_here_too(tmp_path: Path):
    """O-X10: head, mark and tail, the true exit code, on both machines."""
    async with pair(tmp_path, output_bytes_max=2 << 20) as two:
        task = await two.sh("echo head; head -c 30000000 /dev/zero | tr '\\0' x; echo tail; exit 4")
        over = await two.asks.wait_final(task.key)
        there = two.works.task(task.text_id)
        for runs, key in ((two.works, there.key), (two.asks, over.key)):
            out, _, gaps = await output(runs, key)
            assert (out.startswith(b"head\nxxx") and out.endswith(b"xxxtail\n")) or gaps[0].start == 0
            assert len(out) + sum(gap.end - gap.start for gap in gaps) == over.output_bytes == 30_000_010
        assert over.exit_code == 4
        assert "cut from the middle" in over.detail
        place = two.mini.folder / "tasks" / folder_name(over.key) / "log"
        assert sum(path.stat().st_size for path in place.iterdir()) <= 2 << 20


async def test_nothing_passes_from_one_task_to_the_next(tmp_path: Path):
    """O-X27."""
    async with pair(tmp_path) as two:
        first = await two.sh("echo secret > $HOME/.netrc; echo secret > $TMPDIR/x; git config --global user.name leak; touch left; echo $HOME")
        await two.asks.wait_final(first.key)
        second = await two.sh("ls -A ~ $TMPDIR .; env; git config --global user.name; echo $HOME")
        out, _, _ = await output(two.asks, second.key)
        assert b"netrc" not in out
        assert b"leak" not in out
        assert b"left" not in out
        assert (await output(two.asks, first.key))[0].strip() not in out


async def test_a_repeated_offer_changes_nothing_and_another_command_is_refused(tmp_path: Path):
    async with pair(tmp_path) as two:
        counter = tmp_path / "counter"
        task = await two.sh(f"echo x >> {counter}; sleep 0.3")
        over = await two.asks.wait_final(task.key)
        from mesh.base.codec import decode_untrusted
        from node.messages import TASK_MESSAGES, Offer, TaskReport

        stored = two.asks._ground.ledger.get(task.key)
        assert stored is not None
        offer = decode_untrusted(Offer, stored.offer, bytes_max=60_000)
        channels = two.fleet.network.ends[two.laptop.node]
        for _ in range(3):
            channel = await channels.open_channel(two.mini.node, PURPOSE_OFFER, TASK_MESSAGES.encode(offer))
            reply = await channel.receive()
            assert reply is not None
            report = TASK_MESSAGES.decode_untrusted(reply, bytes_max=60_000)
            assert isinstance(report, TaskReport)
            assert report.state == 6
        assert counter.read_text() == "x\n"
        assert over.state == "done"


@asynccontextmanager
async def down_and_up(machine: Machine) -> AsyncIterator[Runs]:
    async with machine.up() as runs:
        yield runs


async def test_a_worker_that_restarts_finds_its_task_again(tmp_path: Path):
    """O-X29: re-attached by the supervisor's lock, started once, output whole."""
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up():
                task = (await asks.start(mini.node, ["sh", "-c", f"echo x >> {tmp_path}/n; echo one; sleep 1; echo two; exit 5"])).task
                await until(lambda: (tmp_path / "n").exists())
            assert marked(task), "it outlives the node"
            async with mini.up():
                over = await asks.wait_final(task.key)
                assert (over.state, over.exit_code) == ("failed", 5)
                assert (await output(asks, task.key))[0] == b"one\ntwo\n"
                assert (tmp_path / "n").read_text() == "x\n"


async def test_a_task_that_ended_while_the_worker_was_down_is_settled(tmp_path: Path):
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up():
                task = (await asks.start(mini.node, ["sh", "-c", "echo up; sleep 0.3; exit 4"])).task
                await until(lambda: bool(marked(task)))
            await until(lambda: not marked(task))
            async with mini.up():
                assert (await asks.wait_final(task.key)).exit_code == 4


async def test_a_task_whose_supervisor_was_killed_is_lost_and_never_run_again(tmp_path: Path):
    """O-X3, O-X29: after a crash of node and supervisor nothing of it lives, it is lost, its log is readable."""
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up():
                task = (await asks.start(mini.node, ["sh", "-c", f"echo x >> {tmp_path}/n; echo up; setsid sleep 300 & sleep 300"])).task
                await until(lambda: asks.task(task.text_id).output_bytes == 3)
            birth = mini.folder / "tasks" / folder_name(task.key) / "birth"
            os.kill(int(birth.read_text().split()[0]), signal.SIGKILL)
            async with mini.up():
                over = await asks.wait_final(task.key)
                assert (over.state, over.exit_code, over.reason) == ("lost", None, "interrupted")
                await until(lambda: not marked(task))
                assert (tmp_path / "n").read_text() == "x\n"
                assert (await output(asks, task.key))[0] == b"up\n"
                assert exit_code_of(over) == 125


ATTACKS = {
    "lock is a folder": "rm ../lock; mkdir ../lock",
    "lock is a link": "rm ../lock; ln -s /etc/passwd ../lock",
    "log is a file": "rm -rf ../log; touch ../log; echo more",
    "log is a link": "rm -rf ../log; ln -s $VICTIM/log ../log; echo more",
    "log is a pipe": "rm -rf ../log; mkfifo ../log; echo more",
    "segments are pipes": "cd ../log; for f in *; do rm $f; mkfifo $f; done; mkfifo 00000000000000ff",
    "exit is a pipe": "rm ../exit.new; mkfifo ../exit ../exit.new; kill -9 $PPID",
    "birth is a pipe": "rm ../birth; mkfifo ../birth; kill -9 $PPID",
    "news is a file": "rm ../news ../orders; touch ../news ../orders",
    "another folder": "d=$(cd ..; pwd); mv $d $d.moved; cp -r $VICTIM $d",
    "a link": "d=$(cd ..; pwd); mv $d $d.moved; ln -s $VICTIM $d",
    "a file": "d=$(cd ..; pwd); mv $d $d.moved; touch $d",
    "nothing": "rm -rf ../../*",
    "closed": "chmod 0 ../* ..",
}


@pytest.mark.parametrize("restart", [False, True], ids=["stays up", "restarts"])
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_whatever_a_task_makes_of_its_files_ends_that_task_and_touches_nothing_else(tmp_path: Path, attack: str, restart: bool):
    """The node outlives it and starts again, follows no link, deletes nothing of anybody, and runs the next task."""
    victim = tmp_path / "victim"
    for name in ("tree", "repo", "home", "tmp", "log"):
        (victim / name).mkdir(parents=True)
        (victim / name / "precious").write_text(name)
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up() as works:
                script = f"VICTIM={victim}; echo before; {attack}; touch {tmp_path}/attacked; while ! test -e {tmp_path}/go; do sleep 0.02; done"
                task = (await asks.start(mini.node, ["sh", "-c", script])).task
                await until(lambda: (tmp_path / "attacked").exists() or asks.task(task.text_id).final)
                works.tasks()
                if not restart:
                    (tmp_path / "go").touch()
                    over = await asks.wait_final(task.key)
            async with mini.up() as works:
                (tmp_path / "go").touch()
                over = await asks.wait_final(task.key)
                await output(asks, task.key)
                again = await asks.wait_final((await asks.start(mini.node, ["echo", "again"])).task.key)
                assert (again.state, (await output(asks, again.key))[0]) == ("done", b"again\n")
            async with mini.up() as works:
                assert works.task(task.text_id).state == over.state
    assert over.state in ("done", "lost")
    assert {path.name: (path / "precious").read_text() for path in victim.iterdir()} == {n: n for n in ("tree", "repo", "home", "tmp", "log")}
    assert sum(1 for _ in victim.rglob("*")) == 10
    assert marked(task) == []


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes by /proc")
@pytest.mark.parametrize("way", ["timeout", "cancel", "cancel, and it stays stopped", "cancel after a restart", "cancel, orders gone"])
async def test_a_stopped_supervisor_neither_holds_a_slot_nor_defeats_time_and_cancel(tmp_path: Path, way: str):
    times = dataclasses.replace(FAST, slack_s=0.3)
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini", times=times, settings=RunSettings(runs="mine", slots=1))
    stop = "kill -STOP $PPID"
    # It attacks only once the worker has recorded that it runs, so that every case begins in the same state.
    wait = f"touch {tmp_path}/up; while ! test -e {tmp_path}/go; do sleep 0.02; done"
    script = f"{wait}; {stop}; (exec env -u HIVEMESH_TASK sleep 301) & sleep 302"
    if way == "cancel, and it stays stopped":
        script = f"s=$PPID; {wait}; while kill -STOP $s; do sleep 0.01; done"
    if way == "cancel, orders gone":
        script = f"{wait}; rm ../orders; touch {tmp_path}/gone; sleep 303"
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up():
                limit_s = 1 if way == "timeout" else 60
                task = (await asks.start(mini.node, ["sh", "-c", script], timeout_s=limit_s)).task
                await until((tmp_path / "up").exists)
                await until(lambda: asks.task(task.text_id).state == "running")
                (tmp_path / "go").touch()
                if way == "cancel, orders gone":
                    await until((tmp_path / "gone").exists)
                else:
                    await until(lambda: any(stat_fields(pid)[:1] == [b"T"] for pid in marked(task)))
                if "restart" not in way:
                    if way != "timeout":
                        await asks.cancel(task.key)
                    over = await asks.wait_final(task.key)
            async with mini.up():
                if "restart" in way:
                    await asks.cancel(task.key)
                    over = await asks.wait_final(task.key)
                assert over.state == ("timed_out" if way == "timeout" else "cancelled")
                assert over.exit_code == (124 if way == "timeout" else 130)
                assert (await asks.wait_final((await asks.start(mini.node, ["true"])).task.key)).state == "done"
    assert marked(task) == []


async def test_a_requester_that_restarts_goes_on_following(tmp_path: Path):
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with mini.up():
            async with laptop.up() as asks:
                task = (await asks.start(mini.node, ["sh", "-c", "seq 1 1000; sleep 0.5; seq 1001 2000; exit 6"])).task
                await until(lambda: asks.task(task.text_id).output_bytes > 0)
            async with laptop.up() as asks:
                over = await asks.wait_final(task.key)
                assert over.exit_code == 6
                assert (await output(asks, task.key))[0] == b"".join(b"%d\n" % n for n in range(1, 2001))


async def test_a_worker_whose_ledger_was_restored_answers_lost(tmp_path: Path):
    """SECURITY: an old database does not make a second run of an offer sent again."""
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up():
                task = (await asks.start(mini.node, ["sh", "-c", f"echo x >> {tmp_path}/n; sleep 300"])).task
                await until(lambda: (tmp_path / "n").exists())
            for name in ("tasks.db", "tasks.db-wal", "tasks.db-shm"):
                (mini.folder / name).unlink(missing_ok=True)
            async with mini.up():
                over = await asks.wait_final(task.key)
                assert over.state == "lost"
                assert (tmp_path / "n").read_text() == "x\n"
        for pid in marked(task):
            os.kill(pid, signal.SIGKILL)


async def test_a_full_disk_refuses_says_so_and_recovers(tmp_path: Path):
    """O-X13: refused with the reason under the floor, accepted again with room, without a restart."""
    async with pair(tmp_path) as two:
        two.mini.free_bytes = 199_000_000
        over = await two.asks.wait_final((await two.sh("true")).key)
        assert (over.state, over.reason) == ("refused", "disk_full")
        assert "200 MB" in over.detail
        two.mini.free_bytes = 10**12
        assert (await two.asks.wait_final((await two.sh("true")).key)).state == "done"
        two.laptop.free_bytes = 0
        with pytest.raises(Refused):
            await two.sh("true")


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/proc/self/mounts").exists(), reason="needs to mount a small disk")
async def test_a_task_that_fills_the_disk_fails_alone(tmp_path: Path):
    """O-X13: true exit status although not a byte was free, the node stays up, and the next task runs without a restart."""
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini")
    mini.folder.mkdir()
    await trio.run_process(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mini.folder)])
    try:
        with trio.fail_after(DEADLINE_S):
            async with laptop.up() as asks, mini.up():
                script = "echo before; dd if=/dev/zero of=fill bs=1M count=1000 2>/dev/null; echo after; head -c 300000 /dev/zero; exit 9"
                over = await asks.wait_final((await asks.start(mini.node, ["sh", "-c", script])).task.key)
                out, _, gaps = await output(asks, over.key)
                assert (over.state, over.exit_code, over.output_bytes) == ("failed", 9, 300_013)
                assert out.startswith(b"before\n")
                assert gaps
                assert "the disk was full" in over.detail
                again = await asks.wait_final((await asks.start(mini.node, ["echo", "again"])).task.key)
                assert (again.state, (await output(asks, again.key))[0]) == ("done", b"again\n")
    finally:
        await trio.run_process(["umount", str(mini.folder)])


async def test_an_expelled_machines_task_is_lost(tmp_path: Path):
    async with pair(tmp_path) as two:
        task = await two.sh("sleep 1")
        await until(lambda: two.asks.task(task.text_id).state == "running")
        two.fleet.network.cut(two.laptop.node, two.mini.node)
        two.mini.state = "expelled"
        over = await two.asks.wait_final(task.key)
        assert (over.state, over.reason) == ("lost", "expelled")


@asynccontextmanager
async def trio_of(tmp_path: Path) -> AsyncIterator[tuple[Fleet, dict[str, Machine], dict[str, Runs]]]:
    """A laptop that asks, a mini that works only after a yes, and a phone of the same person."""
    fleet = Fleet(tmp_path)
    machines = {
        "laptop": fleet.machine("laptop"),
        "mini": fleet.machine("mini", settings=RunSettings(runs="ask")),
        "phone": fleet.machine("phone", roles=("member",)),
        "viewer": fleet.machine("viewer", roles=("viewer",)),
        "bens": fleet.machine("bens", "ben"),
    }
    with trio.fail_after(DEADLINE_S):
        async with AsyncExitStack() as stack:
            runs = {name: await stack.enter_async_context(machine.up()) for name, machine in machines.items()}
            yield fleet, machines, runs


async def test_asked_for_answered_from_another_machine(tmp_path: Path):
    async with trio_of(tmp_path) as (_, machines, runs):
        task = (await runs["laptop"].start(machines["mini"].node, ["printf", "%s", "a\u202eb"])).task
        await until(lambda: len(runs["phone"].inbox()) == 1)
        await until(lambda: runs["laptop"].task(task.text_id).state == "asking")
        shown = runs["phone"].inbox_json()[0]
        assert (shown["kind"], shown["name"], shown["task"], shown["command"]) == ("task", "mini", task.text_id, r"printf %s 'a\u{202e}b'")
        assert "WITHOUT A SANDBOX" in str(shown["what"])
        assert runs["bens"].inbox() == []
        await runs["phone"].answer(str(shown["id"])[:8], allow=True, digest=str(shown["digest"]))
        over = await runs["laptop"].wait_final(task.key)
        assert (over.state, (await output(runs["laptop"], task.key))[0]) == ("done", "a\u202eb".encode())
        await until(lambda: not runs["phone"].inbox())


async def test_only_the_right_machines_may_answer(tmp_path: Path):
    """SECURITY: neither the requester itself, nor a viewer, nor another person, nor with another digest."""
    async with trio_of(tmp_path) as (_, machines, runs):
        task = (await runs["laptop"].start(machines["mini"].node, ["true"])).task
        await until(lambda: len(runs["phone"].inbox()) == 1)
        item = runs["phone"].inbox()[0]
        for who, reason in (("laptop", "requester"), ("viewer", "role"), ("bens", "other_person")):
            with pytest.raises(Refused) as refused:
                await runs[who]._approvals.answer(item, 1, item.body.digest)
            assert refused.value.reason == reason
        with pytest.raises(Refused) as refused:
            await runs["phone"].answer(item.text_id, allow=True, digest="00" * 32)
        assert refused.value.reason == "changed"
        assert runs["mini"].task(task.text_id).state == "asking"
        assert marked(task) == []
        await runs["mini"].answer(item.text_id, allow=False)
        over = await runs["laptop"].wait_final(task.key)
        assert (over.state, over.reason) == ("refused", "denied")
        with pytest.raises(Refused) as refused:
            await runs["phone"]._approvals.answer(item, 1, item.body.digest)
        assert refused.value.reason == "answered"


async def test_open_requests_have_a_limit_and_survive_a_restart(tmp_path: Path):
    fleet = Fleet(tmp_path)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini", settings=RunSettings(runs="ask"))
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks:
            async with mini.up() as works:
                tasks = [(await asks.start(mini.node, ["true"])).task for _ in range(5)]
                await until(lambda: len(works.inbox()) == 5)
                over = await asks.wait_final((await asks.start(mini.node, ["true"])).task.key)
                assert (over.state, over.reason) == ("refused", "asks_full")
            async with mini.up() as works:
                assert len(works.inbox()) == 5
                for item in works.inbox():
                    await works.answer(item.text_id, allow=True)
                for task in tasks:
                    assert (await asks.wait_final(task.key)).state == "done"


async def test_what_is_too_long_to_show_is_allowed_on_the_machine_only(tmp_path: Path):
    async with trio_of(tmp_path) as (_, machines, runs):
        task = (await runs["laptop"].start(machines["mini"].node, ["echo", "x" * 5_000])).task
        await until(lambda: len(runs["phone"].inbox()) == 1)
        item = runs["phone"].inbox()[0]
        assert not item.body.complete
        with pytest.raises(Refused) as refused:
            await runs["phone"].answer(item.text_id, allow=True)
        assert refused.value.reason == "incomplete"
        assert len(runs["mini"].inbox()[0].body.command) > 5_000
        await runs["mini"].answer(item.text_id, allow=True)
        assert (await runs["laptop"].wait_final(task.key)).state == "done"


async def test_nobody_answers_in_time(tmp_path: Path):
    import dataclasses

    fleet = Fleet(tmp_path)
    hasty = dataclasses.replace(FAST, ask_s=0.2, refresh_s=0.05)
    laptop, mini = fleet.machine("laptop"), fleet.machine("mini", settings=RunSettings(runs="ask"), times=hasty)
    with trio.fail_after(DEADLINE_S):
        async with laptop.up() as asks, mini.up() as works:
            over = await asks.wait_final((await asks.start(mini.node, ["true"])).task.key)
            assert (over.state, over.reason) == ("refused", "unanswered")
            assert works.inbox() == []
