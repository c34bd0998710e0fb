"""Two stores over one link: they become level in bounded messages, and hostile ids cost little."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.crypto import content_id
from mesh.kinds import Lane
from mesh.messages import IDS_MAX, MESSAGE_BYTES_MAX, MESSAGES, RECORDS_MAX, Digests, Ids, Records, Want
from mesh.reconcile import LANES, REJECTED_MAX, WANTED_MAX, Message, Reconciler, batches, lane_digest, pages
from mesh.records import RECORD_BYTES_MAX

SALT = b"s" * 16


def number(n: int) -> bytes:
    return content_id(n.to_bytes(8, "big"))


class Side:
    """A store of made-up records, whose wire is its id, and its end of the link."""

    def __init__(self, held: dict[Lane, set[bytes]], refuses: set[bytes] = frozenset(), salt: bytes = SALT) -> None:  # type: ignore[assignment]
        self.held = {lane: set(held.get(lane, ())) for lane in Lane}
        self.refuses = refuses
        self.asked: list[bytes] = []
        self.core = Reconciler(salt, lambda lane: sorted(self.held[lane]), lambda i: any(i in ids for ids in self.held.values()))

    def take(self, message: Message, lane_of: dict[bytes, Lane]) -> list[Message]:
        if isinstance(message, Digests):
            return self.core.on_digests(message)
        if isinstance(message, Ids):
            return self.core.on_ids(message)
        if isinstance(message, Want):
            self.asked += message.ids
            return list(batches([i for i in message.ids if any(i in ids for ids in self.held.values())]))
        for wire in message.records:
            self.core.on_arrived(wire, rejected=wire in self.refuses)
            if wire not in self.refuses:
                self.held[lane_of[wire]].add(wire)
        return []


def level(one: Side, two: Side, rounds: int = 1) -> int:
    """Run comparisons to the end; returns how many messages went both ways."""
    lane_of = {i: lane for side in (one, two) for lane, ids in side.held.items() for i in ids}
    sent = 0
    for _ in range(rounds):
        queue: deque[tuple[Side, Message]] = deque()
        queue.extend((two, m) for m in one.core.start())
        queue.extend((one, m) for m in two.core.start())
        while queue:
            to, message = queue.popleft()
            sent += 1
            data = MESSAGES.encode(message)
            assert len(data) <= MESSAGE_BYTES_MAX
            received = MESSAGES.decode_untrusted(data, bytes_max=MESSAGE_BYTES_MAX)
            back = one if to is two else two
            queue.extend((back, m) for m in to.take(received, lane_of))
            assert sent < 10_000
    return sent


contents = st.dictionaries(st.sampled_from(Lane), st.sets(st.integers(0, 60).map(number), max_size=40), max_size=4)


def disjoint(held: dict[Lane, set[bytes]], other: dict[Lane, set[bytes]]) -> tuple[dict[Lane, set[bytes]], dict[Lane, set[bytes]]]:
    """A record's lane is a function of the record."""
    lane_of: dict[bytes, Lane] = {}
    for store in (held, other):
        for lane, ids in store.items():
            for i in ids:
                lane_of.setdefault(i, lane)
    return tuple({lane: {i for i in ids if lane_of[i] is lane} for lane, ids in store.items()} for store in (held, other))  # type: ignore[return-value]


@settings(max_examples=150, deadline=None)
@given(contents, contents)
def test_two_stores_become_level_in_one_round_of_bounded_messages(a: dict[Lane, set[bytes]], b: dict[Lane, set[bytes]]):
    """PROTOCOL 5, I2: whoever lacks what."""
    a, b = disjoint(a, b)
    one, two = Side(a), Side(b)
    sent = level(one, two)
    assert one.held == two.held
    assert sent <= 2 + 3 * 2 * len(LANES)
    assert one.core.control_settled
    assert two.core.control_settled
    assert level(one, two) == 2, "level stores cost one message each"


