"""A rogue admin puts everybody out; the root's word, given to one machine in a file, brings all of them back.

SECURITY 22.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mesh import store
from mesh.base.clock import read_clock
from mesh.base.codec import encode
from mesh.base.errors import Damaged, Refused, Usage
from mesh.base.names import base32
from mesh.certificates import Expulsion
from mesh.identity import forget_root, read_identity
from mesh.kinds import EXPULSION, LESSON, Role
from mesh.records import parse_untrusted
from mesh.rootfile import RootBody, read_file_untrusted, write_file
from node.home import Home
from node.rootword import apply_records, check_root, kept_of, learn_untrusted, open_replica, shown, sign_for
from tests.fakes.overlays import Clock, Machine, founder, open_machine, until

DAY_MS = 86_400_000


def home_of(folder: Path) -> Home:
    return Home(str(folder), str(folder), str(folder / "log"), one_folder=True)


def taken(machine: Machine, text: str):
    return read_file_untrusted(text, machine.identity.mesh, machine.replica.members_now.root)


async def test_a_rogue_admin_expels_all_and_the_root_brings_all_back_by_one_file(tmp_path: Path):
    goods = founder("ana", "ana")
    root = goods.keys["root"]
    async with AsyncExitStack() as stack:
        ana = await stack.enter_async_context(open_machine(tmp_path / "ana", goods))
        ben = await stack.enter_async_context(open_machine(tmp_path / "ben", await ana.invited("ben")))
        rogue = await stack.enter_async_context(open_machine(tmp_path / "rogue", await ana.invited("rogue")))
        await until(lambda: ana.linked(ben, rogue) and ben.linked(ana, rogue))
        promoted = sign_for("admin", "rogue", root, ana.identity, ana.database, ana.replica)
        await apply_records(ana.replica, taken(ana, write_file(ana.identity.mesh, [promoted])))
        await until(lambda: rogue.replica.may(Role.ADMIN))
        for machine in (ana, ben):
            await machine.replica.publish(LESSON, b"k" * 16, machine.sealer.seal(b"learned"))
        await until(lambda: len(ana.replica.entries(LESSON)) == len(ben.replica.entries(LESSON)) == 2)

        outs = [rogue.replica.sign(EXPULSION, victim.id, encode(Expulsion(victim.id, ()))) for victim in (ana, ben)]
        for machine in (ana, ben, rogue):
            await machine.replica.take_untrusted([record.wire for record in outs], rogue.id)
        await until(lambda: not ana.overlay.links and not ben.overlay.links)
        assert ana.replica.member(ben.id).state == "expelled"  # type: ignore[union-attr]

        out = sign_for("expel", "rogue", root, ben.identity, ben.database, ben.replica)
        done = await apply_records(ben.replica, taken(ben, write_file(ben.identity.mesh, [out])))
        assert done == {"records": 1, "expelled": [base32(rogue.id)]}
        await until(lambda: ana.linked(ben) and ben.linked(ana), 40)
        assert ana.replica.member(rogue.id).state == "expelled"  # type: ignore[union-attr]
        await until(lambda: {len(m.replica.entries(LESSON)) for m in (ana, ben)} == {2})
        assert not ana.linked(rogue)


async def test_the_root_file_may_go_and_the_mesh_lives_on_for_years(tmp_path: Path):
    """Nothing dies because the root is away: three months on an admin still starts, invites and links."""
    async with open_machine(tmp_path / "one", founder()) as one:
        forget_root(one.folder, one.database)
        forget_root(one.folder, one.database)
        assert not (one.folder / "identity" / "root.key").exists()
        read_identity(one.folder, one.database)
    later = Clock(91 * DAY_MS)
    async with open_machine(tmp_path / "one", clock=later) as one:
        me = one.replica.members_now.certificates[one.id]
        one.replica.members_now.check_untrusted((me.wire,), now_s=later().wall_ms // 1000, me=one.identity.mesh)  # type: ignore[arg-type]
        await one.replica.publish(LESSON, b"k" * 16, one.sealer.seal(b"still here"))
        assert one.replica.may(Role.ADMIN)


async def test_the_word_is_taken_while_no_node_runs_and_only_the_roots_counts(tmp_path: Path):
    goods = founder()
    root = goods.keys["root"]
    async with open_machine(tmp_path / "one", goods) as one, open_machine(tmp_path / "two", await one.invited("two")) as two:
        await until(lambda: one.linked(two) and two.linked(one))
        text = write_file(one.identity.mesh, [sign_for("expel", "two", root, one.identity, one.database, one.replica)])
        with pytest.raises(Refused):
            check_root(one.identity.node, one.identity)
        check_root(root, one.identity)
        with pytest.raises(Usage):
            sign_for("expel", "nobody", root, one.identity, one.database, one.replica)
        mesh = one.identity.mesh
    with open_replica(home_of(tmp_path / "one")) as (identity, database, replica):
        records = read_file_untrusted(text, mesh, replica.members_now.root)
        done = await apply_records(replica, records)
        assert done["expelled"] == [base32(two.id)]
        assert shown(database, replica) == (records[0].wire,)
        other = sign_for("expel", "one", root, identity, database, replica)
        forged = parse_untrusted(other.wire[:-1] + bytes([other.wire[-1] ^ 1]))
        with pytest.raises(Refused):
            await apply_records(replica, [forged])
    with pytest.raises(Refused), open_replica(home_of(tmp_path / "nothing")):
        pass


async def test_a_handshake_teaches_the_roots_word_and_nothing_else(tmp_path: Path):
    goods = founder()
    root = goods.keys["root"]
    async with open_machine(tmp_path / "one", goods) as one, open_machine(tmp_path / "two", await one.invited("two")) as two:
        await until(lambda: one.linked(two) and two.linked(one))
        word = sign_for("expel", "two", root, one.identity, one.database, one.replica)
        promotion = sign_for("admin", "two", root, one.identity, one.database, one.replica)
        lies = [b"", b"x" * 300, promotion.wire, word.wire[:-1] + bytes([word.wire[-1] ^ 1])]
        learn_untrusted(lies, one.identity, one.database, one.replica)
        assert one.replica.member(two.id).state != "expelled"  # type: ignore[union-attr]
        learn_untrusted([word.wire, word.wire], one.identity, one.database, one.replica)
        assert one.replica.member(two.id).state == "expelled"  # type: ignore[union-attr]
        await until(lambda: not one.overlay.links)


async def test_what_is_kept_was_known_for_a_day(tmp_path: Path):
    """The last thing a rogue does is issue; what came within the last day dies with it unless a person keeps it."""
    async with open_machine(tmp_path / "one", founder()) as one, open_machine(tmp_path / "two", await one.invited("two")):
        certified = one.replica.members_now.certificates[one.id]
        assert kept_of(certified, one.database, one.replica) == []
        old_ms = read_clock().wall_ms - 2 * DAY_MS
        one.database.write_now(lambda c: c.execute("UPDATE record SET received_ms = ?", (old_ms,)).fetchall())
        assert len(kept_of(certified, one.database, one.replica)) == 1


async def test_a_root_key_that_was_not_exported_is_still_missed(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder()) as one:
        (one.folder / "identity" / "root.key").unlink()
        with pytest.raises(Damaged):
            read_identity(one.folder, one.database)
        assert store.fact(one.database.reader, "root key")
        assert RootBody(one.identity.mesh, ()).records == ()
