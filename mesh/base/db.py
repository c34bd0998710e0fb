"""The one way to open SQLite: pragmas, migrations, one writer a file, typed errors.

Point reads run directly on a read connection (microseconds). Writes run off the event loop, many callers' in one
transaction: whoever holds the writer's lock commits everything that waited, so a hundred acknowledgements cost one
sync of the disk. SQL text stands in the rooms that own a schema, as functions of a connection.
"""

from __future__ import annotations

import os
import stat
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import outcome

from mesh.base.errors import Damaged, OurFault, Refused

if TYPE_CHECKING:
    import trio

Connection = apsw.Connection
T = TypeVar("T")

PENDING_MAX = 1024
"""Writes that may wait for the writer; the next caller waits for a place."""
BUSY_TIMEOUT_MS = 5_000
JOURNAL_BYTES_MAX = 16 << 20
CACHE_KIB = 4_096
READ_STEPS = 4_000
"""SQLite instructions between two looks at the clock of a bounded read."""
_NETWORK_FILE_SYSTEMS = {0x6969: "NFS", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2", 0x517B: "SMB", 0x65735546: "FUSE"}


class StorageFull(OurFault):
    """The disk is full."""

    kind = "disk_full"


class ReadTooLong(Refused):
    """A read took longer than it may."""

    kind = "too_costly"


def fault_of(error: apsw.Error, path: Path) -> Exception:
    """Turn a SQLite error into one of ours.

    Args:
        error: What SQLite said.
        path: The file it happened to.

    Returns:
        The error to raise.
    """
    if isinstance(error, apsw.FullError):
        return StorageFull(f"the disk is full: {path.name} could not be written", hint="free some space; nothing acknowledged is lost")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return Damaged(f"{path} is damaged", path=str(path), hint="stop the node, keep the file, and restore a backup of it")
    if isinstance(error, (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError, apsw.IOError)):
        return OurFault(f"{path} cannot be written: {error}", hint="check the folder's rights and the disk")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return OurFault(f"{path.name} is locked by another program", hint="try again; if it stays, see which program holds it")
    return error


def _connect(path: Path, schema: Sequence[str], *, durable: bool) -> apsw.Connection:
    """Open, check and migrate; the caller translates errors. A file that is refused is left as it was."""
    connection = apsw.Connection(str(path))
    try:
        _prepare(connection, path, schema, durable=durable)
    except BaseException:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()
        raise
    return connection


def _prepare(connection: apsw.Connection, path: Path, schema: Sequence[str], *, durable: bool) -> None:
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.execute(f"PRAGMA journal_size_limit={JOURNAL_BYTES_MAX}")
    connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    if connection.execute("PRAGMA quick_check(1)").get != "ok":
        raise apsw.CorruptError("quick_check")
    _migrate(connection, path, schema)


def _migrate(connection: apsw.Connection, path: Path, schema: Sequence[str]) -> None:
    """Bring the schema up to date, one script a version, all in one transaction."""
    if connection.execute("PRAGMA user_version").get == len(schema):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").get
        if version > len(schema):
            raise Refused(f"{path.name} was written by a newer version of hivemesh", hint="update hivemesh on this machine")
        for script in schema[version:]:
            connection.execute(script)
        connection.execute(f"PRAGMA user_version={len(schema)}")
    except BaseException:
        # A full or failing disk ends the transaction by itself; undoing it again would hide the reason.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _refuse_network_disk(path: Path) -> None:
    """WAL needs shared memory, which network file systems lack."""
    folder = os.fsencode(path.parent)
    try:
        kind = _file_system_type(folder)
    except OSError:
        return
    name = _NETWORK_FILE_SYSTEMS.get(kind)
    if name and name != "FUSE":
        raise Refused(f"{path.parent} is on a network disk ({name})", hint="put the home on a local disk: --home DIR or HIVEMESH_HOME")


def _file_system_type(folder: bytes) -> int:
    """Ask Linux for the type number of a file system; 0 elsewhere."""
    import ctypes
    import sys

    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(256)
    if libc.statfs(folder, buffer) != 0:
        raise OSError(ctypes.get_errno(), "statfs")
    return int.from_bytes(buffer.raw[:4], "little")


class _Pending:
    __slots__ = ("result", "work")

    def __init__(self, work: Callable[[Connection], Any]) -> None:
        self.work = work
        self.result: outcome.Outcome[Any] | None = None


class Database:
    """One SQLite file of this process: a reader and a writer connection.

    Args:
        path: The file; made with mode 0600 in an existing folder.
        schema: One script a version, oldest first; never edited, only added to.
        durable: Whether a commit waits for the disk (FULL) or survives only a crash of the process (NORMAL).

    Raises:
        Damaged: The file is not a sound database.
        Refused: It was written by a newer version, or lies on a network disk.
        OurFault: It cannot be opened or written.
    """

    def __init__(self, path: Path, schema: Sequence[str], *, durable: bool = True) -> None:
        self.path = path
        _refuse_network_disk(path)
        try:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise Damaged(f"{path} is not a file", path=str(path), hint="move it away")
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._writer = _connect(path, schema, durable=durable)
            self.reader = apsw.Connection(str(path))
            self.reader.set_busy_timeout(BUSY_TIMEOUT_MS)
            self.reader.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            self.reader.execute("PRAGMA query_only=ON")
        except apsw.Error as error:
            raise fault_of(error, path) from error
        except OSError as error:
            raise OurFault(f"{path} cannot be opened: {error.strerror}", hint="check the folder's rights and the disk") from error
        self._pending: list[_Pending] = []
        self._turn = threading.Lock()
        self._lock: trio.Lock | None = None
        self._places: trio.Semaphore | None = None

    def close(self) -> None:
        """Close both connections; further use is a programming mistake."""
        self.reader.close()
        self._writer.close()

    def write_now(self, work: Callable[[Connection], T]) -> T:
        """Run one write in its own transaction, blocking. For start-up, commands and the simulator.

        Args:
            work: Does the SQL; its return value is returned, its exception rolls back.

        Returns:
            What ``work`` returned, after the commit.

        Raises:
            StorageFull, Damaged, OurFault: The commit did not happen.
        """
        entry = _Pending(work)
        self._run_batch([entry])
        assert entry.result is not None
        return entry.result.unwrap()  # type: ignore[no-any-return]

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run one write off the event loop; returns after the commit.

        Args:
            work: Does the SQL, in a thread, holding the writer; must not touch trio.

        Returns:
            What ``work`` returned.

        Raises:
            StorageFull, Damaged, OurFault: The commit did not happen.

        If cancelled: the write either never happens or happens whole; which one is not known to the caller.
        """
        import trio

        if self._lock is None or self._places is None:
            self._lock, self._places = trio.Lock(), trio.Semaphore(PENDING_MAX)
        entry = _Pending(work)
        async with self._places:
            self._pending.append(entry)
            try:
                async with self._lock:
                    if entry.result is None:
                        batch, self._pending = self._pending, []
                        with trio.CancelScope(shield=True):
                            await trio.to_thread.run_sync(self._run_batch, batch)
            finally:
                if entry in self._pending:
                    self._pending.remove(entry)
        assert entry.result is not None
        return entry.result.unwrap()  # type: ignore[no-any-return]

    def _run_batch(self, batch: list[_Pending]) -> None:
        """Run every entry in its own savepoint of one transaction; a failed commit fails them all.

        A blocking write waits here for the batch that runs in a thread: SQLite's connection takes one at a time.
        """
        with self._turn:
            self._run_transaction(batch)

    def _run_transaction(self, batch: list[_Pending]) -> None:
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            for entry in batch:
                self._run_entry(entry)
            writer.execute("COMMIT")
        except apsw.Error as error:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            for entry in batch:
                entry.result = outcome.Error(fault_of(error, self.path))

    def _run_entry(self, entry: _Pending) -> None:
        """Run one write; raises where SQLite gave up the whole transaction, which then fails every entry."""
        writer = self._writer
        writer.execute("SAVEPOINT entry")
        entry.result = outcome.capture(entry.work, writer)
        if isinstance(entry.result, outcome.Error):
            error = entry.result.error
            if isinstance(error, apsw.Error):
                if isinstance(error, apsw.FullError) or not writer.in_transaction:
                    raise error
                entry.result = outcome.Error(fault_of(error, self.path))
            writer.execute("ROLLBACK TO entry")
        writer.execute("RELEASE entry")


def read_stamp(path: Path) -> int:
    """Read the number a database was stamped with; 0 where it never was.

    Args:
        path: A sound database.

    Raises:
        Damaged, OurFault: It cannot be read.
    """
    return _on_its_own(path, lambda connection: int(connection.execute("PRAGMA application_id").get))


def put_stamp(path: Path, number: int) -> None:
    """Stamp a database with a number, durably; it travels with every copy of the file.

    Args:
        path: A sound database, also one that is open elsewhere in this process.
        number: 0 to 2**31 - 1.

    Raises:
        StorageFull, Damaged, OurFault: It was not stamped.
    """

    def work(connection: Connection) -> None:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA application_id={int(number)}")

    _on_its_own(path, work)


def _on_its_own(path: Path, work: Callable[[Connection], T]) -> T:
    """Do something over a connection of its own."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            return work(connection)
        finally:
            connection.close()
    except apsw.Error as error:
        raise fault_of(error, path) from error


def write_whole(path: Path, schema: str, fill: Callable[[Connection], T]) -> T:
    """Build a database file aside and put it in place of the old one in one step.

    Readers hold either the old file or the new one, never half of one, and nothing of the old content stays in pages
    of the new file. The same input makes the same bytes.

    Args:
        path: The file to make or replace, mode 0600, in an existing folder.
        schema: One script.
        fill: Does the SQL, in one transaction; its exception leaves the old file as it was.

    Returns:
        What ``fill`` returned, after the new file is in place and on the disk.

    Raises:
        StorageFull, OurFault: The new file could not be written; the old one is unchanged.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        aside.unlink(missing_ok=True)
        os.close(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        result = _fill(aside, schema, fill)
        _sync(aside)
        os.replace(aside, path)
        _sync(path.parent)
    except apsw.Error as error:
        raise fault_of(error, path) from error
    except OSError as error:
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from error
    finally:
        aside.unlink(missing_ok=True)
    return result


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fill(aside: Path, schema: str, fill: Callable[[Connection], T]) -> T:
    """Run the one transaction of a new file; a crash leaves only the file aside, so it needs no journal."""
    connection = apsw.Connection(str(aside))
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute(f"PRAGMA cache_size=-{4 * CACHE_KIB}")
        connection.execute(schema)
        connection.execute("BEGIN IMMEDIATE")
        result = fill(connection)
        connection.execute("COMMIT")
    finally:
        connection.close()
    return result


def _allow_reading(action: int, first: str | None, second: str | None, base: str | None, inner: str | None) -> int:
    """Allow what a search needs and nothing else: no ATTACH (so no VACUUM INTO either), no PRAGMA, no write."""
    if action in (apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION):
        return apsw.SQLITE_OK
    if action == apsw.SQLITE_PRAGMA and first == "data_version":
        return apsw.SQLITE_OK
    return apsw.SQLITE_DENY


class WholeFile:
    """Read a file made by :func:`write_whole`: immutable, read-only, with an authorizer that knows SELECT only.

    One caller at a time; open one a thread. It keeps the file it opened, also after the path holds a newer one.

    Args:
        path: The file.

    Raises:
        Damaged: It is not a sound database.
        OurFault: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        address = "file:" + urllib.parse.quote(str(path)) + "?immutable=1"
        try:
            self._connection = apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            self._connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            self._connection.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
            self._connection.execute("PRAGMA trusted_schema=OFF")
            self._connection.execute("SELECT count(*) FROM sqlite_schema")
            self._connection.authorizer = _allow_reading
        except apsw.Error as error:
            raise fault_of(error, path) from error

    def close(self) -> None:
        """Close the file; further use is a programming mistake."""
        self._connection.close()

    def read(self, work: Callable[[Connection], T], *, time_ms_max: int) -> T:
        """Run reads, ended by force when they take too long.

        Args:
            work: Does the SQL.
            time_ms_max: Milliseconds from now after which SQLite stops in the middle of a statement.

        Returns:
            What ``work`` returned.

        Raises:
            ReadTooLong: The time was up.
            Damaged, OurFault: The file could not be read.
        """
        end_s = time.monotonic() + time_ms_max / 1000
        self._connection.set_progress_handler(lambda: time.monotonic() > end_s, READ_STEPS)
        try:
            return work(self._connection)
        except apsw.InterruptError:
            raise ReadTooLong(f"the search took longer than {time_ms_max} ms", reason="too_costly", hint="ask with fewer or rarer words") from None
        except apsw.Error as error:
            raise fault_of(error, self.path) from error
        finally:
            self._connection.set_progress_handler(None)
