"""python-zeroconf on a thread of its own: the only room that knows it.

The library is written for asyncio, the product for trio. So one thread runs an asyncio loop with one responder in
it; commands go in as coroutines and are awaited from trio, and what was heard comes out through a bounded
:class:`Inbox`. Nothing here decides when to do what: ``mesh.discovery`` does.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar

import trio
from zeroconf import (  # type: ignore[attr-defined]
    DNSAddress,
    DNSOutgoing,
    DNSPointer,
    DNSQuestion,
    DNSService,
    DNSText,
    Error,
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceInfo,
    Zeroconf,
    current_time_millis,
)
from zeroconf.asyncio import AsyncZeroconf

from mesh.base.errors import OurFault
from mesh.sightings import ADDRESSES_READ_MAX, SERVICE_TYPE, SIGHTINGS_MAX, TEXT_VERSION, Heard

MDNS_PORT = 5353
CALL_S = 8.0
"""A command to the responder that takes longer counts as failed."""
GOODBYE_S, END_S = 0.75, 0.25
"""What closing may take: goodbyes, then the end of the thread. After that it is left to end by itself."""
RESOLVING_MAX = 16
"""Announcers asked for missing records at a time; more wait for their own next announcement."""
RECORD_TTL_S = 120
"""How long others may keep our records. Announcements come at least every 30 s, so a dead node is forgotten soon."""

_PTR, _CLASS_IN = 12, 1
_FLUSH_TTL_S = 1

_T = TypeVar("_T")


class NoMulticast(OurFault):
    """Multicast does not work on this machine now."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What this node says of itself on the local network: nothing that names it.

    Attributes:
        instance: Random with every start; see ``mesh.sightings.make_instance``.
        port: The port to dial.
        addresses: 1 to 4 IP addresses.
        tag: What members of the same mesh recognise, or empty.
    """

    instance: str
    port: int
    addresses: tuple[str, ...]
    tag: str

    @property
    def name(self) -> str:
        """The full name, with the service type."""
        return f"{self.instance}.{SERVICE_TYPE}"


@dataclass(slots=True)
class Inbox:
    """What was heard and not yet taken, by full name; None means that it said goodbye.

    Filled from the responder's thread, emptied from trio's. At most ``SIGHTINGS_MAX`` names wait: of one name only
    the newest counts, and one name too many replaces the oldest.
    """

    token: trio.lowlevel.TrioToken
    arrived: trio.Event = field(default_factory=trio.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: dict[str, Heard | None] = field(default_factory=dict)

    def put(self, name: str, heard: Heard | None) -> None:
        """Leave something, from any thread."""
        with self._lock:
            self._waiting.pop(name, None)
            self._waiting[name] = heard
            if len(self._waiting) > SIGHTINGS_MAX:
                del self._waiting[next(iter(self._waiting))]
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self._wake, idempotent=True)

    def take(self) -> dict[str, Heard | None]:
        """Take everything, in trio's thread, oldest first."""
        self.arrived = trio.Event()
        with self._lock:
            taken, self._waiting = self._waiting, {}
        return taken

    def _wake(self) -> None:
        self.arrived.set()


