"""Observation, lesson and acceptance: the values of the hive, their keys, and the door they come in by.

A *unit* is what one machine itself saw: how often its user approved and denied acts of one pattern. Its counters are
that machine's own and only grow; evidence of others never enters them. Everybody's units together make the view.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from hive.patterns import is_plain, kind_of, pattern_problem
from mesh.base.clock import FUTURE_MS_MAX
from mesh.base.codec import Malformed, Range, Size, decode_untrusted, encode
from mesh.base.crypto import digest
from mesh.base.errors import Usage
from mesh.base.names import project_name

LESSON_KIND: Final = 48
ACCEPTANCE_KIND: Final = 49
UNIT_BYTES_MAX = 2048
"""The largest encoded unit, before it is sealed."""
COUNT_MAX = (1 << 31) - 1
TIME_MS_MAX = (1 << 47) - 1
TEXT_BYTES_MAX = 1024
KEY_BYTES = 16
SHORT_CHARS = 8
"""Characters of a lesson's base32 key that lists show."""

PERMISSION: Final = "permission"
"""The category of what users approved and denied."""
GLOBAL: Final = "global"

Verdict = Literal["approve", "deny"]
APPROVE: Final = "approve"
DENY: Final = "deny"

_CATEGORY = re.compile(r"[a-z][a-z-]{0,31}\Z")


@dataclass(frozen=True, slots=True)
class Observation:
    """One decision a user made about one pending tool call.

    Attributes:
        source_id: 16 bytes, the same whenever and wherever this very decision is read again.
        agent: Which agent asked.
        session: That agent's name of its session.
        project: The project's name, or empty.
        tool: The agent's name of the tool.
        subject: The command line, file path or address, as it was asked for or redacted; one that was cut ends with
            an ellipsis, and nothing is learned from it.
        verdict: What the user said.
        at_ms: When, in milliseconds since 1970.
        folder: The absolute folder the session works in; empty where it is not known.
    """

    source_id: bytes
    agent: str
    session: str
    project: str
    tool: str
    subject: str
    verdict: Verdict
    at_ms: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """What a lesson is about; two lessons on one topic are one lesson with several witnesses.

    Attributes:
        scope: ``global`` or ``project:NAME``.
        category: What sort of knowledge it is.
        tool: The tool's one name.
        pattern: As ``hive.patterns`` writes it.
    """

    scope: str
    category: str
    tool: str
    pattern: str

    @property
    def key(self) -> bytes:
        """16 bytes: BLAKE2b-128 of the four parts in NFC, each with its length in front."""
        parts = (unicodedata.normalize("NFC", part).encode() for part in (self.scope, self.category, self.tool, self.pattern))
        return digest(*parts, size=KEY_BYTES, person=b"hivemesh-unit")

    @property
    def kind(self) -> str:
        """``command``, ``path``, ``url`` or ``other``."""
        return kind_of(self.tool)


@dataclass(frozen=True, slots=True)
class Unit:
    """The body of a lesson record.

    Attributes:
        stance: What this machine's user mostly says.
        positive: How many approvals this machine saw; only grows.
        negative: How many denials; only grows.
        last_observed_ms: When the newest of them was.
        text: A remark for people; never put before an agent.
    """

    scope: Annotated[str, Size(1, 72)]
    category: Annotated[str, Size(1, 32)]
    tool: Annotated[str, Size(1, 64)]
    pattern: Annotated[str, Size(1, 512)]
    stance: Annotated[str, Size(4, 7)]
    positive: Annotated[int, Range(0, COUNT_MAX)]
    negative: Annotated[int, Range(0, COUNT_MAX)]
    last_observed_ms: Annotated[int, Range(0, TIME_MS_MAX)]
    text: Annotated[str, Size(0, TEXT_BYTES_MAX)] = ""

    @property
    def topic(self) -> Topic:
        """What it is about."""
        return Topic(self.scope, self.category, self.tool, self.pattern)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The body of an acceptance record: this very record of a lesson was accepted by hand.

    Any change of the lesson is another record, so it falls back to a suggestion.

    Attributes:
        record_id: 32 bytes, of the accepted lesson record.
        author: The machine that wrote it.
        accepted_ms: When.
    """

    record_id: Annotated[bytes, Size(32, 32)]
    author: Annotated[bytes, Size(16, 16)]
    accepted_ms: Annotated[int, Range(0, TIME_MS_MAX)]


def topic_problem(topic: Topic) -> str | None:
    """Say what is wrong with a topic; None where it is sound."""
    if topic.scope != GLOBAL:
        word, _, name = topic.scope.partition(":")
        try:
            project_name(name)
        except Usage:
            return "its scope is neither global nor a project"
        if word != "project":
            return "its scope is neither global nor a project"
    if not _CATEGORY.match(topic.category):
        return "its category is not a word"
    problem = pattern_problem(topic.tool, topic.pattern)
    if problem is None and unicodedata.normalize("NFC", topic.pattern) != topic.pattern:
        return "its pattern is not in normal form"
    return problem


def encode_unit(unit: Unit) -> bytes:
    """Encode a sound unit; at most UNIT_BYTES_MAX bytes."""
    return encode(unit)


def decode_unit_untrusted(body: bytes, version_ms: int) -> Unit:
    """Read a unit somebody published.

    Args:
        body: Anything, already unsealed.
        version_ms: The clock in the record's version, in milliseconds; the last observation may be ten minutes ahead.

    Returns:
        A unit all of whose fields are in range.

    Raises:
        Malformed: Anything is not as this room says.
    """
    unit = decode_untrusted(Unit, body, bytes_max=UNIT_BYTES_MAX)
    if unit.stance not in (APPROVE, DENY):
        raise Malformed("Unit.stance: neither approve nor deny")
    if unit.last_observed_ms > version_ms + FUTURE_MS_MAX:
        raise Malformed("Unit.last_observed_ms: after the record was written")
    if not is_plain(unit.text):
        raise Malformed("Unit.text: control or hidden characters")
    problem = topic_problem(unit.topic)
    if problem:
        raise Malformed(f"Unit: {problem}")
    return unit


def decode_acceptance_untrusted(body: bytes) -> Acceptance:
    """Read an acceptance.

    Args:
        body: Anything, already unsealed.

    Returns:
        The acceptance.

    Raises:
        Malformed: It is not one.
    """
    return decode_untrusted(Acceptance, body, bytes_max=128)
