"""The index file of one project: its schema, how it is filled, and how it is asked through a read-only connection.

A file is made whole by the indexer and never changed; the server holds it immutable (``mesh.base.db.WholeFile``), so an
index swapped in the middle of a question answers that question from the old file. Blobs are named, never stored: only
the spans that may be quoted are in it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mesh.base.db import Connection, WholeFile, write_whole
from mesh.base.errors import Damaged, Refused
from query.question import Question, folded, symbol_words
from query.rank import FIELD_WEIGHTS, Place, claim, order, prior, rarity, scale
from query.spans import LineTable, Span

FORMAT = 1
"""Number of this schema; a file of another one must be built again."""
CANDIDATES_MAX = 200
"""Best spans of each term that are weighed."""
PAIRS_MAX = 8
"""Pairs of neighbouring words that are looked for."""
PAIR_DISTANCE = 6
"""Words between the two of a pair, at most."""
SEARCH_MS_MAX = 1_000
"""A search that takes longer is stopped."""
FILE_SUFFIX = ".db"

_SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE blob(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, sha TEXT NOT NULL);
CREATE TABLE span(
  id INTEGER PRIMARY KEY, blob INTEGER NOT NULL REFERENCES blob, kind TEXT NOT NULL, heading TEXT NOT NULL,
  trail TEXT NOT NULL, b0 INTEGER NOT NULL, b1 INTEGER NOT NULL, l0 INTEGER NOT NULL, l1 INTEGER NOT NULL,
  sha256 BLOB NOT NULL, prior REAL NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5(heading, trail, path, symbol, body,
  content='', detail=full, tokenize="porter unicode61 remove_diacritics 2");
"""
_TRAIL_MARK = "\n"
_WEIGHTS = ", ".join(str(weight) for weight in FIELD_WEIGHTS)


class NoIndex(Refused):
    """This project has no index here."""

    kind = "no_index"


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What an index says of itself.

    Attributes:
        project: The name it answers to.
        commit: Hex id of the commit it was made from.
        repository: Folder of the repository on this machine, for the owner's own questions.
        spans: How many spans it holds.
    """

    project: str
    commit: str
    repository: str
    spans: int


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One file with what may be quoted of it.

    Attributes:
        path: From the root of the repository.
        sha: Hex id of its blob.
        data: The blob.
        spans: Its spans, within the blob.
    """

    path: str
    sha: str
    data: bytes
    spans: Sequence[Span]


class Quote(NamedTuple):
    """One answer as it stands in the index: verbatim text with everything its citation needs."""

    score: float
    text: str
    heading: str
    kind: str
    path: str
    blob: str
    lines: tuple[int, int]
    bytes: tuple[int, int]
    sha256: str


def index_path(folder: Path, project: str) -> Path:
    """Name the index file of a project.

    Args:
        folder: Where the indexes of this home lie.
        project: A checked project name; it holds no slash and no leading dot.
    """
    return folder / f"{project}{FILE_SUFFIX}"


def write_index(path: Path, meta: IndexMeta, files: Iterable[IndexedFile]) -> int:
    """Write an index whole and put it in place of the old one.

    Args:
        path: The file.
        meta: What it says of itself; ``spans`` is counted here.
        files: In the order of their paths; consumed once, inside the transaction.

    Returns:
        How many spans it holds.

    Raises:
        StorageFull, OurFault: It could not be written; the old one stays.
    """
    return write_whole(path, _SCHEMA, lambda connection: _fill(connection, meta, files))


def _fill(connection: Connection, meta: IndexMeta, files: Iterable[IndexedFile]) -> int:
    spans = 0
    for number, file in enumerate(files, 1):
        connection.execute("INSERT INTO blob VALUES(?, ?, ?)", (number, file.path, file.sha))
        table = LineTable(file.data)
        for span in file.spans:
            spans += 1
            _insert_span(connection, spans, number, file, span, table)
    connection.execute("INSERT INTO words(words) VALUES('optimize')")
    values = {"format": str(FORMAT), "project": meta.project, "commit": meta.commit, "repository": meta.repository, "spans": str(spans)}
    connection.executemany("INSERT INTO meta VALUES(?, ?)", sorted(values.items()))
    return spans


