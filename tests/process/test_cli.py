"""The command line against real nodes, each a process of its own on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from node.home import Home, control_address, find_home
from node.lock import lock_holder
from tests.fakes.commands import PROGRAM, ROOT, Ran

UP = ["up", "-d", "--listen", "127.0.0.1:0", "--no-discovery"]
STATUS_KEYS = {"node", "mesh", "listen", "api", "discovery", "links", "runs", "sandbox", "warnings"}
PEER_KEYS = {"node", "name", "owner", "mine", "roles", "state", "link", "rtt_ms", "last_seen_s", "addresses", "version"}
INVITE_KEYS = {"id", "link", "expires_at", "code", "words", "code_expires_at", "uses", "roles", "owner"}


class Machine:
    """One home, and the commands given to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home: Home = find_home(str(folder), {})
        self.environ = {**os.environ, "HOME": str(folder.parent / "user"), "HIVEMESH_HOME": str(folder), "PYTHONPATH": str(ROOT)}

    def __call__(self, *words: str, stdin: str = "", code: int | None = 0) -> Ran:
        done = subprocess.run([*PROGRAM, *words], env=self.environ, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert code is None or done.returncode == code, (words, done)
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str, code: int = 0):
        return json.loads(self("--json", *words, code=code).out)

    @property
    def pid(self) -> int | None:
        return lock_holder(self.home)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def machine(tmp_path):
    found = Machine(tmp_path / "a")
    yield found
    found.kill()


@pytest.fixture
def other(tmp_path):
    found = Machine(tmp_path / "b")
    yield found
    found.kill()


def until(true, what: str, deadline_s: float = 15) -> None:
    end_s = time.monotonic() + deadline_s
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def test_a_node_from_its_first_start_to_its_end(machine):
    assert machine("status", code=3).err.splitlines()[-1].strip() == "hivemesh up -d"
    machine(*UP, "--name", "mini")
    status = machine.json("status")
    assert set(status) >= STATUS_KEYS
    assert set(status["node"]) >= {"id", "name", "fingerprint", "owner", "version", "boot", "uptime_s"}
    assert (status["node"]["name"], status["mesh"]["members"], status["links"]) == ("mini", 1, [])
    assert machine.json("peers") == []
    assert machine.json("fleet") == []
    assert machine.json("hive", "lessons") == []
    assert machine.json("access", "list") == []
    assert machine.json("config", "set", "runs", "mine") == {"key": "runs", "value": "mine", "applied": True}
    assert machine.json("status")["runs"] == "mine"
    assert machine.json("mesh", "identity")["fingerprint"] == status["node"]["fingerprint"]
    assert {check["state"] for check in machine.json("doctor")} <= {"ok", "warn"}
    assert machine("connect", "nobody", "10.0.0.1", code=2).out == ""
    machine("down")
    assert machine.pid is None
    machine("status", code=3)
    machine(*UP)
    again = machine.json("status")
    assert again["node"]["fingerprint"] == status["node"]["fingerprint"]
    assert again["runs"] == "mine"


def test_join_starts_the_node_and_both_sides_see_each_other(machine, other, tmp_path):
    machine(*UP, "--name", "laptop")
    invite = machine.json("invite")
    assert set(invite) >= INVITE_KEYS
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "config.toml").write_text('name = "mini"\nlisten = "127.0.0.1:0"\ndiscovery = false\n')
    ran = other("--json", "join", "-", stdin=f' "{invite["link"]}"\n')
    joined = json.loads(ran.out)
    assert set(joined) >= {"mesh", "node", "name", "via", "owner", "roles"}
    assert (joined["name"], joined["via"]) == ("mini", "laptop")
    assert "started this machine's node in the background" in ran.err
    assert "hivemesh config set runs mine" in ran.err
    assert invite["link"] not in ran.out + ran.err
    until(lambda: [peer["state"] for peer in machine.json("peers")] == ["live"], "laptop sees mini live")
    until(lambda: [peer["state"] for peer in other.json("peers")] == ["live"], "mini sees laptop live")
    assert set(machine.json("peers")[0]) >= PEER_KEYS
    assert machine("peers").out.splitlines()[1].split()[1].startswith("mini~")
    assert other("join", invite["link"], code=5).out == "", "one use"


def test_of_ten_starts_at_once_one_lives(machine):
    """O-B5, with real nodes: then SIGKILL, and the next start works."""
    words = [*PROGRAM, *UP]
    crowd = [subprocess.Popen(words, env=machine.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(10)]
    ends = [(process.communicate(timeout=60), process.returncode) for process in crowd]
    assert [code for _, code in ends].count(0) == 1
    for (_, err), code in ends:
        if code:
            assert f"pid {machine.pid}" in err
    machine("status")
    pid = machine.pid
    machine.kill()
    machine(*UP)
    assert machine.pid not in (None, pid)


def test_key_files_are_private_at_every_moment(machine):
    """O-P7: a first start under umask 000, watched while it runs."""
    seen: set[int] = set()
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            for folder, _, files in os.walk(machine.folder):
                for path in [folder, *(os.path.join(folder, name) for name in files if name != "control.sock")]:
                    try:
                        seen.add(stat.S_IMODE(os.lstat(path).st_mode))
                    except FileNotFoundError:
                        continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    before = os.umask(0)
    try:
        machine(*UP)
    finally:
        os.umask(before)
        over.set()
        watcher.join()
    assert (machine.folder / "identity" / "node.key").exists()
    assert seen
    assert not [oct(mode) for mode in seen if mode & 0o077]


@pytest.mark.parametrize("name", ["x" * 140, "한" * 60], ids=["long", "hangul"])
def test_a_deep_home_works_in_all(tmp_path, name):
    """O-V2."""
    machine = Machine(tmp_path / name)
    try:
        machine(*UP)
        assert len(os.fsencode(control_address(machine.home))) <= 100
        machine("status")
        machine("down")
    finally:
        machine.kill()


def test_a_taken_port_names_its_holder(machine):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = machine("up", "-d", "--no-discovery", "--listen", f"127.0.0.1:{port}", code=1)
    assert f"pid {os.getpid()}" in ran.err
    assert str(port) in ran.err
    assert machine.pid is None


def test_garbage_on_the_socket_leaves_the_node_up(machine):
    machine(*UP)
    address = control_address(machine.home)
    for data in (b"", b"\n", b"\xff" * 1000, b"{" * 400_000, b'{"v":1,"verb":"status"', os.urandom(100_000) + b"\n"):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(address)
            try:
                rude.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                continue
    assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
    machine("status")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_node_in_the_foreground_ends_in_order(machine, number):
    process = subprocess.Popen(
        [*PROGRAM, "up", *UP[2:]],
        env=machine.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # the tests themselves may run under nohup
    )
    assert process.stdout is not None
    assert "  " in process.stdout.readline()
    machine("status")
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert not os.path.exists(control_address(machine.home))
    assert machine.pid is None
