"""The documents say what there is: every command, setting, bound, kind, tag, error and room they must name, they name.

What must be there is found in the code, never listed here.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from mesh.base.errors import MeshError, Usage, outside
from mesh.kinds import KINDS
from mesh.messages import CIRCUIT_MESSAGES, MESSAGES
from node.cli.client import Answered
from node.cli.completion import whole_parser
from node.cli.entry import COMMANDS
from node.config import SETTINGS
from node.live import LIVE_KEYS
from node.messages import TASK_TAGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("mesh", "node", "hive", "query")
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
GLOBALS = {"--help", "--home", "--json", "--quiet", "--verbose", "--yes"}
"""Taken by every command, and told once."""
"""Options every command has; they stand once, in the section on global options."""


def read(name: str) -> str:
    return (DOCS / name).read_text()


def sections(text: str) -> dict[str, str]:
    """Every heading of a page, without its marks, with what stands between it and the next heading."""
    found: dict[str, str] = {}
    heading, fenced = "", False
    for line in text.splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (match := re.match(r"#{1,4} (.+)", line)):
            heading = match[1].strip()
            assert heading not in found, f"two headings are called {heading!r}"
            found[heading] = ""
        elif heading:
            found[heading] += line + "\n"
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, without the lines under the heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        top = importlib.import_module(package)
        yield top
        for found in pkgutil.walk_packages(top.__path__, package + "."):
            yield importlib.import_module(found.name)


def assigned(module: ModuleType) -> Iterator[str]:
    """Names a module itself gives a value on its top level."""
    for statement in ast.parse(inspect.getsource(module)).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (part.id for part in parts if isinstance(part, ast.Name))


# Commands ------------------------------------------------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """A command's parser and those below it, each once, under its first name."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            seen: set[int] = set()
            for name, inner in action.choices.items():
                if id(inner) not in seen:
                    seen.add(id(inner))
                    yield from parsers(inner, (*words, name))


EVERY_COMMAND = [(words, parser) for words, parser in parsers(whole_parser(), ()) if words]


def test_the_parser_has_the_commands_of_the_table():
    assert {words[0] for words, _ in EVERY_COMMAND} == set(COMMANDS)


def test_the_global_options_are_told_once():
    body = sections(read("CLI.md"))["Global options"]
    assert not [option for option in GLOBALS if option not in body]


@pytest.mark.parametrize(("words", "parser"), EVERY_COMMAND, ids=[" ".join(words) for words, _ in EVERY_COMMAND])
def test_every_command_has_its_heading_and_its_options(words: tuple[str, ...], parser: argparse.ArgumentParser):
    found = sections(read("CLI.md"))
    heading = "hivemesh " + " ".join(words)
    assert heading in found
    body = found[heading] if len(words) > 1 or words[0] not in found else found[words[0]]
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")} - GLOBALS
    missing = sorted(option for option in options if option not in body)
    assert not missing, f"{heading} does not tell of them"


def test_no_heading_tells_of_a_command_there_is_not():
    known = {"hivemesh " + " ".join(words) for words, _ in EVERY_COMMAND}
    told = {heading for heading in sections(read("CLI.md")) if heading.startswith("hivemesh ")}
    assert not told - known


FIELDS = [
    ("hivemesh status", "node.verbs.machines", "status"),
    ("hivemesh status", "node.verbs.machines", "_links"),
    ("hivemesh peers", "node.verbs.machines", "_peer"),
    ("hivemesh mesh show", "node.verbs.machines", "mesh_show"),
    ("hivemesh mesh identity", "node.verbs.machines", "mesh_identity"),
    ("hivemesh invite", "node.verbs.pairing", "invite"),
    ("hivemesh join", "node.verbs.pairing", "_join_at"),
    ("hivemesh discover", "node.verbs.machines", "discover"),
    ("hivemesh connect", "node.verbs.machines", "connect"),
    ("hivemesh up", "node.app", "_facts"),
    ("hivemesh down", "node.cli.up", "_down"),
    ("hivemesh fleet", "node.sessions.inventory", "fleet_row"),
    ("hivemesh session show", "node.sessions.detail", "describe"),
    ("hivemesh session show", "node.sessions.detail", "_model"),
    ("hivemesh session show", "node.sessions.detail", "_file"),
    ("hivemesh task", "node.tasks.task", "task_json"),
    ("hivemesh inbox", "node.tasks.approvals", "json"),
    ("hivemesh answer", "node.verbs.runs", "answer"),
    ("hivemesh run", "node.cli.follow", "output_lines"),
    ("hivemesh hive status", "hive.curator", "status"),
    ("hivemesh hive lessons", "hive.view", "shown"),
    ("hivemesh hive show", "hive.curator", "show"),
    ("hivemesh hive learn", "node.verbs.hive", "_counts"),
    ("hivemesh access grant", "query.permits", "_public"),
    ("hivemesh access list", "query.permits", "as_json"),
    ("hivemesh query ask", "query.answer", "_cited"),
    ("hivemesh demo", "node.cli.demo", "_demo"),
    ("hivemesh config show", "node.cli.settings", "_show"),
    ("hivemesh config set", "node.cli.settings", "_set"),
]
"""Which function shapes which command's answer."""


