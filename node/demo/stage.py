"""What the demo stands on: a temporary folder, nodes in processes of their own, and the commands it runs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesh.base.errors import OurFault

COMMAND_S = 45.0
"""One command of the demo takes at most this long."""
START_S = 30.0
END_S = 10.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a demo."""
_PR_SET_PDEATHSIG = 1


class StepFailed(OurFault):
    """A step of the demo did not do what it must."""

    kind = "step_failed"


class Stage:
    """One demo's folder and processes.

    Args:
        folder: A fresh temporary folder.
        environ: The environment of every process the demo starts.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder = folder
        self.environ = environ
        self._running: list[subprocess.Popen[str]] = []

    def home(self, name: str) -> Path:
        """The home of one machine."""
        return self.folder / name

    def start(self, name: str, *words: str, until: str) -> dict[str, Any]:
        """Start a command that goes on, and wait for its first line.

        Args:
            name: Whose home.
            words: The command, for example ``up``.
            until: A field its first JSON line must have.

        Returns:
            That line.

        Raises:
            StepFailed: It ended, or said nothing in time.
        """
        command = self._command(name, words)
        said = self.folder / f"{name}-{words[0]}.stderr"
        with said.open("w") as errors, _uninterrupted():
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
                preexec_fn=_be_child,
            )
            self._running.append(process)
        assert process.stdout is not None
        line = _first_line(process)
        try:
            found = json.loads(line)
        except ValueError:
            found = {}
        if until not in found:
            raise StepFailed(f"`hivemesh {' '.join(words)}` did not start on {name}: {_why(said, found)}")
        return dict(found)

    def call(self, name: str, *words: str, cwd: Path | None = None) -> Any:
        """Run a command with ``--json`` and return its answer.

        Raises:
            StepFailed: It exits with anything but 0.
        """
        done = self.run(name, *words, cwd=cwd)
        if done.returncode != 0:
            raise StepFailed(f"`hivemesh {words[0]}` on {name} exits with {done.returncode}: {_said(done)}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def run(self, name: str, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command with ``--json``, whatever it exits with.

        Raises:
            StepFailed: It does not end within COMMAND_S.
        """
        return self._finish(self._command(name, words), cwd or self.folder)

    def _finish(self, command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        pipe = subprocess.PIPE
        with _uninterrupted():
            process = subprocess.Popen(
                command, cwd=folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, preexec_fn=_be_child
            )
            self._running.append(process)
        with process:
            try:
                out, err = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise StepFailed(f"`{' '.join(command[:6])}` did not end within {COMMAND_S:.0f} s") from None
            except BaseException:
                process.kill()
                raise
        self._running.remove(process)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _command(self, name: str, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "node.cli.entry", "--home", str(self.home(name)), "--json", *words]

    def git(self, folder: Path, *words: str) -> str:
        """Run git in the demo's own repository; returns what it prints."""
        done = self._finish(["git", *words], folder)
        if done.returncode != 0:
            raise StepFailed(f"git {words[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout.rstrip("\n")

    def end(self) -> None:
        """End every process that still runs, by its pid, and wait for it."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + END_S
        for process in self._running:
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def wait_for(what: str, look: Callable[[], Any], *, timeout_s: float = 20.0) -> Any:
    """Look again and again until something is there.

    Args:
        what: What is waited for, for the message.
        look: Returns it, or something false.
        timeout_s: How long, in seconds.

    Raises:
        StepFailed: It did not come.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise StepFailed(f"{what} did not come about within {timeout_s:.0f} s")
        time.sleep(0.1)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind like Ctrl-C does, and only the first of all of them: cleaning up is not interrupted."""
    pressed = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal pressed
        if not pressed:
            pressed = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back for a moment, so that no process is started that nobody knows of."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_child() -> None:
    """Take signals again, and ask the kernel to end this process when the demo is killed outright; that is Linux only."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _first_line(process: subprocess.Popen[str]) -> str:
    import select

    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_S)
    return process.stdout.readline() if ready else ""


def _why(said: Path, found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"].get("message"))
    return (said.read_text().strip().splitlines() or ["it said nothing"])[-1]


def _said(done: subprocess.CompletedProcess[str]) -> str:
    for text in (done.stdout, done.stderr):
        lines = text.strip().splitlines()
        if lines:
            try:
                return str(json.loads(lines[-1])["error"]["message"])
            except (ValueError, KeyError, TypeError):
                return lines[-1][:300]
    return "nothing was said"


def base_environ(folder: Path) -> dict[str, str]:
    """The environment of the demo's processes: the user's, with git's identity and nothing of another home."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HIVEMESH_", "GIT_"))}
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "GIT_AUTHOR_NAME": "Demo",
        "GIT_AUTHOR_EMAIL": "demo@example.invalid",
        "GIT_COMMITTER_NAME": "Demo",
        "GIT_COMMITTER_EMAIL": "demo@example.invalid",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "TMPDIR": str(folder),
    }
