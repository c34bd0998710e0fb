"""One call over the control socket as a verb sees it: its caller, its arguments, its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import trio

from mesh.base.errors import MeshError, Refused, Usage, outside
from node.wire import OUTPUT_BYTES_MAX, REQUEST_BYTES_MAX, VERSION

STALL_S = 6 * 3600.0
"""How long a caller may leave an answer unread (a pager, a stopped process) before it is let go."""
SIGNALS_MAX = 16
"""Signals that wait for a verb; more are dropped, since they only repeat."""
NAME_CHARS_MAX = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """The process at the other end, as the kernel names it; pid 0 where it does not."""

    uid: int
    pid: int


@dataclass(frozen=True, slots=True)
class Request:
    """One request, checked in shape: the verb's name and its arguments, whose values the verb checks."""

    verb: str
    args: Mapping[str, object]


def parse_request_untrusted(line: bytes) -> Request:
    """Read one request line.

    Args:
        line: At most REQUEST_BYTES_MAX bytes, without the line's end.

    Returns:
        The request.

    Raises:
        Refused: Another version of the command line, or not a request at all.
    """
    if len(line) > REQUEST_BYTES_MAX:
        raise Refused(f"the request is longer than {REQUEST_BYTES_MAX} bytes", reason="limit")
    try:
        found = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Refused("that is not a request of hivemesh", reason="garbage") from None
    if not isinstance(found, dict):
        raise Refused("that is not a request of hivemesh", reason="garbage")
    verb, args = found.get("verb"), found.get("args", {})
    if found.get("v") != VERSION or isinstance(found.get("v"), bool):
        raise Refused(
            "this command and the running node are of different versions",
            reason="version",
            hint="restart the node: hivemesh down, then hivemesh up -d",
        )
    if not isinstance(verb, str) or not 0 < len(verb) <= NAME_CHARS_MAX or not isinstance(args, dict):
        raise Refused("that is not a request of hivemesh", reason="garbage")
    return Request(verb, args)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


class Call:
    """One call of a verb: its arguments, its caller, and the way back.

    Where the caller goes away, the verb is cancelled; what must go on then belongs into another task of the node.
    """

    def __init__(self, request: Request, caller: Caller, stream: trio.SocketStream, signals: trio.MemoryReceiveChannel[str]) -> None:
        self.verb = request.verb
        self.args = request.args
        self.caller = caller
        self.signals = signals
        """What the caller says while the verb runs, such as ``cancel``; at most SIGNALS_MAX wait."""
        self._stream = stream
        self._sending = trio.Lock()

    def text(self, name: str, *, bytes_max: int = 1024) -> str:
        """Take an argument that must be text.

        Raises:
            Usage: Missing, no text, or longer than ``bytes_max`` bytes of UTF-8.
        """
        found = self.optional_text(name, bytes_max=bytes_max)
        if found is None:
            raise Usage(f"{name} is missing")
        return found

    def optional_text(self, name: str, *, bytes_max: int = 1024) -> str | None:
        """Take an argument that is text or absent.

        Raises:
            Usage: No text, or longer than ``bytes_max`` bytes of UTF-8.
        """
        found = self.args.get(name)
        if found is None:
            return None
        if not isinstance(found, str):
            raise Usage(f"{name} must be text")
        if len(found.encode(errors="surrogatepass")) > bytes_max:
            raise Usage(f"{name} is longer than {bytes_max} bytes")
        return found

    def texts(self, name: str, *, count_max: int, bytes_max: int = 1024) -> list[str]:
        """Take an argument that is a list of texts; absent is empty.

        Args:
            name: The argument.
            count_max: The most texts.
            bytes_max: The most bytes of UTF-8 of all of them together.

        Raises:
            Usage: Something else, or more than the bounds.
        """
        found = self.args.get(name, [])
        if not isinstance(found, list) or len(found) > count_max:
            raise Usage(f"{name} must be a list of at most {count_max}")
        texts = [one for one in found if isinstance(one, str)]
        if len(texts) != len(found):
            raise Usage(f"{name} must be a list of texts")
        if sum(len(one.encode(errors="surrogatepass")) for one in texts) > bytes_max:
            raise Usage(f"{name} is longer than {bytes_max} bytes")
        return texts

    def integer(self, name: str, *, low: int, high: int) -> int:
        """Take an argument that must be a whole number from ``low`` to ``high``.

        Raises:
            Usage: Missing, no number, or out of bounds.
        """
        found = self.optional_integer(name, low=low, high=high)
        if found is None:
            raise Usage(f"{name} is missing")
        return found

    def optional_integer(self, name: str, *, low: int, high: int) -> int | None:
        """Take an argument that is a whole number from ``low`` to ``high``, or absent.

        Raises:
            Usage: No number, or out of bounds.
        """
        found = self.args.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            raise Usage(f"{name} must be a whole number from {low} to {high}")
        return found

    def flag(self, name: str) -> bool:
        """Take an argument that is true or false; absent is false.

        Raises:
            Usage: Something else.
        """
        found = self.args.get(name, False)
        if not isinstance(found, bool):
            raise Usage(f"{name} must be true or false")
        return found

    async def event(self, event: Mapping[str, object]) -> None:
        """Send one event; waits while the caller is slow to read.

        If cancelled, the event may be half sent, and the connection is of no further use.
        """
        await self._send(json_line({"event": event}))

    async def output(self, stream: str, offset: int, data: bytes) -> None:
        """Send output of a task as it is, in pieces of at most OUTPUT_BYTES_MAX.

        Args:
            stream: ``stdout`` or ``stderr``.
            offset: Where ``data`` begins in the payload of both streams in arrival order.
            data: Any bytes.
        """
        for start in range(0, len(data), OUTPUT_BYTES_MAX):
            piece = data[start : start + OUTPUT_BYTES_MAX]
            head = {"kind": "output", "stream": stream, "offset": offset + start, "bytes": len(piece)}
            await self._send(json_line({"event": head}) + piece)

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            with trio.fail_after(STALL_S):
                await self._stream.send_all(data)

    async def finish(self, answer: Mapping[str, object]) -> None:
        """Send the last line: a result or an error. The socket's server does this, never a verb."""
        await self._send(json_line(answer))


@dataclass(frozen=True, slots=True)
class Then:
    """A verb's result, and what to do once the caller has it: end the node, or restart its inside.

    Attributes:
        result: What JSON can hold.
        act: Called after the answer was sent, or could not be.
    """

    result: object
    act: Callable[[], None]


def json_line(found: Mapping[str, object]) -> bytes:
    """Write one line of the answer."""
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def error_line(error: MeshError) -> dict[str, object]:
    """Write an error as the answer that carries it."""
    found: dict[str, object] = {"kind": error.kind, "message": error.message, "hint": error.hint, "exit": outside(error).exit_code}
    if isinstance(error, Refused):
        found["reason"] = error.reason
    return {"error": found}


def post_signal_untrusted(line: bytes, post: trio.MemorySendChannel[str]) -> None:
    """Read one signal line and post its word; anything else, and what finds no room, is dropped.

    Args:
        line: At most SIGNAL_BYTES_MAX bytes and one received piece.
        post: Where the verb waits.
    """
    try:
        found = json.loads(line)
        word = found.get("signal") if isinstance(found, dict) else None
    except (ValueError, RecursionError):
        return
    if isinstance(word, str) and 0 < len(word) <= NAME_CHARS_MAX:
        try:
            post.send_nowait(word)
        except (trio.WouldBlock, trio.BrokenResourceError):
            return
