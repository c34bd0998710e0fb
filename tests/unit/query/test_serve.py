import subprocess
import sys

import pytest

from mesh.base.errors import Usage
from query.serve import run_serve

LOADED = """
import sys
import query.serve
names = [name for name in sys.modules if name.split(".")[0] in ("query", "mesh", "node", "hive", "subprocess", "markdown_it", "ast")]
print(" ".join(sorted(names)))
"""


def test_the_server_loads_no_git_no_parser_and_of_the_mesh_only_its_base():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    names = done.stdout.split()
    ours = {name for name in names if name.split(".")[0] in ("query", "mesh", "node", "hive")}
    assert "query.answer" in ours
    assert not {name for name in ours if name.startswith(("node", "hive"))}
    assert not {name for name in ours if name.startswith("mesh") and name not in ("mesh", "mesh.base") and not name.startswith("mesh.base.")}
    assert not {"query.indexer", "query.gitsource", "query.extract", "query.screen", "query.deny"} & ours


FORBIDDEN = {"subprocess", "query.indexer", "query.gitsource", "query.extract", "query.ignore", "query.deny", "query.screen", "node", "hive"}


def test_no_room_of_the_server_names_what_it_must_not_use():
    import ast
    from pathlib import Path

    import query

    folder = Path(query.__file__).parent
    seen: set[str] = set()
    waiting = ["serve"]
    while waiting:
        room = waiting.pop()
        if room in seen:
            continue
        seen.add(room)
        for node in ast.walk(ast.parse((folder / f"{room}.py").read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in names:
                assert name not in FORBIDDEN, f"query.{room} imports {name}"
                assert not name.startswith("mesh.") or name.startswith("mesh.base"), f"query.{room} imports {name}"
                if name.startswith("query.") and (folder / (name.split(".")[1] + ".py")).exists():
                    waiting.append(name.split(".")[1])
    assert {"serve", "http", "answer", "register", "index", "door", "jail"} <= seen


@pytest.mark.parametrize("listen", ["", "8787", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ":8787"])
def test_an_address_needs_a_host_and_a_port(tmp_path, listen):
    with pytest.raises(Usage):
        run_serve(tmp_path / "index", tmp_path / "grants.db", listen, on_ready=print)
