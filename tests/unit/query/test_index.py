import threading
from pathlib import Path

import pytest

from mesh.base.db import ReadTooLong, WholeFile, write_whole
from mesh.base.errors import Damaged, OurFault
from query import index as rooms
from query.index import Index, IndexedFile, IndexMeta, NoIndex, index_path, write_index
from query.question import question_untrusted
from query.spans import Span

META = IndexMeta("p", "c" * 40, "/nowhere", 0)


def file_of(path: str, *texts: tuple[str, str]) -> IndexedFile:
    data = b""
    spans = []
    for heading, text in texts:
        start = len(data)
        data += text.encode()
        spans.append(Span("section", heading, ("Top",), start, len(data)))
        data += b"\n"
    return IndexedFile(path, "b" * 40, data, spans)


def make(path: Path, *files: IndexedFile) -> Index:
    write_index(path, META, files)
    return Index(path)


def ask(index: Index, text: str, limit: int = 5) -> list[str]:
    return [quote.text for quote in index.search(question_untrusted(text, limit))]


def test_a_quote_carries_its_citation(tmp_path):
    index = make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water"), ("Two", "clean the pot\nwith vinegar")))
    (quote,) = index.search(question_untrusted("vinegar", 5))
    assert (quote.text, quote.heading, quote.path, quote.lines, quote.bytes) == ("clean the pot\nwith vinegar", "Top > Two", "a.md", (2, 3), (15, 41))
    assert index.meta == IndexMeta("p", "c" * 40, "/nowhere", 2)


def test_even_an_index_of_one_span_answers(tmp_path):
    assert ask(make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water"))), "how to boil water?") == ["boil the water"]


def test_nothing_relevant_is_no_answer(tmp_path):
    index = make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water"), ("Two", "clean the pot")))
    assert ask(index, "kubernetes ingress certificates") == []
    assert ask(index, "% _ !") == []


RAW = [
    '"unbalanced', "a AND", "NEAR(", "*", "-x", "(", "AND", "a OR OR b", "health.base", "@x", "nu\0l", "body:x", "^x", "a" * 8000,
    "(" * 5000, " OR ".join(["a*"] * 1100), "'; DROP TABLE span;--", "x'; VACUUM INTO '/tmp/out.db';--", "%", "_", "\U0001f600",
]  # fmt: skip


@pytest.mark.parametrize("text", RAW, ids=range(len(RAW)))
def test_no_text_is_an_error(tmp_path, text):
    """O-Q1."""
    index = make(tmp_path / "p.db", file_of("one.md", ("One", "boil the water")))
    assert ask(index, text) == []


@pytest.mark.parametrize("text", ["multi-agent", "don't use C++", "grammar::fa", "2026-12-15", "C++"])
def test_words_with_marks_in_them_are_found(tmp_path, text):
    """O-Q1."""
    words = "Don't use C++ for grammar::fa parsing on 2026-12-15 with multi-agent notes."
    assert ask(make(tmp_path / "p.db", file_of("a.md", ("Notes", words))), text) == [words]


@pytest.mark.parametrize("text", ["caf\u00e9", "cafe", "cafe\u0301", "nai\u0308ve", "na\u00efve"])
def test_composed_and_decomposed_text_is_found_by_both(tmp_path, text):
    """O-Q2."""
    texts = ["the caf\u00e9 is na\u00efve", "one cafe\u0301 so nai\u0308ve"]
    index = make(tmp_path / "p.db", file_of("a.md", ("A", texts[0])), file_of("cafe\u0301.md", ("B", texts[1])))
    assert sorted(ask(index, text)) == sorted(texts)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM span", "INSERT INTO meta VALUES('a', 'b')", "ATTACH '/tmp/x.db' AS x", "PRAGMA user_version = 3", "VACUUM INTO '{}'",
        "WITH gone AS (SELECT 1) DELETE FROM span", "SELECT 1; DELETE FROM span", "CREATE TABLE t(a)", "DROP TABLE span", "PRAGMA table_list",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
    ],
)  # fmt: skip
def test_the_connection_can_only_read(tmp_path, statement):
    """O-Q3: immutable, and an authorizer that knows SELECT only."""
    index = make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water")))
    before = (tmp_path / "p.db").read_bytes()
    with pytest.raises(Exception, match=r"(?i)authoriz|read-?only|cannot|locked|prohibited") as caught:
        index._file.read(lambda connection: list(connection.execute(statement.format(tmp_path / "out.db"))), time_ms_max=1000)
    assert type(caught.value).__module__.startswith(("apsw", "mesh.base"))
    assert (tmp_path / "p.db").read_bytes() == before
    assert not (tmp_path / "out.db").exists()


