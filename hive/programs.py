"""The few programs whose arguments a pattern may leave open, and with which options.

One positive list: a program, verb or option that is not here is only ever compared word for word. So interpreters,
package runners, wrappers, remote shells and whatever else runs or loads what an argument names need no list of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Level = Literal["varies", "denied", "written"]
"""When arguments may be left open: always, in what was denied, or only in a pattern written by hand."""


class Shape(NamedTuple):
    """What is known of one act.

    Attributes:
        level: When its arguments may be left open.
        flags: Options without a value, each with its one name; empty where it changes only what is shown.
        letters: Options of one letter that may be written together, in the order of a pattern.
    """

    level: Level
    flags: Mapping[str, str]
    letters: str = ""


def _shown(letters: str, *flags: str) -> Shape:
    """Describe a program that reads plain paths; these options only change what it shows."""
    return Shape("varies", {**{f"-{letter}": "" for letter in letters}, **dict.fromkeys(flags, "")}, letters)


ACTS: Mapping[str, Shape] = {
    "pytest": _shown("qvxsl", "--lf", "--ff", "--tb=short", "--no-header"),
    "mypy": _shown("", "--strict", "--pretty"),
    "ruff check": _shown("q"),
    "ls": _shown("laAhrtR1SF", "--all", "--"),
    "cat": _shown("nA", "--"),
    "head": _shown("qv"),
    "tail": _shown("qvf"),
    "wc": _shown("lwcm"),
    "nl": _shown(""),
    "stat": _shown(""),
    "du": _shown("shac"),
    "diff": _shown("uqrNbw"),
    "cmp": _shown(""),
    "sort": _shown("rnu"),
    "grep": _shown("rnilwvcHhEF", "--"),
    "rg": _shown("nilwc", "--"),
    "md5sum": _shown(""),
    "sha256sum": _shown(""),
    "echo": _shown(""),
    "pwd": _shown(""),
    "which": _shown(""),
    "git status": _shown("sb", "--short", "--porcelain", "--"),
    "git diff": _shown("", "--"),
    "git log": _shown("", "--oneline", "--"),
    "git add": _shown("v", "--"),
    "git push": Shape(
        "denied",
        {
            "-f": "--force", "--force": "--force", "--force-with-lease": "--force-with-lease", "-d": "--delete",
            "--delete": "--delete", "-u": "", "--set-upstream": "", "-q": "", "--quiet": "", "-v": "", "--tags": "--tags",
            "--all": "--all", "--mirror": "--mirror", "--no-verify": "--no-verify",
        },
        "fduqv",
    ),
    "git reset": Shape("denied", {"--hard": "--hard", "--soft": "--soft", "--mixed": "--mixed", "-q": ""}),
    "git clean": Shape("denied", {"--force": "-f", "-n": "-n", "-f": "-f", "-d": "-d", "-x": "-x", "-X": "-X"}, "nfdxX"),
    "git branch": Shape("denied", {"-D": "-D", "-d": "-d", "--delete": "-d"}),
    "rm": Shape(
        "denied",
        {
            "-r": "-r", "-R": "-r", "--recursive": "-r", "-f": "-f", "--force": "-f", "-d": "-d", "-i": "-i", "-I": "-I",
            "-v": "", "--verbose": "", "--": "",
        },
        "rRfdiIv",
    ),
    "npm run": Shape("written", {}),
    "pnpm run": Shape("written", {}),
    "yarn run": Shape("written", {}),
}  # fmt: skip
"""No program here writes, runs or loads anything because of a plain relative argument, but pytest the tests it is given,
and those that are never left open in an approval. A wrong row is a hole; a missing one only a narrower lesson."""

FOLDERS = frozenset({"", "/bin/", "/usr/bin/", "/usr/local/bin/", ".venv/bin/", "venv/bin/"})
"""Where a program is the one its name says; the folder stays in the pattern. Anywhere else it is another program."""

WHOLE_TARGETS = frozenset({"/", "/*", "~", "~/", "~/*", ".", "./", "./*", "..", "../", "*"})
"""Arguments that are everything: what was denied with one of them is denied word for word."""

SENSITIVE_PARTS = (
    ".ssh", ".aws", ".gnupg", ".env", ".netrc", ".pgpass", ".kube", ".npmrc", ".pypirc", ".git-credentials", "id_rsa",
    "id_ed25519", ".pem", ".key", "shadow", "sudoers", "credential", ".git/", ".claude", ".codex", ".hivemesh", "secret",
    "password", ".p12", ".pfx",
)  # fmt: skip
"""Arguments that name keys, credentials or an agent's own settings: never covered by ``*``."""
