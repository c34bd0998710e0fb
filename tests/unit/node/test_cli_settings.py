"""`config`, with and without a node."""

from __future__ import annotations

import json

from node import configfile
from node.config import SETTINGS
from node.home import find_home
from tests.fakes.answers import MANY
from tests.fakes.commands import call_here
from tests.fakes.daemon import FakeDaemon


def test_show_lists_every_setting_with_its_default_and_whether_it_is_set(tmp_path):
    (tmp_path / "config.toml").write_text("[tasks]\nslots = 3\nslot = 1\n")
    ran = call_here(tmp_path, "config", "show", "--json")
    found = {row["key"]: row for row in json.loads(ran.out)}
    assert list(found) == [setting.key for setting in SETTINGS]
    assert (found["tasks.slots"]["value"], found["tasks.slots"]["default"], found["tasks.slots"]["set"]) == (3, 2, True)
    assert found["runs"]["set"] is False
    assert "tasks.slot" in ran.err


def test_show_shows_everything_when_a_value_is_bad_and_marks_it(tmp_path):
    (tmp_path / "config.toml").write_text("runs = 'all'\n[tasks]\nslots = 0\nkeep_d = 3\n")
    ran = call_here(tmp_path, "config", "show", "--json")
    found = {row["key"]: row for row in json.loads(ran.out)}
    assert (ran.code, list(found)) == (0, [setting.key for setting in SETTINGS])
    assert (found["runs"]["value"], found["runs"]["set"], found["runs"]["bad"]) == (None, True, "runs cannot be 'all': it is one of mine, ask, off")
    assert (found["tasks.slots"]["value"], found["tasks.slots"]["bad"] is None) == (2, False)
    assert (found["tasks.keep_d"]["value"], found["tasks.keep_d"]["bad"]) == (3, None)
    assert found["api.listen"]["value"] == "127.0.0.1:0", "as with a file that is good"
    assert "hivemesh config set runs VALUE" in ran.err
    plain = call_here(tmp_path, "config", "show").out.splitlines()
    assert [line.split()[:3] for line in plain if "BAD" in line] == [["runs", "-", "BAD"], ["tasks.slots", "2", "BAD"]]
    assert len(plain) == len(SETTINGS) + 1


def test_a_home_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    def read_only(*args, **more):
        raise OSError(30, "Read-only file system")

    (tmp_path / "config.toml").write_text("runs = 'ask'\n")
    monkeypatch.setattr(configfile.os, "replace", read_only)
    monkeypatch.setattr(configfile.Path, "unlink", read_only)
    ran = call_here(tmp_path, "config", "set", "runs", "mine")
    assert ran.code == 1
    assert ran.err.splitlines()[0] == f"hivemesh: {tmp_path}/config.toml cannot be written: Read-only file system"


def test_without_a_node_the_file_changes_and_holds_at_the_next_start(tmp_path):
    ran = call_here(tmp_path, "config", "set", "discovery", "off")
    assert (ran.code, ran.out, ran.err) == (0, "discovery = false\n", "takes effect at the next start\n")
    assert call_here(tmp_path, "config", "get", "discovery").out == "false\n"
    assert json.loads(call_here(tmp_path, "config", "get", "listen", "--json").out) == {"key": "listen", "value": [":9847"]}
    assert json.loads(call_here(tmp_path, "config", "set", "runs", "mine", "--json").out) == {"key": "runs", "value": "mine", "applied": False}


def test_with_a_node_the_node_changes_it(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), MANY) as daemon:
        ran = call_here(tmp_path, "config", "set", "runs", "mine")
        assert (ran.code, ran.err) == (0, "in force now\n")
        assert call_here(tmp_path, "config", "set", "runs", "nonsense").code == 2
    assert daemon.asked == [("config.set", {"key": "runs", "value": "mine"})]
    assert not (tmp_path / "config.toml").exists()
