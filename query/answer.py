"""From a question to cited quotes: for the owner at once, for an outsider through the register.

An outsider's way is one line of acts: read the token, read the question, decide and charge, search, cite. What is wrong
with the token or the project is never told; what is wrong with the question only to the holder of a proven token.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from mesh.base.clock import Now
from mesh.base.db import ReadTooLong
from mesh.base.errors import MeshError, Refused, Usage
from mesh.base.names import project_name
from query.grants import SCOPE_QUERY, open_untrusted
from query.head import read_head
from query.index import Index, IndexMeta, NoIndex, Quote, index_path
from query.permits import Attempt, Denied
from query.question import BadQuestion, Question, parse_untrusted, question_untrusted
from query.register import Register

ANSWER_BYTES_MAX = 32 << 10
"""Text quoted in one answer; quotes that would go beyond it are left out."""
SEARCHES_MAX = 4
"""Searches at one time; further ones wait."""
SEARCH_WAIT_S = 3.0
"""How long one waits for its turn; then its holder is told to come again."""
IDLE_INDEXES_MAX = 8
"""Open index files kept for the next question; the one used longest ago is closed."""


def ask_local(
    index_dir: Path, project: str, question: str, limit: int, *, on_stale: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Answer the owner's own question; no grant, no budget. Blocking, for commands.

    Args:
        index_dir: Where indexes lie.
        project: Its name.
        question: At most 8 KiB.
        limit: 1 to 20 answers.
        on_stale: Told the command that makes the index anew, where ``stale`` is true. The path of the repository in it
            is for the owner alone and no part of the answer.

    Returns:
        The answer as ``query ask --json`` prints it. ``stale`` says whether HEAD has moved since, or the repository is
        gone; None where that cannot be told.

    Raises:
        Usage: The question or the project's name is not one, or nothing is indexed under that name; the hint says how.
        Damaged, OurFault, ReadTooLong: The index cannot be read.
    """
    began = time.monotonic()
    try:
        asked = question_untrusted(question, limit)
    except BadQuestion as error:
        raise Usage(error.message, hint=error.hint) from None
    name = project_name(project)
    try:
        index = Index(index_path(index_dir, name))
    except NoIndex as error:
        raise Usage(f"nothing is indexed under the name {name} here", hint=error.hint) from None
    try:
        quotes = index.search(asked)
        stale = _is_stale(index.meta)
        if stale and on_stale is not None:
            on_stale(_command_anew(index.meta))
        return envelope(index.meta, quotes, began, stale=stale, budget=None)
    finally:
        index.close()


def _command_anew(meta: IndexMeta) -> str:
    """Write the command that makes an index anew; a repository that is gone is left for the owner to fill in."""
    path = shlex.quote(meta.repository) if Path(meta.repository).is_dir() else "PATH"
    return f"hivemesh query index {path} --project {meta.project}"


def _is_stale(meta: IndexMeta) -> bool | None:
    try:
        head = read_head(Path(meta.repository))
    except OSError:
        return True
    return None if head is None else head != meta.commit


def envelope(
    meta: IndexMeta, quotes: Sequence[Quote], began_s: float, *, stale: bool | None, budget: dict[str, Any] | None
) -> dict[str, Any]:
    """Put quotes into the one shape every surface answers with.

    Args:
        meta: The index they come from.
        quotes: Best first.
        began_s: When the question came, on the monotonic clock.
        stale: Whether the index is behind, or None.
        budget: The holder's budget, or None.

    Returns:
        The answer, its text at most ANSWER_BYTES_MAX together.
    """
    answers: list[dict[str, Any]] = []
    room = ANSWER_BYTES_MAX
    for quote in quotes:
        room -= quote.bytes[1] - quote.bytes[0]
        if room < 0:
            break
        answers.append(_cited(meta, quote))
    return {
        "status": "ok" if answers else "no_answer",
        "answers": answers,
        "took_ms": round((time.monotonic() - began_s) * 1000, 1),
        "index_commit": meta.commit,
        "stale": stale,
        "next_cursor": None,
        "budget": budget,
    }


