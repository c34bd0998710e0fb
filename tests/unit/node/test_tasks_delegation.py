"""Both state machines: every path, and properties that hold whatever comes in whatever order."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.names import NodeId, TaskId
from node.messages import STATES, Hop, TaskReport, TaskSpec
from node.tasks.delegation import (
    Action,
    AskExpired,
    AskPerson,
    Bounced,
    CancelAsked,
    Deliver,
    EndProcesses,
    Exited,
    GaveUp,
    Judged,
    Launch,
    Leaving,
    PersonSaid,
    Queue,
    Refusal,
    Reported,
    SendCancel,
    Settle,
    SlotFree,
    Started,
    Strayed,
    Unask,
    Unfit,
    Vanished,
    Watch,
    request,
    work,
)
from node.tasks.policy import Allow, Ask, Deny
from node.tasks.task import REQUESTED, WORKED, Key, Task, report_of, state_rank

SPEC = TaskSpec(1, (b"true",), "", None, None, 60)
KEY = Key(REQUESTED, NodeId(b"q" * 16), TaskId(b"t" * 16), 1)
QUEUED = Task(KEY, NodeId(b"w" * 16), SPEC, 0, "queued", 100, hops=(Hop(0, 100),))
OFFERED = Task(dataclasses.replace(KEY, side=WORKED), NodeId(b"w" * 16), SPEC, 0, "offered", 100, hops=(Hop(1, 100),))
JUDGED = Judged(Allow(), b"", 0)
ASKED = Judged(Ask(), b"r" * 16, 900)
EXITED = Exited("exited", 0, 150, 160, 10, "")


def report(state: str, output_bytes: int = 0, code: int | None = None) -> TaskReport:
    number = STATES.index(state)
    hops = tuple(Hop(n, 200 + n) for n in range(1, min(number, 5) + 1)) + ((Hop(number, 300),) if number > 5 else ())
    return TaskReport(KEY.task, 1, number, code, "", "", 205, None, output_bytes, hops)


def run_worker(*events: object) -> tuple[Task, list[tuple[Action, ...]]]:
    task, actions = OFFERED, []
    for now_ms, event in enumerate(events, 200):
        step = work(task, event, now_ms)  # type: ignore[arg-type]
        task = step.task
        actions.append(step.actions)
    return task, actions


def test_the_straight_way_at_the_worker():
    task, actions = run_worker(JUDGED, SlotFree(), Started(), EXITED)
    assert actions == [(Queue(),), (Launch(),), (), (Settle(),)]
    assert [STATES[hop.state] for hop in task.hops] == ["offered", "accepted", "starting", "running", "done"]
    assert (task.exit_code, task.output_bytes, task.started_ms, task.ended_ms) == (0, 10, 150, 160)


def test_the_straight_way_at_the_requester():
    step = request(QUEUED, Leaving(b"offer"), 110)
    assert step.actions == (Deliver(),)
    assert step.task.offer == b"offer"
    step = request(step.task, Reported(report("running", 5), 0), 120)
    assert step.actions == (Watch(),)
    assert step.task.state == "running"
    step = request(step.task, Reported(report("done", 10, 0), 10), 130)
    assert step.actions == (Settle(),)
    assert [STATES[hop.state] for hop in step.task.hops] == ["queued", "offered", "asking", "accepted", "starting", "running", "done"]


def test_done_never_comes_before_the_last_line():
    """O-X9: a final report is taken only once all the output it counts is stored here."""
    running = request(request(QUEUED, Leaving(b"o"), 1).task, Reported(report("running"), 0), 2).task
    early = request(running, Reported(report("done", 100, 0), 99), 3)
    assert early.task == running
    assert early.actions == (Watch(),)
    assert request(running, Reported(report("done", 100, 0), 100), 3).task.state == "done"


@pytest.mark.parametrize(
    ("outcome", "code", "state", "reason"),
    [
        ("exited", 0, "done", ""),
        ("exited", 7, "failed", "exit"),
        ("exited", 137, "failed", "signal"),
        ("unstarted", 127, "failed", "not_found"),
        ("unstarted", 126, "failed", "not_executable"),
        ("timed_out", 124, "timed_out", "timeout"),
        ("cancelled", 130, "cancelled", "cancelled"),
    ],
)
def test_how_it_ended_is_read_right(outcome: str, code: int, state: str, reason: str):
    task, _ = run_worker(JUDGED, SlotFree(), Started(), Exited(outcome, code, 150, 160, 0, "", signalled=reason == "signal"))
    assert (task.state, task.exit_code, task.reason) == (state, code, reason)
    assert (task.started_ms is None) == (outcome == "unstarted")


def test_asking_and_the_answers():
    task, actions = run_worker(ASKED)
    assert task.state == "asking"
    assert actions == [(AskPerson(),)]
    assert task.request == b"r" * 16
    assert run_worker(ASKED, PersonSaid(True))[1][-1] == (Unask(), Queue())
    denied, actions = run_worker(ASKED, PersonSaid(False), PersonSaid(True))
    assert denied.state == "refused"
    assert actions[-1] == (), "an answer is used once"
    assert run_worker(ASKED, AskExpired())[0].reason == "unanswered"
    refused, actions = run_worker(Judged(Deny("policy", "no"), b"", 0))
    assert (refused.state, refused.reason, refused.detail) == ("refused", "policy", "no")


@pytest.mark.parametrize("before", [(), (JUDGED,), (ASKED,)])
def test_cancel_before_the_start_means_never(before: tuple[object, ...]):
    """O-X4: whatever comes after it, nothing is launched."""
    task, actions = run_worker(*before, CancelAsked(), JUDGED, ASKED, PersonSaid(True), SlotFree(), Started(), EXITED)
    assert (task.state, task.exit_code) == ("cancelled", 130)
    assert not any(Launch() in done for done in actions)


@pytest.mark.parametrize("before", [(JUDGED, SlotFree()), (JUDGED, SlotFree(), Started())])
def test_cancel_after_the_start_ends_processes_and_the_exit_settles(before: tuple[object, ...]):
    task, actions = run_worker(*before, CancelAsked(), CancelAsked())
    assert actions[-1] == (EndProcesses(),)
    assert task.state in ("starting", "running")
    assert task.cancel_asked
    assert work(task, Exited("cancelled", 130, 1, 2, 3, ""), 300).task.state == "cancelled"
    assert work(task, EXITED, 300).task.state == "done", "it ended by itself before the cancel came"


def test_a_cancel_that_overtakes_the_start_is_said_again_when_it_has_started():
    _, actions = run_worker(JUDGED, SlotFree(), CancelAsked(), Started())
    assert actions[-1] == (EndProcesses(),)


def test_cancel_at_the_requester():
    """O-X4: certain at once while nothing was sent; afterwards only the worker's word ends it."""
    assert request(QUEUED, CancelAsked(), 5).task.state == "cancelled"
    offered = request(QUEUED, Leaving(b"o"), 1).task
    step = request(offered, CancelAsked(), 5)
    assert step.actions == (SendCancel(),)
    assert step.task.state == "offered"
    assert step.task.cancel_asked
    assert request(step.task, Reported(report("running"), 0), 6).actions == (SendCancel(), Watch())
    ended = request(step.task, Reported(report("cancelled", 0, 130), 0), 6).task
    assert request(ended, CancelAsked(), 7) == dataclasses.replace(request(ended, CancelAsked(), 8), task=ended)


