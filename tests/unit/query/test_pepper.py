import os
import stat

import pytest

from mesh.base.errors import Damaged, OurFault
from query.pepper import open_pepper


def test_it_is_made_once_and_private(tmp_path):
    path = tmp_path / "grants.pepper"
    first = open_pepper(path, os.urandom, may_make=True)
    assert len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert open_pepper(path, os.urandom, may_make=False) == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["grants.pepper"]


def test_a_missing_one_beside_grants_is_damage(tmp_path):
    with pytest.raises(Damaged, match=r"grants\.pepper is missing"):
        open_pepper(tmp_path / "grants.pepper", os.urandom, may_make=False)


def test_a_short_one_is_damage(tmp_path):
    (tmp_path / "p").write_bytes(b"short")
    with pytest.raises(Damaged):
        open_pepper(tmp_path / "p", os.urandom, may_make=True)


def test_one_that_cannot_be_read_names_the_file(tmp_path):
    (tmp_path / "p").mkdir()
    with pytest.raises(OurFault, match="p cannot be read"):
        open_pepper(tmp_path / "p", os.urandom, may_make=True)
