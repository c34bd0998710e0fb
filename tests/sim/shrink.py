"""Make a failing world smaller: fewer events, a shorter time, fewer machines, as long as the same invariant fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from tests.sim.plan import Plan
from tests.sim.world import Outcome

Play = Callable[[Plan], Outcome]


def shrink(plan: Plan, play: Play, *, seconds: float = 60.0) -> tuple[Plan, Outcome]:
    """Shrink a failing plan.

    Args:
        plan: It fails.
        play: Runs one.
        seconds: Of real time to spend at most.

    Returns:
        The smallest plan found that fails by the same invariant, and what became of it.
    """
    end = time.monotonic() + seconds
    last = play(plan)
    name = last.wrong.partition(":")[0]
    assert name, "only a failing plan can be shrunk"

    def attempt(smaller: Plan) -> bool:
        nonlocal plan, last
        if time.monotonic() > end or smaller == plan:
            return False
        found = play(smaller)
        if found.wrong.partition(":")[0] != name:
            return False
        plan, last = smaller, found
        return True

    late = tuple(e for e in plan.events if e.at_s <= last.simulated_s)
    attempt(replace(plan, events=late))
    size = max(1, len(plan.events) // 2)
    while size and time.monotonic() < end:
        start = 0
        while start < len(plan.events):
            if not attempt(plan.without(*range(start, min(start + size, len(plan.events))))):
                start += size
        size //= 2
    for shorter in (0.25, 0.5, 0.75):
        attempt(replace(plan, chaos_s=max(plan.chaos_s * shorter, 1.0)))
    while plan.nodes > 2 and attempt(replace(plan, nodes=plan.nodes - 1)):
        pass
    return plan, last


def told(plan: Plan, outcome: Outcome) -> str:
    """Write down a failing plan and the end of its trace."""
    events = "\n".join(f"  {event}" for event in plan.events)
    trace = "\n".join(f"  {line}" for line in outcome.trace[-60:])
    who = f"{plan.nodes} machines{', the last one hostile' if plan.hostile else ''}, {plan.chaos_s:g} s"
    return f"{outcome.wrong}\nshrunk to {who}, {len(plan.events)} events:\n{events}\nthe end of its trace:\n{trace}"
