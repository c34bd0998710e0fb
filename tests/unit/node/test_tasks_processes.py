"""Processes by parent and start time, against real ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from node.tasks.processes import descendants, parents, send_signal, start_time, stat_fields

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_children_and_grandchildren_are_found():
    before = descendants(os.getpid())
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert parents()[grandchild] == child.pid
        assert {child.pid, grandchild} <= set(descendants(os.getpid()))
        assert descendants(child.pid) == [grandchild]
        assert start_time(child.pid) >= start_time(os.getpid()) > 0
        send_signal(grandchild, 9)
        child.wait(timeout=10)
    assert set(descendants(os.getpid())) <= set(before)


def test_a_zombie_is_not_living():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.pid not in descendants(os.getpid())
    child.wait(timeout=10)


def test_what_does_not_exist_is_nothing():
    assert stat_fields(2**22 + 1) == []
    assert start_time(2**22 + 1) == 0
    send_signal(2**22 + 1, 9)
