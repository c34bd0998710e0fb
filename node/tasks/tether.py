"""The node's end of a supervisor: start one, find it again after a restart, hear from it, tell it to stop.

Whether a supervisor lives is asked of the kernel by a lock that it holds (see ``supervisor``), never guessed from a
pid. The node opens the lock and both FIFOs before the supervisor exists, so there is no moment in which a crash of
the node could leave one unnoticed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from mesh.base.errors import OurFault
from node.tasks.place import open_fifo, open_file, open_folder, read_file
from node.tasks.processes import LINUX
from node.tasks.supervisor import write_order

ROOT = str(Path(__file__).resolve().parents[2])
_CODE = "import sys; sys.path.append(sys.argv[1]); from node.tasks.supervisor import main; main()"
EXIT_BYTES_MAX = 4_096
NEWS_BYTES = 4_096
ORDER_S = 5.0
"""How long a supervisor that was just made may take to read what to run."""
FIRST_FREE_FD = 16
MARK = "HIVEMESH_TASK"
"""Stands in the environment of everything a task starts, and of its supervisor."""
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

    @property
    def signalled(self) -> bool:
        """Whether a signal ended the command."""
        return self.outcome == "exited" and (self.status is None or self.status < 0)


class Tether:
    """A connection to one living supervisor.

    Args:
        at: Descriptor of the task's folder, closed with the tether.
        news: Reading end of its ``news``.
        pid: Its process, where this process is its parent, else 0.
    """

    def __init__(self, at: int, news: int, pid: int = 0) -> None:
        self._at = at
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
        if self._at >= 0:
            _tell(self._at, b"c")

    async def reap(self) -> None:
        """Collect the process after its last news, so that no zombie stays."""
        if self.pid:
            await trio.to_thread.run_sync(_reap, self.pid)

    async def aclose(self) -> None:
        """Let go; the supervisor runs on."""
        if self._at >= 0:
            os.close(self._at)
            self._at = -1
        await self._news.aclose()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def _tell(at: int, word: bytes) -> None:
    """Write to ``orders``, if anybody reads it."""
    try:
        fd = open_fifo(at, "orders", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, word)
    except OSError:
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


def has_birth(folder: Path, inode: int = 0) -> bool:
    """Whether the supervisor has written that the command runs."""
    return bool(_read(folder, inode, "birth", EXIT_BYTES_MAX))


def _read(folder: Path, inode: int, name: str, bytes_max: int) -> bytes:
    """Read a file of a task's folder; empty where anything is not as it was."""
    try:
        at = open_folder(folder, inode)
    except OSError:
        return b""
    try:
        return read_file(at, name, bytes_max)
    finally:
        os.close(at)


def _lock(at: int, flags: int) -> int | None:
    """Take the folder's lock; None while a supervisor holds it.

    Raises:
        OSError: There is no such file.
    """
    fd = open_file(at, "lock", os.O_RDWR | flags)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_supervised(folder: Path, inode: int = 0) -> bool:
    """Whether a supervisor of this folder lives; what a task put into the lock's place is none."""
    try:
        at = open_folder(folder, inode)
    except OSError:
        return False
    try:
        fd = _lock(at, 0)
    except OSError:
        return False
    finally:
        os.close(at)
    if fd is None:
        return True
    os.close(fd)
    return False


async def launch(folder: Path, work: Work, inode: int = 0) -> Tether:
    """Start a supervisor in a prepared folder.

    It is spawned without a process object on purpose: it may outlive this process, and what waits for it is the end
    of its news.

    Args:
        folder: From :func:`prepare_folder`, never used before.
        work: What it runs.
        inode: The folder's when it was made; 0 takes any.

    Returns:
        The tether.

    Raises:
        OurFault: The process could not be made, or the folder is not as it was prepared.

    If cancelled: no supervisor was made, or it got its whole order and runs. Only one that takes more than ORDER_S to
    read it, or a node that is killed here, leaves a cut order; the supervisor then ends without running anything.
    """
    opened: list[int] = []
    try:
        at, news, writing, pid = _start(folder, inode, work, opened)
    except OSError as error:
        for fd in opened:
            os.close(fd)
        raise OurFault(f"no process could be made for the task: {error.strerror}") from error
    # A node that stops in order lets the supervisor have the whole order first: the start is written down already.
    with trio.move_on_after(ORDER_S, shield=True):
        async with trio.lowlevel.FdStream(writing) as order:
            # One that died at once is told by the end of its news.
            with suppress(trio.BrokenResourceError):
                await order.send_all(_order(work))
    return Tether(at, news, pid)


def _start(folder: Path, inode: int, work: Work, opened: list[int]) -> tuple[int, int, int, int]:
    """Open everything, spawn, and close what only the supervisor needs.

    Args:
        folder: The task's.
        inode: Its own.
        work: What runs.
        opened: Gets every descriptor that is open when an error leaves here.

    Returns:
        The folder, the reading end of the news, the writing end of the order, and the process.
    """

    def kept(fd: int) -> int:
        opened.append(fd)
        return fd

    at = kept(open_folder(folder, inode))
    lock = _lock(at, os.O_CREAT)
    if lock is None:
        raise OSError(errno.EBUSY, "a supervisor lives there already")
    kept(lock)
    news = kept(open_fifo(at, "news", os.O_RDONLY))
    words = kept(open_fifo(at, "news", os.O_WRONLY))
    trouble = kept(open_file(at, "trouble", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND))
    reading, writing = map(kept, os.pipe())
    pid = _spawn(folder, work.env.get(MARK, ""), [reading, trouble, lock, words, at])
    for fd in (reading, trouble, lock, words):
        os.close(fd)
    return at, news, writing, pid


def _spawn(folder: Path, task: str, fds: list[int]) -> int:
    """Spawn the supervisor with five descriptors as its 0, 2, 3, 4 and 5, in a session of its own.

    It bears the task's mark itself: a command that drops the mark from its own environment stays below one that has it.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD) for fd in fds]
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, fd, place) for fd, place in zip(high, (0, 2, 3, 4, 5), strict=True)
    ]
    actions.append((os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0))
    env = {"LC_ALL": "C.UTF-8", MARK: task}
    argv = [sys.executable, "-I", "-S", "-c", _CODE, ROOT, str(folder)]
    try:
        return os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=LINUX)
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


def reattach(folder: Path, inode: int = 0) -> Tether | None:
    """Find a supervisor that an earlier run of the node started; None where none lives or can be heard."""
    if not is_supervised(folder, inode):
        return None
    at = -1
    try:
        at = open_folder(folder, inode)
        return Tether(at, open_fifo(at, "news", os.O_RDONLY))
    except OSError:
        if at >= 0:
            os.close(at)
        return None


def read_exit(folder: Path, inode: int = 0) -> Exit | None:
    """Read how the command ended; None where no supervisor wrote it."""
    text = _read(folder, inode, "exit", EXIT_BYTES_MAX).decode("ascii", "replace")
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


def read_birth(folder: Path, inode: int = 0) -> tuple[int, int]:
    """Read the command's process and when it started, as its supervisor wrote it; (0, 0) where it did not."""
    try:
        pid, started = map(int, _read(folder, inode, "birth", EXIT_BYTES_MAX).split()[2:4])
    except ValueError:
        return 0, 0
    return pid, started
