"""What a tree would lay out, and the traps in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.base.errors import PeerFault, Refused
from node.tasks.trees import (
    BadTree,
    TreeEntry,
    TreeTotals,
    case_clashes,
    is_git_name,
    measure,
    parse_tree_untrusted,
    refuse_clashes,
)


def line(mode: bytes, name: bytes, object_id: bytes = b"i" * 20) -> bytes:
    return mode + b" " + name + b"\0" + object_id


def test_a_tree_is_read():
    data = line(b"100644", b"a") + line(b"40000", b"d", b"j" * 20) + line(b"120000", b"l") + line(b"100755", b"x")
    assert [(e.mode, e.name) for e in parse_tree_untrusted(data, id_bytes=20)] == [
        (b"100644", b"a"), (b"40000", b"d"), (b"120000", b"l"), (b"100755", b"x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [b".git", b".GIT", b".Git", b"git~1", b"GIT~1", b".git ", b".git.", b".git::$INDEX_ALLOCATION", ".g\u200cit".encode(),
     "\ufeff.git".encode(), b".", b"..", b"", b"a/b", b"a\\b"],
)  # fmt: skip
def test_traps_in_names_are_refused(name: bytes):
    with pytest.raises(BadTree):
        parse_tree_untrusted(line(b"100644", name), id_bytes=20)


@pytest.mark.parametrize("name", [b".gitignore", b".gitattributes", b"git", b"agit", b".github", b"git~2", b"\xff\xfe"])
def test_ordinary_names_pass(name: bytes):
    assert not is_git_name(name)
    assert parse_tree_untrusted(line(b"100644", name), id_bytes=20)[0].name == name


@pytest.mark.parametrize("mode", [b"160000", b"100600", b"0", b"", b"040000", b"777777"])
def test_unknown_modes_and_submodules_are_refused(mode: bytes):
    with pytest.raises(BadTree):
        parse_tree_untrusted(line(mode, b"x"), id_bytes=20)


@given(st.binary(max_size=200), st.sampled_from([20, 32]))
def test_garbage_is_a_bad_tree_and_nothing_else(data: bytes, id_bytes: int):
    try:
        parse_tree_untrusted(data, id_bytes=id_bytes)
    except PeerFault:
        return


def test_a_bomb_is_counted_without_being_laid_out():
    """SECURITY: ten levels of ten times the same subtree are 10^10 files in a few hundred bytes."""
    trees = {b"0": [TreeEntry(b"100644", b"f%d" % n, b"blob") for n in range(10)]}
    for level in range(1, 10):
        trees[b"%d" % level] = [TreeEntry(b"40000", b"d%d" % n, b"%d" % (level - 1)) for n in range(10)]
    with pytest.raises(BadTree, match="entries"):
        measure(b"9", trees, {b"blob": 1})


def test_many_bytes_of_few_objects_are_counted():
    trees = {b"r": [TreeEntry(b"100644", b"f%d" % n, b"big") for n in range(100)]}
    with pytest.raises(BadTree, match="bytes"):
        measure(b"r", trees, {b"big": 100 << 20})


def test_depth_loops_and_long_paths_are_refused():
    deep = {b"%d" % n: [TreeEntry(b"40000", b"d", b"%d" % (n + 1))] for n in range(100)} | {b"100": []}
    with pytest.raises(BadTree, match="deeper"):
        measure(b"0", deep, {})
    with pytest.raises(BadTree, match="deeper"):
        measure(b"a", {b"a": [TreeEntry(b"40000", b"x", b"a")]}, {})
    wide = {b"%d" % n: [TreeEntry(b"40000", b"d" * 200, b"%d" % (n + 1))] for n in range(10)} | {b"10": []}
    with pytest.raises(BadTree, match="path"):
        measure(b"0", wide, {})


def test_missing_parts_are_refused():
    with pytest.raises(BadTree, match="incomplete"):
        measure(b"a", {b"a": [TreeEntry(b"40000", b"x", b"b")]}, {})
    with pytest.raises(BadTree, match="incomplete"):
        measure(b"a", {b"a": [TreeEntry(b"100644", b"x", b"b")]}, {})


def test_totals_add_up():
    trees = {b"r": [TreeEntry(b"100644", b"a", b"f"), TreeEntry(b"40000", b"dir", b"s")], b"s": [TreeEntry(b"120000", b"link", b"f")]}
    assert measure(b"r", trees, {b"f": 7}) == TreeTotals(3, 14, 2, 8, ())


def test_names_that_clash_are_found_and_refused_where_the_disk_ignores_case():
    """O-X20: pkg/x.py beside pkg/X.py, readme beside README."""
    names = [b"README", b"pkg/X.py", b"pkg/x.py", b"readme", b"x"]
    assert case_clashes(names) == ["pkg/x.py", "readme"]
    assert case_clashes(["e\u0301".encode(), "\u00e9".encode()]) == ["\u00e9"]
    trees = {
        b"r": [TreeEntry(b"100644", b"README", b"f"), TreeEntry(b"40000", b"pkg", b"p"), TreeEntry(b"100644", b"readme", b"f")],
        b"p": [TreeEntry(b"100644", b"X.py", b"f"), TreeEntry(b"100644", b"x.py", b"f")],
    }
    totals = measure(b"r", trees, {b"f": 1})
    assert totals.clashes == ("readme", "pkg/x.py")
    refuse_clashes(totals, case_sensitive=True)
    with pytest.raises(Refused, match="readme"):
        refuse_clashes(totals, case_sensitive=False)
