"""Which way a circuit goes, when it is opened, and what a relay allows: without any network."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import circuits as room
from mesh.base.codec import Malformed
from mesh.base.names import NodeId
from mesh.circuits import (
    Circuit,
    Openings,
    Relay,
    Share,
    Surroundings,
    Why,
    choose_routes,
    false_link,
    read_answer_untrusted,
    read_open_untrusted,
)
from mesh.messages import CIRCUIT_MESSAGES, HOPS_MAX, CircuitAnswer, CircuitOpen, CircuitRefused
from mesh.presence import LIVE_PERIODS, Heard, Presence, link_mark

NODES = [NodeId(bytes((n,)) * 16) for n in range(1, 12)]
ME, TARGET = NODES[0], NODES[1]
Link = tuple[NodeId, NodeId]


def heard(stated: set[Link], at_s: float = 0.0, nodes: list[NodeId] = NODES) -> dict[NodeId, Heard]:
    """Presences in which each machine states its own half of these links."""
    found = {}
    for node in nodes:
        marks = tuple(link_mark(node, other) for one, other in sorted(stated) if one == node)
        found[node] = Heard(Presence(b"b" * 8, 30, "x", "test", (), marks, 0, 1), 1, at_s)
    return found


def both(*links: Link) -> set[Link]:
    return {link for one, other in links for link in ((one, other), (other, one))}


links = st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)).filter(lambda pair: pair[0] != pair[1]), max_size=70)


@given(links, st.sets(st.sampled_from(NODES)), st.sets(st.sampled_from(NODES[1:])), links)
def test_a_way_never_repeats_and_goes_over_links_both_ends_state_through_relays_only(
    halves: set[Link], relays: set[NodeId], linked: set[NodeId], false: set[Link]
):
    """I11's ground: what is chosen is what a relay will take, whatever anybody states."""
    found = choose_routes(ME, TARGET, heard(halves), linked, relays, 1.0, false)
    assert len(found) <= room.ROUTES_MAX
    assert len(set(found)) == len(found)
    for route in found:
        assert (route[0], route[-1]) == (ME, TARGET)
        assert 3 <= len(route) <= HOPS_MAX + 1
        assert len(set(route)) == len(route)
        assert route[1] in linked
        assert set(route[1:-1]) <= relays
        for one, other in itertools.pairwise(route[1:]):
            assert {(one, other), (other, one)} <= halves
        assert not set(itertools.pairwise(route)) & false


@given(links, st.sets(st.sampled_from(NODES), min_size=4), st.sets(st.sampled_from(NODES[1:]), min_size=1))
def test_a_way_is_found_where_there_is_one_and_it_is_a_shortest(halves: set[Link], relays: set[NodeId], linked: set[NodeId]):
    def ways(length: int):
        middle = [r for r in relays if r not in (ME, TARGET)]
        for way in itertools.permutations(middle, length):
            pairs = itertools.pairwise((*way, TARGET))
            if way[0] in linked and all({(a, b), (b, a)} <= halves for a, b in pairs):
                yield way

    shortest = next((length for length in (1, 2, 3) if next(ways(length), None)), None)
    found = choose_routes(ME, TARGET, heard(halves), linked, relays, 1.0)
    assert {len(route) - 2 for route in found} == (set() if shortest is None else {shortest})


def test_a_stale_statement_is_no_way():
    relay = NODES[2]
    said = heard(both((relay, TARGET)))
    late_s = LIVE_PERIODS * 30 + 1
    assert choose_routes(ME, TARGET, said, {relay}, {relay}, 1.0) == [(ME, relay, TARGET)]
    assert choose_routes(ME, TARGET, said, {relay}, {relay}, late_s) == []
    assert choose_routes(ME, TARGET, {**said, relay: heard(both((relay, TARGET)), late_s)[relay]}, {relay}, {relay}, late_s) == []
    del said[TARGET]
    assert choose_routes(ME, TARGET, said, {relay}, {relay}, 1.0) == []


