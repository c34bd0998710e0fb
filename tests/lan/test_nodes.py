"""Whole nodes on a LAN of their own: pairing by an invite without addresses, and finding each other again by mDNS."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lan.lab import Lab, open_lab

NEAR_S = 45.0
"""Two rounds of announcements at the longest pause, and a dial."""


class Machine:
    """A host of the lab with a home, and the command line there."""

    def __init__(self, lab: Lab, host: str, homes: Path) -> None:
        self.name = host
        self._lab = lab
        self._home = homes / host
        self._home.mkdir()

    def command(self, *words: str, timeout_s: float = 60) -> tuple[int, str, str]:
        """Run ``hivemesh`` here; returns exit code, stdout and stderr."""
        surroundings = ["env", "-u", "HIVEMESH_HOME", f"HOME={self._home}", f"XDG_RUNTIME_DIR={self._home}"]
        program = [sys.executable, "-m", "node.cli.entry", "--home", str(self._home / "node"), *words]
        done = self._lab.run(self.name, *surroundings, *program, timeout_s=timeout_s, check=False)
        return done.returncode, done.stdout, done.stderr

    def ask(self, *words: str, timeout_s: float = 60):
        """Run a command with ``--json``, which must succeed, and read its answer."""
        code, out, err = self.command("--json", *words, timeout_s=timeout_s)
        assert code == 0, f"{self.name}: {' '.join(words)}: exit {code}\n{out}\n{err}"
        return json.loads(out)

    def up(self) -> None:
        """Start the node in the background."""
        self.ask("up", "-d", "--name", self.name, "--api", "off")

    def peer(self, name: str) -> dict:
        """What this machine says of another one."""
        return next((peer for peer in self.ask("peers") if peer["name"] == name), {})


def _until(what: str, condition: Callable[[], bool], time_s: float = NEAR_S) -> None:
    """Wait for something that happens in other processes."""
    until = time.monotonic() + time_s
    while not condition():
        assert time.monotonic() < until, f"not within {time_s:.0f} s: {what}"
        time.sleep(0.25)


def _linked(one: Machine, other: Machine) -> bool:
    peer = one.peer(other.name)
    return peer.get("state") == "live" and peer.get("link") == "direct"


def _pair(issuer: Machine, joiner: Machine) -> None:
    """Pair by an invite without addresses: only multicast can lead from one to the other."""
    issuer.up()
    invite = issuer.ask("invite", "--no-addresses")
    assert "10.99.0." not in invite["link"]
    joiner.up()
    joined = joiner.ask("join", invite["link"], timeout_s=NEAR_S + 30)
    assert joined["via"] == issuer.name
    _until("both sides show the link", lambda: _linked(issuer, joiner) and _linked(joiner, issuer))


def test_pairing_by_multicast_and_a_run_across(tmp_path: Path) -> None:
    """The issuer is found without an address; afterwards a command runs there and its exit code comes back."""
    with open_lab("ana", "mini") as lab:
        ana, mini = Machine(lab, "ana", tmp_path), Machine(lab, "mini", tmp_path)
        _pair(ana, mini)
        found = mini.ask("discover", "--timeout", "3s")
        assert [entry["known"] for entry in found] == ["ana"]
        assert found[0]["addresses"] == ["10.99.0.1"]
        mini.ask("config", "set", "runs", "mine")
        program = "import sys; print('across'); sys.exit(7)"
        code, out, err = ana.command("run", "mini", "--no-tree", "--", sys.executable, "-c", program)
        assert (code, out) == (7, "across\n"), err
        for machine in (ana, mini):
            machine.ask("down")


@pytest.mark.soak
def test_a_machine_restarted_on_another_address_is_linked_again(tmp_path: Path) -> None:
    """First one of them moves; then both move at once, so that no remembered address can lead anywhere."""
    with open_lab("ana", "mini") as lab:
        ana, mini = Machine(lab, "ana", tmp_path), Machine(lab, "mini", tmp_path)
        _pair(ana, mini)
        mini.ask("down")
        _until("ana sees that mini left", lambda: not _linked(ana, mini))
        lab.readdress("mini", "10.99.0.72/24")
        mini.up()
        _until("linked after one moved", lambda: _linked(ana, mini) and _linked(mini, ana))
        mini.ask("down")
        _until("ana sees that mini left again", lambda: not _linked(ana, mini))
        lab.readdress("ana", "10.99.0.181/24")
        lab.readdress("mini", "10.99.0.182/24")
        mini.up()
        _until("linked after both moved", lambda: _linked(ana, mini) and _linked(mini, ana))
        for machine in (ana, mini):
            machine.ask("down")


@pytest.mark.soak
def test_a_running_machine_that_gets_another_address_is_linked_again_and_listed_there(tmp_path: Path) -> None:
    """O-D1, O-G1: cable to Wi-Fi under running nodes: no restart, the same one machine, at the new address only, in 30 s."""
    with open_lab("ana", "mini") as lab:
        ana, mini = Machine(lab, "ana", tmp_path), Machine(lab, "mini", tmp_path)
        _pair(ana, mini)
        _until("ana lists where mini is", lambda: _hosts(ana, mini) == ["10.99.0.2"])
        lab.readdress("mini", "10.99.0.72/24")
        _until("linked at the new address", lambda: _linked(ana, mini) and _linked(mini, ana) and _hosts(ana, mini) == ["10.99.0.72"], 30)
        assert [peer["name"] for peer in ana.ask("peers")] == ["mini"]
        for machine in (ana, mini):
            machine.ask("down")


def _hosts(one: Machine, other: Machine) -> list[str]:
    """Where one says that the other can be dialled, by IPv4."""
    return [a.rpartition(":")[0] for a in one.peer(other.name).get("addresses", ()) if not a.startswith("[")]


def test_a_node_without_multicast_works_by_address(tmp_path: Path) -> None:
    """O-D5: UDP 5353 is held; ``status`` says that discovery is off and why, and pairing by address works."""
    with open_lab("ana", "mini") as lab:
        squatter = lab.start(
            "ana",
            sys.executable,
            "-c",
            "import signal,socket\n"
            "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
            "s.bind(('',5353))\n"
            "print('held',flush=True)\n"
            "signal.pause()\n",
        )
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "held\n"
        ana, mini = Machine(lab, "ana", tmp_path), Machine(lab, "mini", tmp_path)
        ana.up()
        _until("the reason is told", lambda: "5353" in str(ana.ask("status")["discovery"]["reason"]), 15)
        assert ana.ask("status")["discovery"]["on"] is False
        mini.up()
        joined = mini.ask("join", ana.ask("invite")["link"])
        assert joined["via"] == "ana"
        _until("linked by address", lambda: _linked(ana, mini) and _linked(mini, ana), 20)
        for machine in (ana, mini):
            machine.ask("down")


def test_eight_characters_pair_two_machines_of_one_lan(tmp_path: Path) -> None:
    """The code names no address: the joiner asks who announces itself here."""
    with open_lab("studio", "mini") as lab:
        studio, mini = Machine(lab, "studio", tmp_path), Machine(lab, "mini", tmp_path)
        studio.up()
        mini.up()
        _until("discovery is on", lambda: studio.ask("status")["discovery"]["on"])
        code = studio.ask("invite", "--code")["code"]
        assert len(code.replace("-", "")) == 8
        assert mini.ask("join", code, timeout_s=120)["via"] == "studio"
        _until("they are linked", lambda: _linked(studio, mini) and _linked(mini, studio))
