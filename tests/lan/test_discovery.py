"""Discovery by real multicast between network namespaces (CASES.md, discovery and O-V3)."""

from __future__ import annotations

import os
import signal
import sys
import time
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from mesh.sightings import LIFE_S, SIGHTINGS_MAX, may_dial
from tests.lan.lab import Lab, Watcher, open_lab

SQUATTER = (
    "import socket\n"
    "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "s.bind(('',5353))\n"
    "print('{}',flush=True)\n"
    "import signal\n"
    "signal.pause()\n"
)
AVAHI_CONF = """
[server]
use-ipv4=yes
use-ipv6=no
enable-dbus=yes
[publish]
publish-hinfo=no
publish-workstation=no
"""
AVAHI_START = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/dbus && hostname {host} && "
    "dbus-daemon --system --nofork >/dev/null 2>&1 & while [ ! -S /run/dbus/system_bus_socket ]; do sleep 0.05; done; "
    "avahi-daemon -f {conf} --no-drop-root --no-chroot --no-rlimits >/dev/null 2>&1 & "
    "while [ ! -e /run/avahi-daemon/socket ]; do sleep 0.05; done; "
)


def _announce(lab: Lab, host: str, *arguments: str, fast: bool = True) -> Watcher:
    return Watcher(lab, host, "announcer.py", *(["--fast"] if fast else []), *arguments)


def _hears(address: str, port: int = 9847):
    """A condition on a line: somebody was heard with exactly this address."""
    return lambda line: [[address, port]] in [addresses for _, _, addresses in line["heard"]]


def _hears_anything(line: dict) -> bool:
    return bool(line["heard"])


def test_two_machines_find_each_other_and_say_goodbye() -> None:
    """Addresses and tag come through; a stopped one is forgotten at once, not after its records expire."""
    with open_lab("a", "b") as lab:
        one = _announce(lab, "a", "--tag", "abcdefghijkl2")
        other = _announce(lab, "b", "--port", "7001")
        heard = other.wait(_hears("10.99.0.1"), 10)["heard"]
        assert [tag for _, tag, _ in heard] == ["abcdefghijkl2"]
        one.wait(lambda line: _hears("10.99.0.2", 7001)(line) and line["state"] == ["on", ""], 10)
        started = time.monotonic()
        one.stop()
        assert one.process.returncode == 0
        assert time.monotonic() - started < 2
        other.wait(lambda line: line["heard"] == [], 5)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_machine_that_restarts_on_another_address_is_found_there(how: int) -> None:
    """O-D8: a new start has a new instance name; where it said goodbye, only the new one is listed."""
    with open_lab("a", "b") as lab:
        listener = _announce(lab, "b")
        moving = _announce(lab, "a")
        listener.wait(_hears("10.99.0.1"), 10)
        moving.stop(how)
        lab.readdress("a", "10.99.0.77/24")
        _announce(lab, "a")
        line = listener.wait(_hears("10.99.0.77"), 10)
        if how == signal.SIGTERM:
            assert len(line["heard"]) == 1
        else:
            assert LIFE_S < 120, "a killed one is forgotten by age: see the unit test of the book"


def test_a_changed_network_is_followed_without_a_restart() -> None:
    """O-D1: new interface, new address, old one gone, at the real pace; an untouched network notices nothing."""
    with open_lab("a", "old") as lab:
        for number, switch in enumerate(("fresh", "third"), start=1):
            lab.add_switch(switch)
            lab.add_host(f"on-{switch}")
            lab.plug(f"on-{switch}", switch, f"10.{number}.0.9/24")
        lab.plug("a", "third", "10.2.0.1/24", "eth2")
        node = _announce(lab, "a", fast=False)
        steady = _announce(lab, "on-third")
        newcomer = _announce(lab, "on-fresh", fast=False)
        steady.wait(_hears_anything, 10)
        node.wait(lambda line: _hears("10.2.0.9")(line), 35)
        settled, steady_settled = len(node.seen), len(steady.seen)
        lab.plug("a", "fresh", "10.1.0.1/24", "eth1")
        lab.remove("a", "eth0")
        moved = sorted([["10.1.0.1", 9847], ["10.2.0.1", 9847]])
        newcomer.wait(lambda line: [sorted(addresses) for _, _, addresses in line["heard"]] == [moved], 30)
        node.wait(lambda line: sorted(line["announced"]) == moved and _hears("10.1.0.9")(line), 30)
        assert all(_hears("10.2.0.9")(line) for line in node.seen[settled:])
        assert all(line["heard"] for line in steady.gather(0.5)[steady_settled:])


