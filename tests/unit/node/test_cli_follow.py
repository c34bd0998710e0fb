"""Following a run: exit codes, output, and what Ctrl-C means."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from node.cli.follow import FINAL, exit_of_task, output_lines
from node.home import find_home
from tests.fakes.answers import TASK
from tests.fakes.commands import PROGRAM, call_here, call_process, environ_of
from tests.fakes.daemon import FakeDaemon


@pytest.mark.parametrize(
    ("task", "code"),
    [
        ({"state": "done", "exit_code": 0}, 0), ({"state": "failed", "exit_code": 7}, 7), ({"state": "failed", "exit_code": 255}, 255),
        ({"state": "failed", "exit_code": 137}, 137), ({"state": "failed", "exit_code": -9}, 137), ({"state": "failed", "exit_code": 256}, 125),
        ({"state": "failed", "exit_code": None, "reason": "not_found"}, 127), ({"state": "failed", "exit_code": None, "reason": "not_executable"}, 126),
        ({"state": "failed", "exit_code": None, "reason": "disk_full"}, 125), ({"state": "timed_out", "exit_code": 143}, 124),
        ({"state": "cancelled", "exit_code": 143}, 130), ({"state": "refused", "exit_code": None}, 125), ({"state": "lost", "exit_code": 3}, 125), ({}, 125),
    ],
)  # fmt: skip
def test_the_exit_code_is_the_contract_s(task, code):
    assert exit_of_task(task) == code


@given(st.fixed_dictionaries({"state": st.one_of(st.sampled_from(sorted(FINAL)), st.text()), "exit_code": st.one_of(st.none(), st.integers(), st.text()), "reason": st.one_of(st.none(), st.text())}))
def test_every_end_has_an_exit_code(task):
    assert 0 <= exit_of_task(task) < 256


@given(st.one_of(st.binary(), st.text().map(str.encode)), st.integers(0, 1 << 40))
def test_output_lines_hold_every_byte_at_its_offset(data, offset):
    lines = output_lines("stdout", offset, data)
    got, at = b"", offset
    for line in lines:
        assert line["offset"] == at
        piece = line["data"].encode() if "data" in line else base64.b64decode(line["data_b64"])
        got += piece
        at += len(piece)
    assert got == data
    assert len(lines) <= 2


def test_a_character_cut_at_the_end_leaves_the_text_before_it_text():
    assert output_lines("stderr", 5, "aé".encode()[:2]) == [
        {"stream": "stderr", "offset": 5, "data": "a"}, {"stream": "stderr", "offset": 6, "data_b64": base64.b64encode(b"\xc3").decode()},
    ]  # fmt: skip


OUT, ERR = b"out \xff\x00 1\n", b"err\n"


async def seven(call):
    """A run that says something on both streams and exits with 7."""
    await call.event({"kind": "task", "task": TASK})
    await call.event({"kind": "untracked", "files": [{"path": "a\x1b.txt", "bytes": 4}], "count": 3, "bytes": 12})
    await call.event({"kind": "note", "text": "a note"})
    await call.event({"kind": "gap", "from": 5, "to": 9})
    await call.event({"kind": "state", "state": "running"})
    await call.output("stdout", 0, OUT)
    await call.output("stderr", len(OUT), ERR)
    return {**TASK, "state": "failed", "exit_code": 7}


@pytest.mark.parametrize("words", [["run", "mini", "--", "x"], ["logs", "a", "-f"], ["logs", "-f", "a"]])
def test_both_streams_come_apart_and_the_exit_code_is_the_run_s(tmp_path, words):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": seven, "logs": seven}):
        done = subprocess.run([*PROGRAM, *words], env=environ_of(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    assert done.returncode == 7
    assert done.stdout == OUT
    assert ERR in done.stderr
    assert b"failed on mini with exit code 7" in done.stderr.splitlines()[-1]
    assert b"\x1b" not in done.stderr
    assert b"a\\x1b.txt" in done.stderr
    assert b"a note" in done.stderr
    assert b"byte 5 to 9 was not kept" in done.stderr


def test_as_json_each_piece_is_a_line_and_the_last_is_the_task(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": seven}):
        ran = call_process(tmp_path, "run", "mini", "--json", "--", "x")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert lines[0] == {"stream": "stdout", "offset": 0, "data_b64": base64.b64encode(OUT).decode()}
    assert lines[1] == {"stream": "stderr", "offset": len(OUT), "data": "err\n"}
    assert lines[2]["exit_code"] == 7
    assert ran.code == 7


def test_logs_without_follow_end_with_0_whatever_the_run_did_and_wait_prints_no_output(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"logs": seven, "wait": seven}):
        assert call_process(tmp_path, "logs", "a").code == 0
        ran = call_process(tmp_path, "wait", "a")
        assert (ran.code, ran.out) == (7, "")


def test_detached_prints_the_task_at_once(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": {**TASK, "state": "queued", "exit_code": None}}):
        assert call_here(tmp_path, "run", "mini", "--detach", "--", "x") == (0, "aaaabbbbcccc\n", "")
        assert json.loads(call_here(tmp_path, "run", "mini", "--detach", "--json", "--", "x").out)["state"] == "queued"


@pytest.mark.parametrize("state", ["refused", "lost", "timed_out", "cancelled"])
def test_an_end_that_is_not_the_command_s_own_is_said_last_on_stderr(tmp_path, state):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": {**TASK, "state": state, "exit_code": None, "reason": "policy"}}):
        ran = call_here(tmp_path, "-q", "run", "mini", "--", "x")
    assert ran.code == {"refused": 125, "lost": 125, "timed_out": 124, "cancelled": 130}[state]
    assert ran.err == f"hivemesh: {state} on mini: policy\n"


class Running:
    """`hivemesh run` as a process whose run goes on until it is told to cancel."""

    def __init__(self, tmp_path, *words: str) -> None:
        self.process = subprocess.Popen([*PROGRAM, *words], env=environ_of(tmp_path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n"

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def said(self, word: str) -> None:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert word in line, line

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=10)
        return self.process.returncode, err


async def endless(call):
    await call.event({"kind": "task", "task": TASK})
    await call.output("stdout", 0, b"begun\n")
    word = await call.signals.receive()
    return {**TASK, "state": "cancelled" if word == "cancel" else "lost", "exit_code": None}


async def stubborn(call):
    await call.event({"kind": "task", "task": TASK})
    await call.output("stdout", 0, b"begun\n")
    await trio.sleep_forever()


@pytest.fixture
def hangup_heard():
    """Children hear of a closed terminal also where these tests were started without it, as by ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": endless, "logs": stubborn}) as found:
        yield found


