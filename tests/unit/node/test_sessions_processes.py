import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from mesh.base.clock import Now, read_clock
from node.sessions.processes import SAMPLE_S, Processes
from tests.fakes.transcripts import Codex, process_note, start_of

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def note(folder, pid, session="s", start=None, **more):
    (folder / "sessions").mkdir(exist_ok=True)
    text = json.dumps(process_note(pid, session, start or start_of(pid), **more))
    (folder / "sessions" / f"{pid}.json").write_text(text)


def look(folder, now=None):
    return Processes(folder, str(folder / "rollouts")).look(now or read_clock())


def test_a_living_process_with_its_own_word(tmp_path, sleeper):
    note(tmp_path, sleeper.pid, status="waiting", waitingFor="permission prompt", statusUpdatedAt=1_796_000_000_000)
    (running,) = look(tmp_path)
    assert (running.agent, running.session, running.pid) == ("claude", "s", sleeper.pid)
    life = running.life
    assert (life.state, life.word, life.waiting_for, life.word_ms) == ("alive", "waiting", "permission prompt", 1_796_000_000_000)


def test_the_world_it_counts_in_must_be_ours(tmp_path, sleeper):
    note(tmp_path, sleeper.pid, pidDomain="linux:0:" + os.readlink("/proc/self/ns/pid"))
    assert look(tmp_path)[0].life.state == "alive"
    note(tmp_path, sleeper.pid, pidDomain="linux:0:pid:[1]")
    assert (look(tmp_path)[0].life.state, look(tmp_path)[0].life.why) == ("none", "it runs in another process namespace")


def test_a_later_process_with_the_same_number_is_another(tmp_path, sleeper):
    note(tmp_path, sleeper.pid, start="1")
    assert look(tmp_path)[0].life.state == "gone"


def test_a_killed_process_is_gone_though_its_file_stays(tmp_path, sleeper):
    """O-S10"""
    note(tmp_path, sleeper.pid, status="busy")
    sleeper.kill()
    deadline = time.monotonic() + 5
    while (state := look(tmp_path)[0].life.state) == "alive" and time.monotonic() < deadline:
        os.sched_yield()
    assert state == "gone"
    sleeper.wait()
    assert look(tmp_path)[0].life.state == "gone"


def test_of_two_processes_of_one_session_the_living_one_counts(tmp_path, sleeper):
    note(tmp_path, sleeper.pid)
    note(tmp_path, 4_000_000, start="1")
    assert [running.life.state for running in look(tmp_path)] == ["alive"]


def test_files_that_are_not_process_files_are_never_opened(tmp_path, sleeper):
    note(tmp_path, sleeper.pid)
    folder = tmp_path / "sessions"
    os.mkfifo(folder / f"{sleeper.pid}.key")
    os.mkfifo(folder / "1.json")
    (folder / "2.json").write_text(json.dumps(process_note(3, "other", "1")))
    (folder / "4.json").write_text("{")
    assert [running.session for running in look(tmp_path)] == ["s"]


def test_the_youngest_child_is_known(tmp_path):
    code = "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read(); child.kill()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert int(parent.stdout.readline())
        note(tmp_path, parent.pid)
        life = look(tmp_path)[0].life
        if not life.children_known:
            pytest.skip("this kernel does not list children")
        assert abs(life.newest_child_ms - time.time() * 1000) < 30_000
    finally:
        parent.communicate()


def test_quiet_needs_two_samples_apart(tmp_path, sleeper):
    note(tmp_path, sleeper.pid)
    processes = Processes(tmp_path, str(tmp_path / "rollouts"))
    begun = read_clock()
    assert processes.look(begun)[0].life.quiet_since_ms is None
    assert processes.look(Now(begun.wall_ms, begun.steady_s + 1))[0].life.quiet_since_ms is None
    later = Now(begun.wall_ms + int(SAMPLE_S * 1000), begun.steady_s + SAMPLE_S)
    assert abs(processes.look(later)[0].life.quiet_since_ms - begun.wall_ms) <= 1


def used_ticks(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[11])


def test_processor_use_is_not_quiet(tmp_path):
    busy = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        busy.stdout.readline()
        note(tmp_path, busy.pid)
        processes = Processes(tmp_path, str(tmp_path / "rollouts"))
        now = read_clock()
        processes.look(now)
        before, deadline = used_ticks(busy.pid), time.monotonic() + 20
        while used_ticks(busy.pid) < before + 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        later = Now(now.wall_ms + int(SAMPLE_S * 1000), now.steady_s + SAMPLE_S)
        assert processes.look(later)[0].life.quiet_since_ms is None
    finally:
        busy.kill()
        busy.communicate()


def test_a_codex_process_is_known_by_the_rollout_it_holds_open(tmp_path):
    session = Codex("a")
    path = session.write(tmp_path)
    program = tmp_path / "codex"
    shutil.copy(shutil.which("sleep"), program)
    with path.open("a") as held, (tmp_path / "other").open("w") as other:
        process = subprocess.Popen([str(program), "60"], stdout=held, stderr=other)
    try:
        processes = Processes(tmp_path, os.path.realpath(tmp_path / "sessions"))
        deadline = time.monotonic() + 10
        found = []
        while not found and time.monotonic() < deadline:
            now = read_clock()
            found = processes.look(Now(now.wall_ms, time.monotonic() * 100))
        assert [(running.pid, running.path, running.life.state) for running in found] == [(process.pid, os.path.realpath(path), "alive")]
    finally:
        process.kill()
        process.wait()
    assert processes.look(read_clock()) == []


def test_without_proc_there_is_no_evidence_and_a_reason(tmp_path, sleeper):
    note(tmp_path, sleeper.pid, status="busy")
    processes = Processes(tmp_path, str(tmp_path / "rollouts"), proc=tmp_path / "no-proc")
    (running,) = processes.look(read_clock())
    assert (running.life.state, running.life.word) == ("none", None)
    assert processes.missing.startswith("no ")


def test_no_folder_is_no_session(tmp_path):
    assert look(tmp_path / "missing") == []
