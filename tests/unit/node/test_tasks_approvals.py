"""Open requests as records, and answers as they come in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import trio

from mesh.base.codec import encode
from mesh.base.crypto import Context
from mesh.base.errors import Refused, Usage
from node.messages import Answer, AnswerBody, TaskSpec, WaitingBody
from node.tasks.approvals import WAITING_KIND, Decision
from node.tasks.asks import Rejected
from node.tasks.ports import RunSettings
from node.tasks.runs import Runs
from node.tasks.task import WORKED, Key, Task
from tests.fakes.machines import MESH, Fleet, Machine


async def asking(machine: Machine, works: Runs, requester: Machine, number: int = 1) -> Task:
    from mesh.base.names import TaskId

    task = Task(
        Key(WORKED, requester.node, TaskId(bytes([number]) * 16), 1), machine.node, TaskSpec(1, (b"make",), "shop", None, None, 60), 0,
        "offered", 5,
    )  # fmt: skip
    from node.tasks.delegation import Judged, work
    from node.tasks.policy import Ask

    task = work(task, Judged(Ask(), bytes([number]) * 16, 1 << 46), 7 + number).task
    await works._ground.ledger.put(task)
    await works._approvals.ask(task)
    return task


async def test_records_are_sealed_for_this_owner_and_readable_there(tmp_path: Path):
    fleet = Fleet(tmp_path)
    mini, phone, bens, laptop = fleet.machine("mini"), fleet.machine("phone"), fleet.machine("b", "ben"), fleet.machine("laptop")
    async with mini.up() as works, phone.up() as seen, bens.up() as stranger:
        task = await asking(mini, works, laptop)
        (item,) = seen.inbox()
        assert (item.node, item.body.task, item.body.command, item.body.requester) == (mini.node, task.key.task, "make", laptop.node)
        assert stranger.inbox() == []
        assert set(seen.inbox_json()[0]) >= {"id", "node", "name", "kind", "session", "task", "what", "command", "digest", "advice", "since"}
        await works._approvals.withdraw(task.request)
        assert seen.inbox() == []
        assert len(works.inbox()) == 1, "here the ledger counts, not the record"


async def test_bodies_that_are_not_sound_are_not_shown(tmp_path: Path):
    fleet = Fleet(tmp_path)
    mini, phone = fleet.machine("mini"), fleet.machine("phone")
    async with phone.up() as seen:
        sound = WaitingBody("task", b"r" * 16, None, None, None, "w", "c", True, b"d" * 32, 5)
        await mini.records.publish(WAITING_KIND, b"r" * 16, mini.sealer.seal(encode(sound)))
        await mini.records.publish(WAITING_KIND, b"x" * 16, mini.sealer.seal(encode(sound)))
        await mini.records.publish(WAITING_KIND, b"y" * 16, mini.sealer.seal(b"garbage"))
        await mini.records.publish(WAITING_KIND, b"z" * 16, b"not sealed")
        assert [item.body for item in seen.inbox()] == [sound], "a record shows only the request its key names"
        for text in ("", "7", "oooo"):
            with pytest.raises(Usage):
                await seen.answer(text, allow=True)


@pytest.mark.parametrize("fault", ["signature", "context", "mesh", "late", "digest", "worker", "unknown"])
async def test_an_answer_that_is_not_sound_does_not_count(tmp_path: Path, fault: str):
    """SECURITY: swap, replay in another mesh, another purpose, after its time."""
    fleet = Fleet(tmp_path)
    mini, phone, laptop = fleet.machine("mini"), fleet.machine("phone"), fleet.machine("laptop")
    async with mini.up() as works:
        task = await asking(mini, works, laptop)
        (item,) = works.inbox()
        body = AnswerBody(mini.node, task.request, item.body.digest, 1, works._ground.now_ms() + 60_000)

        def judge(change: dict[str, object], *, context: Context = Context.ANSWER, mesh: bytes = MESH, break_: bool = False):
            data = encode(dataclasses.replace(body, **change))  # type: ignore[arg-type]
            signature = bytes(64) if break_ else phone.key.sign(context, mesh, data)
            return works._approvals.judge_untrusted(Answer(data, signature), phone.node)

        judged = {
            "signature": lambda: judge({}, break_=True),
            "context": lambda: judge({}, context=Context.OFFER),
            "mesh": lambda: judge({}, mesh=b"another-mesh-id!"),
            "late": lambda: judge({"expires_ms": 1}),
            "digest": lambda: judge({"digest": bytes(32)}),
            "worker": lambda: judge({"worker": phone.node}),
            "unknown": lambda: judge({"request": b"?" * 16}),
        }[fault]()
        assert isinstance(judged, Rejected)
        assert judge({}) == Decision(task.key, True)
        assert judge({"decision": 2}) == Decision(task.key, False)


async def test_a_record_that_cannot_be_published_still_asks_here(tmp_path: Path):
    fleet = Fleet(tmp_path)
    mini, laptop = fleet.machine("mini"), fleet.machine("laptop")
    async with mini.up() as works:
        mini.records.refuse = Refused("no")
        await asking(mini, works, laptop)
        assert len(works.inbox()) == 1


async def test_strays_of_an_earlier_run_are_taken_back(tmp_path: Path):
    fleet = Fleet(tmp_path)
    mini, phone, laptop = fleet.machine("mini", settings=RunSettings(runs="ask")), fleet.machine("phone"), fleet.machine("laptop")
    async with phone.up() as seen:
        async with mini.up() as works:
            kept = await asking(mini, works, laptop)
            gone = await asking(mini, works, laptop, 2)
            works._ground.ledger._database.write_now(
                lambda c: c.execute("UPDATE task SET state = 'refused', final = 1 WHERE task = ?", (gone.key.task,))
            )
        assert len(seen.inbox()) == 2
        async with mini.up():
            with trio.fail_after(10):
                while len(seen.inbox()) != 1:  # noqa: ASYNC110 - records wake nobody here
                    await trio.sleep(0.005)
            assert seen.inbox()[0].body.request == kept.request
