"""What follows from what, on both sides of a task.

Two machines, each a function of (task, event, now) to (task, actions). The shell stores the task it gets back, waits
until that is on the disk, and only then performs the actions; so nothing starts twice and nothing acknowledged is
forgotten, whenever the process dies.

Two rules carry the weight. A task only moves to a higher rank (``queued`` < ``offered`` < ``asking`` < ``accepted`` <
``starting`` < ``running`` < any final state), so late, repeated and reordered reports change nothing. And the
requester takes a final state only once it holds all the output the worker counted, so "done" never comes before the
last line of the log.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from node.messages import STATES, Hop, TaskReport
from node.tasks.policy import Allow, Deny, Verdict
from node.tasks.task import Task, cut, ended, moved, state_rank

CANCELLED_CODE = 130
TIMED_OUT_CODE = 124


@dataclass(frozen=True, slots=True)
class Leaving:
    """Requester: the signed offer is about to reach the worker in full; from here on it may be running."""

    offer: bytes


@dataclass(frozen=True, slots=True)
class Reported:
    """Requester: the worker told its state, while this many payload bytes of output are stored here."""

    report: TaskReport
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Bounced:
    """Requester: there was no link after all, and this first try sent nothing."""


@dataclass(frozen=True, slots=True)
class Strayed:
    """Requester: nobody will ever tell how it ended: the worker has no such task, or was expelled."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Requester: the worker turned the offer down, or it cannot be made."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Requester: the machine was not reached in time."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """Either side: somebody wants it to end, or never to begin."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Worker: policy looked at a complete and sound offer.

    Attributes:
        request: The id under which a person would be asked.
        until_ms: When an open question is refused.
    """

    verdict: Verdict
    request: bytes
    until_ms: int


@dataclass(frozen=True, slots=True)
class PersonSaid:
    """Worker: a person decided."""

    allowed: bool


@dataclass(frozen=True, slots=True)
class AskExpired:
    """Worker: nobody decided in time."""


@dataclass(frozen=True, slots=True)
class SlotFree:
    """Worker: its turn has come."""


@dataclass(frozen=True, slots=True)
class Started:
    """Worker: the supervisor reported that the command runs."""


@dataclass(frozen=True, slots=True)
class Exited:
    """Worker: the supervisor ended and wrote down how.

    Attributes:
        outcome: As in the exit file.
        code: As a shell would say it.
        note: What else a person should know, or empty.
        signalled: Whether a signal ended the command; a command may also exit with such a code by itself.
    """

    outcome: str
    code: int
    started_ms: int
    ended_ms: int
    output_bytes: int
    note: str
    signalled: bool = False


@dataclass(frozen=True, slots=True)
class Vanished:
    """Worker: there is neither a supervisor nor an exit status."""

    output_bytes: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """Worker: the command could not be started for a reason of this machine or of the tree."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Requester: send the rest of the offer now."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Requester: follow its state and output at the worker."""


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Requester: tell the worker, now or when it is reached again."""


@dataclass(frozen=True, slots=True)
class AskPerson:
    """Worker: put it before the people who may decide."""


@dataclass(frozen=True, slots=True)
class Unask:
    """Worker: nobody needs to decide any more."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Worker: it waits for a slot."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Worker: lay out the tree and start the supervisor. Given exactly once in a task's life."""


@dataclass(frozen=True, slots=True)
class EndProcesses:
    """Worker: tell the supervisor to end the tree; its exit file settles the task."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Either side: it is over; wake who waits, free what it held."""


RequesterEvent = Leaving | Bounced | Reported | Strayed | Refusal | GaveUp | CancelAsked
WorkerEvent = Judged | PersonSaid | AskExpired | SlotFree | Started | Exited | Vanished | Unfit | CancelAsked
Action = Deliver | Watch | SendCancel | AskPerson | Unask | Queue | Launch | EndProcesses | Settle


@dataclass(frozen=True, slots=True)
class Step:
    """What one event led to."""

    task: Task
    actions: tuple[Action, ...] = ()


