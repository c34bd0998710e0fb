import json

import pytest

from node.sessions.claude import is_bookkeeping, parse_line_untrusted, parse_note_untrusted
from node.sessions.formats import BadLine, Kind
from tests.fakes.transcripts import START_MS, STEP_MS, Claude, claude_usage, compact, process_note


def last(session):
    return parse_line_untrusted(session.lines[-1].encode())


def spaced(session):
    """The same line with blanks between, as other writers put it."""
    return parse_line_untrusted(json.dumps(json.loads(session.lines[-1])).encode())


def test_a_prompt():
    session = Claude("s")
    session.prompt("do it")
    row = last(session)
    assert (row.kind, row.text, row.session, row.cwd, row.branch) == (Kind.PROMPT, "do it", "s", "/srv/demo", "main")
    assert row.person is True
    assert row.at_ms == START_MS + STEP_MS
    assert spaced(session) == row


def test_a_reply_with_its_usage():
    session = Claude("s")
    session.reply("fine", usage=claude_usage(1, 2, 30, 400, 5000), message_id="m1")
    row = last(session)
    assert row.kind is Kind.REPLY
    assert row.final
    assert (row.usage.message_id, row.usage.model) == ("m1", "claude-sonnet-4-5")
    assert (row.usage.input, row.usage.output, row.usage.cache_read) == (1, 2, 30)
    assert (row.usage.write_5m, row.usage.write_1h) == (400, 5000)
    assert row.context_tokens == 5433
    assert spaced(session) == row


def test_another_speed_is_priced_as_another_model():
    session = Claude("s")
    session.reply(usage=claude_usage(1, 2) | {"speed": "fast"})
    row = last(session)
    assert (row.model, row.usage.model) == ("claude-sonnet-4-5", "claude-sonnet-4-5:fast")


@pytest.mark.parametrize("usage", [{}, {"input_tokens": "1", "output_tokens": 1}, {"input_tokens": -1, "output_tokens": 1}])
def test_usage_that_makes_no_sense_is_unknown(usage):
    session = Claude("s")
    session.add("assistant", message={"id": "m", "model": "x", "usage": usage, "content": []})
    assert last(session).usage is None


def test_a_call_and_its_subject():
    session = Claude("s")
    call_id = session.call("Bash", {"command": "make"})
    (call,) = last(session).calls
    assert (call.call_id, call.tool, call.subject, call.question) == (call_id, "Bash", "make", False)
    session.call("AskUserQuestion", {"questions": []})
    assert last(session).calls[0].question


def test_a_person_said_yes():
    session = Claude("s")
    session.approved(session.call())
    assert last(session).results[0].verdict == "approve"


def test_a_person_said_no():
    session = Claude("s")
    session.denied(session.call())
    assert parse_line_untrusted(session.lines[-2].encode()).results[0].verdict == "deny"
    assert last(session).kind is Kind.INTERRUPTED


@pytest.mark.parametrize(
    "more",
    [
        {"permissionDecision": {"decision": "accept", "source": "config"}},
        {"permissionDecision": {"decision": "accept", "source": "hook"}},
        {"permissionDecision": {"decision": "accept", "source": "user_permanent", "reasonType": "rule"}},
        {"permissionDecision": {"decision": "accept"}},
        {"permissionDecision": "accept"},
        {"toolUseResult": "User rejected tool use", "toolDenialKind": "auto-denied"},
        {"toolUseResult": "User rejected tool use", "permissionDecision": {"decision": "reject", "source": "config"}},
        {"toolUseResult": "User rejected tool use", "permissionDecision": {"decision": "reject", "source": "hook"}},
        {"toolUseResult": "User rejected tool use", "toolDenialKind": "user-rejected", "toolDenialBeforeRun": False},
        {"toolUseResult": "Error: it failed"},
    ],
)
def test_what_a_rule_a_hook_or_an_interruption_did_is_not_a_persons_word(more):
    session = Claude("s")
    session.result(session.call(), **more)
    assert last(session).results[0].verdict is None


@pytest.mark.parametrize("entrypoint", ["sdk-cli", "sdk-ts", "", None])
def test_headless_sessions_teach_nothing(entrypoint):
    session = Claude("s", entrypoint=entrypoint)
    session.approved(session.call())
    assert last(session).results[0].verdict is None
    session.denied(session.call())
    assert parse_line_untrusted(session.lines[-2].encode()).results[0].verdict is None


def test_two_answers_in_one_line_carry_no_verdict():
    session = Claude("s")
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": "x"} for name in ("a", "b")]
    decision = {"decision": "accept", "source": "user_temporary"}
    session.add("user", message={"role": "user", "content": blocks}, permissionDecision=decision)
    assert [result.verdict for result in last(session).results] == [None, None]


def test_the_ends_of_a_turn():
    session = Claude("s")
    session.interrupted()
    assert last(session).kind is Kind.INTERRUPTED
    session.ended()
    assert last(session).kind is Kind.ENDED
    session.prompt("<local-command-stdout>bye</local-command-stdout>")
    assert last(session).kind is Kind.ENDED
    session.failed()
    assert last(session).kind is Kind.RETRY


def test_a_quota_used_up():
    session = Claude("s")
    session.limited()
    row = last(session)
    assert (row.kind, row.limit.window, row.limit.used_pct, row.limit.resets_at_ms) == (Kind.LIMIT, "5h", 100, None)
    assert row.model is None
    session.limited("Claude AI usage limit reached|1796003600")
    assert last(session).limit.resets_at_ms == 1_796_003_600_000


def test_other_failures_are_retried():
    session = Claude("s")
    session.add("assistant", message={"content": [{"type": "text", "text": "API Error: 529"}]}, isApiErrorMessage=True)
    assert last(session).kind is Kind.RETRY


def test_a_title():
    session = Claude("s")
    session.title("Fix it")
    assert (last(session).kind, last(session).text) == (Kind.TITLE, "Fix it")


def test_bookkeeping_is_told_without_parsing():
    session = Claude("s")
    session.bookkeeping()
    session.attachment()
    for line in session.lines:
        assert is_bookkeeping(line.encode())
        assert parse_line_untrusted(line.encode()) is None


def test_words_inside_a_text_do_not_make_a_line_bookkeeping():
    session = Claude("s")
    session.prompt('{"type":"mode"} "attachment":{')
    assert last(session).kind is Kind.PROMPT


def test_a_torn_bookkeeping_line_is_bad():
    session = Claude("s")
    session.attachment()
    with pytest.raises(BadLine):
        parse_line_untrusted(session.lines[0][:150].encode())
    whole = Claude("s")
    whole.prompt()
    with pytest.raises(BadLine):
        parse_line_untrusted((session.lines[0][:150] + whole.lines[0]).encode())


@pytest.mark.parametrize("row", [{"type": []}, {"type": {}}, {"type": "new-kind"}, {"type": "user"}, {"type": "system", "subtype": []}])
def test_unknown_kinds_are_ignored(row):
    assert parse_line_untrusted(compact({"x": 1} | row).encode()) is None


def test_a_process_file():
    note = parse_note_untrusted(compact(process_note(7, "s", "12", status="waiting", waitingFor="permission prompt")).encode())
    assert (note.pid, note.session, note.start, note.word, note.waiting_for) == (7, "s", "12", "waiting", "permission prompt")
    assert note.person is True
    assert not note.named


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"pid":"7","sessionId":"s"}', b'{"pid":-1,"sessionId":"s"}', b'{"pid":7}', b"x" * 100_000])
def test_half_a_process_file_is_none(data):
    assert parse_note_untrusted(data) is None
