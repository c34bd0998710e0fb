"""Codex's rollouts, line by line.

Source: lines of version 0.171.0. ``token_usage_record`` is one reply's usage under its own id; ``token_count`` is a
sum that starts over with the parent's history in a fork, so it counts only in older files that have nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mesh.base.clock import parse_rfc3339_ms
from node.sessions.formats import (
    BadLine,
    Call,
    Kind,
    Limit,
    Result,
    Row,
    Usage,
    count,
    instant_ms,
    load_object_untrusted,
    mapping,
    subject_of,
    word,
)

_RECORD = b'{"timestamp"'
_HEAD_BYTES = 400
_TYPES = re.compile(rb'"type" ?: ?"([a-z_]+)"')
_KINDS = frozenset(
    {b"session_meta", b"turn_context", b"response_item", b"event_msg", b"token_usage_record", b"world_state"}
)
_ITEMS = frozenset(
    {
        b"function_call",
        b"custom_tool_call",
        b"local_shell_call",
        b"function_call_output",
        b"custom_tool_call_output",
    }
)
_EVENTS = frozenset(
    {
        b"task_started",
        b"task_complete",
        b"turn_aborted",
        b"token_count",
        b"item_completed",
        b"user_message",
        b"agent_message",
        b"error",
    }
)
_ABORTED = "aborted by user"


def is_bookkeeping(line: bytes) -> bool:
    """Tell cheaply whether a line says nothing here, without parsing it."""
    types = _TYPES.findall(line, 0, _HEAD_BYTES)
    if not types or not line.startswith(b'{"timestamp"'):
        return False
    if types[0] == b"response_item" and len(types) > 1:
        return types[1] not in _ITEMS
    if types[0] == b"event_msg" and len(types) > 1:
        return types[1] not in _EVENTS
    return types[0] not in _KINDS


def parse_line_untrusted(line: bytes) -> Row | None:
    """Read one line of a rollout.

    Args:
        line: One line without its newline, anything.

    Returns:
        What it says, or None for a kind that says nothing here.

    Raises:
        BadLine: Not a record.
    """
    if is_bookkeeping(line):
        if not line.rstrip().endswith(b"}") or line.rfind(_RECORD, 1) > 0:
            raise BadLine("the line is cut short")
        return None
    row = load_object_untrusted(line)
    stamp = word(row.get("timestamp"))
    at_ms = parse_rfc3339_ms(stamp) if stamp else None
    read = _READERS.get(word(row.get("type")) or "")
    return read(mapping(row.get("payload")), at_ms) if read else None


def _meta(payload: dict[str, Any], at_ms: int | None) -> Row:
    source = payload.get("source")
    session = word(payload.get("id"), 64) or word(payload.get("session_id"), 64)
    root = word(payload.get("session_id"), 64)
    helper = payload.get("thread_source") == "subagent" or type(source) is dict
    return Row(
        Kind.START,
        at_ms,
        session=session,
        parent=root if helper and root != session else None,
        cwd=word(payload.get("cwd"), 4096),
        branch=word(mapping(payload.get("git")).get("branch")),
        person=source == "cli" and payload.get("thread_source", "user") == "user",
        helper=helper,
        forked=payload.get("forked_from_id") is not None,
    )


def _context(payload: dict[str, Any], at_ms: int | None) -> Row:
    return Row(
        Kind.CONTEXT,
        at_ms,
        cwd=word(payload.get("cwd"), 4096),
        model=word(payload.get("model")),
        asked=word(payload.get("approval_policy")),
        reviewed=payload.get("approvals_reviewer", "user") == "user",
    )


def _world(payload: dict[str, Any], at_ms: int | None) -> Row | None:
    """Read only whether standing rules let commands through."""
    permissions = mapping(mapping(payload.get("state")).get("permissions"))
    if "approved_command_prefixes" not in permissions:
        return None
    return Row(Kind.CONTEXT, at_ms, ruled=bool(permissions["approved_command_prefixes"]))


def _arguments(payload: dict[str, Any]) -> dict[str, Any]:
    """Read a call's arguments, which stand as JSON inside a text."""
    text = payload.get("arguments")
    if type(text) is str:
        try:
            return mapping(json.loads(text))
        except (ValueError, RecursionError):
            return {}
    return mapping(payload.get("action"))


def _item(payload: dict[str, Any], at_ms: int | None) -> Row | None:
    kind, call_id = payload.get("type"), word(payload.get("call_id"))
    if call_id is None:
        return None
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = payload.get("output")
        tail = output[-200:].rstrip() if type(output) is str else ""
        stopped = tail.endswith(_ABORTED)
        return Row(Kind.RESULTS, at_ms, results=(Result(call_id, "deny" if stopped else None),))
    if kind not in ("function_call", "custom_tool_call", "local_shell_call"):
        return None
    arguments = _arguments(payload)
    asks = arguments.get("sandbox_permissions") == "require_escalated" or arguments.get("with_escalated_permissions") is True
    written = word(payload.get("input"), 2000)
    call = Call(call_id, word(payload.get("name")) or "shell", subject_of(arguments) or written or "", asks=asks)
    return Row(Kind.REPLY, at_ms, calls=(call,))


