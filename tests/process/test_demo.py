"""The demo: seven checked steps, and nothing left behind, however it ends and whatever the environment holds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.process.nodes import PROGRAM, ROOT, until

DEMO_S = 60
ENVIRON = {key: value for key, value in os.environ.items() if not key.startswith(("HIVEMESH_", "GIT_", "XDG_"))}


def begin(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """Begin a demo whose temporary folder lies in ``folder``."""
    (folder / "tmp").mkdir()
    (folder / "user").mkdir()
    surroundings = {**ENVIRON, "HOME": str(folder / "user"), "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), **environ}
    pipe = subprocess.PIPE
    return subprocess.Popen([*PROGRAM, *words, "demo"], env=surroundings, cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)


def processes_of(folder: Path) -> list[str]:
    """Every process that names the folder in its words or its environment; the test itself does not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                seen = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if os.fsencode(folder / "tmp") in seen:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def assert_clean(folder: Path) -> None:
    until("no process is left", lambda: not processes_of(folder), 10)
    assert list((folder / "tmp").iterdir()) == []
    assert list((folder / "user").iterdir()) == []


def test_all_seven_steps_pass_in_a_hostile_environment(tmp_path: Path) -> None:
    """A home of somebody else's in the environment, git told to look elsewhere, no HOME: none of it matters, or is touched."""
    other = tmp_path / "other-home"
    other.mkdir()
    nowhere = str(tmp_path / "nowhere")
    hostile = {"HIVEMESH_HOME": str(other), "HIVEMESH_INVITE": "hmi_x", "GIT_DIR": nowhere, "GIT_WORK_TREE": nowhere, "GIT_INDEX_FILE": nowhere, "http_proxy": "http://127.0.0.1:1", "PYTHONDONTWRITEBYTECODE": "1"}
    began_s = time.monotonic()
    demo = begin(tmp_path, "--json", **hostile)
    out, err = demo.communicate(timeout=2 * DEMO_S)
    assert demo.returncode == 0, err
    assert time.monotonic() - began_s < DEMO_S
    found = json.loads(out)
    assert [row["step"] for row in found["steps"]] == list(range(1, 8))
    for row in found["steps"]:
        assert f"[{row['step']}/7] {row['title']}" in err
    titles = " ".join(row["title"].lower() for row in found["steps"])
    for word in ("pair", "fleet", "run the tests", "uncommitted", "learned", "outsider", "revoke"):
        assert word in titles
    assert "packaged sample" in err
    assert list(other.iterdir()) == []
    assert not Path(nowhere).exists()
    assert "hmg_" not in out + err, "the token is shown to nobody"
    assert_clean(tmp_path)


@pytest.mark.parametrize(("step", "number"), [(1, signal.SIGINT), (4, signal.SIGTERM)])
def test_an_interrupt_in_the_middle_leaves_nothing(tmp_path: Path, step: int, number: int) -> None:
    """Also where it is pressed again and again while everything is cleaned up."""
    demo = begin(tmp_path)
    assert demo.stdout is not None
    for line in demo.stdout:
        if line.startswith(f"[{step}/7]"):
            break
    until("it is in the middle", lambda: processes_of(tmp_path))
    for _ in range(4):
        demo.send_signal(number)
        time.sleep(0.03)
    out, err = demo.communicate(timeout=30)
    # A late one may come when everything is cleaned up and Python itself is ending.
    assert demo.returncode in (130, -number), (out, err)
    assert "Traceback" not in err
    assert_clean(tmp_path)


def test_a_demo_without_git_says_so(tmp_path: Path) -> None:
    demo = begin(tmp_path, "--json", PATH=str(tmp_path / "user"))
    out, _ = demo.communicate(timeout=30)
    assert demo.returncode == 1
    assert "git" in json.loads(out)["error"]["message"]
    assert sys.executable
    assert_clean(tmp_path)
