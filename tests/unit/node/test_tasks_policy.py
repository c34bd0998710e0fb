"""Who may run something here: every cell of the table."""

from __future__ import annotations

import itertools

import pytest

from mesh.base.names import NodeId, OwnerId
from mesh.base.ports import Member
from node.messages import TaskSpec
from node.tasks.policy import Allow, Ask, Deny, decide, who_is_denied
from node.tasks.ports import RunSettings

SPEC = TaskSpec(1, (b"true",), "", None, None, 60)


def member(name: str, *, mine: bool = True, roles: tuple[str, ...] = ("member", "worker"), state: str = "live") -> Member:
    node = NodeId(name.encode().ljust(16, b"."))
    return Member(node, b"k" * 32, name, OwnerId(b"o" * 16), "Ana", mine, frozenset(roles), state, 1, True, (), None)


def test_only_the_legal_cells_start_anything():
    """SECURITY: role x owner x state x setting; everything but my own live member's request is denied."""
    allowed = []
    roles = [("member",), ("viewer",), ("relay",), ("admin",), ("member", "admin"), ()]
    states = ["live", "stale", "gone", "expelled", "expired"]
    for runs, mine, role, state in itertools.product(("mine", "ask", "off", "nonsense"), (True, False), roles, states):
        verdict = decide(RunSettings(runs=runs), member("mini"), member("laptop", mine=mine, roles=role, state=state), SPEC, sandbox=False)
        nothing = who_is_denied(RunSettings(runs=runs), member("mini"), member("laptop", mine=mine, roles=role, state=state))
        assert nothing == (verdict if isinstance(verdict, Deny) else None)
        if not isinstance(verdict, Deny):
            allowed.append((runs, mine, role, state))
            assert isinstance(verdict, Allow if runs == "mine" else Ask)
        else:
            assert verdict.reason
            assert verdict.detail
    assert set(allowed) == set(
        itertools.product(("mine", "ask"), (True,), [("member",), ("member", "admin")], ["live", "stale", "gone"])
    )


@pytest.mark.parametrize(
    ("settings", "me", "spec", "reason"),
    [
        (RunSettings(runs="mine"), member("mini", roles=("member",)), SPEC, "not_a_worker"),
        (RunSettings(runs="mine", sandbox="require"), member("mini"), SPEC, "sandbox"),
        (RunSettings(runs="mine"), member("mini"), TaskSpec(2, (b"x",), "", None, None, 60), "kind"),
        (RunSettings(runs="mine"), member("mini"), TaskSpec(1, (b"x",), "", None, None, 60, ("LD_PRELOAD",)), "env"),
        (RunSettings(), member("mini"), SPEC, None),
    ],
)
def test_what_is_asked_for_narrows(settings: RunSettings, me: Member, spec: TaskSpec, reason: str | None):
    verdict = decide(settings, me, member("laptop"), spec, sandbox=False)
    assert (verdict.reason if isinstance(verdict, Deny) else None) == reason


def test_a_stranger_is_denied():
    verdict = decide(RunSettings(runs="mine"), member("mini"), None, SPEC, sandbox=True)
    assert isinstance(verdict, Deny)
    assert verdict.reason == "not_a_member"