def test_a_costly_read_is_stopped(tmp_path):
    """O-Q9."""
    write_whole(tmp_path / "x.db", "CREATE TABLE n(i)", lambda connection: connection.executemany("INSERT INTO n VALUES(?)", [(i,) for i in range(3000)]))
    reader = WholeFile(tmp_path / "x.db")
    with pytest.raises(ReadTooLong):
        reader.read(lambda connection: list(connection.execute("SELECT count(*) FROM n a, n b, n c")), time_ms_max=50)
    assert reader.read(lambda connection: connection.execute("SELECT count(*) FROM n").get, time_ms_max=1000) == 3000
    reader.close()


def test_a_swap_in_the_middle_leaves_a_reader_its_old_file(tmp_path):
    index = make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water")))
    write_index(tmp_path / "p.db", META, [file_of("a.md", ("One", "freeze the lake"))])
    assert ask(index, "boil water") == ["boil the water"]
    assert ask(Index(tmp_path / "p.db"), "boil water") == []


def test_what_was_removed_is_in_no_page(tmp_path):
    """O-Q7: a rebuilt index holds no trace of what went."""
    make(tmp_path / "p.db", file_of("a.md", ("One", "boil the CANARYWORD")), file_of("b.md", ("Two", "other words"))).close()
    assert b"CANARYWORD" in (tmp_path / "p.db").read_bytes()
    make(tmp_path / "p.db", file_of("b.md", ("Two", "other words"))).close()
    data = (tmp_path / "p.db").read_bytes()
    assert b"CANARYWORD" not in data
    assert b"canaryword" not in data


def test_the_same_input_makes_the_same_bytes(tmp_path):
    files = [file_of(f"{n}.md", ("H", f"some words number {n}")) for n in range(50)]
    make(tmp_path / "a.db", *files).close()
    make(tmp_path / "b.db", *files).close()
    assert (tmp_path / "a.db").read_bytes() == (tmp_path / "b.db").read_bytes()


def test_a_failed_build_leaves_the_old_one(tmp_path):
    make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water"))).close()

    def broken():
        yield file_of("b.md", ("Two", "other words"))
        raise OurFault("git ended")

    with pytest.raises(OurFault):
        write_index(tmp_path / "p.db", META, broken())
    assert ask(Index(tmp_path / "p.db"), "boil water") == ["boil the water"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.db"]


def test_missing_damaged_and_older_files_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(NoIndex) as caught:
        Index(tmp_path / "p.db")
    assert "query index" in caught.value.hint
    (tmp_path / "p.db").write_bytes(b"x" * 5000)
    with pytest.raises(Damaged):
        Index(tmp_path / "p.db")
    monkeypatch.setattr(rooms, "FORMAT", 99)
    write_index(tmp_path / "q.db", META, [])
    monkeypatch.undo()
    with pytest.raises(Damaged, match="another version"):
        Index(tmp_path / "q.db")


def test_an_index_may_move_between_threads(tmp_path):
    index = make(tmp_path / "p.db", file_of("a.md", ("One", "boil the water")))
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(ask(index, "boil")))
    thread.start()
    thread.join()
    assert found == [["boil the water"]]


def test_the_file_is_private_and_where_it_belongs(tmp_path):
    make(index_path(tmp_path, "p"), file_of("a.md", ("One", "boil the water"))).close()
    assert (tmp_path / "p.db").stat().st_mode & 0o777 == 0o600


def test_common_words_are_counted_beyond_the_candidates(tmp_path):
    """A word that most spans hold weighs little, however many candidates are looked at."""
    files = [file_of(f"{n}.md", ("H", f"water number{n}")) for n in range(rooms.CANDIDATES_MAX + 50)]
    index = make(tmp_path / "p.db", *files)
    assert ask(index, "water number7", 1) == ["water number7"]
    assert len(ask(index, "water", 20)) == 20
