"""When to dial, and which of two links stays."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.names import NodeId
from mesh.topology import (
    ACCEPTED_KEPT_MAX,
    ACCEPTED_MAX,
    ACCEPTED_S,
    ADDRESS_BACKOFF_S_MAX,
    ADDRESS_BACKOFF_S_MIN,
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    SIGHTED_FAILURES_MAX,
    SIGHTING_S_MIN,
    STEADY_LINK_S,
    YOUNG_LINK_S,
    Allowance,
    Arrivals,
    LinkFacts,
    Schedule,
    dialable,
    newer_wins,
)

A, B = NodeId(b"a" * 16), NodeId(b"b" * 16)


def test_a_first_try_is_due_and_each_failure_waits_longer_up_to_a_ceiling():
    schedule = Schedule()
    assert schedule.may_dial(A, 0.0)
    ceilings = [schedule.failed(A, 0.0, 0.999_999) for _ in range(40)]
    assert ceilings == sorted(ceilings)
    assert ceilings[0] == pytest.approx(1.5 * BACKOFF_S_MIN, abs=1e-3)
    assert ceilings[-1] == pytest.approx(BACKOFF_S_MAX + BACKOFF_S_MIN / 2, abs=1e-3)
    assert not schedule.may_dial(A, ceilings[-1] - 1)
    assert schedule.may_dial(A, ceilings[-1])
    assert schedule.may_dial(B, 0.0), "one machine's failures are not another's"


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_zero_or_above_the_ceiling(failures: int, draw: float):
    """O-T8: full jitter, so a herd spreads; never a busy loop."""
    schedule = Schedule(backoff_s_max=ADDRESS_BACKOFF_S_MAX)
    pauses = [schedule.failed(A, 100.0, draw) for _ in range(failures)]
    assert all(BACKOFF_S_MIN / 2 <= pause <= ADDRESS_BACKOFF_S_MAX + BACKOFF_S_MIN for pause in pauses)


def test_a_herd_of_redials_spreads_over_the_pause():
    """O-T8: 100 machines that lose the same one at once do not come back at once."""
    due = []
    for number in range(100):
        schedule = Schedule()
        for _ in range(6):
            schedule.failed(A, 0.0, number / 100)
        due.append(schedule.failed(A, 0.0, number / 100))
    assert max(due) - min(due) > 20
    assert max(sum(second <= d < second + 1 for d in due) for second in range(70)) <= 5


def test_a_short_link_counts_as_a_failure_and_a_long_one_clears_the_record():
    schedule = Schedule()
    for _ in range(5):
        schedule.lived(A, STEADY_LINK_S - 1, 0.0, 0.9)
    assert not schedule.may_dial(A, 1.0)
    schedule.lived(A, STEADY_LINK_S, 0.0, 0.9)
    assert schedule.may_dial(A, 0.0)
    assert schedule.failed(A, 0.0, 0.5) < 1


def test_a_sighting_brings_a_try_forward_but_not_in_a_loop():
    schedule = Schedule()
    for _ in range(10):
        schedule.failed(A, 0.0, 0.9)
    schedule.sighted(A, 1.0)
    assert schedule.may_dial(A, 1.0)
    schedule.failed(A, 1.0, 0.9)
    schedule.sighted(A, 1.0 + SIGHTING_S_MIN - 0.1)
    assert not schedule.may_dial(A, 1.0 + SIGHTING_S_MIN - 0.1)
    schedule.sighted(A, 1.0 + SIGHTING_S_MIN)
    assert schedule.may_dial(A, 1.0 + SIGHTING_S_MIN)
    schedule.sighted(B, 0.0)
    assert schedule.may_dial(B, 0.0)


def test_a_liars_addresses_do_not_grow_the_schedule():
    """SECURITY 31: bounded, and what is due last is kept longest."""
    schedule = Schedule(kept_max=10, backoff_s_max=ADDRESS_BACKOFF_S_MAX)
    for _ in range(30):
        schedule.failed("victim", 0.0, 0.9)
    for number in range(1000):
        schedule.failed(("liar", number), float(number), 0.5)
    assert len(schedule._tries) == 10
    assert not schedule.may_dial("victim", 1000.0)
    schedule.failed(("liar", 999), 1000.0, 0.5)
    assert len(schedule._tries) == 10


def facts(boot: bytes = b"boot", *, mine: bool, age_s: float = 0.0) -> LinkFacts:
    return LinkFacts(boot, mine, age_s)


@pytest.mark.parametrize(("me", "peer"), [(A, B), (B, A)])
@pytest.mark.parametrize(
    ("held", "fresh"),
    [
        (facts(mine=True), facts(mine=True)),
        (facts(mine=False), facts(mine=False)),
        (facts(mine=True, age_s=YOUNG_LINK_S), facts(mine=False)),
        (facts(b"old", mine=True), facts(b"new", mine=False)),
    ],
)
def test_a_quick_redial_replaces_the_old_link_at_once(me: NodeId, peer: NodeId, held: LinkFacts, fresh: LinkFacts):
    """O-T6: a changed address, a restart, or an old link is never refused as a duplicate."""
    assert newer_wins(me, peer, held, fresh)


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16), st.booleans(), st.booleans())
def test_two_machines_that_dial_each_other_keep_the_same_link(a: bytes, b: bytes, a_saw_its_own_first: bool, b_saw_its_own_first: bool):
    """Whatever each side saw first, one link stays, the same on both."""
    if a == b:
        return
    kept = set()
    for me, peer, own_first in ((a, b, a_saw_its_own_first), (b, a, b_saw_its_own_first)):
        held, fresh = facts(mine=own_first), facts(mine=not own_first)
        stays = fresh if newer_wins(NodeId(me), NodeId(peer), held, fresh) else held
        kept.add(me if stays.dialled_by_me else peer)
    assert kept == {min(a, b)}


def test_the_rule_is_total():
    for me, held_mine, fresh_mine, age_s, boot in itertools.product((A, B), (True, False), (True, False), (0.0, 99.0), (b"x", b"y")):
        assert newer_wins(me, B if me == A else A, facts(mine=held_mine, age_s=age_s), facts(boot, mine=fresh_mine)) in (True, False)


PUBLIC = ["192.0.2.7:9847", "[2001:db8::1]:9847", "100.64.1.2:1", "10.0.0.5:9847", "mini.tail.example:9847", "mini:9847"]
HERE = ["127.0.0.1:6379", "127.9.9.9:1", "[::1]:1", "localhost:1", "LOCALHOST:1", "localhost.:1", "db.localhost:1",
        "[::ffff:127.0.0.1]:1", "[::ffff:7f00:1]:1"]  # fmt: skip
NOWHERE = ["169.254.169.254:80", "[fe80::1]:9847", "[fe80::1%0]:9847", "224.0.0.251:5353", "[ff02::fb]:5353", "0.0.0.0:1",
           "[::]:1", "[::ffff:169.254.169.254]:80", "[::ffff:0.0.0.0]:1", "255.255.255.255:1"]  # fmt: skip
TRICKS = ["127.1:6379", "2130706433:6379", "0x7f000001:6379", "0177.0.0.1:6379", "0x7f.1:1", "127.0.0.1.:1", "0:1", ":9847", "9847", "", "[]:1"]


@pytest.mark.parametrize("address", PUBLIC)
def test_another_machines_address_may_be_dialled(address: str):
    assert dialable(address, loopback=False)
    assert dialable(address, loopback=True)


@pytest.mark.parametrize("address", HERE)
def test_loopback_from_the_wire_is_dialled_only_by_a_node_that_lives_there(address: str):
    """SECURITY 31: a member cannot make a fleet knock at its own databases."""
    assert not dialable(address, loopback=False)
    assert dialable(address, loopback=True)


@pytest.mark.parametrize("address", NOWHERE + TRICKS)
def test_addresses_that_mean_something_else_here_are_never_dialled(address: str):
    """SECURITY 31: multicast, link-local, unspecified, and the spellings of numbers that only a resolver reads."""
    assert not dialable(address, loopback=False)


@given(st.text(max_size=40) | st.sampled_from(HERE + NOWHERE + TRICKS).flatmap(lambda a: st.integers(0, len(a)).map(lambda n: a[:n])))
def test_any_text_is_dialable_or_not(address: str):
    assert dialable(address, loopback=False) <= dialable(address, loopback=True)


@pytest.mark.parametrize("address", ["203.0.113.7:9847", "192.0.2.1:1"])
def test_documentation_and_private_addresses_are_not_of_the_open_internet(address: str):
    assert dialable(address, loopback=False, public=False)


@pytest.mark.parametrize("address", ["8.8.8.8:53", "[2606:4700::1111]:443", "[::ffff:8.8.8.8]:53"])
def test_an_address_of_the_open_internet_is_dialled_on_the_word_of_ones_own_machines_only(address: str):
    """SECURITY 31."""
    assert dialable(address, loopback=False, public=True)
    assert not dialable(address, loopback=False, public=False)


def test_an_announcement_brings_a_try_forward_until_it_has_failed_too_often():
    schedule = Schedule(backoff_s_min=ADDRESS_BACKOFF_S_MIN, backoff_s_max=ADDRESS_BACKOFF_S_MAX)
    now_s = 0.0
    for _ in range(SIGHTED_FAILURES_MAX):
        schedule.announced("there", now_s)
        assert schedule.may_dial("there", now_s)
        schedule.failed("there", now_s, 0.99)
        now_s += SIGHTING_S_MIN
    for _ in range(8):
        schedule.failed("there", now_s, 0.99)
    schedule.announced("there", now_s + SIGHTING_S_MIN)
    assert not schedule.may_dial("there", now_s + SIGHTING_S_MIN)
    schedule.proved("there")
    assert schedule.may_dial("there", now_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_machines_that_are_told_one_sink_leave_it_in_peace_after_five_minutes(seed: int):
    """SECURITY 31: the liar announces it again all the time; in total less than one connection a second."""
    chance = random.Random(seed)
    machines = [Schedule(backoff_s_min=ADDRESS_BACKOFF_S_MIN, backoff_s_max=ADDRESS_BACKOFF_S_MAX) for _ in range(100)]
    looks = [(chance.random(), number) for number in range(100)]
    heapq.heapify(looks)
    tries: list[float] = []
    while looks[0][0] < 900:
        now_s, number = heapq.heappop(looks)
        schedule = machines[number]
        schedule.announced("sink", now_s)
        if schedule.may_dial("sink", now_s):
            tries.append(now_s)
            schedule.failed("sink", now_s, chance.random())
        heapq.heappush(looks, (now_s + 1, number))
    assert sum(tried >= 300 for tried in tries) / 600 < 1
    assert len(tries) < 100 * 20


def test_an_allowance_gives_a_burst_and_then_so_many_a_second():
    allowance = Allowance(3, 0.5, 0.0)
    assert [allowance.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.wait_s(0.0) == pytest.approx(2)
    assert not allowance.take(1.9)
    assert allowance.take(2.0)
    assert [allowance.take(1000.0) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(1, 5), st.floats(0.1, 10))
def test_no_more_than_the_allowance_is_ever_taken(gaps: list[float], burst: int, a_second: float):
    allowance, now_s, taken = Allowance(burst, a_second, 0.0), 0.0, 0
    for gap in gaps:
        now_s += gap
        taken += allowance.take(now_s)
        assert taken <= burst + now_s * a_second + 1e-3


def test_a_machine_is_let_in_six_times_a_minute_whatever_becomes_of_its_links():
    """SECURITY 21."""
    arrivals = Arrivals()
    assert [arrivals.let_in(A, float(second)) for second in range(8)] == [True] * ACCEPTED_MAX + [False] * 2
    assert arrivals.let_in(B, 8.0)
    assert arrivals.let_in(A, ACCEPTED_S)
    assert not arrivals.let_in(A, ACCEPTED_S)
    for number in range(2 * ACCEPTED_KEPT_MAX):
        arrivals.let_in(NodeId(number.to_bytes(16, "big")), 100.0)
    assert len(arrivals._at_s) == ACCEPTED_KEPT_MAX


@pytest.mark.parametrize("seed", range(5))
def test_thirty_machines_come_back_to_a_hub_without_a_herd(seed: int):
    """O-T8: the hub is away for three minutes; no second holds a fifth of the tries, and all are back in ninety."""
    chance = random.Random(seed)
    looks = [(chance.random(), number) for number in range(30)]
    heapq.heapify(looks)
    machines, tries, back = [Schedule() for _ in range(30)], [], {}
    for schedule in machines:
        schedule.lived(A, STEADY_LINK_S + 1, 0.0, chance.random())
    while looks:
        now_s, number = heapq.heappop(looks)
        if machines[number].may_dial(A, now_s):
            tries.append(int(now_s))
            if now_s >= 180:
                back[number] = now_s
                continue
            machines[number].failed(A, now_s, chance.random())
        heapq.heappush(looks, (now_s + 1, number))
    assert max(back.values()) - 180 <= 90
    assert max(tries.count(second) for second in set(tries)) <= len(tries) / 5
