"""A task as a value: what it is, where it stands, and how it is shown.

Both sides keep the same shape: the requester's copy mirrors what the worker reports. A task is named by
(requester, task, attempt), because a task id is only as unique as its requester makes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from mesh.base.clock import rfc3339
from mesh.base.codec import encode
from mesh.base.crypto import digest
from mesh.base.errors import EXIT_OF_RUN_FAULT, MeshError, OurFault, Refused, Unreachable
from mesh.base.names import NodeId, TaskId, base32
from node.messages import STATES, Hop, TaskReport, TaskSpec

REQUESTED = "requested"
WORKED = "worked"
FINAL = frozenset(STATES[6:])
REASON_BYTES_MAX = 32
DETAIL_BYTES_MAX = 400
FOLDER_CHARS = 16


@dataclass(frozen=True, slots=True)
class Key:
    """Names one attempt at one task, on one side.

    Attributes:
        side: ``requested`` for what this machine asked of another, ``worked`` for what it does for one.
    """

    side: str
    requester: NodeId
    task: TaskId
    attempt: int


@dataclass(frozen=True, slots=True)
class Task:
    """One attempt at one task, as this machine knows it.

    Attributes:
        spec: What runs.
        pack_bytes: Size of the tree's pack, 0 without one.
        state: One of ``STATES``.
        cancel_asked: Somebody asked to cancel it; it is not yet known to have ended.
        exit_code: 0 to 255 once it ended by itself or was ended, else None.
        reason: A stable word for scripts, or empty.
        detail: The same for a person, or empty.
        output_bytes: Payload bytes of both streams so far.
        until_ms: Requester: when a queued task is given up. Worker: when an open question is. Else 0.
        offer: Requester: the signed offer once it may have reached the worker. Else empty.
        request: Worker: the id under which a person is asked. Else empty.
        inode: Of its folder, when that was made; 0 where there was none.
        hops: The transitions, oldest first.
    """

    key: Key
    worker: NodeId
    spec: TaskSpec
    pack_bytes: int
    state: str
    created_ms: int
    cancel_asked: bool = False
    exit_code: int | None = None
    reason: str = ""
    detail: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    output_bytes: int = 0
    until_ms: int = 0
    offer: bytes = b""
    request: bytes = b""
    inode: int = 0
    hops: tuple[Hop, ...] = ()

    @property
    def final(self) -> bool:
        """Whether the task is over."""
        return self.state in FINAL

    @property
    def text_id(self) -> str:
        """The id as people see it: 26 characters."""
        return base32(self.key.task)


def state_rank(state: str) -> int:
    """Order states: a task only ever moves to a higher rank, and all final ones are the highest."""
    return min(STATES.index(state), 6)


def moved(task: Task, state: str, now_ms: int) -> Task:
    """Move a task on, noting when; a move to its own state changes nothing.

    Args:
        task: Not final.
        state: Of a higher rank.
        now_ms: Wall clock.

    Returns:
        The task in its new state.
    """
    if task.state == state:
        return task
    assert state_rank(state) > state_rank(task.state), f"{task.state} -> {state}"
    return dataclasses.replace(task, state=state, hops=(*task.hops, Hop(STATES.index(state), now_ms)))


def ended(
    task: Task, state: str, now_ms: int, *, exit_code: int | None = None, reason: str = "", detail: str = ""
) -> Task:
    """Move a task to a final state with its reason."""
    over = moved(task, state, now_ms)
    return dataclasses.replace(
        over, exit_code=exit_code, reason=cut(reason, REASON_BYTES_MAX), detail=cut(detail, DETAIL_BYTES_MAX), ended_ms=now_ms
    )


def cut(text: str, bytes_max: int) -> str:
    """Cut a text at a character boundary so that its UTF-8 fits."""
    return text.encode("utf-8", "replace")[:bytes_max].decode("utf-8", "ignore")


def spec_digest(spec: TaskSpec) -> bytes:
    """Hash everything that will run; two offers of one attempt must agree in it."""
    return digest(encode(spec), person=b"hivemesh-spec")


def folder_name(key: Key) -> str:
    """Name the folder of a task.

    Short, because programs put sockets below it and a socket's path holds about 100 bytes.
    """
    name = base32(key.task)[:FOLDER_CHARS]
    return name if key.attempt == 1 else f"{name}-{key.attempt}"


def report_of(task: Task) -> TaskReport:
    """Write a worker's task as the message its requester gets."""
    return TaskReport(
        task.key.task,
        task.key.attempt,
        STATES.index(task.state),
        task.exit_code,
        task.reason,
        task.detail,
        task.started_ms,
        task.ended_ms,
        task.output_bytes,
        task.hops,
    )


def task_json(task: Task, name_of: Callable[[NodeId], str]) -> dict[str, object]:
    """Show a task in the shape scripts rely on (docs/CLI.md).

    Args:
        task: Either side's.
        name_of: A machine's display name.

    Returns:
        Plain values; times RFC 3339, unknown is None.
    """
    tree = task.spec.tree
    return {
        "task": task.text_id,
        "attempt": task.key.attempt,
        "node": base32(task.worker),
        "name": name_of(task.worker),
        "state": task.state,
        "kind": "run",
        "agent": None,
        "argv": [argument.decode("utf-8", "replace") for argument in task.spec.argv],
        "prompt": None,
        "exit_code": task.exit_code,
        "created_at": rfc3339(task.created_ms),
        "started_at": rfc3339(task.started_ms),
        "ended_at": rfc3339(task.ended_ms),
        "output_bytes": task.output_bytes,
        "tree": tree,
        "result": None,
        "cost_usd": None,
        "reason": task.reason or None,
        "detail": task.detail or None,
        "transitions": [{"state": STATES[hop.state], "at": rfc3339(hop.at_ms)} for hop in task.hops],
        "project": task.spec.project or None,
        "timeout_s": task.spec.timeout_s,
        "cancel_requested": task.cancel_asked,
        "side": task.key.side,
        "requester": base32(task.key.requester),
        "requester_name": name_of(task.key.requester),
    }


def exit_code_of(task: Task) -> int:
    """Say what the command line exits with for a task that is over: as the command did, or 125 for a fault of ours."""
    if task.exit_code is not None and task.state not in ("refused", "lost"):
        return task.exit_code
    return EXIT_OF_RUN_FAULT


def fault_of(task: Task) -> MeshError | None:
    """Say which fault of ours ended a task; None where it ended by itself, by time or by cancel."""
    if not task.final or exit_code_of(task) != EXIT_OF_RUN_FAULT or task.exit_code is not None:
        return None
    detail = task.detail or f"the task is {task.state}"
    if task.reason == "unreachable":
        return Unreachable(detail, hint="see hivemesh peers; --detach waits for it")
    if task.state == "refused":
        return Refused(detail, reason=task.reason)
    return OurFault(detail)
