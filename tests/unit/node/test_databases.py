"""Databases that may be lost, and those that must not come back empty unnoticed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mesh import store
from mesh.base.db import Database
from mesh.base.errors import Damaged
from node.databases import open_kept, open_rebuilt

SCHEMA = ("CREATE TABLE kept (value TEXT);",)


@pytest.fixture
def mesh_db(tmp_path: Path):
    database = Database(tmp_path / "mesh.db", store.SCHEMA)
    yield database
    database.close()


def fill(path: Path) -> None:
    database = Database(path, SCHEMA)
    database.write_now(lambda c: c.execute("INSERT INTO kept VALUES ('x')"))
    database.close()


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_what_must_not_be_lost_does_not_come_back_empty(tmp_path: Path, mesh_db: Database, harm):
    """O-B4: an emptied database of grants would else forget every revocation without a word."""
    path = tmp_path / "grants.db"
    open_kept(mesh_db, path, partial(Database, path, SCHEMA)).close()
    fill(path)
    open_kept(mesh_db, path, partial(Database, path, SCHEMA)).close()
    harm(path)
    before = path.exists()
    with pytest.raises(Damaged) as caught:
        open_kept(mesh_db, path, partial(Database, path, SCHEMA))
    assert str(path) in caught.value.message
    assert path.exists() == before, "nothing was made in its place"


def test_a_person_may_go_on_without_it(tmp_path: Path, mesh_db: Database):
    path = tmp_path / "hive.db"
    open_kept(mesh_db, path, partial(Database, path, SCHEMA)).close()
    path.unlink()
    (tmp_path / "hive.db.anew").touch()
    open_kept(mesh_db, path, partial(Database, path, SCHEMA)).close()
    path.unlink()
    with pytest.raises(Damaged) as caught:
        open_kept(mesh_db, path, partial(Database, path, SCHEMA))
    assert "hive.db.anew" in caught.value.hint, "once is once"


def test_a_file_that_a_crash_left_empty_before_it_was_ever_used_is_no_loss(tmp_path: Path, mesh_db: Database):
    path = tmp_path / "hive.db"
    path.touch()
    open_kept(mesh_db, path, partial(Database, path, SCHEMA)).close()


def test_what_can_be_read_anew_is_set_aside_and_made_anew(tmp_path: Path):
    path = tmp_path / "sessions.db"
    fill(path)
    spoiled = b"\0" * 64 + path.read_bytes()[64:]
    path.write_bytes(spoiled)
    database = open_rebuilt(path, partial(Database, path, SCHEMA))
    assert database.reader.execute("SELECT count(*) FROM kept").get == 0
    database.close()
    assert (tmp_path / "sessions.db.damaged").read_bytes() == spoiled


def test_what_is_no_file_is_left_for_a_person(tmp_path: Path):
    path = tmp_path / "sessions.db"
    path.mkdir()
    with pytest.raises(Damaged):
        open_rebuilt(path, partial(Database, path, SCHEMA))
    assert path.is_dir()
