"""The supervisor, as the process it is: exit codes, output, limits, and ends of whole trees."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from node.tasks.ending import sweep
from node.tasks.output import Frame, Gap, LogReader
from node.tasks.place import open_folder
from node.tasks.processes import descendants
from node.tasks.supervisor import Order, read_order, search, write_order
from node.tasks.tether import Exit, Work, launch, prepare_folder, read_exit

DEADLINE_S = 20
BIG = 1 << 28


@dataclass
class Ran:
    exit: Exit
    out: bytes
    err: bytes
    gaps: list[Gap]
    took_s: float
    folder: Path


async def run(
    tmp_path: Path, script: str | list[str], *, timeout_s: float = 30, term_s: float = 0.3, grace_s: float = 0.3,
    output_bytes_max: int = BIG, cancel_after_s: float | None = None, marker: str = "none",
) -> Ran:  # fmt: skip
    folder = tmp_path / "task"
    prepare_folder(folder)
    argv = ["sh", "-c", script] if isinstance(script, str) else script
    env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": marker, "HOME": str(folder / "home")}
    started = time.monotonic()
    with trio.fail_after(DEADLINE_S):
        tether = await launch(
            folder,
            Work(tuple(map(os.fsencode, argv)), env, folder / "tree", timeout_s, term_s, grace_s, output_bytes_max),
        )
        if cancel_after_s is not None:
            while b"s" not in (await tether.wait_news() or b"s"):
                continue
            await trio.sleep(cancel_after_s)
            tether.cancel()
            tether.cancel()
        while await tether.wait_news() is not None:
            continue
        took_s = time.monotonic() - started
        await tether.aclose()
        await tether.reap()
    assert (folder / "trouble").read_text() == ""
    exit_ = read_exit(folder)
    assert exit_ is not None
    streams, gaps = {1: bytearray(), 2: bytearray()}, []
    at = open_folder(folder)
    reader = LogReader(at)
    while pieces := reader.read_to(exit_.output_bytes):
        for piece in pieces:
            if isinstance(piece, Frame):
                streams[piece.stream] += piece.data
            else:
                gaps.append(piece)
    reader.close()
    os.close(at)
    return Ran(exit_, bytes(streams[1]), bytes(streams[2]), gaps, took_s, folder)


def marked(marker: str) -> list[int]:
    """Every living process that carries the task's marker in its environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HIVEMESH_TASK={marker}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the state of processes is all there is to watch
        await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -TERM $$"], 143),
        (["sh", "-c", "kill -9 $$"], 137),
        (["no-such-program"], 127),
        (["./missing/x"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
    ],
)
async def test_exit_codes_are_a_contract(tmp_path: Path, argv: list[str], code: int):
    ran = await run(tmp_path, argv)
    assert ran.exit.code == code
    assert ran.exit.outcome == ("unstarted" if code in (126, 127) else "exited")


async def test_streams_are_kept_apart_and_in_order(tmp_path: Path):
    ran = await run(tmp_path, "echo one; echo two >&2; echo three")
    assert (ran.out, ran.err, ran.exit.output_bytes) == (b"one\nthree\n", b"two\n", 14)


async def test_no_shell_reads_the_arguments(tmp_path: Path):
    ran = await run(tmp_path, ["printf", "%s|", "$HOME", "a b", "`id`", "*", "", "\udcff"])
    assert ran.out == b"$HOME|a b|`id`|*||\xff|"


async def test_stdin_is_empty_and_there_is_no_terminal(tmp_path: Path):
    """O-X24: a question gets end of file at once, and opening the terminal fails."""
    ran = await run(tmp_path, "printf 'Proceed? [y/N] '; read a; echo got:$a; (: </dev/tty) 2>/dev/null || echo no tty")
    assert ran.out == b"Proceed? [y/N] got:\nno tty\n"


