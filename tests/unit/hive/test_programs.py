"""The tables agree with each other: nothing is both free and dangerous."""

from __future__ import annotations

import pytest

from hive import programs
from hive.patterns import matches, pattern_of


def test_no_program_is_in_two_contradicting_tables() -> None:
    runs_others = programs.EXACT | programs.INTERPRETERS | set(programs.KEPT) | set(programs.DROPPED)
    assert not programs.FREE & runs_others
    assert not programs.PIPE_SAFE & runs_others
    assert not programs.FREE & set(programs.DEPTH)
    assert programs.SHELLS <= programs.INTERPRETERS
    assert set(programs.OPTIONS_FIRST) <= set(programs.DEPTH)
    for key in set(programs.SAME_OPTION) | set(programs.CLUSTERED) | {k for k in programs.DEPTH if " " in k}:
        assert " " not in key or key.split()[0] in programs.DEPTH


@pytest.mark.parametrize("program", sorted(p for p in programs.EXACT if " -" not in p))
def test_what_runs_others_is_never_generalised(program: str) -> None:
    pattern = pattern_of("Bash", f"{program} one two")
    assert pattern == f"{program} one two"
    assert not matches(pattern, "Bash", f"{program} one three")


@pytest.mark.parametrize("program", sorted(programs.INTERPRETERS))
def test_code_on_the_command_line_is_never_generalised(program: str) -> None:
    for option in ("-c", "-e", "--eval"):
        pattern = pattern_of("Bash", f"{program} {option} 'one two' x")
        assert pattern is None or not matches(pattern, "Bash", f"{program} {option} 'three' x")


@pytest.mark.parametrize("target", sorted(programs.WHOLE_TARGETS))
def test_a_wildcard_never_stands_for_everything(target: str) -> None:
    assert not matches("rm -rf *", "Bash", f"rm -rf {target}")
    assert not matches("chmod -R *", "Bash", f"chmod -R 777 {target}")


@pytest.mark.parametrize("part", programs.SENSITIVE_PARTS)
def test_a_wildcard_never_stands_for_keys_and_settings(part: str) -> None:
    assert not matches("cat *", "Bash", f"cat x/{part}")
    assert not matches("x/*", "Read", f"x/{part}")
