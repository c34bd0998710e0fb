"""Starting and stopping: the foreground, the background, and what they say when they cannot."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from node.cli.client import call
from node.home import find_home
from node.lock import lock_holder
from tests.fakes.commands import ROOT, Ran

SMALL = [sys.executable, "-m", "tests.fakes.smallnode"]


def environ_of(home, **more: str) -> dict[str, str]:
    return {**os.environ, "HIVEMESH_HOME": str(home), "PYTHONPATH": str(ROOT), **more}


def small(home, *words: str, **more: str) -> Ran:
    done = subprocess.run([*SMALL, *words], env=environ_of(home, **more), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False, cwd=ROOT)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def home(tmp_path) -> Iterator:
    folder = tmp_path / "h"
    yield folder
    pid = lock_holder(find_home(str(folder), {}))
    if pid:
        os.kill(pid, signal.SIGKILL)


def test_the_background_is_left_alone_and_ready_when_the_command_returns(home):
    """The command waits until the node answers, and prints who it is; the node keeps none of its files."""
    reading, writing = os.pipe()
    try:
        done = subprocess.run([*SMALL, "up", "-d", "--name", "mini"], env=environ_of(home), stdin=reading, capture_output=True, text=True, timeout=20, check=False, pass_fds=[writing], cwd=ROOT)
    finally:
        os.close(writing)
        os.close(reading)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "mini  aaaa-bbbb"
    assert done.stderr.splitlines() == ["warning: its own"]
    found = call(find_home(str(home), {}), "status")
    assert found["umask"] == 0o077
    assert found["cwd"] == "/"
    assert found["sid"] != os.getsid(0)
    assert os.readlink(f"/proc/{found['pid']}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{found['pid']}/fd/1") == "/dev/null"
    targets = [os.readlink(f"/proc/{found['pid']}/fd/{fd}") for fd in os.listdir(f"/proc/{found['pid']}/fd")]
    assert not [target for target in targets if target.startswith("pipe:")], "the caller's pipes"
    assert lock_holder(find_home(str(home), {})) == found["pid"]


def test_the_name_of_the_first_start_stays_and_a_later_one_holds_for_its_start(home):
    for words, name in ((("--name", "mini"), "mini"), ((), "mini"), (("--name", "other"), "other"), ((), "mini")):
        assert small(home, "up", "-d", *words).code == 0
        assert call(find_home(str(home), {}), "status")["name"] == name
        assert small(home, "down").code == 0
    assert (home / "config.toml").read_text() == 'name = "mini"\n'


@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_a_node_in_the_foreground_runs_on_where_nobody_reads_it(home, where):
    process = subprocess.Popen(["sh", "-c", f"exec {shlex.join([*SMALL, 'up'])} {where}"], env=environ_of(home), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    assert any("the node runs all the same" in line for line in process.stderr)
    assert small(home, "status", "--json").code == 0
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 0, err


def test_down_waits_until_the_home_is_free(home):
    assert small(home, "up", "-d").code == 0
    pid = lock_holder(find_home(str(home), {}))
    ran = small(home, "down", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, {"stopped": True, "pid": pid})
    assert lock_holder(find_home(str(home), {})) is None
    assert small(home, "down").code == 3


def test_a_second_start_is_refused_within_two_seconds_and_names_the_pid(home):
    """O-B5: also by another spelling, in the foreground and in the background; SIGKILL, and the next start works."""
    assert small(home, "up", "-d").code == 0
    pid = lock_holder(find_home(str(home), {}))
    link = home.parent / "link"
    link.symlink_to(home)
    begun = time.monotonic()
    small(home, "config", "show")
    slowness_s = time.monotonic() - begun
    for words in (["up"], ["up", "-d"], ["--home", str(link), "up"]):
        begun = time.monotonic()
        ran = small(home, *words)
        assert time.monotonic() - begun < 2 + 3 * slowness_s, "two seconds on an idle machine"
        assert ran.code == 5
        assert f"pid {pid}" in ran.err
        assert ran.out == ""
    os.kill(pid, signal.SIGKILL)
    assert small(home, "up", "-d").code == 0
    assert small(home, "down").code == 0


def test_as_json_a_start_is_one_document(home):
    ran = small(home, "up", "-d", "--json")
    found = json.loads(ran.out)
    assert (found["fingerprint"], found["warnings"]) == ("aaaa-bbbb", ["its own"])
    assert ran.err == ""


def test_the_foreground_says_the_same_and_ends_by_a_signal(home):
    process = subprocess.Popen([*SMALL, "up", "--name", "mini"], env=environ_of(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline() == "mini  aaaa-bbbb\n"
    assert small(home, "status", "--json").code == 0
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 0
    lines = [json.loads(line) for line in (home / "log/node.log").read_text().splitlines()]
    assert [line["text"] for line in lines if line["room"] == "node.start"] == [f"starting, pid {process.pid}", "ended"]


@pytest.mark.parametrize("words", [["up"], ["up", "-d"]])
def test_a_start_that_is_refused_says_why_in_one_line(home, words):
    ran = small(home, *words, SMALLNODE="refused")
    assert ran.code == 5
    assert ran.err.splitlines() == ["hivemesh: port 9847 is in use by sshd (pid 1)", "  choose another"]
    ran = small(home, *words, "--json", SMALLNODE="refused")
    assert json.loads(ran.out)["error"]["kind"] == "refused"
    assert lock_holder(find_home(str(home), {})) is None


@pytest.mark.parametrize("fault", ["broken", "silent"])
def test_a_start_that_breaks_in_the_background_names_the_log(home, fault):
    ran = small(home, "up", "-d", SMALLNODE=fault)
    assert ran.code == 1
    assert ran.err.splitlines() == ["hivemesh: the node ended before it was ready", f"  its log is {home}/log/node.log"]
    if fault == "broken":
        assert "ZeroDivisionError" in (home / "log/stderr.log").read_text()


def test_bad_settings_stop_before_anything_is_made(home):
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("runs = 'all'\n")
    for words in (["up"], ["up", "-d"]):
        ran = small(home, *words)
        assert ran.code == 2
        assert "config.toml" in ran.err
    assert sorted(os.listdir(home)) == ["config.toml"]
    assert small(home, "config", "set", "runs", "mine").code == 0, "the hint mends it"
    assert small(home, "up", "-d").code == 0


def test_a_home_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for words in (["up"], ["up", "-d"]):
        ran = small(tmp_path / "file" / "h", *words)
        assert ran.code == 1
        assert "Traceback" not in ran.err
        assert "cannot be used" in ran.err


@pytest.mark.parametrize("name", ["x" * 150, "한" * 60], ids=["150", "hangul"])
def test_node_and_command_talk_however_long_the_path(tmp_path, name):
    """O-V2, whole: start, status, down."""
    home = tmp_path / name
    assert small(home, "up", "-d").code == 0
    assert small(home, "status", "--json").code == 0
    assert small(home, "down").code == 0


def test_an_agent_is_obeyed_in_its_own_home_and_refused_in_a_person_s(home, tmp_path):
    """SECURITY 3: refused from within an agent's tool call, also for a node the agent started on a person's home."""
    agent = {"CLAUDECODE": "1"}
    assert small(home, "up", "-d").code == 0
    assert small(home, "invite", "--json").code == 0
    ran = small(home, "invite", "--json", **agent)
    assert ran.code == 5
    assert json.loads(ran.out)["error"]["kind"] == "refused"
    assert small(home, "status", "--json", **agent).code == 0, "reading is free"
    assert small(home, "down").code == 0
    assert small(home, "up", "-d", "--runs", "mine", **agent).code == 5
    assert small(home, "config", "set", "runs", "mine", **agent).code == 5
    assert small(home, "up", "-d", **agent).code == 0
    assert small(home, "invite", "--json", **agent).code == 5
    own = tmp_path / "own"
    try:
        assert small(own, "up", "-d", **agent).code == 0
        assert small(own, "invite", "--json", **agent).code == 0
        assert small(own, "invite", "--json", HIVEMESH_TASK="1").code == 0, "the same process started it"
    finally:
        small(own, "down")
