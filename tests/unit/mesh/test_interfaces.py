"""What this machine is on the network: ranking is pure, the two doors are tried on the machine itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh import interfaces as room
from mesh.interfaces import (
    ANNOUNCED_MAX,
    MULTICAST_MAX,
    LocalAddress,
    choose_announced,
    choose_endpoint,
    choose_multicast,
    choose_networks,
    is_bridge,
    read_addresses,
    read_host_mark,
)

LOOPBACK = LocalAddress("lo", 1, "127.0.0.1", 8, True)
LOOPBACK_V6 = LocalAddress("lo", 1, "::1", 128, True)
BRIDGE = LocalAddress("docker0", 2, "172.17.0.1", 16, True)
CABLE = LocalAddress("eth0", 3, "192.168.1.5", 24, True)
CABLE_V6 = LocalAddress("eth0", 3, "2001:db8::5", 64, True)
CABLE_LINK = LocalAddress("eth0", 3, "fe80::5", 64, True)
TAILNET = LocalAddress("tailscale0", 4, "100.101.1.2", 32, True)
TAILNET_V6 = LocalAddress("tailscale0", 4, "fd7a:115c:a1e0::2", 128, True)
DOWN = LocalAddress("wlan0", 5, "10.0.0.9", 24, False)
SELF_ASSIGNED = LocalAddress("eth1", 6, "169.254.3.4", 16, True)
ALL = [LOOPBACK, LOOPBACK_V6, BRIDGE, CABLE_LINK, CABLE_V6, CABLE, TAILNET_V6, TAILNET, DOWN, SELF_ASSIGNED]


def test_announced_are_the_useful_ones_ipv4_first() -> None:
    """O-D2: no container bridge, no address of an interface that is down, nothing link-local."""
    assert choose_announced(ALL) == ("192.168.1.5", "100.101.1.2", "fd7a:115c:a1e0::2", "2001:db8::5")


def test_bridges_and_loopback_are_announced_only_for_want_of_better() -> None:
    assert choose_announced([LOOPBACK, BRIDGE]) == ("172.17.0.1",)
    assert choose_announced([LOOPBACK, LOOPBACK_V6, SELF_ASSIGNED]) == ("127.0.0.1", "::1")
    assert choose_announced([DOWN, CABLE_LINK]) == ()
    assert choose_announced([]) == ()


def test_every_interface_comes_before_the_second_address_of_any() -> None:
    many = [LocalAddress("eth0", 3, f"10.0.0.{n}", 24, True) for n in range(1, 6)]
    other = LocalAddress("eth9", 9, "192.168.9.9", 24, True)
    assert choose_announced([*many, other]) == ("10.0.0.1", "192.168.9.9", "10.0.0.2", "10.0.0.3")


@pytest.mark.parametrize("name", ["docker0", "br-0123456789ab", "veth12", "virbr0", "cni0", "bridge100", "vmnet8"])
def test_bridges_are_known_by_name(name: str) -> None:
    assert is_bridge(name)


@pytest.mark.parametrize("name", ["eth0", "br0", "en0", "wlan0", "bond0", "tailscale0", "wg0", "bridge0"])
def test_interfaces_of_people_are_no_bridges(name: str) -> None:
    assert not is_bridge(name)


def test_multicast_goes_to_every_running_interface_bridges_last() -> None:
    assert choose_multicast(ALL) == ("127.0.0.1", 3, "192.168.1.5", 4, "100.101.1.2", "169.254.3.4", "172.17.0.1")
    assert choose_multicast([LOOPBACK_V6, DOWN]) == ()
    assert choose_multicast([LocalAddress("x", 0, "fd00::1", 64, True)]) == ()


def test_multicast_has_a_bound_that_keeps_loopback() -> None:
    """O-D7: a host with dozens of networks uses sixteen."""
    many = [LocalAddress(f"veth{n}" if n % 2 else f"eth{n}", n + 2, f"10.{n}.0.1", 24, True) for n in range(40)]
    chosen = choose_multicast([*many, LOOPBACK])
    assert len(chosen) == MULTICAST_MAX
    assert chosen[0] == "127.0.0.1"
    assert chosen[1:] == tuple(f"10.{n}.0.1" for n in range(0, 30, 2))


def test_networks_are_those_of_running_interfaces() -> None:
    expected = ("172.17.0.0/16", "2001:db8::/64", "192.168.1.0/24", "fd7a:115c:a1e0::2/128", "100.101.1.2/32")
    assert choose_networks(ALL) == tuple(ip_network(text) for text in expected)


def test_the_endpoint_is_the_machines_own_unless_configured() -> None:
    assert choose_endpoint(9847, None, [CABLE]) == (9847, ("192.168.1.5",))
    assert choose_endpoint(9847, ["203.0.113.7:4000", "[2001:db8::7]:4000"], [CABLE]) == (
        4000,
        ("203.0.113.7", "2001:db8::7"),
    )


@pytest.mark.parametrize(
    ("advertise", "endpoint"),
    [
        ([], (9847, ())),
        (["box.example.net:4000"], (9847, ())),
        (["10.0.0.1"], (9847, ("10.0.0.1",))),
        (["2001:db8::7"], (9847, ("2001:db8::7",))),
        (["[2001:db8::7]"], (9847, ("2001:db8::7",))),
        (["10.0.0.1:4000", "10.0.0.2:5000", "10.0.0.1:4000"], (4000, ("10.0.0.1",))),
        (["box:1", "10.0.0.1:4000"], (4000, ("10.0.0.1",))),
        (["10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1:", ":1", "", "0.0.0.0:1", "fe80::1", "[::]:1"], (9847, ())),
        ([f"10.0.0.{n}:1" for n in range(9)], (1, ("10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3"))),
    ],
)
def test_what_an_announcement_cannot_carry_is_left_out(advertise: list[str], endpoint: tuple[int, tuple[str, ...]]) -> None:
    assert choose_endpoint(9847, advertise, [CABLE]) == endpoint


_addresses = st.builds(
    LocalAddress,
    st.sampled_from(["lo", "eth0", "eth1", "docker0", "br-1", "tun0"]),
    st.integers(0, 9),
    st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str),
    st.integers(0, 32),
    st.booleans(),
)


@given(st.lists(_addresses, max_size=60))
def test_choices_are_bounded_running_and_our_own(addresses: list[LocalAddress]) -> None:
    running = [local for local in addresses if local.running]
    announced = choose_announced(addresses)
    assert len(announced) == len(set(announced)) <= ANNOUNCED_MAX
    assert set(announced) <= {local.host for local in running}
    multicast = choose_multicast(addresses)
    assert len(multicast) <= MULTICAST_MAX
    assert set(multicast) <= {local.host for local in running} | {local.index for local in running}
    assert len(choose_networks(addresses)) <= len(running)


def test_the_machine_itself_has_a_loopback() -> None:
    found = read_addresses()
    assert [local.host for local in found if local.host == "127.0.0.1" and local.running]
    assert all("%" not in local.host for local in found)


def test_an_interface_that_vanishes_while_it_is_looked_at_counts_as_running() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        assert room._is_running(control, "nosuch0")
        assert room._is_running(control, "lo")


def test_without_a_boot_id_nothing_is_the_same_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_BOOT_ID", "/nonexistent/boot_id")
    assert read_host_mark() is None


@pytest.mark.skipif(sys.platform != "linux", reason="the mark is read from Linux's /proc")
def test_the_host_mark_is_the_same_in_every_process() -> None:
    program = "from mesh.interfaces import read_host_mark; print(read_host_mark().hex())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    mark = read_host_mark()
    assert mark is not None
    assert other.strip() == mark.hex()
    assert len(mark) == 32
