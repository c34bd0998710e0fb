"""Planted bugs: each breaks one promise of the product, and some invariant must notice."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import trio

from mesh import kinds, overlay, reconcile, records, store
from mesh.base.crypto import digest
from mesh.members import Members
from tests.sim.clockwork import replaced
from tests.sim.desk import Desk

Mutant = Callable[[], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def no_quota() -> Iterator[None]:
    """The store keeps whatever an author sends."""
    really = store.rule_of
    with replaced((store, "rule_of", lambda kind: dataclasses.replace(really(kind), quota=10_000))):
        yield


def no_salt() -> contextlib.AbstractContextManager[Any]:
    """Comparisons are not salted."""
    return replaced((reconcile, "lane_digest", lambda salt, ids: digest(b"".join(ids), size=16, person=b"hivemesh-lanes")))


@contextlib.contextmanager
def expelled_linked() -> Iterator[None]:
    """An expelled machine's link stays, and it may come back."""
    check = Members.check_untrusted

    def lax(self: Members, chain: Any, **more: Any) -> Any:
        held, self.expelled_lineages = self.expelled_lineages, set()
        try:
            return check(self, chain, **more)
        finally:
            self.expelled_lineages = held

    async def run_standing(self: Any) -> None:
        await trio.sleep_forever()

    with replaced((Members, "check_untrusted", lax), (overlay.Overlay, "_run_standing", run_standing)):
        yield


def expired_linked() -> contextlib.AbstractContextManager[Any]:
    """A link by an expired certificate carries everything."""
    return replaced((overlay.Overlay, "_reduced", lambda self, link: ""))


@contextlib.contextmanager
def unsigned() -> Iterator[None]:
    """Records are not checked for their signature."""
    with replaced((records, "verify", lambda *_: True)):
        yield


@contextlib.contextmanager
def future_stored() -> Iterator[None]:
    """A record of the far future is stored at once."""
    with replaced((records, "FUTURE_MS_MAX", 1 << 50)):
        yield


@contextlib.contextmanager
def terminal_by_clock() -> Iterator[None]:
    """Whether a revocation counts is judged by its author's clock."""
    before = dict(kinds.KINDS)
    for number in (kinds.EXPULSION, kinds.GRANT_REVOCATION):
        kinds.KINDS[number] = dataclasses.replace(before[number], terminal=False)
    try:
        yield
    finally:
        kinds.KINDS.update(before)


@contextlib.contextmanager
def use_not_spent() -> Iterator[None]:
    """The use of an invite is not counted in the transaction that stores the certificate."""

    def spend(connection: Any, invite_id: bytes, certificate: Any, now_ms: int) -> bool:
        return store.put_record(connection, certificate, now_ms)

    with replaced((store, "spend_invite", spend)):
        yield


@contextlib.contextmanager
def started_before_stored() -> Iterator[None]:
    """A task is spawned before the disk holds that it is."""
    from node.tasks.delegation import SlotFree

    async def start(self: Any, key: Any) -> None:
        self.spawn(key)
        step = await self._advance(key, SlotFree())
        if step.actions:
            self._machine.nursery.start_soon(self._see_through, key)

    with replaced((Desk, "start", start)):
        yield


@contextlib.contextmanager
def no_comparison() -> Iterator[None]:
    """What a push did not bring is never asked for."""

    def on_digests(self: Any, message: Any) -> list[Any]:
        self._complete.update(reconcile.LANES)
        return []

    with replaced((reconcile.Reconciler, "on_digests", on_digests)):
        yield


@contextlib.contextmanager
def in_the_clear() -> Iterator[None]:
    """Bodies for one person's machines are not sealed, and links do not encrypt."""
    from mesh import sealing
    from mesh.base.codec import encode
    from mesh.schemas import SealedBody

    def seal(self: Any, plain: bytes) -> bytes:
        return encode(SealedBody(0, plain.ljust(40, b"\0")))

    with replaced((sealing.FleetSealer, "seal", seal)):
        yield


def malformed_escapes() -> contextlib.AbstractContextManager[Any]:
    """A malformed message ends the node and not only its own link."""
    from mesh import exchange

    return replaced((exchange, "Malformed", ZeroDivisionError))


MUTANTS: dict[str, tuple[Mutant, str]] = {
    "no_quota": (no_quota, "I9"),
    "no_salt": (no_salt, "I6"),
    "expelled_linked": (expelled_linked, "I4"),
    "expired_linked": (expired_linked, "I1"),
    "unsigned": (unsigned, "I1"),
    "future_stored": (future_stored, "I9"),
    "terminal_by_clock": (terminal_by_clock, "I10"),
    "use_not_spent": (use_not_spent, "I7"),
    "started_before_stored": (started_before_stored, "I5"),
    "no_comparison": (no_comparison, "I2"),
    "in_the_clear": (in_the_clear, "I11"),
    "malformed_escapes": (malformed_escapes, "I0"),
}
"""Each planted bug and the invariant that is expected to notice it first."""
