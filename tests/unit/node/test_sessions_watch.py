import json
import os
import shutil
import subprocess

import pytest
import trio

from mesh.base.clock import Now
from mesh.base.db import Database, StorageFull
from mesh.base.errors import OurFault
from node.sessions import store, watch
from node.sessions.formats import LINE_BYTES_MAX
from node.sessions.inventory import fleet_row
from node.sessions.status import UNKNOWN_MS
from node.sessions.watch import Watcher, run_watch
from tests.fakes.transcripts import START_MS, Claude, Codex, claude_usage, compact, process_note, start_of

CANARY = "hunter2-and-more"


class World:
    """One machine's folders, database and clock."""

    def __init__(self, folder, wall_ms=START_MS + 60_000):
        self.claude, self.codex, self.path = folder / "claude", folder / "codex", folder / "sessions.db"
        self.now = Now(wall_ms, 0.0)
        self.open()

    def open(self):
        self.database = Database(self.path, store.SCHEMA)
        redact = lambda text: text.replace(CANARY, "[secret]")  # noqa: E731
        self.watcher = Watcher(self.database, self.claude, self.codex, 24, redact, lambda: self.now)

    def reopen(self):
        self.database.close()
        self.open()

    async def scan(self, seconds=10.0):
        """Let time pass, then do passes until there is nothing left to read."""
        self.now = Now(self.now.wall_ms + int(seconds * 1000), self.now.steady_s + seconds)
        reports = [await self.watcher.scan_once()]
        while reports[-1].more:
            reports.append(await self.watcher.scan_once())
        return reports

    def rows(self):
        shown = [
            fleet_row(state.body, node="n", node_name="mini", heard_ms=None, stale=False, now_ms=self.now.wall_ms)
            for state in self.watcher.listed()
        ]
        return {row["session"]: row for row in shown}


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    yield world
    world.database.close()


def session(name="s", cwd="/srv/demo", **more):
    made = Claude(name, cwd, **more)
    made.prompt()
    made.reply(usage=claude_usage(10, 5))
    return made


def started(program, **more):
    return subprocess.Popen([program, "60"], **more)


def append(path, made, count=1):
    with path.open("a") as file:
        file.write("".join(line + "\n" for line in made.lines[-count:]))


async def test_sessions_of_both_agents_are_listed(world):
    session("claude-1").write(world.claude)
    codex = Codex("a", "/srv/infra")
    codex.start()
    codex.usage(100, 7, cached=60)
    codex.write(world.codex)
    (report,) = await world.scan()
    assert (report.files, report.changed) == (2, True)
    rows = world.rows()
    assert (rows["claude-1"]["agent"], rows["claude-1"]["project"], rows["claude-1"]["status"]) == ("claude", "demo", "unknown")
    assert rows["claude-1"]["tokens"] == {"input": 10, "output": 5, "cache_read": 0, "cache_write": 0}
    assert rows[codex.session]["tokens"] == {"input": 40, "output": 7, "cache_read": 60, "cache_write": 0}
    assert rows[codex.session]["cost_usd"] is None


async def test_usage_written_again_counts_once(world):
    """O-S6, O-S7"""
    made = Claude("s-use", model="claude-sonnet-4-5")
    made.prompt()
    for output in (1, 40, 100):
        made.reply(message_id="m1", usage=claude_usage(10, output, 1_000, 50))
    for output in (2, 60):
        made.reply(message_id="m2", usage=claude_usage(20, output, 1_000, 50))
    made.reply(message_id="m3", usage=claude_usage(5, 7, 1_000, 50), model="model-never-heard-of-9")
    path = made.write(world.claude)
    await world.scan()
    row = world.rows()["s-use"]
    assert row["tokens"] == {"input": 35, "output": 167, "cache_read": 3_000, "cache_write": 150}
    assert row["cost_usd"] is None
    shutil.copy(path, path.with_name("fork.jsonl"))
    await world.scan()
    assert world.rows()["fork"]["tokens"]["input"] is None
    assert world.rows()["s-use"]["tokens"]["output"] == 167


