"""The shapes of ``--json`` that scripts rely on: every field there, of its type; unknown is null, more fields are fine."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]
Shape = Any
"""A check, a mapping of field to shape, a list of one shape, or a set of words."""


def text(found: Any) -> bool:
    """Text that says something."""
    return isinstance(found, str) and found != ""


def words(found: Any) -> bool:
    """Text, which may be empty."""
    return isinstance(found, str)


def flag(found: Any) -> bool:
    """True or false."""
    return isinstance(found, bool)


def count(found: Any) -> bool:
    """A whole number, 0 or more; never a flag."""
    return isinstance(found, int) and not isinstance(found, bool) and found >= 0


def number(found: Any) -> bool:
    """A number, 0 or more."""
    return isinstance(found, (int, float)) and not isinstance(found, bool) and found >= 0


def moment(found: Any) -> bool:
    """A time: RFC 3339, UTC."""
    return isinstance(found, str) and re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found) is not None


def node(found: Any) -> bool:
    """A machine's id: bare, without a suffix."""
    return isinstance(found, str) and re.fullmatch(r"[a-z2-7]{26}", found) is not None


def nothing(found: Any) -> bool:
    """Null."""
    return found is None


def maybe(shape: Shape) -> tuple[Shape, Shape]:
    """Either that, or unknown."""
    return (nothing, shape)


def matches(found: Any, shape: Shape) -> bool:
    """Whether something has a shape."""
    try:
        check(found, shape)
    except AssertionError:
        return False
    return True


def check(found: Any, shape: Shape, where: str = "$") -> None:
    """Fail with the path to the first thing that has not the shape it must have."""
    if isinstance(shape, tuple):
        assert any(matches(found, one) for one in shape), f"{where}: {found!r}"
    elif isinstance(shape, Mapping):
        assert isinstance(found, dict), f"{where}: not an object: {found!r}"
        for name, inner in shape.items():
            assert name in found, f"{where}.{name} is missing in {found!r}"
            check(found[name], inner, f"{where}.{name}")
    elif isinstance(shape, list):
        assert isinstance(found, list), f"{where}: not a list: {found!r}"
        for at, one in enumerate(found):
            check(one, shape[0], f"{where}[{at}]")
    elif isinstance(shape, (set, frozenset)):
        assert found in shape, f"{where}: {found!r} is none of {sorted(shape)}"
    else:
        assert shape(found), f"{where}: {found!r} is no {shape.__name__}"


ROLES = [{"viewer", "member", "worker", "relay", "admin"}]
LINK = {"node": node, "name": maybe(text), "kind": {"direct", "circuit"}, "via": maybe(text), "rtt_ms": maybe(number), "since": moment}
STATUS = {
    "node": {"id": node, "name": text, "fingerprint": text, "owner": text, "version": text, "boot": text, "uptime_s": count},
    "mesh": {"id": text, "members": count, "roles": ROLES},
    "listen": [text],
    "api": maybe(text),
    "discovery": {"on": flag, "reason": maybe(text)},
    "links": [LINK],
    "runs": {"mine", "ask", "off"},
    "sandbox": text,
    "warnings": [text],
}
PEERS = [
    {
        "node": node, "name": text, "owner": text, "mine": flag, "roles": ROLES,
        "state": {"live", "stale", "gone", "expelled", "expired"}, "link": ({"direct", "circuit"}, nothing),
        "rtt_ms": maybe(number), "last_seen_s": maybe(count), "addresses": [text], "version": maybe(text),
    }
]  # fmt: skip
INVITE = {
    "id": text, "link": text, "expires_at": moment, "code": maybe(text), "words": maybe(text), "code_expires_at": maybe(moment),
    "uses": count, "roles": ROLES, "owner": text,
}  # fmt: skip
JOIN = {"mesh": text, "node": node, "name": text, "via": text, "owner": text, "roles": ROLES}
LIMIT = {"window": text, "used_pct": maybe(number), "resets_at": maybe(moment)}
FLEET = [
    {
        "node": node, "name": text, "session": text, "agent": text, "project": maybe(text), "cwd": maybe(text), "branch": maybe(text),
        "model": maybe(text), "status": {"needs_you", "your_turn", "working", "limited", "stuck", "ended", "unknown"},
        "since": maybe(moment), "waiting_for": maybe(text),
        "tokens": {"input": maybe(count), "output": maybe(count), "cache_read": maybe(count), "cache_write": maybe(count)},
        "cost_usd": maybe(number), "context_pct": maybe(count), "limit": maybe(LIMIT), "health": [text], "task": maybe(text),
        "age_s": count, "stale": flag,
    }
]  # fmt: skip
STATES = {
    "queued", "offered", "asking", "accepted", "starting", "running", "done", "failed", "cancelled", "timed_out", "refused", "lost",
}  # fmt: skip
RESULT = {
    "commits": count, "ref": maybe(text), "files_changed": count, "insertions": count, "deletions": count, "artifacts": [text],
}  # fmt: skip
TASK = {
    "task": node, "attempt": count, "node": node, "name": text, "state": STATES, "kind": {"run", "agent"}, "agent": maybe(text),
    "argv": [words], "prompt": maybe(text), "exit_code": maybe(count), "created_at": moment, "started_at": maybe(moment),
    "ended_at": maybe(moment), "output_bytes": count, "tree": maybe(text), "result": maybe(RESULT), "cost_usd": maybe(number),
    "reason": maybe(text), "transitions": [{"state": STATES, "at": moment}],
}  # fmt: skip
OUTPUT = {"stream": {"stdout", "stderr"}, "offset": count}
INBOX = [
    {
        "id": node, "node": node, "name": text, "kind": {"permission", "question", "task"}, "session": maybe(text), "task": maybe(node),
        "what": text, "command": maybe(text), "digest": text, "advice": maybe(text), "since": moment,
    }
]  # fmt: skip
LESSONS = [
    {
        "lesson": text, "scope": text, "category": text, "kind": text, "tool": text, "pattern": text, "stance": text, "positive": count,
        "negative": count, "score": lambda found: isinstance(found, (int, float)),
        "state": {"mine", "accepted", "suggested", "contested", "muted", "stale"}, "owners": [text], "last_observed": maybe(moment),
    }
]  # fmt: skip
GRANT = {
    "grant": text, "token": text, "project": text, "scopes": [text], "label": words, "expires_at": moment, "rate_per_min": count,
    "per_day": count, "serve_at": text,
}  # fmt: skip
CITATION = {"project": text, "commit": text, "path": text, "blob": text, "lines": [count], "bytes": [count], "sha256": text}
ASK = {
    "status": {"ok", "no_answer"},
    "answers": [{"text": text, "heading": maybe(words), "kind": text, "score": number, "citation": CITATION}],
    "took_ms": number, "index_commit": text, "stale": maybe(flag), "next_cursor": maybe(text), "budget": maybe({}),
}  # fmt: skip
ERROR = {"error": {"kind": text, "message": text, "hint": words}}