def test_a_held_port_is_told_and_waited_for() -> None:
    """O-D5: somebody holds UDP 5353 without sharing it; discovery is off with the reason, and comes up later."""
    with open_lab("a", "b") as lab:
        squatter = lab.start("a", sys.executable, "-c", SQUATTER)
        assert squatter.stdout is not None
        assert squatter.stdout.readline() == "{}\n"
        node = _announce(lab, "a")
        line = node.wait(lambda line: line["state"][1] != "starting", 10)
        assert line["state"] == ["off", "UDP port 5353: Address already in use"]
        other = _announce(lab, "b")
        lab.stop(squatter)
        node.wait(lambda line: line["state"] == ["on", ""] and bool(line["heard"]), 15)
        other.wait(_hears("10.99.0.1"), 10)


def test_a_network_that_swallows_multicast_is_noticed() -> None:
    """O-D5: the packets go nowhere, not even back to us; that is said instead of "nobody is there"."""
    with open_lab("a") as lab:
        for words in (
            ["add", "table", "inet", "deaf"],
            ["add", "chain", "inet", "deaf", "in", "{ type filter hook input priority 0 ; }"],
            ["add", "rule", "inet", "deaf", "in", "udp", "dport", "5353", "drop"],
        ):
            lab.run("a", "nft", *words)
        node = _announce(lab, "a")
        line = node.wait(lambda line: line["state"][1] != "starting", 10)
        assert line["state"][0] == "off"
        assert "multicast does not come through" in line["state"][1]
        lab.run("a", "nft", "flush", "ruleset")
        node.wait(lambda line: line["state"] == ["on", ""], 10)


def test_a_node_started_before_the_network_finds_it() -> None:
    """O-V3: not even loopback is up; at the real pace the peer is found within 30 s of the network."""
    with open_lab("b") as lab:
        lab.add_host("early", loopback=False)
        node = _announce(lab, "early", fast=False)
        node.wait(lambda line: line["state"] == ["off", "no network interface is up"], 10)
        other = _announce(lab, "b", fast=False)
        lab.run("early", "ip", "link", "set", "lo", "up")
        node.wait(lambda line: line["state"][0] == "on" and "this machine only" in line["state"][1], 30)
        lab.plug("early", "lan", "10.99.0.9/24")
        other.wait(_hears("10.99.0.9"), 30)
        node.wait(lambda line: line["state"] == ["on", ""] and bool(line["heard"]), 30)


def test_a_partition_from_the_start_heals_by_itself() -> None:
    """Nobody asks again after a partition but us: at the real pace both sides know each other within 30 s."""
    with open_lab("a", "b") as lab:
        lab.part(["a"], ["b"])
        one, other = _announce(lab, "a", fast=False), _announce(lab, "b", fast=False)
        for node in (one, other):
            node.wait(lambda line: line["state"] == ["on", ""], 15)
            assert not node.gather(2)[-1]["heard"]
        lab.heal()
        healed = time.monotonic()
        one.wait(_hears("10.99.0.2"), 35)
        other.wait(_hears("10.99.0.1"), 35)
        assert time.monotonic() - healed < 35


def test_one_way_silence_hides_only_one_side() -> None:
    """What one side says is heard although it hears nothing itself."""
    with open_lab("a", "b") as lab:
        lab.block("b", "a")
        one, other = _announce(lab, "a"), _announce(lab, "b")
        other.wait(_hears("10.99.0.1"), 10)
        assert not one.gather(2)[-1]["heard"]
        lab.heal()
        one.wait(_hears("10.99.0.2"), 10)


def test_a_pulled_cable_and_back() -> None:
    """O-D1: without a carrier the address is not announced; with it, everything is as before."""
    with open_lab("a", "b") as lab:
        one, other = _announce(lab, "a"), _announce(lab, "b")
        other.wait(_hears("10.99.0.1"), 10)
        lab.pull("a")
        one.wait(lambda line: ["10.99.0.1", 9847] not in line["announced"], 10)
        lab.replug("a")
        one.wait(lambda line: ["10.99.0.1", 9847] in line["announced"] and line["state"] == ["on", ""], 10)
        _announce(lab, "b", "--port", "7002")
        one.wait(_hears("10.99.0.2", 7002), 10)


