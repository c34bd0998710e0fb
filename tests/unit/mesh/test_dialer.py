"""Dialling: the address behind which the key is proved wins; every failure is one of two families."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import pytest
import trio

from mesh.base.errors import Refused, Unreachable, Usage
from mesh.dialer import is_usable, open_join, parse_address, run_dial
from mesh.handshake import TurnedDown
from tests.fakes.links import HOST, Machines, open_port


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("192.0.2.1:9847", ("192.0.2.1", 9847)),
        ("[2001:db8::1]:9847", ("2001:db8::1", 9847)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("mini.local:65535", ("mini.local", 65535)),
        ("mini.local", ("mini.local", 9847)),
        ("2001:db8::1", ("2001:db8::1", 9847)),
        ("[2001:db8::1]", ("2001:db8::1", 9847)),
    ],
)
def test_addresses_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, port=9847) == expected


@pytest.mark.parametrize(
    "text", ["", ":9847", "host:", "host:0", "host:65536", "host:x", "host:+1", "host:１", "[::1", "[]:1", "[::1]x:1", "a\nb:1", "h" * 300]
)  # fmt: skip
def test_what_is_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(Usage):
        parse_address(text, port=9847)


def test_an_address_needs_a_port_where_none_is_usual() -> None:
    with pytest.raises(Usage):
        parse_address("mini.local")


@pytest.mark.parametrize(
    ("host", "usable"),
    [
        ("fe80::1", False),
        ("fe80::1%0", False),
        ("fe80::1%eth0", True),
        ("0.0.0.0", False),
        ("::", False),
        ("224.0.0.1", False),
        ("127.0.0.1", True),
        ("mini.local", True),
    ],
)
def test_addresses_that_cannot_be_dialled_are_skipped(host: str, usable: bool) -> None:
    """O-D3: link-local IPv6 without a scope."""
    assert is_usable(host) is usable


async def dial(addresses: Sequence[str], initiator) -> None:
    async with trio.open_nursery() as nursery:
        try:
            await nursery.start(run_dial, addresses, initiator)
        finally:
            nursery.cancel_scope.cancel()


def closed_port() -> str:
    with trio.socket.socket() as probe:
        probe._sock.bind((HOST, 0))
        return f"{HOST}:{probe.getsockname()[1]}"


async def refused_by(addresses: Sequence[str], initiator, family: type[Exception]):
    with trio.fail_after(8):
        async with trio.open_nursery() as nursery:
            with pytest.raises(family) as caught:
                await nursery.start(run_dial, addresses, initiator)
    return caught.value


async def test_dead_addresses_do_not_keep_a_good_one_from_winning() -> None:
    """O-D2: a dead one, one that never answers, one that is somebody else's, the good one."""
    machines = Machines()
    silent = await trio.open_tcp_listeners(0, host=HOST)
    async with open_port(machines) as port, open_port(machines, machines.mini) as other, trio.open_nursery() as nursery:
        addresses = [
            closed_port(),
            f"{HOST}:{silent[0].socket.getsockname()[1]}",
            "not an address",
            "[fe80::1]:9847",
            other.address,
            port.address,
        ]
        third = machines.mesh.machine("third")
        machines.members = machines.mesh.members()
        with trio.fail_after(5):
            link = await nursery.start(run_dial, addresses, partial(machines.initiator, third, machines.studio))
            far = await port.links.receive()
        assert link.peer == machines.studio.node
        assert far.peer == third.node
        assert link.remote == port.address
        nursery.cancel_scope.cancel()
    await silent[0].aclose()


async def test_the_same_machine_at_two_addresses_gives_one_link() -> None:
    machines = Machines()
    async with open_port(machines) as port, trio.open_nursery() as nursery:
        addresses = [port.address, f"localhost:{port.number}", port.address]
        link = await nursery.start(run_dial, addresses, partial(machines.initiator, machines.mini))
        await port.links.receive()
        with trio.move_on_after(0.6):
            await port.links.receive()
            raise AssertionError("a second link")
        assert not link.closed.is_set()
        nursery.cancel_scope.cancel()


async def test_nobody_there_is_unreachable() -> None:
    machines = Machines()
    fault = await refused_by([closed_port(), closed_port()], partial(machines.initiator, machines.mini), Unreachable)
    assert "refused" in str(fault)
    fault = await refused_by([], partial(machines.initiator, machines.mini), Unreachable)
    assert fault.hint
    await refused_by(["nowhere.invalid:1"], partial(machines.initiator, machines.mini), Unreachable)
    await refused_by([f"{'x' * 70}.example:1"], partial(machines.initiator, machines.mini), Unreachable)


