"""How many links, and to whom: properties of the choice, and whole meshes by counts, without a socket."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.names import NodeId
from mesh.degree import (
    DEGREE_MAX,
    DIALLED_RANDOM,
    FULL_MESH_MAX,
    INBOUND_MAX,
    NAMED_MAX,
    PASSING_MAX,
    SETTLE_S,
    Neighbour,
    Other,
    choose,
    full_reason,
    may_enter,
    named_untrusted,
    spread,
    successor,
    surplus,
    with_room,
)
from mesh.frames import REASON_BYTES_MAX
from tests.fakes.worlds import World


def ids(count: int) -> list[NodeId]:
    return [NodeId(random.Random(number).randbytes(16)) for number in range(count)]


ME, *OTHERS = ids(60)


def other(node: NodeId, *, dialable: bool = True, due: bool = True, live: bool = True, links: int = 4) -> Other:
    return Other(node, dialable, due, live, links)


def link(*, dialled: bool = True, busy: bool = False, age_s: float = 100.0, links: int = 4) -> Neighbour:
    return Neighbour(dialled, busy, age_s, links)


def test_a_small_mesh_links_everybody_it_can():
    others = [other(node, dialable=number != 3, due=number != 4) for number, node in enumerate(OTHERS[: FULL_MESH_MAX - 1])]
    assert set(choose(ME, others, {}, (), ())) == {o.node for o in others if o.dialable and o.due}
    links = {OTHERS[0]: link(dialled=False)}
    assert set(choose(ME, others, links, {OTHERS[1]}, ())) == {o.node for o in others[2:] if o.dialable and o.due}
    assert surplus(ME, OTHERS[: FULL_MESH_MAX - 1], dict.fromkeys(OTHERS[: FULL_MESH_MAX - 1], link(dialled=False))) == []


def test_a_large_one_dials_three_and_its_successor_and_no_more():
    others = [other(node) for node in OTHERS]
    chosen = choose(ME, others, {}, (), ())
    assert len(chosen) == DIALLED_RANDOM + 1
    assert successor(ME, sorted(OTHERS)) == chosen[0]
    links = dict.fromkeys(chosen, link())
    assert choose(ME, others, links, (), ()) == []
    assert choose(ME, others, {}, set(chosen), ()) == [], "what is being dialled counts"
    lost = chosen[2]
    del links[lost]
    assert len(choose(ME, others, links, (), ())) == 1
    inbound = {node: link(dialled=False) for node in OTHERS if node not in chosen}
    assert len(choose(ME, others, inbound, (), ())) == DIALLED_RANDOM + 1, "links of others do not stand for own ones"


def test_who_is_wanted_now_is_dialled_beyond_the_bound_and_released_when_idle():
    others = [other(node) for node in OTHERS]
    links = dict.fromkeys(choose(ME, others, {}, (), ()), link())
    links |= {n: link(dialled=False) for n in OTHERS[:20] if n not in links}
    links = dict(list(links.items())[:DEGREE_MAX])
    wanted = next(n for n in OTHERS if n not in links)
    assert choose(ME, others, links, (), {wanted})[0] == wanted
    links[wanted] = link(busy=True, links=50)
    assert wanted not in surplus(ME, OTHERS, links)
    links[wanted] = link(links=50, age_s=SETTLE_S)
    assert surplus(ME, OTHERS, links) == [wanted]


def test_live_ones_and_ones_with_room_are_tried_first():
    others = [other(n, live=False) for n in OTHERS[:20]] + [other(n, links=DEGREE_MAX) for n in OTHERS[20:40]] + [other(n) for n in OTHERS[40:]]
    after = choose(ME, others, {}, (), ())[0]
    links = {after: link()}
    assert set(choose(ME, others, links, (), ())) <= set(OTHERS[40:])


def test_no_more_than_inbound_links_and_passing_ones_enter():
    assert may_enter(FULL_MESH_MAX - 1, 50)
    assert may_enter(100, INBOUND_MAX + PASSING_MAX - 1)
    assert not may_enter(100, INBOUND_MAX + PASSING_MAX)


def test_a_link_that_is_young_busy_alone_or_on_the_ring_is_never_let_go():
    ring = sorted([ME, *OTHERS])
    at = ring.index(ME)
    near = {ring[at - 1], ring[(at + 1) % len(ring)]}
    far = [n for n in OTHERS if n not in near]
    links = {n: link(dialled=False, links=30) for n in near}
    links |= {far[0]: link(dialled=False, age_s=SETTLE_S - 0.1), far[1]: link(dialled=False, busy=True), far[2]: link(dialled=False, links=1)}
    links |= {n: link(dialled=False, links=5 + k) for k, n in enumerate(far[3:14])}
    gone = surplus(ME, OTHERS, links)
    assert len(gone) == len(links) - INBOUND_MAX
    assert gone == far[3:14][::-1][: len(gone)], "who has most links goes first"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_whatever_the_state_the_choice_is_sound(count: int, chance: random.Random):
    others = [
        other(n, dialable=chance.random() < 0.7, due=chance.random() < 0.7, live=chance.random() < 0.7, links=chance.randint(0, 20))
        for n in OTHERS[:count]
    ]
    links = {
        o.node: link(dialled=chance.random() < 0.5, busy=chance.random() < 0.2, age_s=chance.random() * 30, links=chance.randint(0, 20))
        for o in others
        if chance.random() < 0.5
    }
    dialling = {o.node for o in others if o.node not in links and chance.random() < 0.2}
    wanted = {o.node for o in others if chance.random() < 0.1}
    chosen = choose(ME, others, links, dialling, wanted)
    by_node = {o.node: o for o in others}
    assert len(set(chosen)) == len(chosen)
    assert all(by_node[n].dialable and by_node[n].due and n not in links and n not in dialling for n in chosen)
    assert {n for n in wanted if by_node[n].dialable and by_node[n].due and n not in links and n not in dialling} <= set(chosen)
    if count >= FULL_MESH_MAX:
        assert len(set(chosen) - wanted) <= DIALLED_RANDOM + 1
    gone = surplus(ME, [o.node for o in others], links)
    assert len(set(gone)) == len(gone) <= len(links)
    assert all(not links[n].busy for n in gone)
    if gone:
        assert len(links) > DEGREE_MAX or sum(not held.dialled for held in links.values()) > INBOUND_MAX


@given(st.lists(st.binary(min_size=16, max_size=16), unique=True, max_size=20), st.integers(0, 2**128 - 1), st.binary(min_size=16, max_size=16))
def test_who_comes_or_goes_does_not_change_the_order_of_the_others(raw: list[bytes], draw: int, more: bytes):
    nodes = [NodeId(n) for n in raw]
    ordered = spread(nodes, draw)
    assert set(ordered) == set(nodes)
    assert [n for n in spread([*nodes, NodeId(more)], draw) if n != more] == [n for n in ordered if n != more]


def test_a_refusal_names_others_with_room_and_is_read_back():
    others = [other(OTHERS[0], live=False), other(OTHERS[1], dialable=False), other(OTHERS[2], links=DEGREE_MAX)]
    others += [other(n) for n in OTHERS[3:30]]
    named = with_room(others, OTHERS[3], {OTHERS[4]})
    assert named == OTHERS[5 : 5 + NAMED_MAX]
    reason = full_reason(named)
    assert len(reason.encode()) <= REASON_BYTES_MAX
    assert named_untrusted(f"the other side ended the link: {reason}") == named
    assert named_untrusted(full_reason([])) == []
    assert named_untrusted("replaced") is None


@given(st.text(max_size=200) | st.text(alphabet="abz27 A-", max_size=190).map(lambda text: full_reason([]) + text))
def test_any_reason_names_at_most_four_machines(reason: str):
    named = named_untrusted(reason)
    assert named is None or (len(named) <= NAMED_MAX and all(len(n) == 16 for n in named))


# Whole meshes ----------------------------------------------------------------------------------------------------------


def check_mesh(count: int, dialable: float, seed: int) -> None:
    world = World(count, dialable, seed)
    world.settle(30)
    degrees = [len(links) for links in world.links.values()]
    assert max(degrees) <= DEGREE_MAX, "degree"
    assert min(degrees) >= 1
    for start in world.chance.sample(world.nodes, 10):
        far = world.hops(start)
        assert len(far) == len(world.nodes), "one record everywhere"
        assert max(far.values()) <= 8
    world.kill(0.3)
    world.settle(30)
    assert len(world.hops(world.nodes[0])) == len(world.nodes), "whole again after a third was killed"
    assert max(len(links) for links in world.links.values()) <= DEGREE_MAX


@pytest.mark.parametrize("dialable", [1.0, 0.6], ids=["all", "40 % not dialable"])
def test_a_mesh_of_150_is_whole_short_and_of_bounded_degree(dialable: float):
    check_mesh(150, dialable, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("dialable", [1.0, 0.6], ids=["all", "40 % not dialable"])
def test_a_mesh_of_1000_is_whole_short_and_of_bounded_degree(dialable: float):
    check_mesh(1000, dialable, seed=1)


@pytest.mark.parametrize("seed", range(3))
def test_a_mesh_that_grows_past_the_full_one_lets_links_go_and_stays_whole(seed: int):
    world = World(24, 1.0, seed)
    for node in world.nodes:
        world.links[node] = {peer: node < peer for peer in world.nodes if peer != node}
    world.settle(60)
    assert max(len(links) for links in world.links.values()) <= DEGREE_MAX
    assert len(world.hops(world.nodes[0])) == len(world.nodes)
