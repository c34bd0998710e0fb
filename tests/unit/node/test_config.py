"""Settings: the table, the file, the options."""

from __future__ import annotations

import stat
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Damaged, Usage
from node.addresses import Endpoint
from node.config import SETTINGS, Settings, check_value, load_settings, set_setting, setting_of, value_of
from node.home import find_home


@pytest.fixture
def home(tmp_path):
    return find_home(str(tmp_path), {})


def state(home, text: str) -> None:
    home.config_file.write_text(text)


def test_every_row_of_the_table_has_a_field_a_sentence_and_a_valid_default():
    assert {setting.field for setting in SETTINGS} == {field.name for field in fields(Settings)} - {"warnings", "stated"}
    for setting in SETTINGS:
        assert setting.about.endswith(".")
        assert check_value(setting, setting.default) == setting.default


def test_the_defaults(home):
    settings = load_settings(home, {"CLAUDE_CONFIG_DIR": "/c"})
    assert settings.listen == (Endpoint("", 9847),)
    assert settings.api_listen == Endpoint("127.0.0.1", 0), "a named home takes its API port from the system"
    assert (settings.runs, settings.tasks_slots, settings.tasks_keep_d, settings.sessions_listed_h) == ("ask", 2, 7, 24)
    assert settings.tasks_output_bytes_max == 256 << 20
    assert settings.sessions_claude_dir == Path("/c")
    assert settings.name
    assert settings.warnings == ()
    plain = load_settings(find_home(None, {"HOME": "/nowhere"}), {})
    assert plain.api_listen == Endpoint("127.0.0.1", 9876)


def test_the_file_and_then_the_options_hold(home):
    state(home, 'name = "mini"\nlisten = "10.0.0.1:1"\n[api]\nlisten = "off"\n[tasks]\nslots = 4\n')
    settings = load_settings(home, {}, {"name": "other", "listen": [":5", "[::1]:6"]})
    assert (settings.name, settings.tasks_slots, settings.api_listen) == ("other", 4, None)
    assert settings.listen == (Endpoint("", 5), Endpoint("::1", 6))
    assert settings.stated == {"name", "listen", "api.listen", "tasks.slots"}


def test_an_unknown_key_is_warned_about_with_the_nearest(home):
    state(home, "[tasks]\nslot = 4\n")
    (warning,) = load_settings(home, {}).warnings
    assert "tasks.slot" in warning
    assert "tasks.slots" in warning
    assert str(home.config_file) in warning


def test_a_bad_value_that_does_no_harm_is_warned_about(home):
    state(home, "[tasks]\nslots = 0\n[log]\nlevel = 'loud'\n")
    settings = load_settings(home, {})
    assert (settings.tasks_slots, settings.log_level) == (2, "info")
    assert len(settings.warnings) == 2
    assert settings.stated == frozenset()


@pytest.mark.parametrize("text", ["runs = 'all'", "listen = []", "listen = [1]", "discovery = 1", "advertise = ':1'", "[tasks]\nsandbox = 'no'", "[api]\nlisten = ':80'"])
def test_a_bad_value_that_decides_who_may_connect_or_run_stops_the_start(home, text):
    state(home, text)
    with pytest.raises(Usage) as error:
        load_settings(home, {})
    assert str(home.config_file) in error.value.message


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"a" * 300_000, b"a = " + b"[" * 5000], ids=["torn", "not utf-8", "huge", "deep"])
def test_a_file_that_is_not_settings_is_one_line(home, content):
    home.config_file.write_bytes(content)
    with pytest.raises(Usage) as error:
        load_settings(home, {})
    assert "\n" not in error.value.message
    assert error.value.hint


def test_a_folder_in_the_place_of_the_file(home):
    home.config_file.mkdir()
    with pytest.raises(Damaged):
        load_settings(home, {})


def test_setting_keeps_what_a_person_wrote(home):
    state(home, '# mine\nname = "a"  # short\n\n[tasks]\n# two is enough\nslots = 2\n')
    assert set_setting(home, "tasks.slots", "3") == 3
    assert set_setting(home, "runs", "mine") == "mine"
    assert set_setting(home, "api.listen", "off") == "off"
    text = home.config_file.read_text()
    assert "# mine" in text
    assert "# short" in text
    assert "# two is enough" in text
    settings = load_settings(home, {})
    assert (settings.tasks_slots, settings.runs, settings.api_listen, settings.name) == (3, "mine", None, "a")
    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600


@pytest.mark.parametrize(("key", "text"), [("runs", "all"), ("tasks.slots", "0"), ("tasks.slots", "x"), ("discovery", "maybe"), ("listen", "nonsense"), ("nothing", "1"), ("sessions.claude_dir", "rel/ative"), ("name", "x" * 80)])
def test_a_bad_value_is_refused_and_the_file_stands(home, key, text):
    state(home, "name = 'a'\n")
    with pytest.raises(Usage):
        set_setting(home, key, text)
    assert home.config_file.read_text() == "name = 'a'\n"


def test_what_a_command_shows_can_be_set_again(home):
    """Every value that `config get` prints is one that `config set` takes."""
    settings = load_settings(home, {})
    for setting in SETTINGS:
        value = value_of(settings, setting.key)
        text = ",".join(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
        assert set_setting(home, setting.key, text) == value
    again = load_settings(home, {})
    assert {key.key: value_of(again, key.key) for key in SETTINGS} == {key.key: value_of(settings, key.key) for key in SETTINGS}


@given(st.sampled_from([setting.key for setting in SETTINGS]), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text(), max_size=20), st.dictionaries(st.text(), st.text())))
def test_no_value_breaks_the_check_and_what_passes_passes_again(key, raw):
    setting = setting_of(key)
    try:
        value = check_value(setting, raw)
    except Usage:
        return
    assert check_value(setting, value) == value
