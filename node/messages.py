"""Every message of the node on the wire: numbers 64 to 127, a range on every field.

A channel is opened for a purpose, and its purpose is the number of the message it opens with. The first bytes of
the number space belong to runs; the sessions' details follow at 80.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mesh.base.codec import Count, Range, Registry, Size

ARGUMENTS_MAX = 1024
ARGV_BYTES_MAX = 48 * 1024
"""All arguments together: a signed offer is one message of a channel. More is refused where it is typed."""
OUTPUT_BYTES_MAX = 48 * 1024
"""Payload of one output message, and of one frame of a task's log."""
PACK_CHUNK_BYTES_MAX = 56 * 1024
PACK_BYTES_MAX = 1 << 30
"""The largest tree one task may bring, packed; more is refused before it is sent, and again on arrival."""
OFFSET_MAX = 1 << 50
TIMEOUT_S_MAX = 30 * 86_400
ATTEMPT_MAX = 100
OFFER_LIFE_MS_MAX = 10 * 60 * 1000
ANSWER_LIFE_MS_MAX = 10 * 60 * 1000
SHOWN_BYTES_MAX = 1_200
"""Of a command, in an inbox item; what does not fit can only be denied from another machine."""

PURPOSE_OFFER = 64
PURPOSE_FOLLOW = 65
PURPOSE_CANCEL = 66
PURPOSE_ANSWER = 67
TASK_PURPOSES = range(64, 68)

KIND_RUN = 1

STATES = (
    "queued",
    "offered",
    "asking",
    "accepted",
    "starting",
    "running",
    "done",
    "failed",
    "cancelled",
    "timed_out",
    "refused",
    "lost",
)
"""States of a task; a state's number on the wire is its place here."""

Id = Annotated[bytes, Size(16, 16)]
WallMs = Annotated[int, Range(0, (1 << 47) - 1)]
Attempt = Annotated[int, Range(1, ATTEMPT_MAX)]
Offset = Annotated[int, Range(0, OFFSET_MAX)]
StateNumber = Annotated[int, Range(0, len(STATES) - 1)]
Word = Annotated[str, Size(0, 32)]
Sentence = Annotated[str, Size(0, 400)]
FOLDER_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Everything that will run: two tasks with the same encoded spec do the same thing.

    Attributes:
        kind: 1 is a command.
        argv: The command and its arguments, as bytes, without NUL; never passed to a shell.
        project: Its name at the requester, or empty outside a repository.
        repository: 16 bytes, hash of the root commits; None where there is none.
        tree: Hexadecimal id of the commit whose tree the command finds, or None for an empty folder.
        timeout_s: When it is ended, in seconds of running.
        env: Names of variables the requester wants to send; their values never stand here.
        folder: Where in the tree the command starts, relative, or empty for its root.
    """

    kind: Annotated[int, Range(1, 255)]
    argv: Annotated[tuple[Annotated[bytes, Size(0, ARGV_BYTES_MAX)], ...], Count(ARGUMENTS_MAX)]
    project: Annotated[str, Size(0, 64)]
    repository: Annotated[bytes, Size(16, 16)] | None
    tree: Annotated[str, Size(40, 64)] | None
    timeout_s: Annotated[int, Range(1, TIMEOUT_S_MAX)]
    env: Annotated[tuple[Annotated[str, Size(1, 64)], ...], Count(32)] = ()
    folder: Annotated[bytes, Size(0, FOLDER_BYTES_MAX)] = b""


@dataclass(frozen=True, slots=True)
class OfferBody:
    """What a requester signs: who asks whom to run what, and until when it may be taken up.

    The mesh is bound by the signature's context, as in every signature.
    """

    task: Id
    attempt: Attempt
    requester: Id
    worker: Id
    spec: TaskSpec
    pack_bytes: Annotated[int, Range(0, PACK_BYTES_MAX)]
    issued_ms: WallMs
    accept_until_ms: WallMs


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer as it travels: the body's bytes as signed, and the signature of the requester's key over them."""

    body: Annotated[bytes, Size(1, 56 * 1024)]
    signature: Annotated[bytes, Size(64, 64)]


