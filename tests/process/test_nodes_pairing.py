"""Pairing between real nodes: every way an invite can be used wrongly, and a kill at every moment of a join."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from mesh.base.clock import parse_rfc3339_ms, read_clock
from node.sessions.sample import write_sample
from tests.process.nodes import Network, Node, open_network, until


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with open_network(tmp_path_factory.mktemp("pairing")) as found:
        yield found


@pytest.fixture(scope="module")
def laptop(network: Network) -> Node:
    """The machine that founded the mesh the others join."""
    return network.node("laptop").up()


@pytest.fixture(scope="module")
def spare(network: Network) -> Node:
    """A machine alone in its own mesh, for joins that must fail."""
    return network.node("spare").up()


def flipped(link: str, at: int) -> str:
    """Change one character of a link into another one of its alphabet."""
    return link[:at] + ("A" if link[at] != "A" else "B") + link[at + 1 :]


def test_one_more_machine_of_mine(network: Network, laptop: Node) -> None:
    mini = network.node("mini").up()
    before = mini.ask("mesh", "identity")
    invite = laptop.ask("invite")
    joined = mini.ask("join", "-", stdin=f'  "{invite["link"][:50]}\n{invite["link"][50:]}"\n')
    identity = laptop.ask("mesh", "identity")
    expected = {"mesh": identity["mesh"], "node": mini.id, "name": "mini", "via": "laptop", "owner": identity["owner"]}
    assert {field: joined[field] for field in expected} == expected
    assert set(joined["roles"]) == {"member", "worker", "relay"}
    assert before["node"] != mini.id, "a move makes a fresh key, so that nothing signed for one mesh counts in another"
    assert mini.ask("mesh", "identity")["holds_owner_key"] is False
    until("linked", lambda: laptop.sees(mini) and mini.sees(laptop))
    assert laptop.peer(mini)["mine"] is True
    assert mini.fault("invite", code=5)["reason"] == "role"
    assert mini.fault("join", laptop.ask("invite")["link"], code=5)["reason"] == "member"


def test_another_persons_machine_makes_its_own_owner_key(network: Network, laptop: Node) -> None:
    ben = network.node("ben").up()
    joined = network.pair(laptop, ben, "--for", "ben")
    assert joined["owner"] == "ben"
    assert ben.ask("mesh", "identity")["holds_owner_key"] is True
    assert (laptop.peer(ben)["mine"], laptop.peer(ben)["owner"]) == (False, "ben")
    assert ben.peer(laptop)["mine"] is False
    assert ben.ask("hive", "lessons") == []


def test_a_changed_a_used_and_an_expired_invite_are_refused_and_change_nothing(network: Network, laptop: Node, spare: Node) -> None:
    """O-P3 and O-P4 as far as links go: a typo is found here, before anything is sent; the invite stays good, for one."""
    invite = laptop.ask("invite", "--role", "viewer", "--ttl", "15m")
    assert (invite["roles"], invite["uses"]) == (["viewer"], 1)
    link, before = invite["link"], spare.ask("mesh", "identity")
    for at in (0, 30, len(link) - 1):
        ran = spare.run("--json", "join", flipped(link, at), code=None)
        assert ran.code in (2, 5), ran
        assert link[10:40] not in ran.out + ran.err
    for broken in ("", "hmi_", link[:-1], "a" * 60_000):
        assert spare.run("join", "-", stdin=broken, code=None).code in (2, 5)
    short = laptop.ask("invite", "--ttl", "1s")
    end_ms = parse_rfc3339_ms(short["expires_at"]) or 0
    until("the short invite ran out", lambda: read_clock().wall_ms > end_ms + 1000, 10)
    assert spare.fault("join", short["link"], code=5)["reason"] == "expired", "the other invite is still open"
    viewer = network.node("viewer").up()
    assert viewer.ask("join", link)["roles"] == ["viewer"]
    until("linked", lambda: laptop.sees(viewer) and viewer.sees(laptop))
    assert viewer.ask("status")["node"]["name"] == "viewer", "it may publish nothing, and stays up"
    viewer.end()
    assert spare.fault("join", link, code=5)["reason"] in ("used", "no_open_invite")
    laptop.ask("invite")
    assert spare.fault("join", link, code=5)["reason"] == "used", "now that a door is there, the issuer says why"
    assert spare.ask("mesh", "identity") == before
    assert all(peer["name"] != "spare" for peer in laptop.ask("peers"))
    for words in (("--role", "admin"), ("--uses", "0"), ("--ttl", "never"), ("--ttl", "52w")):
        assert laptop.fault("invite", *words, code=2)


def test_a_machine_with_others_in_its_mesh_leaves_only_when_told_to(network: Network, laptop: Node, spare: Node) -> None:
    """What it learned goes with it. The machine it left is then ended, and an invite of it leads nowhere, in time."""
    first, mover = network.mesh("first", "mover", options=())
    write_sample(mover.user / ".claude", mover.user / ".codex", int(time.time() * 1000))
    lessons = until("it learned something", lambda: mover.ask("hive", "learn")["units"] and first.ask("hive", "lessons"))
    invite = laptop.ask("invite")
    refused = mover.fault("join", invite["link"], code=5)
    assert refused["reason"] == "in_a_mesh"
    assert "--leave-current" in refused["hint"]
    mover.ask("join", "--leave-current", invite["link"])
    until("linked in the new mesh", lambda: mover.sees(laptop))
    until("not linked in the old one", lambda: first.peer(mover)["link"] is None)
    assert first.peer(mover)["state"] in ("stale", "gone")
    learned = {(lesson["tool"], lesson["pattern"]) for lesson in lessons}
    until("what it knew is known in the new mesh", lambda: learned <= {(x["tool"], x["pattern"]) for x in laptop.ask("hive", "lessons")})
    until("so are its sessions", lambda: [row for row in laptop.ask("fleet", "--all") if row["name"] == "mover"])
    mover.end()
    link, before = first.ask("invite")["link"], spare.ask("mesh", "identity")
    first.end()
    assert spare.fault("join", link, code=4)["message"]
    assert spare.ask("mesh", "identity") == before


def test_join_starts_the_node_where_none_runs(network: Network, laptop: Node) -> None:
    fresh = network.node("fresh")
    fresh.home.mkdir(mode=0o700)
    (fresh.home / "config.toml").write_text('name = "fresh"\nlisten = "127.0.0.1:0"\ndiscovery = false\n')
    ran = fresh.run("--json", "join", HIVEMESH_INVITE=laptop.ask("invite")["link"])
    assert json.loads(ran.out)["name"] == "fresh"
    assert "background" in ran.err
    until("linked", lambda: fresh.sees(laptop))
    fresh.ask("down")


JOINER_DIES = [
    ("before it decided", ("node.app:decide_move", "before", 2), False),
    ("once it had decided", ("node.app:decide_move", "after", 2), True),
    ("with new keys and the old database", ("pathlib:Path.rename", "after", 5), True),
]


@pytest.mark.parametrize(("when", "crash", "moves"), JOINER_DIES, ids=[when for when, *_ in JOINER_DIES])
def test_a_joiner_killed_in_the_middle(network: Network, laptop: Node, when: str, crash: tuple[str, str, int], moves: bool) -> None:
    """Its home is in the old mesh or in the new one, never between; the use is spent, and the certificate exists."""
    joiner = network.node(f"j{JOINER_DIES.index((when, crash, moves))}").up(crash=crash)
    link = laptop.ask("invite")["link"]
    old = joiner.ask("mesh", "identity")
    members = laptop.ask("status")["mesh"]["members"]
    joiner.run("join", link, code=None)
    assert joiner.end(None) == -9
    joiner.up()
    now = joiner.ask("mesh", "identity")
    assert (now != old) is moves
    assert laptop.ask("status")["mesh"]["members"] == members + 1
    if moves:
        until("linked", lambda: laptop.sees(joiner) and joiner.sees(laptop))
    else:
        assert joiner.fault("join", link, code=5)["reason"] == "used"
        joiner.ask("join", laptop.ask("invite")["link"])
    until("nothing of the move is left", lambda: not {"moving", "moved"} & {path.name for path in joiner.home.iterdir()})
    joiner.end()


ISSUER_DIES = [
    ("before the use is spent", ("mesh.store:spend_invite", "before", 1), False),
    ("when the use is spent and nobody told", ("mesh.replica:Replica.publish_signed", "before", 1), True),
]


@pytest.mark.parametrize(("when", "crash", "spent"), ISSUER_DIES, ids=[when for when, *_ in ISSUER_DIES])
def test_an_issuer_killed_in_the_middle(network: Network, spare: Node, when: str, crash: tuple[str, str, int], spent: bool) -> None:
    """Either the use is spent and a certificate exists, or neither; the joiner is where it was, and can try again."""
    issuer = network.node(f"i{ISSUER_DIES.index((when, crash, spent))}").up(crash=crash)
    link, address = issuer.ask("invite")["link"], issuer.ask("status")["listen"][0]
    before = spare.ask("mesh", "identity")
    failed = spare.fault("join", link, code=4)
    assert failed["kind"] == "join_unfinished"
    assert "nothing was spent" not in failed["hint"]
    assert issuer.end(None) == -9
    assert spare.ask("mesh", "identity") == before
    issuer.up(listen=address)
    assert issuer.ask("status")["mesh"]["members"] == 1 + spent
    refused = spare.fault("join", link, code=5) if spent else {"reason": "no_open_invite"}
    assert refused["reason"] == "no_open_invite", "no other invite is open, so there is no door at all"
    issuer.end()