def _cited(meta: IndexMeta, quote: Quote) -> dict[str, Any]:
    return {
        "text": quote.text,
        "heading": quote.heading,
        "kind": quote.kind,
        "score": quote.score,
        "citation": {
            "project": meta.project,
            "commit": meta.commit,
            "path": quote.path,
            "blob": quote.blob,
            "lines": list(quote.lines),
            "bytes": list(quote.bytes),
            "sha256": quote.sha256,
        },
    }


@dataclass(frozen=True, slots=True)
class Answered:
    """The question was answered, perhaps by ``no_answer``."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotThere:
    """Nothing may be told.

    Attributes:
        fault: What failed on our side, for the log, or None where it was the outsider.
    """

    fault: MeshError | None = None


@dataclass(frozen=True, slots=True)
class TryLater:
    """A proven token must wait so many seconds."""

    retry_after_s: int


@dataclass(frozen=True, slots=True)
class AskedBadly:
    """A proven token came with a question that is none; one line says why."""

    message: str


_State = tuple[str, int, int, int, int]
"""A project and the file that answered for it: device, number, time, size."""

Outcome = Answered | NotThere | TryLater | AskedBadly


class Desk:
    """Answers outsiders.

    Args:
        register: The grants.
        index_dir: Where indexes lie; a project is answered from the file that is there now.
        clock: Reads the time.
    """

    def __init__(self, register: Register, index_dir: Path, clock: Callable[[], Now]) -> None:
        self._register = register
        self._index_dir = index_dir
        self._clock = clock
        self._turns = trio.CapacityLimiter(SEARCHES_MAX)
        self._idle: list[tuple[_State, Index]] = []

    def close(self) -> None:
        """Close the index files."""
        for _, index in self._idle:
            index.close()
        self._idle.clear()

    async def ask_untrusted(self, authorization: str | None, project: str, body: bytes, remote: str) -> Outcome:
        """Answer one request.

        Args:
            authorization: The header, or None.
            project: As the address names it.
            body: At most the door's limit.
            remote: The address it comes from.

        Returns:
            What to tell. Every way to fail without a proven token looks the same.

        If cancelled: the question may have been charged; a running search ends within its own time limit.
        """
        began_s = time.monotonic()
        question: Question | BadQuestion
        try:
            question = parse_untrusted(body)
        except BadQuestion as error:
            question = error
        text = question.text if isinstance(question, Question) else ""
        attempt = Attempt(open_untrusted(authorization), project, SCOPE_QUERY, text, remote)
        try:
            permit = await self._register.authorise_and_charge_untrusted(attempt, self._clock())
            if isinstance(permit, Denied):
                return NotThere() if permit.retry_after_s is None else TryLater(permit.retry_after_s)
            if isinstance(question, BadQuestion):
                return AskedBadly(question.message)
            found = await self._search(project, question)
        except ReadTooLong as error:
            return AskedBadly(error.message)
        except MeshError as error:
            return NotThere(error)
        if found is None:
            return TryLater(1)
        meta, quotes = found
        return Answered(envelope(meta, quotes, began_s, stale=None, budget=permit.as_json()))

    async def _search(self, project: str, question: Question) -> tuple[IndexMeta, list[Quote]] | None:
        """Search off the event loop; None where no turn came in time."""
        with trio.move_on_after(SEARCH_WAIT_S) as waiting:
            await self._turns.acquire()
        if waiting.cancelled_caught:
            return None
        try:
            state, index = self._take(project)
            try:
                quotes = await trio.to_thread.run_sync(index.search, question)
            except BaseException:
                index.close()
                raise
            self._give(state, index)
            return index.meta, quotes
        finally:
            self._turns.release()

    def _take(self, project: str) -> tuple[_State, Index]:
        """Take an open index that is still the file at its path, or open it."""
        path = index_path(self._index_dir, project)
        try:
            now = path.stat()
        except OSError:
            raise NoIndex("this project has no index here", reason="no_index") from None
        state = (project, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_size)
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at][0] == state:
                return self._idle.pop(at)
        index = Index(path)
        if index.meta.project != project:
            index.close()
            raise Refused(f"{path.name} holds the project {index.meta.project}", reason="renamed")
        return state, index

    def _give(self, state: _State, index: Index) -> None:
        self._idle.append((state, index))
        if len(self._idle) > IDLE_INDEXES_MAX:
            self._idle.pop(0)[1].close()
