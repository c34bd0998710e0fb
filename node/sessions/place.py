"""Which project and branch a folder belongs to, read from files as text.

git is never run in a folder an agent works in: its configuration can name programs to start. The few files read here
may be anything (a pipe, a link, gigabytes), so each is opened without waiting, must be a plain file, and is read to a
bound.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mesh.base.errors import Usage
from mesh.base.names import project_from, project_name
from node.sessions.inventory import Place
from node.sessions.plain import read_plain

FILE_BYTES_MAX = 64 << 10
"""Read of ``.git``, ``HEAD``, ``commondir`` and ``config``; what stands behind it is not seen."""
DEPTH_MAX = 64

_BRANCH = re.compile(r"ref: refs/heads/([^\x00-\x20\x7f~^:?*\[\\]{1,200})\s*\Z")
_SECTION = re.compile(r"\[\s*([A-Za-z0-9.-]+)\s*(\".*\")?\s*\]")
_PROJECT = re.compile(r"project\s*=\s*\"?([A-Za-z0-9._-]{1,64})\"?\s*(?:[#;].*)?\Z", re.IGNORECASE)


def read_place(cwd: str | None) -> Place:
    """Find out project and branch of a folder; blocks, a few small files at most.

    Args:
        cwd: The folder as the agent states it; anything.

    Returns:
        The place. A folder that does not exist any more still has a name.
    """
    if not cwd or not os.path.isabs(cwd) or "\0" in cwd:
        return Place(project_from(os.path.basename(cwd or "")), None)
    folder = Path(cwd)
    for here in [folder, *folder.parents][:DEPTH_MAX]:
        private = _git_folder(here / ".git")
        if private is not None:
            shared = _shared_folder(private)
            return Place(_named(shared) or project_from(_base_name(here, private, shared)), _branch(private))
    return Place(project_from(folder.name), None)


def _read(path: Path) -> str | None:
    data = read_plain(path, FILE_BYTES_MAX, follow=True)
    return None if data is None else data.decode(errors="replace")


def _git_folder(marker: Path) -> Path | None:
    """Resolve ``.git``: the folder itself, or where the file of a linked work tree or a submodule points."""
    try:
        if marker.is_dir():
            return marker
    except (OSError, ValueError):
        return None
    text = _read(marker)
    if text is None or not text.startswith("gitdir: "):
        return None
    return marker.parent / text[len("gitdir: ") :].strip()


def _shared_folder(private: Path) -> Path:
    """Follow a linked work tree's folder to the repository's own."""
    text = _read(private / "commondir")
    return Path(os.path.normpath(private / text.strip())) if text and text.strip() else private


def _named(shared: Path) -> str | None:
    """Look for ``hivemesh.project`` in the repository's configuration, as text; includes are not followed."""
    section = ""
    found = None
    for line in (_read(shared / "config") or "").splitlines():
        header = _SECTION.match(line.strip())
        if header:
            section = "" if header[2] else header[1].lower()
            continue
        value = _PROJECT.match(line.strip()) if section == "hivemesh" else None
        found = value[1] if value else found
    if found is None:
        return None
    try:
        return project_name(found)
    except Usage:
        return project_from(found)


def _base_name(here: Path, private: Path, shared: Path) -> str:
    """Name a repository by its main work tree, or by itself where it has none."""
    if shared == private:
        return here.name
    return shared.parent.name if shared.name == ".git" else shared.name.removesuffix(".git")


def _branch(private: Path) -> str | None:
    found = _BRANCH.match(_read(private / "HEAD") or "")
    return found[1] if found else None
