"""Where a node says it can be reached, as addresses and settings go."""

from __future__ import annotations

import pytest
import trio

from mesh.base.errors import Usage
from mesh.interfaces import LocalAddress
from node import reach as room
from node.addresses import Endpoint
from node.reach import STATED_BYTES_MAX, STATED_MAX, Reach

WIFI = LocalAddress("wlan0", 2, "192.168.1.7", 24, True)
TAILNET = LocalAddress("tailscale0", 3, "100.100.2.3", 32, True)
LOOP = LocalAddress("lo", 1, "127.0.0.1", 8, True)


def looking(*found: LocalAddress):
    return lambda: list(found)


def test_every_interface_is_announced_lan_and_tailnet_alike_but_never_loopback():
    reach = Reach([Endpoint("0.0.0.0", 9847), Endpoint("::", 9847)], [], looking(LOOP, WIFI, TAILNET))
    assert set(reach.addresses()) == {"192.168.1.7:9847", "100.100.2.3:9847"}
    assert reach.fixed is None
    assert not reach.loopback


def test_one_address_is_announced_as_it_is():
    reach = Reach([Endpoint("192.168.1.7", 4000)], [], looking(LOOP, WIFI))
    assert reach.addresses() == ("192.168.1.7:4000",)
    assert reach.fixed == ["192.168.1.7:4000"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.9.9.9"])
def test_a_loopback_node_knows_that_it_is_one(host: str):
    reach = Reach([Endpoint(host, 4000)], [], looking(LOOP, WIFI))
    assert reach.loopback
    assert reach.addresses() == (str(Endpoint(host, 4000)),)


def test_one_open_address_beside_loopback_is_not_loopback():
    assert not Reach([Endpoint("127.0.0.1", 1), Endpoint("0.0.0.0", 2)], [], looking(LOOP)).loopback


def test_the_port_announced_for_every_interface_is_the_port_bound_there():
    """Listening on loopback too, on another port, must not send others to that one."""
    reach = Reach([Endpoint("127.0.0.1", 4000), Endpoint("0.0.0.0", 9847)], [], looking(LOOP, WIFI))
    assert reach.addresses() == ("192.168.1.7:9847",)
    assert reach.port == 9847


def test_what_is_advertised_replaces_everything_and_may_stand_in_a_host_header():
    reach = Reach([Endpoint("0.0.0.0", 9847)], [Endpoint("Mini.Example", 80), Endpoint("10.0.0.1", 81)], looking(WIFI))
    assert reach.addresses() == ("Mini.Example:80", "10.0.0.1:81")
    assert reach.host_names == ("mini.example", "10.0.0.1")


def test_at_most_four_are_stated_and_one_bound_twice_counts_once():
    many = [LocalAddress("eth0", 4, f"10.0.0.{n}", 24, True) for n in range(1, 10)]
    assert len(Reach([Endpoint("0.0.0.0", 1)], [], looking(*many)).addresses()) == STATED_MAX
    assert len(Reach([Endpoint("0.0.0.0", 1)], [Endpoint("10.0.0.1", n) for n in range(1, 9)], looking()).addresses()) == STATED_MAX
    assert Reach([Endpoint("10.0.0.1", 1)] * 2, [], looking()).listening == ("10.0.0.1:1",)


def test_a_name_too_long_to_be_told_is_refused_at_once():
    fits = Endpoint("x" * (STATED_BYTES_MAX - 5), 9847)
    assert Reach([Endpoint("0.0.0.0", 9847)], [fits], looking()).addresses() == (str(fits),)
    with pytest.raises(Usage) as caught:
        Reach([Endpoint("0.0.0.0", 9847)], [Endpoint("x" * 100, 9847)], looking())
    assert caught.value.hint


def test_an_address_with_ipv6_is_written_so_that_it_can_be_dialled():
    reach = Reach([Endpoint("fd00::1", 4000)], [], looking())
    assert reach.addresses() == ("[fd00::1]:4000",)


async def test_a_change_of_the_machines_addresses_is_told_once(monkeypatch: pytest.MonkeyPatch):
    """O-D1: the laptop moves from cable to Wi-Fi."""
    monkeypatch.setattr(room, "LOOK_S", 0.01)
    now = [LOOP, WIFI]
    reach = Reach([Endpoint("0.0.0.0", 9847)], [], lambda: list(now))
    told = 0

    def changed() -> None:
        nonlocal told
        told += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reach.run_look, changed)
        await trio.sleep(0.1)
        assert told == 0
        now[:] = [LOOP, TAILNET]
        with trio.fail_after(5):
            while not told:  # noqa: ASYNC110 - the looking thread has no event
                await trio.sleep(0.01)
        await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert told == 1
    assert reach.addresses() == ("100.100.2.3:9847",)
