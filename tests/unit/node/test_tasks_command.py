"""What a person typed for a run, checked."""

from __future__ import annotations

import pytest

from mesh.base.errors import Usage
from node.tasks.command import checked_command, checked_digest, checked_seconds


def test_bytes_that_are_not_utf8_survive():
    assert checked_command(["ls", "\udcff", "ü", ""]) == (b"ls", b"\xff", "ü".encode(), b"")


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"], ["x"] * 1025, ["x" * 50_000]])
def test_what_cannot_run_is_a_usage_error(argv: list[str]):
    with pytest.raises(Usage):
        checked_command(argv)


def test_time_limits():
    assert checked_seconds(None, 7) == 7
    assert checked_seconds(30 * 86_400, 7) == 30 * 86_400
    for wrong in (0, -1, 30 * 86_400 + 1):
        with pytest.raises(Usage):
            checked_seconds(wrong, 7)


def test_digests():
    assert checked_digest("ab" * 32) == b"\xab" * 32
    for wrong in ("", "ab", "zz" * 32, "ab" * 33):
        with pytest.raises(Usage):
            checked_digest(wrong)