def test_two_ctrl_c_cancel(tmp_path, daemon):
    running = Running(tmp_path, "run", "mini", "--", "x")
    running.interrupt()
    running.said("keeps running there; again within 3 s cancels")
    running.interrupt()
    running.said("cancelling")
    assert running.end()[0] == 130
    assert daemon.cancelled == []


def test_one_ctrl_c_leaves_after_three_seconds_and_the_run_goes_on(tmp_path, daemon):
    running = Running(tmp_path, "run", "mini", "--", "x")
    begun = time.monotonic()
    running.interrupt()
    running.said("keeps running there")
    code, err = running.end()
    assert code == 125
    assert 2.5 < time.monotonic() - begun < 8
    assert "hivemesh logs aaaabbbbcccc -f" in err


def test_a_third_ctrl_c_waits_no_longer(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": stubborn}):
        running = Running(tmp_path, "run", "mini", "--", "x")
        for word in ("keeps running", "cancelling"):
            running.interrupt()
            running.said(word)
        running.interrupt()
        assert running.end()[0] == 125


def test_leaving_the_logs_takes_one_ctrl_c(tmp_path, daemon):
    running = Running(tmp_path, "logs", "a", "-f")
    running.interrupt()
    code, err = running.end()
    assert code == 125
    assert "the run goes on" in err


def test_a_closed_terminal_tells_the_node_nothing(tmp_path, daemon, hangup_heard):
    running = Running(tmp_path, "run", "mini", "--", "x")
    running.process.send_signal(signal.SIGHUP)
    assert running.end()[0] == -signal.SIGHUP
    deadline_s = time.monotonic() + 5
    while daemon.cancelled != ["run"] and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert daemon.cancelled == ["run"], "the following ends; nothing asked for the run's end"


@pytest.mark.parametrize("words", ["run mini -- x", "logs aaaabbbbcccc -f"])
def test_a_node_that_stops_leaves_the_run_and_its_name(tmp_path, words):
    with FakeDaemon(find_home(str(tmp_path), {}), {"run": endless, "logs": stubborn}):
        running = Running(tmp_path, *words.split())
    code, err = running.end()
    assert code == 125
    assert err.splitlines() == [
        "hivemesh: this machine's node stopped; run aaaabbbbcccc goes on there",
        "  hivemesh up -d, then hivemesh logs aaaabbbbcccc -f",
    ]


def test_a_run_that_waits_for_a_yes_says_where_it_can_be_given(tmp_path):
    async def asking(call):
        await call.event({"kind": "task", "task": TASK})
        await call.event({"kind": "state", "state": "asking"})
        return TASK

    with FakeDaemon(find_home(str(tmp_path), {}), {"run": asking}):
        err = call_here("/elsewhere", "--home", str(tmp_path), "run", "mini", "--", "x").err
    assert "allow it on mini or on another machine of its person" in err
    assert "there: hivemesh inbox" in err, "not with the home of this machine"


def test_a_reader_that_left_is_no_traceback_and_125(tmp_path, daemon):
    async def flood(call):
        for at in range(1000):
            await call.output("stdout", at * 65536, b"x" * 65536)
        return TASK

    with FakeDaemon(find_home(str(tmp_path / "other"), {}), {"run": flood}):
        reading, writing = os.pipe()
        process = subprocess.Popen([*PROGRAM, "run", "mini", "--", "x"], env=environ_of(tmp_path / "other"), stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        os.read(reading, 100)
        os.close(reading)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 125
    assert err == ""
