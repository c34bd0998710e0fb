"""Read the committed files of a repository: objects of HEAD only, by a git that obeys nobody's configuration.

The work tree is never read, so nothing uncommitted is ever quoted. Git runs with a fixed argument list and environment,
no hooks, filters, text conversions, replacement objects, optional locks or network; ``cat-file`` and ``ls-tree`` run no
command a repository could name.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mesh.base.errors import OurFault, Usage
from mesh.base.names import project_from, project_name

FILE_BYTES_MAX = 1 << 20
"""A larger file is left out."""
ENTRIES_MAX = 200_000
"""A tree with more entries is refused."""
LISTING_BYTES_MAX = 128 << 20
GIT_TIMEOUT_S = 120

_OPTIONS = (
    "--no-pager", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs",
    "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never",
)  # fmt: skip
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0",
    "GIT_ASKPASS": "", "LC_ALL": "C", "HOME": "/nonexistent",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the tree of HEAD.

    Attributes:
        mode: As git writes it: ``100644``, ``100755``, ``120000`` (symbolic link), ``160000`` (submodule).
        sha: Hex id of the object.
        size: Bytes of a blob; None for a submodule.
        path: From the root, as git stores it.
    """

    mode: str
    sha: str
    size: int | None
    path: bytes


def run_git(folder: Path, *arguments: str, fine: tuple[int, ...] = (0,)) -> bytes | None:
    """Run one short hermetic git command.

    Args:
        folder: Where.
        arguments: Fixed words and object ids, never text from outside.
        fine: Exit codes that are an answer.

    Returns:
        Its output, or None if it left with another code.

    Raises:
        OurFault: There is no git, or it took longer than GIT_TIMEOUT_S.
    """
    try:
        done = subprocess.run(
            ["git", *_OPTIONS, "-C", str(folder), *arguments],
            env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise OurFault("git is not installed", hint="install git; hivemesh doctor says how") from None
    except subprocess.TimeoutExpired:
        raise OurFault(f"git did not answer within {GIT_TIMEOUT_S} s", hint="check the disk the repository is on") from None
    return done.stdout if done.returncode in fine else None


def _environment() -> dict[str, str]:
    return {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath)}


def find_repository(path: Path) -> Path:
    """Find the repository a path lies in.

    Args:
        path: A folder of a work tree, or a bare repository.

    Returns:
        Its common git folder, the one that all its work trees share.

    Raises:
        Usage: No folder, or not in a repository.
    """
    if not path.is_dir():
        raise Usage(f"{path} is not a folder", hint="name a folder of a git repository")
    answer = run_git(path, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if not answer:
        raise Usage(f"{path} is not in a git repository", hint="only committed files are indexed: git init, add and commit first")
    return Path(os.fsdecode(answer.rstrip(b"\n")))


def head_commit(path: Path) -> str:
    """Name the commit that HEAD is at.

    Raises:
        Usage: The repository has no commit yet.
    """
    answer = run_git(path, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not answer:
        raise Usage(f"the repository at {path} has no commits yet", hint="only committed files are indexed: commit first")
    return answer.decode("ascii").strip()


def project_of(path: Path) -> str:
    """Name the project of a repository: ``hivemesh.project`` in its git config, else its main work tree's base name.

    Raises:
        Usage: The configured name is not a project name.
    """
    answer = run_git(path, "config", "--local", "--get", "hivemesh.project")
    if answer and answer.strip():
        return project_name(answer.decode(errors="replace").strip())
    common = find_repository(path)
    name = common.parent.name if common.name == ".git" else common.name.removesuffix(".git")
    return project_from(name)


def list_tree(path: Path, commit: str) -> list[Entry]:
    """List every entry of a commit's tree, deep.

    Args:
        path: In the repository.
        commit: Hex id.

    Returns:
        Entries in git's order.

    Raises:
        OurFault: The tree cannot be read, or has more than ENTRIES_MAX entries.
    """
    output = run_git(path, "ls-tree", "-r", "-z", "-l", "--full-tree", commit)
    if output is None:
        raise OurFault("git cannot read the tree of HEAD", hint="check the repository: git fsck")
    if len(output) > LISTING_BYTES_MAX or output.count(b"\0") > ENTRIES_MAX:
        raise OurFault(f"the repository has more than {ENTRIES_MAX} files", hint="index a smaller one")
    entries = []
    for line in output.split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        mode, _, sha, size = head.decode("ascii").split()
        entries.append(Entry(mode, sha, int(size) if size.isdigit() else None, name))
    return entries


@contextmanager
def open_blobs(path: Path) -> Iterator[BlobReader]:
    """Start one git that gives out blobs.

    Args:
        path: In the repository.

    Yields:
        The reader.

    Raises:
        OurFault: Git cannot be started.
    """
    process = subprocess.Popen(
        ["git", *_OPTIONS, "-C", str(path), "cat-file", "--batch"],
        env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield BlobReader(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


class BlobReader:
    """Give out blobs one by one.

    Args:
        process: A running ``git cat-file --batch``.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._input, self._output = process.stdin, process.stdout

    def read(self, sha: str) -> bytes | None:
        """Read a blob.

        Args:
            sha: Its hex id.

        Returns:
            Its bytes; None where it is missing, no blob, or larger than FILE_BYTES_MAX.

        Raises:
            OurFault: Git ended.
        """
        try:
            self._input.write(sha.encode("ascii") + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise OurFault("git ended while the repository was read", hint="check the repository: git fsck") from None
        words = self._output.readline().split()
        if len(words) == 2 and words[1] == b"missing":
            return None
        if len(words) != 3:
            raise OurFault("git ended while the repository was read", hint="check the repository: git fsck")
        left = int(words[2])
        if words[1] == b"blob" and left <= FILE_BYTES_MAX:
            data = self._output.read(left)
            self._output.read(1)
            return data if len(data) == left else None
        left += 1
        while left > 0 and (piece := self._output.read(min(left, 1 << 16))):
            left -= len(piece)
        return None
