"""What happens in one world: a list of events made from its seed, which can be shortened and run again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.sim.clockwork import dice

NODES = (5, 8)
CHAOS_S = 900.0
CALM_S = 20.0
"""From the start of the world to the first fault: everybody has joined by then."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens.

    Attributes:
        at_s: When, on the world's clock.
        what: A method of ``tests.sim.happenings.Happenings``.
        args: Numbers; machines are numbers too, counted modulo how many there are.
    """

    at_s: float
    what: str
    args: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_s:8.2f} {self.what} {' '.join(f'{a:g}' for a in self.args)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One world.

    Attributes:
        hostile: Whether the last machine breaks the protocol.
        short_lived: Whether the second machine's certificate runs out in the middle.
        chaos_s: How long faults happen; then everything is mended.
        slower: By how much heartbeats are slowed against the product, so that a long time costs little.
    """

    seed: int
    nodes: int
    hostile: bool
    short_lived: bool
    chaos_s: float
    slower: float
    events: tuple[Event, ...]

    def without(self, *numbers: int) -> Plan:
        """Leave out some events."""
        gone = set(numbers)
        return replace(self, events=tuple(e for i, e in enumerate(self.events) if i not in gone))


FAULTS = ("cut", "cut_one_way", "reset", "kill", "power", "crash", "full", "slow", "lossy", "sleep", "step", "restore")
WORK = ("session", "lesson", "withdraw", "grant", "revoke", "late_revoke", "task", "invite", "expel", "bulk")
WORK_WEIGHTS = (8, 8, 2, 2, 2, 1, 6, 2, 1, 1)
EVIL = ("equivocate", "flood", "future", "false_neighbours", "withhold", "stale", "stuff", "bomb")


def make_plan(seed: int, *, chaos_s: float = CHAOS_S, slower: float = 3.0) -> Plan:
    """Make the world of a seed."""
    draw = dice(seed, "plan")
    nodes = draw.randint(*NODES)
    hostile = draw.random() < 0.5
    events: list[Event] = []
    scale = chaos_s / CHAOS_S
    for _ in range(draw.randint(int(16 * scale) + 4, int(40 * scale) + 6)):
        events.append(_fault(draw, nodes, chaos_s))
    for _ in range(draw.randint(int(60 * scale) + 8, int(120 * scale) + 12)):
        events.append(_work(draw, nodes, chaos_s))
    if hostile:
        for _ in range(draw.randint(4, 10)):
            at = round(CALM_S + draw.random() * chaos_s, 2)
            events.append(Event(at, draw.choice(EVIL), (float(draw.randrange(1 << 16)),)))
    events.sort(key=lambda e: (e.at_s, e.what, e.args))
    return Plan(seed, nodes, hostile, draw.random() < 0.3, chaos_s, slower, tuple(events))


def _fault(draw: Random, nodes: int, chaos_s: float) -> Event:
    what = draw.choice(FAULTS)
    at = round(CALM_S + draw.random() * chaos_s * 0.9, 2)
    a, b = draw.sample(range(nodes), 2)
    lasts = round(2 + 118 * draw.random() ** 2, 1)
    match what:
        case "crash":
            args: tuple[float, ...] = (a, draw.randrange(6), draw.randrange(2), lasts / 4)
        case "step":
            args = (a, draw.choice((-7_200, -660, -30, 30, 660, 7_200, 100_000_000)), lasts)
        case "cut" | "cut_one_way" | "reset":
            args = (a, b, lasts)
        case _:
            args = (a, lasts)
    return Event(at, what, args)


def _work(draw: Random, nodes: int, chaos_s: float) -> Event:
    what = draw.choices(WORK, WORK_WEIGHTS)[0]
    at = round(CALM_S + draw.random() * chaos_s, 2)
    a, b = draw.sample(range(nodes), 2)
    return Event(at, what, (a, b, draw.randrange(12)))
