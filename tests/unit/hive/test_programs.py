"""The tables agree with each other, and hold nothing that runs what it is given."""

from __future__ import annotations

import pytest

from hive import programs
from hive.patterns import matches, pattern_of

RUNNERS = ["python", "python3", "python3.12", "node", "deno", "bun", "ruby", "perl", "php", "lua", "sh", "bash", "zsh", "awk", "gawk", "sed", "find", "xargs", "env", "timeout", "nice", "nohup", "stdbuf", "setsid", "sudo", "doas", "su", "ssh", "scp", "rsync", "busybox", "watch", "parallel", "eval", "exec", "source", ".", "command", "builtin", "time", "xvfb-run", "hyperfine", "strace", "gdb", "make", "just", "task", "tox", "nox", "npx", "uvx", "pipx", "npm", "yarn", "pnpm", "cargo", "go", "uv", "conda", "poetry", "pip", "pip3", "docker", "docker-compose", "podman", "kubectl", "helm", "terraform", "gcloud", "aws", "az", "gh", "java", "ts-node", "tar", "zip", "unzip", "cp", "mv", "ln", "chmod", "chown", "dd", "tee", "install", "curl", "wget", "kill", "crontab", "psql", "sqlite3", "vim", "ed", "hivemesh", "./run.sh", "jq", "uniq", "xxd"]
"""Each runs, loads, fetches or writes what an argument names: none may be left open in an approval."""


@pytest.mark.parametrize("program", RUNNERS)
def test_what_runs_or_writes_what_it_is_given_is_only_ever_exact(program: str) -> None:
    for words in ("one", "one two", "-x one", "run one", "exec one two", "config user.name one"):
        line = f"{program} {words}"
        assert pattern_of("Bash", line) == line
        assert not matches(line, "Bash", f"{line}x")


@pytest.mark.parametrize("key", sorted(programs.ACTS))
def test_rows_are_consistent(key: str) -> None:
    shape = programs.ACTS[key]
    assert 1 <= len(key.split()) <= 2
    assert key.split()[0] not in programs.ACTS or " " not in key
    assert all(flag.startswith("-") and "*" not in flag for flag in shape.flags)
    assert all(f"-{letter}" in shape.flags for letter in shape.letters)
    assert all(name == "" or shape.flags.get(name) == name for name in shape.flags.values())
    if shape.level == "varies":
        assert set(shape.flags.values()) <= {""}, "what an approval leaves out only changes what is shown"


@pytest.mark.parametrize("key", sorted(key for key, shape in programs.ACTS.items() if shape.level == "varies"))
def test_no_option_that_takes_a_value_is_left_out(key: str) -> None:
    for option in ("-p", "-o", "-c", "-C", "-f", "-e", "-O", "--config-file", "--rootdir", "--output", "--pre", "--ext-diff", "--exec"):
        if key == "tail" and option == "-f":
            continue
        if option not in programs.ACTS[key].flags:
            assert pattern_of("Bash", f"{key} {option} evil a") == f"{key} {option} evil a"
        assert pattern_of("Bash", f"{key} {option}=evil a") == f"{key} {option}=evil a"


@pytest.mark.parametrize("target", sorted(programs.WHOLE_TARGETS))
def test_a_wildcard_never_stands_for_everything(target: str) -> None:
    assert not matches("rm -rf *", "Bash", f"rm -rf {target}")
    assert not matches("rm -rf *", "Bash", f"rm -rf {target}", denied=True)


@pytest.mark.parametrize("part", programs.SENSITIVE_PARTS)
def test_a_wildcard_never_stands_for_keys_and_settings(part: str) -> None:
    for name in (f"x/{part}", f"x/a{part}", f"{part}x" if part[0] != "." else f"x{part}x"):
        assert not matches("cat *", "Bash", f"cat {name}")
        assert not matches("x/*", "Read", name)
