"""Who is live: the fixpoint over what every machine says of itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh import kinds
from mesh.base.codec import encode
from mesh.base.names import NodeId
from mesh.kinds import rule_of
from mesh.presence import (
    GONE_PERIODS,
    LINKS_MAX,
    LIVE_PERIODS,
    PERIOD_S_MIN,
    Heard,
    Presence,
    link_mark,
    period_s,
    read_untrusted,
    states,
)
from mesh.records import Record
from tests.fakes.meshes import Mesh

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


def test_marks_are_salted_by_their_author():
    assert link_mark(A, B) != link_mark(B, A)
    assert link_mark(A, B) != link_mark(C, B)
    assert len(link_mark(A, B)) == 4


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
