"""The keys of a home: made once, private from the first moment, never replaced silently, moved whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from mesh import identity as room
from mesh import store
from mesh.base.codec import decode_untrusted
from mesh.base.crypto import SigningKey
from mesh.base.db import Database
from mesh.base.errors import Damaged, MeshError, OurFault, Refused
from mesh.base.names import node_id, owner_id
from mesh.certificates import CertificateBody, EpochBody, Genesis, issue, mesh_id, sign_owner
from mesh.handshake import gate_commitment
from mesh.identity import (
    FLEET,
    GATE,
    Belongings,
    Identity,
    decide_move,
    finish_move,
    founding,
    is_fresh,
    read_identity,
    read_key,
    write_key,
)
from mesh.kinds import EPOCH, Lane
from mesh.members import Members
from mesh.records import make
from tests.fakes.meshes import NOW, Drawn

ROOT = Path(__file__).parents[3]


def goods(seed: object) -> Belongings:
    return founding(name="studio", owner_name="ana", entropy=Drawn(seed), now=NOW)


def settle(home: Path, belongings: Belongings) -> None:
    decide_move(home, belongings, NOW.wall_ms)
    finish_move(home)


def start(home: Path) -> Identity:
    """What every start does."""
    finish_move(home)
    assert not is_fresh(home)
    database = Database(home / "mesh.db", store.SCHEMA)
    try:
        return read_identity(home, database)
    finally:
        database.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    settle(folder, goods("old"))
    return folder


OLD, NEW = goods("old"), goods("new")


# Founding -------------------------------------------------------------------------------------------------------------


def test_a_founded_home_knows_who_it_is(home: Path):
    identity = start(home)
    assert identity.node_id == node_id(OLD.keys["node"].public)
    assert identity.owner is not None
    assert identity.owner.public == OLD.keys["owner"].public
    assert identity.genesis == OLD.genesis
    assert sorted(p.name for p in (home / "identity").iterdir()) == ["node.key", "owner.key", "root.key"]
    assert sorted(p.name for p in home.iterdir()) == ["identity", "mesh.db"]
    database = Database(home / "mesh.db", store.SCHEMA)
    assert store.secrets(database.reader, GATE) == {0: OLD.gates[0]}
    assert store.secrets(database.reader, FLEET) == {0: OLD.fleet_key}
    control = store.lane_records(database.reader, Lane.CONTROL)
    assert set(control) == set(OLD.records)
    database.close()


def test_founding_makes_a_mesh_of_one_whose_gate_is_committed_to():
    members = Members(decode_untrusted(Genesis, OLD.genesis, bytes_max=200), mesh_id(OLD.genesis), OLD.records)
    own = members.certificates[node_id(OLD.keys["node"].public)]
    assert own.owner == owner_id(OLD.keys["owner"].public)
    assert own.owner_proven
    epochs = [decode_untrusted(EpochBody, r.body, bytes_max=128).commitment for r in OLD.records if r.kind == EPOCH]
    assert epochs == [gate_commitment(OLD.gates[0])]
    assert len({key.seed for key in OLD.keys.values()} | {OLD.gates[0], OLD.fleet_key}) == 5


def test_only_a_wholly_fresh_home_is_fresh(tmp_path: Path):
    """O-P2."""
    assert is_fresh(tmp_path)
    (tmp_path / "log").mkdir()
    (tmp_path / "identity").mkdir()
    (tmp_path / "moving").mkdir()
    assert is_fresh(tmp_path)
    (tmp_path / "identity" / "node.key").touch()
    assert not is_fresh(tmp_path)
    shutil.rmtree(tmp_path / "identity")
    (tmp_path / "mesh.db").touch()
    assert not is_fresh(tmp_path)
    (tmp_path / "mesh.db").unlink()
    (tmp_path / "moved").mkdir()
    assert not is_fresh(tmp_path), "a decided move is a home, also where nobody finished it yet"


# Key files ------------------------------------------------------------------------------------------------------------


def test_nothing_secret_is_ever_readable_by_others(tmp_path: Path):
    """O-P7, SECURITY: under umask 000, every file and folder looked at all the time while a home is founded and moved."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    wide: set[str] = set()
    looked = 0
    over = threading.Event()

    def look() -> None:
        nonlocal looked
        while not over.is_set():
            for folder, folders, files in os.walk(home):
                for path in (Path(folder) / name for name in folders + files):
                    try:
                        mode = path.lstat().st_mode
                    except OSError:
                        continue
                    looked += 1
                    if mode & 0o077:
                        wide.add(f"{path.relative_to(home)} {oct(mode)}")

    watcher = threading.Thread(target=look)
    before = os.umask(0)
    try:
        watcher.start()
        for number in range(15):
            settle(home, goods(number))
    finally:
        over.set()
        watcher.join()
        os.umask(before)
    assert looked > 100
    assert wide == set()


