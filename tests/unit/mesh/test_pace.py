"""Payload sizes follow the line; liveness follows what is heard, through sleep and set clocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mesh.base.clock import Now
from mesh.frames import PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN
from mesh.pace import (
    BUDGET_BYTES_MAX,
    BUDGET_BYTES_MIN,
    HOLD_S,
    LAG_S,
    QUIET_FAR_S,
    QUIET_S,
    SILENT_S,
    TICK_S,
    WRITE_S,
    Liveness,
    PayloadBudget,
    Verdict,
)


def test_a_slow_line_gets_small_payloads() -> None:
    budget = PayloadBudget()
    rate = 1_250_000
    for _ in range(20):
        budget.sent(budget.bytes_max, budget.bytes_max / rate)
    assert 0.5 * HOLD_S * rate < budget.bytes_max < 1.5 * HOLD_S * rate


def test_a_fast_line_gets_large_ones_and_small_talk_says_nothing() -> None:
    budget = PayloadBudget()
    budget.sent(200, 3.0)
    before = budget.bytes_max
    for _ in range(20):
        budget.sent(budget.bytes_max, 1e-4)
    assert budget.bytes_max == BUDGET_BYTES_MAX > before


@given(st.lists(st.tuples(st.integers(0, BUDGET_BYTES_MAX), st.floats(0, 1000)), max_size=50))
def test_the_budget_stays_in_bounds(sends: list[tuple[int, float]]) -> None:
    budget = PayloadBudget()
    for size, took_s in sends:
        budget.sent(size, took_s)
        assert BUDGET_BYTES_MIN <= budget.bytes_max <= BUDGET_BYTES_MAX


def test_the_multiplexer_takes_every_budget() -> None:
    assert PAYLOAD_BYTES_MIN <= BUDGET_BYTES_MIN
    assert BUDGET_BYTES_MAX <= PAYLOAD_BYTES_MAX


class Peer:
    """Ticks a Liveness with both clocks in step."""

    def __init__(self, *, initiator: bool = True) -> None:
        self.now = Now(1_000_000_000, 500.0)
        self.liveness = Liveness(self.now, initiator=initiator)

    def tick(
        self,
        seconds: float = TICK_S,
        *,
        heard: bool = False,
        arriving: bool = False,
        writing_s: float = 0,
        wall_s: float | None = None,
    ) -> Verdict:
        wall_ms = self.now.wall_ms + int((seconds if wall_s is None else wall_s) * 1000)
        self.now = Now(wall_ms, self.now.steady_s + seconds)
        return self.liveness.tick(self.now, heard=heard, arriving=arriving, writing_s=writing_s)


def test_a_talking_peer_is_not_asked() -> None:
    peer = Peer()
    assert {peer.tick(heard=True) for _ in range(60)} == {Verdict.REST}


def test_a_quiet_link_costs_one_question_in_three_ticks_by_the_side_that_dialled() -> None:
    """The question is a sign of life for the other side, which does not ask by itself."""
    near, far = Peer(), Peer(initiator=False)
    asked = False
    asks = 0
    for _ in range(60):
        asked, was = near.tick(heard=asked) is Verdict.PING, asked
        asks += asked
        assert far.tick(heard=was) is Verdict.REST
    assert asks == 60 / (QUIET_S + TICK_S)


def test_a_silent_peer_is_asked_once_and_gone_within_7_s_on_both_sides() -> None:
    """O-T4: half-open after sleep of the other side, a pulled cable, dropped packets."""
    for initiator, quiet_s in ((True, QUIET_S), (False, QUIET_FAR_S)):
        peer = Peer(initiator=initiator)
        peer.tick(heard=True)
        verdicts = []
        while Verdict.SILENT not in verdicts:
            verdicts.append(peer.tick())
        assert len(verdicts) * TICK_S == SILENT_S <= 7 - TICK_S
        assert [n * TICK_S >= quiet_s for n, verdict in enumerate(verdicts, 1) if verdict is Verdict.PING] == [True]


def test_a_payload_on_its_way_is_a_sign_of_life_but_not_for_ever() -> None:
    """O-T9: a peer on a slow line stays; one that never ends a payload does not."""
    peer = Peer()
    ticks = 1
    while peer.tick(arriving=True) is not Verdict.SILENT:
        ticks += 1
    assert WRITE_S <= ticks * TICK_S <= WRITE_S + SILENT_S + TICK_S


def test_waking_asks_at_once_and_gives_the_peer_time_to_answer() -> None:
    """O-T4: this machine slept, or its loop was held up; its own silence says nothing."""
    for away_s in (300, SILENT_S + 1, TICK_S + LAG_S + 0.1):
        peer = Peer()
        assert peer.tick(away_s) is Verdict.PING
        verdicts = [peer.tick() for _ in range(int(SILENT_S / TICK_S))]
        assert verdicts[-1] is Verdict.SILENT
        assert Verdict.SILENT not in verdicts[:-1]

        peer = Peer()
        assert peer.tick(away_s) is Verdict.PING
        assert all(peer.tick(heard=True) is Verdict.REST for _ in range(20))


def test_a_wall_clock_that_jumps_causes_a_probe_only() -> None:
    for wall_s in (3600, -3600):
        peer = Peer()
        assert peer.tick(heard=True, wall_s=wall_s) is Verdict.PING
        assert all(peer.tick(heard=True) is not Verdict.SILENT for _ in range(20))


def test_a_peer_that_does_not_take_what_we_send_is_too_slow() -> None:
    """O-T9: it may talk as much as it likes."""
    peer = Peer()
    assert peer.tick(heard=True, writing_s=WRITE_S - 1) is Verdict.REST
    assert peer.tick(heard=True, writing_s=WRITE_S) is Verdict.TOO_SLOW