@dataclass(frozen=True, slots=True)
class Follow:
    """Send me this task's state and its output from an offset on, until it is over."""

    task: Id
    attempt: Attempt
    offset: Offset


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this task, or never start it."""

    task: Id
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class AnswerBody:
    """What an answering machine signs: this decision, on exactly this request, for a short while.

    Attributes:
        worker: The machine that asked.
        request: The request's id.
        digest: Hash of the complete thing that was shown.
        decision: 1 allow, 2 deny.
        expires_ms: At most ten minutes ahead.
    """

    worker: Id
    request: Id
    digest: Annotated[bytes, Size(32, 32)]
    decision: Annotated[int, Range(1, 2)]
    expires_ms: WallMs


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it travels: the body's bytes as signed, and the signature of the answering machine's key."""

    body: Annotated[bytes, Size(1, 512)]
    signature: Annotated[bytes, Size(64, 64)]


@dataclass(frozen=True, slots=True)
class Hop:
    """One transition of a task, by the clock of the machine that made it."""

    state: StateNumber
    at_ms: WallMs


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task's state at its worker."""

    task: Id
    attempt: Attempt
    state: StateNumber
    exit_code: Annotated[int, Range(0, 255)] | None
    reason: Word
    detail: Sentence
    started_ms: WallMs | None
    ended_ms: WallMs | None
    output_bytes: Offset
    hops: Annotated[tuple[Hop, ...], Count(len(STATES))]


@dataclass(frozen=True, slots=True)
class TaskUnknown:
    """The worker has no such task, and says so instead of staying silent."""

    task: Id
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class WantPack:
    """The offer is welcome so far: send the tree."""


@dataclass(frozen=True, slots=True)
class PackChunk:
    """A piece of the tree's pack, in order."""

    data: Annotated[bytes, Size(1, PACK_CHUNK_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class PackEnd:
    """The pack is complete; only now may the worker accept the task."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output.

    Attributes:
        offset: Payload bytes of both streams before it.
        stream: 1 standard output, 2 standard error.
    """

    offset: Offset
    stream: Annotated[int, Range(1, 2)]
    data: Annotated[bytes, Size(1, OUTPUT_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Output that was cut and is nowhere kept: from one offset up to another."""

    start: Offset
    end: Offset


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of an answer."""

    taken: bool
    reason: Word
    detail: Sentence


@dataclass(frozen=True, slots=True)
class WaitingBody:
    """The plain body of a ``waiting`` record: something that waits for a person. At most 2 KiB encoded, sealed.

    Attributes:
        kind: ``permission``, ``question`` or ``task``.
        request: 16 bytes; an answer names it.
        session: The agent's session, or None.
        task: The task, or None.
        requester: The machine whose request it is, or None; that machine may not answer.
        what: One line that says what is asked.
        command: What will run, with control and bidirectional characters escaped.
        complete: Whether ``command`` shows all of it; if not, another machine may only deny.
        digest: Hash of the complete thing.
        since_ms: Since when it waits.
    """

    kind: Annotated[str, Size(1, 16)]
    request: Id
    session: Annotated[str, Size(1, 64)] | None
    task: Annotated[bytes, Size(16, 16)] | None
    requester: Annotated[bytes, Size(16, 16)] | None
    what: Annotated[str, Size(0, 300)]
    command: Annotated[str, Size(0, SHOWN_BYTES_MAX)]
    complete: bool
    digest: Annotated[bytes, Size(32, 32)]
    since_ms: WallMs


TASK_TAGS: dict[int, type] = {
    64: Offer,
    65: Follow,
    66: Cancel,
    67: Answer,
    68: TaskReport,
    69: TaskUnknown,
    70: WantPack,
    71: PackChunk,
    72: PackEnd,
    73: Output,
    74: OutputGap,
    75: Answered,
}
"""Numbers of the messages of runs. The first four are the purposes of the channels they open."""

TASK_MESSAGES = Registry(TASK_TAGS)
