"""What one line of a transcript says, as values every agent's reader makes.

A transcript is written by another program for itself: kinds come and go with versions, lines are torn by crashes, and
text in them is chosen by models and by whatever they read. So readers take a line apart into these few typed values,
ignore what they do not know, and count what they cannot read.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mesh.base.errors import PeerFault

LINE_BYTES_MAX = 8 << 20
"""A longer line is skipped and counted; its time is taken from its ends where it stands there."""
TEXT_CHARS_MAX = 2_000
"""Text of a prompt, a reply or a subject is cut to this when it is read."""
CALLS_MAX = 64
"""Tool calls or results taken from one line; further ones are ignored."""
TOKENS_MAX = 1 << 40
"""A stated token count above this is not believed: the whole usage of that line is unknown."""
NAME_CHARS_MAX = 200
"""Identifiers, models and tool names are cut to this."""


class BadLine(PeerFault):
    """A line of a transcript is not a record."""

    kind = "bad_line"


class Kind(Enum):
    """What a line means for the state of its session."""

    START = "start"
    """The agent names the session and where it runs."""
    CONTEXT = "context"
    """Settings of the turns that follow."""
    PROMPT = "prompt"
    """Something asked the agent to work: a person, a finished background task."""
    REPLY = "reply"
    """The model said something or called tools."""
    RESULTS = "results"
    """Tools answered, or were refused."""
    ENDED = "ended"
    """The turn is over."""
    INTERRUPTED = "interrupted"
    """A person stopped the turn."""
    RETRY = "retry"
    """The model's API failed and the agent tries again."""
    LIMIT = "limit"
    """A quota is used up, or how much of it is."""
    USAGE = "usage"
    """Tokens only."""
    RAN = "ran"
    """A command was carried out; says when it began and ended."""
    TITLE = "title"
    """A name for the session."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one reply of a model.

    Attributes:
        message_id: Who the reply is; the same id in other lines and files is the same reply.
        model: What is priced; a speed other than the standard one stands behind a colon.
        input: Tokens neither read from nor written to a cache.
        write_5m: Tokens written to a cache for five minutes.
        write_1h: Tokens written to a cache for an hour.
    """

    message_id: str
    model: str
    input: int
    output: int
    cache_read: int
    write_5m: int
    write_1h: int


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a tool.

    Attributes:
        subject: The command, the file or the address it is about, as written.
        asks: Whether a person is asked before it runs, as far as the call itself shows.
        question: Whether the call itself is a question to the person.
    """

    call_id: str
    tool: str
    subject: str
    asks: bool = False
    question: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one use of a tool.

    Attributes:
        verdict: ``approve`` or ``deny`` where the line proves that a person said so at a prompt, else None.
    """

    call_id: str
    verdict: str | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota.

    Attributes:
        window: Which one, such as ``5h`` or ``7d``, or None.
        used_pct: Whole percent used, or None.
        resets_at_ms: When it starts again, or None.
    """

    window: str | None
    used_pct: int | None
    resets_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line, as far as anything here wants to know it. None is unknown.

    Attributes:
        at_ms: When it was written, by the agent's clock.
        session: The session the line names.
        parent: The session a helper's session works for.
        person: Whether a person sits at this session (not a script).
        helper: Whether the line belongs to an agent's own helper.
        final: Whether a reply says itself that it ends the turn.
        text: One line of what was said, unredacted.
        context_tokens: How full the model's context was with this reply.
        window_tokens: How much the model's context holds.
        total: Whether ``usage`` is the sum so far and replaces earlier sums.
        forked: Whether the session began as a copy of another.
        asked: The rule by which commands are put before a person (Codex: ``on-request``, ``never`` ...).
        reviewed: Whether it is a person who answers.
        ruled: Whether standing rules may have answered instead of a person.
        waited_ms: How long a command waited before it ran.
    """

    kind: Kind
    at_ms: int | None = None
    session: str | None = None
    parent: str | None = None
    cwd: str | None = None
    branch: str | None = None
    model: str | None = None
    person: bool | None = None
    helper: bool = False
    final: bool = False
    text: str = ""
    usage: Usage | None = None
    total: bool = False
    forked: bool = False
    context_tokens: int | None = None
    window_tokens: int | None = None
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    limit: Limit | None = None
    asked: str | None = None
    reviewed: bool | None = None
    ruled: bool | None = None
    waited_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessNote:
    """What an agent says about one of its own running processes.

    Attributes:
        start: The process's start time as ``/proc`` counts it, to tell it from a later one with the same number.
        domain: The world the process number is valid in, or None.
        word: ``busy``, ``idle``, ``waiting`` or another word of the agent's, or None in versions without one.
        word_ms: Since when.
        named: Whether a person chose ``name``.
    """

    pid: int
    session: str
    cwd: str | None
    start: str | None
    domain: str | None
    person: bool | None
    word: str | None
    waiting_for: str | None
    word_ms: int | None
    started_ms: int | None
    name: str | None
    named: bool