async def test_bytes_that_are_not_utf8_are_kept_as_they_are(tmp_path: Path):
    """O-X12."""
    ran = await run(tmp_path, "printf 'ok\\n\\377\\376\\n'; head -c 200000 /dev/urandom | tee copy; printf '\\nend\\n'")
    body = (ran.folder / "tree" / "copy").read_bytes()
    assert ran.out == b"ok\n\xff\xfe\n" + body + b"\nend\n"
    assert len(body) == 200_000


async def test_the_last_lines_arrive(tmp_path: Path):
    """O-X9."""
    ran = await run(tmp_path, "seq 1 100000; echo LAST-OUT; echo LAST-ERR >&2; exit 3")
    assert ran.exit.code == 3
    assert ran.out.count(b"\n") == 100_001
    assert ran.out.endswith(b"100000\nLAST-OUT\n")
    assert ran.err == b"LAST-ERR\n"


async def test_the_line_before_a_timeout_is_there(tmp_path: Path):
    """O-X9: the last line written before the end of the time."""
    ran = await run(tmp_path, "echo before; sleep 60", timeout_s=0.3)
    assert (ran.exit.outcome, ran.exit.code, ran.out) == ("timed_out", 124, b"before\n")


async def test_cancel_ends_a_pipeline(tmp_path: Path):
    """O-X1."""
    ran = await run(tmp_path, "sleep 300 | cat", cancel_after_s=0.05, marker="pipeline-x1")
    assert (ran.exit.outcome, ran.exit.code) == ("cancelled", 130)
    assert marked("pipeline-x1") == []


async def test_what_ignores_every_polite_signal_is_killed(tmp_path: Path):
    """O-X1."""
    ran = await run(tmp_path, "trap '' TERM INT HUP; echo up; while :; do sleep 1; done", cancel_after_s=0.2, marker="stubborn-x1")
    assert ran.exit.code == 130
    assert ran.out == b"up\n"
    assert marked("stubborn-x1") == []
    assert ran.took_s >= 0.5, "it was asked politely first"


