"""A network of one's own: hosts as network namespaces, switches as bridges, cables that can be pulled.

``with open_lab("a", "b") as lab`` gives two hosts on one switch. Everything carries the number of the process that
made it, so labs run beside each other, and what a killed run left behind is swept by the next one.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PREFIX = "hmlab"
_serial = itertools.count(1)


def missing() -> str | None:
    """Say why no lab can be made here, or None where one can."""
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(program) is None:
            return f"network namespaces need `{program}` (Debian package {package})"
    if os.geteuid() != 0:
        return "network namespaces need root here"
    name = f"{PREFIX}-{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    try:
        table = ["ip", "netns", "exec", name, "nft", "add", "table", "bridge", "probe"]
        tried = subprocess.run(table, capture_output=True, text=True, check=False)
        return f"bridge rules cannot be made here: {tried.stderr.strip()}" if tried.returncode else None
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def sweep() -> list[str]:
    """Remove the namespaces of runs whose process is gone, with what still runs in them; returns their names."""
    swept = []
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.strip()):
        owner = re.fullmatch(rf"{PREFIX}-(\d+)-.*", name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            _remove(name)
            swept.append(name)
    return swept


@contextmanager
def open_lab(*hosts: str, network: str = "10.99.0") -> Iterator[Lab]:
    """Make hosts on one switch: the first has the address ``<network>.1``, the second ``.2`` and so on."""
    sweep()
    lab = Lab()
    try:
        lab.add_switch("lan")
        for number, host in enumerate(hosts, start=1):
            lab.add_host(host)
            lab.plug(host, "lan", f"{network}.{number}/24")
        yield lab
    finally:
        lab.close()


@contextmanager
def open_slow_lab(
    *hosts: str,
    delay_s: float,
    jitter_s: float = 0.0,
    loss: float = 0.0,
    bits_per_s: float = 0.0,
    queue_bytes: int = 64 * 1024,
    seed: int = 1,
    network: str = "10.98.0",
) -> Iterator[Lab]:
    """Make hosts on one slow line, a switch in user space (``switch.py``); addresses as in :func:`open_lab`."""
    sweep()
    lab = Lab()
    try:
        for host in hosts:
            lab.add_host(host)
        plugs = [[lab.namespace(host), f"{network}.{number}/24"] for number, host in enumerate(hosts, start=1)]
        wanted = {"hosts": plugs, "delay_s": delay_s, "jitter_s": jitter_s, "loss": loss, "bits_per_s": bits_per_s}
        lab.switch_in_user_space(json.dumps({**wanted, "queue_bytes": queue_bytes, "seed": seed}))
        yield lab
    finally:
        lab.close()


class Lab:
    """Hosts, switches and the processes started on the hosts."""

    def __init__(self) -> None:
        self._name = f"{PREFIX}-{os.getpid()}-{next(_serial)}"
        self._hosts: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._ports: dict[tuple[str, str], str] = {}
        self._switches = f"{self._name}-switches"
        _ip("netns", "add", self._switches)

    def namespace(self, host: str) -> str:
        """The name of a host's namespace."""
        return f"{self._name}-{host}"

    def add_switch(self, switch: str) -> None:
        """Add a switch; nothing is plugged in yet."""
        _ip("-n", self._switches, "link", "add", switch, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self._switches, "link", "set", switch, "up")
        # After the bridge: a chain made in a namespace that has none yet never sees a packet.
        self._nft("add", "table", "bridge", "lab")
        self._nft("add", "chain", "bridge", "lab", "hop", "{ type filter hook forward priority 0 ; }")

    def add_host(self, host: str, *, loopback: bool = True) -> None:
        """Add a host without a network; ``loopback`` says whether its loopback is up."""
        _ip("netns", "add", self.namespace(host))
        self._hosts.append(host)
        if loopback:
            _ip("-n", self.namespace(host), "link", "set", "lo", "up")

    def plug(self, host: str, switch: str, address: str, interface: str = "eth0", *, ipv6: bool = True) -> None:
        """Plug a host into a switch by a new interface with this address and prefix, as in ``10.99.0.1/24``."""
        namespace, port = self.namespace(host), f"p{len(self._ports)}"
        self._ports[host, interface] = port
        link = ["link", "add", interface, "type", "veth", "peer", "name", port, "netns", self._switches]
        _ip("-n", namespace, *link)
        if not ipv6:
            self.run(host, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
        _ip("-n", self._switches, "link", "set", port, "master", switch, "up")
        _ip("-n", namespace, "addr", "add", address, "dev", interface)
        _ip("-n", namespace, "link", "set", interface, "up")

    def switch_in_user_space(self, wanted: str) -> None:
        """Start a switch that plugs itself into hosts without a network, as its argument says."""
        command = [sys.executable, str(Path(__file__).with_name("switch.py")), wanted]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the switch did not start"

    def pull(self, host: str, interface: str = "eth0") -> None:
        """Pull a host's cable out of the switch."""
        _ip("-n", self._switches, "link", "set", self._ports[host, interface], "down")

    def replug(self, host: str, interface: str = "eth0") -> None:
        """Put a pulled cable back."""
        _ip("-n", self._switches, "link", "set", self._ports[host, interface], "up")

    def remove(self, host: str, interface: str) -> None:
        """Take an interface out of a host."""
        _ip("-n", self.namespace(host), "link", "del", interface)
        del self._ports[host, interface]

    def readdress(self, host: str, address: str, interface: str = "eth0") -> None:
        """Give an interface this address instead of every IPv4 address it has."""
        _ip("-n", self.namespace(host), "-4", "addr", "flush", "dev", interface)
        _ip("-n", self.namespace(host), "addr", "add", address, "dev", interface)

    def block(self, sender: str, receiver: str) -> None:
        """Drop what one host sends to another; the way back stays open."""
        for (one, _), out_of in self._ports.items():
            for (other, _), into in self._ports.items():
                if one == sender and other == receiver:
                    self._nft("add", "rule", "bridge", "lab", "hop", "iifname", out_of, "oifname", into, "drop")

    def part(self, *sides: Sequence[str]) -> None:
        """Split the hosts into sides that hear nothing of each other."""
        for one, other in itertools.permutations(sides, 2):
            for sender in one:
                for receiver in other:
                    self.block(sender, receiver)

    def heal(self) -> None:
        """Undo every block and partition."""
        self._nft("flush", "chain", "bridge", "lab", "hop")

    def run(self, host: str, *command: str, timeout_s: float = 30, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        return subprocess.run(
            self.command(host, *command), capture_output=True, text=True, timeout=timeout_s, check=check, env=self.environment()
        )

    def start(self, host: str, *command: str) -> subprocess.Popen[str]:
        """Start a command on a host; it is ended with the lab."""
        process = subprocess.Popen(
            self.command(host, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def command(self, host: str, *command: str) -> list[str]:
        """The full command line that runs something on a host; it becomes that process, without a wrapper."""
        return ["ip", "netns", "exec", self.namespace(host), *command]

    def environment(self) -> dict[str, str]:
        """The environment of commands: this one, with the repository importable."""
        return {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def stop(self, process: subprocess.Popen[str], signal_number: int = signal.SIGTERM) -> None:
        """End a process started here, and wait for it."""
        if process.poll() is None:
            process.send_signal(signal_number)
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End every process and remove every namespace; whatever is gone already is no fault."""
        for process in self._processes:
            self.stop(process)
            if process.stdout is not None:
                process.stdout.close()
        for host in self._hosts:
            _remove(self.namespace(host))
        _remove(self._switches)

    def _nft(self, *words: str) -> None:
        subprocess.run(["ip", "netns", "exec", self._switches, "nft", *words], check=True)


class Watcher:
    """A process on a host that prints its state as JSON lines; the newest line is what it says now."""

    def __init__(self, lab: Lab, host: str, script: str, *arguments: str) -> None:
        self._lab = lab
        self.process = lab.start(host, sys.executable, str(Path(__file__).parent / script), *arguments)
        self._lines: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        self.seen: list[dict[str, object]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self, wanted: Callable[[dict[str, object]], bool], deadline_s: float) -> dict[str, object]:
        """Wait until the newest line is as wanted; fails with the last line when the time is up."""
        until = time.monotonic() + deadline_s
        while not (self.seen and wanted(self.seen[-1])):
            left_s = until - time.monotonic()
            assert left_s > 0, f"not within {deadline_s} s; last: {self.seen[-1:]}"
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                continue
            assert line is not None, f"the process ended; last: {self.seen[-1:]}"
            self.seen.append(line)
        return self.seen[-1]

    def gather(self, time_s: float) -> list[dict[str, object]]:
        """Take what is printed within this time, and return every line so far."""
        until = time.monotonic() + time_s
        while (left_s := until - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                break
            if line is None:
                break
            self.seen.append(line)
        return self.seen

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        """End the process."""
        self._lab.stop(self.process, signal_number)
        self._thread.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(json.loads(line))
        self._lines.put(None)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _remove(namespace: str) -> None:
    """Remove a namespace; processes left in it, all started for it, are killed first by their numbers."""
    pids = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
    for pid in pids.split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(["ip", "netns", "del", namespace], check=False)
