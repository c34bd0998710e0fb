"""Two networks joined by one machine that forwards no packets: machines on either side speak through it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lan.lab import open_lab
from tests.lan.test_nodes import Machine, _linked, _until


@pytest.mark.soak
def test_two_subnets_joined_by_one_node(tmp_path: Path) -> None:
    """A command runs across, over the one machine that is in both networks."""
    with open_lab("ana", "both", network="10.98.0") as lab:
        lab.add_switch("attic")
        lab.add_host("mini")
        lab.plug("mini", "attic", "10.97.0.2/24")
        lab.plug("both", "attic", "10.97.0.1/24", "eth1")
        ana, both, mini = (Machine(lab, host, tmp_path) for host in ("ana", "both", "mini"))
        for machine in (ana, both, mini):
            machine.up()
        for machine in (ana, mini):
            machine.ask("join", both.ask("invite")["link"])
            _until("linked by address", lambda machine=machine: _linked(both, machine) and _linked(machine, both))
        _until("a circuit stands", lambda: ana.peer("mini").get("link") == mini.peer("ana").get("link") == "circuit")
        (link,) = [link for link in ana.ask("status")["links"] if link["name"] == "mini"]
        assert link["via"] == "both"
        mini.ask("config", "set", "runs", "mine")
        program = "import sys; print('across'); sys.exit(7)"
        code, out, err = ana.command("run", "mini", "--no-tree", "--", sys.executable, "-c", program)
        assert (code, out) == (7, "across\n"), err
        assert {link["kind"] for link in both.ask("status")["links"]} == {"direct"}
        for machine in (ana, mini, both):
            machine.ask("down")
