"""Which transcripts there are: the folders of both agents walked without following links.

A quick look covers files and folders that changed lately; a whole walk finds the rest, and its pace adapts to how
long it takes. Nothing but transcripts is listed: the key files beside Claude's process files are never even opened.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from node.sessions.reading import Found

DEPTH_MAX = 5
FILES_MAX = 200_000
"""Transcripts known; further ones are not listed."""
_ROLLOUT = re.compile(r"rollout-.*-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl\Z")
_INODE_MASK = (1 << 63) - 1


def roots(claude_dir: Path, codex_dir: Path) -> tuple[tuple[str, str], ...]:
    """Name the folders that hold transcripts: agent and path, links in the path itself resolved."""
    return (
        ("claude", os.path.realpath(claude_dir / "projects")),
        ("codex", os.path.realpath(codex_dir / "sessions")),
    )


def walk(agent: str, root: str, folder: str, folders: dict[str, int]) -> Iterator[Found]:
    """List the transcripts below a folder.

    Args:
        agent: Whose they are.
        root: The agent's folder of transcripts.
        folder: Where to begin, the root or below.
        folders: Filled with each folder's time of change.

    Returns:
        The plain files that are transcripts by their names; links and unreadable folders are passed over.
    """
    pending = [folder]
    while pending:
        here = pending.pop()
        try:
            folders[here] = os.lstat(here).st_mtime_ns
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if _depth(root, here) < DEPTH_MAX and entry.name != "tool-results":
                            pending.append(entry.path)
                    elif entry.name.endswith(".jsonl"):
                        found = look(agent, root, entry.path)
                        if found is not None:
                            yield found
        except OSError:
            folders.pop(here, None)


def _depth(root: str, folder: str) -> int:
    return folder.count(os.sep) - root.count(os.sep)


def look(agent: str, root: str, path: str) -> Found | None:
    """Look at one file.

    Args:
        agent: Whose it is.
        root: The agent's folder of transcripts.
        path: The file.

    Returns:
        The file, or None where it is not a plain file with a name in UTF-8 that a transcript has.
    """
    try:
        path.encode()
        status = os.lstat(path)
    except (OSError, UnicodeEncodeError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    session, helper = _place(agent, root, path)
    if session is None:
        return None
    inode = status.st_ino & _INODE_MASK
    return Found(path, agent, session, helper, status.st_dev, inode, status.st_size, status.st_mtime_ns)


def _place(agent: str, root: str, path: str) -> tuple[str | None, bool]:
    """Say from a file's place whose it is: session (empty where only its lines tell) and whether it is a helper's."""
    parts = os.path.relpath(path, root).split(os.sep)
    stem = parts[-1].removesuffix(".jsonl")
    if agent == "codex":
        rollout = _ROLLOUT.match(parts[-1])
        return (rollout[1], False) if rollout else (None, False)
    if "subagents" in parts[2:-1]:
        return parts[parts.index("subagents", 2) - 1], True
    if stem.startswith("agent-"):
        return "", True
    return (stem, False) if len(parts) == 2 else (None, False)
