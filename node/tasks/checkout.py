"""The worker's side of a tree: a stranger's pack becomes a work tree, or is refused before it costs anything.

Each task has a throwaway repository of its own, so nothing a task does to it reaches another task, and after the
checkout the node never runs git there again (THREATS, "git in a task's folder").
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from mesh.base.errors import Refused
from node.messages import PACK_BYTES_MAX
from node.tasks.git import Git, GitFailed, last_line
from node.tasks.trees import (
    ENTRIES_MAX,
    BadTree,
    TreeEntry,
    TreeTotals,
    measure,
    parse_tree_untrusted,
    refuse_clashes,
)

UNPACK_MEMORY_KIB_MAX = 2 << 20
UNPACK_CPU_S_MAX = 300
TREES_BYTES_MAX = 64 << 20
ARRIVAL_S_MAX = 6 * 3600.0
"""A pack may take as long as a slow line needs; one that stops coming is given up much sooner, by who receives it."""
_HARMLESS = (
    "badEmail",
    "badTimezone",
    "missingEmail",
    "missingNameBeforeEmail",
    "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail",
    "multipleAuthors",
    "nulInCommit",
    "zeroPaddedDate",
    "zeroPaddedFilemode",
    "gitmodulesParse",
    "extraHeaderEntry",
)
"""Faults of old commits in real histories, which do no harm in a tree that is only laid out."""

_TAKE_CONFIG = {
    "core.bigFileThreshold": "16m",
    "core.deltaBaseCacheLimit": "64m",
    "core.packedGitLimit": "512m",
    "pack.threads": "1",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.symlinks": "true",
    "core.autocrlf": "false",
    "init.defaultBranch": "main",
    "init.templateDir": "",
}


def _limits(bytes_max: int) -> tuple[str, ...]:
    """Set memory, time and file size for what unpacks strangers' bytes, then become that command."""
    memory = f"ulimit -v {UNPACK_MEMORY_KIB_MAX}; " if sys.platform == "linux" else ""
    blocks = bytes_max // 512 + 2_048
    return ("sh", "-c", f'{memory}ulimit -t {UNPACK_CPU_S_MAX}; ulimit -f {blocks}; exec "$@"', "sh")


async def take_pack_untrusted(git: Git, folder: Path, commit: str, pack_bytes: int, chunks: AsyncIterator[bytes]) -> TreeTotals:
    """Take in a pack and judge the tree it claims to bring.

    Args:
        git: Without anybody's configuration.
        folder: The task's; gets ``repo``.
        commit: The commit the offer names, 40 or 64 hexadecimal digits.
        pack_bytes: The size the offer states.
        chunks: The pack as it comes.

    Returns:
        What laying out the tree comes to.

    Raises:
        Refused: The pack is not sound, not what was offered, would lay out too much, or names clash on this disk.
        BadTree: The tree holds what must not be laid out.

    If cancelled: the folder holds a part of the repository; nothing in it was executed.
    """
    if not _is_commit_id(commit):
        raise BadTree("the offer names something that is not a commit")
    await git.check_version()
    repo = folder / "repo"
    kind = "sha256" if len(commit) == 64 else "sha1"
    try:
        await git.run(["init", "-q", "--bare", f"--object-format={kind}", str(repo)], config=_TAKE_CONFIG)
        await _index_pack(git, repo, pack_bytes, chunks)
        totals = await _measure(git, repo, commit)
    except GitFailed as failed:
        raise Refused(f"the tree that came is not sound: {last_line(failed.text)}", reason="bad_tree") from failed
    refuse_clashes(totals, case_sensitive=_is_case_sensitive(folder))
    return totals


def _is_commit_id(text: str) -> bool:
    return len(text) in (40, 64) and all(c in "0123456789abcdef" for c in text)


async def _index_pack(git: Git, repo: Path, pack_bytes: int, chunks: AsyncIterator[bytes]) -> None:
    strict = "--strict=" + ",".join(f"{name}=ignore" for name in _HARMLESS)
    args = ["index-pack", "--stdin", strict, f"--max-input-size={min(pack_bytes, PACK_BYTES_MAX)}"]
    env = {"GIT_DIR": str(repo)}
    came = 0
    wrap = _limits(PACK_BYTES_MAX)
    async with git.open(args, cwd=repo, env=env, config=_TAKE_CONFIG, wrap=wrap, time_limit_s=ARRIVAL_S_MAX) as process:
        assert process.stdin is not None
        async for chunk in chunks:
            came += len(chunk)
            if came > pack_bytes:
                raise Refused("more came than was offered", reason="bad_tree")
            try:
                await process.stdin.send_all(chunk)
            except trio.BrokenResourceError:
                break
    if came != pack_bytes:
        raise Refused("less came than was offered", reason="bad_tree")


