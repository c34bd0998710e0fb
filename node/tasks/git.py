"""The one way this package runs git: nothing from a repository's configuration is executed, and nothing asks or waits.

Overrides go by ``GIT_CONFIG_*`` variables, because a filter's name may hold an equals sign that ``-c`` would misread.
The user's own global configuration is kept where their repository is read (their ignore rules must count) and is
absent where a stranger's objects are taken in.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from mesh.base.errors import OurFault, Refused

OLDEST = (2, 31)
STDERR_BYTES_MAX = 64 * 1024
STDOUT_BYTES_MAX = 64 << 20

_SAFE_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.splitIndex": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "true",
    "credential.helper": "",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "protocol.allow": "never",
    "advice.detachedHead": "false",
}


class GitFailed(OurFault):
    """Git ended with an error; whoever ran it says what that means.

    Args:
        code: Its exit code, or minus a signal.
        text: What it wrote to its standard error, in English.
    """

    kind = "git_failed"

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"git failed: {last_line(text)}")
        self.code = code
        self.text = text


def last_line(text: str) -> str:
    """Take the line of git's complaint that says most, cut to what a person reads."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
    return (fatal or lines or ["it did not say why"])[-1][:200]


class Git:
    """Runs git with a fixed environment.

    Args:
        own: The node's environment; PATH is taken, and HOME and XDG_CONFIG_HOME for the user's own repositories.
        time_limit_s: For one command.
        trusted_home: Whether the user's global configuration counts.
    """

    def __init__(self, own: Mapping[str, str], *, time_limit_s: float, trusted_home: bool) -> None:
        self._time_limit_s = time_limit_s
        self._checked = False
        env = {
            "PATH": own.get("PATH", "/usr/bin:/bin"),
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "SSH_ASKPASS": "false",
            "GIT_SSH_COMMAND": "false",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_PAGER": "cat",
            "GIT_EDITOR": "false",
            "GIT_AUTHOR_NAME": "HiveMesh snapshot",
            "GIT_AUTHOR_EMAIL": "snapshot@hivemesh.invalid",
            "GIT_COMMITTER_NAME": "HiveMesh snapshot",
            "GIT_COMMITTER_EMAIL": "snapshot@hivemesh.invalid",
        }
        if trusted_home:
            env |= {name: own[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in own}
        else:
            env |= {"HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        self._env = env

    async def check_version(self) -> None:
        """Refuse where git is missing or too old for what this package asks of it.

        Raises:
            Refused: With the reason ``no_git`` or ``old_git``.
        """
        if self._checked:
            return
        text = (await self.run(["--version"])).decode("utf-8", "replace")
        found = re.search(r"(\d+)\.(\d+)", text)
        if not found or (int(found[1]), int(found[2])) < OLDEST:
            raise Refused(f"git here is too old: {text.strip()[:80]}", reason="old_git", hint="install git 2.31 or newer, or use --no-tree")
        self._checked = True

    async def run(
        self,
        args: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        feed: bytes = b"",
        stdout_bytes_max: int = STDOUT_BYTES_MAX,
    ) -> bytes:
        """Run one git command to its end.

        Args:
            args: Without ``git``.
            cwd: Where; a folder no task can write, or the user's own.
            env: Added variables.
            config: Added configuration, behind the fixed overrides.
            feed: For its standard input.
            stdout_bytes_max: More output than this is refused.

        Returns:
            Its standard output.

        Raises:
            GitFailed: It ended with an error.
            Refused: No git; or it took too long, or wrote too much.

        If cancelled: git and its children are killed.
        """
        with tempfile.TemporaryFile() as out:
            async with self.open(args, cwd=cwd, env=env, config=config, stdout=out.fileno()) as process:
                await feed_all(process, feed)
            size = out.seek(0, os.SEEK_END)
            if size > stdout_bytes_max:
                raise Refused(f"git {args[0]} wrote over {stdout_bytes_max} bytes", reason="limit")
            out.seek(0)
            return out.read()

    @asynccontextmanager
    async def open(
        self,
        args: list[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        stdout: int = subprocess.DEVNULL,
        wrap: tuple[str, ...] = (),
        time_limit_s: float | None = None,
    ) -> AsyncIterator[trio.Process]:
        """Run a git command that the caller feeds while it runs.

        What it writes goes to files: nothing has to read beside the feeding, so nothing can block.

        Args:
            args: Without ``git``.
            cwd: Where.
            env: Added variables.
            config: Added configuration.
            stdout: DEVNULL or a descriptor.
            wrap: A command in front that sets limits and then becomes git.
            time_limit_s: Where feeding it takes longer than one command usually may.

        Yields:
            The process, with an open standard input.

        Raises:
            GitFailed: It ended with an error.
            Refused: No git, or it took too long.

        If cancelled: git and its children are killed.
        """
        limit_s = time_limit_s or self._time_limit_s
        with tempfile.TemporaryFile() as errors:
            with trio.move_on_after(limit_s) as limit:
                command = [*wrap, "git", "--no-pager", *args]
                process = await self._start(command, cwd, self._environment(env, config), stdout, errors.fileno())
                try:
                    yield process
                    if process.stdin is not None:
                        await process.stdin.aclose()
                    await process.wait()
                finally:
                    await _end(process)
            if limit.cancelled_caught:
                raise Refused(f"git {args[0]} took over {limit_s:.0f} s", reason="timeout")
            if process.returncode != 0:
                errors.seek(0)
                raise GitFailed(process.returncode or 0, errors.read(STDERR_BYTES_MAX).decode("utf-8", "replace").strip())

    async def _start(self, command: list[str], cwd: Path | None, env: dict[str, str], stdout: int, stderr: int) -> trio.Process:
        try:
            return await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=True
            )
        except FileNotFoundError:
            raise _missing(cwd) from None
        except OSError as error:
            raise OurFault(f"git could not be started: {error.strerror}") from error

    def _environment(self, env: Mapping[str, str] | None, config: Mapping[str, str] | None) -> dict[str, str]:
        settings = [*_SAFE_CONFIG.items(), *(config or {}).items()]
        numbered = {"GIT_CONFIG_COUNT": str(len(settings))}
        for place, (name, value) in enumerate(settings):
            numbered |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
        return {**self._env, **numbered, **(env or {})}


def _missing(cwd: Path | None) -> Refused:
    """Tell a missing folder from a missing git."""
    if cwd is not None and not cwd.is_dir():
        return Refused(f"{cwd} is not a folder", reason="no_folder")
    return Refused("git is not installed here", reason="no_git", hint="install git, or use --no-tree")


async def feed_all(process: trio.Process, data: bytes) -> None:
    """Write to a process's standard input and close it; one that stopped reading says why by its exit code."""
    assert process.stdin is not None
    try:
        if data:
            await process.stdin.send_all(data)
    except trio.BrokenResourceError:
        return
    finally:
        await process.stdin.aclose()


async def _end(process: trio.Process) -> None:
    """Kill the process and everything in its session that is still there, and collect it."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                process.kill()
            await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()
