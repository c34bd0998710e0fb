"""The register of grants: who may ask what, how much is used, and the audit trail, all in one SQLite file.

Deciding about a question, charging it and writing the audit row happen in one immediate transaction, so budgets are exact
over any number of server processes and a revocation counts from the next request on. ``grants.pepper`` beside the file
keys the hashes of secrets and the audit chain; without it nobody can try secrets against a stolen database.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mesh.base.clock import Now
from mesh.base.crypto import Entropy, derive, digest, same
from mesh.base.db import Connection, Database
from mesh.base.errors import Refused, Usage
from mesh.base.names import GRANT_ID_BYTES, GrantId, base32, project_name
from query import audit, grants
from query.grants import Budget, Wait
from query.messages import REASON_BYTES_MAX, RevocationBody
from query.pepper import open_pepper
from query.permits import Attempt, Denied, GrantRow, Permit

GRANTS_MAX = 256
"""Grants in force at one time; another is refused until one is revoked or ends."""
FOREIGN_REVOCATIONS_MAX = 16_384
"""Revocations of grants this register does not hold; a further one is refused."""
AUDIT_ROWS_MAX = 100_000
"""The oldest rows go first."""
DENIED_PER_MIN = 60
"""Denied attempts of one address or grant that are written to the trail; the rest are counted only."""
DENIED_SOURCES_MAX = 1_024
"""Addresses and grants whose denials are counted apart; the one not heard of longest is forgotten."""
KEEP_EXPIRED_MS = 400 * grants.DAY_MS
PREFIX_CHARS_MIN = 4

_SCHEMA = (
    """
    CREATE TABLE permission(
      id BLOB PRIMARY KEY, hash BLOB NOT NULL, project TEXT NOT NULL, scopes TEXT NOT NULL, label TEXT NOT NULL,
      created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, rate INTEGER NOT NULL, budget INTEGER NOT NULL,
      serve_at TEXT, day INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0, due_us INTEGER NOT NULL DEFAULT 0,
      uses INTEGER NOT NULL DEFAULT 0, last_ms INTEGER, published INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
    CREATE TABLE revocation(
      id BLOB PRIMARY KEY, at_ms INTEGER NOT NULL, reason TEXT NOT NULL, published INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE audit(
      number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, grant_id BLOB NOT NULL, project TEXT NOT NULL,
      operation TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL, question TEXT NOT NULL, remote BLOB NOT NULL,
      quiet INTEGER NOT NULL, before BLOB NOT NULL, link BLOB NOT NULL);
    CREATE TABLE clock(one INTEGER PRIMARY KEY CHECK(one = 1), newest_ms INTEGER NOT NULL);
    INSERT INTO clock VALUES(1, 0);
    """,
    "ALTER TABLE clock ADD COLUMN held INTEGER NOT NULL DEFAULT 0;",
)
_COLUMNS = (
    "permission.id, hash, project, scopes, label, created_ms, expires_ms, rate, budget, serve_at, day, used, due_us, uses, last_ms,"
    " revocation.at_ms, revocation.reason"
)
_ROWS = f"SELECT {_COLUMNS} FROM permission LEFT JOIN revocation ON revocation.id = permission.id"


class Register:
    """The grants of one home.

    Args:
        path: ``grants.db``; its folder exists. ``grants.pepper`` is made beside it the first time.
        entropy: The source of secrets.

    Raises:
        Damaged: The database is not sound, or there are grants and the pepper is gone or short.
        OurFault: One of them cannot be read or written.
    """

    def __init__(self, path: Path, entropy: Entropy = os.urandom) -> None:
        self._database = Database(path, _SCHEMA)
        self._entropy = entropy
        try:
            used = bool(self._database.reader.execute("SELECT EXISTS(SELECT 1 FROM permission)").get)
            self._pepper = open_pepper(path.with_suffix(".pepper"), entropy, may_make=not used)
        except BaseException:
            self._database.close()
            raise
        self._audit_key = derive(self._pepper, "audit")
        self._remote_key = derive(self._pepper, "remote")
        self._decoy = derive(self._pepper, "decoy")
        self._denials: dict[bytes, Budget] = {}
        self._quiet = 0

    def close(self) -> None:
        """Close the database; further use is a programming mistake."""
        self._database.close()

    def grant(
        self,
        project: str,
        scopes: Sequence[str],
        *,
        label: str = "",
        life_s: int,
        rate_per_min: int = grants.RATE_PER_MIN_DEFAULT,
        per_day: int = grants.PER_DAY_DEFAULT,
        serve_at: str | None = None,
        now: Now,
    ) -> tuple[GrantRow, str]:
        """Open a project to one outsider. Durable when it returns; blocking, for commands.

        Args:
            project: Exactly one; there is no word for all.
            scopes: ``query`` or ``docs``, at least one.
            label: What the owner calls it, at most 80 bytes.
            life_s: Seconds until it ends, one minute to 366 days.
            rate_per_min: Questions a minute.
            per_day: Questions a UTC day.
            serve_at: Where it is served, as the outsider should be told.
            now: The time.

        Returns:
            The row and the token, which is nowhere kept.

        Raises:
            Usage: A field is out of range.
            Refused: GRANTS_MAX are in force.
        """
        project = project_name(project)
        chosen = tuple(sorted({grants.scope_from(scope) for scope in scopes}))
        if not chosen:
            raise Usage("a grant needs a scope", hint="--scope query")
        grants.check_limits(life_s, rate_per_min, per_day)
        token = grants.mint(self._entropy)
        label = grants.label_from(label)

        def work(connection: Connection) -> GrantRow:
            wall_ms = _tick(connection, now.wall_ms)
            _forget_expired(connection, wall_ms)
            if _count_in_force(connection, wall_ms) >= GRANTS_MAX:
                raise Refused(f"{GRANTS_MAX} grants are in force", reason="limit", hint="revoke one: hivemesh access revoke ID")
            row = GrantRow(
                token.grant, grants.secret_hash(self._pepper, token.secret), project, chosen, label, wall_ms,
                wall_ms + life_s * 1000, serve_at, Budget(rate_per_min, per_day), 0, None, None, "",
            )  # fmt: skip
            _insert(connection, row)
            self._note(connection, wall_ms, token.grant, project, "grant", "done")
            return row

        return self._database.write_now(work), token.text()

    def list(self) -> Sequence[GrantRow]:
        """List every grant, also ended ones, newest first."""
        return [_row(values) for values in self._database.reader.execute(f"{_ROWS} ORDER BY created_ms DESC, permission.id")]

    def revoke(self, prefix: str, now: Now, reason: str = "") -> GrantRow:
        """End a grant. Durable when it returns; a running server refuses it from the next request on.

        Args:
            prefix: The start of its id, at least four characters; case and dashes are ignored.
            now: The time.
            reason: For the owner's eyes, at most 120 bytes.

        Returns:
            The grant as it stands; revoking a revoked one changes nothing.

        Raises:
            Usage: No grant, or more than one, begins so.
        """
        row = self._find(prefix)
        if row.revoked_ms is None:
            self._database.write_now(lambda connection: self._revoke(connection, row.grant, reason, now, published=False))
        return self._find(base32(row.grant))

    def _find(self, prefix: str) -> GrantRow:
        wanted = prefix.replace("-", "").strip().lower()
        if len(wanted) < PREFIX_CHARS_MIN:
            raise Usage(f"name at least {PREFIX_CHARS_MIN} characters of the grant", hint="hivemesh access list shows them")
        found = [row for row in self.list() if base32(row.grant).startswith(wanted)]
        if not found:
            raise Usage(f"no grant begins with {wanted[:32]!r}", hint="hivemesh access list shows them")
        if len(found) > 1:
            raise Usage(f"{wanted[:32]!r} is ambiguous: " + ", ".join(base32(row.grant) for row in found[:5]))
        return found[0]

    async def apply_remote_revocation(self, body: RevocationBody, now: Now) -> bool:
        """Take over a revocation that came with the mesh, whatever its age; also for a grant not known here yet.

        Args:
            body: Already judged: its author may revoke this grant.
            now: The time.

        Returns:
            Whether it was new.

        Raises:
            Refused: FOREIGN_REVOCATIONS_MAX revocations of unknown grants are held.

        If cancelled: it is applied whole or not at all.
        """
        grant = GrantId(body.grant)
        return await self._database.write(
            lambda connection: self._revoke(connection, grant, body.reason, now, published=True)
        )

    def _revoke(self, connection: Connection, grant: GrantId, reason: str, now: Now, *, published: bool) -> bool:
        wall_ms = _tick(connection, now.wall_ms)
        held = _select_one(connection, grant)
        if held is None and _count_foreign(connection) >= FOREIGN_REVOCATIONS_MAX:
            raise Refused("too many revocations of unknown grants", reason="limit", hint="hivemesh doctor")
        short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        new = bool(
            connection.execute("INSERT OR IGNORE INTO revocation VALUES(?, ?, ?, ?) RETURNING 1", (grant, wall_ms, short, published)).get
        )
        if new:
            self._note(connection, wall_ms, grant, held.project if held else "", "revoke", "done")
        return new

    async def hold(self, on: bool) -> None:
        """Serve no grant, or serve them again; running servers obey from the next question on.

        Args:
            on: Whether to hold: an old state came back, and what was revoked since may be open in it.

        If cancelled: it is done or not at all.
        """
        await self._database.write(lambda connection: connection.execute("UPDATE clock SET held = ?", (int(on),)).fetchall())

    def unpublished(self) -> tuple[Sequence[GrantRow], Sequence[RevocationBody]]:
        """List what the node has yet to replicate: grants in any state, and revocations made here."""
        reader = self._database.reader
        rows = [_row(values) for values in reader.execute(f"{_ROWS} WHERE permission.published = 0")]
        ends = reader.execute("SELECT id, reason FROM revocation WHERE published = 0")
        return rows, [RevocationBody(grant, reason) for grant, reason in ends]

    async def mark_published(self, granted: Sequence[bytes], revoked: Sequence[bytes]) -> None:
        """Note that records of these grants and revocations are in the mesh's own store.

        If cancelled: they are noted whole or not at all; publishing one twice does no harm.
        """

        def work(connection: Connection) -> None:
            connection.executemany("UPDATE permission SET published = 1 WHERE id = ?", [(grant,) for grant in granted])
            connection.executemany("UPDATE revocation SET published = 1 WHERE id = ?", [(grant,) for grant in revoked])

        await self._database.write(work)

    async def authorise_and_charge_untrusted(self, attempt: Attempt, now: Now) -> Permit | Denied:
        """Decide about one question, charge it and write it down, in one transaction.

        An unknown id is compared with a decoy row and every refusal runs the same statements, so neither the answer nor
        its time tells an unknown token from a revoked one.

        Args:
            attempt: What the outsider sent.
            now: The time.

        Returns:
            The permit, already charged; or why not.

        Raises:
            StorageFull, OurFault, Damaged: It could not be written, so it is not allowed.

        If cancelled: it may have been charged; nothing was answered.
        """
        return await self._database.write(lambda connection: self._authorise(connection, attempt, now))

    def _authorise(self, connection: Connection, attempt: Attempt, now: Now) -> Permit | Denied:
        token = attempt.token
        grant = token.grant if token else GrantId(bytes(GRANT_ID_BYTES))
        row = _select_one(connection, grant)
        wall_ms = grants.believed_ms(now.wall_ms, _newest_ms(connection))
        proven = same(row.hash if row else self._decoy, grants.secret_hash(self._pepper, token.secret if token else ""))
        reason = grants.fault(
            known=row is not None and token is not None,
            proven=proven,
            revoked=row is not None and row.revoked_ms is not None,
            expired=row is not None and wall_ms >= row.expires_ms,
            granted=(row.project, row.scopes) if row else ("", ()),
            wanted=(attempt.project, attempt.scope),
        )
        if not reason and connection.execute("SELECT held FROM clock").get:
            reason = "held"
        remote = digest(attempt.remote.encode(), size=8, key=self._remote_key)
        if reason or row is None:
            self._note_denial(connection, wall_ms, grant if proven else b"", attempt, reason or "unknown", remote)
            return Denied(reason or "unknown")
        after = grants.charge(row.budget, wall_ms)
        if isinstance(after, Wait):
            self._note_denial(connection, wall_ms, grant, attempt, after.reason, remote)
            return Denied(after.reason, after.retry_after_s)
        _tick(connection, now.wall_ms)
        connection.execute(
            "UPDATE permission SET day = ?, used = ?, due_us = ?, uses = uses + 1, last_ms = ? WHERE id = ?",
            (after.day, after.used, after.due_us, wall_ms, grant),
        )
        self._note(connection, wall_ms, grant, row.project, "ask", "done", question=attempt.question, remote=remote)
        return Permit(grant, after)

    def _note_denial(self, connection: Connection, wall_ms: int, grant: bytes, attempt: Attempt, reason: str, remote: bytes) -> None:
        """Write a denial, or only count it where its source is denied too often to be worth the disk."""
        source = grant or remote
        before = self._denials.pop(source, Budget(DENIED_PER_MIN, 1 << 60))
        after = grants.charge(before, wall_ms)
        self._denials[source] = before if isinstance(after, Wait) else after
        if len(self._denials) > DENIED_SOURCES_MAX:
            del self._denials[next(iter(self._denials))]
        if isinstance(after, Wait):
            self._quiet += 1
            return
        project = attempt.project[:64]
        self._note(connection, wall_ms, grant, project, "ask", "denied", reason=reason, question=attempt.question, remote=remote)

    def _note(
        self, connection: Connection, wall_ms: int, grant: bytes, project: str, operation: str, outcome: str,
        *, reason: str = "", question: str = "", remote: bytes = b"",
    ) -> None:  # fmt: skip
        """Add a row to the trail, in the caller's transaction."""
        last = list(connection.execute("SELECT number, link FROM audit ORDER BY number DESC LIMIT 1"))
        number, before = last[0] if last else (0, audit.FIRST_LINK)
        quiet, self._quiet = self._quiet, 0
        row = audit.Row(number + 1, wall_ms, grant, project, operation, outcome, reason, audit.escaped(question), remote, quiet)
        values = (
            row.number, row.at_ms, row.grant, row.project, row.operation, row.outcome, row.reason, row.question, row.remote,
            row.quiet, before, audit.link(self._audit_key, before, row),
        )  # fmt: skip
        connection.execute("INSERT INTO audit VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute("DELETE FROM audit WHERE number <= ?", (row.number - AUDIT_ROWS_MAX,))

    def audit_rows(self, limit: int) -> Sequence[audit.Row]:
        """List the newest rows of the trail, newest first.

        Args:
            limit: At most this many.
        """
        return [row for row, _, _ in _audit(self._database.reader, "ORDER BY number DESC LIMIT ?", (limit,))]

    def audit_break(self) -> int | None:
        """Check the whole trail; returns the number of the first row that does not follow, or None."""
        rows = list(_audit(self._database.reader, "ORDER BY number", ()))
        before = rows[0][1] if rows else audit.FIRST_LINK
        return audit.first_break(self._audit_key, before, ((row, stated) for row, _, stated in rows))


def _row(values: Sequence[Any]) -> GrantRow:
    grant, hashed, project, scopes, label, created, expires, rate, budget, serve_at, day, used, due, uses, last, revoked, reason = values
    return GrantRow(
        GrantId(grant), hashed, project, tuple(scopes.split()), label, created, expires, serve_at,
        Budget(rate, budget, day, used, due), uses, last, revoked, reason or "",
    )  # fmt: skip


def _select_one(connection: Connection, grant: bytes) -> GrantRow | None:
    rows = list(connection.execute(f"{_ROWS} WHERE permission.id = ?", (grant,)))
    return _row(rows[0]) if rows else None


def _insert(connection: Connection, row: GrantRow) -> None:
    connection.execute(
        "INSERT INTO permission(id, hash, project, scopes, label, created_ms, expires_ms, rate, budget, serve_at)"
        " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (row.grant, row.hash, row.project, " ".join(row.scopes), row.label, row.created_ms, row.expires_ms,
         row.budget.rate_per_min, row.budget.per_day, row.serve_at),
    )  # fmt: skip


def _newest_ms(connection: Connection) -> int:
    value = connection.execute("SELECT newest_ms FROM clock").get
    assert isinstance(value, int)
    return value


def _tick(connection: Connection, wall_ms: int) -> int:
    """Move the register's own high-water clock; returns the believed time."""
    newest_ms = _newest_ms(connection)
    if wall_ms > newest_ms:
        connection.execute("UPDATE clock SET newest_ms = ?", (wall_ms,))
    return grants.believed_ms(wall_ms, newest_ms)


def _count_in_force(connection: Connection, wall_ms: int) -> int:
    value = connection.execute(
        "SELECT count(*) FROM permission WHERE expires_ms > ? AND id NOT IN (SELECT id FROM revocation)", (wall_ms,)
    ).get
    assert isinstance(value, int)
    return value


def _count_foreign(connection: Connection) -> int:
    value = connection.execute("SELECT count(*) FROM revocation WHERE id NOT IN (SELECT id FROM permission)").get
    assert isinstance(value, int)
    return value


def _forget_expired(connection: Connection, wall_ms: int) -> None:
    """Drop grants that ended more than KEEP_EXPIRED_MS ago; their tokens are unknown then, which is no less refused."""
    connection.execute("DELETE FROM permission WHERE expires_ms < ?", (wall_ms - KEEP_EXPIRED_MS,))


def _audit(connection: Connection, tail: str, values: tuple[int, ...]) -> Iterator[tuple[audit.Row, bytes, bytes]]:
    statement = f"SELECT number, at_ms, grant_id, project, operation, outcome, reason, question, remote, quiet, before, link FROM audit {tail}"
    for *fields, before, stated in connection.execute(statement, values):
        yield audit.Row(*fields), before, stated
