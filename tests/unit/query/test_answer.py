import os
import shlex

import pytest
import trio

from mesh.base.db import ReadTooLong
from mesh.base.errors import Usage
from query import answer as rooms
from query.answer import Answered, AskedBadly, Desk, NotThere, TryLater, ask_local, envelope
from query.index import Index, IndexMeta, Quote
from query.indexer import index_repository
from query.register import Register


@pytest.fixture
def folder(kettle, tmp_path):
    index_repository(kettle, None, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def register(tmp_path):
    opened = Register(tmp_path / "grants.db")
    yield opened
    opened.close()


@pytest.fixture
async def desk(folder, register, noon):
    opened = Desk(register, folder, lambda: noon)
    yield opened
    opened.close()


def grant(register, noon, **changes) -> str:
    return "Bearer " + register.grant("kettle", ["query"], **{"life_s": 3600, "now": noon, **changes})[1]


BODY = b'{"question":"how do I boil water?"}'


def test_the_owner_asks_without_a_grant(folder, kettle, run_git):
    answer = ask_local(folder, "kettle", "how do I boil water?", 3)
    assert list(answer) == ["status", "answers", "took_ms", "index_commit", "stale", "next_cursor", "budget"]
    assert (answer["status"], answer["stale"], answer["budget"], answer["next_cursor"]) == ("ok", False, None, None)
    first = answer["answers"][0]
    assert list(first) == ["text", "heading", "kind", "score", "citation"]
    assert list(first["citation"]) == ["project", "commit", "path", "blob", "lines", "bytes", "sha256"]
    assert first["heading"] == "Guide > Boiling water"
    assert first["citation"]["commit"] == answer["index_commit"] == run_git(kettle, "rev-parse", "HEAD")


def test_an_index_behind_its_repository_says_so(folder, kettle, commit):
    """O-Q7: a repository that went away wipes nothing; its answers are marked."""
    commit(kettle, {"new.md": "# New\n\nwords\n"})
    commands: list[str] = []
    behind = ask_local(folder, "kettle", "boil water", 1, on_stale=commands.append)
    assert behind["stale"] is True
    assert str(kettle) not in str(behind)
    kettle.rename(kettle.with_name("away"))
    gone = ask_local(folder, "kettle", "boil water", 1, on_stale=commands.append)
    assert (gone["status"], gone["stale"]) == ("ok", True)
    assert commands == [f"hivemesh query index {kettle} --project kettle", "hivemesh query index PATH --project kettle"]


def test_the_command_that_makes_an_index_anew_can_be_pasted(tmp_path, commit):
    folder = tmp_path / "my kettle; $(x)"
    commit(folder, {"a.md": "# A\n\nwords\n"})
    index_repository(folder, "pot", tmp_path / "index")
    commands: list[str] = []
    ask_local(tmp_path / "index", "pot", "words", 1, on_stale=commands.append)
    assert commands == []
    commit(folder, {"b.md": "# B\n\nwords\n"})
    ask_local(tmp_path / "index", "pot", "words", 1, on_stale=commands.append)
    assert [shlex.split(command) for command in commands] == [["hivemesh", "query", "index", str(folder), "--project", "pot"]]


def test_no_answer_is_said_so(folder):
    answer = ask_local(folder, "kettle", "kubernetes ingress certificates", 3)
    assert (answer["status"], answer["answers"]) == ("no_answer", [])


README = """# Shop
A web shop for bicycles.
## Auth
Login uses OAuth tokens stored in redis.
## Running the tests
`make check` needs a local server.
## Configuration
Settings are read from shop.toml.
## Releases
Push a tag.
"""
FOREIGN = [
    "what is the capital of France?", "how do I configure kubernetes ingress?", "how do I bake sourdough bread?",
    "how does photosynthesis work?", "explain this project in the language of whales",
]  # fmt: skip


@pytest.fixture
def shop(tmp_path, commit):
    commit(tmp_path / "shop", {"README.md": README})
    index_repository(tmp_path / "shop", None, tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("question", "heading"),
    [
        ("how is auth structured here?", "Auth"), ("how does auth work?", "Auth"), ("what about auth", "Auth"), ("auth", "Auth"),
        ("can you explain the auth in this codebase?", "Auth"), ("where is login handled?", "Auth"), ("how is auth wired?", "Auth"),
        ("how do I run the tests?", "Running the tests"), ("where is configuration?", "Configuration"),
        ("how should this project be configured?", "Configuration"), ("what is the way releases are done?", "Releases"),
    ],
)  # fmt: skip
def test_a_readme_of_ten_lines_answers_what_a_partner_asks_of_its_headings(shop, question, heading):
    answer = ask_local(shop, "shop", question, 1)
    assert [found["heading"] for found in answer["answers"]] == [f"Shop > {heading}"]


@pytest.mark.parametrize("question", FOREIGN)
def test_a_readme_of_ten_lines_does_not_answer_what_it_is_not_about(shop, question):
    assert ask_local(shop, "shop", question, 5)["status"] == "no_answer"


@pytest.mark.parametrize(("project", "question", "limit"), [("kettle", "", 3), ("kettle", "x", 0), ("kettle", "x", 21), ("../kettle", "x", 3), ("Kettle", "x", 3)])
def test_the_owners_mistakes_are_usage(folder, project, question, limit):
    with pytest.raises(Usage):
        ask_local(folder, project, question, limit)


def test_an_unknown_project_has_no_index(folder):
    with pytest.raises(Usage) as caught:
        ask_local(folder, "pot", "x", 3)
    assert "hivemesh query index" in caught.value.hint
    assert "pot" in caught.value.message


def test_an_answer_is_bounded():
    quotes = [Quote(1.0, "x" * 2000, "", "section", "a.md", "b", (1, 1), (0, 2000), "") for _ in range(20)]
    shown = envelope(IndexMeta("p", "c", "", 1), quotes, 0.0, stale=None, budget=None)
    assert len(shown["answers"]) == 16


async def test_an_outsider_gets_the_same_answer_with_a_budget(desk, register, folder, noon):
    header = grant(register, noon, per_day=50)
    outcome = await desk.ask_untrusted(header, "kettle", BODY, "127.0.0.1")
    assert isinstance(outcome, Answered)
    own = ask_local(folder, "kettle", "how do I boil water?", 5)
    assert outcome.body["answers"] == own["answers"]
    assert outcome.body["stale"] is None
    assert outcome.body["budget"]["remaining"] == 49
    assert register.audit_rows(1)[0].question == "how do I boil water?"


async def test_whatever_is_wrong_looks_the_same_without_a_proven_token(desk, register, noon):
    header = grant(register, noon)
    for token, project, body in [
        (None, "kettle", BODY), ("Bearer x", "kettle", BODY), (header, "pot", BODY), (header, "kettle2", BODY), (None, "kettle", b"{"),
        (header[:-1] + "!", "kettle", BODY),
    ]:  # fmt: skip
        assert await desk.ask_untrusted(token, project, body, "") == NotThere()


async def test_a_proven_token_learns_what_is_wrong_with_its_question_and_pays(desk, register, noon):
    header = grant(register, noon)
    assert isinstance(await desk.ask_untrusted(header, "kettle", b"{", ""), AskedBadly)
    assert register.list()[0].uses == 1


async def test_a_search_that_takes_too_long_is_the_question(desk, register, noon, monkeypatch):
    """O-Q9."""
    header = grant(register, noon)

    def search(self, question):
        raise ReadTooLong("the search took longer than 1000 ms", reason="too_costly")

    monkeypatch.setattr(Index, "search", search)
    outcome = await desk.ask_untrusted(header, "kettle", BODY, "")
    assert outcome == AskedBadly("the search took longer than 1000 ms")
    assert desk._turns.borrowed_tokens == 0
    assert desk._idle == []


async def test_a_proven_token_learns_when_to_come_again(desk, register, noon):
    header = grant(register, noon, rate_per_min=1)
    assert isinstance(await desk.ask_untrusted(header, "kettle", BODY, ""), Answered)
    assert await desk.ask_untrusted(header, "kettle", BODY, "") == TryLater(60)


async def test_a_new_index_answers_from_the_next_question_on(desk, register, noon, folder, kettle, commit):
    header = grant(register, noon)
    await desk.ask_untrusted(header, "kettle", BODY, "")
    head = commit(kettle, {"docs/guide.md": "# Guide\n\n## Boiling water\n\nPull the blue handle to boil water.\n"})
    index_repository(kettle, None, folder)
    outcome = await desk.ask_untrusted(header, "kettle", BODY, "")
    assert isinstance(outcome, Answered)
    assert outcome.body["index_commit"] == head
    assert "blue handle" in outcome.body["answers"][0]["text"]


async def test_an_index_that_is_gone_or_damaged_tells_nothing(desk, register, noon, folder):
    """O-Q7: removal takes effect at once, open files or not."""
    header = grant(register, noon)
    await desk.ask_untrusted(header, "kettle", BODY, "")
    (folder / "kettle.db").rename(folder / "pot.db")
    outcome = await desk.ask_untrusted(header, "kettle", BODY, "")
    assert isinstance(outcome, NotThere)
    pot = "Bearer " + register.grant("pot", ["query"], life_s=3600, now=noon)[1]
    outcome = await desk.ask_untrusted(pot, "pot", BODY, "")
    assert isinstance(outcome, NotThere)
    (folder / "kettle.db").write_bytes(os.urandom(9000))
    outcome = await desk.ask_untrusted(header, "kettle", BODY, "")
    assert isinstance(outcome, NotThere)
    assert outcome.fault is not None


async def test_open_files_are_bounded(desk, register, noon, folder, kettle, monkeypatch):
    monkeypatch.setattr(rooms, "IDLE_INDEXES_MAX", 2)
    for name in ("a", "b", "c"):
        index_repository(kettle, name, folder)
        header = "Bearer " + register.grant(name, ["query"], life_s=3600, now=noon)[1]
        assert isinstance(await desk.ask_untrusted(header, name, BODY, ""), Answered)
    assert len(desk._idle) == 2


async def test_searches_take_turns_and_a_long_wait_ends(desk, register, noon, monkeypatch):
    """O-Q9: more questions at once than turns; none is lost, and none waits for ever."""
    header = grant(register, noon, rate_per_min=100)
    outcomes = []

    async def one():
        outcomes.append(await desk.ask_untrusted(header, "kettle", BODY, ""))

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(one)
    assert all(isinstance(outcome, Answered) for outcome in outcomes)
    assert len(outcomes) == 12
    monkeypatch.setattr(rooms, "SEARCH_WAIT_S", 0.05)
    holders = [object() for _ in range(rooms.SEARCHES_MAX)]
    for holder in holders:
        desk._turns.acquire_on_behalf_of_nowait(holder)
    assert await desk.ask_untrusted(header, "kettle", BODY, "") == TryLater(1)
    for holder in holders:
        desk._turns.release_on_behalf_of(holder)
