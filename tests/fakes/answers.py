"""Answers of a node in the shapes the command line promises, hostile text included."""

from __future__ import annotations

from typing import Any

HOSTILE = "a\x1b[31mb\u202ec\nd"
"""What a peer may call itself: an escape sequence, a right-to-left override, a line break."""

SESSION: dict[str, Any] = {
    "node": "k7q2aaaa", "name": HOSTILE, "session": "11111111-2222", "agent": "claude", "project": "proj", "cwd": "/p", "branch": "main",
    "model": "opus", "status": "working", "since": "2026-01-01T00:00:00.000Z", "waiting_for": None,
    "tokens": {"input": 1200, "output": None, "cache_read": 3, "cache_write": None}, "cost_usd": 1.5, "context_pct": 12, "limit": None,
    "health": [], "task": None, "age_s": 4000, "stale": False,
}  # fmt: skip
TASK: dict[str, Any] = {
    "task": "aaaabbbbcccc", "attempt": 1, "node": "k7q2aaaa", "name": "mini", "state": "done", "kind": "run", "agent": None, "argv": ["true"],
    "prompt": None, "exit_code": 0, "created_at": "2026-01-01T00:00:00.000Z", "started_at": None, "ended_at": None, "output_bytes": 0,
    "tree": None, "result": None, "cost_usd": None, "reason": None, "transitions": [{"state": "queued", "at": "2026-01-01T00:00:00.000Z"}],
}  # fmt: skip
WAITING: dict[str, Any] = {
    "id": "wait-1", "node": "k7q2aaaa", "name": HOSTILE, "kind": "task", "session": None, "task": "aaaabbbbcccc", "what": "run a command",
    "command": f"rm {HOSTILE}", "digest": "d1g3st", "advice": None, "since": "2026-01-01T00:00:00.000Z",
}  # fmt: skip
PEER: dict[str, Any] = {
    "node": "k7q2aaaa", "name": HOSTILE, "owner": "ana", "mine": True, "roles": ["member"], "state": "live", "link": "direct", "rtt_ms": 1.5,
    "last_seen_s": 3, "addresses": ["10.0.0.1:9847"], "version": "0.1.0",
}  # fmt: skip
LESSON: dict[str, Any] = {
    "lesson": "les-1", "scope": "proj", "category": "command", "kind": "pattern", "tool": "Bash", "pattern": f"pytest {HOSTILE}",
    "stance": "allow", "positive": 3, "negative": 0, "score": 0.5, "state": "mine", "owners": ["ana"], "last_observed": None,
}  # fmt: skip
GRANT: dict[str, Any] = {
    "grant": "grantid", "token": "hmq_grantid_secret_crc", "project": "proj", "scopes": ["query"], "label": HOSTILE,
    "expires_at": "2026-02-01T00:00:00.000Z", "rate_per_min": 20, "per_day": 500, "serve_at": "mini",
}  # fmt: skip
STATUS: dict[str, Any] = {
    "node": {"id": "k7q2", "name": HOSTILE, "fingerprint": "aaaa-bbbb", "owner": "ana", "version": "0.1.0", "boot": "b", "uptime_s": 90},
    "mesh": {"id": "mesh", "members": 2, "roles": ["admin", "member"]}, "listen": [":9847"], "api": None,
    "discovery": {"on": False, "reason": "switched off"},
    "links": [{"node": "x", "name": HOSTILE, "kind": "circuit", "via": "mini", "rtt_ms": 3.0, "since": None}],
    "runs": "ask", "sandbox": "none", "warnings": [f"beware {HOSTILE}"],
}  # fmt: skip
INVITE: dict[str, Any] = {
    "id": "i", "link": "hmi_abc", "expires_at": "2026-01-02T00:00:00.000Z", "code": None, "words": None, "code_expires_at": None, "uses": 1,
    "roles": ["member", "worker"], "owner": "ana",
}  # fmt: skip

MANY: dict[str, Any] = {
    "status": STATUS, "fleet": [SESSION, {**SESSION, "status": "needs_you", "waiting_for": "rm -rf x", "session": "2", "age_s": None}],
    "session.show": SESSION, "peers": [PEER, {**PEER, "link": None, "rtt_ms": None, "last_seen_s": None, "mine": False}],
    "discover": [{"instance": HOSTILE, "addresses": ["10.0.0.1"], "port": 9847, "known": None}], "connect": {"node": "k", "name": HOSTILE},
    "mesh.show": {"id": "mesh", "members": [PEER]}, "mesh.identity": {"node": "k7q2", "name": HOSTILE}, "invite": INVITE,
    "tasks": [TASK, {**TASK, "state": "failed", "exit_code": 7, "argv": [], "prompt": HOSTILE}], "task": TASK, "logs": TASK, "wait": TASK,
    "cancel": {**TASK, "state": "cancelled"}, "run": TASK, "inbox": [WAITING], "answer": {"id": "wait-1", "decision": "allow"},
    "hive.status": {"lessons": 1, "owners": ["ana"]}, "hive.lessons": [LESSON, {**LESSON, "score": None}], "hive.show": LESSON,
    "hive.learn": {"observations": 3}, "hive.forget": {"lesson": "les-1"}, "access.grant": GRANT, "access.list": [GRANT],
    "expel.plan": {"name": HOSTILE, "owner": "ana", "keys": ["k7q2"], "tasks": [HOSTILE], "issued": [{"name": HOSTILE, "kept": True, "first_seen": "t"}]},
    "expel": {"name": HOSTILE, "checklist": [HOSTILE]}, "leave": {"told": 2},
    "access.revoke": {"grant": "grantid"}, "config.set": {"key": "runs", "value": "mine", "applied": True},
    "doctor": [{"check": "sandbox", "state": "warn", "found": HOSTILE, "mend": "nothing to do"}],
}  # fmt: skip
"""A node that has much to tell."""

EMPTY: dict[str, Any] = {**MANY, **{verb: [] for verb in ("fleet", "peers", "discover", "tasks", "inbox", "hive.lessons", "access.list", "doctor")}}
"""A node that has nothing to tell."""