def test_a_network_with_ipv6_only() -> None:
    """O-D3: without IPv4 they meet over IPv6 multicast."""
    with open_lab() as lab:
        for number, host in enumerate(("a", "b"), start=1):
            lab.add_host(host)
            lab.plug(host, "lan", f"fd00:99::{number}/64")
        one, other = _announce(lab, "a"), _announce(lab, "b")
        one.wait(_hears("fd00:99::2"), 15)
        other.wait(_hears("fd00:99::1"), 15)


def test_link_local_addresses_come_with_the_interface_they_were_heard_on() -> None:
    """O-D3: a bare fe80:: is skipped; one heard over IPv6 is kept with its scope, so that it can be dialled."""
    with open_lab("a", "b", "c") as lab:
        node = _announce(lab, "a")
        for host, port, *more in (("b", "7002"), ("c", "7003", "--ipv6")):
            tentative = "while ip -6 addr show dev eth0 tentative | grep -q fe80; do sleep 0.05; done"
            lab.run(host, "sh", "-c", tentative)
            foreign = Watcher(lab, host, "publisher.py", "--name", host, "--address", "fe80::1234", "--port", port, *more)
            foreign.wait(lambda line: "ready" in line, 10)
        index = lab.run("a", "cat", "/sys/class/net/eth0/ifindex").stdout.strip()
        line = node.wait(_hears_anything, 10)
        assert line["heard"] == [["c", None, [[f"fe80::1234%{index}", 7003]]]]
        assert line["state"] == ["on", ""]


def test_addresses_that_lead_elsewhere_are_dropped() -> None:
    """O-D2, SECURITY.md 31: of what a stranger claims, only what is near is kept; 4 of them, nearest first."""
    claimed = ["127.0.0.1", "169.254.169.254", "8.8.8.8", "224.0.0.1", "172.17.0.1", "10.99.0.2"]
    with open_lab("a", "b") as lab:
        node = _announce(lab, "a")
        arguments = [word for address in claimed for word in ("--address", address)]
        Watcher(lab, "b", "publisher.py", *arguments)
        line = node.wait(_hears_anything, 10)
        assert line["heard"] == [["foreign", None, [["10.99.0.2", 9847], ["172.17.0.1", 9847]]]]


def test_nodes_on_loopback_meet_and_stay_there() -> None:
    """Two homes on one machine, bound to loopback: they meet, a third on every interface hears them, no wire does."""
    with open_lab("a", "b") as lab:
        wire = Watcher(lab, "b", "sniffer.py")
        wire.wait(lambda line: "ready" in line, 5)
        one = _announce(lab, "a", "--only", "127.0.0.1", "--port", "7001")
        other = _announce(lab, "a", "--only", "127.0.0.1", "--port", "7002")
        one.wait(_hears("127.0.0.1", 7002), 10)
        line = other.wait(_hears("127.0.0.1", 7001), 10)
        assert line["announced"] == [["127.0.0.1", 7002]]
        assert not [seen for seen in wire.gather(0.5) if seen.get("source") == "10.99.0.1"]
        third = _announce(lab, "a", "--port", "7003")
        third.wait(lambda line: _hears("127.0.0.1", 7001)(line) and _hears("127.0.0.1", 7002)(line), 10)


def test_strangers_see_no_name_and_little_traffic(tmp_path: Path) -> None:
    """PROTOCOL.md section 2: not the machine's, person's or folder's name on the wire. O-D6: < 5 packets/s a side."""
    hostname, person = "anas-secret-laptop", "ana-private"
    with open_lab("a", "b") as lab:
        wire = Watcher(lab, "b", "sniffer.py")
        wire.wait(lambda line: "ready" in line, 5)
        script = f"hostname {hostname}; HOME=/{person} USER={person} exec {sys.executable} tests/lan/announcer.py"
        lab.start("a", "unshare", "--uts", "sh", "-c", script)
        listener = _announce(lab, "b", fast=False)
        instance = listener.wait(_hears("10.99.0.1"), 15)["heard"][0][0]
        time_s = 6
        packets = [seen for seen in wire.gather(time_s) if seen.get("source") == "10.99.0.1"]
        payloads = b"".join(bytes.fromhex(str(seen["payload"])) for seen in packets)
        assert instance.encode() in payloads
        assert b"v=1" in payloads
        for name in (hostname, person, "secret", "hivemesh-", "cpython"):
            assert name.encode() not in payloads
        assert len(packets) < 5 * time_s


