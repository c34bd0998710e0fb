"""Announce this node on the local network and hear the others: hints for the dialer, never a fact.

One task keeps a responder (``mesh.responder``) alive: it announces and asks every 10 to 30 s, because after a
partition nobody else does, follows the machine's addresses, and starts again with back-off when multicast fails.
A second task reads what comes in. Whatever fails here, the node goes on without it and says why.

Source: docs/PROTOCOL.md, section 8.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address

import trio

from mesh.base.clock import read_clock
from mesh.interfaces import (
    LocalAddress,
    choose_endpoint,
    choose_multicast,
    choose_networks,
    read_addresses,
    read_host_mark,
)
from mesh.responder import Announcement, Inbox, NoMulticast, Responder, open_responder
from mesh.sightings import NONCE_BYTES, Book, Here, Sighting, is_tag, make_instance, parse_heard_untrusted

__all__ = ["Discovery", "Pace", "Sighting", "open_discovery"]

KNOWN_S = 45.0
"""Whoever was heard within this time need not answer when we ask who is there."""
ASK_GAP_S = 1.0
"""Two questions are at least so far apart, however many people browse."""
WAITING_MAX = 64
"""Sightings that wait for the dialer; one more replaces the oldest."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is done, in seconds. Tests on their own networks go faster.

    Attributes:
        first_rounds_s: The pauses after the first announcements.
        round_s: Every later pause is drawn from this range, so that machines do not fall into step.
        poll_s: How often the machine's addresses are looked at.
        back_off_s: The pause after a failure: the first and the longest; doubled each time, half of it random.
        first_echo_s: Without hearing its own first announcement for so long, multicast does not come through.
        echo_s: The same for later ones: two may be lost at the longest pause.
    """

    first_rounds_s: tuple[float, ...] = (1.0, 3.0)
    round_s: tuple[float, float] = (10.0, 30.0)
    poll_s: float = 5.0
    back_off_s: tuple[float, float] = (5.0, 60.0)
    first_echo_s: float = 6.0
    echo_s: float = 75.0


class Discovery:
    """What is known of the local network. Made by :func:`open_discovery`.

    Attributes:
        instance: The name this node announces; random with every start.
        sightings: New, changed and, every 5 s at most, unchanged announcers, for the dialer. At most ``WAITING_MAX``
            wait; one more replaces the oldest.
    """

    def __init__(
        self,
        port: int,
        advertise: Sequence[str] | None,
        gate_tag: Callable[[], str],
        interfaces: Sequence[str] | None,
        look: Callable[[], list[LocalAddress]],
        pace: Pace,
    ) -> None:
        self._port = port
        self._advertise = advertise
        self._gate_tag = gate_tag
        self._only = interfaces
        self._look_sync = look
        self._pace = pace
        self._host_mark = read_host_mark()
        self._endpoint = choose_endpoint(port, advertise, ())
        self.instance = make_instance(os.urandom(NONCE_BYTES), self._host_mark, self._endpoint[0])
        self._send, self.sightings = trio.open_memory_channel[Sighting](WAITING_MAX)
        self._overflow = self.sightings.clone()
        self._inbox = Inbox(trio.lowlevel.current_trio_token())
        self._book = Book()
        self._looked: list[LocalAddress] | None = None
        self._local: list[LocalAddress] = []
        self._interfaces: tuple[str | int, ...] = ()
        self._here = Here(self._host_mark, ())
        self._announced: Announcement | None = None
        self._state = ("off", "starting")
        self._echoed, self._echo_by = False, float("inf")
        self._woken = trio.Event()
        self._ask_all = False
        self._asked_at = float("-inf")

    @property
    def state(self) -> tuple[str, str]:
        """``("on" | "off", reason)``: whether multicast works here; the reason is for people and may be empty."""
        return self._state

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The addresses and port announced now; empty while nothing is."""
        announced = self._announced
        return tuple((host, announced.port) for host in announced.addresses) if announced else ()

    def current(self) -> list[Sighting]:
        """List who was heard within the last 90 s, newest first; at most 256."""
        return self._book.current(read_clock().steady_s)

    def update(self) -> None:
        """Announce anew at once, for example because the mesh and with it the tag has changed."""
        self._woken.set()

    async def browse(self, timeout_s: float) -> list[Sighting]:
        """Ask everybody to answer now and wait; while discovery is off, also try to bring it up at once.

        Args:
            timeout_s: How long to collect answers, in seconds.

        Returns:
            As :meth:`current`, afterwards. Cancelling leaves nothing behind.
        """
        self._ask_all = True
        self._woken.set()
        await trio.sleep(timeout_s)
        return self.current()

    async def run(self) -> None:
        """Keep a responder alive until cancelled."""
        failures = 0
        while True:
            try:
                await self._serve()
            except NoMulticast as error:
                failures = 0 if self._state[0] == "on" else failures + 1
                self._set_state("off", error.message)
            self._announced, self._ask_all = None, False
            first_s, longest_s = self._pace.back_off_s
            await self._pause(min(longest_s, first_s * 2 ** min(failures, 8)) * random.uniform(0.5, 1.0))

    async def listen(self) -> None:
        """Read what comes in until cancelled."""
        while True:
            await self._inbox.arrived.wait()
            now_s = read_clock().steady_s
            for name, heard in self._inbox.take().items():
                if name.startswith(f"{self.instance}."):
                    self._echoed, self._echo_by = True, trio.current_time() + self._pace.echo_s
                    self._judge()
                    continue
                if heard is None:
                    self._book.forget(name)
                    continue
                sighting = parse_heard_untrusted(heard, self._here, now_s)
                if sighting is not None and self._book.note(name, sighting):
                    self._tell(sighting)

    def close(self) -> None:
        """End the channel of sightings; whoever waits on it sees its end."""
        self._send.close()
        self._overflow.close()
        self.sightings.close()

    async def _serve(self) -> None:
        """Run one responder until it fails."""
        interfaces = await self._look()
        self._echoed = False
        async with open_responder(interfaces, self._inbox) as responder:
            first = list(self._pace.first_rounds_s)
            round_at = trio.current_time()
            while True:
                due = trio.current_time() >= round_at
                if due:
                    await responder.use(interfaces)
                    round_at = trio.current_time() + (first.pop(0) if first else random.uniform(*self._pace.round_s))
                await self._announce(responder, due=due)
                await self._ask(responder, due=due)
                self._judge()
                until_s = min(round_at, trio.current_time() + self._pace.poll_s)
                await self._wait(min(until_s, self._asked_at + ASK_GAP_S) if self._ask_all else until_s)
                before, interfaces = interfaces, await self._look()
                if interfaces != before:
                    await responder.use(interfaces)

    async def _announce(self, responder: Responder, *, due: bool) -> None:
        """Announce when it is time or when what is to be said has changed."""
        port, addresses = self._endpoint
        tag = self._gate_tag()
        assert not tag or is_tag(tag.encode()), "a tag is 13 characters of lower-case base32, or empty"
        wanted = Announcement(self.instance, port, addresses, tag) if addresses else None
        if due or wanted != self._announced:
            if self._announced is None:
                self._echo_by = trio.current_time() + self._pace.first_echo_s
            self._announced = wanted
            await responder.announce(wanted)

    async def _ask(self, responder: Responder, *, due: bool) -> None:
        """Ask who is there: everybody if somebody browses, else those not heard lately."""
        now_s = trio.current_time()
        if not (due or self._ask_all) or now_s - self._asked_at < ASK_GAP_S:
            return
        known = frozenset[str]()
        if not self._ask_all:
            known = self._book.heard_within(read_clock().steady_s, KNOWN_S)
        self._ask_all, self._asked_at = False, now_s
        await responder.ask(known)

    def _judge(self) -> None:
        """Say "on" only while this node hears its own announcements, if there are any."""
        if self._announced is not None and trio.current_time() > self._echo_by:
            self._set_state("off", "multicast does not come through here (a firewall, or a network without it)")
        elif self._announced is None or self._echoed:
            alone = all(ip_address(local.host).is_loopback for local in self._local)
            self._set_state("on", "this machine only: no other network interface is up" if alone else "")

    async def _look(self) -> tuple[str | int, ...]:
        """Read the machine's addresses and choose the interfaces.

        Raises:
            NoMulticast: There is none, or the system would not say.
        """
        try:
            local = await trio.to_thread.run_sync(self._look_sync)
        except OSError as error:
            raise NoMulticast(f"the network interfaces cannot be read: {error.strerror}") from error
        if local != self._looked:
            self._looked = local
            self._local = [one for one in local if one.running and (self._only is None or one.host in self._only)]
            self._interfaces = choose_multicast(self._local)
            self._endpoint = choose_endpoint(self._port, self._advertise, self._local)
            self._here = Here(self._host_mark, choose_networks(self._local))
        if not self._interfaces:
            raise NoMulticast("no network interface is up")
        return self._interfaces

    async def _pause(self, pause_s: float) -> None:
        """Wait after a failure; a changed address, ``update`` and ``browse`` end it early."""
        until_s = trio.current_time() + pause_s
        before = self._looked
        while trio.current_time() < until_s and self._looked == before:
            if await self._wait(min(until_s, trio.current_time() + self._pace.poll_s)):
                return
            with suppress(NoMulticast):
                await self._look()

    async def _wait(self, until_s: float) -> bool:
        """Wait until then, or until somebody wants something; returns whether somebody did."""
        with trio.move_on_at(until_s):
            await self._woken.wait()
        woken = self._woken.is_set()
        self._woken = trio.Event()
        return woken

    def _set_state(self, state: str, reason: str) -> None:
        before, self._state = self._state, (state, reason)
        if before == self._state:
            return
        if state == "off":
            _log.warning("discovery on the local network is off: %s", reason)
        else:
            _log.info("discovery on the local network is on%s", f" ({reason})" if reason else "")

    def _tell(self, sighting: Sighting) -> None:
        try:
            self._send.send_nowait(sighting)
        except trio.WouldBlock:
            self._overflow.receive_nowait()
            self._send.send_nowait(sighting)


