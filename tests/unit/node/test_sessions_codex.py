import json

import pytest

from node.sessions.codex import is_bookkeeping, parse_line_untrusted
from node.sessions.formats import BadLine, Kind
from tests.fakes.transcripts import Codex, compact


def last(session):
    row = parse_line_untrusted(session.lines[-1].encode())
    assert parse_line_untrusted(json.dumps(json.loads(session.lines[-1])).encode()) == row
    return row


def test_the_start():
    session = Codex("a")
    row = last(session)
    assert (row.kind, row.session, row.cwd, row.branch, row.person) == (Kind.START, session.session, "/srv/demo", "main", True)
    assert not row.forked


def test_a_script_is_not_a_person():
    assert last(Codex("a", source="exec")).person is False


def test_a_helper_names_its_parent():
    session = Codex("a", source={"subagent": {}}, session_id="the-parent", thread_source="subagent")
    row = last(session)
    assert (row.parent, row.helper, row.person) == ("the-parent", True, False)


def test_a_turn():
    session = Codex("a")
    session.start("go on")
    kinds = [parse_line_untrusted(line.encode()).kind for line in session.lines]
    assert kinds == [Kind.START, Kind.PROMPT, Kind.CONTEXT, Kind.PROMPT]
    assert last(session).text == "go on"
    session.ended()
    assert last(session).kind is Kind.ENDED


def test_context():
    session = Codex("a", policy="untrusted")
    session.start()
    row = parse_line_untrusted(session.lines[2].encode())
    assert (row.model, row.asked, row.reviewed) == ("gpt-5-codex", "untrusted", True)


def test_calls_and_their_answers():
    session = Codex("a")
    call_id = session.call("make", escalated=True)
    (call,) = last(session).calls
    assert (call.call_id, call.tool, call.subject, call.asks) == (call_id, "exec_command", "make", True)
    session.output(call_id)
    assert last(session).results[0].verdict is None
    session.output(call_id, "Wall time: 3.1 seconds\naborted by user")
    assert last(session).results[0].verdict == "deny"
    session.output(call_id, "the log says: aborted by user\nand goes on")
    assert last(session).results[0].verdict is None


def test_how_long_a_command_waited():
    session = Codex("a")
    session.ran("c", waited_ms=1234)
    row = last(session)
    assert (row.kind, row.waited_ms, row.results[0].call_id) == (Kind.RAN, 1234, "c")


def test_usage_counts_the_cache_apart():
    session = Codex("a")
    session.usage(100, 7, cached=60, response_id="r")
    usage = last(session).usage
    assert (usage.message_id, usage.input, usage.output, usage.cache_read) == ("r", 40, 7, 60)


def test_a_running_sum_with_quota():
    session = Codex("a")
    windows = {
        "primary": {"used_percent": 41.0, "window_minutes": 300, "resets_at": 1_796_003_600},
        "secondary": {"used_percent": 96.9, "window_minutes": 10_080, "resets_in_seconds": 60},
    }
    session.token_count(100, 7, 60, windows)
    row = last(session)
    assert row.total
    assert (row.context_tokens, row.window_tokens) == (107, 258_400)
    assert (row.limit.window, row.limit.used_pct, row.limit.resets_at_ms) == ("7d", 96, session.at_ms + 60_000)


def test_a_quota_used_up():
    session = Codex("a")
    session.token_count(1, 1, 0, {"primary": None, "rate_limit_reached_type": "x"})
    assert last(session).limit.used_pct == 100
    session.event("error", message="You've hit your usage limit.")
    assert last(session).kind is Kind.LIMIT
    session.event("error", message="stream closed")
    assert last(session).kind is Kind.RETRY


def test_standing_rules_are_seen():
    session = Codex("a")
    session.add("world_state", {"state": {"permissions": {"approved_command_prefixes": [["git"]]}}})
    assert last(session).ruled is True


def test_a_world_without_rules_in_it_and_an_item_without_a_name_say_nothing():
    session = Codex("a")
    session.add("world_state", {"state": {"model": "x"}})
    assert last(session) is None
    session.event("item_completed", item={"type": "CommandExecution"})
    assert last(session) is None
    session.event("item_completed", item={"type": "Reasoning", "id": "x"})
    assert last(session) is None


def test_bookkeeping_is_told_without_parsing():
    session = Codex("a")
    session.add("response_item", {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]})
    assert is_bookkeeping(session.lines[-1].encode())
    assert last(session) is None
    with pytest.raises(BadLine):
        parse_line_untrusted(session.lines[-1][:120].encode())


@pytest.mark.parametrize(
    "row",
    [
        {"type": []},
        {"type": "later_kind", "payload": {}},
        {"type": "event_msg", "payload": []},
        {"type": "event_msg", "payload": {"type": {}}},
        {"type": "response_item", "payload": {"type": "function_call"}},
        {"type": "token_usage_record", "payload": {"response_id": "r", "usage": {"input_tokens": True}}},
    ],
)
def test_what_is_not_known_is_ignored(row):
    assert parse_line_untrusted(compact({"timestamp": "x"} | row).encode()) is None


def test_arguments_that_are_not_json_leave_an_empty_subject():
    line = compact({"timestamp": "x", "type": "response_item", "payload": {"type": "function_call", "call_id": "c", "arguments": "{"}})
    assert parse_line_untrusted(line.encode()).calls[0].subject == ""


def test_the_lines_of_older_versions():
    session = Codex("a")
    session.event("user_message", message="go on")
    assert (last(session).kind, last(session).text) == (Kind.PROMPT, "go on")
    session.event("agent_message", message="gone")
    assert (last(session).kind, last(session).text) == (Kind.REPLY, "gone")
    session.add("response_item", {"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls", "-l"]}})
    assert (last(session).calls[0].tool, last(session).calls[0].subject) == ("shell", "ls -l")
    session.add("response_item", {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"})
    assert (last(session).calls[0].tool, last(session).calls[0].subject) == ("apply_patch", "*** Begin")


@pytest.mark.parametrize(("minutes", "window"), [(300, "5h"), (10_080, "7d"), (90, "90m"), (None, None), (10**7, None)])
def test_the_windows_of_quotas_have_short_names(minutes, window):
    session = Codex("a")
    session.token_count(1, 1, 0, {"primary": {"used_percent": 3, "window_minutes": minutes}})
    assert last(session).limit.window == window


def test_a_call_of_an_unknown_kind_is_ignored():
    spaced = {"payload": {"call_id": "c", "type": "later_call"}, "type": "response_item", "timestamp": "x"}
    assert parse_line_untrusted(json.dumps(spaced).encode()) is None
