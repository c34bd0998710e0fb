"""The requester's side of a tree: the exact code as it is now becomes one commit and one pack, and nothing is touched.

The user's index is copied and the copy is changed; new objects go to a folder of the task's own, with the
repository's as an alternate, so their repository is not given so much as a loose object. What their configuration, or
a hostile checkout's, would execute is switched off. What cannot be sent whole is refused by name.
"""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mesh.base.crypto import content_id
from mesh.base.errors import OurFault, Refused
from mesh.base.names import project_from
from node.messages import PACK_BYTES_MAX
from node.tasks.asks import shown
from node.tasks.belongings import UNTRACKED_LIMIT, Untracked, refuse_unasked
from node.tasks.git import Git, GitFailed, last_line
from node.tasks.trees import case_clashes

NAMED_MAX = 5
POINTER_BYTES_MAX = 1_024
ATTRIBUTE_BYTES_MAX = 1 << 20
_GITLINK = b"160000"
_NO_TREE = "or run without the tree: --no-tree"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of the user's, as found from a folder in it.

    Attributes:
        top: Its work tree.
        git_dir: Its ``.git``.
        objects: Its objects' folder.
        index: Its index file; may not exist.
        head: Id of HEAD's commit, or None before the first.
        shallow: Its history is cut or fetched on demand, so only a snapshot without parents can be sent whole.
        project: Its name.
        repository_id: 16 bytes over the root commits, or None where they are not known.
    """

    top: Path
    git_dir: Path
    objects: Path
    index: Path
    head: str | None
    shallow: bool
    project: str
    repository_id: bytes | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tree as it was sent.

    Attributes:
        commit: Its id; HEAD itself where nothing differed from it.
        pack: A pack with everything that commit reaches.
        pack_bytes: Its size.
        untracked: The untracked files in it.
        notes: What a person should be told, one line each.
    """

    repository: Repository
    commit: str
    pack: Path
    pack_bytes: int
    untracked: tuple[Untracked, ...]
    notes: tuple[str, ...]


async def find_repository(git: Git, cwd: Path) -> Repository | None:
    """Look for the repository a folder lies in.

    Args:
        git: With the user's own configuration.
        cwd: An absolute folder.

    Returns:
        The repository, or None outside of any.

    Raises:
        Refused: It belongs to somebody else, is bare, or its work tree is elsewhere.
    """
    await git.check_version()
    paths = ["--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--git-path", "objects", "--git-path", "index"]
    try:
        text = await git.run(["rev-parse", "--is-shallow-repository", *paths], cwd=cwd)
    except GitFailed as failed:
        _refuse_unless_absent(failed, cwd)
        return None
    shallow, *found = os.fsdecode(text).rstrip("\n").split("\n")
    if len(found) != 5:
        raise Refused("this repository's path holds a line break", reason="path", hint="move it, " + _NO_TREE)
    top, git_dir, common, objects, index = (_path(cwd, line) for line in found)
    if not _is_inside(cwd, top):
        raise Refused(f"the repository here keeps its work tree elsewhere: {top}", reason="work_tree", hint="go there, " + _NO_TREE)
    head = await _head(git, top)
    lazy = await _config(git, top, r"^(remote\..*\.promisor|extensions\.partialclone)$")
    cut = shallow == "true" or bool(lazy)
    roots = b"" if cut or head is None else await git.run(["rev-list", "--max-parents=0", "HEAD"], cwd=top)
    named = await _config(git, top, r"^hivemesh\.project$")
    main_tree = common.parent if common.name == ".git" else top
    return Repository(
        top=top,
        git_dir=git_dir,
        objects=objects,
        index=index,
        head=head,
        shallow=cut,
        project=project_from(named[-1][1] if named else main_tree.name),
        repository_id=content_id(b"\n".join(sorted(roots.split())), size=16) if roots else None,
    )


def _refuse_unless_absent(failed: GitFailed, cwd: Path) -> None:
    """Tell "not a repository" from "not allowed to look", which git's exit code does not."""
    if "dubious ownership" in failed.text or "safe.directory" in failed.text:
        owner = _owner_name(cwd)
        raise Refused(
            f"git does not trust this repository: it belongs to {owner} and hivemesh runs as {_user_name(os.geteuid())}",
            reason="ownership",
            hint="if you trust it, run yourself: git config --global --add safe.directory FOLDER; " + _NO_TREE,
        )
    if "must be run in a work tree" in failed.text:
        raise Refused("this is a bare repository or the inside of .git", reason="bare", hint="go to a work tree, " + _NO_TREE)
    if "not a git repository" in failed.text:
        return
    raise Refused(f"git cannot read this repository: {last_line(failed.text)}", reason="git", hint="see git status, " + _NO_TREE)


