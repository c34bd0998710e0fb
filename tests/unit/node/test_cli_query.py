"""`query`: an index made and asked by the command itself, without a node."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.fakes.commands import call_here


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / "README.md").write_text("# Auth\n\n## How tokens are checked\n\nEvery token is compared in constant time.\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_index_and_ask(tmp_path, repository):
    ran = call_here(tmp_path / "h", "query", "index", str(repository), "--json")
    assert ran.code == 0, ran
    assert json.loads(ran.out)["project"] == "proj"
    found = json.loads(call_here(tmp_path / "h", "query", "ask", "proj", "how are tokens checked?", "--json").out)
    assert found["status"] == "ok"
    assert found["answers"][0]["citation"]["path"] == "README.md"
    plain = call_here(tmp_path / "h", "query", "ask", "proj", "how are tokens checked?").out
    assert "README.md:" in plain
    assert "constant time" in plain


def test_mistakes_are_one_line(tmp_path, repository):
    for words in (["index", str(tmp_path)], ["ask", "nothing", "what?"], ["ask", "proj", ""], ["index", str(repository), "--project", "NO"]):
        ran = call_here(tmp_path / "h", "query", *words)
        assert ran.code in (1, 2, 5), words
        assert "Traceback" not in ran.err
        assert ran.out == ""
        assert "error" in json.loads(call_here(tmp_path / "h", "query", *words, "--json").out)
