"""Codes and phrases between real nodes; what a person reads when one fails, on both sides."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.codes import address_payload, read_code_untrusted, write_code
from tests.process.nodes import Network, Node, open_network, until


def another(code: str) -> str:
    """A well-formed code for the same machine with another password."""
    found = read_code_untrusted(code)
    assert found.address is not None
    host, _, port = found.address.rpartition(":")
    return write_code(address_payload(host, int(port), int.from_bytes(found.password, "big") ^ 1), long=True)


def two(network: Network) -> tuple[Node, Node]:
    nodes = [network.node("studio"), network.node("mini")]
    for node in nodes:
        node.up(wait=False)
    for node in nodes:
        node.facts = node.first_line()
    return nodes[0], nodes[1]


@pytest.mark.parametrize("form", ["code", "words"])
def test_a_machine_joins_by_a_code_or_a_phrase(tmp_path: Path, form: str):
    with open_network(tmp_path) as network:
        studio, mini = two(network)
        made = studio.ask("invite", f"--{form}")
        assert [made[name] is not None for name in ("code", "words", "code_expires_at")] == [form == "code", form == "words", True]
        ran = mini.run("--json", "join", "-", stdin=made[form].lower())
        assert '"via": "studio"' in ran.out.replace('":"', '": "')
        assert studio.facts["fingerprint"] in ran.err, "the person sees who invites before anything is settled"
        until("both see each other", lambda: studio.sees(mini) and mini.sees(studio))
        third = network.node("late").up()
        assert "code is open" in third.fault("join", made[form], code=5)["message"]


def test_a_typo_costs_nothing_and_three_wrong_codes_burn_it(tmp_path: Path):
    """O-P3, O-P5: both screens say so, and nobody became a member."""
    with open_network(tmp_path) as network:
        studio, mini = two(network)
        code = studio.ask("invite", "--code")["code"]
        typo = code[:-1] + ("A" if code[-1] != "A" else "B")
        fault = mini.fault("join", typo, code=5)
        assert "typo" in fault["message"]
        assert "can be tried again" in fault["hint"]
        assert studio.ask("status")["warnings"] == []
        messages = [mini.fault("join", another(code), code=5)["message"] for _ in range(3)]
        assert ["burned" in message for message in messages] == [False, False, True]
        assert any("burned after three wrong tries" in warning for warning in studio.ask("status")["warnings"])
        studio.end()
        studio.up(listen=studio.facts["listen"][0])
        assert "no" in mini.fault("join", code, code=5)["message"]
        assert studio.peers() == []


def test_a_right_code_works_after_a_wrong_one_and_says_when_it_cannot(tmp_path: Path):
    with open_network(tmp_path) as network:
        studio, mini = two(network)
        code = studio.ask("invite", "--code", "--for", "ben", "--role", "viewer")["code"]
        assert "wrong" in mini.fault("join", another(code), code=5)["message"]
        joined = mini.ask("join", code)
        assert (joined["owner"], joined["roles"]) == ("ben", ["viewer"])


def test_what_does_not_go_together_is_said(tmp_path: Path):
    with open_network(tmp_path) as network:
        studio = network.node("studio").up()
        assert "one machine" in studio.fault("invite", "--code", "--uses", "2", code=2)["message"]
        assert studio.run("invite", "--code", "--words", code=2).err
        assert "admin" in studio.fault("invite", "--code", "--role", "admin", code=2)["hint"]
        assert studio.run("invite", "--qr").out.startswith("hmi_")
