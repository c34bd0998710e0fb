"""Which agents' processes live: from Claude Code's own process files and from who holds a Codex rollout open.

A process is a number together with its start time, so that a later process with the same number is never taken for
it. Nothing here sends a signal. Where ``/proc`` does not exist the answer is "no evidence", with the reason.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from mesh.base.clock import Now
from node.sessions.claude import NOTE_BYTES_MAX, parse_note_untrusted
from node.sessions.formats import ProcessNote
from node.sessions.plain import read_plain
from node.sessions.status import Life

NOTES_MAX = 500
"""Process files of Claude Code read in one look; the newest by number of the process."""
RECHECK_S = 5.0
"""A process that was not an agent's is asked again after this long, since programs replace themselves."""
SAMPLE_S = 30.0
QUIET_SHARE = 0.005
"""Less than this share of a core between two samples counts as no processor use."""
_NOTE = re.compile(r"[0-9]{1,10}\.json\Z")
_HERTZ = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Running:
    """One session's process.

    Attributes:
        path: The transcript it holds open (Codex), or None.
        note: What the agent says of it (Claude Code), or None.
    """

    agent: str
    session: str
    pid: int | None
    life: Life
    path: str | None = None
    note: ProcessNote | None = None


@dataclass(slots=True)
class _Sample:
    ticks: int
    at_s: float
    quiet_since_ms: int | None


