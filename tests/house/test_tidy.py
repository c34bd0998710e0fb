"""The house stays tidy: sizes, names, habits that were agreed on, and a twin test for every room."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("mesh", "node", "hive", "query")
ROOMS = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "sample" not in path.parts)
NAMES = [str(path.relative_to(ROOT)) for path in ROOMS]
ROOM_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
BANNED_STEMS = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "info", "data", "stuff"}
BANNED_TEXT = re.compile(
    r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError|# type: ignore$|# noqa$|except Exception|except BaseException:\s*pass|\bexcept:\s*$",
    re.MULTILINE,
)
TOP_LEVEL = {"pyproject.toml", "README.md", "mesh", "node", "hive", "query", "tests", "docs", "LICENSE", "CHANGELOG.md"}
WIRING_ONLY = re.compile(r"/(cli|verbs)/|/app\.py$|/__init__\.py$|query/(http|serve)\.py$|base/ports\.py$|/ports\.py$")
"""Rooms that only wire or only declare are covered by process and contract tests."""


@pytest.mark.parametrize("room", ROOMS, ids=NAMES)
def test_a_room_is_small_and_speaks_for_itself(room: Path):
    text = room.read_text()
    assert len(text.splitlines()) <= ROOM_LINES_MAX, "what are the two things in this room?"
    found = BANNED_TEXT.search(text)
    assert found is None, f"unfinished, silenced or caught too widely: {found and found[0]}"
    assert room.stem not in BANNED_STEMS
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text.strip(), "a room starts by saying what it is for"
    for item in ast.walk(tree):
        if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (item.end_lineno or item.lineno) - item.lineno
            doc = len((ast.get_docstring(item) or "").splitlines())
            assert lines - doc <= FUNCTION_LINES_MAX, f"{item.name} is {lines} lines long"
        if isinstance(item, ast.ClassDef):
            assert not item.name.endswith(("Manager", "Helper", "Service", "Utils")), item.name


def test_the_top_level_is_fixed():
    here = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    strays = {name for name in here - TOP_LEVEL if not name.endswith(".egg-info") and name not in {"dist", "build"}}
    assert not strays


def test_every_room_has_a_twin_test():
    tests = "\n".join(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    bodies = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    missing = []
    for room in ROOMS:
        name = str(room.relative_to(ROOT))
        if WIRING_ONLY.search("/" + name):
            continue
        named = re.search(rf"test_(\w+_)?{room.stem}\.py", tests)
        dotted = name[:-3].replace("/", ".")
        parent, stem = dotted.rsplit(".", 1)
        imported = re.search(rf"\b{re.escape(dotted)}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b", bodies)
        if not named and not imported:
            missing.append(name)
    assert not missing, "rooms no test names"


def test_signatures_are_made_for_a_registered_purpose_only():
    """A signature without a context would be valid for everything."""
    for room in ROOMS:
        if room == ROOT / "mesh/base/crypto.py":
            continue
        for call in re.findall(r"\.sign\(([^,)]*)", room.read_text()):
            assert call.startswith(("Context.", "kind", "context", "CERTIFICATE", "kinds.")), f"{room}: sign({call}"


def test_nothing_here_speaks_of_the_workplace():
    banned = re.compile(r"/work/|/root/|shared/(PRODUCT|LAYOUT|HOUSE|SECURITY|PROTOCOL|STACK|CASES)|pypi\.org|npmjs")
    for path in [*ROOMS, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"]:
        if path.exists():
            found = banned.search(path.read_text())
            assert found is None, f"{path}: {found and found[0]}"
