"""Which transcripts there are: the folders of both agents walked without following links.

A quick look covers files and folders that changed lately; a whole walk finds the rest, and its pace adapts to how
long it takes. Nothing but transcripts is listed: the key files beside Claude's process files are never even opened.
"""

from __future__ import annotations

import heapq
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from mesh.base.clock import Now
from node.sessions.reading import Found

DEPTH_MAX = 5
FILES_MAX = 200_000
"""Transcripts known; further ones are not listed."""
HOT_FILES_MAX = 300
"""Files looked at in every pass: those changed last, and those of living sessions. The others wait for a whole walk."""
HOT_FOLDERS_MAX = 200
WALK_PERIOD_S = 5.0
WALK_REST = 100
"""A whole walk is followed by at least this many times its own length without one."""
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


class Survey:
    """Which transcripts differ from what was read of them, look after look. Its looks run in a worker thread.

    Args:
        claude_dir: Claude Code's folder.
        codex_dir: Codex's folder.
        known: Files read before: path, size, mtime_ns, inode.

    Attributes:
        live: Transcripts of living sessions, looked at in every pass; set by the owner.
    """

    def __init__(self, claude_dir: Path, codex_dir: Path, known: Iterable[tuple[str, int, int, int]]) -> None:
        self.live: list[str] = []
        self._roots = roots(claude_dir, codex_dir)
        self._files = {path: (size, mtime_ns, inode) for path, size, mtime_ns, inode in known}
        self._folders: list[dict[str, int]] = [{} for _ in self._roots]
        self._hot_folders: list[list[str]] = [[root] for _, root in self._roots]
        self._hot: list[str] = []
        self._backlog: dict[str, Found] = {}
        self._next_walk_s = float("-inf")

    @property
    def waiting(self) -> bool:
        """Whether files are known to have unread bytes."""
        return bool(self._backlog)

    def look(self, now: Now) -> list[str]:
        """Find out what changed: quickly, or in a whole walk where one is due.

        Returns:
            Files that are not there any more; only a whole walk knows.
        """
        if now.steady_s >= self._next_walk_s:
            return self._walk_all(now)
        for index, (agent, root) in enumerate(self._roots):
            folders = self._folders[index]
            changed = [folder for folder in self._hot_folders[index] if _mtime_ns(folder) != folders.get(folder)]
            for folder in changed:
                for found in walk(agent, root, folder, folders):
                    self._consider(found)
            if changed:
                self._hot_folders[index] = _hot_folders(root, folders)
        for path in [*self._hot, *self.live]:
            found_now = look(*self._root_of(path), path)
            if found_now is not None:
                self._consider(found_now)
        return []

    def _walk_all(self, now: Now) -> list[str]:
        begun_s = time.monotonic()
        seen: dict[str, int] = {}
        for index, (agent, root) in enumerate(self._roots):
            folders: dict[str, int] = {}
            for found in walk(agent, root, root, folders):
                if len(seen) < FILES_MAX:
                    seen[found.path] = found.mtime_ns
                    self._consider(found)
            self._folders[index], self._hot_folders[index] = folders, _hot_folders(root, folders)
        self._hot = heapq.nlargest(HOT_FILES_MAX, seen, key=seen.__getitem__)
        self._next_walk_s = now.steady_s + max(WALK_PERIOD_S, WALK_REST * (time.monotonic() - begun_s))
        return [path for path in self._files if path not in seen]

    def _root_of(self, path: str) -> tuple[str, str]:
        """Say whose folder a path lies in."""
        return self._roots[path.startswith(self._roots[1][1] + os.sep)]

    def _consider(self, found: Found) -> None:
        if self._files.get(found.path) != (found.size, found.mtime_ns, found.inode):
            self._backlog[found.path] = found

    def next_files(self, limit: int) -> list[Found]:
        """Choose what to read next: the files changed last come first."""
        return heapq.nlargest(limit, self._backlog.values(), key=lambda found: found.mtime_ns)

    def stands(self, path: str, inode: int) -> bool:
        """Say whether a file still stands under its name."""
        found = look(*self._root_of(path), path)
        return found is not None and found.inode == inode

    def note_read(self, path: str, size: int, mtime_ns: int, inode: int, *, more: bool) -> None:
        """Note what was read of a file; one with more to read is offered again."""
        if path not in self._files and len(self._hot) < 2 * HOT_FILES_MAX:
            self._hot.append(path)
        self._files[path] = (size, mtime_ns, inode)
        if not more:
            self._backlog.pop(path, None)

    def forget(self, paths: Iterable[str]) -> None:
        """Forget files that are gone or have another name."""
        for path in paths:
            self._files.pop(path, None)


def _hot_folders(root: str, folders: dict[str, int]) -> list[str]:
    """Choose the folders looked at in every pass: the root, and those changed last."""
    return [root, *heapq.nlargest(HOT_FOLDERS_MAX, folders, key=folders.__getitem__)]


def _mtime_ns(folder: str) -> int | None:
    try:
        return os.lstat(folder).st_mtime_ns
    except OSError:
        return None