def test_large_stores_become_level_within_messages_of_their_bounds():
    shared = {number(n) for n in range(3000)}
    mine, theirs = {number(n) for n in range(3000, 5500)}, {number(n) for n in range(5500, 6000)}
    one, two = Side({Lane.HIVE: shared | mine}), Side({Lane.HIVE: shared | theirs})
    sent = level(one, two)
    assert one.held == two.held
    pages_sent = (5500 + IDS_MAX - 1) // IDS_MAX + (3500 + IDS_MAX - 1) // IDS_MAX
    assert sent <= 2 + pages_sent * 2 + (3000 // RECORDS_MAX + 2 * pages_sent)


def test_more_than_may_be_wanted_at_once_comes_in_the_next_rounds():
    one, two = Side({}), Side({Lane.HIVE: {number(n) for n in range(WANTED_MAX + 500)}})
    lane_of = dict.fromkeys(two.held[Lane.HIVE], Lane.HIVE)
    for page in pages(Lane.HIVE, sorted(two.held[Lane.HIVE])):
        one.core.on_ids(page)
    assert len(one.core._wanted) == WANTED_MAX
    one.core.give_up_waiting()
    level(one, two, rounds=3)
    assert one.held == two.held
    assert lane_of


def test_a_lane_without_anything_settles_too():
    one, two = Side({}), Side({})
    assert not one.core.control_settled
    level(one, two)
    assert one.core.control_settled


def test_control_is_settled_only_when_what_was_asked_for_has_come():
    side = Side({})
    assert side.core.on_ids(Ids(Lane.CONTROL.value, (number(1),), True)) == [Want((number(1),)), Ids(Lane.CONTROL.value, (), True)]
    assert not side.core.control_settled
    side.core.on_arrived(number(1), rejected=False)
    assert side.core.control_settled


def test_control_is_not_settled_before_the_last_page():
    side = Side({Lane.CONTROL: {number(1)}})
    side.core.on_ids(Ids(Lane.CONTROL.value, (number(1),), False))
    assert not side.core.control_settled
    side.core.on_ids(Ids(Lane.CONTROL.value, (), True))
    assert side.core.control_settled


def test_a_store_that_changes_between_the_two_digests_leaves_nobody_waiting():
    held: dict[Lane, set[bytes]] = {Lane.CONTROL: {number(1)}}
    one, two = Side(held), Side({Lane.CONTROL: {number(1)}})
    stale = one.core.start()
    one.held[Lane.CONTROL].add(number(2))  # what was pushed meanwhile
    two.held[Lane.CONTROL].add(number(2))
    old = Digests(tuple(lane_digest(SALT, sorted(ids)) for ids in ([number(1)], [], [], [])))
    assert stale == [old]
    (news,) = two.core.start()
    assert two.core.on_digests(old), "two sees a difference and tells its ids"
    assert one.core.on_digests(news) == [], "one sees none"  # type: ignore[arg-type]
    assert one.core.control_settled
    assert not two.core.control_settled
    (page,) = pages(Lane.CONTROL, [number(1), number(2)])
    (answer,) = one.core.on_ids(page)
    assert two.core.on_ids(answer) == [], "two has told already"  # type: ignore[arg-type]
    assert two.core.control_settled


def test_what_other_lanes_still_lack_does_not_hold_up_control():
    side = Side({})
    side.core.on_ids(Ids(Lane.HIVE.value, (number(1),), True))
    side.core.on_ids(Ids(Lane.CONTROL.value, (), True))
    assert side.core.control_settled


def test_a_peer_that_names_ids_and_never_sends_them_holds_nothing_up_for_ever():
    """The shell gives up after its own time; the next comparison asks again."""
    side = Side({})
    side.core.on_ids(Ids(Lane.CONTROL.value, (number(1),), True))
    side.core.give_up_waiting()
    assert side.core.control_settled
    assert side.core.on_ids(Ids(Lane.CONTROL.value, (number(1),), True)) == [Want((number(1),))]


def test_a_flood_of_ids_is_bounded_and_nothing_is_asked_for_twice():
    """SECURITY 29, 32: memory stays flat, and asking stops at the bound."""
    side = Side({})
    asked: list[bytes] = []
    for start in range(0, 40_000, IDS_MAX):
        ids = tuple(number(n) for n in range(start, start + IDS_MAX))
        for _ in range(2):
            for want in side.core.on_ids(Ids(Lane.HIVE.value, ids, False)):
                asked += want.ids
    assert len(asked) == len(set(asked)) == WANTED_MAX == len(side.core._wanted)


def test_what_was_refused_is_not_asked_for_again():
    """SECURITY 29: held and refused ids do not come back every minute."""
    refused = {number(n) for n in range(50)}
    one, two = Side({}, refuses=refused), Side({Lane.HIVE: refused | {number(99)}})
    level(one, two, rounds=5)
    assert one.held[Lane.HIVE] == {number(99)}
    assert len(two.asked) == 51, "each once, in five rounds"


def test_the_memory_of_refusals_is_bounded():
    side = Side({})
    for n in range(REJECTED_MAX + 10):
        side.core.on_arrived(number(n), rejected=True)
    assert len(side.core._rejected) == 10
    side.core.on_arrived(number(n), rejected=True)
    assert len(side.core._rejected) == 10


def test_an_id_named_twice_in_one_message_is_asked_for_once():
    assert Side({}).core.on_ids(Ids(0, (number(1), number(1)), False)) == [Want((number(1),))]


def test_digests_of_equal_stores_are_equal_for_this_session_only():
    """SECURITY 32: a member cannot prepare two stores that look alike: the salt is nobody's choice."""
    ids = [number(n) for n in range(10)]
    assert lane_digest(SALT, ids) == lane_digest(SALT, list(ids))
    assert len({lane_digest(SALT, ids), lane_digest(b"t" * 16, ids), lane_digest(SALT, ids[:9]), lane_digest(SALT, [])}) == 4


@pytest.mark.parametrize("lanes", [0, 1, 3])
def test_digests_of_fewer_lanes_are_compared_as_far_as_they_go(lanes: int):
    side = Side({Lane.CONTROL: {number(1)}})
    out = side.core.on_digests(Digests((bytes(16),) * lanes))
    assert all(isinstance(m, Ids) for m in out)
    assert len(out) == lanes


def test_control_goes_first():
    side = Side({lane: {number(lane.value)} for lane in Lane})
    assert [m.lane for m in side.core.on_digests(Digests((bytes(16),) * 4))] == [lane.value for lane in LANES]
    assert LANES[0] is Lane.CONTROL


@given(st.integers(0, 3 * IDS_MAX + 5))
def test_pages_hold_every_id_once_and_only_the_last_says_so(count: int):
    ids = [n.to_bytes(32, "big") for n in range(count)]
    cut = pages(Lane.HIVE, ids)
    assert [i for page in cut for i in page.ids] == ids
    assert [page.last for page in cut] == [False] * (len(cut) - 1) + [True]
    assert all(len(MESSAGES.encode(page)) <= MESSAGE_BYTES_MAX for page in cut)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, RECORD_BYTES_MAX), max_size=60) | st.just([1] * 3000) | st.just([RECORD_BYTES_MAX] * 100))
def test_batches_hold_every_record_in_order_within_both_bounds(sizes: list[int]):
    wires = [bytes(size) for size in sizes]
    packed = batches(wires)
    assert [wire for batch in packed for wire in batch.records] == wires
    for batch in packed:
        assert isinstance(batch, Records)
        assert 1 <= len(batch.records) <= RECORDS_MAX
        assert len(MESSAGES.encode(batch)) <= MESSAGE_BYTES_MAX


def test_three_stores_in_a_row_become_level_by_pairs():
    chance = random.Random(5)
    universe = [number(n) for n in range(300)]
    sides = [Side({Lane.HIVE: set(chance.sample(universe, 100))}) for _ in range(3)]
    for _ in range(2):
        level(sides[0], sides[1])
        level(sides[1], sides[2])
    assert sides[0].held == sides[1].held == sides[2].held
