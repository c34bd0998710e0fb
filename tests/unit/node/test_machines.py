"""Which machine a person means."""

from __future__ import annotations

import os

import pytest

from mesh.base.names import base32, clean_name, fingerprint_text, node_id, owner_id
from mesh.base.ports import Member
from node.machines import AmbiguousMachine, NoSuchMachine, find_machine, namesakes, title


def member(name: str, state: str = "live") -> Member:
    key = os.urandom(32)
    return Member(
        node_id(key), key, clean_name(name), owner_id(key), "ana", True, frozenset({"member"}), state, None, False, (), None
    )


def test_by_name_suffix_and_fingerprint():
    studio, mini = member("studio"), member("Mini")
    fleet = [studio, mini]
    assert find_machine("mini", fleet) is mini
    assert find_machine(title(mini), fleet) is mini
    print_of = fingerprint_text(studio.public_key)
    assert find_machine(print_of, fleet) is studio
    assert find_machine(base32(studio.node), fleet) is studio, "the id that --json prints"
    assert find_machine(print_of.upper().replace("-", "")[:12], fleet) is studio


def test_look_alikes_are_ambiguous_and_the_error_lists_them():
    """O-P6: a name equal after folding case, width and hidden characters never wins silently."""
    fleet = [member("B"), member("b "), member("B\u200b")]
    with pytest.raises(AmbiguousMachine) as caught:
        find_machine("b", fleet)
    for one in fleet:
        assert title(one) in caught.value.hint
    assert find_machine(f"b~{base32(fleet[1].node)[:6]}", fleet) is fleet[1]
    assert len(namesakes(fleet)) == 1


def test_a_name_that_reads_like_another_machines_fingerprint_never_wins_over_it():
    """A member names itself like the fingerprint of the machine a person means, to be sent their tree."""
    mini = member("mini")
    whole = fingerprint_text(mini.public_key)
    for name in (whole, whole.replace("-", ""), base32(mini.node)):
        liar = member(name)
        assert find_machine(whole, [liar, mini]) is mini
        assert find_machine(base32(mini.node), [liar, mini]) is mini
    liar = member(whole[:9])
    with pytest.raises(AmbiguousMachine):
        find_machine(whole[:9], [liar, mini])
    assert find_machine("mini", [liar, mini]) is mini


@pytest.mark.parametrize("text", ["", "~", "abc", "nobody", "~zzzz", "x" * 10_000, "\x00"])
def test_an_unknown_machine_is_a_usage_error_in_one_line(text: str):
    with pytest.raises(NoSuchMachine) as caught:
        find_machine(text, [member("studio")])
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


def test_an_expelled_machine_is_nobody():
    with pytest.raises(NoSuchMachine):
        find_machine("gone", [member("gone", "expelled")])
