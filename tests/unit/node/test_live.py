"""Settings while the node runs: what changes at once, what waits, and what a broken file does."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.base.errors import Damaged, Usage
from node.config import load_settings
from node.configfile import Value
from node.home import Home, find_home
from node.live import LiveSettings, machine_name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "home").mkdir()
    return find_home(str(tmp_path / "home"), {})


def live(home: Home, text: str = "", **overrides: Value) -> LiveSettings:
    home.config_file.write_text(text)
    return LiveSettings(home, load_settings(home, {}, overrides), overrides)


def test_name_and_runs_follow_the_file_at_once(home: Home):
    found = live(home, 'name = "mini"\nruns = "ask"\n')
    assert (found.name(), found.runs()) == ("mini", "ask")
    home.config_file.write_text('name = "studio"\nruns = "mine"\n')
    told: list[str] = []
    assert found.reload(lambda: told.append(found.name())) >= {"name", "runs"}
    assert (found.name(), found.runs()) == ("studio", "mine")
    assert told == ["studio"], "what this machine says of itself is said anew with the new name"


def test_what_this_run_was_started_with_outlives_the_file(home: Home):
    found = live(home, runs="off")
    home.config_file.write_text('runs = "mine"\n')
    assert "runs" not in found.reload(lambda: None)
    assert found.runs() == "off"


def test_a_broken_file_changes_nothing(home: Home):
    found = live(home, 'name = "mini"\n')
    for broken in ('runs = "everybody"\n', "this is no toml"):
        home.config_file.write_text(broken)
        with pytest.raises((Usage, Damaged)):
            found.reload(lambda: pytest.fail("nothing changed"))
        assert found.name() == "mini"


def test_without_a_name_the_host_names_the_machine_and_never_emptily(home: Home, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.gethostname", lambda: "studio.example.lan")
    assert machine_name(load_settings(home, {}, {})) == "studio"
    monkeypatch.setattr("socket.gethostname", lambda: "\u202e.lan")
    assert machine_name(load_settings(home, {}, {})).isprintable()
    assert machine_name(load_settings(home, {}, {})) != ""


def test_what_in_the_file_was_passed_over_is_a_warning(home: Home):
    assert any("colour" in warning for warning in live(home, 'colour = "blue"\n').warnings())