def test_a_false_adjacency_costs_one_try_and_is_believed_again_later():
    one, two = NODES[2], NODES[3]
    said, openings = heard(both((one, TARGET), (two, TARGET))), Openings(ME)
    first, second = choose_routes(ME, TARGET, said, {one, two}, {one, two}, 1.0)
    link = false_link(first, CircuitRefused(1, int(Why.NO_LINK)))
    assert link == (first[1], TARGET)
    openings.disbelieve(link, 1.0)
    assert choose_routes(ME, TARGET, said, {one, two}, {one, two}, 1.0, openings.disbelieved(2.0)) == [second]
    assert openings.disbelieved(1.0 + room.FALSE_LINK_S) == frozenset()
    assert false_link(first, CircuitRefused(1, int(Why.FULL))) == (ME, first[1])
    assert false_link(first, CircuitRefused(2, int(Why.FULL))) is None
    assert false_link(first, CircuitRefused(4, 200)) is None
    for number in range(2 * room.FALSE_LINKS_MAX):
        openings.disbelieve((ME, NodeId(number.to_bytes(16, "big"))), 1.0)
    assert len(openings.disbelieved(1.0)) == room.FALSE_LINKS_MAX


def test_a_circuit_is_due_after_dialling_had_its_time_and_the_smaller_id_goes_first():
    small, large = Openings(NODES[0]), Openings(NODES[1])
    for openings, other, due_s in ((small, NODES[1], room.APART_S), (large, NODES[0], room.APART_S + room.OTHER_SIDE_S)):
        assert openings.due([other], 100.0) == []
        assert openings.due([other], 100.0 + due_s - 0.1) == []
        assert openings.due([other], 100.0 + due_s) == [other]
    assert small.due([], 103.0) == []
    assert small.due([NODES[1]], 104.0) == [], "it was linked meanwhile"
    assert small.due([NODES[1]], 108.0) == [NODES[1]]
    small.failed(NODES[1], 108.0, 0.9)
    assert small.due([NODES[1]], 108.1) == []
    assert small.due([NODES[1]], 120.0) == [NODES[1]]
    large.ask_for(NODES[0], 200.0)
    assert large.asked(NODES[0], 200.0 + room.ASKED_S - 1)
    assert not large.asked(NODES[0], 200.0 + room.ASKED_S)
    for number in range(3 * room.ASKED_MAX):
        large.ask_for(NodeId(number.to_bytes(16, "big")), 201.0)
    assert len(large._asked_s) == room.ASKED_MAX


# The relay ------------------------------------------------------------------------------------------------------

R = NODES[5]


def around(*linked: NodeId, relays: bool = True, out: tuple[NodeId, ...] = ()) -> Surroundings:
    return Surroundings(set(linked or NODES), lambda node: node in NODES and node not in out, relays)


def opened(*route: NodeId, at: int = 1) -> CircuitOpen:
    return CircuitOpen(route, at, b"hello")


def test_a_relay_takes_a_sound_opening_and_refuses_each_other_one_for_its_reason():
    relay = Relay(R)
    good = opened(ME, R, TARGET)
    taken = relay.admit(good, ME, around(), 0.0, direct=True)
    assert isinstance(taken, Circuit)
    assert (taken.before, taken.after) == (ME, TARGET)
    end = relay.admit(opened(ME, NODES[3], R, at=2), NODES[3], around(relays=False), 0.0, direct=True)
    assert isinstance(end, Circuit)
    assert end.after is None
    assert relay.admit(good, ME, around(), 0.0, direct=False) is Why.NESTED
    assert relay.admit(good, ME, around(relays=False), 0.0, direct=True) is Why.NO_RELAY
    assert relay.admit(good, ME, around(ME), 0.0, direct=True) is Why.NO_LINK
    assert relay.admit(good, ME, around(out=(TARGET,)), 0.0, direct=True) is Why.NOT_A_MEMBER
    assert relay.admit(good, ME, around(out=(ME,)), 0.0, direct=True) is Why.NOT_A_MEMBER
    far = opened(ME, R, NODES[7], TARGET)
    assert relay.admit(far, ME, around(out=(NODES[7],)), 0.0, direct=True) is Why.NOT_A_MEMBER
    for wrong, peer in [
        (opened(ME, R), ME),
        (opened(ME, R, ME), ME),
        (opened(ME, R, TARGET, R), ME),
        (opened(ME, TARGET, R), ME),
        (opened(TARGET, R, ME), ME),
        (opened(ME, R, TARGET, at=2), ME),
        (opened(ME, R, TARGET, at=4), ME),
        (opened(ME, R, TARGET), NODES[3]),
    ]:
        assert relay.admit(wrong, peer, around(), 0.0, direct=True) is Why.MALFORMED
    assert len(relay.circuits) == 2
    relay.close(taken)
    relay.close(taken)
    assert list(relay.circuits.values()) == [end]


