"""Who stands behind a call: SECURITY's rule for agents that run as the same user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Refused
from node.callers import (
    DEPTH_MAX,
    PRIVILEGED,
    Guard,
    Process,
    ProcessKey,
    agents_behind,
    agents_behind_me,
    judge,
    open_guard,
    read_chain,
    read_makers,
    refuse_agents_here,
)
from node.home import find_home
from node.lock import make_home

AGENT = ProcessKey(50, 500)


def chain(*marks: str) -> list[Process]:
    """A caller first, its parents behind; `a` bears an agent's mark, `t` a task's, `.` none; the last is pid 1."""
    keys = [ProcessKey(100 - 10 * at, 1000 - at) for at in range(len(marks))]
    return [Process(key, mark in "at", mark == "t") for key, mark in zip(keys, marks, strict=True)] + [Process(ProcessKey(1, 1), marked=False)]


def test_a_process_called_like_an_agent_is_one_even_without_its_variables(tmp_path):
    """`exec env -u CLAUDECODE hivemesh invite` drops the mark, not the agent above."""
    program = tmp_path / "claude"
    program.symlink_to(sys.executable)
    script = "import sys\nfrom node.callers import agents_behind, read_chain\nimport os\nprint(sorted(k.pid for k in agents_behind(read_chain(os.getpid()))), os.getppid())"
    outer = f"import subprocess, sys; subprocess.run(['env', '-u', 'CLAUDECODE', {sys.executable!r}, '-c', {script!r}], check=True)"
    done = subprocess.run([str(program), "-c", outer], capture_output=True, text=True, check=True, env={"PYTHONPATH": os.getcwd(), "PATH": os.environ["PATH"]})
    found, parent = done.stdout.rsplit(" ", 1)
    assert int(parent) in json.loads(found)


def test_a_person_has_no_agent_behind():
    assert agents_behind(chain(".", ".")) == frozenset()
    judge("invite", chain(".", "."), (), frozenset())


def test_the_agent_is_the_parent_of_the_uppermost_marked_process():
    assert agents_behind(chain("a", "a", ".")) == {ProcessKey(80, 998)}
    assert agents_behind(chain(".", "a", ".")) == {ProcessKey(80, 998)}, "a process that cleaned its environment"
    assert agents_behind(chain("a", "a")) == {ProcessKey(90, 999)}, "its parent is gone"


def test_a_known_session_counts_without_any_mark():
    found = chain(".", ".")
    assert agents_behind(found, {found[1].key}) == {found[1].key}
    assert agents_behind(found, {ProcessKey(found[1].key.pid, 7)}) == frozenset(), "another process had that pid"


@pytest.mark.parametrize(("marks", "who"), [(("a", "."), "an agent's session"), (("t", "."), "a delegated task"), ((".", "t", "a"), "a delegated task")])
def test_agents_and_tasks_are_refused_with_a_reason(marks, who):
    with pytest.raises(Refused, match=who) as refusal:
        judge("answer", chain(*marks), (), frozenset())
    assert refusal.value.reason == "agent_caller"
    assert refusal.value.hint


def test_an_agent_is_obeyed_in_the_home_it_made():
    marks = chain("a", ".")
    judge("invite", marks, (), agents_behind(marks))
    with pytest.raises(Refused):
        judge("invite", marks, (), frozenset({AGENT}))


def test_who_cannot_be_seen_is_refused_but_a_platform_without_sight_lets_all_through():
    with pytest.raises(Refused, match="cannot be seen"):
        judge("invite", [], (), frozenset())
    judge("invite", [], (), frozenset(), readable=False)


@given(st.lists(st.sampled_from(["a", "t", "."]), min_size=1, max_size=8), st.integers(0, 7), st.booleans())
def test_whoever_has_a_mark_or_a_session_above_it_is_never_a_person(marks, at, known):
    found = chain(*marks)
    sessions = {found[min(at, len(marks) - 1)].key} if known else set()
    assert bool(agents_behind(found, sessions)) == (known or any(mark != "." for mark in marks))


def make_proc(folder: Path, *processes: tuple[int, int, bytes]) -> str:
    """A process file system of (pid, parent, environ)."""
    for pid, parent, environ in processes:
        (folder / str(pid)).mkdir(parents=True)
        columns = [b"S", str(parent).encode(), *[b"0"] * 17, str(pid * 10).encode(), *[b"0"] * 20]
        (folder / str(pid) / "stat").write_bytes(f"{pid} (a) b) ( ) ".encode() + b" ".join(columns))
        (folder / str(pid) / "environ").write_bytes(environ)
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "stat").write_text("")
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text("boot-1\n")
    return str(folder)


def test_reading_goes_up_to_the_first_process_and_survives_odd_names(tmp_path):
    proc = make_proc(tmp_path, (1, 0, b""), (5, 1, b"A=1\0CLAUDECODE=1\0"), (9, 5, b"HIVEMESH_TASK=x\0\xff\xfe=\0"), (77, 9, b"XCLAUDECODE=1\0"))
    found = read_chain(77, proc)
    assert [(one.key.pid, one.key.start_ticks, one.marked, one.task) for one in found] == [
        (77, 770, False, False), (9, 90, True, True), (5, 50, True, False), (1, 10, False, False),
    ]  # fmt: skip
    assert read_chain(4, proc) == []
    assert read_chain(0, proc) == []


def test_a_ring_of_parents_ends(tmp_path):
    proc = make_proc(tmp_path, (5, 9, b""), (9, 5, b""))
    assert len(read_chain(5, proc)) == DEPTH_MAX


def test_only_privileged_verbs_are_judged(tmp_path):
    """The answer, the invite, the grants, the settings and what the hive believes; reading is free."""
    proc = make_proc(tmp_path, (1, 0, b""), (5, 1, b"CLAUDECODE=1\0"))
    guard = Guard(frozenset(), proc)
    for verb in PRIVILEGED:
        with pytest.raises(Refused):
            guard.admit(verb, 5, tuple)
        guard.admit(verb, 1, tuple)
        with pytest.raises(Refused):
            guard.admit(verb, 1, lambda: [ProcessKey(1, 10)])
    for verb in ("status", "fleet", "run", "inbox", "hive.lessons"):
        guard.admit(verb, 5, lambda: pytest.fail("asked for nothing"))
    assert {"invite", "answer", "access.grant", "access.revoke", "config.set", "connect", "join", "hive.forget", "hive.learn"} <= PRIVILEGED


def test_a_home_remembers_which_agent_made_it_until_the_machine_starts_anew(tmp_path):
    home = find_home(str(tmp_path / "h"), {})
    make_home(home)
    proc = make_proc(tmp_path / "proc")
    mine = frozenset({AGENT})
    assert open_guard(home, mine, fresh=True, proc=proc).own_agents == mine
    assert open_guard(home, mine, fresh=False, proc=proc).own_agents == mine, "a later start below the same agent"
    assert open_guard(home, frozenset({ProcessKey(50, 501)}), fresh=False, proc=proc).own_agents == frozenset()
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("boot-2\n")
    assert read_makers(home, proc) == frozenset()


def test_a_home_that_a_person_made_is_no_agents_own(tmp_path):
    home = find_home(str(tmp_path / "h"), {})
    make_home(home)
    proc = make_proc(tmp_path / "proc")
    assert open_guard(home, frozenset(), fresh=True, proc=proc).own_agents == frozenset()
    assert open_guard(home, frozenset({AGENT}), fresh=False, proc=proc).own_agents == frozenset()


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1, 2]", '["boot-1", [1]]', '["boot-1", ["a", "b"]]', "\x00"])
def test_a_torn_note_names_nobody(tmp_path, text):
    home = find_home(str(tmp_path / "h"), {})
    make_home(home)
    (home.run_dir / "makers").write_text(text)
    assert read_makers(home, make_proc(tmp_path / "proc")) == frozenset()


SHELL = "import os, sys; from node.callers import agents_behind_me; print(len(agents_behind_me()))"


@pytest.mark.skipif(sys.platform != "linux", reason="marks are read from /proc")
@pytest.mark.skipif(bool(agents_behind_me()), reason="these tests run below an agent themselves")
@pytest.mark.parametrize(("before", "after", "count"), [({}, [], "0"), ({"CLAUDECODE": "1"}, [], "1"), ({"HIVEMESH_TASK": "t"}, ["env", "-u", "HIVEMESH_TASK"], "0"), ({"HIVEMESH_TASK": "t"}, ["sh", "-c", 'env -u HIVEMESH_TASK "$@"; :', "sh"], "1"), ({"CLAUDECODE": "1"}, ["setsid", "--wait"], "1")])
def test_real_processes_below_an_agent_are_recognised(before, after, count):
    """From a tool call, from a child in a session of its own, and with the mark cleaned away below one that has it."""
    environ = {key: value for key, value in os.environ.items() if key != "HIVEMESH_TASK"} | before
    done = subprocess.run([*after, sys.executable, "-c", SHELL], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == count


def test_a_command_alone_judges_itself_only_once_there_is_an_identity(tmp_path):
    home = find_home(str(tmp_path / "h"), {})
    make_home(home)
    proc = make_proc(tmp_path / "proc", (1, 0, b""), (os.getpid(), 1, b"CLAUDECODE=1\0"))
    refuse_agents_here("config set", home, proc)
    home.identity_dir.mkdir()
    with pytest.raises(Refused):
        refuse_agents_here("config set", home, proc)
    (home.run_dir / "makers").write_text(json.dumps(["boot-1", [os.getpid(), os.getpid() * 10]]))
    refuse_agents_here("config set", home, proc)
