"""Certificates issued anew: what stays, what changes, when one is due, and what no order of statements brings back."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from mesh.base.codec import decode_untrusted
from mesh.base.errors import Refused, Unreachable
from mesh.base.names import NodeId
from mesh.certificates import LIFE_S, RENEW_GRACE_S, Genesis, certificate_body_untrusted, renewal
from mesh.kinds import CERTIFICATE, LESSON, Role
from mesh.members import Members
from mesh.records import Record, Verdict, make
from tests.fakes.meshes import NOW_S, Machine, Mesh
from tests.fakes.overlays import Clock, founder, open_machine, until
from tests.fakes.overlays import Machine as LinkedMachine

DAY_S = 86_400
ADMIN = Role.ADMIN | Role.MEMBER


def test_a_renewed_certificate_is_the_same_machine_of_the_same_person_for_another_life():
    mesh = Mesh()
    second = mesh.machine("second", roles=ADMIN)
    mini = mesh.machine("mini", invite=bytes(16))
    wire = renewal(mini.certificate, second.key, mesh.mesh, serial=b"8 bytes.", now_s=NOW_S + 60 * DAY_S)
    record = make(second.key, mesh.mesh, CERTIFICATE, mini.node, mesh.version(), wire)
    assert mesh.judge(record) is Verdict.ADMIT
    before, after = mesh.members().certificates[mini.node], mesh.members(record).certificates[mini.node]
    for field in ("node", "public_key", "owner", "owner_proven", "name", "owner_name", "roles", "lineage", "invite"):
        assert getattr(after, field) == getattr(before, field)
    assert after.owner_proven
    assert (after.not_before_s, after.not_after_s) == (NOW_S + 60 * DAY_S, NOW_S + 60 * DAY_S + LIFE_S)
    assert not mesh.members(record).frozen


@pytest.mark.parametrize(
    ("days", "due"), [(0, False), (59, False), (60, True), (90, True), (120, True), (121, False), (1000, False)]
)
def test_it_is_due_from_two_thirds_of_its_life_until_thirty_days_after(days: int, due: bool):
    """SECURITY 6: what ended long ago is not renewed by itself, else a lost machine would never be noticed."""
    mesh = Mesh()
    mini = mesh.machine("mini")
    assert RENEW_GRACE_S == 30 * DAY_S
    assert (mesh.members().renewable(mini.node, NOW_S + days * DAY_S) is not None) is due


def test_nobody_renews_an_admin_a_short_lived_an_expelled_or_a_disputed_machine():
    mesh = Mesh()
    boss, short = mesh.machine("boss", roles=ADMIN), mesh.machine("short", not_after_s=NOW_S + 3600)
    out, disputed = mesh.machine("out"), mesh.machine("disputed")
    mesh.expel(mesh.founder.key, out.node)
    rival = mesh.certificate(disputed.key, mesh.signing_key(), issuer=boss.key)
    mesh.records.append(make(boss.key, mesh.mesh, CERTIFICATE, disputed.node, mesh.version(), rival))
    members = mesh.members()
    for machine, at_s in ((boss, 80 * DAY_S), (short, 3000), (out, 80 * DAY_S), (disputed, 80 * DAY_S), (mesh.founder, 80 * DAY_S)):
        assert members.renewable(machine.node, NOW_S + at_s) is None
    assert members.renewable(NodeId(bytes(16)), NOW_S) is None


def statements(mesh: Mesh, admins: tuple[Machine, Machine], expeller: int, renewer: int) -> tuple[list[Record], list[bytes]]:
    """A machine's certificate, its renewal, its successor's certificate, and its expulsion; and all its certificates."""
    mini = mesh.machine("mini", issuer=admins[0].key)
    mesh.records.remove(mini.record)
    renewed = renewal(mini.certificate, admins[renewer].key, mesh.mesh, serial=bytes(8), now_s=NOW_S + 1)
    successor = mesh.signing_key()
    followed = mesh.certificate(successor, mini.owner, issuer=admins[1 - renewer].key, lineage=mini.node)
    records = [
        mini.record,
        make(admins[renewer].key, mesh.mesh, CERTIFICATE, mini.node, mesh.version(), renewed),
        make(admins[1 - renewer].key, mesh.mesh, CERTIFICATE, b"successor", mesh.version(), followed),
        mesh.expel(admins[expeller].key, mini.node),
    ]
    mesh.records.remove(records[-1])
    return records, [mini.certificate, renewed, followed]


@pytest.mark.parametrize(("expeller", "renewer"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_no_order_of_certificate_renewal_rotation_and_expulsion_leaves_a_key_in(expeller: int, renewer: int):
    """SECURITY 6: every permutation, by two admins on two sides of a partition, before and after it heals."""
    mesh = Mesh()
    admins = (mesh.founder, mesh.machine("second", roles=ADMIN))
    records, wires = statements(mesh, admins, expeller, renewer)
    genesis = decode_untrusted(Genesis, mesh.genesis, bytes_max=200)
    for order in itertools.permutations(records):
        for cut in range(5):
            sides: list[list[Record]] = [list(mesh.records), list(mesh.records)]
            for at, record in enumerate(order):
                for side in (0, 1) if at >= cut else (at % 2,):
                    members = Members(genesis, mesh.mesh, sides[side])
                    if mesh.judge(record, members) is Verdict.ADMIT:
                        sides[side].append(record)
            healed = Members(genesis, mesh.mesh, {r.record_id: r for side in sides for r in side}.values())
            for wire in wires:
                body = certificate_body_untrusted(wire)
                assert body is not None
                issuer = next(a for a in admins if a.node == body.issuer)
                for expired_too in (False, True):
                    with pytest.raises(Refused, match="expelled"):
                        healed.check_untrusted((wire, issuer.certificate), now_s=NOW_S, me=NodeId(bytes(16)), expired_too=expired_too)
            assert all(author.expelled for node in healed.certificates if healed.certificates[node].lineage == records[0].key and (author := healed.author(node)))


async def refused(near: LinkedMachine, far: LinkedMachine) -> str:
    """Why no channel opens, once there is a link; it may be replaced at this very moment, where both dialled."""
    with trio.fail_after(20):
        while True:
            try:
                await near.overlay.open_channel(far.id, 64, b"request")
            except Unreachable as fault:
                if "no link" not in fault.message and "the link ended" not in fault.message:
                    return fault.message
            else:
                return "it opened"
            await trio.sleep(0.02)


async def test_an_expired_certificate_leaves_the_control_lane_and_a_renewal_opens_the_rest(tmp_path: Path):
    """O-P10, and what keeps a machine that was away for long from being locked out."""
    clock = Clock()
    async with open_machine(tmp_path / "one", founder(), clock=clock) as one:
        goods = await one.invited("other")
        async with open_machine(tmp_path / "other", goods, clock=clock) as other:
            one.overlay.incoming(range(64, 65))
            await until(lambda: one.linked(other) and other.linked(one))
            channel = await other.overlay.open_channel(one.id, 64, b"before")
            link = one.overlay.links[other.id].link
            clock.shift_ms += (LIFE_S + DAY_S) * 1000
            for machine in (one, other):
                machine.replica.wake({CERTIFICATE})
            await until(link.closed.is_set)
            await until(lambda: one.linked(other) and other.linked(one))
            assert (other.replica.me.state, one.replica.members()[0].state) == ("expired", "expired")
            with pytest.raises(Unreachable):
                await channel.send(b"after")
            for near, far in ((one, other), (other, one)):
                assert "expired" in await refused(near, far)
            await one.replica.publish(LESSON, b"k", one.sealer.seal(b"lesson"))
            certified = one.replica.members_now.renewable(other.id, clock().wall_ms // 1000)
            assert certified is not None
            held = [entry.key for entry in other.replica.entries(LESSON)]
            wire = renewal(certified.wire, one.identity.node, one.identity.mesh, serial=bytes(8), now_s=clock().wall_ms // 1000)
            await one.replica.publish(CERTIFICATE, other.id, wire)
            await until(lambda: other.replica.me.state == "live")
            await until(lambda: other.replica.entries(LESSON))
            assert held == [], "nothing but the control lane went over before"
            assert await refused(other, one) == "it opened"
