import os
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace

import pytest
import trio

from mesh.base.clock import Now
from mesh.base.errors import Damaged, Refused, Usage
from mesh.base.names import base32
from query import register as rooms
from query.grants import DAY_MS, mint, open_untrusted
from query.messages import RevocationBody
from query.permits import Attempt, Denied, Permit
from query.register import DENIED_PER_MIN, Register


@pytest.fixture
def register(tmp_path):
    opened = Register(tmp_path / "grants.db")
    yield opened
    opened.close()


def later(now: Now, ms: int) -> Now:
    return replace(now, wall_ms=now.wall_ms + ms)


def attempt(token: str, project: str = "p", scope: str = "project.query", question: str = "q", remote: str = "10.0.0.1") -> Attempt:
    return Attempt(open_untrusted(f"Bearer {token}"), project, scope, question, remote)


def grant(register: Register, now: Now, **changes):
    return register.grant("p", ["query"], **{"life_s": 3600, "rate_per_min": 60, "per_day": 100, "now": now, **changes})


async def test_a_grant_answers_and_is_counted(register, noon):
    row, token = grant(register, noon, label="ana")
    permit = await register.authorise_and_charge_untrusted(attempt(token), noon)
    assert isinstance(permit, Permit)
    assert permit.budget.used == 1
    (listed,) = register.list()
    assert (listed.grant, listed.uses, listed.label, listed.last_ms) == (row.grant, 1, "ana", noon.wall_ms)


async def test_every_denial_has_its_reason_in_the_trail_only(register, noon):
    """O-R2, O-R3, O-R4: project and scope are compared whole, and the default is no."""
    _, token = grant(register, noon)
    gone, revoked = grant(register, noon)
    register.revoke(base32(gone.grant), noon)
    stranger = mint(os.urandom).text()
    wrong = replace(open_untrusted(f"Bearer {token}"), secret="A" * 43)
    cases = [
        (attempt("nonsense"), noon, "unknown"),
        (attempt(stranger), noon, "unknown"),
        (Attempt(wrong, "p", "project.query", "", ""), noon, "bad_secret"),
        (attempt(revoked), noon, "revoked"),
        (attempt(token, project="p-private"), noon, "project"),
        (attempt(token, project="P"), noon, "project"),
        (attempt(token, project=""), noon, "project"),
        (attempt(token, scope="project.docs"), noon, "scope"),
        (attempt(token), later(noon, 3_600_000), "expired"),
    ]
    for tried, when, reason in cases:
        assert await register.authorise_and_charge_untrusted(tried, when) == Denied(reason)
        assert register.audit_rows(1)[0].reason == reason
    assert register.list()[-1].uses == 0
    assert register.audit_break() is None


async def test_a_revoked_grant_stays_so(register, noon):
    row, token = grant(register, noon)
    assert isinstance(await register.authorise_and_charge_untrusted(attempt(token), noon), Permit)
    first = register.revoke(base32(row.grant)[:6].upper(), noon)
    again = register.revoke(base32(row.grant), later(noon, 5000))
    assert first.revoked_ms == again.revoked_ms == noon.wall_ms
    assert await register.authorise_and_charge_untrusted(attempt(token), noon) == Denied("revoked")


async def test_another_process_sees_a_revocation_at_once(tmp_path, register, noon):
    """O-R1 as far as single questions go."""
    row, token = grant(register, noon)
    other = Register(tmp_path / "grants.db")
    try:
        assert isinstance(await other.authorise_and_charge_untrusted(attempt(token), noon), Permit)
        register.revoke(base32(row.grant), noon)
        assert await other.authorise_and_charge_untrusted(attempt(token), noon) == Denied("revoked")
    finally:
        other.close()


async def test_a_revocation_before_its_grant_still_ends_it(register, noon):
    """A revocation that came first, or a restored register, revives nothing."""
    row, token = grant(register, noon)
    body = RevocationBody(row.grant, "left the company")
    assert await register.apply_remote_revocation(body, noon)
    assert not await register.apply_remote_revocation(body, later(noon, 1))
    assert register.list()[0].revoked_reason == "left the company"
    assert await register.authorise_and_charge_untrusted(attempt(token), noon) == Denied("revoked")
    assert await register.apply_remote_revocation(RevocationBody(b"unknown-id", ""), Now(0, 0.0))
    assert register.unpublished()[1] == []


