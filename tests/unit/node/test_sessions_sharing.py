"""When which session goes out, how the fleet is put together, and that nothing of it opens for other people."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mesh.base.clock import Now
from mesh.base.names import NodeId, OwnerId
from mesh.base.ports import Entry, Member
from mesh.sealing import FleetSealer
from node.sessions.inventory import SessionBody, SessionState
from node.sessions.sharing import (
    COUNTERS_S_MIN,
    REFRESH_S,
    Published,
    fleet_rows,
    plan,
    register_key,
    remote_bodies_untrusted,
    seal_body,
)

ME, PEER, OTHER = NodeId(b"m" * 16), NodeId(b"p" * 16), NodeId(b"o" * 16)
NOW = Now(1_800_000_000_000, 1_000.0)
BODY = SessionBody(
    "s-1", "claude", "demo", "/srv/demo", "main", "sonnet", "Fix it", "working", NOW.wall_ms - 5_000, None,
    1, 2, 3, 4, 5, 6, None, (), None, NOW.wall_ms - 1_000,
)  # fmt: skip
KEY = register_key(BODY)


def states(*bodies: SessionBody) -> list[SessionState]:
    return [SessionState(body, True, "process", 0, 0, ()) for body in bodies]


def sealer(me: NodeId, key: bytes = b"k" * 32, mine: tuple[NodeId, ...] = (ME, PEER)) -> FleetSealer:
    return FleetSealer(me, {0: key}, lambda node: node in mine, entropy=lambda count: b"\x05" * count)


def member(node: NodeId, name: str, state: str = "live", *, linked: bool = True, seen_ms: int | None = None) -> Member:
    return Member(node, b"k" * 32, name, OwnerId(b"w" * 16), "ana", True, frozenset({"member"}), state, seen_ms, linked, (), None)


def entry(author: NodeId, body: bytes, received_ms: int = NOW.wall_ms) -> Entry:
    return Entry(author, OwnerId(b"w" * 16), 32, KEY, 1, b"r" * 32, body, received_ms)


def test_a_new_session_goes_out_at_once_and_then_rests():
    first = plan(states(BODY), {}, members=2, now_s=0)
    assert first.publish == ((KEY, BODY),)
    rest = plan(states(BODY), {KEY: Published(BODY, 0)}, members=2, now_s=1)
    assert (rest.publish, rest.withdraw, rest.next_look_s) == ((), (), REFRESH_S)


def test_what_a_person_waits_for_is_urgent_and_counters_are_not():
    out = {KEY: Published(BODY, 0)}
    for change in ({"status": "needs_you"}, {"waiting_for": "Bash make"}, {"branch": "other"}, {"health": ("stuck",)}):
        assert plan(states(replace(BODY, **change)), out, members=2, now_s=0.1).publish
    counted = replace(BODY, output=900, cost_micro=17, context_pct=50, last_active_ms=NOW.wall_ms)
    quiet = plan(states(counted), out, members=2, now_s=0.1)
    assert not quiet.publish
    assert quiet.next_look_s == COUNTERS_S_MIN
    assert plan(states(counted), out, members=2, now_s=COUNTERS_S_MIN).publish == ((KEY, counted),)


def test_counters_are_rarer_in_a_large_mesh():
    counted = replace(BODY, output=900)
    out = {KEY: Published(BODY, 0)}
    assert not plan(states(counted), out, members=1_000, now_s=29).publish
    assert plan(states(counted), out, members=1_000, now_s=30).publish


def test_what_stays_the_same_is_said_again_before_its_record_runs_out():
    out = {KEY: Published(BODY, 0)}
    assert REFRESH_S * 2 < 900, "a record lives 900 s"
    assert plan(states(BODY), out, members=2, now_s=REFRESH_S).publish == ((KEY, BODY),)


def test_a_session_that_is_gone_is_withdrawn():
    assert plan([], {KEY: Published(BODY, 0)}, members=2, now_s=1).withdraw == (KEY,)


@given(st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True), st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True), st.floats(0, 2_000))
def test_every_session_is_published_kept_or_withdrawn_and_never_two_of_these(listed: list[str], out: list[str], now_s: float):
    here = {register_key(replace(BODY, session=name)): replace(BODY, session=name) for name in listed}
    before = {register_key(replace(BODY, session=name)): Published(replace(BODY, session=name), 0) for name in out}
    found = plan(states(*here.values()), before, members=2, now_s=now_s)
    published, withdrawn = {key for key, _ in found.publish}, set(found.withdraw)
    assert withdrawn == before.keys() - here.keys()
    assert published >= here.keys() - before.keys()
    assert published <= here.keys()
    assert found.next_look_s >= now_s or not published.isdisjoint(here)


def test_the_register_of_a_session_tells_nothing_about_it():
    assert len(KEY) == 16
    assert b"s-1" not in KEY
    assert register_key(replace(BODY, agent="codex")) != KEY


def test_only_this_persons_machines_open_a_session():
    sealed = seal_body(BODY, sealer(PEER))
    assert b"demo" not in sealed
    assert remote_bodies_untrusted([entry(PEER, sealed)], ME, sealer(ME)) == [(PEER, BODY, NOW.wall_ms)]
    assert remote_bodies_untrusted([entry(PEER, sealed)], ME, sealer(ME, b"x" * 32)) == []
    assert remote_bodies_untrusted([entry(OTHER, sealed)], ME, sealer(ME)) == [], "copied under another author"
    assert remote_bodies_untrusted([entry(ME, seal_body(BODY, sealer(ME)))], ME, sealer(ME)) == [], "one's own is not remote"


@given(st.binary(max_size=300))
def test_whatever_a_machine_of_mine_publishes_the_fleet_is_listed(plain: bytes):
    sealed = sealer(PEER).seal(plain)
    good = seal_body(BODY, sealer(PEER))
    found = remote_bodies_untrusted([entry(PEER, sealed), entry(PEER, plain), entry(PEER, good)], ME, sealer(ME))
    assert (PEER, BODY, NOW.wall_ms) in found


def rows(*remote: tuple[NodeId, SessionBody, int], peer: Member | None = None, local: tuple[SessionBody, ...] = ()):
    return fleet_rows(states(*local), remote, member(ME, "laptop"), lambda node: peer if node == PEER else None, NOW)


def test_a_linked_machines_sessions_are_fresh():
    (row,) = rows((PEER, BODY, NOW.wall_ms - 60_000), peer=member(PEER, "mini"))
    assert (row["name"], row["stale"], row["age_s"], row["status"]) == ("mini", False, 0, "working")


def test_a_machine_that_left_shows_its_sessions_with_age_and_stale():
    gone = member(PEER, "mini", "stale", linked=False, seen_ms=NOW.wall_ms - 90_000)
    (row,) = rows((PEER, BODY, NOW.wall_ms - 120_000), peer=gone)
    assert (row["stale"], row["age_s"]) == (True, 90)
    (row,) = rows((PEER, BODY, NOW.wall_ms - 120_000), peer=member(PEER, "mini", "stale", linked=False))
    assert row["age_s"] == 120


def test_a_clock_set_back_makes_no_negative_age():
    (row,) = rows((PEER, BODY, NOW.wall_ms + 90_000), peer=member(PEER, "mini", "stale", linked=False))
    assert row["age_s"] == 0


def test_an_expelled_or_unknown_machines_sessions_are_not_shown():
    assert rows((PEER, BODY, 0), peer=member(PEER, "mini", "expelled")) == []
    assert rows((OTHER, BODY, 0)) == []


def test_those_that_need_a_person_come_first_and_a_word_of_a_later_version_last_but_ended():
    words = ["ended", "later_word", "working", "your_turn", "limited", "stuck", "needs_you"]
    remote = [(PEER, replace(BODY, session=f"s-{word}", status=word), NOW.wall_ms) for word in words]
    found = rows(*remote, peer=member(PEER, "mini"), local=(replace(BODY, session="mine"),))
    assert [row["status"] for row in found] == ["needs_you", "stuck", "limited", "your_turn", "working", "working", "unknown", "ended"]
