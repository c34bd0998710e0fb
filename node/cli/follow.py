"""Following a run on another machine: its output as it comes, its end, and what Ctrl-C means."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mesh.base.errors import EXIT_OF_RUN_FAULT, OurFault
from node.cli.client import Conversation, NodeGone
from node.cli.console import Console, counted, shown

SECOND_CHANCE_S = 3.0
"""Within this time a second Ctrl-C cancels the run; without one the command leaves and the run goes on."""
_EXIT_OF_STATE = {"timed_out": 124, "cancelled": 130, "refused": EXIT_OF_RUN_FAULT, "lost": EXIT_OF_RUN_FAULT}
_EXIT_OF_REASON = {"not_found": 127, "not_executable": 126}
FINAL = frozenset({"done", "failed", "cancelled", "timed_out", "refused", "lost"})
"""The states a run ends in."""


class Detached(OurFault):
    """The command left; the run goes on."""

    kind = "detached"


def exit_of_task(task: Mapping[str, Any]) -> int:
    """Decide how a command that waited for a run exits.

    Args:
        task: The run, in a final state.

    Returns:
        The run's own exit code, 128+n by signal, 127 not found, 126 not executable, 124 out of time, 130 cancelled;
        125 for everything that is ours.
    """
    state, code = task.get("state"), task.get("exit_code")
    if state in _EXIT_OF_STATE:
        return _EXIT_OF_STATE[str(state)]
    if isinstance(code, int):
        return code if 0 <= code < 256 else 128 - code if -128 < code < 0 else EXIT_OF_RUN_FAULT
    return _EXIT_OF_REASON.get(str(task.get("reason")), EXIT_OF_RUN_FAULT)


def output_lines(stream: str, offset: int, data: bytes) -> list[dict[str, object]]:
    """Write a piece of output as JSON lines; bytes that are not UTF-8 go as base64.

    A character cut by the end of the piece goes as base64 by itself, so that the text before it stays text.

    Args:
        stream: ``stdout`` or ``stderr``.
        offset: Where the piece begins.
        data: Its bytes.

    Returns:
        One or two lines.
    """
    try:
        return [{"stream": stream, "offset": offset, "data": data.decode()}]
    except UnicodeDecodeError as error:
        cut = error.start if error.reason == "unexpected end of data" else 0
    lines: list[dict[str, object]] = [{"stream": stream, "offset": offset, "data": data[:cut].decode()}] if cut else []
    return [*lines, {"stream": stream, "offset": offset + cut, "data_b64": base64.b64encode(data[cut:]).decode()}]


def follow(conversation: Conversation, console: Console, *, task: str = "", show_output: bool = True, cancels: bool = False) -> Any:
    """Show a run until its result is here.

    Args:
        conversation: One of the verbs ``run``, ``logs``, ``wait``.
        console: Where.
        task: The run, as far as the words name it.
        show_output: Whether output events are shown.
        cancels: Whether a second Ctrl-C cancels the run; else the first one just leaves.

    Returns:
        The task, in a final state.

    Raises:
        Detached: The person left; the run goes on.
        Answered: The node says it failed, or refuses.
        NodeGone: The node of this machine went away; the run goes on.
        OutputLost: The output cannot be written; the run goes on.
    """
    known = {"task": task}
    try:
        with _interrupts(conversation, console, known, cancels=cancels):
            for event, data in conversation.events():
                if event.get("kind") == "output":
                    if show_output:
                        _show_output(console, event, data)
                elif event.get("kind") == "task":
                    known |= _known(event)
                else:
                    _tell(console, event, known)
    except NodeGone as gone:
        if not known["task"]:
            raise
        task = shown(known["task"])
        raise NodeGone(f"this machine's node stopped; run {task} goes on there", hint=f"hivemesh up -d, then hivemesh logs {task} -f") from gone
    return conversation.result


def _known(event: Mapping[str, object]) -> dict[str, str]:
    task = _mapping(event.get("task"))
    return {"task": str(task.get("task", "")), "name": str(task.get("name", ""))}


def _tell(console: Console, event: Mapping[str, object], known: Mapping[str, str]) -> None:
    """Say what happens beside the output."""
    kind = event.get("kind")
    if kind == "untracked":
        _tell_untracked(console, event)
    elif kind == "note":
        console.note(shown(event.get("text")))
    elif kind == "gap":
        console.warn(f"hivemesh: output from byte {shown(event.get('from'))} to {shown(event.get('to'))} was not kept")
    elif kind == "state" and event.get("state") not in FINAL:
        _tell_state(console, event, known.get("name", ""))


def _tell_state(console: Console, event: Mapping[str, object], name: str) -> None:
    """Say what a run waits for; with ``-v`` every state it passes."""
    state = event.get("state")
    if state == "queued" and event.get("linked") is False:
        console.note("queued: there is no link to that machine now")
    elif state == "asking":
        where = shown(name) or "the machine that would do it"
        console.note(f"asking: allow it on {where} or on another machine of its person (not on this one); there: hivemesh inbox")
    elif console.verbose:
        console.note(f"{shown(state)}" + (f": {shown(event['reason'])}" if event.get("reason") else ""))


def _mapping(found: object) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else {}


def _show_output(console: Console, event: Mapping[str, object], data: bytes) -> None:
    stream, offset = str(event.get("stream")), event.get("offset")
    if console.as_json:
        for line in output_lines(stream, offset if isinstance(offset, int) else 0, data):
            console.json(line)
        return
    console.output(stream, data)


def _tell_untracked(console: Console, event: Mapping[str, object]) -> None:
    files = event.get("files")
    listed = [_mapping(one) for one in files] if isinstance(files, list) else []
    count, length = event.get("count"), event.get("bytes")
    files_travel = "untracked file travels" if count == 1 else "untracked files travel"
    console.note(f"{shown(count)} {files_travel} along ({counted(length, 'byte') if isinstance(length, int) else '-'}):")
    for one in listed:
        console.note(f"  {shown(one.get('path'))}", quotes=True)
    if count != len(listed):
        console.note("  ...")


@contextmanager
def _interrupts(conversation: Conversation, console: Console, known: Mapping[str, str], *, cancels: bool) -> Iterator[None]:
    """Give Ctrl-C its meaning while a run is followed.

    The first says that the run goes on and starts a timer that leaves; a second within SECOND_CHANCE_S cancels, and the
    end is awaited; a third leaves without it.
    """
    pressed: list[float] = []

    def leave(number: int, frame: FrameType | None) -> None:
        task = shown(known["task"])
        hint = f"follow it again: hivemesh logs {task} -f" if task else "see it: hivemesh tasks"
        raise Detached("left; the run goes on there" if task or not cancels else "left before the run began", hint=hint)

    def interrupt(number: int, frame: FrameType | None) -> None:
        pressed.append(time.monotonic())
        if not cancels or len(pressed) > 2:
            leave(number, frame)
        elif len(pressed) == 1:
            console.warn("keeps running there; again within 3 s cancels")
            signal.setitimer(signal.ITIMER_REAL, SECOND_CHANCE_S)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)
            console.warn("cancelling")
            conversation.signal("cancel")

    before = [(number, signal.signal(number, act)) for number, act in ((signal.SIGINT, interrupt), (signal.SIGALRM, leave))]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, act in before:
            signal.signal(number, act)


def end(task: Any, console: Console) -> int:
    """Tell how a run ended, and decide the exit code.

    Args:
        task: The run, in a final state.
        console: Where.

    Returns:
        The exit code.
    """
    code = exit_of_task(task)
    if console.as_json:
        console.json(task)
    elif code:
        own = task.get("state") in ("done", "failed") and task.get("exit_code") is not None
        why = task.get("detail") or task.get("reason")
        exit_code = f" with exit code {shown(task['exit_code'])}" if own else ""
        text = f"hivemesh: {shown(task.get('state'))} on {shown(task.get('name'))}{exit_code}"
        say = console.note if own else console.warn
        say(text if why in (None, "exit", task.get("state")) else f"{text}: {shown(why)}")
    return code
