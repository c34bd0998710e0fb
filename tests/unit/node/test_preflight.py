"""What keeps a node from starting is found without starting it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.base.clock import Now
from mesh.identity import decide_move, finish_move, founding
from node.home import find_home
from node.preflight import faults_of

NOW = Now(1_800_000_000_000, 1.0)


@pytest.fixture
def home(tmp_path: Path):
    decide_move(tmp_path, founding(name="studio", owner_name="ana", entropy=os.urandom, now=NOW), NOW.wall_ms)
    finish_move(tmp_path)
    return find_home(str(tmp_path), {})


def test_a_fresh_and_a_sound_home_have_no_faults(home, tmp_path_factory: pytest.TempPathFactory):
    assert faults_of(home) == []
    assert faults_of(find_home(str(tmp_path_factory.mktemp("fresh")), {})) == []


@pytest.mark.parametrize("key", ["node", "owner", "root"])
def test_a_spoiled_key_is_named(home, key: str):
    (home.identity_dir / f"{key}.key").write_bytes(b"short")
    (fault,) = faults_of(home)
    assert f"{key}.key" in fault.message


def test_a_spoiled_database_is_named_and_stays_as_it_is(home):
    home.mesh_db.write_bytes(os.urandom(4096))
    before = home.mesh_db.read_bytes()
    (fault,) = faults_of(home)
    assert "mesh.db" in fault.message
    assert home.mesh_db.read_bytes() == before
