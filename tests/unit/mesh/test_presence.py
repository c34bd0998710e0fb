"""Who is live: the fixpoint over what every machine says of itself."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.clock import Now
from mesh.base.codec import encode
from mesh.base.names import NodeId
from mesh.kinds import rule_of
from mesh.presence import (
    FLAP_S,
    GATHER_S,
    GONE_PERIODS,
    JUMP_S,
    LINKS_MAX,
    LISTEN_S,
    LIVE_PERIODS,
    PERIOD_S_MIN,
    STEADY_S,
    TICK_S,
    Doubt,
    Flapping,
    Heard,
    Presence,
    keep_live,
    link_mark,
    links_stated,
    period_s,
    read_untrusted,
    states,
    states_link,
)
from mesh.records import Record
from mesh.speaking import BURSTS_A_PERIOD, PRESENCE_BURST
from mesh.topology import Allowance
from tests.fakes.meshes import Mesh
from tests.fakes.worlds import World

T = 30
NOW_S = 10_000.0


def ids(count: int) -> list[NodeId]:
    return [NodeId(number.to_bytes(16, "big")) for number in range(1, count + 1)]


def says(author: NodeId, links: list[NodeId] | set[NodeId], at_s: float = NOW_S, version: int = 1, period: int = T) -> Heard:
    marks = tuple(link_mark(author, other) for other in sorted(links))
    return Heard(Presence(bytes(8), period, "n", "1", (), marks, 0, 0), version, at_s)


ME, A, B, C, D = ids(5)


def judge(linked: set[NodeId], heard: dict[NodeId, Heard], members: list[NodeId] | None = None, now_s: float = NOW_S) -> dict[NodeId, str]:
    return states(ME, members or [ME, A, B, C, D], linked, heard, now_s)


def test_a_linked_machine_is_live_whatever_anybody_says():
    """O-G4: third parties never hide a machine that I hold a link with; nor does its own silence."""
    heard = {B: says(B, []), C: says(C, []), A: says(A, [], at_s=NOW_S - 10_000)}
    assert judge({A}, heard) == {A: "live", B: "stale", C: "stale", D: "gone"}
    assert judge({A}, {})[A] == "live"


def test_a_machine_behind_live_ones_is_live_as_far_as_links_are_stated():
    heard = {A: says(A, [ME, B]), B: says(B, [A, C]), C: says(C, [B]), D: says(D, [])}
    assert judge({A}, heard) == {A: "live", B: "live", C: "live", D: "stale"}


def test_a_link_one_end_denies_counts_by_who_was_heard_last():
    older, newer = NOW_S - 5, NOW_S
    assert judge({A}, {A: says(A, [B], older), B: says(B, [], newer)})[B] == "stale"
    assert judge({A}, {A: says(A, [], older), B: says(B, [A], newer)})[B] == "live"
    assert judge({A}, {A: says(A, [B], newer), B: says(B, [], older)})[B] == "live"
    assert judge({A}, {A: says(A, [], newer), B: says(B, [A], older)})[B] == "stale"


def test_one_word_is_enough_where_the_other_end_was_never_heard():
    assert judge({A}, {B: says(B, [A])})[B] == "live"
    assert judge({A}, {A: says(A, [B])})[B] == "gone", "a machine that never spoke is not live by hearsay"


def test_a_partition_is_stale_at_once_though_its_far_side_lists_itself():
    """SECURITY 20: least fixpoint: the far side does not keep itself live by listing each other."""
    heard = {A: says(A, []), B: says(B, [C, D]), C: says(C, [B, D]), D: says(D, [B, C])}
    assert judge({A}, heard) == {A: "live", B: "stale", C: "stale", D: "stale"}


def test_a_hub_with_many_links_keeps_all_its_neighbours_live():
    """SECURITY 20: neighbour lists that ended at eight made linked machines stale."""
    members = ids(LINKS_MAX + 2)
    hub, others = members[1], members[2:]
    heard = {hub: says(hub, [ME, *others[: LINKS_MAX - 1]], at_s=NOW_S - 20)}
    heard |= {other: says(other, [hub], at_s=NOW_S - 1) for other in others}
    assert set(states(ME, members, {hub}, heard, NOW_S).values()) == {"live"}


@pytest.mark.parametrize("liars", [1, 3])
def test_liars_keep_a_dead_machine_fresh_for_two_and_a_half_periods_at_most(liars: int):
    """SECURITY 20, O-G5."""
    members = ids(liars + 3)
    dead, bad = members[1], members[2:]
    heard = {liar: says(liar, [ME, dead, *bad], at_s=NOW_S) for liar in bad}
    for age_s, state in ((0.1, "live"), (LIVE_PERIODS * T, "live"), (LIVE_PERIODS * T + 0.1, "stale"), (GONE_PERIODS * T, "stale"), (GONE_PERIODS * T + 0.1, "gone")):
        heard[dead] = says(dead, [], at_s=NOW_S - age_s)
        assert states(ME, members, set(bad), heard, NOW_S)[dead] == state


def test_liars_never_make_a_machine_stale_that_an_honest_one_holds():
    """SECURITY 20: no claim of a third party takes anything away."""
    liars = [C, D]
    for lie in ([], [A], [B], [A, B], [ME]):
        heard = {A: says(A, [ME, B], at_s=NOW_S - 20), B: says(B, [A], at_s=NOW_S - 20)}
        heard |= {liar: says(liar, lie, at_s=NOW_S) for liar in liars}
        got = judge({A, C}, heard)
        assert (got[A], got[B]) == ("live", "live")


def test_who_was_never_heard_is_gone_and_long_periods_are_the_speakers_own():
    assert judge(set(), {}) == dict.fromkeys([A, B, C, D], "gone")
    slow = says(A, [], at_s=NOW_S - 1000, period=3600)
    assert judge(set(), {A: slow})[A] == "stale"
    assert judge(set(), {A: says(A, [], at_s=NOW_S - 301)})[A] == "gone"


def test_i_do_not_judge_myself_and_members_only_are_judged():
    heard = {ME: says(ME, [A]), A: says(A, [ME]), B: says(B, [A])}
    assert states(ME, [ME, A], {A, B}, heard, NOW_S) == {A: "live"}


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 14), st.randoms(use_true_random=False))
def test_when_everybody_is_honest_exactly_who_is_reachable_is_live(count: int, chance: random.Random):
    """SECURITY 20: zero falsely stale, on any graph, whatever the ages of honest presences within a period."""
    nodes = ids(count)
    me = nodes[0]
    edges = {frozenset(pair) for pair in ((a, b) for a in nodes for b in nodes if a < b) if chance.random() < 0.25}
    neighbours = {n: {m for m in nodes if frozenset((n, m)) in edges} for n in nodes}
    heard = {n: says(n, neighbours[n], at_s=NOW_S - chance.random() * LIVE_PERIODS * T) for n in nodes}
    reachable, todo = {me}, [me]
    while todo:
        for other in neighbours[todo.pop()] - reachable:
            reachable.add(other)
            todo.append(other)
    got = states(me, nodes, neighbours[me], heard, NOW_S)
    assert {n for n, state in got.items() if state == "live"} == reachable - {me}


@settings(max_examples=150, deadline=None)
@given(st.integers(3, 10), st.randoms(use_true_random=False))
def test_honest_links_keep_honest_machines_live_whatever_liars_say(count: int, chance: random.Random):
    nodes = ids(count)
    me, liars = nodes[0], set(nodes[count - count // 3 :])
    honest = [n for n in nodes if n not in liars]
    tree = [frozenset((honest[n], honest[chance.randrange(n)])) for n in range(1, len(honest))]
    neighbours = {n: {m for m in honest if frozenset((n, m)) in tree} for n in honest}
    heard = {n: says(n, neighbours[n] | set(chance.sample(sorted(liars), chance.randint(0, len(liars)))), NOW_S - 20) for n in honest}
    for liar in liars:
        heard[liar] = says(liar, chance.sample(nodes, chance.randint(0, count)), NOW_S - chance.choice([0, 60, 600]))
    linked = neighbours[me] | (liars if chance.random() < 0.5 else set())
    got = states(me, nodes, linked, heard, NOW_S)
    assert all(got[n] == "live" for n in honest if n != me)


# Whole meshes, by counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialable", [0.6, 0.3], ids=["40 % not dialable", "70 % not dialable"])
def test_nobody_is_falsely_stale_in_a_mesh_of_few_links_and_a_partition_is_seen_at_once(dialable: float):
    """SECURITY 20: every machine judges every other; then the mesh is cut and those at the cut say so once."""
    chance = random.Random(7)
    world = World(50, dialable, seed=7)
    world.settle(20)
    heard = {n: says(n, set(world.links[n]), at_s=NOW_S - chance.random() * T) for n in world.nodes}
    for me in world.nodes:
        reached = world.hops(me)
        got = states(me, world.nodes, world.links[me].keys(), heard, NOW_S)
        assert {n for n, state in got.items() if state != "live"} == set(world.nodes) - set(reached)
    near = set(world.nodes[:25])
    for node in world.nodes:
        lost = [peer for peer in world.links[node] if (peer in near) != (node in near)]
        for peer in lost:
            del world.links[node][peer]
        if lost and node in near:
            heard[node] = says(node, set(world.links[node]), at_s=NOW_S + GATHER_S)
    for me in near:
        got = states(me, world.nodes, world.links[me].keys(), heard, NOW_S + 2 * GATHER_S)
        assert {n for n, state in got.items() if state == "live"} == set(world.hops(me)) - {me}
        assert all(got[n] == "stale" for n in set(world.nodes) - near)


def test_a_thousand_machines_are_judged_in_a_moment():
    """The work is linear in the links: ten times the machines cost about ten times the calls, not a hundred times."""

    def calls(count: int) -> int:
        members = ids(count)
        rng = random.Random(count)
        links: dict[NodeId, set[NodeId]] = {n: set() for n in members}
        for number, node in enumerate(members):
            for other in [members[(number + 1) % count], *rng.sample(members, 3)]:
                links[node].add(other)
                links[other].add(node)
        heard = {n: says(n, links[n]) for n in members}
        counted = 0

        def count_one(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count_one)
        try:
            found = states(members[0], members, links[members[0]], heard, NOW_S)
        finally:
            sys.setprofile(None)
        assert set(found.values()) == {"live"}
        return counted

    assert calls(1000) < 15 * calls(100)


def test_a_flapper_costs_everybody_less_than_twice_what_they_carry_when_idle():
    """SECURITY 21: one machine of 200 dials and drops 24 others as fast as they let it; counted for an hour."""
    members, hour_s = 200, 3600
    period = period_s(members)
    idle = members * hour_s / period
    victims = [Allowance(PRESENCE_BURST, BURSTS_A_PERIOD / period, 0.0) for _ in range(25)]
    extra = sum(victim.take(float(second)) for second in range(hour_s) for victim in victims)
    assert extra > 0
    assert extra < 2 * idle


def test_a_link_is_stated_at_once_but_of_who_flaps_only_when_it_is_steady():
    """SECURITY 21."""
    flapping = Flapping(kept_max=3)
    assert flapping.wait_s(A, 100.0, 100.0) == 0
    flapping.ended(A, 100.0)
    assert flapping.wait_s(A, 101.0, 101.0) == STEADY_S
    assert flapping.wait_s(A, 101.0, 101.0 + STEADY_S) == 0
    assert flapping.wait_s(A, 100.0 + FLAP_S, 100.0 + FLAP_S) == 0
    assert flapping.wait_s(B, 101.0, 101.0) == 0
    for node in (B, C, D):
        flapping.ended(node, 102.0)
    assert len(flapping._ended_s) == 3


# Doubt -----------------------------------------------------------------------------------------------------------------


def at(steady_s: float, wall_s: float | None = None) -> Now:
    return Now(int(1000 * (steady_s if wall_s is None else wall_s)) + 1_800_000_000_000, steady_s)


def ticking(*moments: Now) -> Doubt:
    doubt = Doubt()
    for moment in moments:
        doubt.tick(moment)
    return doubt


def test_a_machine_that_keeps_up_judges_and_one_that_never_ticks_has_no_doubt():
    assert not Doubt().holds((), {}, 1e9)
    assert not ticking(at(0), at(TICK_S), at(2 * TICK_S)).holds((), {}, 2 * TICK_S)


@pytest.mark.parametrize(
    ("moments", "until_s"),
    [
        ((at(0), at(TICK_S + 1.5)), TICK_S + 1.5 + LISTEN_S),
        ((at(0), at(600.0)), 600.0 + JUMP_S),
        ((at(0), at(TICK_S, 900.0)), TICK_S + JUMP_S),
    ],
    ids=["lagged", "slept", "slept on a clock that stops"],
)
def test_who_lagged_or_slept_listens_before_it_judges(moments: tuple[Now, ...], until_s: float):
    """O-T4, O-G4: the whole fleet is not called stale because one lid was closed."""
    doubt = ticking(*moments)
    last = moments[-1].steady_s
    while last + TICK_S < until_s:
        assert doubt.holds((), {}, last)
        last += TICK_S
        doubt.tick(at(last, moments[-1].wall_ms / 1000 - 1_800_000_000 + last - moments[-1].steady_s))
    assert not doubt.holds((), {}, until_s)


def test_a_loop_that_hangs_right_now_is_doubted_before_the_next_tick():
    assert ticking(at(0)).holds((), {}, TICK_S + 1.5)


def test_who_hears_nothing_new_of_most_neighbours_doubts_itself():
    doubt = ticking(at(NOW_S))
    old = NOW_S - LIVE_PERIODS * T - 1
    heard = {A: says(A, [ME]), B: says(B, [ME], at_s=old), C: says(C, [ME], at_s=old)}
    assert doubt.holds([A, B, C], heard, NOW_S)
    assert not doubt.holds([A, B], heard, NOW_S)
    assert not doubt.holds([], heard, NOW_S)


def test_who_slept_calls_nobody_stale_and_does_so_once_it_has_listened():
    doubt, heard = ticking(at(NOW_S - TICK_S)), {A: says(A, [ME])}
    doubt.tick(at(NOW_S))
    assert doubt.judge(ME, [ME, A], [A], heard, NOW_S) == {A: "live"}
    doubt.tick(at(NOW_S + 600))
    assert doubt.judge(ME, [ME, A], [], heard, NOW_S + 600) == {A: "live"}
    for second in range(1, int(JUMP_S) + 1):
        doubt.tick(at(NOW_S + 600 + second))
    assert doubt.judge(ME, [ME, A], [], heard, NOW_S + 600 + JUMP_S) == {A: "gone"}


def test_doubt_keeps_the_live_and_calls_others_what_they_are():
    assert keep_live({A: "live", B: "stale"}, {A: "stale", B: "gone", C: "live", D: "gone"}) == {A: "live", B: "gone", C: "live", D: "gone"}


def test_marks_are_salted_by_their_author():
    assert link_mark(A, B) != link_mark(B, A)
    assert link_mark(A, B) != link_mark(C, B)
    assert len(link_mark(A, B)) == 4


def test_what_a_machine_states_is_read_without_judging():
    heard = {A: says(A, [B, C])}
    assert [links_stated(heard, node) for node in (A, B)] == [2, 0]
    assert states_link(heard, A, B)
    assert not states_link(heard, A, D)
    assert not states_link(heard, B, A)


def test_the_period_grows_with_the_mesh():
    assert period_s(1) == period_s(1000) == PERIOD_S_MIN == 30
    assert period_s(10_000) == 300


# Bytes ---------------------------------------------------------------------------------------------------------------

PRESENCE = Presence(bytes(8), T, "studio", "0.1.0", ("192.0.2.1:9847", "[2001:db8::1]:9847"), (bytes(4),), 1, 2)


def record(body: bytes) -> Record:
    return Record(kinds.PRESENCE, A, b"", 1, body, bytes(32), b"")


def test_a_presence_is_read_and_anything_else_is_none():
    assert read_untrusted(record(encode(PRESENCE))) == PRESENCE
    assert read_untrusted(record(b"")) is None
    for body in (b"\x00", encode(PRESENCE)[:-1], encode(PRESENCE) + b"\x00", bytes(2000)):
        assert read_untrusted(record(body)) is None


def test_the_largest_presence_fits_its_record():
    largest = Presence(
        bytes(8), 3600, "n" * 63, "v" * 32, ("a" * 80,) * 4, tuple(n.to_bytes(4, "big") for n in range(LINKS_MAX)), 10_000, 10_000
    )  # fmt: skip
    assert len(encode(largest)) <= rule_of(kinds.PRESENCE).body_bytes_max
    mesh = Mesh("presence")
    assert mesh.judge(mesh.sign(mesh.founder, kinds.PRESENCE, b"", encode(largest))).name == "ADMIT"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.integers(0, 60).map(lambda n: encode(PRESENCE)[:n] + b"\xff" + encode(PRESENCE)[n + 1 :]))
def test_any_body_is_a_presence_or_none_and_never_breaks_the_fold(body: bytes):
    said = read_untrusted(record(body))
    if said is not None:
        assert judge({A}, {A: says(A, [B]), B: Heard(said, 1, NOW_S)})[A] == "live"