def test_every_key_file_is_opened_private_and_not_narrowed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[tuple[str, int, int]] = []
    real = os.open

    def noted(path, flags, mode=0o777, **more):
        opened.append((Path(os.fsdecode(path)).name, flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(os, "chmod", lambda *a, **k: pytest.fail("rights are given at the opening, not afterwards"))
    write_key(tmp_path / "node.key", OLD.keys["node"])
    name, flags, mode = opened[0]
    assert (name, mode) == ("node.key", 0o600)
    assert flags & os.O_CREAT
    assert flags & os.O_EXCL


def test_a_key_is_written_once_and_read_back(tmp_path: Path):
    write_key(tmp_path / "node.key", OLD.keys["node"])
    assert read_key(tmp_path / "node.key").seed == OLD.keys["node"].seed
    before = (tmp_path / "node.key").read_bytes()
    with pytest.raises(OurFault, match=r"node\.key"):
        write_key(tmp_path / "node.key", NEW.keys["node"])
    with pytest.raises(OurFault):
        write_key(tmp_path / "missing" / "node.key", NEW.keys["node"])
    assert (tmp_path / "node.key").read_bytes() == before


def test_wide_rights_are_narrowed(home: Path):
    """O-P7: chmod 644 key, restart: repaired."""
    key = home / "identity" / "node.key"
    for mode in (0o644, 0o660, 0o604, 0o777):
        key.chmod(mode)
        start(home)
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


SPOILED: dict[str, Callable[[Path], object]] = {
    "missing": lambda p: p.unlink(),
    "empty": lambda p: os.truncate(p, 0),
    "16 bytes": lambda p: os.truncate(p, 16),
    "33 bytes": lambda p: p.write_bytes(bytes(33)),
    "a directory": as_directory,
    "a link": as_link,
    "a fifo": lambda p: (p.unlink(), os.mkfifo(p)),
    "another machine's": lambda p: p.write_bytes(bytes(32)),
}


@pytest.mark.parametrize("key", ["node", "owner", "root"])
@pytest.mark.parametrize("how", SPOILED)
def test_a_spoiled_key_stops_the_node_names_the_file_and_stays_as_it_is(home: Path, key: str, how: str):
    """O-P2: no new identity, ever; the same for the person's own key on the machine that holds it."""
    path = home / "identity" / f"{key}.key"
    SPOILED[how](path)
    regular = path.is_file() and not path.is_symlink()
    before = (os.path.lexists(path), path.read_bytes() if regular else None, sorted(p.name for p in path.parent.iterdir()))
    with pytest.raises(Damaged) as caught:
        start(home)
    assert caught.value.path == str(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert (os.path.lexists(path), path.read_bytes() if regular else None, sorted(p.name for p in path.parent.iterdir())) == before
    assert not is_fresh(home)


def test_the_key_of_another_member_of_the_same_mesh_is_foreign_too(home: Path):
    """A wrong backup must not make two machines one."""
    other = SigningKey(bytes(32))
    mesh = mesh_id(OLD.genesis)
    body = CertificateBody(
        other.public, OLD.keys["owner"].public, node_id(other.public), "other", "ana", 2, node_id(OLD.keys["node"].public), bytes(8), 0, 1 << 39, None
    )  # fmt: skip
    wire = issue(OLD.keys["node"], mesh, body, sign_owner(OLD.keys["owner"], mesh, node_id(other.public), other.public))
    database = Database(home / "mesh.db", store.SCHEMA)
    record = make(OLD.keys["node"], mesh, 1, node_id(other.public), NOW.wall_ms << 16, wire)
    database.write_now(lambda c: store.put_record(c, record, 0))
    database.close()
    (home / "identity" / "node.key").write_bytes(other.seed)
    with pytest.raises(Damaged, match=r"node\.key"):
        start(home)


def test_a_machine_without_its_persons_key_starts_without_it(tmp_path: Path):
    """A second machine of mine never had one."""
    settle(tmp_path, Belongings({"node": OLD.keys["node"]}, OLD.genesis, OLD.records, OLD.gates, OLD.fleet_key))
    assert start(tmp_path).owner is None


def test_an_unreadable_key_is_named(home: Path):
    """Run as somebody who may not read it."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    code = """
import ctypes, os, sys
from pathlib import Path
from mesh.base.errors import Damaged
from mesh.identity import read_key
os.setgid(65534); os.setuid(65534)
try:
    read_key(Path(sys.argv[1]))
except Damaged as damaged:
    print(damaged.path)
"""
    key = home / "identity" / "node.key"
    done = subprocess.run([sys.executable, "-c", code, str(key)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(key), done.stderr


# The database beside the keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "empty", "directory", "garbage", "genesis gone", "genesis spoiled", "own certificate gone", "hostile rows"])
def test_a_spoiled_database_beside_keys_stops_the_node_or_is_passed_over(home: Path, how: str):
    """O-B4, SECURITY 17: pairings hurt: stop with what to do; rows that are nothing: start."""
    path = home / "mesh.db"
    if how in ("missing", "empty", "directory", "garbage"):
        path.unlink()
    if how == "empty":
        path.touch()
    if how == "directory":
        path.mkdir()
    if how == "garbage":
        path.write_bytes(b"garbage" * 1000)
    if how in ("genesis gone", "genesis spoiled", "own certificate gone", "hostile rows"):
        connection = apsw.Connection(str(path))
        if how == "genesis gone":
            connection.execute("DELETE FROM fact")
        elif how == "genesis spoiled":
            connection.execute("UPDATE fact SET value=x'80' WHERE name='genesis'")
        elif how == "own certificate gone":
            connection.execute("DELETE FROM record WHERE kind=1")
        else:
            for number in range(300):
                row = (os.urandom(32), os.urandom(16), number % 50, number % 50, os.urandom(9), number, number % 5, None, 0, os.urandom(number))
                connection.execute("INSERT INTO record VALUES (?,?,?,?,?,?,?,?,?,?)", row)
        connection.close()
    if how == "hostile rows":
        assert start(home).node_id == node_id(OLD.keys["node"].public)
        return
    with pytest.raises(Damaged) as caught:
        start(home)
    assert caught.value.path == str(path)
    assert caught.value.hint
    assert (home / "identity" / "node.key").read_bytes() == OLD.keys["node"].seed


# Moving ----------------------------------------------------------------------------------------------------------------


def test_moving_takes_the_place_of_what_was(home: Path):
    decide_move(home, NEW, NOW.wall_ms)
    with pytest.raises(Refused) as caught:
        decide_move(home, goods("third"), NOW.wall_ms)
    assert caught.value.reason == "moving"
    assert start(home).genesis == NEW.genesis
    assert sorted(p.name for p in home.iterdir()) == ["identity", "mesh.db"]
    finish_move(home)


def test_the_old_databases_journal_never_meets_the_new_one(home: Path):
    """A journal left by a killed node belongs to the old file; beside the new one it would be replayed into it."""
    database = Database(home / "mesh.db", store.SCHEMA)
    database.write_now(lambda c: store.put_fact(c, "genesis", b"canary of the old"))
    for name in ("mesh.db-wal", "mesh.db-shm"):
        shutil.copy(home / name, home / f"{name}.kept")
    database.close()
    for name in ("mesh.db-wal", "mesh.db-shm"):
        (home / f"{name}.kept").rename(home / name)
    decide_move(home, NEW, NOW.wall_ms)
    assert start(home).genesis == NEW.genesis


def test_what_a_crash_left_half_made_is_made_anew(home: Path):
    (home / "moving" / "identity").mkdir(parents=True)
    (home / "moving" / "identity" / "node.key").write_bytes(b"half")
    (home / "moving" / "mesh.db").write_bytes(b"half")
    settle(home, NEW)
    assert start(home).genesis == NEW.genesis


STEPS = ("open", "fsync", "mkdir", "rename", "replace", "unlink", "rmdir")


class Stop(BaseException):
    """The process ends here."""


def break_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> Callable[[], int]:
    """Have the ``step``-th call that changes the disk raise instead; returns how many calls there were."""
    calls = 0

    def broken(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                raise error
            return real(*arguments, **named)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, broken(getattr(os, name)))
    return lambda: calls


def steps_of_a_move(tmp_path: Path) -> int:
    folder = tmp_path / "counted"
    folder.mkdir()
    settle(folder, OLD)
    with pytest.MonkeyPatch.context() as patch:
        calls = break_at(patch, -1, Stop())
        settle(folder, NEW)
        return calls()


def test_a_disk_that_refuses_any_step_leaves_the_old_state_or_the_new_one(tmp_path: Path):
    """Each call that changes the disk fails once, with a full disk: our fault, and the next start finds a whole home."""
    found = []
    for step in range(1, steps_of_a_move(tmp_path) + 1):
        folder = tmp_path / str(step)
        folder.mkdir()
        settle(folder, OLD)
        with pytest.MonkeyPatch.context() as patch:
            break_at(patch, step, OSError(errno.ENOSPC, "No space left on device"))
            try:
                settle(folder, NEW)
            except MeshError as fault:
                found.append(type(fault).__name__)
        assert start(folder).genesis in (OLD.genesis, NEW.genesis)
        settle(folder, NEW)
        assert start(folder).genesis == NEW.genesis
    assert set(found) == {"OurFault"}
    assert len(found) > 10


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from mesh.base.errors import MeshError
from tests.unit.mesh.test_identity import NEW, OLD, STEPS, settle, start
place, fresh = Path(sys.argv[1]), sys.argv[2] == "fresh"
step = 0
while True:
    step += 1
    home = place / str(step)
    home.mkdir()
    if not fresh:
        settle(home, OLD)
    child = os.fork()
    if child == 0:
        calls = 0
        def killing(real):
            def call(*a, **k):
                global calls
                calls += 1
                if calls == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*a, **k)
            return call
        for name in STEPS:
            setattr(os, name, killing(getattr(os, name)))
        settle(home, NEW)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    from mesh.identity import finish_move, is_fresh
    finish_move(home)
    if is_fresh(home):
        state = "fresh"
        settle(home, NEW)
    else:
        state = {OLD.genesis: "old", NEW.genesis: "new"}[start(home).genesis]
        left = sorted(p.name for p in home.iterdir())
        assert left in (["identity", "mesh.db"], ["identity", "mesh.db", "moving"]), left
    print(state, flush=True)
    if os.WIFEXITED(status):
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
"""


@pytest.mark.parametrize("what", ["fresh", "old"])
def test_a_kill_at_any_step_leaves_the_old_state_or_the_new_one(tmp_path: Path, what: str):
    """A real process, really killed before each call that changes the disk, while founding and while moving."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), what], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    states = done.stdout.split()
    assert len(states) > 10
    assert states == [what] * states.count(what) + ["new"] * states.count("new"), "once decided, decided"
    assert states.count(what) > 5
    assert states.count("new") > 3
    assert signal.SIGKILL


FULL = """
import os, sys
from pathlib import Path
from mesh.base.errors import MeshError
from tests.unit.mesh.test_identity import NEW, OLD, settle, start
home = Path(sys.argv[1])
settle(home, OLD)
ballast = home / "ballast"
free = 0
while True:
    stats = os.statvfs(home)
    ballast.write_bytes(bytes(max(0, stats.f_bavail * stats.f_frsize - free)))
    try:
        settle(home, NEW)
        outcome = "moved"
    except MeshError as fault:
        outcome = type(fault).__name__
    ballast.unlink()
    genesis = start(home).genesis
    print(outcome, {OLD.genesis: "old", NEW.genesis: "new"}[genesis])
    if outcome == "moved":
        break
    free += 4096
"""


def test_a_full_disk_at_any_point_leaves_the_old_state_or_the_new_one(tmp_path: Path):
    """A real tmpfs with four kilobytes more room at each try: also where SQLite's journal fits and its file does not."""
    flags = ["-m"] if os.geteuid() == 0 else ["-rm"]
    if shutil.which("unshare") is None or subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")
    command = f'mount -t tmpfs -o size=3m tmpfs {tmp_path} && mkdir {tmp_path}/home && exec {sys.executable} -c "$0" {tmp_path}/home'
    done = subprocess.run(["unshare", *flags, "sh", "-c", command, FULL], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *before, last = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert last == ("moved", "new")
    assert len(before) > 5
    assert {state for _, state in before} == {"old"}, "nothing was said to have failed that happened"
    assert {fault for fault, _ in before} <= {"OurFault", "StorageFull"}


def test_the_room_has_no_other_way_to_make_a_key():
    assert [name for name in vars(room) if "key" in name.lower() and callable(getattr(room, name))] == ["SigningKey", "write_key", "read_key"]
