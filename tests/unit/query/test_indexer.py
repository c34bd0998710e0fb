import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mesh.base.errors import Usage
from query import indexer as rooms
from query.index import Index
from query.indexer import index_repository
from query.question import question_untrusted


def spans_of(path: str) -> list[tuple]:
    index = Index(Path(path))
    statement = "SELECT path, sha, b0, b1, l0, l1, sha256, text, heading, trail FROM span JOIN blob ON blob.id = span.blob"
    rows = index._file.read(lambda connection: list(connection.execute(statement)), time_ms_max=5000)
    index.close()
    return rows


def blob(folder: Path, sha: str) -> bytes:
    return subprocess.run(["git", "-C", str(folder), "cat-file", "blob", sha], check=True, capture_output=True).stdout


def assert_verbatim(folder: Path, path: str) -> int:
    rows = spans_of(path)
    for name, sha, start, end, first, last, digest, text, _, _ in rows:
        data = blob(folder, sha)
        assert subprocess.run(["git", "-C", str(folder), "rev-parse", f"HEAD:{name}"], check=True, capture_output=True, text=True).stdout.strip() == sha
        assert data[start:end] == text.encode()
        assert hashlib.sha256(data[start:end]).digest() == digest
        assert (first, last) == (data.count(b"\n", 0, start) + 1, data.count(b"\n", 0, end - 1) + 1)
    return len(rows)


def test_every_citation_hashes_to_the_committed_blob(kettle, tmp_path):
    report = index_repository(kettle, None, tmp_path / "index")
    assert assert_verbatim(kettle, report.path) == report.spans > 5
    assert (report.project, report.files_total, report.files_indexed, report.skipped) == ("kettle", 3, 3, {})
    assert not any("CANARY" in row[7] for row in spans_of(report.path))


