"""When to dial, and which of two links stays."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.names import NodeId
from mesh.topology import (
    ADDRESS_BACKOFF_S_MAX,
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    SIGHTING_S_MIN,
    STEADY_LINK_S,
    YOUNG_LINK_S,
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