async def test_the_project_is_the_folder_inside_the_records(world):
    """O-S5"""
    for number, cwd in enumerate(["/srv/a-b", "/srv/a/b", "/srv/\uac00", "/srv/\ub098"]):
        session(f"s-{number}", cwd).write(world.claude)
    assert len(list((world.claude / "projects").iterdir())) == 2
    await world.scan()
    assert [world.rows()[f"s-{number}"]["cwd"] for number in range(4)] == ["/srv/a-b", "/srv/a/b", "/srv/\uac00", "/srv/\ub098"]
    assert {world.rows()["s-0"]["project"], world.rows()["s-1"]["project"]} == {"a-b", "b"}


async def test_helpers_are_not_sessions(world):
    """O-S8"""
    session("s-main").write(world.claude)
    for number in range(200):
        helper = Claude("s-main", helper=f"h{number}" if number % 2 else "x")
        helper.helper = f"h{number}"
        for _ in range(2):
            helper.reply(usage=claude_usage(1, 1))
        helper.write(world.claude)
    await world.scan()
    (state,) = world.watcher.listed()
    assert (state.helpers, state.body.input, state.body.output) == (200, 410, 405)


async def test_only_new_bytes_are_read(world):
    """O-S4"""
    made = session()
    for _ in range(200):
        made.prompt("x" * 4_000)
    path = made.write(world.claude)
    await world.scan()
    total = 0
    for _ in range(20):
        made.prompt("more")
        append(path, made)
        total += sum(report.bytes_read for report in await world.scan(0.1))
    assert total < 20 * 3_000
    (report,) = await world.scan(0.1)
    assert (report.files, report.bytes_read, report.changed) == (0, 0, False)
    shutil.copy(session("short").write(world.codex), path)
    await world.scan(0.1)
    assert world.rows()["s"]["tokens"]["output"] == 5
    assert (await world.watcher.session_detail("s"))["turns"] == 2


async def test_a_restart_goes_on_where_it_stopped(world, monkeypatch):
    monkeypatch.setattr(watch, "PASS_BYTES_MAX", 1)
    made = session()
    for _ in range(600):
        made.prompt("y" * 4_000)
    path = made.write(world.claude)
    world.now = Now(world.now.wall_ms, 10.0)
    report = await world.watcher.scan_once()
    assert report.more
    assert report.bytes_read < path.stat().st_size
    world.reopen()
    reports = await world.scan()
    assert sum(report.bytes_read for report in reports) < path.stat().st_size
    assert (await world.watcher.session_detail("s"))["turns"] == 602
    world.reopen()
    assert [state.body.session for state in world.watcher.listed()] == []
    (report,) = await world.scan()
    assert report.bytes_read == 0
    assert world.rows()["s"]["tokens"]["output"] == 5


async def test_a_new_session_and_a_new_folder_are_seen_in_the_next_pass(world):
    session("old").write(world.claude)
    await world.scan()
    session("same-folder").write(world.claude)
    session("new-folder", "/srv/other").write(world.claude)
    Claude("old", helper="h").write(world.claude)
    await world.scan(0.1)
    assert set(world.rows()) == {"old", "same-folder", "new-folder"}


async def test_deleted_and_renamed_transcripts(world):
    """O-S9"""
    paths = [session(f"s-{number}").write(world.claude) for number in range(3)]
    await world.scan()
    paths[0].unlink()
    moved = world.claude / "projects" / "-elsewhere" / paths[1].name
    moved.parent.mkdir()
    paths[1].rename(moved)
    reports = await world.scan()
    assert sum(report.lines for report in reports) == 0
    rows = world.rows()
    assert [rows[f"s-{number}"]["health"] for number in range(3)] == [["transcript_deleted"], [], []]
    assert rows["s-0"]["tokens"]["output"] == rows["s-1"]["tokens"]["output"] == 5
    session("s-0").write(world.claude)
    await world.scan()
    assert world.rows()["s-0"]["health"] == []


