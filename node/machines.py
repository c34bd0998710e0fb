"""Which machine a person means, and how machines are told apart on screen."""

from __future__ import annotations

from collections.abc import Sequence

from mesh.base.errors import Refused, Usage
from mesh.base.names import base32, fingerprint_text, name_key, suffix
from mesh.base.ports import Member

PREFIX_CHARS_MIN = 4
CANDIDATES_MAX = 6


class NoSuchMachine(Usage):
    """No machine of this mesh is called that."""

    kind = "unknown_machine"


class AmbiguousMachine(Usage):
    """Several machines are called that."""

    kind = "ambiguous_machine"


def title(member: Member) -> str:
    """A machine's name with the suffix that tells namesakes apart: ``mini~k7q2``."""
    return f"{member.name}~{suffix(member.node)}"


def find_machine(text: str, members: Sequence[Member]) -> Member:
    """Find the machine a person typed.

    Args:
        text: A name, a name with suffix, or the first four or more characters of a fingerprint; case and dashes in a
            fingerprint are ignored.
        members: The machines to choose from; expelled ones are passed over.

    Returns:
        The one machine.

    Raises:
        NoSuchMachine: None is called that.
        AmbiguousMachine: Several are; the hint lists them.
    """
    present = [m for m in members if m.state != "expelled"]
    name, _, mark = text.partition("~")
    named = [m for m in present if name_key(m.name) == name_key(name)] if name.strip() else []
    if mark:
        named = [m for m in named if base32(m.node).startswith(mark.strip().lower())]
    else:
        # A machine chooses its own name, so a name that reads like another's fingerprint must never win over it.
        typed = text.replace("-", "").strip().lower()
        whole = [m for m in present if typed in (_fingerprint(m), base32(m.node))]
        starting = [m for m in present if _fingerprint(m).startswith(typed)] if len(typed) >= PREFIX_CHARS_MIN else []
        named = whole or [*named, *(m for m in starting if m not in named)]
    if len(named) == 1:
        return named[0]
    if named:
        listed = ", ".join(title(m) for m in named[:CANDIDATES_MAX])
        raise AmbiguousMachine(f"{len(named)} machines are called {text[:80]}", hint=f"say which: {listed}")
    if 0 < len(text.replace("-", "").strip()) < PREFIX_CHARS_MIN:
        hint_start = f"the start of a fingerprint has {PREFIX_CHARS_MIN} characters or more; "
    else:
        hint_start = ""
    known = ", ".join(title(m) for m in present[:CANDIDATES_MAX])
    raise NoSuchMachine(f"no machine is called {text[:80]}", hint=f"{hint_start}known: {known}" if known else "pair one: hivemesh invite")


def _fingerprint(member: Member) -> str:
    return fingerprint_text(member.public_key).replace("-", "")


def namesakes(members: Sequence[Member]) -> dict[str, list[Member]]:
    """Names that several machines share once case, width and hidden characters are folded away."""
    by_name: dict[str, list[Member]] = {}
    for member in members:
        if member.state != "expelled":
            by_name.setdefault(name_key(member.name), []).append(member)
    return {name: found for name, found in by_name.items() if len(found) > 1}


def require_other(member: Member, me: Member) -> Member:
    """Refuse this machine itself where another one is meant."""
    if member.node == me.node:
        raise Refused("that is this machine itself", reason="self", hint="name another machine: hivemesh peers")
    return member
