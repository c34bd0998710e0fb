"""How much a commit's tree would lay out, counted before anything is: bombs and traps are refused.

A pack of a kilobyte can hold a tree of ten thousand million files, because trees may share subtrees; so totals are
computed once a distinct tree and added up (THREATS, "bombs"). Names that git or a file system would take for ``.git``
are refused here too, whatever git's own check thought of them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mesh.base.errors import PeerFault, Refused

ENTRIES_MAX = 200_000
TREE_BYTES_MAX = 4 << 30
DEPTH_MAX = 64
PATH_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
CLASHES_SHOWN_MAX = 5

_TREE = b"40000"
_LINK = b"120000"
_GITLINK = b"160000"
_FILES = frozenset((b"100644", b"100755", b"100664"))
_INVISIBLE_TO_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF], None
)


class BadTree(PeerFault):
    """A tree from outside is not one that may be laid out."""

    kind = "bad_tree"


@dataclass(frozen=True, slots=True)
class TreeTotals:
    """What laying out a tree comes to.

    Attributes:
        entries: Files, links and folders.
        file_bytes: Of all files together.
        depth: Levels of folders.
        path_bytes: Of the longest path.
        clashes: Up to five names that differ from another in the same folder only by case or composition.
    """

    entries: int
    file_bytes: int
    depth: int
    path_bytes: int
    clashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One line of a tree object."""

    mode: bytes
    name: bytes
    object_id: bytes


def parse_tree_untrusted(data: bytes, *, id_bytes: int) -> list[TreeEntry]:
    """Read a raw tree object.

    Args:
        data: Anything, at most what git's own size limit let through.
        id_bytes: 20 or 32.

    Returns:
        Its entries, each with a sound name and a known mode.

    Raises:
        BadTree: It is not a tree, or holds a name or a mode that must not be laid out.
    """
    entries = []
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        end = data.find(b"\0", space, space + NAME_BYTES_MAX + 2)
        if space < 0 or end < 0 or end + 1 + id_bytes > len(data):
            raise BadTree("the tree holds an entry that cannot be read, or a name over 255 bytes")
        name = data[space + 1 : end]
        entries.append(TreeEntry(_checked_mode(data[at:space], name), name, data[end + 1 : end + 1 + id_bytes]))
        _check_name(name)
        if len(entries) > ENTRIES_MAX:
            raise BadTree(f"the tree has a folder with over {ENTRIES_MAX} entries")
        at = end + 1 + id_bytes
    return entries


def _checked_mode(mode: bytes, name: bytes) -> bytes:
    if mode == _GITLINK:
        raise BadTree(f"the tree holds a submodule: {name[:80]!r}")
    if mode not in _FILES and mode not in (_TREE, _LINK):
        raise BadTree(f"the tree holds an entry of an unknown mode: {name[:80]!r}")
    return mode


def _check_name(name: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\\" in name or is_git_name(name):
        raise BadTree(f"the tree holds a name that must not be laid out: {name[:80]!r}")


def is_git_name(name: bytes) -> bool:
    """Whether some file system takes a name for ``.git``: case, invisible characters, NTFS's short and padded forms."""
    text = name.decode("utf-8", "replace").translate(_INVISIBLE_TO_HFS)
    folded = unicodedata.normalize("NFKC", text).casefold().split(":", 1)[0].rstrip(" .")
    return folded in (".git", "git~1")


def measure(root: bytes, trees: Mapping[bytes, list[TreeEntry]], sizes: Mapping[bytes, int]) -> TreeTotals:
    """Add up a tree from its distinct parts.

    Args:
        root: Id of the tree.
        trees: Every distinct tree below it, itself included.
        sizes: Size in bytes of every distinct file.

    Returns:
        The totals.

    Raises:
        BadTree: A part is missing, or a bound is passed.
    """
    totals: dict[bytes, TreeTotals] = {}
    path = [(root, _subtrees(root, trees))]
    while path:
        tree, rest = path[-1]
        below = next((child for child in rest if child not in totals), None)
        if below is None:
            totals[tree] = _bounded(_sum(trees[tree], totals, sizes))
            path.pop()
        elif len(path) >= DEPTH_MAX:
            raise BadTree(f"the tree is deeper than {DEPTH_MAX} folders")
        else:
            path.append((below, _subtrees(below, trees)))
    return totals[root]


def _subtrees(tree: bytes, trees: Mapping[bytes, list[TreeEntry]]) -> Iterator[bytes]:
    if tree not in trees:
        raise BadTree("the tree is incomplete")
    return iter([entry.object_id for entry in trees[tree] if entry.mode == _TREE])


def _sum(entries: list[TreeEntry], totals: Mapping[bytes, TreeTotals], sizes: Mapping[bytes, int]) -> TreeTotals:
    count = file_bytes = depth = path_bytes = 0
    clashes: list[str] = case_clashes(entry.name for entry in entries)
    for entry in entries:
        count += 1
        name_bytes = len(entry.name)
        if entry.mode == _TREE:
            below = totals[entry.object_id]
            count += below.entries
            file_bytes += below.file_bytes
            depth = max(depth, below.depth)
            name_bytes += 1 + below.path_bytes
            clashes += [f"{entry.name.decode('utf-8', 'replace')}/{clash}" for clash in below.clashes]
        elif entry.object_id not in sizes:
            raise BadTree("the tree is incomplete")
        else:
            file_bytes += sizes[entry.object_id]
        path_bytes = max(path_bytes, name_bytes)
    return TreeTotals(count, file_bytes, depth + 1, path_bytes, tuple(clashes[:CLASHES_SHOWN_MAX]))


def _bounded(totals: TreeTotals) -> TreeTotals:
    if totals.entries > ENTRIES_MAX:
        raise BadTree(f"the tree would lay out {totals.entries} entries; at most {ENTRIES_MAX} are taken")
    if totals.file_bytes > TREE_BYTES_MAX:
        raise BadTree(f"the tree would lay out {totals.file_bytes} bytes; at most {TREE_BYTES_MAX} are taken")
    if totals.depth > DEPTH_MAX:
        raise BadTree(f"the tree is deeper than {DEPTH_MAX} folders")
    if totals.path_bytes > PATH_BYTES_MAX:
        raise BadTree(f"the tree holds a path over {PATH_BYTES_MAX} bytes")
    return totals


def case_clashes(names: Iterable[bytes]) -> list[str]:
    """Find names that a case-insensitive disk takes for one.

    Args:
        names: Of one folder, or whole paths.

    Returns:
        The later one of each pair, in order, as text.
    """
    seen: set[str] = set()
    found = []
    for name in names:
        text = name.decode("utf-8", "replace")
        key = unicodedata.normalize("NFC", text).casefold()
        if key in seen:
            found.append(text)
        seen.add(key)
    return found


def refuse_clashes(totals: TreeTotals, *, case_sensitive: bool) -> None:
    """Refuse a tree that this machine's disk cannot hold as it is.

    Raises:
        Refused: Names clash and the disk ignores case.
    """
    if totals.clashes and not case_sensitive:
        raise Refused(
            f"this machine's disk ignores case, and the tree has names that differ only by it: {', '.join(totals.clashes)}",
            reason="case",
            hint="run it on a machine whose disk does not, or rename the files",
        )