@pytest.mark.skipif(sys.platform != "linux", reason="finds what left its session only as a subreaper")
async def test_what_fled_into_its_own_session_is_ended_too(tmp_path: Path):
    """O-X1: setsid'ed, daemonised, with its environment cleared."""
    script = "setsid setsid env -i sh -c 'trap \"\" TERM; sleep 301 & sleep 302' >/dev/null 2>&1 & sleep 0.2; sleep 300"
    ran = await run(tmp_path, script, cancel_after_s=0.4)
    assert ran.exit.code == 130
    assert ran.exit.unkillable == 0
    assert not [pid for pid in descendants(1) if b"sleep\x00301" in command_of(pid) or b"sleep\x00302" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(sys.platform != "linux", reason="finds what left its session only as a subreaper")
async def test_a_grandchild_that_keeps_the_pipe_does_not_keep_the_task(tmp_path: Path):
    """O-X2: it ends shortly after its main process, leftovers are ended and counted."""
    ran = await run(tmp_path, "setsid sh -c 'sleep 300' & echo started; exit 0", marker="daemonise-x2")
    assert (ran.exit.code, ran.out) == (0, b"started\n")
    assert ran.exit.leftovers >= 1
    assert ran.took_s < 5
    assert marked("daemonise-x2") == []


@pytest.mark.skipif(sys.platform != "linux", reason="finds what left its group only as a subreaper")
async def test_leftovers_of_a_normal_end_burn_no_cpu(tmp_path: Path):
    """O-X3."""
    ran = await run(tmp_path, "for i in 1 2 3; do (while :; do :; done) >/dev/null 2>&1 & done; echo spun; exit 0", marker="cputree-x3")
    assert (ran.exit.code, ran.out, ran.exit.leftovers) == (0, b"spun\n", 3)
    assert marked("cputree-x3") == []


async def test_a_background_child_may_finish_within_the_grace(tmp_path: Path):
    ran = await run(tmp_path, "(sleep 0.2; echo late) & echo first", grace_s=3)
    assert ran.out == b"first\nlate\n"
    assert ran.exit.leftovers == 0
    assert ran.took_s < 2.5


async def test_an_output_flood_neither_stops_the_clock_nor_fills_the_disk(tmp_path: Path):
    """O-X10, O-X11: bounded reads, a log under its limit, the time limit kept."""
    limit = 2 << 20
    ran = await run(tmp_path, "yes 0123456789012345678901234567890123456789", timeout_s=0.5, output_bytes_max=limit)
    assert ran.exit.outcome == "timed_out"
    assert ran.took_s < 5
    assert sum(path.stat().st_size for path in (ran.folder / "log").iterdir()) <= limit
    assert ran.exit.cut_bytes == sum(gap.end - gap.start for gap in ran.gaps) > 0
    assert ran.out.startswith(b"0123456789")
    assert len(ran.out) + ran.exit.cut_bytes == ran.exit.output_bytes


async def test_one_line_without_an_end_is_output_like_any_other(tmp_path: Path):
    """O-X11: true exit code, head and tail, a mark between them."""
    ran = await run(tmp_path, "printf head; head -c 30000000 /dev/zero | tr '\\0' x; printf tail; exit 3", output_bytes_max=2 << 20)
    assert ran.exit.code == 3
    assert ran.out.startswith(b"headxxx")
    assert ran.out.endswith(b"xxxtail")
    assert len(ran.gaps) == 1
    assert ran.exit.output_bytes == 30_000_008


async def test_python_leaves_no_ignored_signals_behind(tmp_path: Path):
    ran = await run(tmp_path, "yes | head -1; grep SigIgn /proc/self/status || echo SigIgn: 0")
    first, ignored = ran.out.decode().splitlines()
    assert first == "y"
    assert int(ignored.split()[1], 16) & (1 << 12 | 1 << 24) == 0, "SIGPIPE and SIGXFSZ are as usual"


async def test_nothing_but_the_streams_is_inherited(tmp_path: Path):
    """O-X27: no descriptor of the node or of the supervisor, and nothing of its environment."""
    code = "import os; print(sorted(os.listdir('/proc/self/fd'))[:4], sorted(os.environ), os.getcwd(), oct(os.umask(0)))"
    ran = await run(tmp_path, [sys.executable, "-I", "-S", "-c", code], marker="fds")
    names = sorted({"HIVEMESH_TASK", "HOME", "PATH"} | ({"LC_CTYPE"} if b"LC_CTYPE" in ran.out else set()))
    # The fourth is the folder being listed.
    assert ran.out.decode() == f"{['0', '1', '2', '3']} {names} {ran.folder / 'tree'} 0o22\n"


async def test_the_command_is_not_on_the_supervisors_command_line(tmp_path: Path):
    ran = await run(tmp_path, ["sh", "-c", "cat /proc/$PPID/cmdline | tr '\\0' ' '", "secret-argument"])
    assert b"node.tasks.supervisor" in ran.out
    assert b"secret-argument" not in ran.out


async def test_a_command_that_drops_its_mark_is_still_known_for_a_task(tmp_path: Path):
    """`exec env -u HIVEMESH_TASK hivemesh invite`: the only process of the task that bore the mark is gone."""
    chain = "import os; from node.callers import read_chain; print([p.task for p in read_chain(os.getpid())])"
    root = str(Path(__file__).parents[3])
    ran = await run(tmp_path, ["sh", "-c", 'exec env -u HIVEMESH_TASK "$@"', "sh", sys.executable, "-c", f"import sys; sys.path.append({root!r}); {chain}"], marker="a-task")
    own, supervisor, *_ = ran.out.decode().strip("[]\n").split(", ")
    assert (own, supervisor) == ("False", "True")


@pytest.mark.parametrize(
    "attack",
    [
        "rm ../exit.new; mkdir ../exit", "rm ../exit.new; mkfifo ../exit", "rm -r ../log; touch ../log; echo more",
        "rm -r ../log; mkfifo ../log; echo more", "rm ../orders ../news; mkdir ../orders", "mv .. ../../moved; echo more",
    ],
)  # fmt: skip
async def test_a_task_that_breaks_its_own_files_harms_itself(tmp_path: Path, attack: str):
    folder = tmp_path / "task"
    prepare_folder(folder)
    env = {"PATH": os.environ["PATH"]}
    with trio.fail_after(DEADLINE_S):
        work = Work((b"sh", b"-c", f"echo before; {attack}".encode()), env, folder / "tree", 30, 0.2, 0.2, BIG)
        tether = await launch(folder, work)
        while await tether.wait_news() is not None:
            continue
        await tether.aclose()
        await tether.reap()
    moved = tmp_path / "moved"
    assert ((moved if moved.exists() else folder) / "trouble").read_text() == ""


async def test_a_link_in_the_place_of_the_folder_is_not_followed(tmp_path: Path):
    """The task moves its own folder away and puts a link to somebody's files there."""
    victim = tmp_path / "victim"
    (victim / "log").mkdir(parents=True)
    folder = tmp_path / "task"
    prepare_folder(folder)
    script = f"d=$(cd ..; pwd -P); mv $d $d.moved; ln -s {victim} $d; echo written"
    with trio.fail_after(DEADLINE_S):
        tether = await launch(folder, Work((b"sh", b"-c", script.encode()), {"PATH": os.environ["PATH"]}, folder / "tree", 30, 0.2, 0.2, BIG))
        while await tether.wait_news() is not None:
            continue
        await tether.aclose()
        await tether.reap()
    assert read_exit(folder) is None
    assert [path.name for path in victim.rglob("*")] == ["log"]
    assert {"exit", "log", "birth"} <= {path.name for path in (tmp_path / "task.moved").iterdir()}


async def test_a_supervisor_that_is_killed_leaves_no_exit_and_its_tree_is_swept(tmp_path: Path):
    """O-X3: by marker and start time, never by name."""
    folder = tmp_path / "task"
    prepare_folder(folder)
    env = {"PATH": os.environ["PATH"], "HIVEMESH_TASK": "orphan-x3"}
    with trio.fail_after(DEADLINE_S):
        tether = await launch(
            folder, Work((b"sh", b"-c", b"setsid sleep 300 & sleep 300"), env, folder / "tree", 60, 1, 1, BIG)
        )
        await until(lambda: len(marked("orphan-x3")) >= 3)
        bystander = await trio.lowlevel.open_process(["sleep", "300"])
        assert tether.pid is not None
        os.kill(tether.pid, 9)
        await tether.reap()
        while await tether.wait_news() is not None:
            continue
        await tether.aclose()
        assert read_exit(folder) is None
        assert sweep(folder, "orphan-x3") >= 2
        await until(lambda: not marked("orphan-x3"))
        assert bystander.returncode is None
        bystander.kill()
        await bystander.wait()


def test_an_order_is_read_whole_or_not_at_all():
    data = write_order([(b"cwd", b"/"), (b"timeout_ms", b"1500"), (b"term_ms", b"1"), (b"grace_ms", b"2"),
                        (b"output_bytes_max", b"9"), (b"env", b"A=b=c"), (b"arg", b"x"), (b"arg", b""), (b"arg", b"a=b\nc")])  # fmt: skip
    order = read_order(data)
    assert isinstance(order, Order)
    assert (order.argv, order.env, order.timeout_s, order.cwd) == ([b"x", b"", b"a=b\nc"], {b"A": b"b=c"}, 1.5, "/")
    for cut in range(len(data)):
        assert read_order(data[:cut]) is None


def test_where_a_command_is_looked_for():
    assert search(b"x", b"/a:.::b:/c") == [b"/a/x", b"/c/x"]
    assert search(b"./x", b"/a") == [b"./x"]
