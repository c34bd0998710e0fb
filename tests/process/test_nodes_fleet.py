"""One fleet of real nodes: who is live, whose sessions are seen by whom, and what is learned on one and known on another."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from node.sessions.sample import write_sample
from tests.process import shapes
from tests.process.nodes import Network, Node, git, open_network, repository, until
from tests.process.shapes import check


@dataclass
class Fleet:
    """Ana's laptop and mini, which has sessions; Ben's machine; a viewer of Ana's that has sessions of its own."""

    network: Network
    laptop: Node
    mini: Node
    ben: Node
    viewer: Node


def with_sample(node: Node) -> Node:
    write_sample(node.user / ".claude", node.user / ".codex", int(time.time() * 1000))
    return node


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with open_network(tmp_path_factory.mktemp("fleet")) as network:
        laptop, mini, ben, viewer = (network.node(name) for name in ("laptop", "mini", "bens", "viewer"))
        with_sample(mini)
        with_sample(viewer)
        for node in (laptop, mini, ben, viewer):
            node.up("--runs", "mine", wait=False)
        for node in (laptop, mini, ben, viewer):
            node.facts = node.first_line()
        check(laptop.ask("peers"), shapes.PEERS)
        invite = laptop.ask("invite")
        check(invite, shapes.INVITE)
        joined = mini.ask("join", invite["link"])
        check(joined, shapes.JOIN)
        ben.ask("join", laptop.ask("invite", "--for", "ben")["link"])
        viewer.ask("join", laptop.ask("invite", "--role", "viewer")["link"])
        everybody = (laptop, mini, ben, viewer)
        for node in everybody:
            until(f"{node.name} sees the others", lambda node=node: node.sees(*(o for o in everybody if o is not node)))
        yield Fleet(network, *everybody)


def rows_of(at: Node, of: Node) -> list[dict]:
    return [row for row in at.ask("fleet", "--all") if row["name"] == of.name]


def test_status_and_peers_have_the_shapes_scripts_rely_on(fleet: Fleet) -> None:
    for node in (fleet.laptop, fleet.mini, fleet.ben, fleet.viewer):
        status, peers = node.ask("status"), node.ask("peers")
        check(status, shapes.STATUS)
        check(peers, shapes.PEERS)
        assert status["mesh"]["members"] == 4
        assert len(peers) == 3
        assert node.name not in {peer["name"] for peer in peers}, "never this one"
        assert {peer["state"] for peer in peers} == {"live"}
        assert {link["kind"] for link in status["links"]} == {"direct"}
    by_name = {peer["name"]: peer for peer in fleet.laptop.ask("peers")}
    assert (by_name["mini"]["mine"], by_name["bens"]["mine"], by_name["bens"]["owner"]) == (True, False, "ben")
    assert by_name["viewer"]["roles"] == ["viewer"]


def test_sessions_of_one_machine_are_seen_from_the_other_as_they_are_there(fleet: Fleet) -> None:
    until("mini's sessions on the laptop", lambda: len(rows_of(fleet.laptop, fleet.mini)) == len(rows_of(fleet.mini, fleet.mini)) > 2)
    there, here = rows_of(fleet.mini, fleet.mini), rows_of(fleet.laptop, fleet.mini)
    check(here, shapes.FLEET)
    check(there, shapes.FLEET)
    unchanging = ("node", "name", "session", "agent", "project", "cwd", "branch", "model", "status", "tokens", "cost_usd", "limit", "task")

    def told(rows: list[dict]) -> list[str]:
        return sorted(json.dumps([row[field] for field in unchanging]) for row in rows)

    until("the same on both", lambda: told(rows_of(fleet.laptop, fleet.mini)) == told(rows_of(fleet.mini, fleet.mini)))
    assert {row["agent"] for row in here} == {"claude", "codex"}
    assert {"shop-api", "infra", "storefront"} <= {row["project"] for row in here}
    assert not any(row["stale"] for row in here)
    assert all(row["age_s"] < 30 for row in here)
    assert any(sum(n or 0 for n in row["tokens"].values()) > 0 for row in here)
    shown = fleet.laptop.ask("session", "show", here[0]["session"])
    assert shown["session"] == here[0]["session"]
    assert fleet.laptop.fault("session", "show", "zzz", code=2)


