"""Who stands behind a command: a person, or an agent or a task that runs as the same user.

The control socket proves the uid, and every agent on this machine is that uid. A verb that gives power away is
therefore refused when the calling process or one above it is a delegated task or an agent's session, known by pid and
start time or by the marks agents leave in the environment of what they start. Reading marks is no wall: a process that
cleans its environment and leaves its parents is not recognised; ``docs/THREATS.md`` says so. On a platform without
``/proc`` only the uid is checked.

A home that an agent made for itself (a demo, a test) is that agent's own: there its commands are obeyed, as long as the
node was started below the same agent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mesh.base.errors import Refused
from node.home import Home, read_note
from node.lock import write_note

PRIVILEGED = frozenset(
    {
        "invite",
        "join",
        "join.open",
        "connect",
        "expel",
        "mesh.renew",
        "leave",
        "answer",
        "access.grant",
        "access.revoke",
        "config.set",
        "doctor.accept_restore",
        "mesh.root.apply",
        "hive.learn",
        "hive.forget",
    }
)
"""The verbs of the control socket that give power away or change what is believed."""

TASK_MARK = "HIVEMESH_TASK"
AGENT_MARKS = frozenset({"CLAUDECODE", "AI_AGENT", "CODEX_SANDBOX", "CODEX_THREAD_ID", "GEMINI_CLI", "OPENCODE"})
"""Variables that agents set for the commands they start, and that nothing else sets."""
AGENT_PROGRAMS = frozenset({b"claude", b"codex", b"gemini", b"opencode"})
"""What agents' own processes are called, for commands that dropped the variables above."""
DEPTH_MAX = 64
"""How many processes above a caller are looked at; those further up do not count."""
ENVIRON_BYTES_MAX = 1 << 20
"""How much of a process's environment is searched for marks."""
MAKERS_MAX = 8
"""How many agents a home remembers as its makers; more are not remembered, so they are refused."""


class ProcessKey(NamedTuple):
    """One process, told from a later one with the same pid by when it started.

    Attributes:
        start_ticks: Clock ticks from the start of the machine, field 22 of ``/proc/PID/stat``.
    """

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Process:
    """One process above a caller.

    Attributes:
        marked: Whether its environment bears a task's or an agent's mark.
        task: Whether the mark is a task's.
        agent: Whether it is called like an agent's own process.
    """

    key: ProcessKey
    marked: bool
    task: bool = False
    agent: bool = False


def agents_behind(chain: Sequence[Process], known: Collection[ProcessKey] = ()) -> frozenset[ProcessKey]:
    """Find the agents and tasks behind a process.

    A mark is in the environment of what an agent starts, not in its own; so the agent is the parent of the
    uppermost marked process, or that process itself where its parent is gone.

    Args:
        chain: The process itself first, then each parent.
        known: The agents' sessions that run now.

    Returns:
        The processes that answer for it; empty means a person.
    """
    found = {process.key for process in chain if process.agent or process.key in known}
    marked = [at for at, process in enumerate(chain) if process.marked]
    if marked:
        above = marked[-1] + 1
        has_parent = above < len(chain) and chain[above].key.pid > 1
        found.add(chain[above if has_parent else marked[-1]].key)
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class Guard:
    """The judgement of one running node about its callers.

    Attributes:
        own_agents: Agents that made this home and under which this node was started: the home is theirs.
        proc: Where the process file system is.
    """

    own_agents: frozenset[ProcessKey]
    proc: str = "/proc"

    def admit(self, verb: str, pid: int, known: Callable[[], Collection[ProcessKey]]) -> None:
        """Let a call through, or refuse it.

        Args:
            verb: What is asked.
            pid: The calling process, as the kernel names it; 0 where it does not.
            known: Lists the agents' sessions that run now; asked only for a privileged verb.

        Raises:
            Refused: A privileged verb, and an agent or a task stands behind the call, or the caller is gone.
        """
        if verb in PRIVILEGED:
            judge(verb, read_chain(pid, self.proc), known(), self.own_agents, readable=_readable(self.proc))


