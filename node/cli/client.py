"""The command's side of the control socket."""

from __future__ import annotations

import json
import os
import socket

from mesh.base.errors import MeshError, NotRunning, OurFault, Refused
from node.home import control_address
from node.wire import ANSWER_LINE_BYTES_MAX, VERSION, peer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from node.home import Home

ANSWER_S = 60.0
"""How long a command waits for an answer that is not a stream."""


class Answered(MeshError):
    """The node answered with an error, which is passed on as it is.

    Args:
        kind: The error's kind, as the node named it.
        exit_code: What the command exits with.
        reason: A stable word for scripts where the node refused, or empty.
    """

    def __init__(self, message: str, *, kind: str, hint: str, exit_code: int, reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind  # type: ignore[misc]  # the node's word, which no class of this process stands for
        self.exit_code = exit_code
        self.reason = reason


class NodeGone(OurFault):
    """The node went away before it answered."""


class Conversation:
    """One request to the node, its events and its result."""

    def __init__(self, home: Home, verb: str, args: Mapping[str, object], timeout_s: float | None) -> None:
        self._socket = _connect(home)
        self._socket.settimeout(timeout_s)
        self._file = self._socket.makefile("rb", buffering=1 << 16)
        self.result: object = None
        request = {"v": VERSION, "verb": verb, "args": args}
        try:
            self._socket.sendall(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        except OSError:
            # The node may have refused a request before it read all of it; its answer says why.
            return

    def events(self) -> Iterator[tuple[dict[str, object], bytes]]:
        """Read events until the result is there.

        Yields:
            Each event with the raw bytes behind it, which most do not have.

        Raises:
            Answered: The node says it failed, or refuses.
            NodeGone: The node went away.
            OurFault: It does not answer, or its answer cannot be read.
        """
        while True:
            try:
                line = self._file.readline(ANSWER_LINE_BYTES_MAX)
                if not line.endswith(b"\n"):
                    raise _gone()
                answer = json.loads(line)
                if "result" in answer:
                    self.result = answer["result"]
                    return
                if "error" in answer:
                    raise answered(answer["error"])
                event = answer["event"]
                count = event.get("bytes", 0) if event.get("kind") == "output" else 0
                yield event, self._file.read(count) if count else b""
            except ConnectionError:
                raise _gone() from None
            except TimeoutError:
                raise OurFault("the node does not answer", hint="see what it does: hivemesh doctor") from None
            except (ValueError, KeyError, TypeError, AttributeError):
                raise OurFault("the node's answer cannot be read", hint="restart it: hivemesh down, then hivemesh up -d") from None

    def signal(self, word: str) -> None:
        """Tell the verb something while it runs; what cannot be sent is dropped, the answer shows it."""
        try:
            self._socket.sendall(json.dumps({"signal": word}).encode() + b"\n")
        except OSError:
            return

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        self._socket.close()


def call(
    home: Home,
    verb: str,
    args: Mapping[str, object] | None = None,
    *,
    timeout_s: float | None = ANSWER_S,
    on_event: Callable[[Mapping[str, object]], None] | None = None,
) -> object:
    """Ask the node one thing.

    Args:
        home: Whose node.
        verb: What.
        args: With which arguments.
        timeout_s: How long to wait between two lines of the answer; None for ever.
        on_event: Told of what the node says on the way.

    Returns:
        The result.

    Raises:
        NotRunning: No node runs on this home.
        Refused: Somebody else listens where the node should.
        Answered: The node says it failed, or refuses.
        OurFault: The node went away or does not answer.
    """
    with Conversation(home, verb, args or {}, timeout_s) as conversation:
        for event, _ in conversation.events():
            if on_event is not None:
                on_event(event)
        return conversation.result


def stream(home: Home, verb: str, args: Mapping[str, object]) -> Conversation:
    """Begin something that goes on: iterate its ``events()``, then read its ``result``; a context manager.

    Args:
        home: Whose node.
        verb: What.
        args: With which arguments.

    Raises:
        NotRunning: No node runs on this home.
        Refused: Somebody else listens where the node should.
    """
    return Conversation(home, verb, args, None)


def _gone() -> NodeGone:
    return NodeGone("the node went away before it answered", hint="see `hivemesh status` and the log (`hivemesh doctor` names it)")


def _connect(home: Home) -> socket.socket:
    address = control_address(home)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not address:
            raise FileNotFoundError(address)
        connection.settimeout(5.0)
        connection.connect(address)
        uid, _ = peer_of(connection)
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        connection.close()
        raise NotRunning(f"no node runs on {home.data_dir}", hint="hivemesh up -d") from None
    except OSError as error:
        connection.close()
        raise OurFault(f"the node cannot be reached on {address}: {error.strerror or error}", hint="check the rights of that folder") from None
    if uid not in (os.getuid(), 0):
        connection.close()
        raise Refused(f"{address} belongs to another user; nothing was sent", reason="foreign_socket", hint="choose a home of your own with --home DIR")
    return connection


def answered(found: Mapping[str, object]) -> Answered:
    """Make an error of what a node said of its failure."""
    exit_code = found.get("exit")
    return Answered(
        str(found.get("message", "it failed")),
        kind=str(found.get("kind", "failed")),
        hint=str(found.get("hint", "")),
        exit_code=exit_code if isinstance(exit_code, int) and 0 < exit_code < 256 else 1,
        reason=str(found.get("reason", "")),
    )
