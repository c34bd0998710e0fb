"""`invite` and `join`: links pasted any way, never shown again."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from mesh.base.crypto import SigningKey
from mesh.invites import InviteBody, write_link
from mesh.kinds import Role
from node.home import find_home
from tests.fakes.commands import PROGRAM, call_here, call_process, environ_of
from tests.fakes.daemon import FakeDaemon

JOINED = {"mesh": "m", "node": "n", "name": "mini", "via": "laptop", "owner": "ana", "roles": ["member"]}


def make_link(*, mine: bool = True) -> str:
    key = SigningKey(bytes(range(32)))
    body = InviteBody(1, b"m" * 16, key.public, b"i" * 16, b"s" * 16, int(Role.MEMBER | Role.WORKER), 1, 2_000_000_000, mine, "ana", ("10.0.0.1:9847",))
    return write_link(key, body)


LINK = make_link()


@pytest.fixture
def daemon(tmp_path):
    with FakeDaemon(find_home(str(tmp_path), {}), {"join": JOINED, "config.set": {"key": "runs", "value": "mine", "applied": True}}) as found:
        yield found


@pytest.mark.parametrize(
    "pasted",
    [LINK, f" {LINK}\n", f'"{LINK}"', f"{LINK[:40]}\n  {LINK[40:90]}\r\n{LINK[90:]}", f"\u00a0{LINK}\u00a0", f"“{LINK}”", LINK.replace("-", "\u2013")],
    ids=["plain", "space", "quotes", "three lines", "nbsp", "smart quotes", "smart dashes"],
)
def test_a_link_can_be_pasted_any_way(tmp_path, daemon, pasted):
    """O-P4, as a word, from stdin, and from the environment."""
    for ran in (call_here(tmp_path, "join", pasted), call_here(tmp_path, "join", "-", stdin=pasted), call_here(tmp_path, "join", environ={"HIVEMESH_INVITE": pasted})):
        assert ran.code == 0, ran
        assert "joined as mini" in ran.out
    assert [verb for verb, _ in daemon.asked] == ["join"] * 3


@pytest.mark.parametrize("pasted", ["", " ", "nonsense", LINK[:-3], LINK[:50] + "A" + LINK[51:], "a" * 1_000_000, "hmi_", LINK + LINK], ids=["empty", "blank", "nonsense", "cut", "changed", "1 MB", "prefix", "twice"])
def test_anything_else_is_one_line_and_the_code_is_not_shown(tmp_path, pasted):
    """O-P4: no traceback, not echoed, nothing started, exit not 0."""
    for plain in (True, False):
        ran = call_here(tmp_path / "h", *([] if plain else ["--json"]), "join", "-", stdin=pasted)
        assert ran.code in (2, 5)
        assert "Traceback" not in ran.err
        assert len(pasted) < 10 or pasted[5:40] not in ran.out + ran.err
    assert not (tmp_path / "h").exists()


def test_a_link_never_comes_back_in_what_the_command_says(tmp_path, daemon):
    ran = call_process(tmp_path, "join", LINK)
    assert LINK[4:30] not in ran.out + ran.err


def test_joining_as_one_s_own_machine_says_how_its_runs_are_allowed(tmp_path, daemon):
    """Without a terminal nothing is asked and nothing is changed."""
    ran = call_here(tmp_path, "join", LINK)
    assert "hivemesh config set runs mine" in ran.err
    assert "There is no sandbox yet: what they run can do what you can." in ran.err
    assert daemon.asked[-1][0] == "join"
    assert "config set" not in call_here(tmp_path, "join", make_link(mine=False)).err
    (tmp_path / "config.toml").write_text("runs = 'ask'\n")
    assert "config set" not in call_here(tmp_path, "join", LINK).err, "it was settled once"


def test_with_yes_one_s_own_machines_still_wait_without_a_terminal(tmp_path, daemon):
    call_here(tmp_path, "--yes", "join", LINK)
    assert [verb for verb, _ in daemon.asked] == ["join"]


def test_notes_of_the_node_go_to_stderr(tmp_path):
    async def join(call):
        await call.event({"kind": "note", "text": "looking on the LAN\x1b"})
        return JOINED

    with FakeDaemon(find_home(str(tmp_path), {}), {"join": join}):
        ran = call_here(tmp_path, "join", "--leave-current", "--json", LINK)
    assert "looking on the LAN\\x1b" in ran.err
    assert ran.out.count("\n") == 1


def test_an_invite_is_one_line_on_stdout_and_its_hint_keeps_it_out_of_the_process_list(tmp_path):
    answer = {"id": "i", "link": LINK, "expires_at": "t", "uses": 1, "roles": ["member"], "owner": "ana"}
    with FakeDaemon(find_home(str(tmp_path), {}), {"invite": answer}):
        ran = call_here(tmp_path, "invite")
        stated = call_here("/elsewhere", "--home", str(tmp_path), "invite")
    assert ran.out == LINK + "\n"
    assert "there: hivemesh join -" in ran.err
    assert "1 use, until" in ran.err
    assert stated.err == ran.err, "the other machine has a home of its own"


@pytest.mark.parametrize(("typed", "runs"), [(b"\n", "ask"), (b"y\n", "mine")])
def test_a_person_is_told_that_there_is_no_sandbox_and_no_is_the_default(tmp_path, daemon, typed, runs):
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*PROGRAM, "join", LINK], env=environ_of(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    asked = b""
    while b"] " not in asked:
        asked += os.read(ours, 1000)
    assert asked.endswith(b"There is no sandbox yet: what they run can do what you can. [y/N] ")
    os.write(ours, typed)
    assert process.wait(10) == 0
    os.close(ours)
    assert daemon.asked[-1] == ("config.set", {"key": "runs", "value": runs})
