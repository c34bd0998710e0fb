"""Canonical CBOR to and from frozen dataclasses, with a bound on every field.

A struct travels as an array of its fields in order. A longer array is accepted (fields a newer version added),
a shorter one where the missing fields have defaults. Every integer, text, byte string and list states its range
in its annotation; a struct that does not is refused when it is first used, so no field is ever unbounded.

Bytes from outside pass :func:`_scan` before cbor2 sees them: only unsigned and negative integers of 64 bits, byte
and text strings, arrays, true, false and null, definite lengths, at most eight levels, nothing behind the end. Tags,
maps, floats and indefinite lengths never reach the library, whose defaults build objects from tags (decisions/0002).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar, Union

import cbor2

from mesh.base.errors import PeerFault

DEPTH_MAX = 8
ITEMS_MAX = 20_000


class Malformed(PeerFault):
    """Bytes from outside are not a message of this protocol."""

    kind = "malformed"


class Struct(Protocol):
    """Any frozen dataclass whose annotations state bounds."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


StructT = TypeVar("StructT", bound=Struct)


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of an integer, both inclusive."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Size:
    """Bounds of a byte string, or of a text in UTF-8 bytes, both inclusive."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Count:
    """The most items of a list."""

    high: int


class _Check(Protocol):
    def __call__(self, value: Any, where: str) -> Any: ...


def _bad(where: str, why: str) -> Malformed:
    return Malformed(f"{where}: {why}")


def _int_check(bound: Range) -> _Check:
    def check(value: Any, where: str) -> int:
        if type(value) is not int:
            raise _bad(where, "not an integer")
        if not bound.low <= value <= bound.high:
            raise _bad(where, "out of range")
        return value

    return check


def _bytes_check(bound: Size) -> _Check:
    def check(value: Any, where: str) -> bytes:
        if type(value) is not bytes:
            raise _bad(where, "not a byte string")
        if not bound.low <= len(value) <= bound.high:
            raise _bad(where, "wrong length")
        return value

    return check


def _text_check(bound: Size) -> _Check:
    def check(value: Any, where: str) -> str:
        if type(value) is not str:
            raise _bad(where, "not a text")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise _bad(where, "not valid Unicode") from None
        if not bound.low <= size <= bound.high:
            raise _bad(where, "wrong length")
        return value

    return check


def _bool_check(value: Any, where: str) -> bool:
    if type(value) is not bool:
        raise _bad(where, "not a truth value")
    return value


def _optional_check(inner: _Check) -> _Check:
    return lambda value, where: None if value is None else inner(value, where)


def _list_check(inner: _Check, bound: Count) -> _Check:
    def check(value: Any, where: str) -> tuple[Any, ...]:
        if type(value) not in (list, tuple):
            raise _bad(where, "not a list")
        if len(value) > bound.high:
            raise _bad(where, "too many items")
        return tuple(inner(item, where) for item in value)

    return check


def _struct_check(cls: type[Any]) -> _Check:
    return lambda value, where: value if type(value) is cls else _from_list(cls, value, where)


def _check_of(annotation: Any, owner: str) -> _Check:
    """Build the checker of one annotation; an unbounded one is a programming mistake."""
    if typing.get_origin(annotation) is Annotated:
        inner, bound = typing.get_args(annotation)[:2]
        if typing.get_origin(inner) is tuple:
            assert isinstance(bound, Count), f"{owner}: a list needs a Count"
            return _list_check(_check_of(typing.get_args(inner)[0], owner), bound)
        while hasattr(inner, "__supertype__"):
            inner = inner.__supertype__
        if inner is int:
            assert isinstance(bound, Range), f"{owner}: an integer needs a Range"
            return _int_check(bound)
        assert isinstance(bound, Size), f"{owner}: needs a Size"
        return _bytes_check(bound) if inner is bytes else _text_check(bound)
    if typing.get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in typing.get_args(annotation) if a is not type(None)]
        assert len(inner) == 1, f"{owner}: only X | None is carried"
        return _optional_check(_check_of(inner[0], owner))
    if annotation is bool:
        return _bool_check
    assert dataclasses.is_dataclass(annotation), f"{owner}: {annotation} has no bound"
    return _struct_check(annotation)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Plan:
    names: tuple[str, ...]
    checks: tuple[_Check, ...]
    required: int


@functools.cache
def _plan(cls: Any) -> _Plan:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)
    checks = tuple(_check_of(hints[f.name], f"{cls.__name__}.{f.name}") for f in fields)
    required = sum(f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for f in fields)
    return _Plan(tuple(f.name for f in fields), checks, required)


def _to_list(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        cls: Any = type(value)
        plan = _plan(cls)
        return [_to_list(check(getattr(value, n), n)) for n, check in zip(plan.names, plan.checks, strict=True)]
    if isinstance(value, tuple):
        return [_to_list(item) for item in value]
    return value


def _from_list(cls: type[StructT], value: Any, where: str) -> StructT:
    any_class: Any = cls
    plan = _plan(any_class)
    if type(value) is not list:
        raise _bad(where, "not a structure")
    if len(value) < plan.required:
        raise _bad(where, "a field is missing")
    checked = [
        check(item, f"{where}.{name}") for name, check, item in zip(plan.names, plan.checks, value, strict=False)
    ]
    return cls(*checked)


def encode(value: Struct) -> bytes:
    """Encode a struct.

    Args:
        value: A frozen dataclass within its own bounds.

    Returns:
        CBOR, the same bytes for the same value.

    Raises:
        Malformed: A field is out of its own bounds; the caller built a value it must not send.
    """
    return cbor2.dumps(_to_list(value))


def decode_untrusted(cls: type[StructT], data: bytes, *, bytes_max: int) -> StructT:
    """Decode bytes from outside into a struct.

    Args:
        cls: What it must be.
        data: Anything.
        bytes_max: More than this is refused before any work.

    Returns:
        The struct, every field checked.

    Raises:
        Malformed: Anything is not as the struct says.
    """
    return _from_list(cls, load_untrusted(data, bytes_max=bytes_max), cls.__name__)


def load_untrusted(data: bytes, *, bytes_max: int) -> Any:
    """Decode bytes from outside into plain lists, integers, texts and byte strings.

    Args:
        data: Anything.
        bytes_max: More than this is refused before any work.

    Returns:
        The value; the caller checks its types.

    Raises:
        Malformed: Not in the subset this protocol uses.
    """
    if len(data) > bytes_max:
        raise Malformed(f"{len(data)} bytes where at most {bytes_max} are allowed")
    _scan(data)
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError, UnicodeError):
        raise Malformed("not valid CBOR") from None


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Read one item's head: its major type, its argument, and where its content starts."""
    first = data[at]
    info = first & 31
    if info < 24:
        return first >> 5, info, at + 1
    if info > 27:
        raise Malformed("indefinite or reserved length")
    width = 1 << (info - 24)
    end = at + 1 + width
    if end > len(data):
        raise Malformed("truncated")
    return first >> 5, int.from_bytes(data[at + 1 : end], "big"), end


