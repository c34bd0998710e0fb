"""The mark beside the databases: an old state that comes back is noticed, a crash at any moment is not one.

SECURITY 23.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.db import Database, put_stamp, read_stamp
from mesh.base.errors import OurFault, Refused
from node import mark as room
from node.mark import STARTS_MAX, Keeper, Mark, older, read_mark, refuse_restored, write_mark

SCHEMA = ("CREATE TABLE t (x INTEGER);",)


def databases(folder: Path, *names: str) -> list[Path]:
    made = [folder / name for name in names]
    for path in made:
        Database(path, SCHEMA).close()
    return made


def start(folder: Path, node: str = "me") -> Keeper:
    return Keeper(folder / "mark", node, databases(folder, "mesh.db", "grants.db"))


def test_restarts_are_no_restore(tmp_path: Path):
    for number in range(1, 4):
        keeper = start(tmp_path)
        assert (keeper.mark.starts, keeper.restored, keeper.old) == (number, False, ())
        assert read_mark(tmp_path / "mark") == keeper.mark


@pytest.mark.parametrize("name", ["mesh.db", "grants.db"])
@pytest.mark.parametrize("back", [1, 3])
def test_each_database_restored_at_each_state_is_noticed_until_it_is_lifted(tmp_path: Path, name: str, back: int):
    start(tmp_path)
    copies = []
    for number in range(3):
        copies.append(shutil.copy(tmp_path / name, tmp_path / f"{name}.{number}"))
        start(tmp_path)
    for ending in ("", "-wal", "-shm"):
        (tmp_path / (name + ending)).unlink(missing_ok=True)
    shutil.copy(copies[-back], tmp_path / name)
    assert start(tmp_path).old == (name,)
    again = start(tmp_path)
    assert (again.old, again.restored) == ((), True), "it stays so until somebody lifts it"
    again.lift()
    assert not start(tmp_path).restored


def test_a_lost_or_foreign_mark_beside_old_databases_is_a_restore_and_a_fresh_home_is_none(tmp_path: Path):
    start(tmp_path)
    (tmp_path / "mark").unlink()
    assert start(tmp_path).restored
    for bad in (b"x" * 600, b'{"starts": 1e999, "node": "me", "newest": 0, "stamped": true, "restored": false}'):
        (tmp_path / "mark").write_bytes(bad)
        assert start(tmp_path).restored
    (tmp_path / "fresh").mkdir()
    assert not start(tmp_path / "fresh").restored

    for nonsense in (b"", b"[]", b"{}", b'{"starts": -1, "node": "me", "newest": 0, "stamped": true, "restored": true}'):
        (tmp_path / "mark").write_bytes(nonsense)
        assert read_mark(tmp_path / "mark") is None


def test_grants_are_not_served_from_a_restored_database_while_no_node_runs(tmp_path: Path):
    (path,) = databases(tmp_path, "grants.db")
    refuse_restored(tmp_path / "mark", path)
    keeper = Keeper(tmp_path / "mark", "me", [path])
    refuse_restored(tmp_path / "mark", path)
    refuse_restored(tmp_path / "mark", tmp_path / "not made yet.db")
    put_stamp(path, 77)
    with pytest.raises(Refused):
        refuse_restored(tmp_path / "mark", path)
    put_stamp(path, keeper.mark.starts)
    keeper.suspect()
    with pytest.raises(Refused):
        refuse_restored(tmp_path / "mark", path)


@pytest.mark.parametrize("call", range(3))
def test_a_kill_while_the_start_is_noted_is_no_restore(tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch):
    """Between the two writes of the mark any number of databases may bear the new stamp."""
    start(tmp_path)
    calls = 0

    def dies(path: Path, starts: int) -> None:
        nonlocal calls
        if calls == call:
            raise OurFault("killed")
        calls += 1
        put_stamp(path, starts)

    with monkeypatch.context() as patch:
        patch.setattr(room, "put_stamp", dies)
        if call < 2:
            with pytest.raises(OurFault):
                start(tmp_path)
        else:
            start(tmp_path)
    assert not start(tmp_path).restored


@given(st.integers(1, STARTS_MAX), st.booleans(), st.dictionaries(st.text(max_size=3), st.integers(-5, STARTS_MAX)))
def test_only_a_stamp_of_this_or_a_cut_off_start_is_lawful(starts: int, stamped: bool, stamps: dict[str, int]):
    lawful = {0, starts} | (set() if stamped else {starts - 1})
    mark = Mark(starts, "me", 0, stamped, False)
    assert older(mark, stamps) == [name for name, stamp in stamps.items() if stamp not in lawful]


def test_the_newest_version_only_rises_and_a_boot_begins_after_it(tmp_path: Path):
    keeper = start(tmp_path)
    keeper.note(5_000 << 16 | 7)
    keeper.note(4_000 << 16)
    found = start(tmp_path).mark
    assert found.newest == 5_000 << 16 | 7
    assert found.after_ms == 5_001
    assert start(tmp_path, "another machine").mark.newest == 0, "another mesh has never heard of this key"


def test_the_mark_is_its_users_only_and_a_disk_that_refuses_is_said(tmp_path: Path):
    write_mark(tmp_path / "mark", Mark(1, "me", 2, True, False))
    assert (tmp_path / "mark").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OurFault, match="mark"):
        write_mark(tmp_path / "missing" / "mark", Mark(1, "me", 2, True, False))


def test_a_stamp_survives_and_a_new_database_has_none(tmp_path: Path):
    (path,) = databases(tmp_path, "a.db")
    assert read_stamp(path) == 0
    put_stamp(path, STARTS_MAX)
    assert read_stamp(path) == STARTS_MAX