def _usage(message_id: str, stated: dict[str, Any]) -> Usage | None:
    """Turn Codex's counts, where the input includes what came from the cache, into counts apart."""
    sent, output = count(stated.get("input_tokens")), count(stated.get("output_tokens"))
    if sent is None or output is None:
        return None
    read = min(count(stated.get("cached_input_tokens")) or 0, sent)
    written = min(count(stated.get("cache_write_input_tokens")) or 0, sent - read)
    return Usage(message_id, "", sent - read - written, output, read, written, 0)


def _record(payload: dict[str, Any], at_ms: int | None) -> Row | None:
    message_id = word(payload.get("response_id"))
    usage = message_id and _usage(message_id, mapping(payload.get("usage")))
    return Row(Kind.USAGE, at_ms, usage=usage) if usage else None


def _count(payload: dict[str, Any], at_ms: int | None) -> Row:
    info = mapping(payload.get("info"))
    return Row(
        Kind.USAGE,
        at_ms,
        usage=_usage("total", mapping(info.get("total_token_usage"))),
        total=True,
        context_tokens=count(mapping(info.get("last_token_usage")).get("total_tokens")),
        window_tokens=count(info.get("model_context_window")),
        limit=_limit(mapping(payload.get("rate_limits")), at_ms),
    )


def _limit(limits: dict[str, Any], at_ms: int | None) -> Limit | None:
    """Take the fullest window."""
    found = []
    reached = word(limits.get("rate_limit_reached_type")) is not None
    for name in ("primary", "secondary"):
        window = mapping(limits.get(name))
        used = window.get("used_percent")
        if not isinstance(used, int | float) or not 0 <= used <= 1000:
            continue
        minutes = count(window.get("window_minutes"))
        resets_ms = instant_ms(window.get("resets_at"), 1000)
        wait_ms = instant_ms(window.get("resets_in_seconds"), 1000)
        if resets_ms is None and wait_ms is not None and at_ms is not None:
            resets_ms = at_ms + wait_ms
        found.append(Limit(_window_name(minutes), int(used), resets_ms))
    if not found:
        return Limit(None, 100, None) if reached else None
    fullest = max(found, key=lambda limit: limit.used_pct or 0)
    return Limit(fullest.window, 100, fullest.resets_at_ms) if reached else fullest


def _window_name(minutes: int | None) -> str | None:
    if not minutes or minutes > 10**6:
        return None
    if minutes % 1440 == 0:
        return f"{minutes // 1440}d"
    return f"{minutes // 60}h" if minutes % 60 == 0 else f"{minutes}m"


def _ran(item: dict[str, Any], payload: dict[str, Any], at_ms: int | None) -> Row | None:
    """Read how long a command waited before it ran: what is neither its run nor the way to it is a person."""
    call_id = word(item.get("id"))
    if item.get("type") != "CommandExecution" or call_id is None:
        return None
    begun, done = instant_ms(payload.get("started_at_ms"), 1), instant_ms(payload.get("completed_at_ms"), 1)
    length = mapping(item.get("duration"))
    seconds, nanos = count(length.get("secs")), count(length.get("nanos"))
    waited = None
    if begun is not None and done is not None and seconds is not None and nanos is not None:
        waited = done - begun - seconds * 1000 - nanos // 1_000_000
    return Row(Kind.RAN, at_ms, results=(Result(call_id),), waited_ms=waited)


def _event(payload: dict[str, Any], at_ms: int | None) -> Row | None:
    read = _EVENT_READERS.get(word(payload.get("type")) or "")
    return read(payload, at_ms) if read else None


def _started(payload: dict[str, Any], at_ms: int | None) -> Row:
    return Row(Kind.PROMPT, at_ms, window_tokens=count(payload.get("model_context_window")))


def _item_done(payload: dict[str, Any], at_ms: int | None) -> Row | None:
    item = mapping(payload.get("item"))
    content = item.get("content")
    first = mapping(content[0]) if type(content) is list and content else {}
    if item.get("type") == "UserMessage":
        return Row(Kind.PROMPT, at_ms, text=word(first.get("text"), 2000) or "")
    if item.get("type") == "AgentMessage":
        return Row(Kind.REPLY, at_ms, text=word(first.get("text"), 2000) or "")
    return _ran(item, payload, at_ms)


def _error(payload: dict[str, Any], at_ms: int | None) -> Row:
    message = word(payload.get("message"), 300) or ""
    used_up = payload.get("codex_error_info") == "usage_limit_exceeded" or "usage limit" in message.lower()
    return Row(Kind.LIMIT, at_ms, limit=Limit(None, 100, None)) if used_up else Row(Kind.RETRY, at_ms, text=message)


def _old_prompt(payload: dict[str, Any], at_ms: int | None) -> Row:
    return Row(Kind.PROMPT, at_ms, text=word(payload.get("message"), 2000) or "")


def _old_reply(payload: dict[str, Any], at_ms: int | None) -> Row:
    return Row(Kind.REPLY, at_ms, text=word(payload.get("message"), 2000) or "")


_EVENT_READERS = {
    "task_started": _started,
    "task_complete": lambda payload, at_ms: Row(Kind.ENDED, at_ms),
    "turn_aborted": lambda payload, at_ms: Row(Kind.INTERRUPTED, at_ms),
    "token_count": _count,
    "item_completed": _item_done,
    "user_message": _old_prompt,
    "agent_message": _old_reply,
    "error": _error,
}

_READERS = {
    "session_meta": _meta,
    "turn_context": _context,
    "world_state": _world,
    "response_item": _item,
    "token_usage_record": _record,
    "event_msg": _event,
}
