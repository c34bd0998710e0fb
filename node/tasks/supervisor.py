"""One small process a task: it runs the command, keeps its output, and outlives the node.

It is started in a session of its own and reads what to run from its standard input, so that neither the command nor
its environment stands on its own command line. It holds the folder's ``lock`` from before it exists until it ends
(the node opens and locks the file and hands it over), so a node that was restarted knows without doubt whether the
supervisor lives: a lock cannot be stale, forged, or the reused pid of somebody else.

It talks to the node by two FIFOs in the folder, whose path may be of any length and which need no socket module:
``orders`` (the node writes ``c``: cancel) and ``news`` (``s`` started, ``+`` more output, end of file: over). Missed
news do no harm, since the log and the ``exit`` file are the truth. It imports as little as it can, because a person
waits for its start. On Linux it is a subreaper, so that whatever the command leaves behind, in whatever session or
group, becomes its child and is found; elsewhere it ends the command's process group.
"""

from __future__ import annotations

import errno
import os
import select
import time

from node.tasks.log import STDERR, STDOUT, LogWriter
from node.tasks.place import open_fifo, open_file
from node.tasks.processes import LINUX, descendants, send_signal, start_time

READ_BYTES = 48 * 1024
PIPE_BYTES = 1 << 20
REAP_MS = 5_000
CLOSE_LOOK_MS = 20
LEFTOVER_TERM_S = 1.0
UNKILLABLE_S = 30.0
EXIT_BYTES = 4_096
EXIT_TRIES = 600
LOCK_FD, NEWS_FD, FOLDER_FD = 3, 4, 5
CLOSED_FDS_MAX = 1 << 16

_SIGTERM, _SIGKILL, _SIGSTOP = 15, 9, 19 if LINUX else 17
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_IGNORED_BY_PYTHON = (13, 25)
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

RUNNING, LINGERING, ENDING, KILLING = range(4)


class Order:
    """What to run and within which bounds.

    Args:
        fields: Name to values, as read from the node.
    """

    __slots__ = ("argv", "cwd", "env", "grace_s", "output_bytes_max", "term_s", "timeout_s")

    def __init__(self, fields: dict[bytes, list[bytes]]) -> None:
        self.argv = fields[b"arg"]
        self.env = dict(pair.split(b"=", 1) for pair in fields.get(b"env", []))
        self.cwd = os.fsdecode(fields[b"cwd"][0])
        self.timeout_s = int(fields[b"timeout_ms"][0]) / 1000
        self.term_s = int(fields[b"term_ms"][0]) / 1000
        self.grace_s = int(fields[b"grace_ms"][0]) / 1000
        self.output_bytes_max = int(fields[b"output_bytes_max"][0])