def _path(cwd: Path, line: str) -> Path:
    return Path(os.path.normpath(cwd / line))


def _is_inside(cwd: Path, top: Path) -> bool:
    return cwd.resolve().is_relative_to(top.resolve())


def _owner_name(cwd: Path) -> str:
    for folder in (cwd, *cwd.parents):
        if (folder / ".git").exists():
            return _user_name(folder.stat().st_uid)
    return _user_name(cwd.stat().st_uid)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


async def _head(git: Git, top: Path) -> str | None:
    try:
        return (await git.run(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], cwd=top)).decode().strip()
    except GitFailed as failed:
        if failed.code == 1:
            return None
        raise


async def _config(git: Git, top: Path, pattern: str) -> list[tuple[str, str]]:
    """Read the settings whose name matches; an empty list where there are none."""
    try:
        text = await git.run(["config", "-z", "--includes", "--get-regexp", pattern], cwd=top)
    except GitFailed as failed:
        if failed.code == 1:
            return []
        raise
    pairs = [os.fsdecode(item).partition("\n") for item in text.split(b"\0") if item]
    return [(name, value) for name, _, value in pairs]


async def take_snapshot(git: Git, repository: Repository, pack: Path, *, yes: bool) -> Snapshot:
    """Pack the work tree as it is: HEAD, what is changed, and what is untracked and not ignored.

    Args:
        git: With the user's own configuration.
        repository: From :func:`find_repository`.
        pack: Where the pack goes; must not exist.
        yes: Send untracked files without asking, however many and whatever they are called.

    Returns:
        The snapshot.

    Raises:
        Refused: Submodules or nested repositories; untracked files that want a yes; a pack over 1 GiB; objects that
            are not here.
        OurFault: The disk.

    If cancelled: the user's repository is as it was; the folder of the pack may hold a part of it.
    """
    with tempfile.TemporaryDirectory(prefix="snapshot-", dir=pack.parent) as folder:
        work = _Work(git, repository, Path(folder))
        try:
            await work.prepare()
            untracked = await work.list_untracked()
            if not yes:
                refuse_unasked(untracked)
            await work.add(untracked)
            commit = await work.commit()
            notes = await work.notes(untracked)
            pack_bytes = await work.pack(commit, pack)
        except GitFailed as failed:
            raise _explain(failed) from failed
        except OSError as error:
            raise OurFault(f"the tree cannot be packed: {error.strerror}", hint="check the disk") from error
    return Snapshot(repository, commit, pack, pack_bytes, untracked, notes)


def _explain(failed: GitFailed) -> Refused:
    if "missing" in failed.text or "unable to read" in failed.text or "bad object" in failed.text or "bad tree" in failed.text:
        return Refused(
            f"this repository does not hold everything the tree needs: {last_line(failed.text)}",
            reason="incomplete",
            hint="fetch what is missing (git fetch --unshallow, git fsck), " + _NO_TREE,
        )
    return Refused(f"git cannot pack this tree: {last_line(failed.text)}", reason="git", hint="see git status, " + _NO_TREE)


