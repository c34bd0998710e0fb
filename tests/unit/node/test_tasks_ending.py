"""Ending what a task left, with its supervisor or without: by mark, descent, number and start time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.tasks.ending import sweep, wake
from node.tasks.processes import stat_fields

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_reused_pid_is_nobodys(tmp_path: Path):
    """O-X15, O-X29: a living stranger's pid in the record, with another start time, is left alone."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (tmp_path / "birth").write_text(f"1 1 {stranger.pid} 12345\n")
        assert sweep(tmp_path, "no-such-task") == 0
        for text in ("", "x", "1 2 3", "1 2 x y"):
            (tmp_path / "birth").write_text(text)
            assert sweep(tmp_path, "no-such-task") == 0
        assert stranger.poll() is None
        stranger.kill()


def test_a_stopped_parent_and_what_dropped_the_mark_below_it_are_ended(tmp_path: Path):
    """`kill -STOP $PPID`, then a child without the mark in a session of its own."""
    script = "setsid env -i sleep 300 & sleep 300 & echo $!; kill -STOP $$; wait"
    env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": "stopped-task"}
    with subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE) as parent, subprocess.Popen(["sleep", "60"]) as bystander:
        assert parent.stdout is not None
        parent.stdout.readline()
        os.waitid(os.P_PID, parent.pid, os.WSTOPPED | os.WNOWAIT)
        assert sweep(tmp_path, "stopped-task", supervisor=parent.pid) == 2
        assert parent.wait(timeout=10) == -9
        assert sweep(tmp_path, "stopped-task") == 0
        assert stat_fields(bystander.pid)[:1] == [b"S"]
        bystander.kill()


def test_what_was_stopped_goes_on_when_woken():
    env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": "woken-task"}
    with subprocess.Popen(["sh", "-c", "kill -STOP $$; exit 7"], env=env) as stopped:
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)
        wake("another-task")
        assert stat_fields(stopped.pid)[:1] == [b"T"]
        wake("woken-task")
        assert stopped.wait(timeout=10) == 7