@pytest.mark.soak
def test_many_addresses_and_many_peers_cost_little() -> None:
    """O-D7: 40 networks and 100 announced peers: below 2 % of a core, at the real pace."""
    with open_lab("a", "b") as lab:
        for number in range(40):
            pair = ["link", "add", f"v{number}", "type", "veth", "peer", "name", f"w{number}"]
            lab.run("a", "ip", *pair)
            lab.run("a", "ip", "addr", "add", f"10.50.{number}.1/24", "dev", f"v{number}")
            lab.run("a", "ip", "link", "set", f"v{number}", "up")
            lab.run("a", "ip", "link", "set", f"w{number}", "up")
        Watcher(lab, "b", "publisher.py", "--count", "100", "--address", "10.99.0.2")
        node = _announce(lab, "a", fast=False)
        node.wait(lambda line: len(line["heard"]) == 100, 60)
        node.gather(4)
        time_s = 6
        before_s = _cpu_s(node.process.pid)
        node.gather(time_s)
        assert (_cpu_s(node.process.pid) - before_s) / time_s < 0.02


def test_a_babbling_neighbour_changes_nothing() -> None:
    """Broken packets and thousands of invented machines: bounded, no far address, and the honest one is found."""
    with open_lab("a", "b", "c") as lab:
        node = _announce(lab, "a")
        node.wait(lambda line: line["state"] == ["on", ""], 10)
        babbler = Watcher(lab, "c", "babbler.py", "10.99.0.3", "6000")
        babbler.wait(lambda line: "sent" in line, 20)
        _announce(lab, "b", "--port", "7002")
        line = node.wait(_hears("10.99.0.2", 7002), 15)
        assert line["state"] == ["on", ""]
        assert len(line["heard"]) <= SIGHTINGS_MAX
        hosts = {ip_address(host) for _, _, addresses in line["heard"] for host, _ in addresses}
        lan = [ip_network("10.99.0.0/24")]
        assert all(may_dial(host, scoped=False, networks=lan, same_host=False) for host in hosts), hosts
        assert node.process.poll() is None


def test_avahi_and_we_see_each_other(tmp_path: Path) -> None:
    """The system's own responder, on another machine and on ours: both hear both, and the port is shared."""
    conf = tmp_path / "avahi.conf"
    conf.write_text(AVAHI_CONF)
    with open_lab("a", "b") as lab:
        if lab.run("a", "which", "avahi-daemon", "avahi-browse", "avahi-publish", "dbus-daemon", check=False).returncode:
            pytest.skip("needs the Debian packages avahi-daemon, avahi-utils and dbus")
        for host, port in (("a", 4001), ("b", 4002)):
            publish = f"exec avahi-publish -s avahi-on-{host} _hivemesh._tcp {port} v=1 t=bcdefghijklm3"
            script = AVAHI_START.format(conf=conf, host=f"host-{host}") + publish
            lab.start(host, "unshare", "--mount", "--uts", "sh", "-c", script)
        node = _announce(lab, "a", "--port", "7001")
        line = node.wait(
            lambda line: _hears("10.99.0.2", 4002)(line) and _hears("10.99.0.1", 4001)(line) and line["state"][0] == "on", 20
        )
        assert {tag for _, tag, _ in line["heard"]} == {"bcdefghijklm3"}
        browse = AVAHI_START.format(conf=conf, host="watcher") + "exec avahi-browse -rtp _hivemesh._tcp"
        lab.add_host("c")
        lab.plug("c", "lan", "10.99.0.3/24")
        listed = lab.run("c", "timeout", "20", "unshare", "--mount", "--uts", "sh", "-c", browse, check=False).stdout
        resolved = [entry for entry in listed.splitlines() if entry.startswith("=") and str(line["instance"]) in entry]
        assert resolved, listed
        assert "10.99.0.1;7001" in resolved[0]
        assert '"v=1"' in resolved[0]


def _cpu_s(pid: int) -> float:
    """Read the CPU time a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
