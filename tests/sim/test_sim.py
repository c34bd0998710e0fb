"""Worlds in the ordinary run: fifty short ones, the same seed twice, every planted bug by the first seed that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutants import MUTANTS
from tests.sim.plan import Plan, make_plan
from tests.sim.shrink import shrink
from tests.sim.world import play

ROOT = Path(__file__).parents[2]
CHAOS_S = 45.0
ORDINARY_CHAOS_S = 30.0
"""Seconds of faults of the fifty worlds in every run; two thousand longer ones run by ``--soak``."""
SEEDS = 50
SHOWN_BY = {
    "no_quota": 4,
    "no_salt": 0,
    "expelled_linked": 0,
    "expired_linked": 0,
    "unsigned": 1,
    "future_stored": 0,
    "terminal_by_clock": 3,
    "use_not_spent": 2,
    "started_before_stored": 2,
    "no_comparison": 0,
    "in_the_clear": 0,
    "malformed_escapes": 4,
}


def test_every_invariant_holds_in_fifty_worlds() -> None:
    """On both cores at once; a world that fails prints the command that plays it again."""
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(SEEDS), "--jobs", "2", "--chaos", f"{ORDINARY_CHAOS_S:g}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert f"{SEEDS} seeds, 0 failed" in run.stdout


FOUND = {
    94: "what an expelled machine had written into the control lane was kept by some and refused by others",
    147: "a link that formed while the expulsion of its peer arrived stood for ten seconds",
}
"""Seeds that showed a fault of the product, and which."""


@pytest.mark.parametrize("seed", FOUND)
def test_a_fault_that_a_seed_found_stays_mended(seed: int) -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", str(seed), "--chaos", f"{CHAOS_S:g}", "--shrink", "0"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@pytest.mark.soak
def test_the_same_seed_is_the_same_world_in_every_process() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seed", "3", "--chaos", "20"]
    runs = [subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    assert "trace" in runs[0].stdout
    other = make_plan(4, chaos_s=20.0)
    assert play(other).digest == play(other).digest != make_plan(3, chaos_s=20.0)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_is_noticed_by_its_invariant(name: str) -> None:
    mutant, expected = MUTANTS[name]
    outcome = play(make_plan(SHOWN_BY[name], chaos_s=CHAOS_S), mutant())
    assert outcome.wrong.partition(":")[0] == expected


@pytest.mark.soak
def test_a_failing_world_is_shrunk_to_what_it_needs() -> None:
    mutant, expected = MUTANTS["use_not_spent"]

    def failing(plan: Plan):
        return play(plan, mutant())

    plan = make_plan(SHOWN_BY["use_not_spent"], chaos_s=CHAOS_S)
    smaller, outcome = shrink(plan, failing, seconds=8.0)
    assert outcome.wrong.startswith(expected)
    assert len(smaller.events) < len(plan.events)
    assert any(event.what == "invite" for event in smaller.events)


@pytest.mark.soak
def test_two_thousand_worlds() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", "2000", "--jobs", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:]