async def test_foreign_revocations_are_bounded(register, noon, monkeypatch):
    monkeypatch.setattr(rooms, "FOREIGN_REVOCATIONS_MAX", 2)
    row, _ = grant(register, noon)
    for number in range(2):
        await register.apply_remote_revocation(RevocationBody(bytes([number]) * 10, ""), noon)
    with pytest.raises(Refused):
        await register.apply_remote_revocation(RevocationBody(b"9" * 10, ""), noon)
    assert await register.apply_remote_revocation(RevocationBody(row.grant, ""), noon)


async def test_rate_and_budget_are_told_to_a_proven_token_only(register, noon):
    _, token = grant(register, noon, rate_per_min=2, per_day=3)
    for _ in range(2):
        assert isinstance(await register.authorise_and_charge_untrusted(attempt(token), noon), Permit)
    assert await register.authorise_and_charge_untrusted(attempt(token), noon) == Denied("rate", 30)
    assert isinstance(await register.authorise_and_charge_untrusted(attempt(token), later(noon, 60_000)), Permit)
    denied = await register.authorise_and_charge_untrusted(attempt(token), later(noon, 120_000))
    assert denied == Denied("budget", 43_080)
    assert await register.authorise_and_charge_untrusted(attempt(token, project="x"), noon) == Denied("project")


async def test_a_clock_set_back_revives_nothing(register, noon):
    _, short = grant(register, noon, life_s=60)
    _, token = grant(register, noon)
    await register.authorise_and_charge_untrusted(attempt(token), later(noon, 3_000_000))
    assert await register.authorise_and_charge_untrusted(attempt(short), noon) == Denied("expired")


async def test_a_flood_of_denials_is_counted_and_not_written(register, noon):
    for _ in range(DENIED_PER_MIN + 40):
        await register.authorise_and_charge_untrusted(attempt("x"), noon)
    assert len(register.audit_rows(1000)) == DENIED_PER_MIN
    _, token = grant(register, noon)
    assert register.audit_rows(1)[0].quiet == 40
    assert isinstance(await register.authorise_and_charge_untrusted(attempt(token), noon), Permit)


async def test_sources_of_denials_are_bounded(register, noon, monkeypatch):
    monkeypatch.setattr(rooms, "DENIED_SOURCES_MAX", 3)
    for number in range(10):
        await register.authorise_and_charge_untrusted(attempt("x", remote=f"10.0.0.{number}"), noon)
    assert len(register._denials) == 3


async def test_the_trail_is_bounded_and_its_chain_still_holds(register, noon, monkeypatch):
    monkeypatch.setattr(rooms, "AUDIT_ROWS_MAX", 5)
    _, token = grant(register, noon)
    for _ in range(12):
        await register.authorise_and_charge_untrusted(attempt(token), noon)
    rows = register.audit_rows(100)
    assert [row.number for row in rows] == [13, 12, 11, 10, 9]
    assert register.audit_break() is None


async def test_a_changed_row_is_found(tmp_path, register, noon):
    _, token = grant(register, noon)
    for _ in range(4):
        await register.authorise_and_charge_untrusted(attempt(token, question="what\nis\x1b[31m this"), noon)
    assert register.audit_rows(1)[0].question == "what\\nis\\u001b[31m this"
    with sqlite3.connect(tmp_path / "grants.db") as raw:
        raw.execute("UPDATE audit SET question = 'nothing' WHERE number = 3")
    raw.close()
    assert register.audit_break() == 3


def test_secrets_are_nowhere_on_the_disk(tmp_path, register, noon):
    _, token = grant(register, noon)
    secret = token.split("_")[2].encode()
    for path in tmp_path.iterdir():
        assert secret not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


async def test_what_is_unpublished_is_listed_until_it_is_marked(register, noon):
    row, _ = grant(register, noon)
    register.revoke(base32(row.grant), noon, reason="no more")
    grants, ends = register.unpublished()
    assert [entry.grant for entry in grants] == [row.grant]
    assert ends == [RevocationBody(row.grant, "no more")]
    await register.mark_published([row.grant], [row.grant])
    assert register.unpublished() == ([], [])


