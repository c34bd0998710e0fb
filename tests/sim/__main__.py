"""Run worlds: ``python -m tests.sim --seed 17``, ``python -m tests.sim --seeds 2000 --jobs 2``, ``--mutants``."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.sim.mutants import MUTANTS
from tests.sim.plan import CHAOS_S, Plan, make_plan
from tests.sim.shrink import shrink, told
from tests.sim.world import Outcome, play

QUICK_S = 45.0
MUTANT_SEEDS = 40


def _plan(seed: int, options: argparse.Namespace) -> Plan:
    return make_plan(seed, chaos_s=options.chaos)


def replay(seed: int, options: argparse.Namespace) -> str:
    """Write the one command that runs a seed again."""
    return f"PYTHONHASHSEED=0 python -m tests.sim --seed {seed} --chaos {options.chaos:g}"


def _one(work: tuple[int, argparse.Namespace]) -> tuple[int, Outcome]:
    seed, options = work
    return seed, play(_plan(seed, options))


def run_seeds(options: argparse.Namespace) -> int:
    """Run many seeds; returns how many failed."""
    seeds = range(options.first, options.first + options.seeds)
    started, failed, done, simulated = time.monotonic(), [], 0, 0.0
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for seed, outcome in pool.imap_unordered(_one, [(seed, options) for seed in seeds], chunksize=4):
            done += 1
            simulated += outcome.simulated_s
            if outcome.wrong:
                failed.append(seed)
                print(f"seed {seed}: {outcome.wrong}\n  again: {replay(seed, options)}", flush=True)
            elif done % 100 == 0:
                print(f"{done} seeds, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{done} seeds, {len(failed)} failed, {simulated / 3600:.1f} simulated hours in {time.monotonic() - started:.0f} s")
    return len(failed)


def run_one(options: argparse.Namespace) -> int:
    """Run one seed; a failing one is shrunk and shown."""
    plan = _plan(options.seed, options)
    outcome = play(plan)
    print(f"seed {options.seed}: {outcome.wrong or 'every invariant holds'}; level {outcome.level_s:.0f} s after healing; "
          f"{outcome.messages} messages in {outcome.simulated_s:.0f} s; trace {outcome.digest}")  # fmt: skip
    if outcome.wrong and options.shrink:
        print(told(*shrink(plan, play, seconds=options.shrink)))
    return bool(outcome.wrong)


def caught(name: str, chaos_s: float, seeds: int = MUTANT_SEEDS) -> tuple[int, str] | None:
    """Say at which seed a planted bug is noticed, and how; None where it is not."""
    mutant, _ = MUTANTS[name]
    for seed in range(seeds):
        outcome = play(make_plan(seed, chaos_s=chaos_s), mutant())
        if outcome.wrong:
            return seed, outcome.wrong
    return None


def run_mutants(options: argparse.Namespace) -> int:
    """Print the table of planted bugs."""
    missed = 0
    for name, (mutant, expected) in MUTANTS.items():
        found = caught(name, options.chaos)
        missed += found is None
        summary = (mutant.__doc__ or "").strip()
        print(f"| {name} | {summary} | {expected} | {'not noticed' if found is None else f'seed {found[0]}: {found[1][:90]}'} |", flush=True)
    return missed


def main() -> int:
    """Read the arguments and do it."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed, and shrink it where it fails")
    parser.add_argument("--seeds", type=int, default=50, help="run so many seeds")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--chaos", type=float, default=QUICK_S, help=f"seconds of faults, on the world's clock; a long world has {CHAOS_S:g}")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="S", help="real seconds to spend on shrinking")
    parser.add_argument("--mutants", action="store_true", help="show which invariant notices each planted bug")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of a set of bytes follows the hash seed; one that is fixed makes a run the same in every process.
        os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    if options.mutants:
        return run_mutants(options)
    return run_one(options) if options.seed is not None else run_seeds(options)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
