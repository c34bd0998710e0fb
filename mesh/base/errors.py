"""The errors of the whole product: one base, five families, one table of what each means outside.

The message of an error is what a person reads: one line that says what is wrong; ``hint`` says what to do next.
Packages subclass the families. A programming mistake is an assertion, never one of these.

Every command loads this room before anything else, so it imports nothing: ``dataclasses`` alone would add half of the
start-up time of the whole command line.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class MeshError(Exception):
    """Base of every error the product raises on purpose.

    Args:
        message: One line for a person, without secrets.
        hint: What to do next, or empty.
    """

    kind: ClassVar[str] = "failed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class OurFault(MeshError):
    """This machine could not do it: disk, limits of the system, a broken installation."""

    kind = "our_fault"


class PortTaken(OurFault):
    """The port is in use by another program."""

    kind = "port_taken"


class PeerFault(MeshError):
    """The other side broke the protocol; ends at most its own connection.

    Args:
        peer: Who, as far as it is known (a short name, an address, or empty).
    """

    kind = "peer_fault"

    def __init__(self, message: str, *, peer: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.peer = peer


class Unreachable(MeshError):
    """A machine cannot be reached now.

    Args:
        retry_after_s: When trying again makes sense, in seconds.
    """

    kind = "unreachable"

    def __init__(self, message: str, *, retry_after_s: float = 5.0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class Refused(MeshError):
    """A policy, a person or a limit said no.

    Args:
        reason: A stable word for scripts (``expired``, ``policy``, ``limit``, ...).
    """

    kind = "refused"

    def __init__(self, message: str, *, reason: str = "refused", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Damaged(MeshError):
    """Something on this machine's disk is not what it must be.

    Args:
        path: The file, as a person would name it.
    """

    kind = "damaged"

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class Usage(MeshError):
    """The command or the arguments are not what this program takes."""

    kind = "usage"


class NotRunning(MeshError):
    """The node of this home is not running."""

    kind = "not_running"


class Outside:
    """What a family means to a shell, an HTTP client and a websocket peer."""

    __slots__ = ("close_code", "exit_code", "http_status")

    def __init__(self, exit_code: int, http_status: int, close_code: int) -> None:
        self.exit_code = exit_code
        self.http_status = http_status
        self.close_code = close_code


EXIT_OF_RUN_FAULT = 125
"""``run``, ``delegate``, ``wait`` and ``logs --follow`` exit with this for every fault of ours."""

OUTSIDE: dict[type[MeshError], Outside] = {
    OurFault: Outside(1, 500, 1011),
    PeerFault: Outside(1, 502, 1002),
    Damaged: Outside(1, 500, 1011),
    Usage: Outside(2, 400, 1008),
    NotRunning: Outside(3, 503, 1013),
    Unreachable: Outside(4, 504, 1013),
    Refused: Outside(5, 403, 1008),
    MeshError: Outside(1, 500, 1011),
}


def outside(error: MeshError) -> Outside:
    """Look up what an error means outside, by its nearest family.

    Args:
        error: Any error of the product.

    Returns:
        The row of its family.
    """
    for family in type(error).__mro__:
        if family in OUTSIDE:
            return OUTSIDE[family]
    raise AssertionError("MeshError itself has a row")