def write_order(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Write an order as the supervisor reads it: ``name=value`` strings, each ended by NUL, the last one ``end=``."""
    return b"".join(name + b"=" + value + b"\0" for name, value in [*fields, (b"end", b"")])


def read_order(data: bytes) -> Order | None:
    """Read an order; None where it is cut short, because the node died while it wrote it."""
    if not data.endswith(b"\0end=\0"):
        return None
    fields: dict[bytes, list[bytes]] = {}
    for line in data.split(b"\0")[:-1]:
        name, _, value = line.partition(b"=")
        fields.setdefault(name, []).append(value)
    return Order(fields)


def search(command: bytes, path: bytes) -> list[bytes]:
    """List the files a command's name may mean, in order; relative entries of PATH never count."""
    if b"/" in command:
        return [command]
    return [entry + b"/" + command for entry in path.split(b":") if entry.startswith(b"/")]


def widen(pipe: int) -> None:
    """Let a pipe hold a megabyte where the system allows; else its usual 64 KiB do."""
    if not LINUX:
        return
    import fcntl

    try:
        fcntl.fcntl(pipe, _F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        return


def become_subreaper() -> None:
    """Have orphaned descendants come to this process instead of to init (Linux only)."""
    if not LINUX:
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Supervisor:
    """Runs one command to its end.

    Args:
        folder: Descriptor of the task's; has ``orders``.
        order: What to run.
        news: Writing end of the folder's ``news``.
    """

    def __init__(self, folder: int, order: Order, news: int) -> None:
        self._folder = folder
        self._order = order
        self._log = LogWriter(folder, order.output_bytes_max)
        self._poll = select.poll()
        self._streams: dict[int, int] = {}
        self._orders = open_fifo(folder, "orders", os.O_RDWR)
        self._news = news
        self._exit = self._reserve_exit()
        self._main = 0
        self._watch = -1
        self._status: int | None = None
        self._stage = RUNNING
        self._due = 0.0
        self._childless_s: float | None = None
        self._give_up_s = 0.0
        self._outcome = "exited"
        self._leftovers = self._unkillable = 0

    def _reserve_exit(self) -> int:
        """Take the room for the exit status now, so that a task that fills the disk cannot lose it."""
        fd = open_file(self._folder, "exit.new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(fd, 0, EXIT_BYTES)
        except (OSError, AttributeError):
            return fd
        return fd

    def run(self) -> None:
        """Run the command, wait for its end, and write down how it ended."""
        started_ms = time.time_ns() // 1_000_000
        error = self._spawn()
        if error:
            self._outcome = "unstarted"
        else:
            self._say(b"s")
            self._write_birth()
            self._due = now_s() + self._order.timeout_s
            self._poll.register(self._orders, select.POLLIN)
            while not self._is_over():
                self._round()
        self._finish(started_ms, error)

    def _spawn(self) -> int:
        """Start the command; 0, or the error number that says why not."""
        out, err = self._pipe(STDOUT), self._pipe(STDERR)
        error = self._try_files(out, err)
        os.close(out)
        os.close(err)
        if not error:
            self._watch_main()
        return error

    def _pipe(self, stream: int) -> int:
        """Open the pipe of a stream, keep its reading end and return the writing end."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        widen(reading)
        self._streams[reading] = stream
        self._poll.register(reading, select.POLLIN)
        return writing

    def _try_files(self, out: int, err: int) -> int:
        order = self._order
        try:
            os.chdir(order.cwd)
        except OSError as error:
            return error.errno or 1
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, out, 1),
            (os.POSIX_SPAWN_DUP2, err, 2),
        ]
        worst = 2
        for file in search(order.argv[0], order.env.get(b"PATH", b"")):
            try:
                self._main = os.posix_spawn(
                    file, order.argv, order.env, file_actions=actions, setpgroup=0, setsigdef=_IGNORED_BY_PYTHON
                )
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                worst = error.errno or 1
            else:
                return 0
        return worst

    def _watch_main(self) -> None:
        """Have the poll wake when the main process ends, where the system can."""
        try:
            self._watch = os.pidfd_open(self._main)
        except (AttributeError, OSError):
            return
        self._poll.register(self._watch, select.POLLIN)

    def _write_birth(self) -> None:
        """Leave who runs, for a node that finds this supervisor killed."""
        text = f"{os.getpid()} {start_time(os.getpid())} {self._main} {start_time(self._main)}\n"
        try:
            fd = open_file(self._folder, "birth", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError:
            return
        try:
            os.write(fd, text.encode())
        except OSError:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

    def _round(self) -> None:
        """Wait for something to happen, and deal with it."""
        grew = False
        for fd, _ in self._poll.poll(self._pause_ms()):
            if fd in self._streams:
                grew = self._read_stream(fd) or grew
            elif fd == self._orders and b"c" in os.read(fd, 64) and self._stage == RUNNING:
                self._end("cancelled")
        if grew:
            self._say(b"+")
        self._reap()
        if now_s() >= self._due:
            self._step()

    def _pause_ms(self) -> int:
        if self._stage != RUNNING:
            return CLOSE_LOOK_MS
        left_ms = max(0, int((self._due - now_s()) * 1000) + 1)
        return min(left_ms, REAP_MS if self._watch >= 0 else CLOSE_LOOK_MS)

    def _read_stream(self, fd: int) -> bool:
        """Move one read's worth from a pipe to the log; whether there was any."""
        try:
            payload = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not payload:
            self._close_stream(fd)
            return False
        self._log.append(self._streams[fd], payload)
        return True

    def _close_stream(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._streams[fd]
        os.close(fd)

    def _say(self, word: bytes) -> None:
        """Tell the node, unless it is away or has unread news."""
        try:
            os.write(self._news, word)
        except (BlockingIOError, BrokenPipeError):
            return

    def _reap(self) -> None:
        """Collect every child that ended; the main one's end begins the grace for the rest."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self._childless_s is None:
                    self._childless_s = now_s()
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = status
                if self._watch >= 0:
                    self._poll.unregister(self._watch)
                    os.close(self._watch)
                if self._stage == RUNNING:
                    self._stage, self._due = LINGERING, now_s() + self._order.grace_s

    def _is_over(self) -> bool:
        """Whether nothing of the task lives, and its output is read or held open by a stranger for too long."""
        if self._childless_s is None:
            return self._unkillable > 0
        return not self._streams or now_s() >= self._childless_s + self._order.grace_s

    def _end(self, outcome: str) -> None:
        """Begin to end the whole tree."""
        self._outcome = outcome
        self._stage, self._due = ENDING, now_s() + self._order.term_s
        self._signal_all(_SIGTERM)

    def _step(self) -> None:
        """Do what is due in the present stage."""
        if self._stage == RUNNING:
            self._end("timed_out")
        elif self._stage == LINGERING:
            self._leftovers = self._signal_all(_SIGTERM)
            self._stage, self._due = ENDING, now_s() + min(LEFTOVER_TERM_S, self._order.term_s)
        elif self._stage == ENDING:
            self._stage, self._give_up_s = KILLING, now_s() + UNKILLABLE_S
        if self._stage == KILLING:
            self._kill_all()

    def _signal_all(self, number: int) -> int:
        """Signal every descendant and the command's group; how many there were."""
        found = descendants(os.getpid()) if LINUX else []
        for pid in found:
            send_signal(pid, number)
        if self._status is None or not LINUX:
            send_signal(-self._main, number)
        return len(found)

    def _kill_all(self) -> None:
        """Stop every descendant before killing any, so that none of them makes another meanwhile."""
        self._signal_all(_SIGSTOP)
        self._signal_all(_SIGSTOP)
        left = self._signal_all(_SIGKILL)
        if now_s() >= self._give_up_s:
            self._unkillable = left

    def _finish(self, started_ms: int, error: int) -> None:
        """Put the output, then the exit status, safely on the disk."""
        if not LINUX and self._main:
            send_signal(-self._main, _SIGKILL)
        lines = {
            "outcome": self._outcome,
            "status": "" if self._status is None else os.waitstatus_to_exitcode(self._status),
            "errno": error,
            "started_ms": started_ms,
            "ended_ms": time.time_ns() // 1_000_000,
            "output_bytes": self._log.end,
            "lost_bytes": self._log.lost_bytes,
            "cut_bytes": self._log.cut_bytes,
            "leftovers": self._leftovers,
            "unkillable": self._unkillable,
        }
        text = "".join(f"{name} {value}\n" for name, value in lines.items()).encode()
        for _ in range(EXIT_TRIES):
            if self._try_finish(text):
                return
            time.sleep(1)

    def _try_finish(self, text: bytes) -> bool:
        """Write the exit file whole or not at all; whether no further try can help.

        What a task put into its place is left there: then nobody learns how it ended, which is the task's own doing.
        """
        try:
            self._log.sync()
            os.pwrite(self._exit, text, 0)
            os.ftruncate(self._exit, len(text))
            os.fsync(self._exit)
            os.rename("exit.new", "exit", src_dir_fd=self._folder, dst_dir_fd=self._folder)
            os.fsync(self._folder)
        except OSError as error:
            return error.errno not in _PASSING
        return True


def now_s() -> float:
    """Read a clock that also runs while the machine sleeps, in seconds."""
    return time.clock_gettime(_CLOCK)


def main() -> None:
    """Run as the process of one task.

    Descriptor 0 holds the order, 2 takes a traceback, 3 is the folder's locked ``lock`` file, held and never read, and
    4 the writing end of its ``news``. Both are let go by this process's end and by nothing else. 5 is the folder itself,
    since its path may come to lead elsewhere.
    """
    if not LINUX:
        os.setsid()
    # What the node had open inheritably, by whatever library, ends here and never reaches a task.
    os.closerange(FOLDER_FD + 1, CLOSED_FDS_MAX)
    for fd in (LOCK_FD, NEWS_FD, FOLDER_FD):
        os.set_inheritable(fd, False)
    os.set_blocking(NEWS_FD, False)
    os.umask(0o022)
    data = b""
    while piece := os.read(0, 1 << 16):
        data += piece
    order = read_order(data)
    if order is not None:
        become_subreaper()
        Supervisor(FOLDER_FD, order, NEWS_FD).run()
