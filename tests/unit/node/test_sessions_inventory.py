from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import node.sessions
from mesh.base.codec import Malformed, encode
from node.sessions.cost import ModelTotal, parse_prices
from node.sessions.fold import FoldState, Quota
from node.sessions.inventory import (
    BODY_BYTES_MAX,
    ENDED_LISTED_MAX,
    HEALTH_MAX,
    LISTED_MAX,
    Facts,
    SessionBody,
    SessionState,
    body_untrusted,
    chosen,
    fleet_row,
    state_of,
)
from node.sessions.status import Status

PRICES = parse_prices((Path(node.sessions.__file__).parent / "prices.toml").read_text(encoding="utf-8"))
CANARY = "AKIAQ7EXAMPLE7Q7TEST"
SEEN = FoldState(cwd="/srv/demo", model="claude-sonnet-4-5", context_tokens=50_000)
FACTS = Facts(
    session="s-1",
    agent="claude",
    project="demo",
    branch="main",
    seen=SEEN,
    status=Status("working", 1_000),
    totals=(ModelTotal("claude-sonnet-4-5", 1, 2, 3, 4, 5),),
    last_active_ms=2_000,
    title="Fix it",
    helpers=0,
    bad_lines=0,
    deleted=False,
    alive=True,
)


def redact(text):
    return text.replace(CANARY, "[key]")


def body(**more):
    return replace(state_of(FACTS, PRICES, redact).body, **more)


def row(of, **more):
    return fleet_row(of, **({"node": "abcd", "node_name": "mini", "heard_ms": 5_000, "stale": False, "now_ms": 8_999} | more))


def test_the_row_of_fleet_json():
    assert row(body(limit=Quota("5h", 41, 60_000), waiting_for="permission prompt: Bash make", health=("retrying",))) == {
        "node": "abcd",
        "name": "mini",
        "session": "s-1",
        "agent": "claude",
        "project": "demo",
        "title": "Fix it",
        "cwd": "/srv/demo",
        "branch": "main",
        "model": "claude-sonnet-4-5",
        "status": "working",
        "since": "1970-01-01T00:00:01.000Z",
        "waiting_for": "permission prompt: Bash make",
        "tokens": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 9},
        "cost_usd": 0.000078,
        "context_pct": 25,
        "limit": {"window": "5h", "used_pct": 41, "resets_at": "1970-01-01T00:01:00.000Z"},
        "health": ["retrying"],
        "task": None,
        "age_s": 3,
        "stale": False,
    }


def test_unknown_is_null_and_tokens_is_still_an_object():
    facts = replace(FACTS, seen=FoldState(), totals=(), title=None, branch=None, status=Status("unknown", None))
    shown = row(state_of(facts, PRICES, redact).body, heard_ms=None)
    for name in ("cwd", "branch", "model", "title", "since", "waiting_for", "cost_usd", "context_pct", "limit", "age_s"):
        assert shown[name] is None
    assert shown["tokens"] == {"input": None, "output": None, "cache_read": None, "cache_write": None}


def test_an_unpriced_model_has_no_cost():
    """O-S7"""
    facts = replace(FACTS, totals=(*FACTS.totals, ModelTotal("never-heard-of", 5, 7, 0, 0, 0)))
    state = state_of(facts, PRICES, redact)
    assert row(state.body)["cost_usd"] is None
    assert row(state.body)["tokens"]["input"] == 6
    assert state.unpriced == ("never-heard-of",)


def test_context_beyond_the_known_window_is_unknown():
    assert state_of(replace(FACTS, seen=replace(SEEN, context_tokens=200_001)), PRICES, redact).body.context_pct is None
    assert state_of(replace(FACTS, seen=replace(SEEN, window_tokens=100_000)), PRICES, redact).body.context_pct == 50


