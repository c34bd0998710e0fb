import pytest

from mesh.base.clock import Now
from mesh.base.db import Database
from mesh.base.errors import Usage
from node.sessions import detail, store
from node.sessions.watch import Watcher
from tests.fakes.transcripts import START_MS, Claude, Codex, claude_usage

CANARY = "hunter2-and-more"


class Clock:
    """Stands at one moment until it is moved."""

    def __init__(self):
        self.steady_s = 1_000.0

    def __call__(self):
        return Now(START_MS + 3_600_000, self.steady_s)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watcher(tmp_path, clock):
    database = Database(tmp_path / "sessions.db", store.SCHEMA)
    yield Watcher(database, tmp_path / "claude", tmp_path / "codex", 24, lambda text: text.replace(CANARY, "[secret]"), clock)
    database.close()


def session(name="abc-1"):
    made = Claude(name)
    made.prompt(f"log in with {CANARY}")
    made.approved(made.call("Bash", {"command": f"login {CANARY}"}, usage=claude_usage(10, 5)))
    made.reply("in", usage=claude_usage(1, 1), model="model-never-heard-of-9")
    made.ended()
    return made


async def test_a_session_in_full(watcher, tmp_path):
    """O-S7: the model without a price is named"""
    path = session().write(tmp_path / "claude")
    await watcher.scan_once()
    shown = await watcher.session_detail("abc")
    assert (shown["session"], shown["agent"], shown["turns"], shown["transcript"]) == ("abc-1", "claude", 3, "present")
    assert shown["unpriced_models"] == ["model-never-heard-of-9"]
    assert {row["model"]: row["cost_usd"] for row in shown["models"]} == {
        "claude-sonnet-4-5": 0.000105,
        "model-never-heard-of-9": None,
    }
    assert shown["cost_known_usd"] == 0.000105
    assert shown["state"]["status"] == "ended"
    assert [file["read"] for file in shown["files"]] == [path.stat().st_size]
    assert [event["text"] for event in shown["recent"]] == [
        "log in with [secret]",
        "I will call a tool.",
        "Bash: login [secret]",
        "the user said yes",
        "in",
        "the turn ended",
    ]
    assert CANARY not in repr(shown)


async def test_codex_events(watcher, tmp_path):
    made = Codex("a")
    made.start("plan it")
    made.aborted(made.call("terraform apply", escalated=True))
    made.write(tmp_path / "codex")
    await watcher.scan_once()
    shown = await watcher.session_detail(made.session)
    texts = [event["text"] for event in shown["recent"]]
    assert texts == ["plan it", "exec_command: terraform apply", "the user said no", "stopped by the user"]


async def test_a_deleted_transcript_gives_a_clear_answer(watcher, tmp_path, clock):
    """O-S9"""
    path = session().write(tmp_path / "claude")
    await watcher.scan_once()
    path.unlink()
    clock.steady_s += 10_000
    await watcher.scan_once()
    shown = await watcher.session_detail("abc")
    assert (shown["transcript"], shown["recent"]) == ("deleted", [])
    assert shown["files"][0]["gone_since"] is not None
    assert shown["state"]["health"] == ["transcript_deleted"]


async def test_which_session_is_meant(watcher, tmp_path):
    for name in ("abc-1", "abc-2", "abc"):
        session(name).write(tmp_path / "claude")
    await watcher.scan_once()
    assert (await watcher.session_detail("abc"))["session"] == "abc"
    for prefix, message in (("abc-", "several"), ("nope", "no session"), ("", "no session")):
        with pytest.raises(Usage, match=message):
            await watcher.session_detail(prefix)


def test_only_the_end_of_a_long_transcript_is_read(tmp_path):
    made = Claude("s")
    for index in range(200):
        made.prompt(f"{index} " + "x" * 10_000)
    path = made.write(tmp_path)
    events = detail.recent_events("claude", str(path), lambda text: text)
    assert len(events) == detail.EVENTS_MAX
    assert events[-1]["text"].startswith("199 ")
    assert max(len(event["text"].encode()) for event in events) <= detail.EVENT_BYTES_MAX
    assert detail.recent_events("claude", str(tmp_path / "missing"), lambda text: text) == []