def request(task: Task, event: RequesterEvent, now_ms: int) -> Step:
    """Advance a task at its requester.

    Args:
        task: As stored.
        event: What happened.
        now_ms: Wall clock.

    Returns:
        The task to store, and what to do after that.
    """
    if task.final:
        return Step(task)
    match event:
        case Leaving():
            return _leave(task, event, now_ms)
        case Reported():
            return _report(task, event)
        case Bounced():
            return Step(_taken_back(task))
        case Strayed():
            return Step(ended(task, "lost", now_ms, reason=event.reason, detail=event.detail), (Settle(),))
        case Refusal():
            return Step(ended(task, "refused", now_ms, reason=event.reason, detail=event.detail), (Settle(),))
        case GaveUp():
            return _give_up(task, now_ms)
        case CancelAsked():
            return _cancel_request(task, now_ms)


def _leave(task: Task, event: Leaving, now_ms: int) -> Step:
    """Note the offer before its last byte goes out; later deliveries repeat the same signed bytes."""
    if task.state == "queued":
        return Step(dataclasses.replace(moved(task, "offered", now_ms), offer=event.offer), (Deliver(),))
    return Step(task, (Deliver(),) if task.state == "offered" and task.offer == event.offer else ())


def _taken_back(task: Task) -> Task:
    """Undo a departure that did not happen; the only step back there is, and only while nothing was ever sent."""
    if task.state != "offered" or task.cancel_asked:
        return task
    return dataclasses.replace(task, state="queued", offer=b"", hops=task.hops[:-1])


def _report(task: Task, event: Reported) -> Step:
    report = event.report
    state = STATES[report.state]
    if state_rank(state) < state_rank("asking") or state_rank(state) < state_rank(task.state):
        return Step(task)
    final = state_rank(state) == state_rank("done")
    if final and event.stored_bytes < report.output_bytes:
        return Step(task, (Watch(),))
    told = dataclasses.replace(
        task,
        state=state,
        exit_code=report.exit_code,
        reason=report.reason,
        detail=report.detail,
        started_ms=report.started_ms,
        ended_ms=report.ended_ms,
        output_bytes=report.output_bytes,
        hops=_joined(task.hops, report.hops),
    )
    if final:
        return Step(told, (Settle(),))
    return Step(told, (SendCancel(), Watch()) if task.cancel_asked else (Watch(),))