@pytest.mark.parametrize("field", ["session", "project", "branch", "title", "cwd", "model", "waiting_for"])
def test_a_secret_in_any_text_is_redacted(field):
    """O-H3, O-H4"""
    text = f"x {CANARY} y"
    changes = {
        "cwd": {"seen": replace(SEEN, cwd=text)},
        "model": {"seen": replace(SEEN, model=text)},
        "waiting_for": {"status": Status("needs_you", 1, waiting_for=text)},
    }
    state = state_of(replace(FACTS, **changes.get(field, {field: text})), PRICES, redact)
    assert CANARY.encode() not in encode(state.body)
    assert "[key]" in getattr(state.body, field)


def test_bad_lines_and_a_deleted_transcript_are_said():
    """O-S1, O-S9"""
    state = state_of(replace(FACTS, bad_lines=2, deleted=True), PRICES, redact)
    assert state.body.health == ("transcript_deleted", "unreadable_lines:2")


def test_the_largest_body_keeps_the_bound_of_its_record():
    wide = "\U0001f600" * 5_000
    facts = replace(
        FACTS,
        session=wide,
        project=wide,
        branch=wide,
        title=wide,
        agent="claude",
        seen=FoldState(cwd=wide, model=wide, quota=Quota("x" * 16, 1_000, (1 << 47) - 1)),
        status=Status("needs_you", (1 << 47) - 1, wide, ("tool_or_permission",) * 20),
        totals=(ModelTotal("m", 1 << 60, 1 << 60, 1 << 60, 1 << 60, 1 << 60),),
        bad_lines=10**12,
        last_active_ms=1 << 60,
    )
    state = state_of(facts, PRICES, redact)
    data = encode(state.body)
    assert len(data) <= BODY_BYTES_MAX
    assert len(state.body.health) == HEALTH_MAX
    assert body_untrusted(data) == state.body


def test_a_usual_body_is_small():
    facts = replace(FACTS, session="3f1c9a52-6d0b-4c1e-9f57-2b8d41c07a11", title="Fix VAT rounding in invoices", branch="fix-vat-rounding")
    assert len(encode(state_of(facts, PRICES, redact).body)) < 300


def test_texts_of_another_machine_are_made_safe_again():
    hostile = body(title="a\x1b]0;x\x07b\u202e", status="frobnicating", health=("a\nb",), waiting_for="x\r\ny")
    shown = row(hostile)
    assert (shown["title"], shown["status"], shown["health"], shown["waiting_for"]) == ("a ]0;x b", "unknown", ["a b"], "x y")


def test_age_is_never_negative():
    assert row(body(), heard_ms=10_000)["age_s"] == 0


@given(st.binary(max_size=300))
def test_any_bytes_are_a_body_or_refused(data):
    try:
        found = body_untrusted(data)
    except Malformed:
        return
    row(found)


def test_the_latest_times_can_be_shown():
    shown = row(body(since_ms=(1 << 47) - 1, limit=Quota(None, None, (1 << 47) - 1)))
    assert shown["since"].startswith("6429-")


def test_every_field_of_a_body_is_shown():
    names = {field.name for field in fields(SessionBody)}
    shown = set(row(body())) | {"since_ms", "input", "output", "cache_read", "cache_write", "cost_micro", "last_active_ms"}
    assert names <= shown


def states(count, **more):
    made = []
    for index in range(count):
        base = body(session=f"s-{index:04}", last_active_ms=1_000 + index, **more)
        made.append(SessionState(base, False, "age", 0, 0, ()))
    return made


def test_at_most_so_many_ended_sessions_are_listed_newest_first():
    listed = chosen(states(ENDED_LISTED_MAX + 10, status="ended"), 0)
    assert len(listed) == ENDED_LISTED_MAX
    assert listed[0].body.session == f"s-{ENDED_LISTED_MAX + 9:04}"


def test_old_sessions_are_listed_only_while_they_live():
    old = states(2)
    assert chosen(old, 5_000) == []
    living = replace(old[0], alive=True)
    assert chosen([old[1], living], 5_000) == [living]


def test_the_list_is_bounded():
    assert len(chosen(states(LISTED_MAX + 5), 0)) == LISTED_MAX
