"""What a command says and asks: the answer on stdout, everything else on stderr, questions only to a terminal."""

from __future__ import annotations

import errno
import json
import os
import sys

from mesh.base.errors import OurFault, Refused
from node.home import find_home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import IO, TextIO

    from node.home import Home


class OutputLost(OurFault):
    """The answer could not be written.

    Args:
        stream: Where it should have gone.
        error: Why it could not.
    """

    def __init__(self, stream: IO[str], error: OSError) -> None:
        super().__init__(f"the answer cannot be written: {error.strerror or error}")
        self.stream = stream
        self.quiet = error.errno == errno.EPIPE
        """Whether a reader that has seen enough is why; then nothing is said of it."""

    def give_up(self) -> None:
        """Send what is still buffered nowhere, so that it does not fail again when the process ends."""
        _forget(self.stream)


def _forget(stream: IO[str]) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except OSError:
        return


def counted(count: int, one: str) -> str:
    """Write a number with what it counts: ``1 machine``, ``3 machines``."""
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


def shown(text: object) -> str:
    """Write text from outside so that it can neither move the cursor nor reorder the line."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in plain)


def age(seconds: float | None) -> str:
    """Write a length of time the way people say it: ``12s``, ``5m``, ``3h``, ``2d``; unknown is a dash."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


class Console:
    """How this command was called, and its way to the person or the script.

    Args:
        home: The value of ``--home``, or None.
        environ: The environment.
        as_json: Whether stdout carries JSON only.
        quiet: Whether notes are left out.
        verbose: Whether details are shown that most do not need.
        yes: Whether every question is answered with yes in advance.
        commands: The names of the commands, to find them in advice.
    """

    def __init__(
        self,
        home: str | None,
        environ: Mapping[str, str],
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        yes: bool = False,
        commands: Iterable[str] = (),
    ) -> None:
        self.commands = commands
        self.environ = environ
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.yes = yes
        self.home: Home = find_home(home, environ)
        self._stated_home = home

    @property
    def on_terminal(self) -> bool:
        """Whether stdout is a terminal: then there is colour and redrawing."""
        return sys.stdout.isatty() and not self.as_json

    @property
    def coloured(self) -> bool:
        """Whether colour is wanted."""
        return self.on_terminal and not self.environ.get("NO_COLOR") and self.environ.get("TERM") != "dumb"

    def json(self, found: object) -> None:
        """Print one JSON document on one line, and pass it on at once."""
        self.line(json.dumps(found, separators=(",", ":")))
        self.flush()

    def line(self, text: str = "") -> None:
        """Print one line of the answer.

        Raises:
            OutputLost: It cannot be written; so do the other two that write the answer.
        """
        try:
            sys.stdout.write(text + "\n")
        except OSError as error:
            raise OutputLost(sys.stdout, error) from None

    def flush(self) -> None:
        """Pass on the lines printed so far."""
        try:
            sys.stdout.flush()
        except OSError as error:
            raise OutputLost(sys.stdout, error) from None

    def output(self, stream: str, piece: bytes) -> None:
        """Pass on what a run wrote, byte for byte.

        Args:
            stream: ``stdout`` or ``stderr``.
            piece: The bytes.
        """
        out: TextIO = sys.stderr if stream == "stderr" else sys.stdout
        try:
            out.buffer.write(piece)
            out.buffer.flush()
        except OSError as error:
            raise OutputLost(out, error) from None

    def note(self, text: str, *, quotes: bool = False) -> None:
        """Say something beside the answer, unless ``-q``.

        Args:
            text: One line.
            quotes: Whether it quotes what stays as it is, commands too.
        """
        if not self.quiet:
            self.warn(text, quotes=quotes)

    def warn(self, text: str, *, quotes: bool = False) -> None:
        """Say something beside the answer that ``-q`` does not hide; where nobody can hear it, it is dropped.

        Args:
            text: One line.
            quotes: Whether it quotes what stays as it is, commands too.
        """
        try:
            sys.stderr.write((text if quotes else self.advice(text)) + "\n")
            sys.stderr.flush()
        except OSError:
            _forget(sys.stderr)

    def advice(self, text: str) -> str:
        """Make the commands in a text speak of the home this command spoke of, so that they work as they stand.

        A command for another machine is written behind ``there: `` and stays as it is.
        """
        if not self._stated_home or "hivemesh" not in text:
            return text
        import re
        from shlex import quote

        stated = f"hivemesh --home {quote(self._stated_home)} "
        return re.sub(rf"(?<!there: )\bhivemesh (?=(?:{'|'.join(self.commands)})\b)", lambda _: stated, text)

    def may_ask(self) -> bool:
        """Whether there is a person to ask: stdin and stderr are terminals."""
        return sys.stdin.isatty() and sys.stderr.isatty() and not self.as_json

    def ask(self, question: str, *, default: bool = False) -> bool:
        """Ask a person yes or no. ``--yes`` answers without asking.

        Args:
            question: One line.
            default: What an empty line means.

        Raises:
            Refused: There is nobody to ask; the message names ``--yes``.
        """
        if self.yes:
            return True
        if not self.may_ask():
            raise Refused(f"{question} Nobody is there to answer.", reason="needs_yes", hint="add --yes if that is what you want")
        sys.stderr.write(f"{question} {'[Y/n]' if default else '[y/N]'} ")
        sys.stderr.flush()
        said = sys.stdin.readline().strip().lower()
        return said in ("y", "yes") or (default and not said)
