"""A task as a value: order of its states, digests, and the shape scripts rely on."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import OurFault, Refused, Unreachable
from mesh.base.names import NodeId, TaskId
from node.messages import STATES, Hop, TaskSpec
from node.tasks.task import (
    FINAL,
    REQUESTED,
    Key,
    Task,
    cut,
    ended,
    exit_code_of,
    fault_of,
    folder_name,
    moved,
    report_of,
    spec_digest,
    state_rank,
    task_json,
)

KEY = Key(REQUESTED, NodeId(b"q" * 16), TaskId(bytes(range(16))), 1)
SPEC = TaskSpec(1, (b"make", b"\xff"), "shop", None, None, 60)
TASK = Task(KEY, NodeId(b"w" * 16), SPEC, 0, "queued", 1_700_000_000_000, hops=(Hop(0, 1_700_000_000_000),))


def test_the_json_has_exactly_the_promised_fields():
    shown = task_json(TASK, lambda node: {b"w": "mini", b"q": "laptop"}[node[:1]])
    promised = {
        "task", "attempt", "node", "name", "state", "kind", "agent", "argv", "prompt", "exit_code", "created_at",
        "started_at", "ended_at", "output_bytes", "tree", "result", "cost_usd", "reason", "transitions",
    }  # fmt: skip
    assert promised <= shown.keys()
    assert (shown["name"], shown["state"], shown["kind"]) == ("mini", "queued", "run")
    assert shown["argv"] == ["make", "\ufffd"]
    assert shown["started_at"] is shown["exit_code"] is shown["reason"] is shown["result"] is None
    assert shown["transitions"] == [{"state": "queued", "at": "2023-11-14T22:13:20.000Z"}]


def test_states_only_rise():
    assert [state_rank(state) for state in STATES] == [0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6]
    assert moved(TASK, "queued", 9) == TASK
    with pytest.raises(AssertionError):
        moved(moved(TASK, "running", 1), "accepted", 2)
    assert {"done", "failed", "cancelled", "timed_out", "refused", "lost"} == FINAL


def test_a_folder_is_short_and_differs_by_attempt():
    assert folder_name(KEY) == "aaaqeayeaudaocaj"
    assert folder_name(dataclasses.replace(KEY, attempt=2)) == "aaaqeayeaudaocaj-2"


@pytest.mark.parametrize("change", [{"argv": (b"make", b"\xfe")}, {"timeout_s": 61}, {"project": "x"}, {"env": ("A",)}, {"tree": "0" * 40}])
def test_the_digest_covers_everything_that_runs(change: dict[str, object]):
    assert spec_digest(SPEC) != spec_digest(dataclasses.replace(SPEC, **change))  # type: ignore[arg-type]


@given(st.text(max_size=300), st.integers(0, 100))
def test_cut_fits_and_is_a_beginning(text: str, limit: int):
    kept = cut(text, limit)
    assert len(kept.encode()) <= limit
    assert text.encode("utf-8", "replace").decode().startswith(kept)


@pytest.mark.parametrize(
    ("state", "code", "reason", "exit_code", "fault"),
    [
        ("done", 0, "", 0, None),
        ("failed", 7, "exit", 7, None),
        ("failed", 125, "exit", 125, None),
        ("failed", 127, "not_found", 127, None),
        ("timed_out", 124, "timeout", 124, None),
        ("cancelled", 130, "cancelled", 130, None),
        ("failed", None, "unreachable", 125, Unreachable),
        ("failed", None, "checkout", 125, OurFault),
        ("refused", None, "policy", 125, Refused),
        ("lost", None, "interrupted", 125, OurFault),
    ],
)
def test_exit_codes_are_the_commands_own_or_125(state: str, code: int | None, reason: str, exit_code: int, fault: type | None):
    task = ended(TASK, state, 5, exit_code=code, reason=reason, detail="why")
    assert exit_code_of(task) == exit_code
    assert (None if fault is None else fault) == (None if fault_of(task) is None else type(fault_of(task)))


def test_a_report_carries_what_is_known():
    report = report_of(ended(TASK, "failed", 5, exit_code=3, reason="exit"))
    assert (report.state, report.exit_code, report.hops[-1]) == (STATES.index("failed"), 3, Hop(7, 5))