async def test_decisions_are_given_until_taken_also_after_a_crash(world):
    made = session()
    made.approved(made.call("Bash", {"command": f"login {CANARY}"}))
    made.denied(made.call("Bash", {"command": "rm -rf /"}))
    path = made.write(world.claude)
    (report,) = await world.scan()
    assert report.decisions == 2
    found = world.watcher.decisions()
    assert [(d.verdict, d.tool, d.subject, d.project, d.session) for d in found] == [
        ("approve", "Bash", "login [secret]", "demo", "s"),
        ("deny", "Bash", "rm -rf /", "demo", "s"),
    ]
    assert world.watcher.decisions(1) == found[:1]
    world.reopen()
    assert world.watcher.decisions() == found
    await world.watcher.take_decisions(found[:1])
    world.reopen()
    assert world.watcher.decisions() == found[1:]
    shutil.copy(path, path.with_name("fork.jsonl"))
    await world.scan()
    assert world.watcher.decisions() == found[1:]
    for file in world.path.parent.glob("sessions.db*"):
        assert CANARY.encode() not in file.read_bytes()


async def test_a_name_given_to_another_file_keeps_both_counts(world):
    path = session().write(world.claude)
    await world.scan()
    path.rename(path.with_name("archived.jsonl"))
    shutil.copy(session("s", at_ms=START_MS + 30_000).write(world.codex), path)
    await world.scan()
    total = [row["tokens"]["output"] or 0 for row in world.rows().values()]
    assert sum(total) == 5
    assert len(total) == 2


async def test_a_pass_that_cannot_be_stored_is_done_again(world, monkeypatch):
    made = session()
    made.approved(made.call())
    made.write(world.claude)
    world.now = Now(world.now.wall_ms, 10.0)
    real = Database.write

    async def full(self, work):
        raise StorageFull("the disk is full")

    monkeypatch.setattr(Database, "write", full)
    with pytest.raises(OurFault):
        await world.watcher.scan_once()
    monkeypatch.setattr(Database, "write", real)
    await world.scan(0.1)
    assert len(world.watcher.decisions()) == 1
    assert world.rows()["s"]["tokens"]["output"] == 10


async def test_a_full_disk_does_not_end_the_watch(world, monkeypatch, autojump_clock):
    async def full(self, work):
        raise StorageFull("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", full)
        async with trio.open_nursery() as nursery:
            session().write(world.claude)
            await nursery.start(run_watch, world.watcher)
            assert world.watcher.trouble == "the disk is full"
            nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_watch, world.watcher)
        assert world.watcher.trouble == ""
        nursery.cancel_scope.cancel()
    assert list(world.rows()) == ["s"]


async def test_the_wake_comes_once_for_a_change(world):
    session().write(world.claude)
    await world.scan()
    session("t").write(world.claude)
    await world.scan()
    world.watcher.changed.receive_nowait()
    with pytest.raises(trio.WouldBlock):
        world.watcher.changed.receive_nowait()
    await world.scan(0.1)
    with pytest.raises(trio.WouldBlock):
        world.watcher.changed.receive_nowait()


async def test_the_loop_sees_a_change(world):
    path = session().write(world.claude)
    world.now = Now(world.now.wall_ms, 10.0)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(run_watch, world.watcher)
            await world.watcher.changed.receive()
            made = session()
            made.interrupted()
            made.title("Seen")
            append(path, made, 2)
            while world.rows()["s"]["title"] != "Seen":
                await world.watcher.changed.receive()
            nursery.cancel_scope.cancel()


