"""The worker's side of a tree: strangers' packs, sound and hostile ones."""

from __future__ import annotations

import hashlib
import os
import resource
import struct
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from mesh.base.errors import MeshError, Refused
from node.tasks.checkout import lay_out, take_pack_untrusted
from node.tasks.git import Git
from node.tasks.trees import TreeTotals

GIT = Git(os.environ, time_limit_s=60, trusted_home=False)
COMMIT, TREE, BLOB = 1, 2, 3


def pack_of(*objects: tuple[int, bytes], count: int | None = None) -> bytes:
    """Write a pack by hand."""
    body = b"PACK" + struct.pack(">II", 2, len(objects) if count is None else count)
    for kind, data in objects:
        size = len(data)
        head = bytearray([kind << 4 | size & 15])
        size >>= 4
        while size:
            head[-1] |= 0x80
            head.append(size & 127)
            size >>= 7
        body += bytes(head) + zlib.compress(data, 9)
    return body + hashlib.sha1(body).digest()


def object_id(kind: int, data: bytes) -> bytes:
    return hashlib.sha1({1: b"commit", 2: b"tree", 3: b"blob"}[kind] + b" %d\0" % len(data) + data).digest()


def commit_of(tree: bytes) -> bytes:
    return b"tree " + object_id(TREE, tree).hex().encode() + b"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n"


def line(mode: bytes, name: bytes, target: bytes) -> bytes:
    return mode + b" " + name + b"\0" + target


