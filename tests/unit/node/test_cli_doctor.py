"""`doctor`: what it finds, also with the node down, and that what it recommends is possible."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess

import pytest

from mesh.base.errors import OurFault
from node.cli import doctor
from node.config import load_settings
from node.home import find_home
from node.lock import make_home
from tests.fakes.answers import EMPTY, HOSTILE, MANY
from tests.fakes.commands import PROGRAM, call_here, environ_of
from tests.fakes.daemon import FakeDaemon


@pytest.fixture
def home(tmp_path):
    found = find_home(str(tmp_path / "h"), {})
    make_home(found)
    return found


def checks_of(ran) -> dict[str, dict[str, str]]:
    return {check["check"]: check for check in json.loads(ran.out)}


def test_with_the_node_down_everything_local_is_checked(tmp_path):
    environ = {"CLAUDE_CONFIG_DIR": str(tmp_path), "CODEX_HOME": str(tmp_path / "none")}
    ran = call_here(tmp_path / "h", "doctor", "--json", environ=environ)
    found = checks_of(ran)
    assert set(found) == {"python", "git", "home", "disk", "clock", "config", "claude", "codex", "node", "port"}
    assert (found["node"]["state"], found["node"]["mend"]) == ("warn", "hivemesh up -d")
    assert (found["claude"]["state"], found["codex"]["state"]) == ("ok", "warn")
    assert not (tmp_path / "h").exists(), "looking makes nothing"
    plain = call_here(tmp_path / "h", "doctor", environ=environ)
    assert plain.out.splitlines()[0].split() == ["CHECK", "STATE", "FOUND"]
    stated = call_here("/elsewhere", "--home", str(tmp_path / "h"), "doctor", environ=environ)
    lines = stated.out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("node "))
    assert lines[at + 1] == f"    to mend: hivemesh --home {tmp_path}/h up -d"


def test_on_a_narrow_terminal_no_advice_is_cut(tmp_path):
    environ = {**environ_of(tmp_path / "h"), "COLUMNS": "80", "CODEX_HOME": str(tmp_path / ("x" * 100))}
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*PROGRAM, "doctor"], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while b"port " not in drawn:
        drawn += os.read(ours, 1000)
    process.wait(10)
    os.close(ours)
    assert b"    to mend: hivemesh config set sessions.codex_dir FOLDER, if it is elsewhere\r\n" in drawn


def test_a_running_node_adds_its_own_checks(home):
    with FakeDaemon(home, MANY):
        ran = call_here(home.data_dir, "doctor", "--json")
        assert checks_of(ran)["sandbox"]["found"] == HOSTILE
        assert checks_of(ran)["node"]["state"] == "ok"
        assert "\x1b" not in call_here(home.data_dir, "doctor").out
    with FakeDaemon(home, EMPTY):
        assert checks_of(call_here(home.data_dir, "doctor", "--json"))["node"]["state"] == "ok"


def test_a_node_that_fails_is_a_failed_check_and_exit_1(home):
    with FakeDaemon(home, {"doctor": OurFault("broken inside")}):
        ran = call_here(home.data_dir, "doctor", "--json")
    assert ran.code == 1
    assert "broken inside" in checks_of(ran)["node"]["found"]


def test_a_bad_settings_file_is_a_check_and_not_an_error(home):
    home.config_file.write_text("runs = 'all'\n")
    ran = call_here(home.data_dir, "doctor", "--json")
    assert ran.code == 1
    assert checks_of(ran)["config"]["state"] == "fail"
    home.config_file.write_text("rnus = 'mine'\n")
    assert checks_of(call_here(home.data_dir, "doctor", "--json"))["config"]["state"] == "warn"


def test_open_keys_are_found_and_the_recommended_command_mends_them(home):
    """O-P7, O-C3."""
    home.identity_dir.mkdir(mode=0o700)
    key = home.identity_dir / "node.key"
    key.write_text("x")
    key.chmod(0o644)
    check = doctor.check_home(home)
    assert (check.state, str(key) in check.found) == ("fail", True)
    assert os.system(check.mend) == 0
    assert doctor.check_home(home).state == "ok"


def test_a_taken_port_names_its_holder(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = load_settings(home, {}, {"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
        check = doctor.check_port(settings)
    assert check.state == "fail"
    assert f"pid {os.getpid()}" in check.found
    assert doctor.check_port(load_settings(home, {}, {"listen": "127.0.0.1:0"})).state == "ok"


def test_a_clock_that_went_back_is_seen(home):
    assert doctor.check_clock(home).state == "ok"
    late = home.mesh_db
    late.write_text("")
    os.utime(late, (4_000_000_000, 4_000_000_000))
    assert doctor.check_clock(home).state == "warn"


@pytest.mark.parametrize(("script", "state"), [("echo git version 2.47.1", "ok"), ("echo git version 2.11.0", "fail"), ("exit 1", "fail"), (None, "fail")])
def test_git_is_found_and_old_enough(tmp_path, monkeypatch, script, state):
    if script is not None:
        (tmp_path / "git").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check = doctor.check_git()
    assert check.state == state
    assert bool(check.mend) == (state != "ok")