async def test_a_living_process_decides_and_its_death_shows(world):
    """O-S10"""
    made = session()
    made.call("Bash", {"command": f"deploy {CANARY}"})
    made.write(world.claude)
    process = started("sleep")
    try:
        folder = world.claude / "sessions"
        folder.mkdir()
        note = process_note(process.pid, "s", start_of(process.pid), status="waiting", waitingFor="permission prompt")
        (folder / f"{process.pid}.json").write_text(json.dumps(note))
        os.mkfifo(folder / f"{process.pid}.key")
        await world.scan(UNKNOWN_MS / 1000)
        row = world.rows()["s"]
        assert (row["status"], row["waiting_for"]) == ("needs_you", "permission prompt: Bash deploy [secret]")
        assert world.watcher.pids() == [process.pid]
    finally:
        process.kill()
        process.wait()
    await world.scan()
    assert (world.rows()["s"]["status"], world.rows()["s"]["health"]) == ("ended", ["died"])
    assert world.watcher.pids() == []


async def test_a_codex_process_is_joined_with_its_session(world, tmp_path):
    codex = Codex("a")
    codex.start()
    path = codex.write(world.codex)
    program = tmp_path / "codex-under-test"
    shutil.copy(shutil.which("sleep"), program)
    with path.open("a") as held:
        process = started(str(program), stdout=held)
    try:
        with trio.fail_after(20):
            while world.rows().get(codex.session, {}).get("status") != "working":
                await world.scan()
        await world.scan(25 * 3_600)
        assert codex.session in world.rows()
    finally:
        process.kill()
        process.wait()
    await world.scan()
    assert codex.session not in world.rows()


async def test_an_old_session_whose_process_lives_is_listed(world):
    session().write(world.claude)
    world.now = Now(world.now.wall_ms + 48 * 3_600_000, 0.0)
    await world.scan()
    assert world.rows() == {}
    note = process_note(os.getpid(), "s", start_of(os.getpid()), status="idle")
    (world.claude / "sessions").mkdir()
    (world.claude / "sessions" / f"{os.getpid()}.json").write_text(json.dumps(note))
    await world.scan()
    assert world.rows()["s"]["status"] == "your_turn"
    assert world.rows()["s"]["tokens"]["output"] == 5


async def test_huge_lines_do_not_hold_up_the_loop(world):
    """O-S3"""
    huge = compact({"type": "assistant", "text": "A" * (LINE_BYTES_MAX + 1)})
    for number in range(3):
        made = session(f"s-{number}")
        made.lines.insert(1, huge)
        made.prompt("last")
        made.write(world.claude)
    beats = 0

    async def beat():
        nonlocal beats
        while True:
            await trio.lowlevel.checkpoint()
            beats += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
        await world.scan()
        nursery.cancel_scope.cancel()
    assert beats > 20
    for number in range(3):
        assert world.rows()[f"s-{number}"]["health"] == ["unreadable_lines:1"]
        assert (await world.watcher.session_detail(f"s-{number}"))["turns"] == 3


async def test_a_file_that_cannot_be_read_does_not_keep_the_watch_busy(world, monkeypatch):
    session().write(world.claude)
    session("t").write(world.claude)
    real = watch.read_new

    def refuse(found, *rest):
        return None if found.session == "s" else real(found, *rest)

    monkeypatch.setattr(watch, "read_new", refuse)
    assert not (await world.scan())[-1].more
    assert list(world.rows()) == ["t"]


async def test_nothing_there_is_nothing_listed(world):
    (report,) = await world.scan()
    assert (report.files, report.changed, world.watcher.listed()) == (0, False, [])


async def test_cancelling_leaves_whole_passes(world):
    session().write(world.claude)
    with trio.move_on_after(0):
        await world.watcher.scan_once()
    await world.scan()
    assert world.rows()["s"]["tokens"]["output"] == 5


async def test_many_files_take_several_passes(world, monkeypatch):
    monkeypatch.setattr(watch, "PASS_FILES_MAX", 7)
    for number in range(20):
        session(f"s-{number}", at_ms=START_MS + number).write(world.claude)
    reports = await world.scan()
    assert [report.files for report in reports] == [7, 7, 6]
    assert len(world.rows()) == 20
