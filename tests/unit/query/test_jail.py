import json
import subprocess
import sys

import pytest

PROBE = """
import json, os, socket, sys
from pathlib import Path
from query.jail import lock_up
home = Path(sys.argv[1])
held = (home / "held").open("r+")
reason = lock_up([home / "index"], [home / "grants.db", home / "not-there"])
def can(act):
    try:
        act()
    except OSError:
        return False
    return True
def connect():
    with socket.socket() as s:
        s.settimeout(1)
        s.connect(("127.0.0.1", int(sys.argv[2])))
print(json.dumps({
    "reason": reason,
    "index": can(lambda: (home / "index/p.db").read_bytes()),
    "index_write": can(lambda: (home / "index/p.db").write_bytes(b"")),
    "index_make": can(lambda: (home / "index/new").write_bytes(b"")),
    "grants": can(lambda: (home / "grants.db").open("r+").close()),
    "key": can(lambda: (home / "node.key").read_bytes()),
    "list": can(lambda: os.listdir(home)),
    "make": can(lambda: (home / "made").write_bytes(b"")),
    "passwd": can(lambda: Path("/etc/passwd").read_bytes()),
    "exec": can(lambda: os.posix_spawn("/bin/true", ["true"], {})),
    "connect": can(connect),
    "held": can(lambda: (held.write("x"), held.flush())),
    "import": can(lambda: __import__("wave")),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux only")
def test_afterwards_only_what_is_served_can_be_opened(tmp_path):
    import socket

    (tmp_path / "index").mkdir()
    for name in ("index/p.db", "grants.db", "node.key", "held"):
        (tmp_path / name).write_bytes(b"x")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = subprocess.run([sys.executable, "-c", PROBE, str(tmp_path), str(listener.getsockname()[1])], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found["reason"]:
        pytest.skip(found["reason"])
    allowed = {name for name, can in found.items() if can}
    assert allowed == {"index", "grants", "held", "import"}


def test_where_it_cannot_be_done_it_says_so(monkeypatch):
    from query import jail

    monkeypatch.setattr(jail.sys, "platform", "elsewhere")
    assert jail.lock_up([], []) == "this system has no Landlock"
