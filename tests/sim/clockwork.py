"""One seed makes everything: the order of tasks, both clocks of every machine, all randomness.

The real shells run under trio's scheduler with its dice seeded and its clock jumping ahead whenever everybody waits.
Whichever machine's task reads a clock or draws randomness gets its own machine's: the machine travels in a context
variable that tasks inherit. Threads are never used: under a jumping clock a thread looks idle and time would run away.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import hashlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import trio
from trio.testing import MockClock

from mesh import records
from mesh.base import clock, codec, crypto
from mesh.base.clock import Now

EPOCH_MS = 1_800_000_000_000
"""When every world begins."""


class Host(Protocol):
    """What the clockwork asks of the machine whose task runs now."""

    def now(self) -> Now:
        """Both clocks, as this machine believes."""
        ...

    def entropy(self, count: int) -> bytes:
        """This machine's randomness."""
        ...


HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


class Drawn:
    """Randomness that can be drawn again: a hash in counter mode over a seed."""

    def __init__(self, *seed: object) -> None:
        self._seed = hashlib.blake2b(repr(seed).encode()).digest()
        self._count = 0

    def __call__(self, count: int) -> bytes:
        out = b""
        while len(out) < count:
            self._count += 1
            out += hashlib.blake2b(self._count.to_bytes(8, "big"), key=self._seed).digest()
        return out[:count]


def dice(*seed: object) -> random.Random:
    """Make a random generator of one purpose, so that taking one fault away leaves every other draw as it was."""
    return random.Random(repr(seed))


def _time_ns() -> int:
    host = HOST.get()
    return time.time_ns() if host is None else host.now().wall_ms * 1_000_000


def _clock_gettime(which: int) -> float:
    host = HOST.get()
    return time.clock_gettime(which) if host is None else host.now().steady_s


_token_bytes = secrets.token_bytes


def _drawn_bytes(count: int | None = None) -> bytes:
    host = HOST.get()
    return _token_bytes(count) if host is None else host.entropy(32 if count is None else count)


class Memory:
    """Signatures checked once a world: every node checks the same certificates and records, with the same outcome."""

    def __init__(self, really: Callable[..., bool]) -> None:
        self._really = really
        self._known: dict[tuple[bytes, ...], bool] = {}
        self.asked = 0

    def verify(self, public_key: bytes, context: Any, mesh: bytes, data: bytes, signature: bytes) -> bool:
        self.asked += 1
        key = (public_key, context.value.encode(), mesh, data, signature)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._really(public_key, context, mesh, data, signature)
        return found


@contextlib.contextmanager
def replaced(*what: tuple[object, str, object]) -> Iterator[None]:
    """Replace attributes for a block, and put the old ones back in the opposite order."""
    old = []
    try:
        for owner, name, value in what:
            old.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(old):
            setattr(owner, name, value)


@contextlib.contextmanager
def everywhere(really: object, instead: object, packages: tuple[str, ...] = ("mesh", "node")) -> Iterator[None]:
    """Replace a function in every room that imported it by name."""
    import sys

    rooms = [m for n, m in sorted(sys.modules.items()) if n.partition(".")[0] in packages]
    spots = [(room, name) for room in rooms for name, held in sorted(vars(room).items()) if held is really]
    with replaced(*((room, name, instead) for room, name in spots)):
        yield


def run(seed: int, main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a world to its end; the same seed and the same world give the same run."""
    core: Any = trio._core._run
    shim = SimpleNamespace(
        time_ns=_time_ns,
        clock_gettime=_clock_gettime,
        CLOCK_MONOTONIC=time.CLOCK_MONOTONIC,
        CLOCK_BOOTTIME=getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC),
    )
    memory = Memory(crypto.verify)
    dice_before = core._r.getstate()
    collecting = gc.isenabled()
    gc.disable()  # A collection may run a generator's clean-up at a moment that no seed decides.
    try:
        with (
            replaced((core, "_ALLOW_DETERMINISTIC_SCHEDULING", True), (clock, "time", shim), (secrets, "token_bytes", _drawn_bytes)),
            everywhere(crypto.verify, memory.verify),
            everywhere(records.parse_untrusted, functools.lru_cache(maxsize=None)(records.parse_untrusted)),
            everywhere(codec.decode_untrusted, functools.lru_cache(maxsize=20_000)(codec.decode_untrusted)),
        ):
            core._r.seed(seed)
            return trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        core._r.setstate(dice_before)
        if collecting:
            gc.enable()

