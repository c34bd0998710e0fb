"""What a person typed for a run, checked before anything is made of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mesh.base.errors import Usage
from node.messages import ARGUMENTS_MAX, ARGV_BYTES_MAX, TIMEOUT_S_MAX


def checked_command(argv: Sequence[str]) -> tuple[bytes, ...]:
    """Check a command.

    Args:
        argv: Its words; surrogates stand for bytes that are not UTF-8.

    Returns:
        The words as bytes.

    Raises:
        Usage: It is empty, too long, or holds NUL.
    """
    command = tuple(os.fsencode(argument) for argument in argv)
    if not command or not command[0]:
        raise Usage("no command to run", hint="hivemesh run NODE -- CMD ARG...")
    if any(b"\0" in argument for argument in command):
        raise Usage("an argument holds a NUL character, which no program can be given")
    if len(command) > ARGUMENTS_MAX or sum(map(len, command)) > ARGV_BYTES_MAX:
        raise Usage(
            f"the command is too long: at most {ARGUMENTS_MAX} arguments and {ARGV_BYTES_MAX} bytes",
            hint="put it into a file in the tree and run that",
        )
    return command


def checked_seconds(asked_s: int | None, default_s: int) -> int:
    """Check a time limit.

    Args:
        asked_s: In seconds, or None for the default.
        default_s: In seconds.

    Returns:
        1 second to 30 days.

    Raises:
        Usage: It is out of range.
    """
    if asked_s is None:
        return default_s
    if not 1 <= asked_s <= TIMEOUT_S_MAX:
        raise Usage("a time limit is 1 second to 30 days", hint="--timeout 90s, 15m, 2h")
    return asked_s


def checked_digest(text: str) -> bytes:
    """Read a digest as ``inbox --json`` writes it.

    Args:
        text: 64 hexadecimal digits.

    Returns:
        32 bytes.

    Raises:
        Usage: It is something else.
    """
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise Usage("a digest is 64 hexadecimal digits", hint="copy it from hivemesh inbox --json")
    return digest
