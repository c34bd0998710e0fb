"""The whole hive on real SQLite files and a mesh in memory: learn here, see it there, forget for good."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.testing

from hive import curator as curator_room
from hive import store
from hive.curator import BATCH_MAX, PUBLISHED_MAX, REPUBLISH_PERIOD_MS, Curator, open_curator
from hive.unit import ACCEPTANCE_KIND, LESSON_KIND, Acceptance, Observation
from mesh.base.clock import Now
from mesh.base.codec import encode
from mesh.base.db import Database
from mesh.base.errors import Refused, Usage
from tests.fakes.records import FakeMesh, FakeNode
from tests.unit.hive.test_redact import MADE_UP, PARTS

DEADLINE_S = 10


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curator_room, "ROUND_PERIOD_S", 0.01)


@dataclass
class Machine:
    node: FakeNode
    curator: Curator


@asynccontextmanager
async def running(node: FakeNode, folder: Path) -> AsyncIterator[Curator]:
    database = Database(_made(folder) / "hive.db", store.SCHEMA)
    try:
        async with open_curator(
            database, node.records, node.directory, node.sealer, lambda: Now(node.mesh.wall_ms, 0.0)
        ) as curator:
            yield curator
    finally:
        database.close()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the curator's state is all there is to watch
            await trio.sleep(0.005)


def seen(number: int, subject: str = "git push --force origin main", verdict: str = "deny", **more: object) -> Observation:
    values = {
        "source_id": number.to_bytes(16, "big"), "agent": "claude", "session": f"s{number}", "project": "app", "tool": "Bash",
        "subject": subject, "verdict": verdict, "at_ms": 1_799_999_000_000 + number,
    }  # fmt: skip
    return Observation(**(values | more))  # type: ignore[arg-type]


async def test_what_one_machine_learned_shows_on_the_other(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("laptop", "me"), mesh.node("mini", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        assert await here.observe([seen(1), seen(2), seen(1)]) == 2
        assert await here.observe([seen(2)]) == 0
        (own,) = here.lessons()
        assert (own.pattern, own.stance, own.negative, own.state, own.owners) == ("git push --force *", "deny", 2, "mine", ("me",))
        await until(lambda: bool(there.lessons()))
        (lesson,) = there.lessons()
        assert lesson == own
        shown = there.show(lesson.lesson)
        assert [m["name"] for m in shown["machines"]] == ["laptop"]
        assert shown["machines"][0]["record"]
        assert shown["examples"] == []
        assert here.show(lesson.lesson[:4])["examples"][0]["subject"] == "git push --force origin main"
        assert here.status() == {"observations": 2, "units": 1, "peers_units": 0, "forgotten": 0, "last_learned": mesh.wall_ms}
        assert there.status() == {"observations": 0, "units": 0, "peers_units": 1, "forgotten": 0, "last_learned": None}


async def test_what_was_learned_before_a_move_is_published_in_the_new_mesh(tmp_path: Path) -> None:
    """A home keeps its ``hive.db`` when it joins another mesh, with every unit marked as published in the old one."""
    old, new = FakeMesh(), FakeMesh()
    before = old.node("studio", "me")
    async with running(before, tmp_path / "studio") as here:
        await here.observe([seen(1), seen(2)])
        await until(lambda: bool(before.records.entries(LESSON_KIND)))
    after, other = new.node("studio", "me"), new.node("laptop", "me")
    async with running(after, tmp_path / "studio"), running(other, tmp_path / "laptop") as there:
        await until(lambda: bool(there.lessons()))
        assert there.status()["peers_units"] == 1


async def test_equal_lessons_of_three_machines_are_one_with_three_origins(tmp_path: Path) -> None:
    """O-H2."""
    mesh = FakeMesh()
    nodes = [mesh.node(name, "me") for name in ("a", "b", "c")]
    async with running(nodes[0], tmp_path / "a") as a, running(nodes[1], tmp_path / "b") as b, running(nodes[2], tmp_path / "c") as c:
        for number, curator in enumerate((a, b, c)):
            await curator.observe([seen(number * 100 + n, "  git  push -f a b") for n in range(50)])
        await until(lambda: a.status()["peers_units"] == 2)
        (lesson,) = a.lessons()
        assert (lesson.negative, len(a.show(lesson.lesson)["machines"])) == (150, 3)


async def test_no_secret_reaches_the_disk_or_the_mesh(tmp_path: Path) -> None:
    """O-H3, O-H4: in every field in turn, and the useful lesson survives."""
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    number = 0
    observations = [seen(0, "pytest tests")]
    for secret in MADE_UP:
        for field in ("agent", "session", "project", "tool", "subject"):
            for frame in ("{}", "deploy --token {} now", "cat /srv/{}/x.py", "echo '{}'"):
                number += 1
                observations.append(seen(number, **({"subject": f"pytest t{number}"} | {field: frame.format(secret)})))
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe(observations)
        with pytest.raises(Usage):
            await here.learn_by_hand("Bash", f"deploy {MADE_UP[1]} | sh", "deny")
        await here.learn_by_hand("Bash", "make deploy", "deny", f"set REGION first; not {MADE_UP[1]}")
        await until(lambda: here.status()["units"] == there.status()["peers_units"])
        everything = repr([there.show(lesson.lesson) for lesson in there.lessons()] + here.lessons())
        assert "set REGION first; not <github-token>" in everything
        assert "pytest *" in everything
    stored = _stored_under(tmp_path)
    plain = b"".join(a.sealer.unseal(e.body, e.author) or b"" for e in b.records.entries(LESSON_KIND))
    assert b"pytest" in stored
    assert b"pytest" in plain
    for part in PARTS:
        for found in (part, part.lower()):
            assert found.encode() not in stored
            assert found.encode() not in plain
            assert found not in everything


async def test_another_persons_machine_holds_nothing_readable(tmp_path: Path) -> None:
    """SECURITY 33: a canary in the pattern is in no foreign owner's bytes or lessons."""
    mesh = FakeMesh()
    a, stranger = mesh.node("a", "me"), mesh.node("s", "other")
    async with running(a, tmp_path / "a") as here, running(stranger, tmp_path / "s") as there:
        await here.observe([seen(1, "make canary")])
        await until(lambda: bool(stranger.records.entries(LESSON_KIND)))
        assert there.lessons() == []
        assert all(b"canary" not in e.body for e in stranger.records.entries(LESSON_KIND))
        assert here.lessons()[0].pattern == "make canary"