def judge(
    verb: str,
    chain: Sequence[Process],
    known: Collection[ProcessKey],
    excused: frozenset[ProcessKey],
    *,
    readable: bool = True,
) -> None:
    """Decide about one privileged call.

    Args:
        verb: What is asked, for the message.
        chain: The caller first, then each parent; empty where it could not be read.
        known: The agents' sessions that run now.
        excused: Agents whose own home this is.
        readable: Whether this platform lets processes be seen at all.

    Raises:
        Refused: An agent or a task stands behind the call, or nobody can say who does.
    """
    if not readable:
        return
    hint = "run it yourself, in a terminal that no agent started"
    if not chain:
        raise Refused(f"{verb} is refused: the calling process cannot be seen", reason="caller_unknown", hint=hint)
    if agents_behind(chain, known) <= excused:
        return
    who = "a delegated task" if any(process.task for process in chain) else "an agent's session"
    raise Refused(f"{verb} is refused: it was called from within {who}", reason="agent_caller", hint=hint)


def read_chain(pid: int, proc: str = "/proc") -> list[Process]:
    """Read a process and those above it.

    Args:
        pid: Where to begin.
        proc: Where the process file system is.

    Returns:
        The process first, at most DEPTH_MAX; empty where it is gone or cannot be seen.
    """
    chain: list[Process] = []
    while pid > 0 and len(chain) < DEPTH_MAX:
        try:
            with open(f"{proc}/{pid}/stat", "rb") as file:
                # The program's name stands in parentheses and may hold anything, parentheses too.
                head, _, tail = file.read(4096).rpartition(b")")
            columns = tail.split()
            parent, start_ticks = int(columns[1]), int(columns[19])
        except (OSError, IndexError, ValueError):
            break
        names = _variable_names(f"{proc}/{pid}/environ")
        task = TASK_MARK in names
        agent = head.partition(b"(")[2] in AGENT_PROGRAMS
        chain.append(Process(ProcessKey(pid, start_ticks), task or bool(names & AGENT_MARKS), task, agent))
        pid = parent
    return chain


def _variable_names(path: str) -> set[str]:
    """List the variables of a process; another user's cannot be read and bear no mark of ours."""
    try:
        with open(path, "rb") as file:
            entries = file.read(ENVIRON_BYTES_MAX).split(b"\0")
    except OSError:
        return set()
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in entries}


def _readable(proc: str) -> bool:
    return os.path.exists(f"{proc}/self/stat")


def open_guard(home: Home, behind: frozenset[ProcessKey], *, fresh: bool, proc: str = "/proc") -> Guard:
    """Make the guard of a node that starts now.

    Args:
        home: The places, locked by this process.
        behind: The agents behind the start, found before the process left its parents behind.
        fresh: Whether this start makes the home's identity; then ``behind`` is noted as its makers.
        proc: Where the process file system is.

    Returns:
        The guard.
    """
    path = os.path.join(home.data_dir, "run", "makers")
    if fresh and len(behind) <= MAKERS_MAX:
        write_note(path, json.dumps([_boot(proc), *behind]))
    return Guard(behind & read_makers(home, proc), proc)


def agents_behind_me(proc: str = "/proc") -> frozenset[ProcessKey]:
    """Find the agents and tasks behind this very process, as far as their marks show them."""
    return agents_behind(read_chain(os.getpid(), proc))


def read_makers(home: Home, proc: str = "/proc") -> frozenset[ProcessKey]:
    """Read which agents made a home; empty where a person did, or where the machine started anew since."""
    text = read_note(os.path.join(home.data_dir, "run", "makers"))
    try:
        boot, *keys = json.loads(text)
        makers = frozenset(ProcessKey(int(pid), int(start_ticks)) for pid, start_ticks in keys)
    except (ValueError, TypeError):
        return frozenset()
    return makers if boot == _boot(proc) else frozenset()


def _boot(proc: str) -> str:
    return read_note(f"{proc}/sys/kernel/random/boot_id")


def refuse_agents_here(verb: str, home: Home, proc: str = "/proc") -> None:
    """Refuse a privileged act that a command does itself, because no node runs that could judge it.

    Args:
        verb: What is asked.
        home: The places; one without an identity yet is nobody's, and everybody may shape it.
        proc: Where the process file system is.

    Raises:
        Refused: An agent or a task stands behind this process.
    """
    if home.identity_dir.exists():
        judge(verb, read_chain(os.getpid(), proc), (), read_makers(home, proc), readable=_readable(proc))