async def test_another_machine_behind_the_address_is_refused() -> None:
    machines = Machines()
    third = machines.mesh.machine("third")
    machines.members = machines.mesh.members()
    async with open_port(machines) as port:
        fault = await refused_by([port.address], partial(machines.initiator, machines.mini, third), Refused)
        assert fault.reason == "other_machine"


async def test_a_machine_without_the_gate_key_is_not_let_in() -> None:
    machines = Machines()
    async with open_port(machines) as port:
        fault = await refused_by(
            [port.address], partial(machines.initiator, machines.mini, gate=b"another".ljust(32)), Refused
        )
        assert fault.reason == "not_let_in"


async def test_a_machine_that_is_no_member_any_more_learns_that_it_was_turned_away() -> None:
    """O-P10: the responder sees who it is and says why, with the proof; no link is handed out on either side."""
    machines = Machines()
    everybody = machines.members
    expulsion = machines.mesh.expel(machines.mesh.founder.key, machines.mini.node)
    without = machines.mesh.members()

    def initiator():
        machines.members = everybody
        made = machines.initiator(machines.mini, machines.studio)
        machines.members = without
        return made

    machines.members = without
    async with open_port(machines) as port:
        fault = await refused_by([port.address], initiator, TurnedDown)
        assert (fault.reason, fault.proof) == ("expelled", expulsion.wire)
        assert port.links.statistics().current_buffer_used == 0


async def test_cancelling_a_dial_leaves_nothing() -> None:
    machines = Machines()
    silent = await trio.open_tcp_listeners(0, host=HOST)
    address = f"{HOST}:{silent[0].socket.getsockname()[1]}"
    with trio.move_on_after(0.4) as scope:
        await dial([address] * 3, partial(machines.initiator, machines.mini))
    assert scope.cancelled_caught
    for _ in range(2):
        with trio.fail_after(2):
            stream = await silent[0].accept()
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
            await stream.aclose()
    await silent[0].aclose()


async def test_a_joiner_gets_a_pipe_only_while_an_invite_is_open() -> None:
    async def greet(pipe) -> None:
        await pipe.send(b"welcome " + await pipe.receive())

    is_open = True
    async with open_port(Machines(), join=greet, join_open=lambda: is_open) as port:
        with trio.fail_after(5):
            async with open_join(port.address) as pipe:
                await pipe.send(b"mini")
                assert await pipe.receive() == b"welcome mini"
            is_open = False
            with pytest.raises(Refused):
                async with open_join(port.address):
                    raise AssertionError("there is no pipe")
    with pytest.raises(Unreachable):
        async with open_join(port.address):
            raise AssertionError("there is no pipe")
    with pytest.raises(Unreachable):
        async with open_join("nonsense"):
            raise AssertionError("there is no pipe")


class Wary:
    """A caution that lets nothing of this host through but what it is told to."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed
        self.asked: list[str] = []
        self.failures: list[str] = []

    def allows(self, address: str) -> bool:
        self.asked.append(address)
        return address in self.allowed

    def failed(self, address: str) -> None:
        self.failures.append(address)


async def test_a_name_leads_nowhere_its_addresses_could_not():
    """SECURITY 31: a stated name that resolves to loopback is not connected to, nor counted as a failure."""
    machines = Machines()
    async with open_port(machines) as port:
        wary = Wary()
        number = port.address.rpartition(":")[2]
        async with trio.open_nursery() as nursery:
            with pytest.raises(Unreachable, match="not tried now"):
                await nursery.start(partial(run_dial, [f"localhost:{number}", port.address], partial(machines.initiator, machines.mini), caution=wary))
        assert port.address in wary.asked
        assert all(asked.rpartition(":")[0] in ("127.0.0.1", "[::1]") for asked in wary.asked)
        assert wary.failures == []


async def test_an_address_that_proved_no_key_is_told_and_the_one_that_did_is_not():
    machines = Machines()
    closed = closed_port()
    async with open_port(machines) as port:
        wary = Wary(closed, port.address)
        async with trio.open_nursery() as nursery:
            link = await nursery.start(partial(run_dial, [closed, port.address], partial(machines.initiator, machines.mini), caution=wary))
            assert link.remote == port.address
            link.close_nowait("done")
        assert wary.failures == [closed]
