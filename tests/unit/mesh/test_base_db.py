"""SQLite opened one way: many writers, one commit; a full disk, a damaged file, a killed process, an older program."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio

from mesh.base import db
from mesh.base.db import Connection, Database, ReadTooLong, StorageFull, WholeFile, write_whole
from mesh.base.errors import Damaged, MeshError, OurFault, Refused

SCHEMA = ("CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL); CREATE TABLE blob (data BLOB);",)
ROOT = Path(__file__).parents[3]


def add_one(connection: Connection) -> int:
    """Read, then write, in one transaction."""
    row = connection.execute("SELECT value FROM counter WHERE name='x'").fetchone()
    value = (row[0] if row else 0) + 1
    connection.execute("INSERT OR REPLACE INTO counter VALUES ('x', ?)", (value,))
    return value


def count(database: Database) -> int:
    row = database.reader.execute("SELECT value FROM counter WHERE name='x'").fetchone()
    return row[0] if row else 0


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Writing ---------------------------------------------------------------------------------------------------------------

ADDING = """
import sys
from pathlib import Path
from mesh.base.db import Database
from tests.unit.mesh.test_base_db import SCHEMA, add_one
database = Database(Path(sys.argv[1]), SCHEMA, durable=False)
for _ in range(int(sys.argv[2])):
    database.write_now(add_one)