def _scan(data: bytes) -> None:
    """Walk the bytes once and refuse everything outside the subset."""
    at = items = 0
    open_counts = [1]
    while open_counts:
        if open_counts[-1] == 0:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        items += 1
        if at >= len(data) or items > ITEMS_MAX:
            raise Malformed("truncated or too many items")
        start = at
        major, argument, at = _head(data, at)
        if major in (2, 3):
            at += argument
            if at > len(data):
                raise Malformed("truncated")
        elif major == 4:
            if argument > len(data) - at or len(open_counts) > DEPTH_MAX:
                raise Malformed("too long or too deep a list")
            open_counts.append(argument)
        else:
            _check_scalar(major, argument, at - start)
    if at != len(data):
        raise Malformed("bytes behind the end")


def _check_scalar(major: int, argument: int, head_bytes: int) -> None:
    """Let integers and false, true, null pass; a float's or another constant's argument stands behind its first byte."""
    if major > 1 and major != 7:
        raise Malformed("a tag or a map")
    if major == 7 and (argument not in (20, 21, 22) or head_bytes != 1):
        raise Malformed("a number or constant outside the subset")


class Registry:
    """A closed table of numbered messages; a message travels as ``[tag, fields...]``.

    Args:
        tags: Number to struct; a number is never used again for another meaning.
    """

    def __init__(self, tags: dict[int, type[Any]]) -> None:
        self.tags = tags
        self._numbers = {cls: tag for tag, cls in tags.items()}
        assert len(self._numbers) == len(tags), "one tag a struct"

    def encode(self, message: Struct) -> bytes:
        """Encode a message with its tag."""
        return cbor2.dumps([self._numbers[type(message)], *_to_list(message)])

    def decode_untrusted(self, data: bytes, *, bytes_max: int) -> Any | None:
        """Decode a message from outside.

        Args:
            data: Anything.
            bytes_max: More than this is refused before any work.

        Returns:
            The message, or None for a well-formed one with a number this version does not know.

        Raises:
            Malformed: Not a message.
        """
        value = load_untrusted(data, bytes_max=bytes_max)
        if type(value) is not list or not value or type(value[0]) is not int:
            raise Malformed("not a message")
        cls = self.tags.get(value[0])
        return None if cls is None else _from_list(cls, value[1:], cls.__name__)