def _joined(own: tuple[Hop, ...], theirs: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """Add the worker's transitions, by its clock, behind what is known already."""
    known = {hop.state for hop in own}
    newest = max((min(hop.state, 6) for hop in own), default=-1)
    fresh = []
    for hop in theirs:
        if hop.state not in known and min(hop.state, 6) > newest:
            newest = min(hop.state, 6)
            fresh.append(hop)
    return (*own, *fresh)


def _give_up(task: Task, now_ms: int) -> Step:
    """Give up on what certainly never reached the worker; the rest is followed until its fate is known."""
    if task.state != "queued":
        return Step(task)
    over = ended(task, "failed", now_ms, reason="unreachable", detail="its machine was not reached in time; nothing was started")
    return Step(over, (Settle(),))


def _cancel_request(task: Task, now_ms: int) -> Step:
    if task.state == "queued":
        over = ended(task, "cancelled", now_ms, exit_code=CANCELLED_CODE, reason="cancelled", detail="cancelled before it was sent")
        return Step(over, (Settle(),))
    return Step(dataclasses.replace(task, cancel_asked=True), (SendCancel(),))


def work(task: Task, event: WorkerEvent, now_ms: int) -> Step:
    """Advance a task at its worker.

    Args:
        task: As stored; a new one stands at ``offered``.
        event: What happened.
        now_ms: Wall clock.

    Returns:
        The task to store, and what to do after that.
    """
    if task.final:
        return Step(task)
    match event:
        case Judged():
            return _judge(task, event, now_ms)
        case PersonSaid() | AskExpired():
            return _decide(task, event, now_ms)
        case SlotFree():
            return Step(moved(task, "starting", now_ms), (Launch(),)) if task.state == "accepted" else Step(task)
        case Started():
            return _start(task, now_ms)
        case Unfit():
            return Step(ended(task, "failed", now_ms, reason=event.reason, detail=event.detail), (Settle(),))
        case CancelAsked():
            return _cancel_work(task, now_ms)
        case Exited() | Vanished():
            return _finish(task, event, now_ms)


def _judge(task: Task, event: Judged, now_ms: int) -> Step:
    if task.state != "offered":
        return Step(task)
    if isinstance(event.verdict, Deny):
        return Step(ended(task, "refused", now_ms, reason=event.verdict.reason, detail=event.verdict.detail), (Settle(),))
    if isinstance(event.verdict, Allow):
        return Step(moved(task, "accepted", now_ms), (Queue(),))
    asked = dataclasses.replace(moved(task, "asking", now_ms), request=event.request, until_ms=event.until_ms)
    return Step(asked, (AskPerson(),))


def _decide(task: Task, event: PersonSaid | AskExpired, now_ms: int) -> Step:
    if task.state != "asking":
        return Step(task)
    if isinstance(event, AskExpired):
        over = ended(task, "refused", now_ms, reason="unanswered", detail="nobody answered the request in time")
        return Step(over, (Unask(), Settle()))
    if not event.allowed:
        return Step(ended(task, "refused", now_ms, reason="denied", detail="a person said no"), (Unask(), Settle()))
    return Step(moved(task, "accepted", now_ms), (Unask(), Queue()))


def _start(task: Task, now_ms: int) -> Step:
    if task.state != "starting":
        return Step(task)
    running = dataclasses.replace(moved(task, "running", now_ms), started_ms=now_ms)
    return Step(running, (EndProcesses(),) if task.cancel_asked else ())


def _cancel_work(task: Task, now_ms: int) -> Step:
    """Cancel before the start for good; after it, end the processes and let the exit file say when they are gone."""
    if task.state in ("starting", "running"):
        return Step(dataclasses.replace(task, cancel_asked=True), (EndProcesses(),))
    over = ended(task, "cancelled", now_ms, exit_code=CANCELLED_CODE, reason="cancelled", detail="cancelled before it was started")
    return Step(over, (Unask(), Settle()) if task.state == "asking" else (Settle(),))


def _finish(task: Task, event: Exited | Vanished, now_ms: int) -> Step:
    if task.state not in ("starting", "running"):
        return Step(task)
    if isinstance(event, Vanished):
        lost = ended(task, "lost", now_ms, reason="interrupted", detail="its supervisor is gone without an exit status; not run again")
        return Step(dataclasses.replace(lost, output_bytes=max(task.output_bytes, event.output_bytes)), (Settle(),))
    running = task
    if event.outcome != "unstarted" and task.state == "starting":
        running = moved(task, "running", event.started_ms)
    state, reason, detail = _meaning(event)
    over = ended(running, state, event.ended_ms, exit_code=event.code, reason=reason, detail=cut(f"{detail}{event.note}".strip(), 400))
    started_ms = None if event.outcome == "unstarted" else event.started_ms
    return Step(dataclasses.replace(over, started_ms=started_ms, output_bytes=event.output_bytes), (Settle(),))


def _meaning(event: Exited) -> tuple[str, str, str]:
    """Read the final state, the reason and a sentence out of how it ended."""
    if event.outcome == "cancelled":
        return "cancelled", "cancelled", "cancelled; its processes were ended. "
    if event.outcome == "timed_out":
        return "timed_out", "timeout", "its time was up; its processes were ended. "
    if event.outcome == "unstarted":
        missing = event.code == 127
        return "failed", *(("not_found", "no such program there. ") if missing else ("not_executable", "that cannot be executed there. "))
    if event.code == 0:
        return "done", "", ""
    return "failed", ("signal" if event.signalled else "exit"), ""