class Processes:
    """What this machine's processes say about sessions, look after look.

    Args:
        claude_dir: Where Claude Code keeps its ``sessions`` folder.
        rollouts: Codex's folder of rollouts, links resolved.
        proc: The system's process folder.
    """

    def __init__(self, claude_dir: Path, rollouts: str, *, proc: Path = Path("/proc")) -> None:
        self._notes = claude_dir / "sessions"
        self._rollouts = rollouts + os.sep
        self._proc = proc
        self._others: dict[int, float] = {}
        self._samples: dict[tuple[int, str], _Sample] = {}
        self.missing = "" if (proc / "self" / "stat").exists() else f"no {proc} on {sys.platform}"
        self._boot_ms = 0 if self.missing else _boot_ms(proc)
        self._domain = _domain(proc)

    def look(self, now: Now) -> list[Running]:
        """See who lives; blocks for some milliseconds.

        Args:
            now: This machine's clocks.

        Returns:
            Each session with a process, living or known to be gone; on a system without evidence, the sessions that
            Claude Code names, with no verdict.
        """
        found = self._claude(now)
        if not self.missing:
            found += self._codex(now)
        pids = {running.pid for running in found}
        self._samples = {key: sample for key, sample in self._samples.items() if key[0] in pids}
        return found

    def _claude(self, now: Now) -> list[Running]:
        try:
            names = [name for name in os.listdir(self._notes) if _NOTE.match(name)]
        except OSError:
            return []
        names = sorted(names, key=lambda name: -int(name[:-5]))[:NOTES_MAX]
        found: dict[str, Running] = {}
        for name in names:
            note = self._read_note(name)
            if note is None:
                continue
            running = Running("claude", note.session, note.pid, self._life(note, now), note=note)
            known = found.get(note.session)
            if known is None or (known.life.state != "alive" and running.life.state == "alive"):
                found[note.session] = running
        return list(found.values())

    def _read_note(self, name: str) -> ProcessNote | None:
        data = read_plain(self._notes / name, NOTE_BYTES_MAX + 1)
        note = None if data is None else parse_note_untrusted(data)
        return note if note is not None and f"{note.pid}.json" == name else None

    def _life(self, note: ProcessNote, now: Now) -> Life:
        """Judge what a process file claims: the number, the start time and the world it counts in must all fit."""
        if self.missing:
            return Life("none", self.missing)
        if note.domain is not None and self._domain and not note.domain.endswith(self._domain):
            return Life("none", "it runs in another process namespace")
        if note.start is None:
            return Life("none", "the agent does not say when its process started")
        status = self._stat(note.pid)
        if status is None or status[19] != note.start:
            return Life("gone", f"process {note.pid} has ended")
        return self._alive(note.pid, status, now, note)

    def _stat(self, pid: int) -> list[str] | None:
        """Read ``/proc/PID/stat`` behind the program's name, which may hold anything; a zombie has ended."""
        data = read_plain(self._proc / str(pid) / "stat", 4096)
        if data is None:
            return None
        fields = data[data.rfind(b")") + 1 :].decode(errors="replace").split()
        return fields if len(fields) > 19 and fields[0] not in ("Z", "X") else None

    def _alive(self, pid: int, status: list[str], now: Now, note: ProcessNote | None) -> Life:
        youngest, known = self._children(pid)
        return Life(
            "alive",
            f"process {pid}",
            word=note.word if note else None,
            waiting_for=note.waiting_for if note else None,
            word_ms=note.word_ms if note else None,
            newest_child_ms=youngest,
            children_known=known,
            quiet_since_ms=self._quiet(pid, status, now),
        )

    def _children(self, pid: int) -> tuple[int | None, bool]:
        """Say when the youngest child began, and whether children can be listed here at all."""
        data = read_plain(self._proc / str(pid) / "task" / str(pid) / "children", 64 << 10)
        if data is None:
            return None, False
        starts = [status[19] for child in data.split()[:200] if (status := self._stat(int(child)))]
        newest = max((int(start) for start in starts if start.isdigit()), default=None)
        return (None if newest is None else self._boot_ms + newest * 1000 // _HERTZ), True

    def _quiet(self, pid: int, status: list[str], now: Now) -> int | None:
        """Say since when a process has used no processor time worth the name, by samples SAMPLE_S apart."""
        key = (pid, status[19])
        ticks = int(status[11]) + int(status[12])
        sample = self._samples.get(key)
        if sample is None:
            self._samples[key] = _Sample(ticks, now.steady_s, None)
            return None
        passed_s = now.steady_s - sample.at_s
        if passed_s >= SAMPLE_S:
            quiet = (ticks - sample.ticks) / _HERTZ < QUIET_SHARE * passed_s
            since_ms = sample.quiet_since_ms or now.wall_ms - int(passed_s * 1000)
            self._samples[key] = _Sample(ticks, now.steady_s, since_ms if quiet else None)
        return self._samples[key].quiet_since_ms

    def _codex(self, now: Now) -> list[Running]:
        """Find the processes named codex that hold a rollout open."""
        found = []
        self._others = {pid: at_s for pid, at_s in self._others.items() if now.steady_s - at_s < RECHECK_S}
        for name in os.listdir(self._proc):
            if not name.isdigit():
                continue
            pid = int(name)
            status = None if pid in self._others else self._codex_stat(pid, now)
            paths = [] if status is None else self._open_rollouts(pid)
            if status is not None and paths:
                life = self._alive(pid, status, now, None)
                found += [Running("codex", "", pid, life, path=path) for path in paths]
        return found

    def _codex_stat(self, pid: int, now: Now) -> list[str] | None:
        name = read_plain(self._proc / str(pid) / "comm", 64)
        if name is None or not name.startswith(b"codex"):
            self._others[pid] = now.steady_s
            return None
        return self._stat(pid)

    def _open_rollouts(self, pid: int) -> list[str]:
        folder = self._proc / str(pid) / "fd"
        paths = set()
        try:
            for handle in os.listdir(folder)[:1_000]:
                target = os.readlink(folder / handle)
                if target.startswith(self._rollouts) and target.endswith(".jsonl"):
                    paths.add(target)
        except OSError:
            return sorted(paths)
        return sorted(paths)


def _boot_ms(proc: Path) -> int:
    """Read when this machine started, which process start times count from."""
    for line in (read_plain(proc / "stat", 256 << 10) or b"").splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1]) * 1000
    return 0


def _domain(proc: Path) -> str:
    """Name the world of process numbers this program lives in, or empty."""
    try:
        return os.readlink(proc / "self" / "ns" / "pid")
    except OSError:
        return ""
