from mesh.base.clock import Now
from mesh.base.db import Database
from node.sessions import store
from node.sessions.sample import write_sample
from node.sessions.watch import Watcher

NOW_MS = 1_800_000_000_000


async def test_the_sample_counts_as_active_and_teaches(tmp_path):
    paths = write_sample(tmp_path / "claude", tmp_path / "codex", NOW_MS)
    assert len(paths) == 4
    database = Database(tmp_path / "sessions.db", store.SCHEMA)
    watcher = Watcher(database, tmp_path / "claude", tmp_path / "codex", 24, lambda text: text, lambda: Now(NOW_MS, 1.0))
    await watcher.scan_once()
    bodies = [state.body for state in watcher.listed()]
    assert [path.stem.endswith(body.session) for path, body in zip(paths, bodies, strict=True)] == [True] * 4
    assert {body.agent for body in bodies} == {"claude", "codex"}
    assert {body.project for body in bodies} == {"shop-api", "storefront", "infra"}
    assert {body.status for body in bodies} == {"unknown"}
    assert all(NOW_MS - 600_000 < body.last_active_ms < NOW_MS for body in bodies)
    assert all(body.input and body.output and body.model for body in bodies)
    assert sum(body.cost_micro is not None for body in bodies) == 3
    assert all(state.bad_lines == 0 for state in watcher.listed())
    verdicts = [(decision.verdict, decision.agent) for decision in watcher.decisions()]
    assert {("approve", "claude"), ("deny", "claude"), ("approve", "codex"), ("deny", "codex")} <= set(verdicts)
    assert all(NOW_MS - 600_000 < decision.at_ms < NOW_MS for decision in watcher.decisions())
    database.close()


def test_writing_again_moves_the_times_on(tmp_path):
    first = {path: path.read_text() for path in write_sample(tmp_path / "a", tmp_path / "b", NOW_MS)}
    second = write_sample(tmp_path / "a", tmp_path / "b", NOW_MS + 1_000)
    assert all(first.get(path) != path.read_text() for path in second)