async def test_a_machine_that_was_away_catches_up(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        with b.cut_off():
            await here.observe([seen(1)])
            await until(lambda: bool(a.records.entries(LESSON_KIND)))
            assert there.lessons() == []
        await until(lambda: bool(there.lessons()))


async def test_acknowledged_observations_survive_the_end_of_the_process_and_are_published_later(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    database = Database(_made(tmp_path / "a") / "hive.db", store.SCHEMA)
    quiet = Curator(database, a.records, a.directory, a.sealer, lambda: Now(mesh.wall_ms, 0.0))
    assert await quiet.observe([seen(1)]) == 1
    database.close()
    assert a.records.entries(LESSON_KIND) == []
    async with running(a, tmp_path / "a"):
        await until(lambda: len(a.records.entries(LESSON_KIND)) == 1)


def _stored_under(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("hive.db*"))


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


async def test_forgetting_an_own_lesson_withdraws_it_for_good(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(1), seen(2, "pytest x", "approve")])
        await until(lambda: len(there.lessons()) == 2)
        forgotten = await here.forget(next(x.lesson for x in here.lessons() if x.stance == "deny"))
        assert forgotten.pattern == "git push --force *"
        assert [x.pattern for x in here.lessons()] == ["pytest *"]
        await until(lambda: [x.pattern for x in there.lessons()] == ["pytest *"])
        assert await here.observe([seen(1), seen(3), seen(4, at_ms=mesh.wall_ms + 99)]) == 0
        assert here.status()["forgotten"] == 1
    async with running(a, tmp_path / "a") as again:
        assert await again.observe([seen(1), seen(5)]) == 0
        assert [x.pattern for x in again.lessons()] == ["pytest *"]


async def test_a_forgotten_lesson_stays_so_when_an_older_database_comes_back(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(1)])
        await until(lambda: bool(a.records.entries(LESSON_KIND)))
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    async with running(a, tmp_path / "a") as here:
        await here.forget(here.lessons()[0].lesson)
    async with running(a, tmp_path / "backup") as restored:
        assert restored.lessons() == []
        assert await restored.observe([seen(1), seen(2)]) == 0
        assert a.records.entries(LESSON_KIND) == []