print("done", flush=True)
"""


async def test_eight_tasks_and_a_second_process_read_then_write_without_a_lock_error(tmp_path: Path):
    """O-B1: no error, exact sum."""
    path = tmp_path / "x.db"
    database = Database(path, SCHEMA, durable=False)
    other = child(ADDING, path, 200)

    async def add() -> None:
        for _ in range(100):
            await database.write(add_one)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(add)
        out, problems = await trio.to_thread.run_sync(other.communicate)
    assert (out, problems, other.returncode) == ("done\n", "", 0)
    assert count(database) == 8 * 100 + 200
    database.close()


async def test_waiting_writes_share_one_commit(tmp_path: Path):
    """A hundred acknowledgements cost a few syncs of the disk, not a hundred."""
    database = Database(tmp_path / "x.db", SCHEMA)
    commits = 0

    def counted() -> bool:
        nonlocal commits
        commits += 1
        return False

    database._writer.set_commit_hook(counted)
    results: list[int] = []

    async def add() -> None:
        results.append(await database.write(add_one))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(add)
    assert sorted(results) == list(range(1, 101))
    assert count(database) == 100
    assert commits <= 3
    database.close()


async def test_one_failing_write_fails_alone_and_is_rolled_back(tmp_path: Path):
    database = Database(tmp_path / "x.db", SCHEMA)
    outcomes: list[object] = []

    def fail(connection: Connection) -> None:
        add_one(connection)
        raise Refused("no", reason="test")

    async def run(work: Callable[[Connection], object]) -> None:
        try:
            outcomes.append(await database.write(work))
        except Refused as refused:
            outcomes.append(refused.reason)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(run, fail if number % 3 == 0 else add_one)
    assert outcomes.count("test") == 4
    assert count(database) == 6
    with pytest.raises(Refused):
        database.write_now(fail)
    assert count(database) == 6
    database.close()


async def test_a_mistake_in_sql_is_raised_to_who_made_it(tmp_path: Path):
    database = Database(tmp_path / "x.db", SCHEMA)
    with pytest.raises(apsw.SQLError):
        await database.write(lambda c: c.execute("SELECT nothing"))
    with pytest.raises(apsw.ConstraintError):
        database.write_now(lambda c: c.execute("INSERT INTO counter VALUES ('x', NULL)"))
    assert database.write_now(add_one) == 1
    database.close()


@pytest.mark.parametrize("error", [apsw.CorruptError, apsw.IOError, apsw.NotADBError, apsw.FullError])
def test_a_fault_of_the_file_inside_a_write_is_a_fault_of_ours_with_the_files_name(tmp_path: Path, error: type[apsw.Error]):
    database = Database(tmp_path / "x.db", SCHEMA)

    def fail(connection: Connection) -> None:
        add_one(connection)
        raise error("from inside")

    with pytest.raises((Damaged, OurFault), match=r"x\.db"):
        database.write_now(fail)
    assert database.write_now(add_one) == 1
    database.close()


async def test_a_cancelled_write_happens_whole_or_never_and_the_rest_goes_on(tmp_path: Path):
    database = Database(tmp_path / "x.db", SCHEMA)
    started, release = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    finished: list[str] = []

    def slow(connection: Connection) -> int:
        trio.from_thread.run_sync(started.set, trio_token=token)
        trio.from_thread.run(release.wait, trio_token=token)
        return add_one(connection)

    async def write(name: str, work: Callable[[Connection], int], scope: trio.CancelScope) -> None:
        with scope:
            await database.write(work)
            finished.append(name)

    holding, waiting, patient = trio.CancelScope(), trio.CancelScope(), trio.CancelScope()
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, "holding", slow, holding)
            await started.wait()
            nursery.start_soon(write, "waiting", add_one, waiting)
            nursery.start_soon(write, "patient", add_one, patient)
            await trio.testing.wait_all_tasks_blocked()
            holding.cancel()
            waiting.cancel()
            await trio.testing.wait_all_tasks_blocked()
            release.set()
    assert "patient" in finished
    assert "waiting" not in finished
    assert count(database) == 2, "the one in the thread happened whole, the one that waited never"
    assert database._pending == []
    assert await database.write(add_one) == 3
    database.close()


async def test_more_writers_than_places_wait_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(db, "PENDING_MAX", 4)
    database = Database(tmp_path / "x.db", SCHEMA, durable=False)
    most = 0

    def look(connection: Connection) -> int:
        nonlocal most
        most = max(most, len(database._pending))
        return add_one(connection)

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(database.write, look)
    assert count(database) == 50
    assert most <= 4
    database.close()


def test_the_log_of_a_long_run_of_writes_stays_small(tmp_path: Path):
    """O-B2: the journal does not grow with the number of writes."""
    path = tmp_path / "x.db"
    database = Database(path, SCHEMA, durable=False)
    for _ in range(3000):
        database.write_now(lambda c: c.execute("INSERT OR REPLACE INTO blob (rowid, data) VALUES (1, ?)", (os.urandom(4000),)))
    assert Path(f"{path}-wal").stat().st_size < db.JOURNAL_BYTES_MAX
    database.close()


def test_a_log_that_a_reader_pinned_is_cut_back_once_it_is_gone(tmp_path: Path):
    """O-B2: an outside reader keeps its view through many writes; two ordinary writes after it ended the log is small again."""
    path = tmp_path / "x.db"
    database = Database(path, SCHEMA, durable=False)
    database.write_now(add_one)
    pinned = apsw.Connection(str(path))
    pinned.execute("BEGIN")
    assert pinned.execute("SELECT count(*) FROM blob").get == 0
    for _ in range(24):
        database.write_now(lambda c: c.execute("INSERT OR REPLACE INTO blob (rowid, data) VALUES (1, ?)", (bytes(1 << 20),)))
    assert Path(f"{path}-wal").stat().st_size > db.JOURNAL_BYTES_MAX, "the reader pins nothing: this test shows nothing"
    assert pinned.execute("SELECT count(*) FROM blob").get == 0
    pinned.close()
    for _ in range(2):
        database.write_now(add_one)
    assert Path(f"{path}-wal").stat().st_size <= db.JOURNAL_BYTES_MAX
    database.close()


async def test_many_questions_writes_and_child_processes_at_once_do_no_harm(tmp_path: Path):
    """O-B6: one reader and one writer a file, both of this process; what is spawned meanwhile inherits nothing of them."""
    database = Database(tmp_path / "x.db", SCHEMA)
    descriptors: list[str] = []

    async def ask() -> None:
        for _ in range(20):
            assert count(database) >= 0
            await database.write(add_one)

    async def spawn() -> None:
        for _ in range(5):
            done = await trio.run_process(["ls", "-l", "/proc/self/fd"], capture_stdout=True)
            descriptors.append(done.stdout.decode())

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask)
        nursery.start_soon(spawn)
    assert count(database) == 50 * 20
    assert len(descriptors) == 5
    assert not any("x.db" in listed for listed in descriptors)
    database.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_what_is_acknowledged_was_synced_before(tmp_path: Path):
    """O-B7: the sync comes before the word that it is done, in the order the system saw them."""
    writing = WRITING.replace("while True:", "for _ in range(3):")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", sys.executable, "-c", writing, str(tmp_path / "x.db")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    if "ptrace" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("tracing is not allowed here")
    assert done.stdout.split() == ["1", "2", "3"]
    lines = trace.read_text().splitlines()
    said = [at for at, line in enumerate(lines) if re.search(r'write\(1, "[123](\\n)?", [12]\)', line)]
    synced = [at for at, line in enumerate(lines) if "sync(" in line and "= 0" in line]
    assert len(said) == 3
    before = 0
    for at in said:
        assert any(before <= sync < at for sync in synced), "a word without a sync before it"
        before = at


def test_a_reader_cannot_write_and_sees_what_was_committed(tmp_path: Path):
    database = Database(tmp_path / "x.db", SCHEMA)
    with pytest.raises(apsw.ReadOnlyError):
        database.reader.execute("DELETE FROM counter")
    database.write_now(add_one)
    assert count(database) == 1
    database.close()


# Opening ---------------------------------------------------------------------------------------------------------------


def filled(path: Path, rows: int = 400) -> None:
    """A closed database of some hundred pages."""
    database = Database(path, SCHEMA, durable=False)
    database.write_now(lambda c: [c.execute("INSERT INTO blob VALUES (?)", (os.urandom(900),)) for _ in range(rows)])
    database.write_now(add_one)
    database.close()


def test_files_are_private_from_the_first_moment(tmp_path: Path):
    """O-P7, under the most careless umask."""
    before = os.umask(0)
    try:
        database = Database(tmp_path / "x.db", SCHEMA)
        database.write_now(add_one)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
        database.close()
    finally:
        os.umask(before)
    assert set(modes) == {"x.db", "x.db-wal", "x.db-shm"}
    assert set(modes.values()) == {0o600}


def test_pragmas_are_those_promised(tmp_path: Path):
    """O-B7: what is acknowledged waits for the disk unless it may be lost."""
    for durable, synchronous in ((True, 2), (False, 1)):
        database = Database(tmp_path / f"{durable}.db", SCHEMA, durable=durable)
        writer = database._writer
        got = {name: writer.execute(f"PRAGMA {name}").get for name in ("journal_mode", "synchronous", "foreign_keys", "trusted_schema")}
        assert got == {"journal_mode": "wal", "synchronous": synchronous, "foreign_keys": 1, "trusted_schema": 0}
        database.close()


def test_a_schema_grows_by_one_script_a_version(tmp_path: Path):
    path = tmp_path / "x.db"
    filled(path)
    grown = (*SCHEMA, "ALTER TABLE counter ADD COLUMN note TEXT", "CREATE TABLE later (x)")
    database = Database(path, grown)
    assert database.reader.execute("SELECT note FROM counter").get is None
    assert database.reader.execute("PRAGMA user_version").get == 3
    database.close()
    Database(path, grown).close()


def test_a_file_of_a_newer_version_is_refused_and_left_as_it_was(tmp_path: Path):
    path = tmp_path / "x.db"
    Database(path, (*SCHEMA, "CREATE TABLE later (x)")).close()
    before = path.read_bytes()
    with pytest.raises(Refused, match="newer version") as caught:
        Database(path, SCHEMA)
    assert caught.value.hint
    assert path.read_bytes() == before
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
    assert not [name for name in held if name.startswith(str(tmp_path))], "nothing stays open behind a refusal"


def test_a_failing_migration_leaves_the_old_version(tmp_path: Path):
    path = tmp_path / "x.db"
    filled(path)
    with pytest.raises(apsw.SQLError):
        Database(path, (*SCHEMA, "CREATE TABLE later (x)", "nonsense"))
    database = Database(path, SCHEMA)
    assert database.reader.execute("SELECT count(*) FROM sqlite_schema WHERE name='later'").get == 0
    assert count(database) == 1
    database.close()


def two_processes_migrate(path: Path) -> list[subprocess.Popen[str]]:
    code = """
