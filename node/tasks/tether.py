"""The node's end of a supervisor: start one, find it again after a restart, hear from it, tell it to stop.

Whether a supervisor lives is asked of the kernel by a lock that it holds (see ``supervisor``), never guessed from a
pid. The node opens the lock and both FIFOs before the supervisor exists, so there is no moment in which a crash of
the node could leave one unnoticed.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from mesh.base.errors import OurFault
from node.tasks.processes import LINUX, descendants, send_signal, start_time
from node.tasks.supervisor import write_order

ROOT = str(Path(__file__).resolve().parents[2])
_CODE = "import sys; sys.path.append(sys.argv[1]); from node.tasks.supervisor import main; main(sys.argv[2])"
EXIT_BYTES_MAX = 4_096
NEWS_BYTES = 4_096
ENVIRON_BYTES_MAX = 1 << 20
FIRST_FREE_FD = 16
_SIGKILL = 9
_ENOENT, _ENOTDIR = 2, 20


@dataclass(frozen=True, slots=True)
class Work:
    """One command with everything its supervisor needs."""

    argv: tuple[bytes, ...]
    env: dict[str, str]
    cwd: Path
    timeout_s: float
    term_s: float
    grace_s: float
    output_bytes_max: int


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended, as its supervisor wrote it down.

    Attributes:
        outcome: ``exited``, ``timed_out``, ``cancelled`` or ``unstarted``.
        status: Exit code, or minus the signal; None if it never started or could not be killed.
        errno: Why it could not start, or 0.
        lost_bytes: Output that a full disk did not take.
        cut_bytes: Output that the log's limit cut from its middle.
        leftovers: Processes that were still there after the command had ended, and were ended.
        unkillable: Processes that could not be ended.
    """

    outcome: str
    status: int | None
    errno: int
    started_ms: int
    ended_ms: int
    output_bytes: int
    lost_bytes: int
    cut_bytes: int
    leftovers: int
    unkillable: int

    @property
    def code(self) -> int:
        """The exit code as a shell would say it."""
        if self.outcome == "unstarted":
            return 127 if self.errno in (_ENOENT, _ENOTDIR) else 126
        if self.outcome in ("timed_out", "cancelled"):
            return 124 if self.outcome == "timed_out" else 130
        status = 137 if self.status is None else self.status
        return status if status >= 0 else 128 - status


class Tether:
    """A connection to one living supervisor.

    Args:
        folder: The task's folder.
        news: Reading end of its ``news``.
        pid: Its process, where this process is its parent.
    """

    def __init__(self, folder: Path, news: int, pid: int | None = None) -> None:
        self._folder = folder
        self.pid = pid
        self._news = trio.lowlevel.FdStream(news)

    async def wait_news(self) -> bytes | None:
        """Wait until the supervisor has something to say.

        Returns:
            ``s`` and ``+`` bytes, or None once it has ended.
        """
        return bytes(await self._news.receive_some(NEWS_BYTES)) or None

    def cancel(self) -> None:
        """Tell the supervisor to end everything; it does so once, however often it is told."""
        _tell(self._folder, b"c")

    async def reap(self) -> None:
        """Collect the process after its last news, so that no zombie stays."""
        if self.pid is not None:
            await trio.to_thread.run_sync(_reap, self.pid)

    async def aclose(self) -> None:
        """Let go; the supervisor runs on."""
        await self._news.aclose()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _tell(folder: Path, word: bytes) -> None:
    """Write to ``orders``, if anybody reads it."""
    try:
        fd = os.open(folder / "orders", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, word)
    except BlockingIOError:
        return
    finally:
        os.close(fd)


def prepare_folder(folder: Path) -> None:
    """Make a task's folder with its private home, its FIFOs and its lock.

    Raises:
        OurFault: It exists, or cannot be made.
    """
    try:
        folder.mkdir(mode=0o700)
        for name in ("home", "tmp", "tree"):
            (folder / name).mkdir(mode=0o700)
        for name in ("orders", "news"):
            os.mkfifo(folder / name, 0o600)
    except OSError as error:
        raise OurFault(f"{folder} cannot be made: {error.strerror}", hint="check the disk and the folder's rights") from error


def has_file(folder: Path, name: str) -> bool:
    """Whether the supervisor has written a file of the folder."""
    return (folder / name).exists()


def _lock(folder: Path) -> int | None:
    """Take the folder's lock; None while a supervisor holds it."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor of this folder lives."""
    if not folder.is_dir():
        return False
    fd = _lock(folder)
    if fd is None:
        return True
    os.close(fd)
    return False


