"""Requests to run something that wait for a person: shown on every machine of this owner, answered from any but one.

An open request is a ``waiting`` record, sealed for the owner's machines and published again while it is open. An
answer from another machine comes back over a channel, signed; whether it counts is decided in ``asks``.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass

from mesh.base.clock import rfc3339
from mesh.base.codec import Malformed, decode_untrusted, encode
from mesh.base.crypto import Context, verify
from mesh.base.errors import PeerFault, Refused
from mesh.base.names import NodeId, base32
from mesh.base.ports import Member
from node.messages import (
    ANSWER_LIFE_MS_MAX,
    PURPOSE_ANSWER,
    TASK_MESSAGES,
    Answer,
    AnswerBody,
    Answered,
    WaitingBody,
)
from node.tasks.asks import (
    ALLOW,
    Rejected,
    ask_digest,
    command_line,
    judge_answer,
    may_answer,
    shown,
    waiting_body,
)
from node.tasks.ground import Ground, closing, receive_message
from node.tasks.task import WORKED, Key, Task

WAITING_KIND = 33
BODY_BYTES_MAX = 2_048
ANSWER_BYTES_MAX = 512
ANSWER_LIFE_MS = ANSWER_LIFE_MS_MAX // 2
INBOX_MAX = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InboxItem:
    """Something that waits for a person, on some machine.

    Attributes:
        node: The machine it waits on.
        body: What is asked; on this machine its command is complete.
    """

    node: NodeId
    body: WaitingBody

    @property
    def text_id(self) -> str:
        """The id as people see it: 26 characters."""
        return base32(self.body.request)

    def json(self, name: str) -> dict[str, object]:
        """Show the item in the shape scripts rely on (docs/CLI.md).

        Args:
            name: The machine's.

        Returns:
            Plain values.
        """
        body = self.body
        return {
            "id": self.text_id,
            "node": base32(self.node),
            "name": name,
            "kind": body.kind,
            "session": body.session,
            "task": base32(body.task) if body.task else None,
            "what": body.what,
            "command": body.command,
            "digest": body.digest.hex(),
            "advice": None,
            "since": rfc3339(body.since_ms),
            "complete": body.complete,
            "requester": base32(body.requester) if body.requester else None,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer that counts."""

    key: Key
    allowed: bool


