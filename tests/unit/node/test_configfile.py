"""The settings file: changed durably, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.base.errors import OurFault, Usage
from node.configfile import read_keys, write_key


def test_tables_are_flat_keys_and_no_file_is_empty(tmp_path):
    path = tmp_path / "config.toml"
    assert read_keys(path) == {}
    path.write_text("a = 1\n[b]\nc = 2\nd = {e = 3}\n")
    assert read_keys(path) == {"a": 1, "b.c": 2, "b.d": {"e": 3}}


def test_a_value_where_a_table_belongs_is_said(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("tasks = 1\n")
    with pytest.raises(Usage, match="tasks is not a table"):
        write_key(path, "tasks.slots", 2)
    assert path.read_text() == "tasks = 1\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_part_of_a_new_one(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text("a = 1\n")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OurFault, match="No space left"):
        write_key(path, "a", 2)
    assert path.read_text() == "a = 1\n"
    assert [one.name for one in tmp_path.iterdir()] == ["config.toml"]


def test_on_a_disk_that_cannot_be_written_the_reason_is_said(tmp_path, monkeypatch):
    def read_only(*args: object, **more: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OurFault, match="Read-only file system"):
        write_key(tmp_path / "config.toml", "a", 2)