def load_object_untrusted(line: bytes) -> dict[str, Any]:
    """Parse one line of JSON from another program.

    Args:
        line: Anything; longer than LINE_BYTES_MAX is refused before any work.

    Returns:
        The object.

    Raises:
        BadLine: Not one JSON object in UTF-8.
    """
    if len(line) > LINE_BYTES_MAX:
        raise BadLine("the line is too long")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine("the line is not JSON") from None
    if type(value) is not dict:
        raise BadLine("the line is not a record")
    return value


_START = re.compile(rb'\{"(?:parentUuid|timestamp|type)"')
SALVAGE_TRIES_MAX = 8
"""Places on a torn line where a whole record is looked for."""


def salvage(line: bytes) -> Iterator[bytes]:
    """Find whole records behind a torn one on the same line.

    A write that was cut leaves its start, and the next record follows without a newline between.

    Args:
        line: A line that did not parse.

    Returns:
        The parts worth trying, longest first.
    """
    for start in itertools.islice(_START.finditer(line, 1), SALVAGE_TRIES_MAX):
        yield line[start.start() :]


def word(value: Any, chars_max: int = NAME_CHARS_MAX) -> str | None:
    """Take a text out of parsed JSON; None where it is not a text or empty."""
    return value[:chars_max] if type(value) is str and value else None


def count(value: Any) -> int | None:
    """Take a token count out of parsed JSON; None where it is not one."""
    return value if type(value) is int and 0 <= value < TOKENS_MAX else None


def instant_ms(value: Any, unit_ms: int) -> int | None:
    """Take a time counted since 1970 out of parsed JSON; None where it is not plausible."""
    if not isinstance(value, int | float) or not 0 <= value < (1 << 47):
        return None
    moment = int(value * unit_ms)
    return moment if moment < (1 << 47) else None


def mapping(value: Any) -> dict[str, Any]:
    """Take an object out of parsed JSON; empty where it is not one."""
    return value if type(value) is dict else {}


_SUBJECT_KEYS = ("command", "cmd", "file_path", "notebook_path", "path", "url", "query", "pattern", "description")


def subject_of(arguments: dict[str, Any]) -> str:
    """Say what a tool call is about: the command, the file, the address, else its arguments.

    Args:
        arguments: The call's input as the model wrote it.

    Returns:
        At most TEXT_CHARS_MAX characters.
    """
    for key in _SUBJECT_KEYS:
        value = arguments.get(key)
        if type(value) is str and value:
            return value[:TEXT_CHARS_MAX]
        if type(value) is list and value and all(type(part) is str for part in value):
            return " ".join(value)[:TEXT_CHARS_MAX]
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)[:TEXT_CHARS_MAX] if arguments else ""


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+")


def one_line(text: str, bytes_max: int) -> str:
    """Make text from a transcript fit one line of a screen and a bound.

    Control, bidirectional and zero-width characters and half surrogates go, white space becomes single blanks.

    Args:
        text: Anything.
        bytes_max: Bound in UTF-8 bytes; a cut text ends with an ellipsis.

    Returns:
        The text within the bound.
    """
    clean = " ".join(_UNSEEN.sub(" ", text[: 4 * bytes_max]).split())
    return fit(clean, bytes_max)


def fit(text: str, bytes_max: int) -> str:
    """Cut text to a bound in UTF-8 bytes at a character's edge; what cannot be encoded goes."""
    data = text.encode(errors="ignore")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode(errors="ignore") + "…"
