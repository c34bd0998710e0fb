"""Where HEAD of a repository is now, read from its files: for the owner's own questions, without running git."""

from __future__ import annotations

import re
from pathlib import Path

LINK_BYTES_MAX = 4_096
PACKED_BYTES_MAX = 16 << 20
DEPTH_MAX = 5

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REFERENCE = re.compile(r"ref: (refs/[^\x00-\x20~^:?*\[\\]{1,400})\Z")


def read_head(repository: Path) -> str | None:
    """Read the commit HEAD points to.

    Args:
        repository: The folder of a main work tree, or a bare repository.

    Returns:
        Its hex id; None where these files do not say (another storage format, no commit, damage).

    Raises:
        FileNotFoundError: There is no repository any more.
    """
    git = repository / ".git" if (repository / ".git").is_dir() else repository
    if not (git / "HEAD").is_file():
        raise FileNotFoundError(str(repository))
    text = _line(git / "HEAD")
    for _ in range(DEPTH_MAX):
        if text is None or _COMMIT.match(text):
            return text
        found = _REFERENCE.match(text)
        if not found or ".." in found[1]:
            return None
        text = _line(git / found[1]) or _packed(git, found[1])
    return None


def _line(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(LINK_BYTES_MAX).decode(errors="replace").strip() or None
    except OSError:
        return None


def _packed(git: Path, name: str) -> str | None:
    try:
        with (git / "packed-refs").open("rb") as file:
            lines = file.read(PACKED_BYTES_MAX).split(b"\n")
    except OSError:
        return None
    wanted = b" " + name.encode()
    return next((line[: -len(wanted)].decode(errors="replace") for line in lines if line.endswith(wanted)), None)
