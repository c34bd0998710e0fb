"""Machines that stop being members, between real nodes: expelled while at work, through a third machine, with old backups."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from mesh.base.errors import MeshError
from node.cli.client import call
from node.home import find_home
from tests.process.nodes import Network, Node, open_network, until


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with open_network(tmp_path_factory.mktemp("members")) as found:
        yield found


def state(here: Node, there: Node) -> str:
    return str(here.peer(there).get("state"))


def status(node: Node) -> dict[str, Any]:
    """What ``status`` says, asked over the socket itself; empty while nothing answers."""
    with suppress(MeshError):
        return dict(call(find_home(str(node.home), {}), "status", timeout_s=10))
    return {}


def warned(node: Node, word: str) -> bool:
    return any(word in warning for warning in status(node).get("warnings", ()))


def test_an_expulsion_ends_links_and_tasks_at_once_and_holds_through_everything(network: Network) -> None:
    """O-P9, O-P10: with a task streaming; the third machine was down meanwhile; restarts of all; an old backup."""
    boss, away, bad = network.mesh("boss", "away", "bad")
    away.end()
    backup = network.folder / "bad-backup"
    bad.end()
    shutil.copytree(bad.home, backup)
    bad.up("--runs", "mine")
    until("linked", lambda: boss.sees(bad) and bad.sees(boss))
    run = boss.begin("run", "bad", "--no-tree", "--", "sh", "-c", "while :; do echo x; sleep 0.1; done")
    until("it streams", lambda: [t for t in boss.ask("tasks") if t["state"] == "running"])
    assert bad.fault("expel", "boss", "--yes", code=5)["reason"] == "role"
    assert boss.fault("expel", "bad", code=5)["reason"] == "needs_yes"
    assert state(boss, bad) == "live"
    began = time.monotonic()
    plan = boss.ask("expel", "bad", "--yes")
    assert (plan["name"], plan["mine"], len(plan["keys"]), len(plan["tasks"])) == ("bad", True, 1, 1)
    until("the link is closed", lambda: boss.peer(bad)["link"] is None and not status(bad)["links"], 10)
    assert state(boss, bad) == "expelled"
    ended = boss.finish(run, code=125)
    assert "no longer in this mesh" in ended.err
    assert time.monotonic() - began < 20
    until("it knows", lambda: warned(bad, "was expelled"))
    until("its task was ended there too", lambda: all(t["state"] not in ("running", "starting") for t in bad.ask("tasks")))
    assert boss.fault("run", "bad", "--no-tree", "--", "true", code=125)["kind"] in ("unknown_machine", "usage")

    # The third machine hears of it from whoever knows, and the expelled one finds no way in through it.
    boss_listen = status(boss)["listen"][0]
    away.up("--runs", "mine")
    until("away knows", lambda: state(away, bad) == "expelled")
    for node, listen in ((boss, boss_listen), (away, "127.0.0.1:0")):
        node.end()
        node.up("--runs", "mine", listen=listen)
    until("linked again", lambda: boss.sees(away) and away.sees(boss))
    bad.end()

    # An old backup of the expelled machine does not know; it is told at its first dial, by proof, and stays out.
    shutil.rmtree(bad.home)
    shutil.copytree(backup, bad.home)
    bad.up("--runs", "mine")
    until("it is told", lambda: warned(bad, "was expelled"))
    assert not status(bad)["links"]
    assert {state(boss, bad), state(away, bad)} == {"expelled"}
    assert all(peer["link"] is None for peer in bad.peers())
    invite = boss.ask("invite")["link"]
    bad.ask("join", "--leave-current", "--yes", invite)
    until("with a new key it may", lambda: boss.sees(bad) or [p for p in boss.peers() if p["name"] == "bad" and p["state"] == "live"])


def test_a_machine_leaves_and_the_others_see_it_gone_at_once(network: Network) -> None:
    host, guest = network.mesh("home", "mover")
    before = guest.ask("mesh", "identity")
    assert guest.fault("leave", code=5)["reason"] == "needs_yes"
    assert guest.ask("leave", "--yes")["told"] == 1
    until("it is gone", lambda: state(host, guest) == "gone" and host.peer(guest)["link"] is None)
    after = until("it is alone", lambda: [i for i in [guest.ask("mesh", "identity")] if i["mesh"] != before["mesh"]])[0]
    assert after["node"] != before["node"]
    assert guest.peers() == []


@pytest.mark.soak
def test_a_machine_leaves_in_order_and_stays_gone(network: Network) -> None:
    """O-G5: the others see it gone at once, one that was away too, and an old copy of it finds no way in."""
    host, guest, late = network.mesh("host", "guest", "late")
    address = status(host)["listen"][0]
    late.end()
    guest.end()
    backup = network.folder / "guest-backup"
    shutil.copytree(guest.home, backup)
    guest.up("--runs", "mine")
    until("linked", lambda: host.sees(guest) and guest.sees(host))
    before = guest.ask("mesh", "identity")
    assert guest.fault("leave", code=5)["reason"] == "needs_yes"
    left = guest.ask("leave", "--yes")
    assert (left["left"], left["told"]) == (before["mesh"], 1)
    until("it is gone", lambda: state(host, guest) == "gone" and host.peer(guest)["link"] is None)
    after = guest.ask("mesh", "identity")
    assert (after["mesh"], guest.ask("peers")) == (left["mesh"], [])
    assert after["node"] != before["node"]
    late.up("--runs", "mine")
    until("late knows", lambda: late.sees(host) and state(late, guest) == "gone")
    guest.end()
    shutil.rmtree(guest.home)
    shutil.copytree(backup, guest.home)
    guest.up("--runs", "mine")
    until("late and host are level", lambda: host.sees(late))
    assert address == status(host)["listen"][0]
    until("the copy was turned away", lambda: guest.peer(host) and guest.fault("connect", "host", address, code=5)["reason"] == "left")
    assert {state(host, guest), state(late, guest)} == {"gone"}