class Responder:
    """A running responder, commanded from trio. Made by :func:`open_responder`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: _Core) -> None:
        self._loop = loop
        self._core = core

    async def use(self, interfaces: Sequence[str | int]) -> None:
        """Move to another set of interfaces; services stay announced on those that remain.

        Raises:
            NoMulticast: None of them takes multicast, or the responder failed.
        """
        await self._call(self._core.use(list(interfaces)))

    async def announce(self, wanted: Announcement | None) -> None:
        """Announce this, or announce again if it is already; None withdraws with a goodbye."""
        await self._call(self._core.announce(wanted))

    async def ask(self, known: frozenset[str]) -> None:
        """Ask who is there; the names in ``known`` (lower case) are told that they need not answer."""
        await self._call(self._core.ask(known))

    async def close(self) -> None:
        """Say goodbye and give the sockets back; never raises what the network did."""
        with suppress(NoMulticast):
            await self._call(self._core.close())

    async def _call(self, work: Coroutine[object, object, _T]) -> _T:
        """Run a coroutine in the responder's thread; if cancelled, it is cancelled there as well."""
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()

        def wake(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(wake)
        try:
            with trio.fail_after(CALL_S):
                await done.wait()
            return future.result()
        except trio.TooSlowError:
            raise NoMulticast("the multicast responder did not answer") from None
        except (OSError, RuntimeError, Error) as error:
            raise NoMulticast(_reason(error)) from error
        finally:
            future.cancel()


@asynccontextmanager
async def open_responder(interfaces: Sequence[str | int], inbox: Inbox) -> AsyncIterator[Responder]:
    """Start a responder on these interfaces.

    Args:
        interfaces: IPv4 addresses and numbers of interfaces with IPv6; at least one.
        inbox: Where everything heard goes.

    Yields:
        The responder. Leaving says goodbye and closes within a second, also when cancelled; what takes longer is
        left to end by itself.

    Raises:
        NoMulticast: The port is held by somebody else, or no interface takes multicast.
    """
    _check_port()
    loop = asyncio.new_event_loop()
    ended = trio.Event()
    thread = threading.Thread(
        target=_run_loop, args=(loop, trio.lowlevel.current_trio_token(), ended), daemon=True, name="mdns"
    )
    thread.start()
    responder = Responder(loop, _Core(inbox))
    try:
        await responder.use(interfaces)
        yield responder
    finally:
        with trio.move_on_after(GOODBYE_S, shield=True):
            await responder.close()
        loop.call_soon_threadsafe(loop.stop)
        with trio.move_on_after(END_S, shield=True):
            await ended.wait()
            thread.join()


class _Core(RecordUpdateListener):
    """The responder inside its own loop: every method runs in its thread."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._zeroconf: AsyncZeroconf | None = None
        self._info: ServiceInfo | None = None
        self._wanted: Announcement | None = None
        self._touched: dict[str, None] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def use(self, interfaces: list[str | int]) -> None:
        version = IPVersion.All if any(isinstance(entry, int) for entry in interfaces) else IPVersion.V4Only
        if self._zeroconf is None:
            # Empty at first: an interface that fails while it is being made would leave its sockets open for good.
            self._zeroconf = AsyncZeroconf(interfaces=[], ip_version=version)
            await self._zeroconf.zeroconf.async_wait_for_start()
            self._zeroconf.zeroconf.async_add_listener(self, None)
        await self._zeroconf.async_update_interfaces(interfaces, version)
        if not self._zeroconf.zeroconf.engine.senders:
            raise NoMulticast("no network interface takes multicast")

    async def announce(self, wanted: Announcement | None) -> None:
        assert self._zeroconf is not None, "announced before it ran"
        zeroconf = self._zeroconf.zeroconf
        if wanted is not None and wanted == self._wanted and self._info is not None:
            zeroconf.async_send(zeroconf.generate_service_broadcast(self._info, None))
            return
        before, self._wanted = self._info, None
        if before is not None and (wanted is None or wanted.name != before.name):
            self._info = None
            self._drop_answers()
            await (await zeroconf.async_unregister_service(before))
        if wanted is None:
            return
        self._info = _service_info(wanted)
        if zeroconf.registry.async_get_info_name(wanted.name.lower()) is not None:
            await (await zeroconf.async_update_service(self._info))
        else:
            # The name holds forty random bits of this start: there is nobody to ask whether it is taken, and
            # nobody can draw this node into a quarrel about it.
            await (await zeroconf.async_register_service(self._info, cooperating_responders=True))
        self._wanted = wanted

    async def ask(self, known: frozenset[str]) -> None:
        assert self._zeroconf is not None, "asked before it ran"
        zeroconf = self._zeroconf.zeroconf
        now = current_time_millis()
        query = DNSOutgoing(0)
        query.add_question(DNSQuestion(SERVICE_TYPE, _PTR, _CLASS_IN))
        for record in zeroconf.cache.async_all_by_details(SERVICE_TYPE, _PTR, _CLASS_IN):
            if isinstance(record, DNSPointer) and record.alias.lower() in known:
                query.add_answer_at_time(record, now)
        zeroconf.async_send(query)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._zeroconf is not None:
            self._drop_answers()
            try:
                await self._zeroconf.async_close()
            except asyncio.CancelledError:
                self._zeroconf.zeroconf.close()  # without goodbyes, but at once
                raise

    def _drop_answers(self) -> None:
        """Forget answers that wait to be sent: one sent after the goodbye would call this node back to life."""
        assert self._zeroconf is not None, "closed before it ran"
        self._zeroconf.zeroconf.out_queue.queue.clear()
        self._zeroconf.zeroconf.out_delay_queue.queue.clear()

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        """Note whom these records are about; zeroconf calls it before they are in its cache."""
        for record in (update.new for update in records):
            if isinstance(record, DNSAddress):
                services = zc.cache.async_entries_with_server(record.key) if not record.is_expired(now) else []
                names = [service.name for service in services]
            elif isinstance(record, DNSPointer):
                names = [record.alias] if record.key == SERVICE_TYPE else []
            else:
                names = [record.name] if isinstance(record, DNSService | DNSText) else []
            for name in names:
                if not name.lower().endswith(f".{SERVICE_TYPE}"):
                    continue
                if not record.is_expired(now):
                    self._touch(name.lower())
                elif isinstance(record, DNSService | DNSPointer):
                    self._touched.pop(name.lower(), None)
                    self._inbox.put(name.lower(), None)

    def async_update_records_complete(self) -> None:
        """Read those that were touched, now that zeroconf's cache is up to date."""
        touched, self._touched = list(self._touched), {}
        if self._zeroconf is None:
            return
        for name in touched:
            heard = _read(self._zeroconf.zeroconf, name)
            if heard is None:
                self._resolve(name)
            else:
                self._inbox.put(name, heard)

    def _touch(self, name: str) -> None:
        if len(self._touched) < SIGHTINGS_MAX:
            self._touched[name] = None

    def _resolve(self, name: str) -> None:
        """Ask an announcer for the records that did not come along; they arrive like any others."""
        if name in self._tasks or len(self._tasks) >= RESOLVING_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._request(name))
        self._tasks[name] = task
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _request(self, name: str) -> None:
        if self._zeroconf is None:
            return
        with suppress(Error, OSError):
            await ServiceInfo(SERVICE_TYPE, name).async_request(self._zeroconf.zeroconf, 3000)