@asynccontextmanager
async def open_discovery(
    port: int,
    advertise: Sequence[str] | None,
    gate_tag: Callable[[], str],
    *,
    interfaces: Sequence[str] | None = None,
    look: Callable[[], list[LocalAddress]] = read_addresses,
    pace: Pace | None = None,
) -> AsyncIterator[Discovery]:
    """Announce this node on the local network and listen for others.

    Args:
        port: The port this node listens on.
        advertise: ``HOST:PORT`` entries to announce instead of the machine's own addresses, or None.
        gate_tag: Gives the tag of this hour, 13 characters, or empty for none. Called every few seconds, so a new
            hour or a new mesh shows by itself; :meth:`Discovery.update` makes it show at once.
        interfaces: Addresses of this machine to be restricted to, both for multicast and in what is announced; a node
            that listens on loopback only passes ``["127.0.0.1"]``. None means every interface.
        look: Reads this machine's addresses, in a thread.
        pace: How often what is done; None means the defaults.

    Yields:
        The discovery; it never raises because of the network. Leaving says goodbye and takes at most about a second,
        also when cancelled.
    """
    discovery = Discovery(port, advertise, gate_tag, interfaces, look, pace or Pace())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(discovery.listen)
            nursery.start_soon(discovery.run)
            yield discovery
            nursery.cancel_scope.cancel()
    finally:
        discovery.close()

