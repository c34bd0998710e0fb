"""What is said and asked."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import Refused
from node.cli.console import Console, age, counted, shown
from tests.fakes.commands import ROOT


@given(st.text())
def test_shown_text_holds_nothing_that_moves_the_cursor_or_reorders_the_line(text):
    out = shown(text)
    assert out.isprintable()
    if text.isprintable():
        assert out == text


def test_shown_writes_escapes_and_never_fails():
    assert shown("a\x1b[1mb\u202e\n\udcff") == "a\\x1b[1mb\\u202e\\n\\udcff"
    assert shown(None) == "None"


@pytest.mark.parametrize(("seconds", "text"), [(None, "-"), (0, "0s"), (-5, "0s"), (59.9, "59s"), (60, "1m"), (3600, "1h"), (90_000, "1d")])
def test_ages_are_short(seconds, text):
    assert age(seconds) == text


def test_nothing_is_asked_without_a_terminal_and_yes_asks_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(Refused) as refusal:
        Console(str(tmp_path), {}).ask("Send it?")
    assert refusal.value.reason == "needs_yes"
    assert "--yes" in refusal.value.hint
    assert Console(str(tmp_path), {}, yes=True).ask("Send it?")
    assert sys.stdin.read() == "y\n", "nothing was read"


ASK = "from node.cli.console import Console; print('said', Console('h', {}).ask('Sure?', default=%s))"


@pytest.mark.parametrize(("typed", "default", "said"), [("y", False, True), ("no", True, False), ("", True, True), ("", False, False), ("x", True, False)])
def test_a_person_at_a_terminal_is_asked(typed, default, said):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", ASK % default], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True, cwd=ROOT)
    os.close(theirs)
    asked = b""
    while b"] " not in asked:
        asked += os.read(ours, 100)
    assert asked.endswith(b"Sure? [Y/n] " if default else b"Sure? [y/N] ")
    os.write(ours, typed.encode() + b"\n")
    out, _ = process.communicate(timeout=10)
    os.close(ours)
    assert out == f"said {said}\n"


def test_advice_speaks_of_the_home_the_command_spoke_of():
    console = Console("/a b", {}, commands=["up", "run"])
    assert console.advice("start it: hivemesh up -d, hivemesh runs, update hivemesh") == "start it: hivemesh --home '/a b' up -d, hivemesh runs, update hivemesh"
    assert console.advice("there: hivemesh run") == "there: hivemesh run", "another machine has a home of its own"
    assert Console(None, {"HIVEMESH_HOME": "/x"}, commands=["up"]).advice("hivemesh up") == "hivemesh up"


def test_a_count_is_said_in_its_number():
    assert [counted(count, "file") for count in (0, 1, 2)] == ["0 files", "1 file", "2 files"]


def test_colour_is_for_terminals_that_want_it(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    assert Console(str(tmp_path), {}).coloured
    assert not Console(str(tmp_path), {"NO_COLOR": "1"}).coloured
    assert not Console(str(tmp_path), {"TERM": "dumb"}).coloured
    assert not Console(str(tmp_path), {}, as_json=True).coloured
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not Console(str(tmp_path), {}).coloured