def test_a_viewer_with_sessions_of_its_own_stays_up_and_tells_nobody(fleet: Fleet) -> None:
    assert rows_of(fleet.viewer, fleet.viewer)
    assert rows_of(fleet.laptop, fleet.viewer) == []
    grant = fleet.viewer.ask("access", "grant", "shop", "--expires", "1h")
    check(grant, shapes.GRANT)
    assert fleet.viewer.ask("access", "revoke", grant["grant"])["state"] == "revoked", "what it serves itself needs nobody's leave"
    assert fleet.viewer.process is not None
    assert fleet.viewer.process.poll() is None


def test_another_person_sees_that_the_machines_are_there_and_nothing_else(fleet: Fleet) -> None:
    """SECURITY 33: nothing of Ana's sessions or lessons, in no command and in no byte of his home."""
    until("a lesson of mini on the laptop", lambda: fleet.mini.ask("hive", "learn") and fleet.laptop.ask("hive", "lessons"))
    ids = [row["session"] for row in rows_of(fleet.mini, fleet.mini)]
    said = "".join(
        fleet.ben.run(*words, code=None).out
        for words in (
            ("--json", "status"), ("--json", "peers"), ("--json", "fleet", "--all"), ("--json", "mesh", "show"), ("--json", "inbox"),
            ("--json", "hive", "lessons"), ("--json", "hive", "status"), ("--json", "tasks", "--all"), ("--json", "access", "list"),
            ("fleet", "--all"), ("peers",), ("--json", "doctor"),
        )
    )  # fmt: skip
    home = fleet.ben.bytes_at_rest()
    lessons = [lesson["pattern"] for lesson in fleet.laptop.ask("hive", "lessons")]
    assert lessons
    for canary in [*ids, *lessons, "shop-api", "storefront", *(row["cwd"] for row in rows_of(fleet.mini, fleet.mini) if row["cwd"])]:
        assert canary not in said
        assert canary.encode() not in home
    assert fleet.ben.fault("session", "show", ids[0], code=2)
    assert fleet.ben.ask("fleet", "--all") == []
    assert fleet.ben.ask("hive", "lessons") == []
    assert {peer["name"] for peer in fleet.ben.ask("peers")} == {"laptop", "mini", "viewer"}
    assert any(row["cwd"] for row in rows_of(fleet.mini, fleet.mini))


def test_what_is_learned_on_one_is_known_on_the_other_and_forgotten_there_too(fleet: Fleet) -> None:
    lessons = until("lessons", lambda: fleet.laptop.ask("hive", "lessons"))
    check(lessons, shapes.LESSONS)
    assert fleet.laptop.ask("hive", "status")["observations"] == 0
    gone = lessons[0]["lesson"]
    fleet.mini.ask("hive", "forget", gone)

    def kept(node: Node) -> set[str]:
        return {lesson["lesson"] for lesson in node.ask("hive", "lessons") if lesson["state"] != "muted"}

    until("forgotten on both", lambda: gone not in kept(fleet.laptop) | kept(fleet.mini))
    fleet.mini.ask("hive", "learn")
    assert gone not in kept(fleet.mini), "no later reading brings it back"
    assert fleet.laptop.ask("hive", "show", lessons[1]["lesson"])["machines"]


def test_a_machine_that_died_is_stale_with_its_sessions_and_live_again_elsewhere(fleet: Fleet) -> None:
    """O-G1, and what was published while it was away reaches it."""
    mini, laptop = fleet.mini, fleet.laptop
    before = mini.ask("status")["listen"]
    seen = {row["session"] for row in rows_of(laptop, mini)}
    mini.kill()
    until("mini is stale", lambda: laptop.peer(mini)["state"] == "stale" and laptop.peer(mini)["link"] is None)
    rows = rows_of(laptop, mini)
    assert {row["session"] for row in rows} == seen
    assert all(row["stale"] for row in rows)
    until("they age", lambda: all(row["age_s"] >= 1 for row in rows_of(laptop, mini)))
    assert laptop.peer(mini)["last_seen_s"] >= 1
    assert fleet.ben.peer(mini)["state"] == "stale"
    third = fleet.network.node("tower").up("--runs", "mine")
    third.ask("join", laptop.ask("invite")["link"])
    laptop.ask("hive", "learn")
    mini.up("--runs", "mine")
    assert mini.ask("status")["listen"] != before
    until("live again", lambda: laptop.sees(mini) and laptop.peer(mini)["addresses"] == mini.ask("status")["listen"])
    until("fresh again", lambda: (rows := rows_of(laptop, mini)) and not any(row["stale"] for row in rows))
    until("mini knows who joined meanwhile", lambda: mini.sees(third) and third.sees(mini, laptop, fleet.ben))
    until("the third one sees mini's sessions", lambda: {row["session"] for row in rows_of(third, mini)} == seen)
    assert len(laptop.ask("peers")) == 4