import sys
from pathlib import Path
from mesh.base.db import Database
from tests.unit.mesh.test_base_db import SCHEMA
Database(Path(sys.argv[1]), (*SCHEMA, "CREATE TABLE later (x)")).close()
"""
    return [child(code, path) for _ in range(3)]


def test_processes_that_open_a_new_file_at_once_make_it_once(tmp_path: Path):
    for started in two_processes_migrate(tmp_path / "x.db"):
        assert started.communicate(timeout=60) == ("", "")
        assert started.returncode == 0


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "first 16 bytes": lambda p: overwrite(p, 0, b"\x00" * 16),
    "first page": lambda p: overwrite(p, 0, os.urandom(4096)),
    "second page": lambda p: overwrite(p, 4096, os.urandom(4096)),
    "middle page": lambda p: overwrite(p, p.stat().st_size // 2 // 4096 * 4096, os.urandom(4096)),
    "truncated to half": lambda p: os.truncate(p, p.stat().st_size // 2),
    "truncated in the header": lambda p: os.truncate(p, 50),
    "text instead": lambda p: p.write_text("not a database\n" * 500),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_and_kept(tmp_path: Path, damage: str):
    """O-B4: no crash, no hang, no quiet empty start; the file stays for a person to look at."""
    path = tmp_path / "x.db"
    filled(path)
    DAMAGE[damage](path)
    before = path.read_bytes()
    with pytest.raises(Damaged) as caught:
        Database(path, SCHEMA)
    assert caught.value.path == str(path)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == before


def test_a_directory_in_the_files_place_is_named(tmp_path: Path):
    (tmp_path / "x.db").mkdir()
    with pytest.raises(Damaged, match="not a file"):
        Database(tmp_path / "x.db", SCHEMA)


@pytest.mark.parametrize("name", ["folder/missing/x.db", "x" * 300])
def test_a_place_that_cannot_be_is_our_fault_with_a_hint(tmp_path: Path, name: str):
    with pytest.raises(OurFault) as caught:
        Database(tmp_path / name, SCHEMA)
    assert caught.value.hint


def test_an_unreadable_folder_is_our_fault(tmp_path: Path):
    """Run as somebody who may not: a real process, a real refusal by the kernel."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    filled(folder / "x.db", rows=1)
    code = """
import ctypes, os, sys
from pathlib import Path
from mesh.base.db import Database
from mesh.base.errors import OurFault
os.setgid(65534); os.setuid(65534)
try:
    Database(Path(sys.argv[1]), ())
except OurFault as fault:
    print("our fault:", fault.message)
"""
    out, problems = child(code, folder / "x.db").communicate(timeout=60)
    assert out.startswith("our fault:"), problems


