"""Makes transcripts in the formats Claude Code 2.1.332 and Codex 0.171 write, as small as they can be.

Every builder keeps its lines and a clock that goes on with each line; ``write`` puts the file where the agent would.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

START_MS = 1_796_000_000_000
STEP_MS = 1_000


def stamp(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def compact(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def fake_uuid(text: str) -> str:
    return str(UUID(bytes=(text.encode() * 16)[:16]))


def claude_usage(sent: int, output: int, read: int = 0, write_5m: int = 0, write_1h: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": sent,
        "cache_creation_input_tokens": write_5m + write_1h,
        "cache_read_input_tokens": read,
        "output_tokens": output,
        "service_tier": "standard",
        "cache_creation": {"ephemeral_1h_input_tokens": write_1h, "ephemeral_5m_input_tokens": write_5m},
        "speed": "standard",
    }


class Claude:
    """One Claude Code session, or one of its helpers."""

    def __init__(
        self,
        session: str,
        cwd: str = "/srv/demo",
        *,
        at_ms: int = START_MS,
        entrypoint: str = "cli",
        model: str = "claude-sonnet-4-5",
        branch: str = "main",
        helper: str | None = None,
    ) -> None:
        self.session, self.cwd, self.at_ms, self.entrypoint = session, cwd, at_ms, entrypoint
        self.model, self.branch, self.helper = model, branch, helper
        self.lines: list[str] = []
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.session}{self.helper or ''}_{self.count}"

    def add(self, kind: str, **more: Any) -> None:
        self.at_ms += STEP_MS
        row = {"parentUuid": None, "isSidechain": self.helper is not None, "type": kind}
        if self.helper:
            row["agentId"] = self.helper
        row |= more
        row |= {
            "uuid": self.name("uuid"),
            "timestamp": stamp(self.at_ms),
            "userType": "external",
            "entrypoint": self.entrypoint,
            "cwd": self.cwd,
            "sessionId": self.session,
            "version": "2.1.332",
            "gitBranch": self.branch,
        }
        self.lines.append(compact(row))

    def bookkeeping(self) -> None:
        self.lines.append(compact({"type": "mode", "mode": "normal", "sessionId": self.session}))

    def attachment(self, size: int = 100) -> None:
        self.add("attachment", attachment={"type": "date", "text": "y" * size})
        row = json.loads(self.lines[-1])
        order = ["parentUuid", "isSidechain", "attachment", *[k for k in row if k not in ("parentUuid", "isSidechain", "attachment")]]
        self.lines[-1] = compact({key: row[key] for key in order})

    def title(self, text: str) -> None:
        self.lines.append(compact({"type": "custom-title", "customTitle": text, "sessionId": self.session}))

    def prompt(self, text: str = "please do it", **more: Any) -> None:
        self.add("user", message={"role": "user", "content": text}, **more)

    def reply(
        self,
        text: str = "done",
        *,
        usage: dict[str, Any] | None = None,
        message_id: str | None = None,
        stop: str | None = "end_turn",
        model: str | None = None,
        **more: Any,
    ) -> str:
        name = message_id or self.name("msg")
        content = [{"type": "text", "text": text}]
        self._assistant(name, content, usage, stop, model, more)
        return name

    def call(
        self,
        tool: str = "Bash",
        arguments: dict[str, Any] | None = None,
        *,
        usage: dict[str, Any] | None = None,
        text: str = "I will call a tool.",
    ) -> str:
        """One reply in two lines, as the agent writes it: the text, then the call, with the same usage."""
        call_id, name = self.name("toolu"), self.name("msg")
        use = {"type": "tool_use", "id": call_id, "name": tool, "input": arguments or {"command": "true"}}
        self._assistant(name, [{"type": "text", "text": text}], usage, "tool_use", None, {})
        self._assistant(name, [use], usage, "tool_use", None, {})
        return call_id

    def _assistant(
        self, name: str, content: list[Any], usage: dict[str, Any] | None, stop: str | None, model: str | None, more: dict[str, Any]
    ) -> None:
        message = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model or self.model,
            "content": content,
            "stop_reason": stop,
            "usage": usage or claude_usage(10, 5),
        }
        self.add("assistant", message=message, requestId=f"req_{name}", **more)

    def result(self, call_id: str, text: str = "ok", **more: Any) -> None:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": False}
        self.add("user", message={"role": "user", "content": [block]}, **({"toolUseResult": {"stdout": text}} | more))

    def approved(self, call_id: str, source: str = "user_temporary", **more: Any) -> None:
        decision = {"decision": "accept", "source": source, "reasonCode": "unknown"} | more
        self.result(call_id, permissionDecision=decision)

    def denied(self, call_id: str, **more: Any) -> None:
        self.result(
            call_id,
            "The user doesn't want to proceed with this tool use.",
            **({"toolUseResult": "User rejected tool use", "toolDenialKind": "user-rejected", "toolDenialBeforeRun": True} | more),
        )
        self.interrupted("[Request interrupted by user for tool use]")

    def interrupted(self, text: str = "[Request interrupted by user]") -> None:
        self.add("user", message={"role": "user", "content": [{"type": "text", "text": text}]})

    def ended(self) -> None:
        self.add("system", subtype="turn_duration", durationMs=1000)

    def failed(self) -> None:
        self.add("system", subtype="api_error", level="error")

    def limited(self, text: str = "You've hit your session limit") -> None:
        message = {"id": self.name("msg"), "role": "assistant", "model": "<synthetic>", "stop_reason": "stop_sequence"}
        message |= {"content": [{"type": "text", "text": text}], "usage": claude_usage(0, 0)}
        self.add("assistant", message=message, error="rate_limit", isApiErrorMessage=True)

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def path(self, claude_dir: Path) -> Path:
        slug = re.sub(r"[^A-Za-z0-9]", "-", self.cwd)
        folder = claude_dir / "projects" / slug
        return folder / self.session / "subagents" / f"agent-{self.helper}.jsonl" if self.helper else folder / f"{self.session}.jsonl"

    def write(self, claude_dir: Path) -> Path:
        return write(self.path(claude_dir), self.text, self.at_ms)


class Codex:
    """One Codex session."""

    def __init__(
        self,
        name: str,
        cwd: str = "/srv/demo",
        *,
        at_ms: int = START_MS,
        source: Any = "cli",
        policy: str = "on-request",
        model: str = "gpt-5-codex",
        **more: Any,
    ) -> None:
        self.session, self.cwd, self.at_ms, self.model, self.policy = fake_uuid(name), cwd, at_ms, model, policy
        self.lines: list[str] = []
        self.count = 0
        self.sum = [0, 0, 0]
        meta = {"id": self.session, "session_id": self.session, "cwd": cwd, "source": source, "thread_source": "user"}
        meta |= {"originator": "codex-tui", "cli_version": "0.171.0", "git": {"branch": "main"}}
        self.add("session_meta", meta | more)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}_{self.session}_{self.count}"

    def add(self, kind: str, payload: dict[str, Any]) -> None:
        self.at_ms += STEP_MS
        self.lines.append(compact({"timestamp": stamp(self.at_ms), "ordinal": len(self.lines), "type": kind, "payload": payload}))

    def event(self, kind: str, **more: Any) -> None:
        self.add("event_msg", {"type": kind} | more)

    def start(self, text: str = "please do it") -> None:
        self.event("task_started", model_context_window=258_400)
        context = {"cwd": self.cwd, "approval_policy": self.policy, "approvals_reviewer": "user", "model": self.model}
        self.add("turn_context", context)
        item = {"type": "UserMessage", "id": self.name("item"), "content": [{"type": "text", "text": text}]}
        self.event("item_completed", item=item)

    def usage(self, sent: int, output: int, cached: int = 0, *, response_id: str | None = None) -> None:
        counts = {"input_tokens": sent, "cached_input_tokens": cached, "cache_write_input_tokens": 0, "output_tokens": output}
        counts["total_tokens"] = sent + output
        self.add("token_usage_record", {"response_id": response_id or self.name("resp"), "usage": counts})

    def token_count(self, sent: int, output: int, cached: int = 0, limits: dict[str, Any] | None = None) -> None:
        """The running sum, with this reply's counts added to it."""
        self.sum = [self.sum[0] + sent, self.sum[1] + cached, self.sum[2] + output]
        total = dict(zip(("input_tokens", "cached_input_tokens", "output_tokens"), self.sum, strict=True))
        last = {"input_tokens": sent, "cached_input_tokens": cached, "output_tokens": output, "total_tokens": sent + output}
        info = {"total_token_usage": total, "last_token_usage": last, "model_context_window": 258_400}
        self.event("token_count", info=info, rate_limits=limits or {"primary": None, "secondary": None})

    def call(self, command: str = "true", *, escalated: bool = False) -> str:
        call_id = self.name("call")
        arguments = {"cmd": command} | ({"sandbox_permissions": "require_escalated"} if escalated else {})
        payload = {"type": "function_call", "name": "exec_command", "arguments": json.dumps(arguments), "call_id": call_id}
        self.add("response_item", payload)
        return call_id

    def ran(self, call_id: str, waited_ms: int = 2_000) -> None:
        """The command was carried out, after it waited so long."""
        begun = self.at_ms + 50
        item = {"type": "CommandExecution", "id": call_id, "status": "completed", "duration": {"secs": 0, "nanos": 20_000_000}}
        self.event("item_completed", item=item, started_at_ms=begun, completed_at_ms=begun + waited_ms + 20)

    def output(self, call_id: str, text: str = "Process exited with code 0") -> None:
        self.add("response_item", {"type": "function_call_output", "call_id": call_id, "output": text})

    def aborted(self, call_id: str) -> None:
        self.output(call_id, "Wall time: 3.1 seconds\naborted by user")
        self.event("turn_aborted", reason="interrupted")

    def reply(self, text: str = "done") -> None:
        item = {"type": "AgentMessage", "id": self.name("msg"), "content": [{"type": "Text", "text": text}]}
        self.event("item_completed", item=item)

    def ended(self) -> None:
        self.event("task_complete", last_agent_message="done")

    @property
    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)

    def path(self, codex_dir: Path) -> Path:
        return codex_dir / "sessions" / "2026" / "11" / "30" / f"rollout-2026-11-30T10-00-00-{self.session}.jsonl"

    def write(self, codex_dir: Path) -> Path:
        return write(self.path(codex_dir), self.text, self.at_ms)


def write(path: Path, text: str, at_ms: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at_ms / 1000, at_ms / 1000))
    return path


def process_note(pid: int, session: str, start: str | None, **more: Any) -> dict[str, Any]:
    """What Claude Code writes to ``sessions/PID.json``."""
    return {
        "pid": pid,
        "sessionId": session,
        "cwd": "/srv/demo",
        "startedAt": START_MS,
        "procStart": start,
        "version": "2.1.332",
        "kind": "interactive",
        "entrypoint": "cli",
        "name": "demo-1a",
        "nameSource": "derived",
    } | more


def start_of(pid: int) -> str:
    """The start time of a process as ``/proc`` counts it."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return text[text.rfind(")") + 1 :].split()[19]