def _service_info(wanted: Announcement) -> ServiceInfo:
    text = {"v": TEXT_VERSION, "t": wanted.tag} if wanted.tag else {"v": TEXT_VERSION}
    return ServiceInfo(
        SERVICE_TYPE,
        wanted.name,
        port=wanted.port,
        properties=text,
        server=f"{wanted.instance}.local.",
        parsed_addresses=list(wanted.addresses),
        host_ttl=RECORD_TTL_S,
        other_ttl=RECORD_TTL_S,
    )


def _read(zeroconf: Zeroconf, name: str) -> Heard | None:
    """Put together what the cache holds of one announcer; None while its port or every address is missing."""
    now = current_time_millis()
    service, text = None, b""
    for record in zeroconf.cache.async_entries_with_name(name):
        if record.is_expired(now):
            continue
        if isinstance(record, DNSService):
            service = record if service is None or record.created >= service.created else service
        elif isinstance(record, DNSText):
            text = record.text
    if service is None:
        return None
    addresses: list[tuple[bytes, int]] = []
    for record in zeroconf.cache.async_entries_with_name(service.server):
        # A record that a newer set replaced lives on for one second: it is not read.
        if isinstance(record, DNSAddress) and record.ttl > _FLUSH_TTL_S and not record.is_expired(now):
            addresses.append((record.address, record.scope_id or 0))
    if not addresses:
        return None
    return Heard(service.name, service.port, tuple(addresses[-ADDRESSES_READ_MAX:]), text)


def _check_port() -> None:
    """Make sure that the multicast port can be shared, so that the reason is told in plain words.

    Raises:
        NoMulticast: Somebody holds it and does not share it, or the system refuses.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if hasattr(socket, "SO_REUSEPORT"):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("", MDNS_PORT))
    except OSError as error:
        raise NoMulticast(f"UDP port {MDNS_PORT}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _run_loop(loop: asyncio.AbstractEventLoop, token: trio.lowlevel.TrioToken, ended: trio.Event) -> None:
    # Every broken packet of a stranger would be a traceback in our log. What matters is said by Discovery.state.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_end_tasks())
    finally:
        loop.close()
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(ended.set)


async def _end_tasks() -> None:
    """End what still runs when the loop is to stop, so that nothing is left open."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
