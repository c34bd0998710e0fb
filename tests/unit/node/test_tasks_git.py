"""How git is run: its version, its limits, its end, and nothing that asks."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trio

from mesh.base.errors import OurFault, Refused
from node.tasks.git import Git, GitFailed, feed_all, last_line

DEADLINE_S = 20


def git(**change: str) -> Git:
    return Git({**os.environ, **change}, time_limit_s=DEADLINE_S, trusted_home=False)


def fake_git(folder: Path, script: str) -> Git:
    path = folder / "git"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Git({"PATH": f"{folder}:{os.environ['PATH']}"}, time_limit_s=0.3, trusted_home=False)


async def test_output_input_and_errors():
    assert (await git().run(["hash-object", "--stdin"], feed=b"x\n")).strip() == b"587be6b4c3f93f93c489c0111bba5596147a26cb"
    with pytest.raises(GitFailed, match="not a git command") as failed:
        await git().run(["no-such-verb"])
    assert failed.value.code == 1


async def test_an_old_git_and_none_are_told_apart(tmp_path: Path):
    with pytest.raises(Refused, match="too old") as refused:
        await fake_git(tmp_path, "echo git version 2.30.9").check_version()
    assert refused.value.reason == "old_git"
    with pytest.raises(Refused) as refused:
        await Git({"PATH": str(tmp_path / "empty")}, time_limit_s=5, trusted_home=False).check_version()
    assert refused.value.reason == "no_git"
    with pytest.raises(Refused) as refused:
        await git().run(["--version"], cwd=tmp_path / "nowhere")
    assert refused.value.reason == "no_folder"
    await fake_git(tmp_path, "echo git version 2.99.1.windows").check_version()


async def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path):
    """O-X22: no command waits for ever."""
    with trio.fail_after(DEADLINE_S), pytest.raises(Refused) as refused:
        await fake_git(tmp_path, f"sleep 300 & echo $! > {tmp_path}/pid; wait").run(["fetch"])
    assert refused.value.reason == "timeout"
    pid = int((tmp_path / "pid").read_text())
    with trio.fail_after(DEADLINE_S):
        while _lives(pid):  # noqa: ASYNC110 - another process's end wakes nobody here
            await trio.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_too_much_output_is_refused(tmp_path: Path):
    with pytest.raises(Refused) as refused:
        await fake_git(tmp_path, "head -c 5000 /dev/zero").run(["x"], stdout_bytes_max=4_999)
    assert refused.value.reason == "limit"


async def test_a_reader_that_stops_early_is_not_our_fault(tmp_path: Path):
    assert await fake_git(tmp_path, "exit 0").run(["x"], feed=b"x" * 1_000_000) == b""


async def test_nobody_is_asked_for_a_password(tmp_path: Path):
    """O-X22: no transport at all is allowed, so nothing can ask; no tty, no askpass."""
    seen: list[str] = []

    class Wants(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Wants)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        for url in (f"http://127.0.0.1:{server.server_port}/x.git", "ssh://127.0.0.1:1/x", f"ext::sh -c touch% {tmp_path}/PWNED"):
            with trio.fail_after(DEADLINE_S), pytest.raises(GitFailed):
                await git().run(["ls-remote", url], cwd=tmp_path)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen == []
    assert not (tmp_path / "PWNED").exists()


async def test_a_strangers_configuration_is_absent_and_a_users_own_is_there(tmp_path: Path):
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = Ana\n[core]\n\thooksPath = /evil\n")
    home = {**os.environ, "HOME": str(tmp_path)}
    home.pop("XDG_CONFIG_HOME", None)
    mine = Git(home, time_limit_s=DEADLINE_S, trusted_home=True)
    assert (await mine.run(["config", "user.name"])).strip() == b"Ana"
    assert (await mine.run(["config", "core.hooksPath"])).strip() == b"/dev/null"
    with pytest.raises(GitFailed):
        await Git(home, time_limit_s=DEADLINE_S, trusted_home=False).run(["config", "user.name"])


async def test_feeding_a_process_that_is_gone_says_nothing():
    process = await trio.lowlevel.open_process(["true"], stdin=subprocess.PIPE)
    await process.wait()
    await feed_all(process, b"x" * 1_000_000)


def test_the_telling_line_is_picked():
    assert last_line("hint: x\nfatal: the reason\nhint: y") == "fatal: the reason"
    assert last_line("") == "it did not say why"
    assert len(last_line("e" * 500)) == 200
    assert isinstance(GitFailed(1, "x"), OurFault)
