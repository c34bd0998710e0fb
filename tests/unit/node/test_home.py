"""Where a home is, and how a command finds the socket in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from node.home import CONTROL_ADDRESS_BYTES_MAX, control_address, find_home


def test_an_option_beats_the_variable_and_puts_everything_under_one_folder(tmp_path):
    home = find_home(str(tmp_path / "a"), {"HIVEMESH_HOME": str(tmp_path / "b"), "XDG_DATA_HOME": "/elsewhere"})
    assert home.one_folder
    places = [home.config_file, home.identity_dir, home.mesh_db, home.hive_db, home.tasks_db, home.sessions_db, home.grants_db]
    places += [home.index_dir, home.tasks_dir, home.repos_dir, home.log_file, home.lock_file, home.api_file, home.api_token_file]
    assert [str(place.relative_to(tmp_path / "a")) for place in places] == [
        "config.toml", "identity", "mesh.db", "hive.db", "tasks.db", "sessions.db", "grants.db", "index", "tasks", "repos",
        "log/node.log", "run/lock", "run/api.json", "run/api.token",
    ]  # fmt: skip


def test_the_variable_holds_where_there_is_no_option_and_an_empty_one_says_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_home(None, {"HIVEMESH_HOME": "rel"}).data_dir == str(tmp_path / "rel")
    assert not find_home(None, {"HIVEMESH_HOME": "", "HOME": "/h"}).one_folder


@pytest.mark.skipif(sys.platform != "linux", reason="the places of XDG are those of Linux")
def test_without_either_the_places_of_the_platform_are_taken():
    plain = find_home(None, {"HOME": "/h"})
    assert (plain.config_dir, plain.data_dir, plain.log_dir) == (
        "/h/.config/hivemesh", "/h/.local/share/hivemesh", "/h/.local/state/hivemesh/log",
    )  # fmt: skip
    moved = find_home(None, {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "not/absolute", "XDG_STATE_HOME": "/s"})
    assert (moved.config_dir, moved.data_dir, moved.log_dir) == ("/c/hivemesh", "/h/.local/share/hivemesh", "/s/hivemesh/log")


def test_a_long_path_without_a_noted_socket_means_that_no_node_ran(tmp_path):
    home = find_home(str(tmp_path / ("x" * CONTROL_ADDRESS_BYTES_MAX)), {})
    assert control_address(home) == ""
    home.run_dir.mkdir(parents=True)
    (home.run_dir / "control.at").write_text("/short/one.sock\n")
    assert control_address(home) == "/short/one.sock"


def test_what_every_command_loads_stays_light():
    heavy = ["trio", "nacl", "cbor2", "apsw", "rich", "importlib.metadata", "dataclasses", "typing", "pathlib", "re_", "inspect", "mesh.base.names", "asyncio", "subprocess"]
    script = f"import sys, node.cli.entry, node.cli.status; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
