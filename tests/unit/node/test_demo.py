"""What the demo stands on: processes that are known from their first moment, waited for with a deadline, and ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from node.demo import stage as room
from node.demo.stage import Stage, StepFailed, base_environ, interruptible, wait_for
from node.demo.story import STEPS, Story


class Script(Stage):
    """A stage whose commands are Python scripts."""

    def _command(self, name: str, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-c", words[0]]


@pytest.fixture
def stage(tmp_path: Path):
    found = Script(tmp_path, base_environ(tmp_path))
    yield found
    found.end()


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_process_that_begins_well_gives_its_first_line_and_is_ended(stage: Script):
    facts = stage.start("one", "import os,json,time; print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(60)", until="pid")
    assert not gone(facts["pid"])
    stage.end()
    assert gone(facts["pid"])


def test_a_process_that_hangs_on_is_ended_by_force(stage: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "END_S", 0.2)
    stubborn = "import os,json,time,signal; signal.signal(15, signal.SIG_IGN); print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(60)"
    facts = stage.start("one", stubborn, until="pid")
    stage.end()
    assert gone(facts["pid"])


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("import sys; sys.exit('no room')", "no room"),
        ("print('{\"error\": {\"message\": \"the port is taken\"}}')", "the port is taken"),
        ("print('not json')", "nothing"),
        ("pass", "nothing"),
    ],
)
def test_a_start_that_fails_says_why(stage: Script, script: str, why: str):
    with pytest.raises(StepFailed) as caught:
        stage.start("one", script, until="pid")
    assert why in caught.value.message
    assert "\n" not in caught.value.message


def test_a_start_that_says_nothing_is_not_waited_for_for_ever(stage: Script, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "START_S", 0.2)
    with pytest.raises(StepFailed):
        stage.start("one", "import time; time.sleep(60)", until="pid")


def test_a_command_gives_its_answer_or_its_reason(stage: Script, monkeypatch: pytest.MonkeyPatch):
    assert stage.call("one", "print('[1]')") == [1]
    with pytest.raises(StepFailed) as caught:
        stage.call("one", "import sys; print('{\"error\": {\"message\": \"no such thing\"}}'); sys.exit(5)")
    assert "no such thing" in caught.value.message
    monkeypatch.setattr(room, "COMMAND_S", 0.3)
    with pytest.raises(StepFailed) as caught:
        stage.call("one", "import time; time.sleep(60)")
    assert "did not end" in caught.value.message


def test_git_that_fails_fails_the_step(stage: Script, tmp_path: Path):
    with pytest.raises(StepFailed):
        stage.git(tmp_path, "rev-parse", "HEAD")


def test_waiting_has_a_deadline():
    looks = iter([0, [], "there"])
    assert wait_for("it", lambda: next(looks)) == "there"
    with pytest.raises(StepFailed) as caught:
        wait_for("the moon", lambda: None, timeout_s=0.05)
    assert "the moon" in caught.value.message


def test_the_environment_is_the_users_without_another_home_or_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("HIVEMESH_HOME", "HIVEMESH_INVITE", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environ = base_environ(tmp_path)
    assert not [name for name, value in environ.items() if value == "/elsewhere"]
    assert environ["LANG"] == "C.UTF-8"
    assert environ["TMPDIR"] == str(tmp_path)
    assert environ["GIT_CONFIG_GLOBAL"] == os.devnull


def test_only_the_first_signal_interrupts_and_the_old_meaning_comes_back():
    before = signal.getsignal(signal.SIGTERM)

    def press() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            press()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_while_a_process_is_started_comes_when_it_is_known(stage: Script):
    """No process is left that nobody knows of, however early the interrupt."""
    known: list[str] = []

    def press_while_starting() -> None:
        with room._uninterrupted():
            # The demo has one thread; here others may be left of other tests, which a signal to the process could reach.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            known.append("started")
        time.sleep(5)

    with interruptible(), pytest.raises(KeyboardInterrupt):
        press_while_starting()
    assert known == ["started"]
    assert stage.call("one", "import json,signal; print(json.dumps(sorted(signal.pthread_sigmask(0, ()))))") == []


def test_every_step_is_named(stage: Script, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    story = Story(stage, said.append)
    for act in ("_set_up", "_pair", "_fleet", "_delegate", "_learn", "_ask", "_revoke"):
        monkeypatch.setattr(story, act, lambda: "found")
    rows = story.tell()
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [line.strip().split("]")[0] for line in said[::2]] == [f"[{n}/{STEPS}" for n in range(1, STEPS + 1)]
    assert len({row["title"] for row in rows}) == STEPS
