"""Who may answer a request to run something, and what an answer is bound to.

An answer counts if it is signed by a machine of this worker's own owner with the role member, if that machine is not
the one that made the request, if its digest is that of the complete thing which would run, if the request is still
open, and if it is fresh. What could not be shown in full can only be denied from another machine
(THREATS, "answers").
"""

from __future__ import annotations

import os
import shlex
import unicodedata
from dataclasses import dataclass

from mesh.base.codec import encode
from mesh.base.crypto import digest
from mesh.base.names import NodeId
from mesh.base.ports import Member
from node.messages import ANSWER_LIFE_MS_MAX, SHOWN_BYTES_MAX, AnswerBody, WaitingBody
from node.tasks.task import Task, cut

OPEN_ASKS_MAX = 5
"""Open requests of one requester; the next is refused until one is answered."""
CLOCK_SLACK_MS = 60_000
ALLOW = 1
DENY = 2


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why an answer does not count."""

    reason: str
    detail: str


def shown(text: str) -> str:
    """Write a text so that what a person sees is what it is: control, bidirectional and invisible characters escaped.

    Args:
        text: Anything.

    Returns:
        Printable characters and plain spaces only; an escaped one shows its code point in braces.
    """
    return "".join(c if _is_plain(c) else f"\\u{{{ord(c):x}}}" for c in text)


def _is_plain(c: str) -> bool:
    return c == " " or (unicodedata.category(c)[0] not in "CZ" and unicodedata.combining(c) == 0)


def command_line(argv: tuple[bytes, ...]) -> str:
    """Write arguments as one line a person reads, quoted as a shell would need them."""
    return shown(shlex.join(argument.decode("utf-8", "surrogateescape") for argument in argv))


def ask_digest(task: Task, *, sandbox: str, output_bytes_max: int) -> bytes:
    """Hash the complete thing that would run: what, for whom, here, in which sandbox, within which limits."""
    return digest(
        encode(task.spec),
        task.key.requester,
        task.key.task,
        b"%d" % task.key.attempt,
        task.worker,
        sandbox.encode(),
        b"%d" % output_bytes_max,
        person=b"hivemesh-ask",
    )


def waiting_body(task: Task, digest_shown: bytes, *, requester_name: str, sandbox: str, since_ms: int) -> WaitingBody:
    """Write the inbox item of an asking task.

    Args:
        task: In the state ``asking``.
        digest_shown: From :func:`ask_digest`.
        requester_name: Who asks, as shown to people.
        sandbox: ``none`` is said in capitals.
        since_ms: Since when it waits.

    Returns:
        The body; its command is cut to what one record holds.
    """
    command = command_line(task.spec.argv)
    clipped = cut(command, SHOWN_BYTES_MAX)
    tree = f"with the tree {task.spec.tree[:12]} of {task.spec.project or 'a repository'}" if task.spec.tree else "in an empty folder"
    tree += f" in {os.fsdecode(task.spec.folder)}" if task.spec.folder else ""
    warning = ", WITHOUT A SANDBOX" if sandbox == "none" else ""
    return WaitingBody(
        kind="task",
        request=task.request,
        session=None,
        task=task.key.task,
        requester=task.key.requester,
        what=cut(shown(f"{requester_name} wants to run a command here {tree}{warning}"), 300),
        command=clipped,
        complete=clipped == command,
        digest=digest_shown,
        since_ms=since_ms,
    )


def may_answer(worker: Member, answerer: Member | None, requester: NodeId) -> Rejected | None:
    """Check whether a machine may answer at all for a request of another one.

    Args:
        worker: The machine that asks.
        answerer: The machine that answers, as this machine knows it.
        requester: The machine whose request it is.

    Returns:
        None if it may.
    """
    if answerer is None or answerer.state in ("expelled", "expired"):
        return Rejected("not_a_member", "that machine is no member of this mesh")
    if not answerer.mine:
        return Rejected("other_person", "only the machines of the worker's own owner may answer")
    if "member" not in answerer.roles:
        return Rejected("role", "that machine's role does not allow it to answer")
    if answerer.node == requester:
        return Rejected("requester", f"the machine that asked cannot answer; answer on {worker.name} or on another machine")
    return None


def judge_answer(task: Task | None, answer: AnswerBody, me: NodeId, waiting: WaitingBody | None, *, remote: bool, now_ms: int) -> Rejected | None:
    """Check an answer, whose signature and author were checked before, against the request it names.

    Args:
        task: The task with that request id, or None.
        answer: The answer.
        me: This machine.
        waiting: The request as it is shown, or None where there is none.
        remote: Whether it came from another machine.
        now_ms: Wall clock.

    Returns:
        None if it counts.
    """
    if answer.worker != me:
        return Rejected("wrong_machine", "that answer is for another machine")
    if task is None:
        return Rejected("unknown", "there is no such request")
    if task.state != "asking" or waiting is None:
        return Rejected("answered", f"that request is no longer open: its task is {task.state}")
    if answer.digest != waiting.digest:
        return Rejected("changed", "what would run is not what was shown; look at it again")
    if not now_ms <= answer.expires_ms <= now_ms + ANSWER_LIFE_MS_MAX + CLOCK_SLACK_MS:
        return Rejected("expired", "that answer is too old, or the clocks of the two machines differ")
    if remote and answer.decision == ALLOW and not waiting.complete:
        return Rejected("incomplete", "that command is too long to be shown in full elsewhere; allow it on the machine itself")
    return None
