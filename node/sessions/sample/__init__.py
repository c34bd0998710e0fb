"""A few made-up sessions in the agents' real formats, for a demonstration on a machine without any of its own.

The files carry fixed times; :func:`write_sample` moves them so that the newest line of each is minutes old.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mesh.base.clock import parse_rfc3339_ms, rfc3339

SPACING_MS = 70_000
"""The newest session ended one such space ago, the next two, and so on: all still count as active."""

_STAMP = re.compile(r'"timestamp":"([0-9T:.-]+Z)"')
_INSTANT = re.compile(r'"((?:started|completed)_at_ms)":([0-9]{13})')


def write_sample(claude_dir: Path, codex_dir: Path, now_ms: int) -> list[Path]:
    """Write the sample's transcripts where the agents would have written them.

    Args:
        claude_dir: Stands for ``~/.claude``; made where it does not exist.
        codex_dir: Stands for ``~/.codex``; made where it does not exist.
        now_ms: This machine's clock; the sessions were last active within the ten minutes before.

    Returns:
        The files written, newest session first.
    """
    written = []
    for index, (agent, text) in enumerate(_texts()):
        fresh = _moved(text, now_ms - (index + 1) * SPACING_MS)
        path = _claude_path(claude_dir, fresh) if agent == "claude" else _codex_path(codex_dir, fresh)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fresh, encoding="utf-8")
        written.append(path)
    return written


def _texts() -> Iterator[tuple[str, str]]:
    folder = Path(__file__).parent
    for path in sorted(folder.glob("*.jsonl")):
        yield path.name.split("-")[1], path.read_text(encoding="utf-8")


def _moved(text: str, newest_ms: int) -> str:
    """Move every time in a transcript so that the newest is the one given."""
    times = [parse_rfc3339_ms(found) or 0 for found in _STAMP.findall(text)]
    shift_ms = newest_ms - max(times)
    text = _STAMP.sub(lambda found: f'"timestamp":"{rfc3339((parse_rfc3339_ms(found[1]) or 0) + shift_ms)}"', text)
    return _INSTANT.sub(lambda found: f'"{found[1]}":{int(found[2]) + shift_ms}', text)


def _claude_path(claude_dir: Path, text: str) -> Path:
    row: dict[str, str] = next(filter(lambda found: "cwd" in found, map(json.loads, text.splitlines())))
    slug = re.sub(r"[^A-Za-z0-9]", "-", row["cwd"])
    return claude_dir / "projects" / slug / f"{row['sessionId']}.jsonl"


def _codex_path(codex_dir: Path, text: str) -> Path:
    row = json.loads(text.split("\n", 1)[0])
    stamp, session = str(row["timestamp"]), str(row["payload"]["id"])
    folder = codex_dir / "sessions" / stamp[:10].replace("-", os.sep)
    return folder / f"rollout-{stamp[:19].replace(':', '-')}-{session}.jsonl"