class Approvals:
    """Shows open requests and judges answers; carrying a decision out is left to who runs the tasks.

    Args:
        ground: What runs stand on.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    async def ask(self, task: Task) -> None:
        """Publish a task's request, or publish it again so that it stays known."""
        ground = self._ground
        try:
            await ground.records.publish(WAITING_KIND, task.request, ground.sealer.seal(encode(self._waiting(task))))
        except Refused as refused:
            _log.warning("the request for task %s is only shown here: %s", task.text_id, refused)

    async def withdraw(self, request: bytes) -> None:
        """Take a request back everywhere."""
        try:
            await self._ground.records.withdraw(WAITING_KIND, request)
        except Refused as refused:
            _log.warning("a request was not withdrawn elsewhere: %s", refused)

    async def withdraw_strays(self) -> None:
        """Take back requests about tasks that an earlier run of the node published and that no longer wait."""
        for entry in self._ground.records.entries(WAITING_KIND):
            body = self._read(entry.body, entry.author)
            if entry.author != self._ground.me or body is None or body.kind != "task":
                continue
            task = self._ground.ledger.by_request(entry.key)
            if task is None or task.state != "asking":
                await self.withdraw(entry.key)

    def _waiting(self, task: Task) -> WaitingBody:
        ground = self._ground
        digest = ask_digest(task, sandbox="none", output_bytes_max=ground.settings.output_bytes_max)
        requester = ground.directory.member(task.key.requester)
        name = requester.name if requester else "a machine"
        return waiting_body(task, digest, requester_name=name, sandbox="none", since_ms=task.hops[-1].at_ms)

    def _read(self, sealed: bytes, author: NodeId) -> WaitingBody | None:
        """Open a waiting record; None where it is not for us or not readable."""
        plain = self._ground.sealer.unseal(sealed, author)
        if plain is None:
            return None
        try:
            return decode_untrusted(WaitingBody, plain, bytes_max=BODY_BYTES_MAX)
        except Malformed:
            return None

    def inbox(self) -> list[InboxItem]:
        """List what waits for a person on any machine of this owner, oldest first, at most 500."""
        ground = self._ground
        mine = [
            InboxItem(ground.me, dataclasses.replace(self._waiting(task), command=command_line(task.spec.argv), complete=True))
            for task in ground.ledger.live(WORKED)
            if task.state == "asking"
        ]
        others = [
            InboxItem(entry.author, body)
            for entry in ground.records.entries(WAITING_KIND)
            if (body := self._read(entry.body, entry.author)) is not None
            and not (entry.author == ground.me and body.kind == "task")
            and body.request == entry.key
        ]
        return sorted([*mine, *others], key=lambda item: item.body.since_ms)[:INBOX_MAX]

    async def answer(self, item: InboxItem, decision: int, digest: bytes) -> Decision | None:
        """Answer a request.

        Args:
            item: From :meth:`inbox`.
            decision: 1 allow, 2 deny.
            digest: 32 bytes, of what the person was shown.

        Returns:
            The decision where the request is this machine's own and is to be carried out here; None where another
            machine took it.

        Raises:
            Refused: It does not count; the reason says why.
            Unreachable: The machine that asks is not reached.
        """
        ground = self._ground
        body = AnswerBody(item.node, item.body.request, digest, decision, ground.now_ms() + ANSWER_LIFE_MS)
        if item.node == ground.me:
            return _decision(self._judge(body, ground.directory.me, remote=False))
        signed = encode(body)
        message = Answer(signed, ground.signing_key.sign(Context.ANSWER, ground.mesh, signed))
        channel = await ground.channels.open_channel(item.node, PURPOSE_ANSWER, TASK_MESSAGES.encode(message))
        async with closing(channel):
            reply = await receive_message(channel)
        if not isinstance(reply, Answered):
            raise PeerFault("the other machine did not say whether the answer counts")
        if not reply.taken:
            raise Refused(shown(reply.detail), reason=shown(reply.reason))
        return None

    def judge_untrusted(self, answer: Answer, peer: NodeId) -> Decision | Rejected:
        """Judge an answer that another machine sent.

        Args:
            answer: As received.
            peer: The machine at the other end of the channel.

        Returns:
            The decision to carry out, or why there is none.

        Raises:
            Malformed: The signed bytes are no answer.
        """
        ground = self._ground
        member = ground.directory.member(peer)
        if member is None or not verify(member.public_key, Context.ANSWER, ground.mesh, answer.body, answer.signature):
            return Rejected("signature", "the answer is not signed by the machine that sent it")
        return self._judge(decode_untrusted(AnswerBody, answer.body, bytes_max=ANSWER_BYTES_MAX), member, remote=True)

    def _judge(self, body: AnswerBody, answerer: Member, *, remote: bool) -> Decision | Rejected:
        ground = self._ground
        task = ground.ledger.by_request(body.request)
        waiting = self._waiting(task) if task is not None and task.state == "asking" else None
        rejected = judge_answer(task, body, ground.me, waiting, remote=remote, now_ms=ground.now_ms())
        if rejected is None and task is not None:
            rejected = may_answer(ground.directory.me, answerer, task.key.requester)
        if rejected is not None:
            return rejected
        assert task is not None, "judge_answer rejects what is unknown"
        return Decision(task.key, body.decision == ALLOW)


def _decision(judged: Decision | Rejected) -> Decision:
    if isinstance(judged, Rejected):
        raise Refused(judged.detail, reason=judged.reason)
    return judged
