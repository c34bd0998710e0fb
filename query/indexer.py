"""Make the index of a repository's HEAD: read, sort out, extract, screen, write.

Every entry of the tree is counted once, as indexed or under the reason it was left out, so nothing is skipped in silence.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mesh.base.errors import OurFault
from mesh.base.names import project_name
from query import ignore
from query.deny import format_of, is_denied, path_text_untrusted
from query.extract import markdown, python, rst
from query.gitsource import (
    FILE_BYTES_MAX,
    BlobReader,
    Entry,
    find_repository,
    head_commit,
    list_tree,
    open_blobs,
    project_of,
)
from query.index import IndexedFile, IndexMeta, index_path, write_index
from query.screen import has_secret, secret_ranges
from query.spans import FILE_SPANS_MAX, Range, Span, hidden_ranges, without

SPANS_MAX = 200_000
"""Spans of one index; what follows is left out and counted."""
LINE_BYTES_MAX = 4_096
"""A file with a longer line is data or generated, and left out."""
BINARY_PROBE_BYTES = 8_192

Progress = Callable[[int, int], None]
"""Called with how many entries are done and how many there are."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What was indexed and what was not.

    Attributes:
        project: Its name.
        commit: Hex id of HEAD.
        files_total: Entries of the tree; always ``files_indexed`` plus the sum of ``skipped``.
        files_indexed: Files read and extracted.
        spans: Spans in the index.
        skipped: Reason to number of entries left out.
        spans_dropped: Reason (``secret``, ``limit``) to number of spans left out of indexed files.
        took_ms: How long it took.
        path: The index file.
    """

    project: str
    commit: str
    files_total: int
    files_indexed: int
    spans: int
    skipped: dict[str, int]
    spans_dropped: dict[str, int]
    took_ms: int
    path: str

    def as_json(self) -> dict[str, Any]:
        """Give the report as ``query index --json`` prints it."""
        return {name: getattr(self, name) for name in self.__slots__}


def index_repository(path: Path, project: str | None, index_dir: Path, progress: Progress | None = None) -> IndexReport:
    """Index the committed files of a repository.

    Args:
        path: A folder of the repository; all of its HEAD is indexed.
        project: The name to answer to; None takes ``hivemesh.project`` of its git config, else the base name of its
            main work tree.
        index_dir: Where indexes lie; made with mode 0700 if it is not there.
        progress: Told of the way.

    Returns:
        The report. The new index is in place and durable.

    Raises:
        Usage: No repository, no commit, or a bad project name.
        OurFault, StorageFull: Git or the disk failed; an older index stays as it was.
    """
    began = time.monotonic()
    common = find_repository(path)
    commit = head_commit(path)
    name = project_name(project) if project else project_of(path)
    try:
        index_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise OurFault(f"{index_dir} cannot be made: {error.strerror}", hint="check the folder's rights and the disk") from error
    target = index_path(index_dir, name)
    tally = _Tally()
    entries = list_tree(path, commit)
    with open_blobs(path) as blobs:
        files = _files(entries, blobs, tally, progress or (lambda done, total: None))
        repository = str(common.parent if common.name == ".git" else common)
        spans = write_index(target, IndexMeta(name, commit, repository, 0), files)
    return IndexReport(
        name, commit, len(entries), tally.indexed, spans, dict(sorted(tally.skipped.items())),
        dict(sorted(tally.dropped.items())), round((time.monotonic() - began) * 1000), str(target),
    )  # fmt: skip


@dataclass(slots=True)
class _Tally:
    indexed: int = 0
    spans: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


def _files(entries: list[Entry], blobs: BlobReader, tally: _Tally, progress: Progress) -> Iterator[IndexedFile]:
    """Yield what may be indexed, counting the rest."""
    exclusions = _exclusions(entries, blobs)
    for done, entry in enumerate(entries, 1):
        file = _file(entry, exclusions, blobs, tally)
        if isinstance(file, str):
            tally.skipped[file] += 1
        else:
            tally.indexed += 1
            yield file
        progress(done, len(entries))


def _exclusions(entries: list[Entry], blobs: BlobReader) -> ignore.Exclusions:
    """Read the ignore and attribute files of the tree; one that cannot be read ignores everything beneath it."""
    files: dict[str, str] = {}
    for entry in entries:
        name = entry.path.rpartition(b"/")[2].decode(errors="replace")
        path = path_text_untrusted(entry.path)
        if path and name in (ignore.IGNORE_FILE, ignore.ATTRIBUTES_FILE) and entry.mode.startswith("100"):
            data = blobs.read(entry.sha)
            files[path] = "\n" * (ignore.PATTERNS_MAX + 1) if data is None else data.decode(errors="replace")
    return ignore.Exclusions(files)


def _file(entry: Entry, exclusions: ignore.Exclusions, blobs: BlobReader, tally: _Tally) -> IndexedFile | str:
    """Give one file with its spans, or the reason it is left out."""
    path = path_text_untrusted(entry.path)
    reason = _reason_by_entry(entry, path, exclusions)
    if reason or path is None:
        return reason or "path"
    data = blobs.read(entry.sha)
    if data is None:
        return "missing"
    text = _text(data)
    if isinstance(text, _Unfit):
        return text.reason
    spans = _extract(format_of(path), data, text)
    if spans is None:
        return "unparsable"
    return IndexedFile(path, entry.sha, data, _screened(data, text, spans, tally))


def _reason_by_entry(entry: Entry, path: str | None, exclusions: ignore.Exclusions) -> str | None:
    """Judge an entry before its content is read."""
    kinds = {"120000": "symlink", "160000": "submodule", "100644": None, "100755": None}
    checks: tuple[tuple[bool, str], ...] = (
        (kinds.get(entry.mode, "kind") is not None, kinds.get(entry.mode) or "kind"),
        (path is None, "path"),
        (path is not None and is_denied(path), "denied"),
        (path is not None and format_of(path) is None, "format"),
        (entry.size is None or entry.size > FILE_BYTES_MAX, "too_large"),
        (path is not None and has_secret(path), "secret"),
    )
    reason = next((word for holds, word in checks if holds), None)
    return reason or (exclusions.reason(path) if path else None)


@dataclass(frozen=True, slots=True)
class _Unfit:
    reason: str


def _text(data: bytes) -> str | _Unfit:
    """Decode a blob that is text, and name what is wrong with one that is not."""
    if data.startswith(b"version https://git-lfs"):
        return _Unfit("lfs")
    if b"\0" in data[:BINARY_PROBE_BYTES]:
        return _Unfit("binary")
    if max(map(len, data.split(b"\n"))) > LINE_BYTES_MAX:
        return _Unfit("long_line")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _Unfit("encoding")


def _extract(format_name: str | None, data: bytes, text: str) -> list[Span] | None:
    if format_name == "markdown":
        return markdown.extract_untrusted(data, text)
    if format_name == "rst":
        return rst.extract_untrusted(data, text)
    return python.extract_untrusted(data, text)


def _screened(data: bytes, text: str, spans: list[Span], tally: _Tally) -> list[Span]:
    """Drop spans with secrets, cut the rest around what is hidden, and keep to the limits."""
    secrets = _in_bytes(text, secret_ranges(text))
    clean = []
    for span in spans:
        if _touches(span, secrets) or has_secret("\n".join((*span.trail, span.heading))):
            tally.dropped["secret"] += 1
        else:
            clean.append(span)
    kept = list(without(data, clean, hidden_ranges(data)))
    room = min(FILE_SPANS_MAX, SPANS_MAX - tally.spans)
    if len(kept) > room:
        tally.dropped["limit"] += len(kept) - room
        kept = kept[:room]
    tally.spans += len(kept)
    return kept


def _in_bytes(text: str, ranges: list[Range]) -> list[Range]:
    """Turn ranges of characters into ranges of bytes."""
    if text.isascii():
        return ranges
    return [(len(text[:low].encode()), len(text[:high].encode())) for low, high in ranges]


def _touches(span: Span, ranges: list[Range]) -> bool:
    return any(low < span.end and span.start < high for low, high in ranges)
