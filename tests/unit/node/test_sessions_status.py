from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.sessions import claude
from node.sessions.fold import Fold, FoldState, Quota
from node.sessions.status import SETTLE_MS, STATUSES, STUCK_MS, UNKNOWN_MS, Life, judge
from tests.fakes.transcripts import Claude

ALIVE = Life("alive")


def seen(session):
    fold = Fold("claude")
    for line in session.lines:
        row = claude.parse_line_untrusted(line.encode())
        if row is not None:
            fold.apply(row)
    return fold.freeze(lambda text: text)


def made(*steps):
    session = Claude("s")
    for step in steps:
        getattr(session, step)()
    return session


def status(session, life, after_ms=SETTLE_MS + 1):
    state = seen(session)
    return judge(state, life, session.at_ms, session.at_ms + after_ms)


@pytest.mark.parametrize("steps", [("prompt", "call"), ("prompt", "reply"), ("prompt",), ("prompt", "interrupted")])
def test_a_dead_process_has_ended_whatever_the_transcript_says(steps):
    """O-S10: none shows working after its process was killed"""
    session = made(*steps)
    found = status(session, Life("gone", gone_ms=session.at_ms + 5))
    assert (found.word, found.since_ms, found.source) == ("ended", session.at_ms + 5, "process")
    assert found.health == (("died",) if steps[-1] in ("prompt", "call") else ())


def test_without_evidence_it_is_unknown_then_ended():
    session = made("prompt", "call")
    assert status(session, Life("none"), UNKNOWN_MS - 1).word == "unknown"
    assert status(session, Life("none"), UNKNOWN_MS).word == "ended"
    assert status(session, Life("none"), UNKNOWN_MS).health == ()


def test_the_agents_own_word_wins():
    session = made("prompt", "call")
    assert status(session, replace(ALIVE, word="idle", word_ms=7)).word == "your_turn"
    assert status(session, replace(ALIVE, word="idle", word_ms=7)).since_ms == 7
    assert status(session, replace(ALIVE, word="busy")).word == "working"
    assert status(session, replace(ALIVE, word="shell")).word == "working"


def test_waiting_says_what_for():
    session = made("prompt", "call")
    found = status(session, replace(ALIVE, word="waiting", waiting_for="permission prompt"))
    assert (found.word, found.waiting_for, found.source) == ("needs_you", "permission prompt: Bash true", "agent")
    assert status(made("prompt"), replace(ALIVE, word="waiting")).waiting_for == "an answer"


@pytest.mark.parametrize(
    ("steps", "word"),
    [
        ((), "your_turn"),
        (("prompt",), "working"),
        (("prompt", "reply"), "your_turn"),
        (("prompt", "reply", "ended"), "your_turn"),
        (("prompt", "interrupted"), "your_turn"),
        (("prompt", "failed"), "working"),
        (("prompt", "limited"), "limited"),
    ],
)
def test_a_living_agent_without_a_word_of_its_own(steps, word):
    """O-S10"""
    assert status(made(*steps), ALIVE).word == word


def test_a_call_without_an_answer_is_a_tool_or_a_permission():
    """O-S10: never called waiting without evidence"""
    session = made("prompt", "call")
    assert status(session, ALIVE, 10).word == "working"
    found = status(session, ALIVE)
    assert (found.word, found.health) == ("unknown", ("tool_or_permission",))
    running = replace(ALIVE, children_known=True, newest_child_ms=session.at_ms)
    assert status(session, running).word == "working"


def test_a_question_needs_an_answer():
    session = made("prompt")
    session.call("AskUserQuestion", {"query": "A or B?"})
    found = status(session, ALIVE)
    assert (found.word, found.waiting_for) == ("needs_you", "question: AskUserQuestion A or B?")


def test_a_call_that_asks_and_does_not_run_needs_an_answer():
    session = made("prompt", "call")
    state = seen(session)
    state = replace(state, pending=(replace(state.pending[0], asks=True),))
    known = replace(ALIVE, children_known=True)
    found = judge(state, known, session.at_ms, session.at_ms + SETTLE_MS)
    assert (found.word, found.waiting_for) == ("needs_you", "permission: Bash true")
    assert judge(state, ALIVE, session.at_ms, session.at_ms + SETTLE_MS).word == "unknown"


def test_a_reply_that_does_not_say_whether_it_is_the_last():
    session = Claude("s")
    session.reply(stop=None)
    assert status(session, ALIVE, 10).word == "working"
    assert status(session, ALIVE, 4 * SETTLE_MS).word == "your_turn"


def test_retrying_is_said():
    assert status(made("prompt", "failed"), replace(ALIVE, word="busy")).health == ("retrying",)


def test_stuck_needs_every_sign():
    session = made("prompt", "call")
    still = Life("alive", word="busy", word_ms=session.at_ms, children_known=True, quiet_since_ms=session.at_ms)
    assert status(session, still, STUCK_MS).word == "stuck"
    assert status(session, still, STUCK_MS).since_ms == session.at_ms
    assert status(session, still, STUCK_MS - 1).word == "working"
    assert status(session, replace(still, quiet_since_ms=None), STUCK_MS).word == "working"
    assert status(session, replace(still, children_known=False), STUCK_MS).word == "working"
    assert status(session, replace(still, newest_child_ms=session.at_ms), STUCK_MS).word == "working"
    old_child = replace(still, newest_child_ms=session.at_ms - 10 * SETTLE_MS)
    assert status(session, old_child, STUCK_MS).word == "stuck"


def test_a_quota_holds_until_it_starts_again():
    state = FoldState(event="ended", quota=Quota("5h", 100, 1_000_000))
    assert judge(state, ALIVE, 1, 999_999).word == "limited"
    assert judge(state, ALIVE, 1, 1_000_000).word == "your_turn"
    assert judge(replace(state, quota=Quota("5h", 99, 1_000_000)), ALIVE, 1, 2).word == "your_turn"
    assert judge(state, replace(ALIVE, word="busy"), 1, 2).word == "working"


@given(
    st.builds(
        Life,
        st.sampled_from(["alive", "gone", "none"]),
        word=st.sampled_from([None, "busy", "idle", "waiting", "later-word"]),
        word_ms=st.none() | st.integers(0, 1 << 41),
        newest_child_ms=st.none() | st.integers(0, 1 << 41),
        children_known=st.booleans(),
        quiet_since_ms=st.none() | st.integers(0, 1 << 41),
    ),
    st.sampled_from(["", "prompt", "reply", "results", "ended", "interrupted", "retry", "limit", "later-event"]),
    st.none() | st.integers(0, 1 << 41),
    st.integers(0, 1 << 41),
    st.integers(0, 1 << 41),
)
def test_every_evidence_has_one_word(life, event, event_ms, last_ms, now_ms):
    found = judge(FoldState(event=event, event_ms=event_ms), life, last_ms, now_ms)
    assert found.word in STATUSES
    assert (found.word == "ended") >= (life.state == "gone")
    assert life.state == "alive" or found.word in ("ended", "unknown")