def test_a_lost_shared_memory_file_is_made_again_and_nothing_is_lost(tmp_path: Path):
    """O-B4: delete -shm beside a journal that a killed process left."""
    path = tmp_path / "x.db"
    keep = tmp_path / "keep"
    database = Database(path, SCHEMA)
    for _ in range(5):
        database.write_now(add_one)
    keep.mkdir()
    for name in ("x.db", "x.db-wal"):
        shutil.copy(tmp_path / name, keep / name)
    database.close()
    recovered = Database(keep / "x.db", SCHEMA)
    assert count(recovered) == 5
    recovered.close()


@pytest.mark.parametrize("wal", ["zeroed", "torn", "garbage"])
def test_a_spoiled_journal_leaves_a_sound_database(tmp_path: Path, wal: str):
    """O-B4: what the journal cannot prove does not count; what was in the file before does."""
    path, keep = tmp_path / "x.db", tmp_path / "keep"
    database = Database(path, SCHEMA)
    database.write_now(add_one)
    database._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.write_now(add_one)
    keep.mkdir()
    for name in ("x.db", "x.db-wal"):
        shutil.copy(tmp_path / name, keep / name)
    database.close()
    journal = keep / "x.db-wal"
    size = journal.stat().st_size
    journal.write_bytes({"zeroed": bytes(size), "torn": journal.read_bytes()[: size - 100], "garbage": os.urandom(size)}[wal])
    recovered = Database(keep / "x.db", SCHEMA)
    assert count(recovered) == 1
    assert recovered.reader.execute("PRAGMA integrity_check").get == "ok"
    recovered.close()


def test_an_empty_file_is_a_new_database(tmp_path: Path):
    """A crash between making the file and the first page leaves one; what must not be empty is its owner's to check."""
    (tmp_path / "x.db").touch()
    database = Database(tmp_path / "x.db", SCHEMA)
    assert count(database) == 0
    database.close()