def test_a_departure_that_did_not_happen_is_taken_back():
    offered = request(QUEUED, Leaving(b"o"), 1).task
    assert request(offered, Bounced(), 2).task == QUEUED
    running = request(offered, Reported(report("running"), 0), 2).task
    assert request(running, Bounced(), 3).task == running
    cancelled = request(offered, CancelAsked(), 2).task
    assert request(cancelled, Bounced(), 3).task == cancelled


def test_only_what_never_left_is_given_up():
    assert request(QUEUED, GaveUp(), 5).task.reason == "unreachable"
    offered = request(QUEUED, Leaving(b"o"), 1).task
    assert request(offered, GaveUp(), 5).task == offered


def test_what_nobody_will_tell_is_lost():
    offered = request(QUEUED, Leaving(b"o"), 1).task
    assert request(offered, Strayed("unknown_there", "x"), 5).task.state == "lost"
    assert work(run_worker(JUDGED, SlotFree())[0], Vanished(7), 9).task.state == "lost"
    assert request(QUEUED, Refusal("x", "y"), 5).task.state == "refused"


def test_an_unfit_tree_fails_the_task():
    task, actions = run_worker(JUDGED, SlotFree(), Unfit("checkout", "no"))
    assert (task.state, task.reason, actions[-1]) == ("failed", "checkout", (Settle(),))


