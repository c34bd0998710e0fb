"""Whether this home's databases are the ones it had when it last ran: a mark beside them, and a stamp inside each.

The mark is a small file outside the folder of the databases. It holds how often this home was started and the greatest
version its node ever issued; every database holds the number of the last start. A database brought back from a backup
has an older stamp, and a folder of databases brought back whole has no mark or another one. Then what happened since may
be forgotten here, so grants are not served and nobody is let in until another member told what it knows, or a person
said that the old state is meant. A machine whose mark is restored too cannot know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mesh.base.clock import VERSION_MAX, version_ms
from mesh.base.db import put_stamp, read_stamp
from mesh.base.errors import OurFault, Refused

MARK_BYTES_MAX = 512
"""A longer mark is none: it is no file of ours."""
STARTS_MAX = (1 << 31) - 1
"""A stamp is a signed number of 32 bits; a home that was started so often begins anew at one."""

ACCEPT_HINT = "link to another machine of the mesh, or, if the old state is meant: hivemesh doctor --accept-restore"


@dataclass(frozen=True, slots=True)
class Mark:
    """What the file holds.

    Attributes:
        starts: How often this home was started.
        node: Which machine: a home that joined another mesh begins anew.
        newest: The greatest version issued, and the newest moment of a boot, as a version.
        stamped: Whether every database was stamped with this start.
        restored: Whether an old state came back and nobody lifted that yet.
    """

    starts: int
    node: str
    newest: int
    stamped: bool
    restored: bool

    @property
    def after_ms(self) -> int:
        """The first millisecond after everything this home signed, as far as the mark tells."""
        return version_ms(self.newest) + 1


def read_mark(path: Path) -> Mark | None:
    """Read the mark; None where there is none, or something else in its place."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(MARK_BYTES_MAX))
        mark = Mark(int(found["starts"]), str(found["node"])[:64], int(found["newest"]), found["stamped"] is True, found["restored"] is True)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return mark if 0 < mark.starts <= STARTS_MAX and 0 <= mark.newest <= VERSION_MAX else None


def write_mark(path: Path, mark: Mark) -> None:
    """Write the mark, whole or not at all, and on the disk when this returns.

    Raises:
        OurFault: The disk refuses; the old mark is as it was.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(handle, json.dumps(asdict(mark)).encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OurFault(f"{path} cannot be written: {error.strerror}", hint="check the folder's rights and the disk") from None


def older(mark: Mark | None, stamps: Mapping[str, int]) -> list[str]:
    """Decide which databases are not as this home left them.

    Args:
        mark: What was read, or None.
        stamps: Name to stamp; 0 is a database made anew, which holds nothing old.

    Returns:
        Their names. A start that was cut off in the middle of stamping is no restore.
    """
    if mark is None:
        return [name for name, stamp in stamps.items() if stamp]
    lawful = {0, mark.starts} if mark.stamped else {0, mark.starts, mark.starts - 1}
    return [name for name, stamp in stamps.items() if stamp not in lawful]


def refuse_restored(path: Path, database: Path) -> None:
    """Refuse to serve from a database that came back from a backup, where no node runs that would notice.

    Args:
        path: The mark.
        database: Sound, or not made yet.

    Raises:
        Refused: An old state came back and nobody lifted that yet.
        Damaged, OurFault: It cannot be read.
    """
    mark = read_mark(path)
    if (mark is not None and mark.restored) or (database.exists() and older(mark, {database.name: read_stamp(database)})):
        raise Refused(f"{database.name} came back from a backup; what was revoked since may be open in it", reason="restored", hint=ACCEPT_HINT)


class Keeper:
    """The mark of a home whose node runs.

    Args:
        path: The file; its folder exists.
        node: This machine's id, as text.
        databases: Every database that must not be lost, open by this process and by nobody else.

    Raises:
        OurFault: The disk refuses.

    Attributes:
        mark: As it stands on the disk, but for ``newest``, which may be ahead of it by a minute.
    """

    def __init__(self, path: Path, node: str, databases: list[Path]) -> None:
        self._path = path
        found = read_mark(path)
        self.old = tuple(older(found, {database.name: read_stamp(database) for database in databases}))
        before = found or Mark(0, node, 0, True, False)
        newest = before.newest if before.node == node else 0
        starts = before.starts % STARTS_MAX + 1
        self.mark = Mark(starts, node, newest, False, before.restored or bool(self.old))
        write_mark(path, self.mark)
        for database in databases:
            put_stamp(database, starts)
        self._put(stamped=True)

    @property
    def restored(self) -> bool:
        """Whether an old state came back and nobody lifted that yet."""
        return self.mark.restored

    def note(self, newest: int) -> None:
        """Keep the newest version this machine signed.

        Raises:
            OurFault: The disk refuses.
        """
        if newest > self.mark.newest:
            self._put(newest=newest)

    def suspect(self) -> None:
        """Note that another machine held something of this one that is lacking here.

        Raises:
            OurFault: The disk refuses.
        """
        if not self.mark.restored:
            self._put(restored=True)

    def lift(self) -> None:
        """Go on: what was forgotten here is known again, or a person said that the old state is meant.

        Raises:
            OurFault: The disk refuses.
        """
        if self.mark.restored:
            self._put(restored=False)

    def _put(self, **changes: object) -> None:
        self.mark = replace(self.mark, **changes)  # type: ignore[arg-type]  # named in this class only
        write_mark(self._path, self.mark)
