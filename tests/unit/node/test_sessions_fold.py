import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import decode_untrusted, encode
from node.sessions import claude, codex
from node.sessions.fold import PENDING_MAX, STATE_BYTES_MAX, WAITED_MS_MIN, Fold, FoldState
from tests.fakes.transcripts import START_MS, STEP_MS, Claude, Codex, claude_usage


def keep(text):
    return text


def folded(session, state=None):
    agent, parse = ("claude", claude.parse_line_untrusted) if isinstance(session, Claude) else ("codex", codex.parse_line_untrusted)
    fold = Fold(agent, state)
    labels = []
    for line in session.lines:
        row = parse(line.encode())
        if row is not None:
            label = fold.apply(row)
            labels += [label] if label else []
    return fold, labels


def verdicts(session):
    return [(label.verdict, label.subject) for label in folded(session)[1]]


def test_place_and_time():
    session = Claude("s", "/srv/x", branch="dev")
    session.prompt()
    session.reply()
    fold, _ = folded(session)
    assert (fold.cwd, fold.branch, fold.model, fold.person) == ("/srv/x", "dev", "claude-sonnet-4-5", True)
    assert (fold.first_ms, fold.last_ms) == (START_MS + STEP_MS, START_MS + 2 * STEP_MS)
    assert (fold.event, fold.final, fold.turns) == ("reply", True, 2)


def test_lines_of_one_reply_are_one_turn():
    session = Claude("s")
    session.prompt()
    session.call()
    assert folded(session)[0].turns == 2


def test_decisions_name_what_was_decided():
    session = Claude("s")
    session.approved(session.call("Bash", {"command": "make"}))
    session.denied(session.call("Bash", {"command": "rm -rf /"}))
    session.result(session.call("Bash", {"command": "ls"}), permissionDecision={"decision": "accept", "source": "config"})
    assert verdicts(session) == [("approve", "make"), ("deny", "rm -rf /")]


def test_an_answer_to_a_question_is_not_a_decision():
    session = Claude("s")
    session.denied(session.call("ExitPlanMode", {"plan": "x"}))
    assert verdicts(session) == []


def test_a_verdict_on_a_call_nobody_saw_is_not_a_decision():
    session = Claude("s")
    session.approved("toolu_unknown")
    assert verdicts(session) == []


def test_helper_lines_do_not_say_where_the_session_stands():
    session = Claude("s")
    session.prompt()
    session.reply("done", usage=claude_usage(100, 1))
    session.helper = "h"
    session.reply("sub", usage=claude_usage(999, 1), stop="tool_use", model="claude-haiku-4-5")
    fold, _ = folded(session)
    assert (fold.event, fold.final, fold.context_tokens, fold.model) == ("reply", True, 101, "claude-sonnet-4-5")


def test_a_quota_is_over_when_the_model_answers_again():
    session = Claude("s")
    session.limited()
    assert folded(session)[0].quota.used_pct == 100
    session.reply()
    assert folded(session)[0].quota is None


def codex_call(*, policy="on-request", escalated=True, source="cli", waited_ms=2_000, ran=True, deny=False, **meta):
    session = Codex("a", policy=policy, source=source, **meta)
    session.start()
    call_id = session.call("make", escalated=escalated)
    if ran:
        session.ran(call_id, waited_ms)
    if deny:
        session.aborted(call_id)
    else:
        session.output(call_id)
    return session


def test_codex_yes_and_no():
    assert verdicts(codex_call()) == [("approve", "make")]
    assert verdicts(codex_call(ran=False, deny=True)) == [("deny", "make")]
    assert verdicts(codex_call(ran=False, deny=True, policy="untrusted", escalated=False)) == [("deny", "make")]


@pytest.mark.parametrize(
    "more",
    [
        {"policy": "never"},
        {"source": "exec"},
        {"escalated": False},
        {"waited_ms": WAITED_MS_MIN - 1},
        {"ran": False},
        {"deny": True, "ran": True},
        {"deny": True, "ran": False, "escalated": False},
        {"deny": True, "ran": False, "policy": "never"},
        {"deny": True, "ran": False, "source": "exec"},
    ],
)
def test_codex_lines_that_prove_nothing(more):
    assert verdicts(codex_call(**more)) == []


def test_codex_with_standing_rules_teaches_no_approval():
    session = Codex("a")
    session.add("world_state", {"state": {"permissions": {"approved_command_prefixes": [["make"]]}}})
    other = codex_call()
    session.lines += other.lines[1:]
    assert verdicts(session) == []


def test_codex_sums_count_only_without_records_and_not_in_a_fork():
    def counted(session):
        fold = Fold("codex")
        found = []
        for line in session.lines:
            row = codex.parse_line_untrusted(line.encode())
            if row is not None:
                fold.apply(row)
                found += [row.usage.message_id] if fold.counts(row) else []
        return found

    new = Codex("a")
    new.usage(10, 1, response_id="r")
    new.token_count(10, 1)
    assert counted(new) == ["r"]
    old = Codex("b")
    old.token_count(10, 1)
    assert counted(old) == ["total"]
    fork = Codex("c", forked_from_id="x")
    fork.token_count(10, 1)
    assert counted(fork) == []


def test_a_fork_keeps_its_own_name():
    session = Codex("a")
    session.lines += Codex("parent").lines
    assert folded(session)[0].session == session.session


def test_the_oldest_unanswered_calls_go():
    session = Claude("s")
    ids = [session.call() for _ in range(PENDING_MAX + 3)]
    assert list(folded(session)[0].pending) == ids[3:]


def test_texts_are_redacted_when_the_fold_is_stored():
    session = Claude("s")
    session.title("use hunter2")
    session.call("Bash", {"command": "login hunter2"})
    state = folded(session)[0].freeze(lambda text: text.replace("hunter2", "[secret]"))
    assert b"hunter2" not in encode(state)
    assert (state.title, state.pending[0].subject) == ("use [secret]", "login [secret]")


def test_a_failure_after_the_end_of_a_turn_changes_nothing():
    session = Claude("s")
    session.ended()
    session.failed()
    assert folded(session)[0].event == "ended"


@given(st.lists(st.sampled_from(["prompt", "reply", "call", "ended", "interrupted", "failed", "limited", "title"]), max_size=30), st.data())
def test_going_on_from_a_stored_fold_is_as_reading_on(steps, data):
    session = Claude("s")
    for step in steps:
        getattr(session, step)(*(["t"] if step == "title" else []))
    cut = data.draw(st.integers(0, len(session.lines)))
    first, rest = Claude("s"), Claude("s")
    first.lines, rest.lines = session.lines[:cut], session.lines[cut:]
    stored = encode(folded(first)[0].freeze(keep))
    resumed = folded(rest, decode_untrusted(FoldState, stored, bytes_max=STATE_BYTES_MAX))[0]
    assert resumed.freeze(keep) == folded(session)[0].freeze(keep)