async def _measure(git: Git, repo: Path, commit: str) -> TreeTotals:
    """Walk the distinct trees and files below the commit, without laying anything out."""
    env = {"GIT_DIR": str(repo)}
    id_bytes = len(commit) // 2
    listed_max = (ENTRIES_MAX + 1) * (len(commit) + 32)
    kind = (await git.run(["cat-file", "-t", commit], cwd=repo, env=env)).strip()
    if kind != b"commit":
        raise BadTree("the offer names something that is not a commit")
    ids = await git.run(
        ["rev-list", "--objects", "--no-object-names", f"{commit}^{{tree}}"], cwd=repo, env=env, stdout_bytes_max=listed_max
    )
    form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    lines = await git.run(["cat-file", form], cwd=repo, env=env, feed=ids, stdout_bytes_max=2 * listed_max)
    sizes: dict[bytes, int] = {}
    trees: list[bytes] = []
    for line in lines.splitlines():
        name, what, size = line.split(b" ")
        if what == b"tree":
            trees.append(name)
        sizes[bytes.fromhex(name.decode())] = int(size)
    if sum(sizes[bytes.fromhex(name.decode())] for name in trees) > TREES_BYTES_MAX:
        raise BadTree("the tree's folders are too large")
    root = bytes.fromhex((await git.run(["rev-parse", f"{commit}^{{tree}}"], cwd=repo, env=env)).decode().strip())
    content = await git.run(["cat-file", "--batch"], cwd=repo, env=env, feed=b"\n".join(trees) + b"\n", stdout_bytes_max=2 * TREES_BYTES_MAX)
    return await trio.to_thread.run_sync(lambda: measure(root, _read_trees_untrusted(content, id_bytes), sizes))


def _read_trees_untrusted(content: bytes, id_bytes: int) -> dict[bytes, list[TreeEntry]]:
    """Read what ``git cat-file --batch`` says about trees."""
    trees: dict[bytes, list[TreeEntry]] = {}
    at = 0
    while at < len(content):
        end = content.index(b"\n", at)
        name, what, size = content[at:end].split(b" ")
        if what != b"tree":
            raise BadTree("the tree is incomplete")
        start = end + 1
        trees[bytes.fromhex(name.decode())] = parse_tree_untrusted(content[start : start + int(size)], id_bytes=id_bytes)
        at = start + int(size) + 1
    return trees


async def lay_out(git: Git, folder: Path, commit: str) -> None:
    """Check the commit out into the task's ``tree``; the last time the node runs git there.

    Args:
        git: Without anybody's configuration.
        folder: The task's, with ``repo`` from :func:`take_pack_untrusted` and an empty ``tree``.
        commit: The same.

    Raises:
        Refused: Git failed.

    If cancelled: ``tree`` holds a part of the files.
    """
    repo, tree = folder / "repo", folder / "tree"
    env = {"GIT_DIR": str(repo), "GIT_WORK_TREE": str(tree)}
    try:
        await git.run(["config", "core.bare", "false"], cwd=repo, env={"GIT_DIR": str(repo)})
        await git.run(["config", "core.worktree", str(tree)], cwd=repo, env={"GIT_DIR": str(repo)})
        await git.run(["update-ref", "--no-deref", "HEAD", commit], cwd=repo, env={"GIT_DIR": str(repo)})
        await git.run(["read-tree", "-u", "--reset", commit], cwd=tree, env=env, config=_TAKE_CONFIG)
    except GitFailed as failed:
        raise Refused(f"the tree cannot be laid out: {last_line(failed.text)}", reason="checkout") from failed
    _point_to(repo, tree)


def _point_to(repo: Path, tree: Path) -> None:
    """Make the tree a work tree of the throwaway repository, so that the command finds its history."""
    (tree / ".git").write_bytes(b"gitdir: " + os.fsencode(repo) + b"\n")


def _is_case_sensitive(folder: Path) -> bool:
    probe = folder / "Case"
    probe.touch()
    try:
        return not (folder / "case").exists()
    finally:
        probe.unlink()