async def test_a_forgetting_that_was_cut_short_is_finished_at_the_next_start(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(1)])
        await until(lambda: bool(a.records.entries(LESSON_KIND)))
        key = here.lessons()[0].key
    database = Database(tmp_path / "a" / "hive.db", store.SCHEMA)
    database.write_now(lambda c: store.forget(c, key, mesh.wall_ms))
    database.close()
    async with running(a, tmp_path / "a") as again:
        assert again.lessons() == []
        assert a.records.entries(LESSON_KIND) == []


async def test_forgetting_a_peers_lesson_mutes_it_here_only(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(1)])
        await until(lambda: bool(there.lessons()))
        await there.forget(there.lessons()[0].lesson)
        assert [x.state for x in there.lessons()] == ["muted"]
        assert [x.state for x in here.lessons()] == ["mine"]
        assert there.status()["forgotten"] == 1


async def test_a_lesson_by_hand_counts_decides_and_lifts_a_forgetting(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(n, "make deploy", "approve", project="") for n in range(3)])
        lesson = await here.learn_by_hand("exec_command", "make deploy", "deny", "ask\n first ")
        assert (lesson.stance, lesson.positive, lesson.negative, lesson.tool, lesson.scope) == ("deny", 3, 1, "Bash", "global")
        await until(lambda: [x.stance for x in there.lessons()] == ["deny"])
        assert there.show(lesson.lesson)["machines"][0]["text"] == "ask first"
        await here.forget(lesson.lesson)
        await until(lambda: there.lessons() == [])
        mesh.wall_ms += 1000
        again = await here.learn_by_hand("Bash", "make deploy", "deny")
        assert (again.lesson, again.positive, again.negative) == (lesson.lesson, 0, 1)
        await until(lambda: len(there.lessons()) == 1)
        pattern = await here.learn_by_hand("Bash", "npm run *", "approve", project="app")
        assert (pattern.pattern, pattern.scope) == ("npm run *", "project:app")
    async with running(a, tmp_path / "a") as restarted:
        await until(lambda: a.records.withdrawn(LESSON_KIND) == {})
        assert {x.pattern for x in restarted.lessons()} == {"make deploy", "npm run *"}


@pytest.mark.parametrize(
    ("tool", "subject", "verdict", "text", "project"),
    [
        ("Bash", "*", "deny", "", ""), ("Bash", "bash *", "deny", "", ""), ("Bash", "", "deny", "", ""),
        ("Bash", "make x", "maybe", "", ""), ("Bash", "make x", "deny", "x" * 1025, ""), ("B ash", "make x", "deny", "", ""),
        ("Bash", "make x", "deny", "", "A b"), ("Bash", "l\u200bs", "deny", "", ""), ("ghp_a1B2a1B2a1B2", "x", "deny", "", ""),
        ("Bash", "run --token abc123 *", "deny", "", ""),
    ],
)  # fmt: skip
async def test_an_unsound_lesson_by_hand_is_a_usage_error(
    tmp_path: Path, tool: str, subject: str, verdict: str, text: str, project: str
) -> None:
    async with running(FakeMesh().node("a", "me"), tmp_path / "a") as here:
        with pytest.raises(Usage) as caught:
            await here.learn_by_hand(tool, subject, verdict, text, project=project)  # type: ignore[arg-type]
        assert "\n" not in caught.value.message
        assert here.lessons() == []


async def test_ids_that_name_no_lesson_or_several_are_usage_errors(tmp_path: Path) -> None:
    async with running(FakeMesh().node("a", "me"), tmp_path / "a") as here:
        await here.observe([seen(n, f"make t{n}") for n in range(40)])
        for prefix in ("", "-", "0", "zzzzzzzzz"):
            with pytest.raises(Usage):
                here.show(prefix)
        first = here.lessons()[0].lesson[0]
        several = [x for x in here.lessons() if x.lesson.startswith(first)]
        if len(several) > 1:
            with pytest.raises(Usage, match="lessons start with"):
                await here.forget(first)
        assert here.show(several[0].lesson.upper())["lesson"] == several[0].lesson


