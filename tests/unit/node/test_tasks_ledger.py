"""The ledger on a real database: what is written is read, also by the next process, and searches find it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.base.db import Database
from mesh.base.names import NodeId, TaskId, base32
from node.messages import STATES, Hop, TaskSpec
from node.tasks.ledger import NEVER_SPEC, SCHEMA, Ledger, put_task, read_task
from node.tasks.task import REQUESTED, WORKED, Key, Task, ended, moved

ROOT = Path(__file__).parents[3]
SPEC = TaskSpec(1, (b"make", b"\xff"), "shop", b"r" * 16, "ab" * 20, 60, ("A",))


def task(number: int, *, side: str = WORKED, state: str = "accepted", requester: bytes = b"q", created_ms: int = 0) -> Task:
    key = Key(side, NodeId(requester * 16), TaskId(number.to_bytes(16, "big")), 1)
    return Task(key, NodeId(b"w" * 16), SPEC, 5, state, created_ms or number, hops=(Hop(STATES.index(state), 7),))


@pytest.fixture
def database(tmp_path: Path):
    opened = Database(tmp_path / "tasks.db", SCHEMA)
    yield opened
    opened.close()


async def test_what_is_put_is_read(database: Database):
    ledger = Ledger(database)
    whole = dataclasses.replace(
        task(1), cancel_asked=True, exit_code=7, reason="exit", detail="why", started_ms=8, ended_ms=9, output_bytes=10,
        until_ms=11, offer=b"o", request=b"r" * 16, inode=(1 << 64) - 2,
    )  # fmt: skip
    await ledger.put(whole)
    assert ledger.get(whole.key) == whole
    further = moved(whole, "starting", 12)
    await ledger.put(further)
    assert ledger.get(whole.key) == further
    assert len(further.hops) == 2
    assert ledger.get(dataclasses.replace(whole.key, attempt=2)) is None
    assert ledger.by_request(b"r" * 16) == further
    assert ledger.by_request(b"") is None


async def test_searches(database: Database):
    ledger = Ledger(database)
    await ledger.put(
        task(1), task(2, state="asking"), task(3, side=REQUESTED), ended(task(4), "done", 50), task(5, requester=b"p"),
        ended(task(6, requester=b"p"), "failed", 60),
    )  # fmt: skip
    assert [t.created_ms for t in ledger.live(WORKED)] == [1, 2, 5]
    assert [t.created_ms for t in ledger.live(REQUESTED)] == [3]
    assert ledger.waiting(NodeId(b"q" * 16)) == (2, 1)
    assert ledger.waiting(NodeId(b"x" * 16)) == (0, 0)
    assert ledger.kept(WORKED, NodeId(b"q" * 16)) == 3
    assert [t.created_ms for t in ledger.recent(6)] == [6, 5, 3, 2, 1]
    assert [t.created_ms for t in ledger.old(60)] == [4]
    await ledger.forget([task(4).key, task(1).key])
    assert ledger.get(task(4).key) is None
    assert ledger.get(task(1).key) is not None, "only what is over is forgotten"


async def test_prefixes(database: Database):
    ledger = Ledger(database)
    await ledger.put(task(1), task(2 << 120, created_ms=2))
    text = base32((2 << 120).to_bytes(16, "big"))
    assert [t.text_id for t in ledger.find(text[:4].upper() + "-")] == [text]
    assert len(ledger.find("a")) == 2
    for odd in ("", "1", "a%", "a_", "'; DROP TABLE task", "z" * 30, "\u00e9"):
        assert ledger.find(odd) == []


def test_a_commit_survives_a_kill(tmp_path: Path):
    """What was acknowledged before kill -9 is there after it."""
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from mesh.base.db import Database
from node.tasks.ledger import SCHEMA, put_task
from tests.unit.node.test_tasks_ledger import task
database = Database(Path({str(tmp_path)!r}) / "tasks.db", SCHEMA)
for n in range(1, 20):
    database.write_now(lambda c: put_task(c, task(n)))
    os.write(1, b"%d\\n" % n)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=False)
    acknowledged = [int(line) for line in done.stdout.split()]
    assert acknowledged == list(range(1, 20)), done.stderr
    database = Database(tmp_path / "tasks.db", SCHEMA)
    assert [t.created_ms for t in Ledger(database).live(WORKED)] == acknowledged
    database.close()


ALONG = st.lists(st.sampled_from(STATES[2:]), max_size=6)


@settings(max_examples=30, deadline=None)
@given(states=ALONG, codes=st.lists(st.one_of(st.none(), st.integers(0, 255)), min_size=6, max_size=6))
def test_any_history_is_kept_in_order(tmp_path_factory: pytest.TempPathFactory, states: list[str], codes: list[int | None]):
    database = Database(tmp_path_factory.mktemp("l") / "tasks.db", SCHEMA)
    current = task(1, state="offered")
    for now_ms, (state, code) in enumerate(zip(states, codes, strict=False), 100):
        if current.final or STATES.index(state) <= STATES.index(current.state):
            continue
        current = ended(current, state, now_ms, exit_code=code) if state in STATES[6:] else moved(current, state, now_ms)
        database.write_now(lambda c, t=current: put_task(c, t))
        assert read_task(database.reader, current.key) == current
    database.close()


async def test_a_ledger_of_an_older_version_is_brought_up_to_date(tmp_path: Path):
    with_folder = task(2)
    older = Database(tmp_path / "old.db", SCHEMA[:1])
    older.write_now(lambda c: c.execute("SELECT side FROM task"))
    older.close()
    opened = Database(tmp_path / "old.db", SCHEMA)
    await Ledger(opened).put(with_folder)
    assert Ledger(opened).get(with_folder.key) == with_folder
    opened.close()


async def test_what_never_came_is_known_by_its_name_and_bounded_and_never_listed(database: Database):
    ledger = Ledger(database)

    def never(number: int) -> Task:
        return ended(dataclasses.replace(task(number, state="offered"), spec=NEVER_SPEC), "cancelled", number)

    real = task(9, requester=b"q")
    await ledger.put(real)
    assert [await ledger.put_never(never(n), before_ms=0, count_max=2) for n in (1, 2, 3)] == [True, True, False]
    assert ledger.get(never(2).key) == never(2)
    assert ledger.recent(0) == [real]
    assert ledger.find(never(1).text_id) == []
    assert await ledger.put_never(never(3), before_ms=2, count_max=2)
    assert [ledger.get(never(n).key) is not None for n in (1, 2, 3)] == [False, True, True]
    assert ledger.get(real.key) == real
