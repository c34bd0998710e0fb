"""Anything in a transcript, a process file or a body is a value or refused, and never more than that."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.codec import Malformed, encode
from node.sessions import claude, codex
from node.sessions.fold import Fold
from node.sessions.formats import BadLine, salvage
from node.sessions.inventory import body_untrusted, fleet_row
from tests.fakes.transcripts import Claude, Codex, process_note

PARSERS = {"claude": claude.parse_line_untrusted, "codex": codex.parse_line_untrusted}


def real_lines():
    one = Claude("s")
    one.prompt()
    one.approved(one.call())
    one.denied(one.call("Edit", {"file_path": "/x"}))
    one.limited()
    one.failed()
    one.title("t")
    one.attachment()
    one.ended()
    two = Codex("a")
    two.start()
    call_id = two.call("make", escalated=True)
    two.usage(10, 1)
    two.token_count(10, 1, 0, {"primary": {"used_percent": 3, "window_minutes": 300, "resets_at": 1_796_000_000}})
    two.ran(call_id)
    two.aborted(call_id)
    two.ended()
    return [("claude", line) for line in one.lines] + [("codex", line) for line in two.lines]


LINES = real_lines()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def take(agent, fold, line):
    """Read a line as the watcher does: parse, salvage, fold, freeze."""
    try:
        row = PARSERS[agent](line)
    except BadLine:
        for part in salvage(line):
            try:
                PARSERS[agent](part)
            except BadLine:
                continue
        return
    if row is not None:
        fold.apply(row)
        fold.counts(row)


def check(agent, lines):
    fold = Fold(agent)
    for line in lines:
        take(agent, fold, line)
    encode(fold.freeze(lambda text: text))


@pytest.mark.parametrize("agent", PARSERS)
@given(lines=st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes(agent, lines):
    check(agent, lines)


@settings(max_examples=120)
@given(st.sampled_from(LINES), st.data())
def test_a_real_line_with_bytes_changed(pair, data):
    agent, text = pair
    line = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(line)))
    check(agent, [bytes(line), bytes(line[:cut]), bytes(line[:cut] + line)])


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    if isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


@settings(max_examples=150)
@given(st.sampled_from(LINES), st.data())
def test_a_real_record_with_any_value_anywhere(pair, data):
    agent, text = pair
    row = json.loads(text)
    *way, last = data.draw(st.sampled_from([path for path in places(row) if path]))
    holder = row
    for step in way:
        holder = holder[step]
    holder[last] = data.draw(JSON)
    lines = [other.encode() for name, other in LINES if name == agent]
    lines.insert(data.draw(st.integers(0, len(lines))), json.dumps(row, separators=(",", ":")).encode())
    check(agent, lines)


@given(st.sampled_from(sorted(process_note(1, "s", "1"))), JSON, st.binary(max_size=100))
def test_any_process_file(key, value, junk):
    claude.parse_note_untrusted(junk)
    claude.parse_note_untrusted(json.dumps(process_note(1, "s", "1") | {key: value}).encode())


@given(st.binary(max_size=400))
def test_any_body(data):
    try:
        body = body_untrusted(data)
    except Malformed:
        return
    fleet_row(body, node="n", node_name="m", heard_ms=0, stale=True, now_ms=0)