@pytest.mark.parametrize(("heading", "module", "function"), FIELDS, ids=[f"{m}.{f}" for _, m, f in FIELDS])
def test_every_field_of_an_answer_is_told(heading: str, module: str, function: str):
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    shaping = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function]
    assert shaping, "the function that shapes this answer has another name now"
    answers = [dictionary for node in shaping[:1] for dictionary in ast.walk(node) if isinstance(dictionary, ast.Dict)]
    keys = {key.value for answer in answers for key in answer.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    assert keys
    body = sections(read("CLI.md"))[heading]
    missing = sorted(key for key in keys if not re.search(rf"[`\"]{key}[`\"]", body))
    assert not missing, f"{heading} does not tell of these fields"


# Settings, limits, errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_has_its_heading_default_and_bounds(setting):
    body = sections(read("CLI.md"))[setting.key]
    default = setting.default[0] if isinstance(setting.default, list) and setting.default else setting.default
    if default not in ("", []):
        assert str(default).lower() in body.lower()
    else:
        assert re.search(r"Default: (empty|none)", body)
    words = [str(bound) for bound in (setting.low, setting.high) if setting.kind == "number"] + list(setting.choices)
    assert all(word in body for word in words)
    assert ("In force at once" in body) is (setting.key in LIVE_KEYS)
    assert ("the next start" in " ".join(body.split())) is (setting.key not in LIVE_KEYS)


def limits() -> dict[str, object]:
    return {f"{m.__name__}.{name}": getattr(m, name) for m in modules() for name in assigned(m) if name.endswith("_MAX")}


def test_every_bound_has_its_row_with_its_value():
    told = {cells[0].strip("`"): cells for cells in rows(read("LIMITS.md"))}
    found = limits()
    assert len(found) > 200, "the search itself is broken"
    missing = sorted(name for name in found if name not in told)
    assert not missing, "bounds without a row in docs/LIMITS.md"
    wrong = []
    for name, value in found.items():
        number = re.match(r"[0-9.]+", told[name][1])
        if number is None or float(number[0]) != float(value):  # type: ignore[arg-type]
            wrong.append(f"{name} is {value}, its row says {told[name][1]}")
        assert len(told[name][2]) > 10, f"{name}: what happens at the bound?"
    assert not wrong


def test_no_row_tells_of_a_bound_or_wait_there_is_not():
    known = {f"{m.__name__}.{name}": getattr(m, name) for m in modules() for name in assigned(m)}
    told = {cells[0].strip("`"): cells[1] for cells in rows(read("LIMITS.md")) if cells[0].startswith("`")}
    assert not sorted(name for name in told if name not in known)
    wrong = [name for name, cell in told.items() if float(re.match(r"[0-9.]+", cell)[0]) != float(known[name])]  # type: ignore[index]
    assert not wrong, "the value in the row is not the one in the code"


def families() -> Iterator[type[MeshError]]:
    list(modules())
    waiting = [MeshError]
    while waiting:
        family = waiting.pop()
        waiting += family.__subclasses__()
        if family.__module__.partition(".")[0] in PACKAGES and family is not Answered:
            yield family


def test_every_kind_of_error_has_its_row_with_its_exit_code():
    told = {cells[0].strip("`"): cells[-1] for cells in rows(sections(read("CLI.md"))["Errors"])}
    found = {family.kind: outside(family.__new__(family)).exit_code for family in families()}
    assert found["usage"] == outside(Usage("")).exit_code == 2
    assert not sorted(set(found) - set(told)), "kinds of errors without a row in docs/CLI.md"
    assert not sorted(set(told) - set(found) - {"kind"}), "rows of kinds there are not"
    wrong = [kind for kind, code in found.items() if not told[kind].startswith(str(code))]
    assert not wrong


# The protocol --------------------------------------------------------------------------------------------------


def test_every_record_kind_has_its_row_with_its_quota_size_and_life():
    told = {cells[0]: cells for cells in rows(sections(read("PROTOCOL.md"))["3. Records"])}
    for number, rule in KINDS.items():
        row = told[str(number)]
        assert row[1].split(" (")[0] == rule.name
        assert row[2] == rule.lane.name.lower()
        assert [row[5], row[6]] == [str(rule.quota), str(rule.body_bytes_max)]
        assert (row[7] == "yes") is rule.terminal
        if rule.life_ms is None:
            assert row[4] in ("for ever", "its own")
        else:
            amount, unit = row[4].split()
            assert int(amount) * {"min": 60_000, "h": 3_600_000, "d": 86_400_000}[unit] == rule.life_ms
    assert {cells for cells in told if cells.isdigit()} == {str(number) for number in KINDS}


def test_every_message_tag_has_its_row():
    told = {cells[0]: cells[1] for cells in rows(sections(read("PROTOCOL.md"))["5. Messages on a link"])}
    tags = {**MESSAGES.tags, **CIRCUIT_MESSAGES.tags, **TASK_TAGS}
    assert {number for number in told if number.isdigit()} == {str(number) for number in tags}
    for number, kind in tags.items():
        assert told[str(number)].replace(" ", "").lower() == kind.__name__.lower()


# The pages -----------------------------------------------------------------------------------------------------


def test_every_decision_is_a_numbered_heading_with_text():
    files = sorted((DOCS / "decisions").iterdir())
    numbers = [int(path.name[:4]) for path in files]
    assert len(set(numbers)) == len(numbers), "two decisions bear one number"
    for number, path in zip(numbers, files, strict=True):
        head, _, text = path.read_text().partition("\n")
        assert path.suffix == ".md"
        assert path.name.startswith(f"{number:04}-")
        assert re.match(rf"# {number:04} \S.+", head)
        assert len(text.split()) >= 30, f"{path.name} does not say why"


def sh_blocks(text: str) -> list[list[str]]:
    return [block.strip().splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def test_the_readme_begins_with_two_plain_blocks():
    blocks = sh_blocks((ROOT / "README.md").read_text())
    assert len(blocks) >= 2
    for line in (line for block in blocks[:2] for line in block):
        assert not re.match(r"[$#>]|sudo ", line), "a block is pasted as it stands"
        assert not re.search(r"<[a-z-]+>|\.\.\.|\bread \b", line), "a block asks for nothing"
    assert blocks[0][-1].endswith("hivemesh demo")
    assert "pytest" in blocks[1][-1]
    runner = (ROOT / ".ci" / "run").read_text()
    assert "README.md" in runner
    assert "n == 2" in runner, "the runner takes the command of the second block"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_and_paths_lead_somewhere(page: Path):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for path in re.findall(r"`((?:docs|tests|mesh|node|hive|query)/[A-Za-z0-9_./-]*)`", text):
        assert (ROOT / path).exists(), f"{page.name} speaks of {path}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_rooms_spoken_of_exist(page: Path):
    for name in re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.\w+)+)`", page.read_text()):
        assert name.endswith((".db", ".py")) or _exists(name.split(".")), f"{page.name} speaks of {name}"


def _exists(parts: list[str]) -> bool:
    """Whether dotted words are a room or package, or one of those and a name it defines."""
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        source = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__init__.py"
        if source.exists():
            rest = parts[count:]
            return not rest or (len(rest) == 1 and bool(re.search(rf"^\s*(?:(?:async )?def|class) {rest[0]}\b|^{rest[0]}\b|, {rest[0]} = |^{rest[0]},", source.read_text(), re.MULTILINE)))
    return False


def test_the_readme_names_every_page():
    text = (ROOT / "README.md").read_text()
    missing = [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in text]
    assert not missing