async def launch(folder: Path, work: Work) -> Tether:
    """Start a supervisor in a prepared folder.

    It is spawned without a process object on purpose: it may outlive this process, and what waits for it is the end
    of its news.

    Args:
        folder: From :func:`prepare_folder`, never used before.
        work: What it runs.

    Returns:
        The tether.

    Raises:
        OurFault: The process could not be made.

    If cancelled: the supervisor either got its whole order and runs, or reads a cut one and ends without running it.
    """
    lock = _lock(folder)
    assert lock is not None, "one supervisor a folder"
    news = os.open(folder / "news", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    words = os.open(folder / "news", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    trouble = os.open(folder / "trouble", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    reading, writing = os.pipe()
    try:
        pid = _spawn(folder, [reading, trouble, lock, words])
    except OSError as error:
        os.close(news)
        os.close(writing)
        raise OurFault(f"no process could be made for the task: {error.strerror}") from error
    finally:
        for fd in (reading, trouble, lock, words):
            os.close(fd)
    async with trio.lowlevel.FdStream(writing) as order:
        # One that died at once is told by the end of its news.
        with suppress(trio.BrokenResourceError):
            await order.send_all(_order(work))
    return Tether(folder, news, pid)


def _spawn(folder: Path, fds: list[int]) -> int:
    """Spawn the supervisor with four descriptors as its 0, 2, 3 and 4, in a session of its own."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD) for fd in fds]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, fd, place) for fd, place in zip(high, (0, 2, 3, 4), strict=True)
    ]
    actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
    argv = [sys.executable, "-I", "-S", "-c", _CODE, ROOT, str(folder)]
    try:
        return os.posix_spawn(sys.executable, argv, {"LC_ALL": "C.UTF-8"}, file_actions=actions, setsid=LINUX)
    finally:
        for fd in high:
            os.close(fd)


def _order(work: Work) -> bytes:
    fields = [
        (b"cwd", os.fsencode(work.cwd)),
        (b"timeout_ms", b"%d" % int(work.timeout_s * 1000)),
        (b"term_ms", b"%d" % int(work.term_s * 1000)),
        (b"grace_ms", b"%d" % int(work.grace_s * 1000)),
        (b"output_bytes_max", b"%d" % work.output_bytes_max),
    ]
    fields += [(b"env", os.fsencode(f"{name}={value}")) for name, value in work.env.items()]
    fields += [(b"arg", argument) for argument in work.argv]
    return write_order(fields)


def reattach(folder: Path) -> Tether | None:
    """Find a supervisor that an earlier run of the node started; None where none lives."""
    if not is_supervised(folder):
        return None
    try:
        return Tether(folder, os.open(folder / "news", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return None


def read_exit(folder: Path) -> Exit | None:
    """Read how the command ended; None where no supervisor wrote it."""
    try:
        with (folder / "exit").open("rb") as file:
            text = file.read(EXIT_BYTES_MAX).decode("ascii", "replace")
    except OSError:
        return None
    fields = dict(line.partition(" ")[::2] for line in text.splitlines())
    try:
        return Exit(
            outcome=fields["outcome"],
            status=int(fields["status"]) if fields["status"] else None,
            **{name: int(fields[name]) for name in _NUMBERS},
        )
    except (KeyError, ValueError):
        return None


_NUMBERS = ("errno", "started_ms", "ended_ms", "output_bytes", "lost_bytes", "cut_bytes", "leftovers", "unkillable")


def sweep(folder: Path, task: str) -> int:
    """Kill what is left of a task whose supervisor was killed.

    Never by name: the main process by pid and start time, and on Linux every process of this user whose environment
    carries the task's id, with its descendants.

    Args:
        folder: The task's.
        task: The value of HIVEMESH_TASK in its environment.

    Returns:
        How many processes were killed.
    """
    found = {pid for pid in _marked(f"HIVEMESH_TASK={task}".encode()) if pid != os.getpid()}
    found |= {pid for root in found for pid in descendants(root)}
    found |= _born(folder)
    for pid in found:
        send_signal(pid, _SIGKILL)
    return len(found)


def _born(folder: Path) -> set[int]:
    """Read the main process from ``birth``, if it still is that process."""
    try:
        pid, started = map(int, (folder / "birth").read_text("ascii").split()[2:4])
    except (OSError, ValueError):
        return set()
    return {pid} if started and start_time(pid) == started else set()


def _marked(marker: bytes) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            with entry.open("rb") as file:
                if marker in file.read(ENVIRON_BYTES_MAX).split(b"\0"):
                    found.add(int(entry.parent.name))
        except OSError:
            continue
    return found