WORKER_EVENTS = st.sampled_from(
    [JUDGED, ASKED, Judged(Deny("policy", ""), b"", 0), PersonSaid(True), PersonSaid(False), AskExpired(), SlotFree(), Started(),
     EXITED, Exited("cancelled", 130, 1, 2, 0, ""), Vanished(0), Unfit("x", "y"), CancelAsked()]
)  # fmt: skip


@given(st.lists(WORKER_EVENTS, max_size=25))
def test_whatever_comes_the_worker_starts_once_and_never_after_a_cancel(events: list[object]):
    task, cancelled, launches = OFFERED, False, 0
    for now_ms, event in enumerate(events, 200):
        before = task
        step = work(task, event, now_ms)  # type: ignore[arg-type]
        task = step.task
        launches += step.actions.count(Launch())
        assert not (cancelled and Launch() in step.actions)
        cancelled = cancelled or isinstance(event, CancelAsked)
        assert state_rank(task.state) >= state_rank(before.state)
        if before.final:
            assert step.task == before
            assert step.actions == ()
        assert (Settle() in step.actions) == (task.final and not before.final)
        if task.final:
            assert task.ended_ms is not None
        ranks = [min(hop.state, 6) for hop in task.hops]
        assert ranks == sorted(set(ranks))
        assert STATES[task.hops[-1].state] == task.state
    assert launches <= 1


REPORTS = st.builds(
    Reported,
    st.builds(report, st.sampled_from(STATES), st.integers(0, 20), st.sampled_from([None, 0, 7])),
    st.integers(0, 20),
)
REQUESTER_EVENTS = st.one_of(
    REPORTS,
    st.sampled_from([Leaving(b"one"), Leaving(b"two"), Bounced(), Strayed("x", "y"), Refusal("x", "y"), GaveUp(), CancelAsked()]),
)


@given(st.lists(REQUESTER_EVENTS, max_size=25))
def test_whatever_comes_the_requester_ends_once_and_whole(events: list[object]):
    task = QUEUED
    for now_ms, event in enumerate(events, 200):
        before = task
        step = request(task, event, now_ms)  # type: ignore[arg-type]
        task = step.task
        if before.final:
            assert step == dataclasses.replace(step, task=before, actions=())
        if not isinstance(event, Bounced):
            assert state_rank(task.state) >= state_rank(before.state)
        if isinstance(event, Reported) and task.final and not before.final:
            assert event.stored_bytes >= event.report.output_bytes
        assert (Settle() in step.actions) == (task.final and not before.final)
        assert not (before.cancel_asked and Deliver() in step.actions and before.state == "queued")
        states = [hop.state for hop in task.hops]
        assert len(states) == len(set(states)) <= len(STATES)


@given(st.lists(WORKER_EVENTS, max_size=12))
def test_a_requester_that_hears_everything_ends_where_the_worker_did(events: list[object]):
    there, here = OFFERED, request(QUEUED, Leaving(b"o"), 150).task
    for now_ms, event in enumerate(events, 200):
        there = work(there, event, now_ms).task  # type: ignore[arg-type]
        here = request(here, Reported(report_of(there), there.output_bytes), now_ms).task
    if there.state != "offered":
        assert (here.state, here.exit_code, here.reason) == (there.state, there.exit_code, there.reason)