def test_only_so_many_are_in_force(register, noon, monkeypatch):
    monkeypatch.setattr(rooms, "GRANTS_MAX", 2)
    first, _ = grant(register, noon)
    grant(register, noon)
    with pytest.raises(Refused, match="in force"):
        grant(register, noon)
    register.revoke(base32(first.grant), noon)
    grant(register, noon)
    assert len(register.list()) == 3


def test_long_ended_grants_are_forgotten_but_not_their_revocation(register, noon):
    row, _ = grant(register, noon)
    register.revoke(base32(row.grant), noon)
    grant(register, later(noon, 500 * DAY_MS))
    assert [entry.grant for entry in register.list()] != [row.grant]
    assert len(register.list()) == 1


@pytest.mark.parametrize(
    "changes", [{"project": "../x"}, {"project": "*"}, {"project": ""}, {"scopes": []}, {"scopes": ["*"]}, {"life_s": 5}, {"label": "x" * 100}]
)
def test_bad_grants_are_usage(register, noon, changes):
    values = {"project": "p", "scopes": ["query"], "life_s": 3600, "now": noon, **changes}
    project, scopes = values.pop("project"), values.pop("scopes")
    with pytest.raises(Usage):
        register.grant(project, scopes, **values)


def test_a_prefix_must_name_one(register, noon, monkeypatch):
    grant(register, noon)
    with pytest.raises(Usage, match="at least 4"):
        register.revoke("abc", noon)
    with pytest.raises(Usage, match="no grant begins"):
        register.revoke("zzzzzz", noon)
    monkeypatch.setattr(register, "_entropy", lambda count: b"same" * 20 if count == 32 else b"samesame" + os.urandom(2))
    grant(register, noon)
    grant(register, noon)
    with pytest.raises(Usage, match="ambiguous"):
        register.revoke(base32(b"samesame")[:12], noon)


def test_a_lost_pepper_is_damage(tmp_path, noon):
    register = Register(tmp_path / "grants.db")
    grant(register, noon)
    register.close()
    (tmp_path / "grants.pepper").unlink()
    with pytest.raises(Damaged):
        Register(tmp_path / "grants.db")


RACE = """
import sys, trio
from pathlib import Path
from mesh.base.clock import read_clock
from query.grants import open_untrusted
from query.permits import Attempt, Permit
from query.register import Register
async def main():
    register = Register(Path(sys.argv[1]))
    token = open_untrusted("Bearer " + sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    won = 0
    for _ in range(40):
        won += isinstance(await register.authorise_and_charge_untrusted(Attempt(token, "p", "project.query", "", ""), read_clock()), Permit)
    print(won)
    register.close()
trio.run(main)
"""


def test_the_budget_is_exact_over_many_processes(tmp_path):
    from mesh.base.clock import read_clock

    register = Register(tmp_path / "grants.db")
    _, token = grant(register, read_clock(), rate_per_min=6000, per_day=100)
    processes = [
        subprocess.Popen([sys.executable, "-c", RACE, str(tmp_path / "grants.db"), token], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        won = [int(process.communicate(timeout=60)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
    assert sum(won) == 100
    assert register.list()[0].budget.used == 100
    assert register.audit_break() is None
    register.close()


async def test_a_charge_survives_a_crash_after_its_answer(tmp_path, register, noon):
    _, token = grant(register, noon)
    await register.authorise_and_charge_untrusted(attempt(token), noon)
    copy = tmp_path / "crashed"
    copy.mkdir()
    for name in ("grants.db", "grants.db-wal", "grants.pepper"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    after = await trio.to_thread.run_sync(Register, copy / "grants.db")
    assert after.list()[0].uses == 1
    after.close()


async def test_commands_and_the_node_may_write_at_the_same_time(register, noon):
    """A blocking grant beside a commit in a thread waits its turn; neither fails."""

    async def mark():
        for _ in range(100):
            await register.mark_published([b"x" * 10], [])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark)
        nursery.start_soon(mark)
        for _ in range(100):
            grant(register, noon)
            await trio.lowlevel.checkpoint()
    assert len(register.list()) == 100
    assert register.audit_break() is None
