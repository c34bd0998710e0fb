"""The lab itself: what the tests here believe of it must be true."""

from __future__ import annotations

import subprocess

import pytest

from tests.lan.lab import PREFIX, open_lab, open_slow_lab, sweep


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX)]


def _reaches(lab, host: str, address: str) -> bool:
    program = (
        "import socket,sys\n"
        "s=socket.create_connection((sys.argv[1],7777),1)\n"
        "s.recv(1)\n"
        "s.close()\n"
    )
    return lab.run(host, "python3", "-c", program, address, check=False, timeout_s=10).returncode == 0


def _serve(lab, host: str) -> None:
    program = (
        "import socket\n"
        "s=socket.create_server(('',7777))\n"
        "print('ready',flush=True)\n"
        "while True:\n"
        "    c,_=s.accept()\n"
        "    c.send(b'x')\n"
        "    c.close()\n"
    )
    process = lab.start(host, "python3", "-c", program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def test_cables_partitions_and_addresses_do_what_they_say() -> None:
    with open_lab("a", "b") as lab:
        _serve(lab, "b")
        assert _reaches(lab, "a", "10.99.0.2")
        lab.pull("b")
        assert not _reaches(lab, "a", "10.99.0.2")
        lab.replug("b")
        lab.part(["a"], ["b"])
        assert not _reaches(lab, "a", "10.99.0.2")
        lab.heal()
        assert _reaches(lab, "a", "10.99.0.2")
        lab.readdress("b", "10.99.0.22/24")
        assert _reaches(lab, "a", "10.99.0.22")
        lab.block("b", "a")
        assert not _reaches(lab, "a", "10.99.0.22")


def test_hosts_reach_nothing_outside_the_lab() -> None:
    with open_lab("a", "b") as lab:
        routes = lab.run("a", "ip", "route", "show", "default").stdout
        assert routes == ""


def test_nothing_is_left_after_a_failure_inside() -> None:
    before = set(_namespaces())
    started = []

    def fail_inside() -> None:
        with open_lab("a", "b") as lab:
            started.append(lab.start("a", "sleep", "1000"))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    assert set(_namespaces()) <= before
    assert started[0].poll() is not None


def test_what_a_killed_run_left_behind_is_swept() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    name = f"{PREFIX}-{gone.pid}-1-orphan"
    subprocess.run(["ip", "netns", "add", name], check=True)
    left = subprocess.Popen(["ip", "netns", "exec", name, "sh", "-c", "echo inside; exec sleep 1000"], stdout=subprocess.PIPE)
    try:
        assert left.stdout is not None
        assert left.stdout.readline() == b"inside\n"
        assert name in sweep()
        assert name not in _namespaces()
        assert left.wait(timeout=5) != 0
    finally:
        left.kill()
        left.wait()
        left.stdout.close()


def test_a_lab_in_use_is_not_swept() -> None:
    with open_lab("a") as lab:
        assert lab.namespace("a") not in sweep()
        assert lab.namespace("a") in _namespaces()


ROUND_TRIPS = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7777), 5)
s.recv(1)
began = time.monotonic()
for _ in range(3):
    c = socket.create_connection((sys.argv[1], 7777), 5)
    c.recv(1)
print((time.monotonic() - began) / 3)
"""
POUR = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7777), 5)
began = time.monotonic()
got = 0
while got < 200_000:
    got += len(s.recv(65536))
print(got * 8 / (time.monotonic() - began))
"""


def test_a_slow_line_delays_and_throttles() -> None:
    """40 ms there and back is the least a connection and its first byte take, two round trips; 4 Mb/s the most there is."""
    with open_slow_lab("a", "b", delay_s=0.020, jitter_s=0.002) as lab:
        _serve(lab, "b")
        assert float(lab.run("a", "python3", "-c", ROUND_TRIPS, "10.98.0.2").stdout) >= 0.080
    with open_slow_lab("a", "b", delay_s=0.001, bits_per_s=4e6) as lab:
        program = "import socket\ns=socket.create_server(('',7777))\nprint('ready',flush=True)\nc,_=s.accept()\nc.sendall(bytes(400_000))\nc.recv(1)\n"
        process = lab.start("b", "python3", "-c", program)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert float(lab.run("a", "python3", "-c", POUR, "10.98.0.2").stdout) < 4.4e6


def test_a_line_that_loses_everything_lets_nothing_through() -> None:
    with open_slow_lab("a", "b", delay_s=0.001, loss=1.0) as lab:
        _serve(lab, "b")
        assert not _reaches(lab, "a", "10.98.0.2")
