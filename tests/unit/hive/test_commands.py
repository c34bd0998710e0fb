"""One command, taken apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.commands import (
    ACTS_MAX,
    OPERATORS,
    OPTIONS_MAX,
    act_of,
    command_pattern,
    command_problem,
    escape,
    is_sensitive,
    program_name,
    single_act,
    tokens,
)
from hive.shell import split_line


def test_an_act_keeps_apart_what_is_done_how_and_to_what() -> None:
    act = single_act("CI=1 sudo -n git push -uf origin main ~/.ssh/k")
    assert act is not None
    assert act.front == ["CI=1", "sudo", "-n", "git", "push"]
    assert act.options == ["-uf"]
    assert act.arguments == ["origin", "main", "~/.ssh/k"]
    assert act.sensitive == ["~/.ssh/k"]
    assert act.words() == ["CI=1", "sudo", "-n", "git", "push", "-uf", "~/.ssh/k", "*"]


@pytest.mark.parametrize("line", ["a; b", "a | b", "a > x", "a &", "echo $(x)", "bash -c 'a; b'", "", "python -c x"])
def test_only_one_understood_command_is_a_single_act(line: str) -> None:
    assert single_act(line) is None


def test_a_line_given_to_a_shell_is_that_line_some_levels_deep() -> None:
    assert command_pattern("bash -c \"sh -c 'rm -rf x'\"") == "rm -rf *"
    assert command_pattern("bash -c 'rm -rf x' > y") is None
    assert command_pattern("X=1 bash -c 'rm -rf x'") is None


@pytest.mark.parametrize(
    ("line", "project", "dropped"),
    [
        ("cd a/b && ls", "", True), ("cd a; ls", "", True), ("cd ../a && ls", "", False), ("cd / && ls", "", False),
        ("cd ~ && ls", "", False), ("cd - && ls", "", False), ("cd $X && ls", "", False), ("cd a || ls", "", False),
        ("cd /x/app && ls", "app", True), ("cd ~/app/ && ls", "app", True), ("cd /x/app && ls", "", False),
        ("cd /tmp/app && ls", "app", False), ("cd /x/happ && ls", "app", False), ("cd a > x && ls", "", False),
    ],
)  # fmt: skip
def test_a_change_into_the_project_is_no_part_of_the_act(line: str, project: str, dropped: bool) -> None:
    assert (command_pattern(line, project=project) == "ls *") is dropped


def test_bounds() -> None:
    assert command_pattern(" && ".join(["make x"] * ACTS_MAX)) is not None
    assert command_pattern(" && ".join(["make x"] * (ACTS_MAX + 1))) is None
    letters = [f"--o{n}" for n in range(OPTIONS_MAX + 1)]
    assert command_pattern(" ".join(["x", *letters[:-1]])) is not None
    assert command_pattern(" ".join(["x", *letters])) is None


def test_option_values_and_secrets_in_them_do_not_stay() -> None:
    assert command_pattern("x --password=hunter2 -phunter2 -n5 --x=y z") == "x --password --x -n -p *"


def test_programs_have_one_name() -> None:
    assert [program_name(word) for word in ("/usr/bin/git", "python3.12", "/tmp/git", "./x", "/usr/bin/sub/x")] == [
        "git", "python3", "/tmp/git", "./x", "/usr/bin/sub/x",
    ]  # fmt: skip


def test_what_is_sensitive() -> None:
    assert all(map(is_sensitive, ("~/.ssh/x", "a/.ENV", ".git", "x/server.pem")))
    assert not any(map(is_sensitive, ("src/x.py", "README", "environment")))


@pytest.mark.parametrize("line", ["A=1", "time", "sudo", "sudo -x ls", "timeout", "timeout -z 5 ls", "env", "nohup", "find a -ok x ;"])
def test_what_is_not_certain_is_no_act(line: str) -> None:
    parsed = split_line(line)
    assert parsed is not None
    assert act_of(parsed.commands[0]) is None


def test_sound_command_patterns_have_no_problem() -> None:
    for pattern in ("ls * | grep *", "git push --force *", "sudo -u x rm -rf *", "python a.py *", "a > b", "a * > b &", "bash -c 'x \\*'"):
        assert command_problem(pattern) is None, pattern
    assert command_problem("ls * | bash *")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8), min_size=1, max_size=6))
def test_escaped_words_come_back_one_by_one(plain: list[str]) -> None:
    found = tokens(" ".join(escape(word) for word in plain))
    assert len(found) == len(plain)
    assert not any(token in OPERATORS for token in found)