class Chunks:
    """A pack as it comes in."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        chunk, self._rest = self._rest[:50_000], self._rest[50_000:]
        return chunk


async def take(folder: Path, commit: bytes | str, pack: bytes, *, stated: int | None = None) -> TreeTotals:
    os.makedirs(folder / "tree", exist_ok=True)
    name = commit if isinstance(commit, str) else object_id(COMMIT, commit).hex()
    return await take_pack_untrusted(GIT, folder, name, len(pack) if stated is None else stated, Chunks(pack))


BODY = b"hello\n"
SOUND = line(b"100644", b"a", object_id(BLOB, BODY)) + line(b"120000", b"link", object_id(BLOB, BODY)) + line(
    b"100755", b"run", object_id(BLOB, BODY)
)
SOUND_COMMIT = commit_of(SOUND)
SOUND_PACK = pack_of((BLOB, BODY), (TREE, SOUND), (COMMIT, SOUND_COMMIT))


async def test_a_sound_pack_becomes_a_work_tree(tmp_path: Path):
    folder = tmp_path / "t"
    assert await take(folder, SOUND_COMMIT, SOUND_PACK) == TreeTotals(3, 18, 1, 4, ())
    await lay_out(GIT, folder, object_id(COMMIT, SOUND_COMMIT).hex())
    tree = folder / "tree"
    assert (tree / "a").read_bytes() == BODY
    assert os.readlink(tree / "link") == "hello\n"
    assert os.access(tree / "run", os.X_OK)
    status = await trio.run_process(["git", "status", "--porcelain"], cwd=tree, capture_stdout=True)
    assert status.stdout == b"", "the command finds a clean work tree with its history"


def evil_tree(name: bytes, mode: bytes = b"100644") -> bytes:
    return line(mode, name, object_id(BLOB, BODY))


@pytest.mark.parametrize(
    "tree",
    [evil_tree(b".git"), evil_tree(b".GIT"), evil_tree(b"git~1"), evil_tree(b".."), evil_tree(b"a/b"), evil_tree(b"x", b"160000"),
     evil_tree(b"x" * 300), evil_tree(".g\u200cit".encode())],
)  # fmt: skip
async def test_traps_are_refused_before_anything_is_laid_out(tmp_path: Path, tree: bytes):
    """O-X23 and SECURITY: `.git` in every disguise, paths that lead out, submodules."""
    commit = commit_of(tree)
    with pytest.raises(MeshError):
        await take(tmp_path / "t", commit, pack_of((BLOB, BODY), (TREE, tree), (COMMIT, commit)))
    assert not list((tmp_path / "t" / "tree").iterdir())


async def test_a_tree_bomb_is_refused_at_once(tmp_path: Path):
    """SECURITY: under a kilobyte that would lay out 10^10 files."""
    objects: list[tuple[int, bytes]] = [(BLOB, BODY)]
    tree = b"".join(line(b"100644", b"f%d" % n, object_id(BLOB, BODY)) for n in range(10))
    objects.append((TREE, tree))
    for _ in range(9):
        tree = b"".join(line(b"40000", b"d%d" % n, object_id(TREE, tree)) for n in range(10))
        objects.append((TREE, tree))
    commit = commit_of(tree)
    pack = pack_of(*objects, (COMMIT, commit))
    assert len(pack) < 2_500
    started = time.monotonic()
    with pytest.raises(MeshError, match="entries"):
        await take(tmp_path / "t", commit, pack)
    assert time.monotonic() - started < 10


async def test_a_zlib_bomb_costs_neither_memory_nor_disk(tmp_path: Path):
    """SECURITY: 1 MB that unpacks to a gigabyte, several times in one tree."""
    zeros = bytes(16 << 20)
    target = object_id(BLOB, zeros)
    tree = b"".join(line(b"100644", b"f%03d" % n, target) for n in range(300))
    commit = commit_of(tree)
    pack = pack_of((BLOB, zeros), (TREE, tree), (COMMIT, commit))
    with pytest.raises(MeshError, match="bytes"):
        await take(tmp_path / "t", commit, pack)
    assert sum(path.stat().st_size for path in (tmp_path / "t").rglob("*") if path.is_file()) < 1 << 20
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 600_000


async def test_a_deep_tree_is_refused(tmp_path: Path):
    objects: list[tuple[int, bytes]] = [(BLOB, BODY)]
    tree = line(b"100644", b"f", object_id(BLOB, BODY))
    objects.append((TREE, tree))
    for _ in range(3_000):
        tree = line(b"40000", b"d", object_id(TREE, tree))
        objects.append((TREE, tree))
    commit = commit_of(tree)
    with pytest.raises(MeshError):
        await take(tmp_path / "t", commit, pack_of(*objects, (COMMIT, commit)))


@pytest.mark.parametrize(
    ("pack", "stated"),
    [
        (b"", 1),
        (b"garbage" * 100, None),
        (SOUND_PACK[:-1], None),
        (SOUND_PACK, len(SOUND_PACK) - 1),
        (SOUND_PACK, len(SOUND_PACK) + 1),
        (pack_of((TREE, SOUND), (COMMIT, SOUND_COMMIT)), None),
        (pack_of((BLOB, BODY), (TREE, SOUND), count=3), None),
        (pack_of((BLOB, BODY), (TREE, SOUND), (COMMIT, b"tree nonsense")), None),
    ],
)
async def test_packs_that_are_not_what_was_offered_are_refused(tmp_path: Path, pack: bytes, stated: int | None):
    """O-X17: incomplete, torn, longer, shorter, or without the objects it needs."""
    with pytest.raises(MeshError):
        await take(tmp_path / "t", SOUND_COMMIT, pack, stated=stated)


@pytest.mark.parametrize("commit", ["", "HEAD", "--help", "0" * 40, "z" * 40, "A" * 40, "ab" * 40, object_id(TREE, SOUND).hex()])
async def test_only_a_commit_that_came_is_taken(tmp_path: Path, commit: str):
    with pytest.raises(MeshError):
        await take(tmp_path / "t", commit, SOUND_PACK)


async def test_a_bit_flipped_anywhere_is_noticed(tmp_path: Path):
    for n, at in enumerate(range(0, len(SOUND_PACK), 17)):
        broken = bytearray(SOUND_PACK)
        broken[at] ^= 1
        with pytest.raises(MeshError):
            await take(tmp_path / f"t{n}", SOUND_COMMIT, bytes(broken))


async def test_filters_named_by_the_tree_have_no_meaning_here(tmp_path: Path):
    attributes = b"* filter=evil diff=evil merge=evil ident\n"
    tree = line(b"100644", b".gitattributes", object_id(BLOB, attributes)) + line(b"100644", b"a", object_id(BLOB, BODY))
    commit = commit_of(tree)
    await take(tmp_path / "t", commit, pack_of((BLOB, BODY), (BLOB, attributes), (TREE, tree), (COMMIT, commit)))
    await lay_out(GIT, tmp_path / "t", object_id(COMMIT, commit).hex())
    assert (tmp_path / "t" / "tree" / "a").read_bytes() == BODY


async def test_git_missing_is_refused(tmp_path: Path):
    (tmp_path / "t").mkdir()
    with pytest.raises(Refused) as refused:
        await take_pack_untrusted(
            Git({"PATH": str(tmp_path)}, time_limit_s=5, trusted_home=False), tmp_path / "t", "0" * 40, 5, Chunks(b"x")
        )
    assert refused.value.reason == "no_git"
