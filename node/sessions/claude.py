"""Claude Code's transcripts and process files, line by line.

Source: lines of versions 2.1.197 and 2.1.332. One reply of the model is written as one line for each block of its
content, each with the same message id and the whole usage; the last line of a file is usually bookkeeping.
"""

from __future__ import annotations

import re
from typing import Any

from mesh.base.clock import parse_rfc3339_ms
from node.sessions.formats import (
    CALLS_MAX,
    TEXT_CHARS_MAX,
    BadLine,
    Call,
    Kind,
    Limit,
    ProcessNote,
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

NOTE_BYTES_MAX = 64 << 10
"""The largest ``sessions/PID.json`` that is read."""

QUESTION_TOOLS = frozenset({"AskUserQuestion", "ExitPlanMode"})
"""Tools whose prompt is a question, not a permission: an answer teaches nothing about what may run."""

_RECORD = b'{"parentUuid"'
_FIRST_KIND = re.compile(rb'\{"type" ?: ?"([a-z-]+)"')
_KINDS = frozenset({b"user", b"assistant", b"system", b"summary", b"custom-title", b"ai-title"})
_ATTACHMENT = re.compile(rb'"attachment" ?: ?\{')
_NOT_TURNS = ("<local-command-", "<bash-input>", "<bash-stdout>", "<bash-stderr>", "Caveat: ")
_INTERRUPTED = "[Request interrupted"
_DENIED = "User rejected tool use"
_USER_SOURCES = frozenset({"user_temporary", "user_permanent"})
_LIMIT_TEXT = re.compile(r"(?:usage|session|weekly|[0-9]+-hour) limit|hit your limit", re.IGNORECASE)
_LIMIT_RESET = re.compile(r"\|([0-9]{10})\b")
_SYNTHETIC = "<synthetic>"


def is_bookkeeping(line: bytes) -> bool:
    """Tell cheaply whether a line says nothing here, without parsing it.

    Most bytes of a transcript are copies of requests, file snapshots and attachments.
    """
    kind = _FIRST_KIND.match(line)
    if kind:
        return kind[1] not in _KINDS
    return _ATTACHMENT.search(line, 0, 256) is not None


def parse_line_untrusted(line: bytes) -> Row | None:
    """Read one line of a transcript.

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
    read = _READERS.get(word(row.get("type")) or "")
    return read(row) if read else None


def _row(kind: Kind, row: dict[str, Any], **more: Any) -> Row:
    """Add to a line's meaning what every line carries."""
    entrypoint = word(row.get("entrypoint"))
    stamp = word(row.get("timestamp"))
    return Row(
        kind,
        at_ms=parse_rfc3339_ms(stamp) if stamp else None,
        session=word(row.get("sessionId")),
        cwd=word(row.get("cwd"), 4096),
        branch=word(row.get("gitBranch")),
        person=None if entrypoint is None else entrypoint == "cli",
        helper=row.get("isSidechain") is True or word(row.get("agentId")) is not None,
        **more,
    )


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    if type(content) is not list:
        return []
    return [block for block in content[:CALLS_MAX] if type(block) is dict]


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if type(content) is str:
        return content[:TEXT_CHARS_MAX]
    return next((text for block in _blocks(message) if (text := word(block.get("text"), TEXT_CHARS_MAX))), "")


def _usage(message: dict[str, Any], model: str | None) -> Usage | None:
    usage = mapping(message.get("usage"))
    message_id = word(message.get("id"))
    sent, output = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    if message_id is None or model is None or sent is None or output is None:
        return None
    written = count(usage.get("cache_creation_input_tokens")) or 0
    split = mapping(usage.get("cache_creation"))
    hour = min(count(split.get("ephemeral_1h_input_tokens")) or 0, written)
    speed = word(usage.get("speed"), 20)
    priced = model if speed in (None, "standard") else f"{model}:{speed}"
    return Usage(message_id, priced, sent, output, count(usage.get("cache_read_input_tokens")) or 0, written - hour, hour)


def _calls(message: dict[str, Any]) -> tuple[Call, ...]:
    calls = []
    for block in _blocks(message):
        call_id, tool = word(block.get("id")), word(block.get("name"))
        if block.get("type") == "tool_use" and call_id and tool:
            question = tool in QUESTION_TOOLS
            calls.append(Call(call_id, tool, subject_of(mapping(block.get("input"))), question=question))
    return tuple(calls)


def _reply(row: dict[str, Any]) -> Row:
    message = mapping(row.get("message"))
    text = _text(message)
    if row.get("isApiErrorMessage") is True:
        return _failure(row, text)
    stated = word(message.get("model"))
    model = None if stated == _SYNTHETIC else stated
    calls = _calls(message)
    usage = _usage(message, model)
    full = usage and usage.input + usage.cache_read + usage.write_5m + usage.write_1h + usage.output
    stop = word(message.get("stop_reason"))
    final = stop is not None and stop != "tool_use" and not calls
    return _row(Kind.REPLY, row, model=model, usage=usage, context_tokens=full, calls=calls, text=text, final=final)


def _failure(row: dict[str, Any], text: str) -> Row:
    """Read the line that stands for a reply that never came."""
    if row.get("error") != "rate_limit" and not _LIMIT_TEXT.search(text):
        return _row(Kind.RETRY, row, text=text)
    reset = _LIMIT_RESET.search(text)
    lower = text.lower()
    window = "5h" if "5-hour" in lower or "session limit" in lower else "7d" if "weekly" in lower else None
    limit = Limit(window, 100, int(reset[1]) * 1000 if reset else None)
    return _row(Kind.LIMIT, row, limit=limit, text=text.partition("|")[0])


def _verdict(row: dict[str, Any]) -> str | None:
    """Tell whether a person said yes or no at a prompt.

    Refusals nobody was asked for carry the same words, so every sign that a rule, a hook or a script answered rules
    the line out; so does a tool that was stopped while it ran.
    """
    if row.get("entrypoint") != "cli":
        return None
    decision = mapping(row.get("permissionDecision"))
    source = word(decision.get("source"))
    if decision.get("decision") == "accept":
        return "approve" if source in _USER_SOURCES and decision.get("reasonType") is None else None
    denied = row.get("toolUseResult") == _DENIED or row.get("toolDenialKind") == "user-rejected"
    if not denied or row.get("toolDenialKind", "user-rejected") != "user-rejected":
        return None
    if row.get("toolDenialBeforeRun", True) is not True:
        return None
    return "deny" if source is None or source.startswith("user") else None


def _said(row: dict[str, Any]) -> Row | None:
    """Read a line in the user's name: a prompt, the answers of tools, or a note of the program."""
    message = mapping(row.get("message"))
    answered = [b for b in _blocks(message) if b.get("type") == "tool_result"]
    if answered:
        verdict = _verdict(row) if len(answered) == 1 else None
        ids = [word(block.get("tool_use_id")) for block in answered]
        return _row(Kind.RESULTS, row, results=tuple(Result(i, verdict) for i in ids if i))
    text = _text(message)
    if text.startswith(_INTERRUPTED):
        return _row(Kind.INTERRUPTED, row)
    if row.get("isMeta") is True or row.get("isCompactSummary") is True or not text:
        return None
    if text.startswith(_NOT_TURNS):
        return _row(Kind.ENDED, row)
    return _row(Kind.PROMPT, row, text=text)


def _system(row: dict[str, Any]) -> Row | None:
    subtype = row.get("subtype")
    if subtype == "api_error":
        return _row(Kind.RETRY, row)
    if subtype in ("turn_duration", "stop_hook_summary", "local_command"):
        return _row(Kind.ENDED, row)
    return None


def _title(row: dict[str, Any]) -> Row | None:
    text = word(row.get("customTitle")) or word(row.get("aiTitle")) or word(row.get("summary"))
    return _row(Kind.TITLE, row, text=text) if text else None


_READERS = {
    "assistant": _reply,
    "user": _said,
    "system": _system,
    "summary": _title,
    "custom-title": _title,
    "ai-title": _title,
}


def parse_note_untrusted(data: bytes) -> ProcessNote | None:
    """Read ``sessions/PID.json``, which Claude Code keeps for each of its processes.

    Args:
        data: The file's bytes, anything.

    Returns:
        The note, or None where it is not one (it is rewritten in place, so a reader may see half of it).
    """
    if len(data) > NOTE_BYTES_MAX:
        return None
    try:
        note = load_object_untrusted(data)
    except BadLine:
        return None
    pid, session = note.get("pid"), word(note.get("sessionId"), 64)
    if type(pid) is not int or not 0 < pid < (1 << 31) or session is None:
        return None
    entrypoint = word(note.get("entrypoint"))
    return ProcessNote(
        pid=pid,
        session=session,
        cwd=word(note.get("cwd"), 4096),
        start=word(note.get("procStart")),
        domain=word(note.get("pidDomain")),
        person=None if entrypoint is None else entrypoint == "cli",
        word=word(note.get("status"), 20),
        waiting_for=word(note.get("waitingFor")),
        word_ms=instant_ms(note.get("statusUpdatedAt"), 1),
        started_ms=instant_ms(note.get("startedAt"), 1),
        name=word(note.get("name")),
        named=note.get("nameSource") not in (None, "derived"),
    )