LINES = st.lists(
    st.sampled_from(
        ["# One", "## Tw\u00f6 `x`", "words here", "\u00fcber w\u00f6rter", "", "", "- item one", "```", "def f(a=1):", "    '''Words.'''", "    return 1", "<!-- hid -->",
         "<h2>Html head</h2>", "Title", "=====", ".. note:: x", "   deep", "| a | b |", "|---|---|", "> quote words", "\tindented", "a\rb words", "===", "---"]
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.sampled_from(["\n", "\r\n"]))
def test_any_document_is_cited_verbatim(tmp_path_factory, commit, lines, end):
    folder = tmp_path_factory.mktemp("r")
    text = end.join(lines)
    commit(folder / "r", {"a.md": text, "b.rst": text, "c.py": text, "d.txt": "x"})
    report = index_repository(folder / "r", "p", folder / "index")
    assert_verbatim(folder / "r", report.path)
    assert report.files_total == report.files_indexed + sum(report.skipped.values())


def test_nothing_but_head_is_in_the_index(kettle, tmp_path, run_git, commit):
    """Canaries in every place that is not HEAD: none in the bytes of the index."""
    commit(kettle, {"old.md": "# Old\n\nCANARYOLD words\n", "gone.md": "# Gone\n\nCANARYGONE words\n"})
    run_git(kettle, "rm", "-q", "gone.md")
    commit(kettle, {"old.md": "# Old\n\nnew words\n", ".gitignore": "ignored.md\n"})
    (kettle / "docs/guide.md").write_text("# Guide\n\nCANARYSTASH words\n")
    run_git(kettle, "stash", "-q")
    run_git(kettle, "checkout", "-q", "-b", "side")
    commit(kettle, {"side.md": "# Side\n\nCANARYSIDE words\n"})
    run_git(kettle, "checkout", "-q", "main")
    (kettle / "README.md").write_text("# Kettle\n\nCANARYEDIT words\n")
    (kettle / "ignored.md").write_text("CANARYIGNORED words")
    (kettle / "staged.md").write_text("# S\n\nCANARYSTAGED words\n")
    run_git(kettle, "add", "staged.md")
    data = Path(index_repository(kettle, None, tmp_path / "index").path).read_bytes()
    assert b"canary" not in data.lower()


def test_every_entry_is_counted_under_its_reason(tmp_path, commit, run_git):
    """O-Q8: nothing is left out in silence."""
    folder = tmp_path / "r"
    outside = tmp_path / "outside.md"
    outside.write_text("# Out\n\nCANARY outside\n")
    folder.mkdir()
    (folder / "link.md").symlink_to(outside)
    commit(
        folder,
        {
            "good.md": "# Good\n\nwords to keep\n", "README": "no ending\n", "empty.md": "", "image.png": b"\x89PNG", "latin.md": "# caf\u00e9 CANARY".encode("latin-1"),
            "nul.md": b"# has\n\0 CANARY\n", "big.md": b"CANARY words\n" * 90_000, "wide.md": "CANARY " * 700, "lfs.md": "version https://git-lfs.github.com/spec/v1\nCANARY\n",
            "broken.py": "def CANARY(:\n", "secrets/a.md": "# S\n\nCANARY words\n", ".env.md": "CANARY words", "gen/x.md": "# G\n\nCANARY words\n", ".gitattributes": "gen/* linguist-generated\nout.md export-ignore\n",
            "out.md": "# O\n\nCANARY words\n", "hide/x.md": "# H\n\nCANARY words\n", ".queryignore": "hide/\n", "ghp_" + "a1B2" * 9 + ".md": "# T\n\nCANARY words\n", "a\nb.md": "# N\n\nCANARY words\n",
        },
    )  # fmt: skip
    run_git(folder, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    run_git(folder, "commit", "-q", "-m", "module")
    report = index_repository(folder, "p", tmp_path / "index")
    assert report.skipped == {
        "binary": 1, "denied": 2, "encoding": 1, "export_ignored": 1, "format": 4, "generated": 1, "ignored": 1, "lfs": 1, "long_line": 1, "path": 1,
        "secret": 1, "submodule": 1, "symlink": 1, "too_large": 1, "unparsable": 1,
    }  # fmt: skip
    assert report.files_total == report.files_indexed + sum(report.skipped.values())
    assert report.as_json()["skipped"]["symlink"] == 1
    assert b"canary" not in Path(report.path).read_bytes().lower()


def test_secrets_take_their_span_and_hidden_text_is_cut_around(tmp_path, commit):
    token = "ghp_" + "aB3d" * 9
    text = (
        f"# Use\n\nplain words\n\n## Setup\n\nset {token} as the token\n\n## More\n\nbefore <!-- CANARY comment --> after words\n\n"
        f"## Key {token}\n\nunder a CANARY heading\n\n### Deeper\n\nCANARY too\n"
    )
    commit(tmp_path / "r", {"a.md": text, "b.py": f"def f(key='{token}'):\n    '''CANARY words'''\n"})
    report = index_repository(tmp_path / "r", "p", tmp_path / "index")
    data = Path(report.path).read_bytes()
    assert token.encode() not in data
    assert b"CANARY" not in data
    assert report.spans_dropped == {"secret": 4}
    assert sorted(row[7] for row in spans_of(report.path)) == ["# Use\n\nplain words", "## More\n\nbefore", "after words"]


def test_limits_of_spans_are_counted(tmp_path, commit, monkeypatch):
    monkeypatch.setattr(rooms, "FILE_SPANS_MAX", 3)
    commit(tmp_path / "r", {"a.md": "".join(f"# H{n}\n\nwords {n}\n\n" for n in range(10)), "b.md": "# B\n\nmore words\n"})
    report = index_repository(tmp_path / "r", "p", tmp_path / "index")
    assert (report.spans, report.spans_dropped) == (4, {"limit": 7})
    monkeypatch.setattr(rooms, "SPANS_MAX", 2)
    assert index_repository(tmp_path / "r", "p", tmp_path / "index").spans == 2


def test_removed_files_stop_answering_and_the_same_head_gives_the_same_bytes(kettle, tmp_path, run_git):
    """O-Q7."""
    first = index_repository(kettle, None, tmp_path / "index")
    before = Path(first.path).read_bytes()
    assert Path(index_repository(kettle, None, tmp_path / "index").path).read_bytes() == before
    run_git(kettle, "rm", "-q", "docs/guide.md")
    run_git(kettle, "commit", "-q", "-m", "gone")
    report = index_repository(kettle, None, tmp_path / "index")
    assert b"vinegar" not in Path(report.path).read_bytes()
    index = Index(Path(report.path))
    assert index.search(question_untrusted("descale with vinegar", 5)) == []
    index.close()


def test_progress_is_told(kettle, tmp_path):
    told = []
    index_repository(kettle, None, tmp_path / "index", lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_repository_without_commits_is_a_clear_line(tmp_path, run_git):
    run_git(tmp_path, "init", "-q")
    with pytest.raises(Usage, match="no commits yet"):
        index_repository(tmp_path, None, tmp_path / "index")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("name", ["../up", "Upper", ".hidden", "a/b", "x" * 65])
def test_bad_project_names_are_refused(kettle, tmp_path, name):
    with pytest.raises(Usage):
        index_repository(kettle, name, tmp_path / "index")
