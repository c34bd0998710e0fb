"""Gate and fleet keys go to members over links, and are kept only where a signed commitment names them."""

from __future__ import annotations

import os
from pathlib import Path

from mesh.base.codec import encode
from mesh.certificates import Expulsion
from mesh.gates import FULL_MAX
from mesh.handshake import gate_commitment
from mesh.keyring import fleet_commitment, fleet_number
from mesh.kinds import EXPULSION
from tests.fakes.overlays import founder, open_machine, open_two, until


async def test_a_new_epoch_reaches_every_member_and_the_fleet_key_only_the_owners_machines(tmp_path: Path):
    """SECURITY 8 and 9: after an expulsion, those who stay hold the new keys; another person's machine only the gate's."""
    async with open_two(tmp_path) as (one, mine):
        guest_goods = await one.invited("guest", for_person="ben")
        gone_goods = await one.invited("gone")
        async with open_machine(tmp_path / "guest", guest_goods) as guest, open_machine(tmp_path / "gone", gone_goods) as gone:
            await until(lambda: one.linked(mine, guest, gone) and gone.linked(one, mine, guest))
            before = one.keyring.ring()[0].key
            body = encode(Expulsion(bytes(gone.id), ()))
            await one.keyring.publish_with_new_keys([(EXPULSION, bytes(gone.id), body)], gate=True, fleet=True)
            fresh, fleet = one.keyring.ring()[0].key, list(one.keyring.fleet.values())[-1]
            assert fresh != before
            await until(lambda: mine.keyring.ring()[0].key == guest.keyring.ring()[0].key == fresh)
            await until(lambda: list(mine.keyring.fleet.values())[-1] == fleet)
            assert fleet not in guest.keyring.fleet.values()
            await until(lambda: not gone.overlay.links)
            await until(lambda: gone.replica.me.state == "expelled")
            assert fresh not in [gate.key for gate in gone.keyring.ring()]
            assert one.keyring.keys_for([gate_commitment(fresh)], gone.id) == ()
            sealed = one.sealer.seal(b"for mine")
            assert mine.sealer.unseal(sealed, one.id) == b"for mine"
            assert gone.sealer.unseal(sealed, one.id) is None


async def test_a_key_nobody_committed_to_is_not_kept(tmp_path: Path):
    """SECURITY 8: a member cannot hand out a key it made up."""
    async with open_machine(tmp_path / "one", founder()) as one:
        before = one.keyring.ring(), dict(one.keyring.fleet)
        await one.keyring.take_untrusted([os.urandom(32), bytes(32)])
        assert (one.keyring.ring(), dict(one.keyring.fleet)) == before
        assert one.keyring.keys_for([os.urandom(32), b"short", gate_commitment(before[0][0].key)], one.id) == (before[0][0].key,)


def test_the_number_of_a_fleet_key_is_never_that_of_the_first():
    assert all(1 <= fleet_number(fleet_commitment(os.urandom(32))) <= 65_535 for _ in range(200))


async def test_a_machine_that_slept_through_many_epochs_finds_back_and_gets_the_newest_keys(tmp_path: Path):
    """SECURITY 8: its key is older than the newest eight, so it gets the control lane first, then all of the link."""
    async with open_two(tmp_path) as (one, other):
        one.overlay.incoming(range(64, 65))
        other.cut()
        one.cut_off = True
        await until(lambda: not one.overlay.links and not other.overlay.links)
        slept_with = other.keyring.ring()[0]
        for _ in range(FULL_MAX + 1):
            await one.keyring.publish_with_new_keys([], gate=True, fleet=True)
        assert [gate.whole for gate in one.keyring.ring()] == [True] * FULL_MAX + [False, False]
        assert not one.keyring.is_whole(slept_with.commitment)
        one.cut_off = other.cut_off = False
        await until(lambda: one.linked(other) and other.linked(one))
        await until(lambda: other.keyring.ring()[0].key == one.keyring.ring()[0].key)
        await until(lambda: list(other.keyring.fleet.values())[-1] == list(one.keyring.fleet.values())[-1])
        held = other.overlay.links[one.id]
        await until(lambda: not held.exchange.reduced)
        channel = await other.overlay.open_channel(one.id, 64, b"all of it is open")
        assert channel.peer == one.id