@pytest.mark.parametrize(("kind", "name"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0xFE534D42, "SMB2"), (0x517B, "SMB")])
def test_a_network_disk_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int, name: str):
    """O-B3."""
    monkeypatch.setattr(db, "_file_system_type", lambda folder: kind)
    with pytest.raises(Refused, match=name) as caught:
        Database(tmp_path / "x.db", SCHEMA)
    assert "--home" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_local_disk_is_known_as_such(tmp_path: Path):
    assert db._file_system_type(os.fsencode(tmp_path)) not in db._NETWORK_FILE_SYSTEMS
    with pytest.raises(OSError, match="statfs"):
        db._file_system_type(b"/no such folder")


# Killed and full -----------------------------------------------------------------------------------------------------

WRITING = """
import sys
from pathlib import Path
from mesh.base.db import Database
from tests.unit.mesh.test_base_db import SCHEMA, add_one
database = Database(Path(sys.argv[1]), SCHEMA)
while True:
    print(database.write_now(add_one), flush=True)
"""


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path):
    """O-B7: kill -9 in a write loop, again and again on one file."""
    path = tmp_path / "x.db"
    acknowledged = 0
    for round_number in range(6):
        writer = child(WRITING, path)
        assert writer.stdout is not None
        deadline_s = time.monotonic() + 30
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= (round_number + 1) * 20 + round_number:
                break
            assert time.monotonic() < deadline_s
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=30)
        whole = [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged = int(whole[-1]) if whole else acknowledged
        database = Database(path, SCHEMA)
        assert database.reader.execute("PRAGMA integrity_check").get == "ok"
        assert acknowledged <= count(database) <= acknowledged + 1
        database.close()
        acknowledged = max(acknowledged, 0)


async def test_a_full_database_acknowledges_nothing_it_did_not_keep(tmp_path: Path):
    database = Database(tmp_path / "x.db", SCHEMA)
    database._writer.execute("PRAGMA max_page_count=40")
    kept: list[int] = []
    full = 0

    def put(number: int, connection: Connection) -> int:
        connection.execute("INSERT INTO blob (rowid, data) VALUES (?, ?)", (number, os.urandom(3000)))
        return number

    async def one(number: int) -> None:
        nonlocal full
        try:
            kept.append(await database.write(lambda c: put(number, c)))
        except StorageFull:
            full += 1

    for start in range(1, 100, 5):
        async with trio.open_nursery() as nursery:
            for number in range(start, start + 5):
                nursery.start_soon(one, number)
    rows = {row[0] for row in database.reader.execute("SELECT rowid FROM blob")}
    assert rows == set(kept)
    assert full > 0
    database._writer.execute("PRAGMA max_page_count=4000")
    assert database.write_now(lambda c: put(1000, c)) == 1000
    database.close()


FULL = """
import os, sys
from pathlib import Path
from mesh.base.db import Database, StorageFull, write_whole
from mesh.base.errors import OurFault
from tests.unit.mesh.test_base_db import SCHEMA
folder = Path(sys.argv[1])
database = Database(folder / "x.db", SCHEMA)
kept = full = 0
for number in range(2000):
    try:
        database.write_now(lambda c: c.execute("INSERT INTO blob (rowid, data) VALUES (?, ?)", (number, os.urandom(3000))))
        kept += 1
    except StorageFull:
        full += 1
        if full == 3:
            break
assert full == 3, (kept, full)
try:
    Database(folder / "y.db", SCHEMA)
except OurFault as fault:
    print("second file:", type(fault).__name__)
try:
    write_whole(folder / "z.db", "CREATE TABLE blob (data)", lambda c: [c.execute("INSERT INTO blob VALUES (?)", (os.urandom(3000),)) for _ in range(50)])
except OurFault as fault:
    print("whole file:", type(fault).__name__, sorted(p.name for p in folder.iterdir() if p.name.startswith((".z", "z"))))
database.close()
(folder / "ballast").unlink()
database = Database(folder / "x.db", SCHEMA)
rows = database.reader.execute("SELECT count(*) FROM blob").get
assert rows == kept, (rows, kept)
assert database.reader.execute("PRAGMA integrity_check").get == "ok"
database.write_now(lambda c: c.execute("INSERT INTO blob VALUES (1)"))
print("kept all")
"""


def test_a_really_full_disk_loses_nothing_acknowledged(tmp_path: Path):
    """A tmpfs of two megabytes in a mount namespace of its own."""
    script = tmp_path / "full.py"
    script.write_text(FULL)
    disk = tmp_path / "disk"
    disk.mkdir()
    command = (
        f"mount -t tmpfs -o size=2m tmpfs {disk} && head -c 400000 /dev/zero > {disk}/ballast && exec {sys.executable} {script} {disk}"
    )
    flags = ["-m"] if os.geteuid() == 0 else ["-rm"]
    if shutil.which("unshare") is None or subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces cannot be made here")
    done = subprocess.run(
        ["unshare", *flags, "sh", "-c", command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("second file: ")
    assert done.stdout.splitlines()[1:] == ["whole file: StorageFull []", "kept all"]


@pytest.mark.parametrize(
    ("error", "family"),
    [
        (apsw.FullError, StorageFull), (apsw.CorruptError, Damaged), (apsw.NotADBError, Damaged), (apsw.ReadOnlyError, OurFault),
        (apsw.CantOpenError, OurFault), (apsw.IOError, OurFault), (apsw.BusyError, OurFault), (apsw.LockedError, OurFault),
    ],
)  # fmt: skip
def test_every_fault_of_sqlite_is_one_of_ours_with_the_file_and_what_to_do(error: type[apsw.Error], family: type[MeshError]):
    fault = db.fault_of(error("why"), Path("/somewhere/x.db"))
    assert isinstance(fault, family)
    assert "x.db" in str(fault)
    assert fault.hint  # type: ignore[attr-defined]
    mistake = apsw.SQLError("syntax")
    assert db.fault_of(mistake, Path("x.db")) is mistake


async def test_a_lock_held_by_another_program_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(db, "BUSY_TIMEOUT_MS", 50)
    database = Database(tmp_path / "x.db", SCHEMA)
    other = apsw.Connection(str(tmp_path / "x.db"))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OurFault, match="locked"):
        await database.write(add_one)
    other.execute("ROLLBACK")
    assert await database.write(add_one) == 1
    other.close()
    database.close()


# Whole files -----------------------------------------------------------------------------------------------------------

WHOLE = "CREATE TABLE line (text TEXT NOT NULL)"


def lines(*texts: str) -> Callable[[Connection], int]:
    def fill(connection: Connection) -> int:
        for text in texts:
            connection.execute("INSERT INTO line VALUES (?)", (text,))
        return len(texts)

    return fill


def read_lines(whole: WholeFile) -> list[str]:
    return whole.read(lambda c: [row[0] for row in c.execute("SELECT text FROM line")], time_ms_max=5000)


def test_a_whole_file_replaces_the_old_one_in_one_step_and_the_old_reader_keeps_the_old(tmp_path: Path):
    path = tmp_path / "index.db"
    assert write_whole(path, WHOLE, lines("a", "b")) == 2
    old = WholeFile(path)
    assert write_whole(path, WHOLE, lines("c")) == 1
    new = WholeFile(path)
    assert (read_lines(old), read_lines(new)) == (["a", "b"], ["c"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["index.db"]
    old.close()
    new.close()


def test_the_same_input_makes_the_same_bytes_and_nothing_of_the_old_content_stays(tmp_path: Path):
    one, two = tmp_path / "1.db", tmp_path / "2.db"
    write_whole(one, WHOLE, lines("canary of a deleted document", *"abc"))
    write_whole(one, WHOLE, lines(*"abc"))
    write_whole(two, WHOLE, lines(*"abc"))
    assert one.read_bytes() == two.read_bytes()
    assert b"canary" not in one.read_bytes()


def test_a_failing_fill_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path):
    path = tmp_path / "index.db"
    write_whole(path, WHOLE, lines("old"))
    before = path.read_bytes()

    def fail(connection: Connection) -> None:
        lines("new")(connection)
        raise Refused("no", reason="test")

    with pytest.raises(Refused):
        write_whole(path, WHOLE, fail)
    with pytest.raises(OurFault):
        write_whole(tmp_path / "missing" / "x.db", WHOLE, lines("x"))
    for error, family in ((apsw.FullError, StorageFull), (apsw.IOError, OurFault)):

        def full(connection: Connection, error: type[apsw.Error] = error) -> None:
            raise error("from inside")

        with pytest.raises(family):
            write_whole(path, WHOLE, full)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["index.db"]


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO line VALUES ('x')", "DELETE FROM line", "DROP TABLE line", "CREATE TABLE x (y)", "ATTACH 'other.db' AS o", "VACUUM INTO 'copy.db'",
        "PRAGMA journal_mode=DELETE", "PRAGMA user_version=9", "SELECT load_extension('x')", "BEGIN IMMEDIATE", "CREATE TEMP TABLE t (x)",
    ],
)  # fmt: skip
def test_a_reader_of_a_whole_file_can_select_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str):
    """O-Q: whatever reaches the SQL, no file is written and no other one is read."""
    monkeypatch.chdir(tmp_path)
    write_whole(tmp_path / "index.db", WHOLE, lines("a"))
    whole = WholeFile(tmp_path / "index.db")
    with pytest.raises((apsw.Error, MeshError)):
        whole.read(lambda c: c.execute(statement).fetchall(), time_ms_max=1000)
    assert read_lines(whole) == ["a"]
    assert [p.name for p in tmp_path.iterdir()] == ["index.db"]
    whole.close()