def _insert_span(connection: Connection, number: int, blob: int, file: IndexedFile, span: Span, table: LineTable) -> None:
    raw = file.data[span.start : span.end]
    text = raw.decode()
    first, last = table.lines(span.start, span.end)
    connection.execute(
        "INSERT INTO span VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (number, blob, span.kind, span.heading, _TRAIL_MARK.join(span.trail), span.start, span.end, first, last,
         hashlib.sha256(raw).digest(), prior(file.path, span.kind, text), text),
    )  # fmt: skip
    symbol = "" if span.kind == "section" else symbol_words(span.heading)
    connection.execute(
        "INSERT INTO words(rowid, heading, trail, path, symbol, body) VALUES(?, ?, ?, ?, ?, ?)",
        (number, folded(span.heading), folded(" ".join(span.trail)), folded(file.path), folded(symbol), folded(text)),
    )


class Index:
    """An open index; one caller at a time.

    Args:
        path: The file.

    Raises:
        NoIndex: There is none.
        Damaged: It is no index of this version.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NoIndex("this project has no index here", reason="no_index", hint="make one: hivemesh query index PATH")
        self._file = WholeFile(path)
        try:
            self.meta = _read_meta(self._file.read(_select_meta, time_ms_max=SEARCH_MS_MAX), path)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def search(self, question: Question) -> list[Quote]:
        """Find the spans that answer a question.

        Args:
            question: Within its limits.

        Returns:
            At most ``question.limit`` quotes, best first; empty where nothing answers it.

        Raises:
            ReadTooLong: It took longer than SEARCH_MS_MAX.
            Damaged, OurFault: The file cannot be read.
        """
        return self._file.read(lambda connection: _search(connection, self.meta.spans, question), time_ms_max=SEARCH_MS_MAX)


def _select_meta(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM meta"))


def _read_meta(values: dict[str, str], path: Path) -> IndexMeta:
    hint = "make it again: hivemesh query index PATH"
    if values.get("format") != str(FORMAT):
        raise Damaged(f"{path.name} was made by another version", path=str(path), hint=hint)
    return IndexMeta(values["project"], values["commit"], values["repository"], int(values["spans"]))


def _search(connection: Connection, spans: int, question: Question) -> list[Quote]:
    scores: dict[int, dict[int, float]] = {}
    weights = []
    claims = []
    for number, term in enumerate(question.terms):
        holding, best = _best(connection, spans, term.expression)
        weights.append(rarity(spans, holding))
        claims.append(0.0 if term.is_framing else claim(spans, holding))
        for span, score in best:
            scores.setdefault(span, {})[number] = score
    bonus: dict[int, float] = {}
    for first, second in itertools.pairwise(question.terms[: PAIRS_MAX + 1]):
        for span, score in _best(connection, spans, f'NEAR("{first.word}" "{second.word}", {PAIR_DISTANCE})')[1]:
            bonus[span] = bonus.get(span, 0.0) + score
    chosen = order(scores, bonus, weights, claims, lambda span: _place(connection, span), question.limit)
    return [_quote(connection, span, score) for span, score in chosen]


def _best(connection: Connection, spans: int, expression: str) -> tuple[int, list[tuple[int, float]]]:
    """Find how many spans match an expression, and the best of them with their scores."""
    statement = f"SELECT rowid, -bm25(words, {_WEIGHTS}) AS score FROM words WHERE words MATCH ? ORDER BY score DESC LIMIT ?"
    found = list(connection.execute(statement, (expression, CANDIDATES_MAX)))
    holding = len(found) if len(found) < CANDIDATES_MAX else _count(connection, expression)
    factor = scale(spans, holding) if holding else 0.0
    return holding, [(span, score * factor) for span, score in found]


def _count(connection: Connection, expression: str) -> int:
    count = connection.execute("SELECT count(*) FROM words WHERE words MATCH ?", (expression,)).get
    assert isinstance(count, int)
    return count


def _place(connection: Connection, span: int) -> Place:
    blob, heading, weight = next(iter(connection.execute("SELECT blob, heading, prior FROM span WHERE id = ?", (span,))))
    return Place((blob, heading), weight)


def _quote(connection: Connection, span: int, score: float) -> Quote:
    statement = (
        "SELECT text, heading, trail, kind, path, sha, l0, l1, b0, b1, sha256 FROM span JOIN blob ON blob.id = span.blob WHERE span.id = ?"
    )
    text, heading, trail, kind, path, sha, l0, l1, b0, b1, digest = next(iter(connection.execute(statement, (span,))))
    names = [*trail.split(_TRAIL_MARK), heading] if kind == "section" else [heading]
    return Quote(score, text, " > ".join(name for name in names if name), kind, path, sha, (l0, l1), (b0, b1), digest.hex())
