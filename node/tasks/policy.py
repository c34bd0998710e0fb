"""Whether this machine runs something for another: its own settings decide, nothing the other side says.

A certificate says who somebody is; only the worker's configuration says what may run here. In the present state of
the product there is no sandbox and no configuration line for other people, so another person's machine is refused
(THREATS, "what may run here").
"""

from __future__ import annotations

from dataclasses import dataclass

from mesh.base.ports import Member
from node.messages import KIND_RUN, TaskSpec
from node.tasks.ports import RunSettings


@dataclass(frozen=True, slots=True)
class Allow:
    """Run it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Run it if a person of this machine's owner says so."""


@dataclass(frozen=True, slots=True)
class Deny:
    """Do not run it.

    Attributes:
        reason: A stable word.
        detail: One line the requester is shown, with what to do about it.
    """

    reason: str
    detail: str


Verdict = Allow | Ask | Deny


def decide(settings: RunSettings, me: Member, requester: Member | None, spec: TaskSpec, *, sandbox: bool) -> Verdict:
    """Decide on one offer.

    Args:
        settings: This machine's own.
        me: This machine.
        requester: The machine at the other end of the link, or None where it is no member.
        spec: What it wants to run.
        sandbox: Whether this machine can run it in one.

    Returns:
        The verdict.
    """
    denied = _who_is_denied(me, requester) or _what_is_denied(settings, me, spec, sandbox)
    if denied is not None:
        return denied
    return Allow() if settings.runs == "mine" else Ask()


def who_is_denied(settings: RunSettings, me: Member, requester: Member | None) -> Deny | None:
    """Say why nothing at all of a machine could be run here; None where something could.

    Args:
        settings: This machine's own.
        me: This machine.
        requester: The machine at the other end of the link, or None where it is no member.
    """
    return _who_is_denied(me, requester) or _runs_nothing(settings, me)


def _who_is_denied(me: Member, requester: Member | None) -> Deny | None:
    if requester is None or requester.state in ("expelled", "expired"):
        return Deny("not_a_member", "your machine is not a member of this mesh any more; join again with a new invite")
    if "worker" not in me.roles:
        return Deny("not_a_worker", f"{me.name} is not a worker; invite it again with the role worker")
    if "member" not in requester.roles:
        return Deny("role", "your machine's role does not allow it to start runs; ask for an invite with the role member")
    if not requester.mine:
        return Deny("other_person", f"{me.name} belongs to {me.owner_name or 'somebody else'} and runs nothing for other people")
    return None


def _runs_nothing(settings: RunSettings, me: Member) -> Deny | None:
    if settings.runs not in ("mine", "ask"):
        return Deny("policy", f"{me.name} runs nothing for other machines; `config set runs ask` there changes it")
    return None


def _what_is_denied(settings: RunSettings, me: Member, spec: TaskSpec, sandbox: bool) -> Deny | None:
    if (nothing := _runs_nothing(settings, me)) is not None:
        return nothing
    if settings.sandbox == "require" and not sandbox:
        return Deny("sandbox", f"{me.name} runs tasks only in a sandbox and has none; see there: hivemesh doctor")
    if spec.kind != KIND_RUN:
        return Deny("kind", f"{me.name} does not know this kind of task; update hivemesh there")
    if spec.env:
        return Deny("env", f"{me.name} accepts no variables from other machines: {', '.join(spec.env[:5])}")
    return None
