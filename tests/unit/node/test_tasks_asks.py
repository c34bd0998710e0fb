"""Who may answer, what an answer is bound to, and what a person is shown."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.codec import encode
from mesh.base.names import NodeId, OwnerId, TaskId
from mesh.base.ports import Member
from node.messages import AnswerBody, TaskSpec
from node.tasks.asks import ask_digest, command_line, judge_answer, may_answer, shown, waiting_body
from node.tasks.task import WORKED, Key, Task

ME, REQUESTER = NodeId(b"w" * 16), NodeId(b"q" * 16)
TASK = Task(
    Key(WORKED, REQUESTER, TaskId(b"t" * 16), 1), ME, TaskSpec(1, (b"make", b"test"), "shop", None, "ab" * 20, 60), 9, "asking", 5,
    request=b"r" * 16,
)  # fmt: skip
DIGEST = ask_digest(TASK, sandbox="none", output_bytes_max=10)
WAITING = waiting_body(TASK, DIGEST, requester_name="laptop", sandbox="none", since_ms=7)
ANSWER = AnswerBody(ME, b"r" * 16, DIGEST, 1, 1_000_000 + 300_000)


def member(node: bytes, *, mine: bool = True, roles: tuple[str, ...] = ("member",), state: str = "live") -> Member:
    return Member(NodeId(node), b"k" * 32, "x", OwnerId(b"o" * 16), "Ana", mine, frozenset(roles), state, 1, True, (), None)


def judge(answer: AnswerBody = ANSWER, task: Task | None = TASK, *, remote: bool = True, waiting: object = WAITING) -> str | None:
    rejected = judge_answer(task, answer, ME, waiting, remote=remote, now_ms=1_000_000)  # type: ignore[arg-type]
    return rejected.reason if rejected else None


def test_only_the_one_legal_cell_may_answer():
    """SECURITY: role x owner x requester/other x state against allow."""
    roles = [("member",), ("viewer",), ("worker",), ("relay",), ()]
    nodes = [b"q" * 16, b"o" * 16]
    legal = [
        (role, mine, node, state)
        for role, mine, node, state in itertools.product(roles, (True, False), nodes, ["live", "stale", "expelled", "expired"])
        if may_answer(member(ME), member(node, mine=mine, roles=role, state=state), REQUESTER) is None
    ]
    assert legal == [(("member",), True, b"o" * 16, "live"), (("member",), True, b"o" * 16, "stale")]
    assert may_answer(member(ME), None, REQUESTER) is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"worker": b"x" * 16}, "wrong_machine"),
        ({"digest": b"x" * 32}, "changed"),
        ({"expires_ms": 999_999}, "expired"),
        ({"expires_ms": 1_000_000 + 600_000 + 60_001}, "expired"),
    ],
)
def test_an_answer_is_bound_to_what_was_shown_and_when(change: dict[str, object], reason: str | None):
    assert judge(dataclasses.replace(ANSWER, **change)) == reason  # type: ignore[arg-type]


def test_an_answer_is_used_once():
    assert judge(task=dataclasses.replace(TASK, state="accepted"), waiting=None) == "answered"
    assert judge(task=None, waiting=None) == "unknown"


def test_what_is_not_shown_in_full_can_only_be_denied_elsewhere():
    long = dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, argv=(b"echo", b"x" * 5_000)))
    body = waiting_body(long, DIGEST, requester_name="laptop", sandbox="none", since_ms=7)
    assert not body.complete
    assert len(encode(body)) <= 2_048
    assert judge(waiting=body) == "incomplete"
    assert judge(dataclasses.replace(ANSWER, decision=2), waiting=body) is None
    assert judge(waiting=body, remote=False) is None


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, argv=(b"make", b"test", b"x"))),
        dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, argv=(b"make test",))),
        dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, tree="cd" * 20)),
        dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, timeout_s=61)),
        dataclasses.replace(TASK, spec=dataclasses.replace(TASK.spec, env=("A",))),
        dataclasses.replace(TASK, key=dataclasses.replace(TASK.key, requester=NodeId(b"p" * 16))),
        dataclasses.replace(TASK, key=dataclasses.replace(TASK.key, attempt=2)),
        dataclasses.replace(TASK, worker=NodeId(b"v" * 16)),
    ],
)
def test_the_digest_covers_the_complete_thing(changed: Task):
    assert ask_digest(changed, sandbox="none", output_bytes_max=10) != DIGEST


def test_the_digest_covers_sandbox_and_caps():
    assert ask_digest(TASK, sandbox="bwrap", output_bytes_max=10) != DIGEST != ask_digest(TASK, sandbox="none", output_bytes_max=11)


def test_what_is_asked_says_there_is_no_sandbox():
    assert WAITING.what.endswith("WITHOUT A SANDBOX")
    assert "abababababab" in WAITING.what
    assert WAITING.command == "make test"
    assert WAITING.complete


@given(st.text(max_size=200))
def test_what_is_shown_is_printable(text: str):
    written = shown(text)
    assert written.isprintable() or written == ""
    assert not set(written) & set("\u202e\u2066\u200b\n\r\x1b")


def test_a_command_is_quoted_and_escaped():
    assert command_line((b"rm", b"a b", b"\xff", b"x\ny", "e\u202ef".encode())) == (
        r"rm 'a b' '\u{dcff}' 'x\u{a}y' 'e\u{202e}f'"
    )