def test_openings_over_one_link_are_counted_whatever_becomes_of_them_and_across_reconnects():
    relay = Relay(R)
    for _ in range(room.OPENS_A_MINUTE_MAX):
        assert relay.admit(opened(ME, R, TARGET), ME, around(relays=False), 5.0, direct=True) is Why.NO_RELAY
    assert relay.admit(opened(ME, R, TARGET), ME, around(), 5.0, direct=True) is Why.TOO_OFTEN
    relay.overdue(around(), 20.0)
    assert relay.admit(opened(ME, R, TARGET), ME, around(), 20.0, direct=True) is Why.TOO_OFTEN
    assert isinstance(relay.admit(opened(TARGET, R, ME), TARGET, around(), 20.0, direct=True), Circuit)
    assert isinstance(relay.admit(opened(ME, R, TARGET), ME, around(), 65.0, direct=True), Circuit)


@given(st.lists(st.tuples(st.sampled_from(NODES[:4]), st.sampled_from(NODES[6:]), st.booleans()), max_size=300))
def test_the_caps_hold_whatever_is_asked_for_and_closed(asked: list[tuple[NodeId, NodeId, bool]]):
    relay = Relay(R)
    for number, (before, after, closes) in enumerate(asked):
        relay.admit(opened(before, R, after), before, around(), number * 10.0, direct=True)
        if closes and relay.circuits:
            relay.close(next(iter(relay.circuits.values())))
        assert len(relay.circuits) <= room.CIRCUITS_MAX
        for node in NODES:
            assert sum(node in (c.before, c.after) for c in relay.circuits.values()) <= room.CIRCUITS_A_PEER_MAX


def test_the_whole_machine_has_a_cap_too():
    relay, nodes = Relay(R), [NodeId(number.to_bytes(16, "big")) for number in range(1, 200)]
    everybody = Surroundings(set(nodes), lambda _: True, True)
    verdicts = [relay.admit(opened(a, R, b), a, everybody, 0.0, direct=True) for a, b in zip(nodes[::2], nodes[1::2], strict=False)]
    assert sum(isinstance(verdict, Circuit) for verdict in verdicts) == room.CIRCUITS_MAX
    assert verdicts[-1] is Why.FULL


@pytest.mark.parametrize("neighbours", [1, 24])
def test_greedy_neighbours_stay_within_the_share_of_the_whole_machine(neighbours: int):
    """SECURITY 30: sixteen circuits each, as fast as they are let, for a minute of simulated time."""
    relay = Relay(R)
    nodes = [NodeId(number.to_bytes(16, "big")) for number in range(1, neighbours + 25)]
    everybody = Surroundings(set(nodes), lambda _: True, True)
    sources, sinks = nodes[:neighbours], nodes[neighbours:]
    ways: list[Circuit] = []
    for number, source in itertools.product(range(16), sources):
        verdict = relay.admit(opened(source, R, sinks[(number + len(ways)) % 24]), source, everybody, 61.0 * number, direct=True)
        if isinstance(verdict, Circuit):
            ways.append(verdict)
    assert len(ways) <= room.CIRCUITS_MAX
    size, start_s, time_s = 60 * 1024, 10_000.0, 60.0
    due = dict.fromkeys((circuit.number for circuit in ways), start_s)
    passed = dict.fromkeys((circuit.before for circuit in ways), 0)
    while (number := min(due, key=lambda n: due[n])) and (now_s := due[number]) < start_s + time_s:
        circuit = relay.circuits[number]
        due[number] = now_s + max(0.001, relay.passes(circuit, circuit.before, size, now_s))
        passed[circuit.before] += size
    bound = room.RELAYED_BYTES_S if neighbours > 1 else room.PEER_BYTES_S
    assert 0.8 * bound * time_s <= sum(passed.values()) <= bound * (time_s + room.SHARE_BURST_S) + len(ways) * size
    assert max(passed.values()) <= room.PEER_BYTES_S * (time_s + room.SHARE_BURST_S) + 16 * size