def test_a_full_text_index_can_be_searched_and_nothing_else(tmp_path: Path):
    """FTS5 looks at data_version by itself, so that one pragma is let through."""
    path = tmp_path / "index.db"
    write_whole(path, "CREATE VIRTUAL TABLE page USING fts5(text)", lambda c: c.execute("INSERT INTO page VALUES ('how auth works')"))
    whole = WholeFile(path)
    search = "SELECT text FROM page WHERE page MATCH ? ORDER BY bm25(page)"
    assert whole.read(lambda c: c.execute(search, ("auth",)).fetchall(), time_ms_max=1000) == [("how auth works",)]
    with pytest.raises((apsw.Error, MeshError)):
        whole.read(lambda c: c.execute("INSERT INTO page(page) VALUES ('optimize')").fetchall(), time_ms_max=1000)
    whole.close()


def test_a_read_that_takes_too_long_is_ended_in_the_middle(tmp_path: Path):
    write_whole(tmp_path / "index.db", WHOLE, lines(*map(str, range(300))))
    whole = WholeFile(tmp_path / "index.db")
    endless = "SELECT count(*) FROM line a, line b, line c, line d, line e WHERE a.text || b.text || c.text || d.text || e.text = 'x'"
    began_s = time.monotonic()
    with pytest.raises(ReadTooLong, match="100 ms"):
        whole.read(lambda c: c.execute(endless).get, time_ms_max=100)
    assert time.monotonic() - began_s < 5
    assert len(read_lines(whole)) == 300
    whole.close()


