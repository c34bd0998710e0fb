"""Taking a home: rights, lock, and the address of the socket."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mesh.base.errors import OurFault, Refused
from node.home import CONTROL_ADDRESS_BYTES_MAX, control_address, find_home
from node.lock import choose_control_address, lock_holder, lock_home, make_home

HOLD = """
import sys
from node.home import find_home
from node.lock import lock_home, make_home
home = find_home(sys.argv[1], {})
make_home(home)
with lock_home(home):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=10)


def test_every_folder_is_private_from_the_moment_it_exists(tmp_path):
    """O-P7: also under a umask that would open everything."""
    before = os.umask(0)
    try:
        assert make_home(find_home(str(tmp_path / "h"), {})) == []
    finally:
        os.umask(before)
    folders = [tmp_path / "h", tmp_path / "h/run", tmp_path / "h/log"]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_wider_rights_are_mended_and_said(tmp_path):
    """O-P7: wider rights found at the start."""
    (tmp_path / "h").mkdir(mode=0o755)
    warnings = make_home(find_home(str(tmp_path / "h"), {}))
    assert len(warnings) == 1
    assert str(tmp_path / "h") in warnings[0]
    assert stat.S_IMODE((tmp_path / "h").stat().st_mode) == 0o700


def test_a_shared_folder_is_not_taken_as_a_home(tmp_path):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(Refused) as refusal:
        make_home(find_home(str(shared), {}))
    assert str(shared / "hivemesh") in refusal.value.hint
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of another user")
def test_a_folder_of_another_user_is_refused(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(Refused, match="another user"):
        make_home(find_home(str(tmp_path), {}))


def test_a_home_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OurFault, match="cannot be used") as fault:
        make_home(find_home(str(tmp_path / "file" / "h"), {}))
    assert "\n" not in fault.value.message


def test_one_of_ten_starts_at_once_gets_the_home(tmp_path):
    """O-B5: ten starts at once, one lives; SIGKILL it, and the next start works."""
    begun = time.monotonic()
    crowd = [hold(tmp_path / "h") for _ in range(10)]
    outputs = []
    for process in crowd:
        line = process.stdout.readline()  # empty once it has ended
        outputs.append(line)
    winners = [process for process, line in zip(crowd, outputs, strict=True) if line == "held\n"]
    assert len(winners) == 1
    for process in crowd:
        if process is not winners[0]:
            _, err = process.communicate(timeout=10)
            assert process.returncode != 0
            assert f"pid {winners[0].pid}" in err
    assert time.monotonic() - begun < 30
    winners[0].send_signal(signal.SIGKILL)
    end(winners[0])
    with lock_home(find_home(str(tmp_path / "h"), {})):
        assert lock_holder(find_home(str(tmp_path / "h"), {})) == os.getpid()


def test_another_spelling_of_the_path_meets_the_same_lock(tmp_path):
    """O-B5: via a symlink, refused within 2 s and naming the pid."""
    home = find_home(str(tmp_path / "h"), {})
    make_home(home)
    (tmp_path / "link").symlink_to(tmp_path / "h")
    with lock_home(home):
        begun = time.monotonic()
        with pytest.raises(Refused, match=rf"pid {os.getpid()}\)") as refusal:
            lock_home(find_home(str(tmp_path / "link"), {}))
        assert time.monotonic() - begun < 2
    assert refusal.value.reason == "already_running"
    assert lock_holder(home) is None


def test_a_process_started_below_the_node_does_not_keep_the_lock(tmp_path):
    home = find_home(str(tmp_path), {})
    make_home(home)
    with lock_home(home):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        # The kernel wakes the parent a moment before it closes the child's files; a start waits that long as well.
        with lock_home(home):
            assert child.poll() is None
    finally:
        child.communicate(timeout=10)


@pytest.mark.parametrize("name", ["a" * 60, "b" * 107, "c" * 108, "d" * 200, "한" * 60], ids=["60", "107", "108", "200", "hangul"])
def test_node_and_command_agree_on_an_address_however_long_the_path(tmp_path, name):
    """O-V2: a home of 60, 107, 108 and 200 characters and of 60 Hangul letters."""
    home = find_home(str(tmp_path / name), {})
    make_home(home)
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    address = choose_control_address(home, {"XDG_RUNTIME_DIR": str(runtime)})
    assert len(os.fsencode(address)) <= CONTROL_ADDRESS_BYTES_MAX
    assert control_address(home) == address


def test_a_moved_socket_lies_in_a_private_folder_or_nowhere(tmp_path):
    """O-V2: the fall-back folder is 0700 and owner-checked; SECURITY 14."""
    home = find_home(str(tmp_path / ("x" * 120)), {})
    make_home(home)
    runtime = tmp_path / "r"
    (runtime / "hivemesh").mkdir(parents=True)
    (runtime / "hivemesh").chmod(0o755)
    address = choose_control_address(home, {"XDG_RUNTIME_DIR": str(runtime)})
    assert address.startswith(f"/tmp/hivemesh-{os.getuid()}/"), "an open folder is passed over"
    assert stat.S_IMODE(os.stat(os.path.dirname(address)).st_mode) == 0o700
    (runtime / "hivemesh").chmod(0o700)
    assert choose_control_address(home, {"XDG_RUNTIME_DIR": str(runtime)}).startswith(str(runtime))