@given(st.lists(st.tuples(st.integers(1, 70_000), st.floats(0, 0.5)), max_size=200))
def test_a_share_is_never_exceeded_by_more_than_its_burst(steps: list[tuple[int, float]]):
    share, now_s, total, first_s = Share(100_000), 50.0, 0, 50.0
    for size, pause_s in steps:
        now_s += share.take(size, now_s)
        total += size
        assert total <= 100_000 * (now_s - first_s + room.SHARE_BURST_S) + 1e-3 * len(steps)
        now_s += pause_s


def test_circuits_end_where_a_machine_on_them_goes_or_nothing_passes():
    relay = Relay(R)
    through = relay.admit(opened(ME, R, TARGET), ME, around(), 0.0, direct=True)
    here = relay.admit(opened(ME, NODES[3], R, at=2), NODES[3], around(), 0.0, direct=True)
    assert isinstance(through, Circuit)
    assert isinstance(here, Circuit)
    assert relay.overdue(around(), room.IDLE_S - 1) == []
    relay.passes(through, ME, 1, room.IDLE_S - 1)
    assert relay.overdue(around(), room.IDLE_S + 1) == []
    assert [circuit for circuit, _ in relay.overdue(around(), 2 * room.IDLE_S)] == [through]
    assert [circuit for circuit, _ in relay.overdue(around(relays=False), 0.0)] == [through]
    assert [circuit for circuit, _ in relay.overdue(around(out=(TARGET,)), 0.0)] == [through]
    assert [circuit for circuit, _ in relay.overdue(around(out=(ME,)), 0.0)] == [through, here]


def test_the_bytes_stay_what_they_are():
    frozen = {
        opened(ME, R, TARGET): "8414835001010101010101010101010101010101500606060606060606060606060606060650020202020202020202020202020202020145" + b"hello".hex(),
        CircuitRefused(1, int(Why.FULL)): "83150107",
        CircuitAnswer(b"reply"): "821645" + b"reply".hex(),
    }
    assert {message: CIRCUIT_MESSAGES.encode(message).hex() for message in frozen} == frozen
    assert {why.name: int(why) for why in Why} == {
        "MALFORMED": 1, "NESTED": 2, "TOO_OFTEN": 3, "NOT_A_MEMBER": 4, "NO_RELAY": 5, "NO_LINK": 6, "FULL": 7, "NO_HANDSHAKE": 8,
    }  # fmt: skip


@pytest.mark.parametrize("message", [opened(ME, R, TARGET), CircuitRefused(1, 3), CircuitAnswer(b"reply")], ids=lambda m: type(m).__name__)
def test_each_message_is_read_where_it_belongs_and_nowhere_else(message):
    data = CIRCUIT_MESSAGES.encode(message)
    first = isinstance(message, CircuitOpen)
    right, wrong = (read_open_untrusted, read_answer_untrusted) if first else (read_answer_untrusted, read_open_untrusted)
    assert right(data) == message
    with pytest.raises(Malformed):
        wrong(data)
    with pytest.raises(Malformed):
        right(data + b"\0" * room.MESSAGE_BYTES_MAX)
