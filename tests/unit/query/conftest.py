"""A small real repository to index, and grants with a clock that stands still."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mesh.base.clock import Now

GUIDE = """# Guide

Words before any section say what this project is about: a kettle that reports its temperature.

## Boiling water

To boil water, fill the kettle and press the red lever. The lamp glows while it heats.

### When it does not boil

Check the fuse in the plug, then the thermostat below the base plate.

## Cleaning

Descale the kettle with vinegar every month; rinse it twice afterwards.
"""

MODULE = '''"""Controls the heating plate of the kettle."""

LIMIT = 100
"""Degrees at which the plate switches off."""


class Plate:
    """The plate below the water."""

    def heat(self, degrees: int = 90) -> bool:
        """Warm the water up to so many degrees.

        Returns whether it got there.
        """
        return BODY_CANARY > degrees

    def _private(self):
        """Nobody outside needs this."""


def cool_down(*, slowly: bool = False) -> None: return BODY_CANARY
'''


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.test", "-c", "commit.gpgsign=false", "-C", str(folder)]
    return subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def commit_files(folder: Path, files: dict[str, str | bytes]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "files")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def commit():
    return commit_files


@pytest.fixture
def run_git():
    return git


@pytest.fixture
def kettle(tmp_path: Path) -> Path:
    folder = tmp_path / "Kettle"
    commit_files(folder, {"docs/guide.md": GUIDE, "src/plate.py": MODULE, "README.md": "# Kettle\n\nA kettle that talks.\n"})
    return folder


@pytest.fixture
def noon() -> Now:
    return Now(1_900_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000, 0.0)