def ask_over_http(address: str, token: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        f"{address}/v1/projects/shop/ask",
        data=json.dumps({"question": "how are prices calculated?"}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_an_outsider_asks_until_another_machine_of_mine_revokes(fleet: Fleet) -> None:
    laptop, mini = fleet.laptop, fleet.mini
    folder = repository(laptop)
    (folder / "README.md").write_text("# Shop\n\n## How prices are calculated\n\nPrices are whole cents, rounded half up.\n")
    git(laptop, folder, "add", "-A")
    git(laptop, folder, "commit", "-q", "-m", "docs")
    laptop.ask("query", "index", str(folder), "--project", "shop")
    server = laptop.begin("--json", "query", "serve", "--listen", "127.0.0.1:0")
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["serve_at"]
        grants = [laptop.ask("access", "grant", "shop", "--label", name, "--expires", "1h") for name in ("carol", "dan")]
        for grant in grants:
            check(grant, shapes.GRANT)
            status, body = ask_over_http(address, grant["token"])
            assert status == 200
            check(json.loads(body), shapes.ASK)
            assert json.loads(body)["answers"]
        unknown = ask_over_http(address, grants[0]["token"][:-4] + "aaaa")
        assert unknown[0] == 404
        laptop.ask("access", "revoke", grants[0]["grant"])
        assert ask_over_http(address, grants[0]["token"]) == unknown, "a revoked token looks like no token"
        listed = until("mini lists the grant", lambda: [g for g in mini.ask("access", "list") if g["grant"] == grants[1]["grant"]])
        assert listed[0]["node"] == "laptop"
        assert fleet.ben.ask("access", "list") == []
        assert fleet.ben.run("access", "revoke", grants[1]["grant"], code=None).code in (2, 5)
        assert ask_over_http(address, grants[1]["token"])[0] == 200
        mini.ask("access", "revoke", grants[1]["grant"])
        until("the serving machine refuses", lambda: ask_over_http(address, grants[1]["token"]) == unknown)
        assert {g["state"] for g in laptop.ask("access", "list")} == {"revoked"}
        for grant in grants:
            assert grant["token"].encode() not in laptop.bytes_at_rest() + mini.bytes_at_rest()
    finally:
        server.terminate()
        fleet.network.said.append(server.communicate(timeout=20)[1].decode())


def test_a_new_name_is_told_and_found_at_once(fleet: Fleet) -> None:
    assert fleet.mini.ask("config", "set", "name", "attic")["applied"] is True
    until("the laptop knows it", lambda: fleet.laptop.peer("attic"))
    assert fleet.mini.ask("status")["node"]["name"] == "attic"
    assert {row["name"] for row in fleet.mini.ask("fleet", "--all")} >= {"attic"}
    fleet.mini.ask("config", "set", "name", "mini")
    until("the laptop knows it again", lambda: fleet.laptop.peer("mini"))


def test_two_of_one_name_are_told_apart(fleet: Fleet) -> None:
    """O-P6: flagged, and refused where a name alone would be ambiguous."""
    fleet.ben.ask("config", "set", "name", "Mini ")
    twins = until("ben's machine looks like mini", lambda: [p for p in fleet.laptop.ask("peers") if p["name"].strip().lower() == "mini"][1:])
    assert twins
    error = fleet.laptop.fault("connect", "mini", "127.0.0.1:1", code=2)
    assert error["kind"] == "ambiguous_machine"
    assert "mini~" in error["hint"]
    assert any("one name" in warning for warning in fleet.laptop.ask("status")["warnings"])
    assert fleet.laptop.run("--json", "connect", fleet.mini.id, "127.0.0.1:1", code=4)
    assert fleet.laptop.run("--json", "connect", f"mini~{fleet.mini.id[:4]}", "127.0.0.1:1", code=4)
    assert os.path.isdir(fleet.mini.home)