@pytest.mark.parametrize("damage", ["first 16 bytes", "first page", "text instead", "truncated in the header"])
def test_a_damaged_whole_file_is_named(tmp_path: Path, damage: str):
    path = tmp_path / "a name with ? and # and %20.db"
    write_whole(path, WHOLE, lines("a" * 500, "b" * 9000))
    DAMAGE[damage](path)
    with pytest.raises(Damaged) as caught:
        WholeFile(path)
    assert caught.value.path == str(path)
    with pytest.raises(OurFault):
        WholeFile(tmp_path / "missing.db")


def test_a_whole_file_damaged_further_in_is_named_when_it_is_read(tmp_path: Path):
    path = tmp_path / "index.db"
    write_whole(path, WHOLE, lines(*(str(n) * 300 for n in range(200))))
    overwrite(path, 4096, os.urandom(4096))
    whole = WholeFile(path)
    with pytest.raises(Damaged):
        read_lines(whole)
    whole.close()


def test_a_migration_that_the_database_undid_by_itself_keeps_its_reason(tmp_path: Path) -> None:
    """A full disk ends the transaction; a second undoing must not take the place of what went wrong."""
    undone = "CREATE TABLE once (name TEXT PRIMARY KEY); INSERT INTO once VALUES ('x'); INSERT OR ROLLBACK INTO once VALUES ('x');"
    with pytest.raises(apsw.ConstraintError):
        Database(tmp_path / "new.db", (undone,))
    Database(tmp_path / "new.db", SCHEMA).close()