class _Work:
    """The steps of one snapshot, on a copy of the index."""

    def __init__(self, git: Git, repository: Repository, folder: Path) -> None:
        self._git = git
        self._repository = repository
        self._objects = folder / "objects"
        self._index = folder / "index"
        self._env: dict[str, str] = {}
        self._config: dict[str, str] = {}
        self._paths: list[bytes] = []

    async def _run(self, *args: str, feed: bytes = b"") -> bytes:
        return await self._git.run(list(args), cwd=self._repository.top, env=self._env, config=self._config, feed=feed)

    async def prepare(self) -> None:
        """Copy the index, take note of what must not run, and refuse what cannot travel."""
        repository = self._repository
        self._objects.mkdir()
        if repository.index.exists():
            shutil.copyfile(repository.index, self._index)
            shutil.copystat(repository.index, self._index)
        alternates = _quoted(repository.objects)
        self._env = {
            "GIT_INDEX_FILE": str(self._index),
            "GIT_OBJECT_DIRECTORY": str(self._objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": alternates,
        }
        for name, _ in await _config(self._git, repository.top, r"^filter\..*\.(clean|smudge|process|required)$"):
            self._config[name] = "false" if name.endswith(".required") else ""
        entries = await self._run("ls-files", "-s", "-z")
        staged = [entry.partition(b"\t") for entry in entries.split(b"\0") if entry]
        self._paths = [path for _, _, path in staged]
        _refuse_nested([path for head, _, path in staged if head.startswith(_GITLINK)], "submodule")

    async def list_untracked(self) -> tuple[Untracked, ...]:
        """List what is untracked and not ignored, with sizes; a nested repository shows as a folder and is refused."""
        listed = (await self._run("ls-files", "-o", "-z", "--exclude-standard")).split(b"\0")
        paths = [path for path in listed if path]
        _refuse_nested([path for path in paths if path.endswith(b"/")], "nested repository")
        if len(paths) > UNTRACKED_LIMIT:
            raise Refused(f"{len(paths)} untracked files are too many", reason="limit", hint="add them to .gitignore, " + _NO_TREE)
        return tuple(Untracked(os.fsdecode(path), _size(self._repository.top, path)) for path in paths)

    async def add(self, untracked: Iterable[Untracked]) -> None:
        """Put exactly the listed files, and every change to tracked ones, into the copy of the index."""
        changed = await self._run("diff-files", "--name-only", "-z", "--ignore-submodules=all", "--no-ext-diff")
        paths = dict.fromkeys([*(os.fsencode(file.path) for file in untracked), *(path for path in changed.split(b"\0") if path)])
        if paths:
            await self._run("update-index", "-z", "--add", "--remove", "--stdin", feed=b"\0".join(paths) + b"\0")

    async def commit(self) -> str:
        """Write the tree, and a commit for it unless HEAD has that very tree and its history is whole."""
        repository = self._repository
        tree = (await self._run("write-tree")).decode().strip()
        whole = repository.head is not None and not repository.shallow
        if whole and (await self._run("rev-parse", "--verify", f"{repository.head}^{{tree}}")).decode().strip() == tree:
            assert repository.head is not None
            return repository.head
        parents = ["-p", str(repository.head)] if whole else []
        return (await self._run("commit-tree", tree, *parents, "-m", "the work tree as it was sent")).decode().strip()

    async def notes(self, untracked: Iterable[Untracked]) -> tuple[str, ...]:
        """Say what the other machine will not find as it is here."""
        said = []
        if self._repository.shallow:
            said.append("the history here is cut, so the tree is sent without it")
        pointers = await self._pointers()
        if pointers:
            said.append(f"{len(pointers)} files are Git LFS pointers, not content: {_some(pointers)}")
        clashes = case_clashes([*self._paths, *(os.fsencode(file.path) for file in untracked)])
        if clashes:
            said.append(f"names that differ only by case: {_some(clashes)}; a machine whose disk ignores case refuses them")
        return tuple(said)

    async def _pointers(self) -> list[str]:
        """Find files that stand in the tree as LFS pointers; costs nothing where no attributes mention LFS."""
        top = self._repository.top
        named = [path for path in self._paths if path.rpartition(b"/")[2] == b".gitattributes"]
        if not any(b"lfs" in _start_of(top / os.fsdecode(path)) for path in named):
            return []
        fields = (await self._run("check-attr", "-z", "--stdin", "filter", feed=b"\0".join(self._paths) + b"\0")).split(b"\0")
        candidates = [path for path, value in zip(fields[0::3], fields[2::3], strict=False) if value == b"lfs"]
        feed = b"".join(b":" + path + b"\n" for path in candidates if b"\n" not in path)
        sizes = await self._run("cat-file", "--batch-check=%(objectsize)", feed=feed)
        listed = [path for path in candidates if b"\n" not in path]
        small = zip(listed, sizes.split(b"\n"), strict=False)
        return [os.fsdecode(path) for path, size in small if size.isdigit() and int(size) <= POINTER_BYTES_MAX]

    async def pack(self, commit: str, pack: Path) -> int:
        """Write everything the commit reaches as one pack; returns its size in bytes."""
        fd = os.open(pack, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            args = ["pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"]
            async with self._git.open(args, cwd=self._repository.top, env=self._env, config=self._config, stdout=fd) as process:
                assert process.stdin is not None
                await process.stdin.send_all(commit.encode() + b"\n")
            os.fsync(fd)
            pack_bytes = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if pack_bytes > PACK_BYTES_MAX:
            raise Refused(f"this tree packs to over {PACK_BYTES_MAX >> 20} MiB", reason="limit", hint="keep large files out of git, " + _NO_TREE)
        return pack_bytes


def _refuse_nested(paths: list[bytes], what: str) -> None:
    if paths:
        names = _some([os.fsdecode(path).rstrip("/") for path in paths])
        raise Refused(f"{what} {names} cannot be provided on the other machine", reason="submodule", hint="run it elsewhere, " + _NO_TREE)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(shown(name) for name in names[:NAMED_MAX]) + more


def _size(top: Path, path: bytes) -> int:
    try:
        return os.lstat(os.path.join(os.fsencode(top), path)).st_size
    except OSError:
        return 0


def _start_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(ATTRIBUTE_BYTES_MAX)
    except OSError:
        return b""


def _quoted(path: Path) -> str:
    """Quote a path for git's colon-separated lists."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