async def test_a_unit_is_published_at_most_once_a_period_with_all_that_came_meanwhile(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(0)])
        await until(lambda: a.records.publications == 1)
        for number in range(1, 20):
            await here.observe([seen(number)])
        assert here.lessons()[0].negative == 20
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert a.records.publications == 1
        mesh.wall_ms += REPUBLISH_PERIOD_MS
        await here.observe([seen(20)])
        await until(lambda: there.lessons()[0].negative == 21)
        assert a.records.publications == 2


async def test_only_the_newest_units_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curator_room, "PUBLISHED_MAX", 5)
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(n, f"make t{n}") for n in range(9)])
        await until(lambda: len(there.lessons()) == 5)
        assert {x.pattern for x in there.lessons()} == {f"make t{n}" for n in range(4, 9)}
        assert len(here.lessons()) == 9
    assert PUBLISHED_MAX == 200


async def test_many_observations_are_kept_in_batches(tmp_path: Path) -> None:
    async with running(FakeMesh().node("a", "me"), tmp_path / "a") as here:
        assert await here.observe([seen(n) for n in range(BATCH_MAX * 2 + 1)]) == BATCH_MAX * 2 + 1
        assert await here.observe([]) == 0
        assert here.lessons()[0].negative == BATCH_MAX * 2 + 1


async def test_counters_of_an_older_database_are_not_told_to_the_mesh(tmp_path: Path) -> None:
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(1)])
        await until(lambda: a.records.publications == 1)
    shutil.copytree(tmp_path / "a", tmp_path / "backup")
    mesh.wall_ms += REPUBLISH_PERIOD_MS
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(n) for n in range(2, 6)])
        await until(lambda: a.records.publications == 2)
    mesh.wall_ms += REPUBLISH_PERIOD_MS
    async with running(a, tmp_path / "backup") as restored:
        assert restored.lessons()[0].negative == 5
        await restored.observe([seen(n) for n in range(1, 6)])
        assert restored.lessons()[0].negative == 5, "the same transcripts read again count nothing twice"
        await restored.observe([seen(6)])
        assert restored.lessons()[0].negative == 6


async def test_a_machine_that_may_not_publish_keeps_learning_and_stays_up(tmp_path: Path) -> None:
    """O-H1: a machine without the right to write is refused, and it says so without taking the node down."""
    mesh = FakeMesh()
    viewer, other = mesh.node("v", "me", roles=("viewer",)), mesh.node("o", "me")
    async with running(viewer, tmp_path / "v") as here, running(other, tmp_path / "o") as there:
        await here.observe([seen(1)])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert [x.state for x in here.lessons()] == ["mine"]
        assert there.lessons() == []
        assert await here.observe([seen(2)]) == 1


async def test_a_refused_publication_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curator_room, "REFUSED_PERIOD_S", 0.01)
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    a.records.refuse = Refused("not now")
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(1)])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert a.records.entries(LESSON_KIND) == []
        a.records.refuse = None
        await here.observe([seen(2)])
        await until(lambda: len(a.records.entries(LESSON_KIND)) == 1)


async def test_an_acceptance_counts_here_until_the_accepted_record_changes(tmp_path: Path) -> None:
    """SECURITY 12 and 18."""
    mesh = FakeMesh()
    a, b = mesh.node("a", "me"), mesh.node("b", "me")
    async with running(a, tmp_path / "a") as here, running(b, tmp_path / "b") as there:
        await here.observe([seen(1)])
        await until(lambda: bool(there.lessons()))
        (entry,) = b.records.entries(LESSON_KIND)
        body = encode(Acceptance(entry.record_id, a.node, mesh.wall_ms))
        await b.records.publish(ACCEPTANCE_KIND, entry.key, b.sealer.seal(body))
        assert there.lessons()[0].state == "accepted"
        assert here.lessons()[0].state == "mine", "what another machine accepted decides nothing here"
        mesh.wall_ms += REPUBLISH_PERIOD_MS
        await here.observe([seen(2)])
        await until(lambda: there.lessons()[0].negative == 2)
        assert there.lessons()[0].state == "mine"


async def test_feeding_lessons_back_thirty_times_changes_nothing(tmp_path: Path) -> None:
    """O-H5: reading the same decisions again, with recalled text around them, adds no entry and no support."""
    mesh = FakeMesh()
    a = mesh.node("a", "me")
    async with running(a, tmp_path / "a") as here:
        await here.observe([seen(1), seen(2)])
        first = here.lessons()
        for _ in range(30):
            await here.observe([seen(1), seen(2)])
        assert here.lessons() == first
