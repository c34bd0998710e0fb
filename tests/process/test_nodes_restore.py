"""Real nodes: a home that was copied, a database that came back, a root key that left.

O-P1, O-B8, SECURITY 22, 23, 26.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.process.nodes import open_network, until


@pytest.mark.soak
def test_a_copied_home_is_noticed_by_both_and_nothing_flaps(tmp_path: Path):
    """O-P1: cp -a of a home, both running: the witness keeps its first link, it and the copy say what to do."""
    with open_network(tmp_path) as network:
        witness, first = network.mesh("witness", "first")
        boot = first.ask("status")["node"]["boot"]
        first.end()
        shutil.copytree(first.home, tmp_path / "copy", symlinks=True, ignore=shutil.ignore_patterns("run"))
        first.up("--runs", "mine")
        until("they are linked again", lambda: witness.sees(first) and first.sees(witness))
        since = next(link["since"] for link in witness.ask("status")["links"])
        copy = network.node("copy")
        copy.up("--runs", "mine")

        def warned(node) -> bool:
            return any("duplicate identity" in line and "hivemesh leave" in line for line in node.ask("status")["warnings"])

        until("the witness and the copy warn", lambda: warned(witness) and warned(copy) and warned(first), 50)
        (link,) = witness.ask("status")["links"]
        assert link["since"] == since, "the first link stands as it stood"
        for home in (witness.home, copy.home):
            assert "duplicate identity" in (home / "log" / "node.log").read_text()
        assert first.ask("status")["node"]["boot"] != boot


@pytest.mark.soak
def test_a_restored_database_holds_invites_and_grants_until_a_person_or_a_member_says_more(tmp_path: Path):
    with open_network(tmp_path) as network:
        one = network.node("one").up()
        link, listen = one.ask("invite")["link"], one.facts["listen"][0]
        one.end()
        shutil.copy(one.home / "mesh.db", tmp_path / "mesh.backup")
        one.up(listen=listen)
        two = network.node("two").up()
        two.ask("join", link)
        until("they are linked", lambda: one.sees(two))
        two.end()
        one.end()
        for ending in ("-wal", "-shm"):
            (one.home / f"mesh.db{ending}").unlink(missing_ok=True)
        shutil.copy(tmp_path / "mesh.backup", one.home / "mesh.db")
        one.up()
        assert any("backup" in line for line in one.ask("status")["warnings"])
        assert one.fault("invite", code=5)["reason"] == "restored"
        assert one.ask("doctor", "--accept-restore") == {"accepted": True}
        assert one.ask("doctor", "--accept-restore") == {"accepted": False}
        assert not any("backup" in line for line in one.ask("status")["warnings"])
        one.ask("invite")


@pytest.mark.soak
def test_the_root_leaves_on_paper_and_its_word_comes_back_in_a_file(tmp_path: Path):
    with open_network(tmp_path) as network:
        one, two = network.mesh("one", "two")
        key = one.home / "identity" / "root.key"
        assert one.fault("mesh", "root", "export", code=5)["reason"] == "needs_yes"
        assert key.exists()
        assert any(check["check"] == "root" for check in one.ask("doctor", code=0))
        words = " ".join(one.ask("mesh", "root", "export", "--yes")["words"])
        network.secrets.add(words)
        assert len(words.split()) == 24
        assert not key.exists()
        assert one.fault("mesh", "root", "export", "--yes", code=5)["reason"] == "no_root_key"
        one.end()
        one.up("--runs", "mine")
        until("they are linked again", lambda: one.sees(two))
        said = str(tmp_path / "word")
        assert one.run("mesh", "root", "sign", "admin", "two", "--out", said, stdin="zoo " * 24, code=2).out == ""
        one.run("mesh", "root", "sign", "admin", "two", "--out", said, stdin=words + "\n")
        assert one.ask("mesh", "root", "apply", said) == {"records": 1, "expelled": []}
        until("two is an admin", lambda: "admin" in two.ask("mesh", "identity")["roles"])
        two.end()
        one.run("mesh", "root", "sign", "expel", "two", "--out", said, stdin=words + "\n")
        assert two.ask("mesh", "root", "apply", said)["records"] == 1
