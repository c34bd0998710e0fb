"""The composition: every part of a running node, in start order, with no logic of its own.

``run_node`` keeps the home's control socket for as long as the process lives; the inside is opened anew where the machine
moves to another mesh.
"""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from contextlib import closing as closes
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from hive import store as hive_store
from hive.curator import open_curator
from hive.redact import redact
from mesh import store
from mesh.base.clock import Now, read_clock, version_ms
from mesh.base.db import Database
from mesh.base.errors import PortTaken
from mesh.base.names import NodeId, base32, clean_name, fingerprint_text
from mesh.codebook import Pipe
from mesh.copies import boot_start_ms, make_boot
from mesh.dialer import open_join
from mesh.discovery import Discovery, open_discovery
from mesh.identity import Identity, decide_move, finish_move, founding, is_fresh, read_identity
from mesh.keyring import Keyring
from mesh.link import Link
from mesh.listener import Doors, open_listeners, run_listener
from mesh.overlay import Held, Overlay
from mesh.pairing import Pairing
from mesh.replica import Replica
from mesh.sealing import FleetSealer
from mesh.speaking import Place
from node import VERSION
from node.addresses import Endpoint
from node.callers import Guard, ProcessKey, read_chain
from node.calls import Caller
from node.config import Settings, load_settings
from node.configfile import Value
from node.control import VerbHandler, open_control_socket, run_control
from node.databases import open_kept, open_rebuilt
from node.gatehouse import Gatehouse
from node.home import Home
from node.live import LiveSettings, machine_name
from node.lock import choose_control_address
from node.mark import Keeper
from node.portholder import port_taken
from node.reach import Reach
from node.recovery import Recovery
from node.sessions import store as sessions_store
from node.sessions.watch import Watcher, run_watch
from node.tasks import ledger
from node.tasks.runs import Runs, open_runs
from node.tasks.task import WORKED
from node.verbs.access import Access
from node.verbs.fleet import Fleet
from node.verbs.hive import Hive
from node.verbs.machines import Machines
from node.verbs.members import Membership
from node.verbs.pairing import PairingVerbs
from node.verbs.runs import RunVerbs, busy
from node.verbs.self import Itself
from query.register import Register

ARRIVALS_WAITING_MAX = 16

log = logging.getLogger("node.app")


@dataclass(slots=True)
class Inside:
    """One opened inside of the node.

    Attributes:
        verbs: What the control socket answers.
        agents: The agents' processes that live now.
        facts: What a start reports.
        over: Set when this inside must be opened anew, or the node ends.
    """

    verbs: Mapping[str, VerbHandler]
    agents: Callable[[], list[ProcessKey]]
    facts: Callable[[], dict[str, object]]
    over: trio.Event


async def run_node(
    home: Home,
    settings: Settings,
    overrides: Mapping[str, Value],
    *,
    guard: Guard,
    on_ready: Callable[[dict[str, object]], None],
) -> None:
    """Be the node until SIGTERM, SIGINT, a closed terminal or ``down``.

    Args:
        home: The places, locked by this process.
        settings: As read at start.
        overrides: Settings of this run only.
        guard: Judges callers of privileged verbs.
        on_ready: Called once with what the node says of itself.

    Raises:
        PortTaken: A port is taken.
        Refused, Damaged, OurFault: The home cannot be used.
    """
    ending = trio.Event()
    ready = False
    async with open_control_socket(choose_control_address(home, os.environ)) as control, trio.open_nursery() as nursery:
        await nursery.start(_run_signals, ending)
        while not ending.is_set():
            async with open_node(home, settings, overrides, ending) as inside, trio.open_nursery() as serving:
                if not ready:
                    on_ready(inside.facts())
                    ready = True
                listener = trio.SocketListener(control.socket.dup())
                serving.start_soon(run_control, listener, inside.verbs, partial(_admit, guard, inside.agents))
                await inside.over.wait()
                serving.cancel_scope.cancel()
            settings = load_settings(home, os.environ, overrides)
        nursery.cancel_scope.cancel()


async def _run_signals(ending: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
    wanted = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        wanted.append(signal.SIGHUP)  # A closed terminal ends a node in the foreground in order; one under nohup goes on.
    with trio.open_signal_receiver(*wanted) as received:
        task_status.started()
        async for _ in received:
            ending.set()
            return


def _admit(guard: Guard, agents: Callable[[], list[ProcessKey]], verb: str, caller: Caller) -> None:
    guard.admit(verb, caller.pid, agents)


def _identity(home: Home, settings: Settings) -> tuple[Identity, Database]:
    """Finish a move, found a mesh in a fresh home, and open what is there."""
    data_dir = Path(home.data_dir)
    finish_move(data_dir)
    if is_fresh(data_dir):
        now = read_clock()
        goods = founding(name=machine_name(settings), owner_name=clean_name(getpass.getuser()), entropy=secrets.token_bytes, now=now)
        decide_move(data_dir, goods, now.wall_ms)
        finish_move(data_dir)
    database = Database(home.mesh_db, store.SCHEMA)
    return read_identity(data_dir, database), database


async def _dial_join(address: str, converse: Callable[[Pipe], Awaitable[None]]) -> None:
    async with open_join(address) as pipe:
        await converse(pipe)


async def _listen(settings: Settings) -> tuple[list[trio.SocketListener], list[Endpoint]]:
    """Bind every address of the settings; a taken port names who holds it."""
    try:
        listeners = await open_listeners([(endpoint.host, endpoint.port) for endpoint in settings.listen])
    except PortTaken as taken:
        for endpoint in settings.listen:
            if str(endpoint.port) in taken.message:
                raise port_taken(endpoint.host, endpoint.port) from None
        raise
    names = [listener.socket.getsockname() for listener in listeners]
    return listeners, [Endpoint(name[0], name[1]) for name in names]


@asynccontextmanager
async def _maybe_discovery(settings: Settings, reach: Reach, gatehouse: Gatehouse) -> AsyncIterator[Discovery | None]:
    if not settings.discovery:
        yield None
        return
    interfaces = ["127.0.0.1"] if reach.loopback else None
    async with open_discovery(reach.port, reach.fixed, gatehouse.tag, interfaces=interfaces) as discovery:
        yield discovery


async def _run_sightings(discovery: Discovery | None, gatehouse: Gatehouse, overlay: Overlay) -> None:
    """Hand members seen on the LAN, as their tag claims, to the overlay."""
    if discovery is None:
        return
    async for sighting in discovery.sightings:
        if sighting.instance != discovery.instance and gatehouse.knows_tag(sighting.tag):
            overlay.sighted(sighting.instance, tuple(str(Endpoint(host, port)) for host, port in sighting.addresses))


async def _run_wakes(source: trio.MemoryReceiveChannel[None], *targets: trio.MemorySendChannel[None]) -> None:
    """Pass each wake on to several readers."""
    async for _ in source:
        for target in targets:
            with suppress(trio.WouldBlock):
                target.send_nowait(None)


async def _run_ending(ending: trio.Event, over: trio.Event) -> None:
    await ending.wait()
    over.set()


def _sealer(identity: Identity, keyring: Keyring, replica: Replica) -> FleetSealer:
    def is_mine(node: NodeId) -> bool:
        member = replica.member(node)
        return member is not None and member.mine and member.state != "expelled"

    return FleetSealer(identity.node_id, keyring.fleet, is_mine, entropy=secrets.token_bytes)


@asynccontextmanager
async def open_node(
    home: Home, settings: Settings, overrides: Mapping[str, Value], ending: trio.Event
) -> AsyncIterator[Inside]:
    """Open every part of the node, in start order; leaving closes them in the opposite one.

    Args:
        home: The places.
        settings: As they hold now.
        overrides: Settings of this run only.
        ending: Set when the process shall end.

    Yields:
        The inside.

    Raises:
        Refused, Damaged, OurFault: A part cannot be opened.
    """
    over, started = trio.Event(), read_clock()
    live = LiveSettings(home, settings, overrides)
    identity, database = _identity(home, settings)
    with ExitStack() as stack:
        stack.callback(database.close)
        kept = partial(open_kept, database)
        hive_db = stack.enter_context(closes(kept(home.hive_db, partial(Database, home.hive_db, hive_store.SCHEMA))))
        tasks_db = stack.enter_context(closes(kept(home.tasks_db, partial(Database, home.tasks_db, ledger.SCHEMA))))
        register = stack.enter_context(closes(kept(home.grants_db, partial(Register, home.grants_db))))
        sessions = partial(Database, home.sessions_db, sessions_store.SCHEMA, durable=False)
        sessions_db = stack.enter_context(closes(open_rebuilt(home.sessions_db, sessions)))
        keeper = Keeper(home.mark_file, base32(identity.node_id), [home.mesh_db, home.hive_db, home.tasks_db, home.grants_db])
        listeners, bound = await _listen(settings)
        reach = Reach(bound, settings.advertise)
        links: dict[NodeId, Held] = {}
        replica = Replica(database, identity, read_clock, links.keys, live.name)
        replica.raise_newest(keeper.mark.newest)
        boot = make_boot(max(started.wall_ms, version_ms(replica.newest) + 1), secrets.token_bytes)
        keyring = Keyring(database, replica, read_clock, secrets.token_bytes)
        gatehouse = Gatehouse(identity, keyring, replica, boot)
        sealer = _sealer(identity, keyring, replica)
        pairing = Pairing(database, identity, replica, read_clock, secrets.token_bytes, keyring, lambda: keeper.restored)
        place = Place(live.name, f"hivemesh {VERSION}", boot, reach.addresses, reach.loopback, partial(_load, tasks_db, live))
        overlay = Overlay(replica, database, place, gatehouse.initiator, read_clock, secrets.token_bytes, links, gatehouse.responder, live.relays, keyring)
        doors = Doors(gatehouse.responder, pairing.is_open, pairing.serve, lambda: reach.host_names)
        watcher = Watcher(
            sessions_db, settings.sessions_claude_dir, settings.sessions_codex_dir, settings.sessions_listed_h, redact, read_clock
        )
        async with (
            _maybe_discovery(settings, reach, gatehouse) as discovery,
            open_curator(hive_db, replica, replica, sealer, read_clock) as curator,
            _open_runs(home, live, tasks_db, overlay, replica, identity, sealer) as runs,
            trio.open_nursery() as nursery,
        ):
            arrivals_in, arrivals = trio.open_memory_channel[Link](ARRIVALS_WAITING_MAX)
            await nursery.start(partial(run_listener, listeners, doors, arrivals_in))
            nursery.start_soon(overlay.run, arrivals)
            nursery.start_soon(_run_sightings, discovery, gatehouse, overlay)
            nursery.start_soon(reach.run_look, overlay.network_changed)
            nursery.start_soon(run_watch, watcher)
            nursery.start_soon(_run_ending, ending, over)
            fleet = Fleet(replica, watcher, sealer, read_clock)
            knowledge = Hive(curator, watcher, trio.Lock())
            access = Access(replica, register)
            recovery = Recovery(keeper, replica, register, links, partial(_signed_until, replica, boot, started), access.apply)
            nursery.start_soon(recovery.run)
            _start_sessions(nursery, watcher, fleet, knowledge)
            nursery.start_soon(access.run_revocations)
            machines = Machines(
                identity, replica, overlay, database, discovery, gatehouse.knows_tag, boot, started, VERSION, reach.addresses,
                reach.listening, lambda: (*live.warnings(), *recovery.warnings(), *pairing.warnings()), live.runs, read_clock,
            )  # fmt: skip
            letting_in = PairingVerbs(
                identity.mesh, replica, pairing, discovery, reach.addresses, busy(runs), read_clock, _dial_join,
                partial(decide_move, Path(home.data_dir)), over.set,
            )  # fmt: skip
            membership = Membership(
                identity, replica, keyring, overlay, database, runs, read_clock, busy(runs), partial(decide_move, Path(home.data_dir)), over.set,
            )  # fmt: skip
            nursery.start_soon(membership.run_fleet_epochs)
            nursery.start_soon(membership.run_renewals)
            itself = Itself(home, machines, watcher, partial(live.reload, overlay.speak), ending.set)
            verbs = _verbs(machines, letting_in, fleet, RunVerbs(replica, runs), knowledge, access, membership, itself, recovery)
            yield Inside(verbs, partial(_agents, watcher), partial(_facts, machines), over)
            overlay.close_nowait("this machine stops")
            nursery.cancel_scope.cancel()


def _signed_until(replica: Replica, boot: bytes, started: Now) -> int:
    """The greatest moment anything signed by this boot may speak of, as a version."""
    lived_ms = int(1000 * (read_clock().steady_s - started.steady_s)) + 1
    return max(replica.newest, (boot_start_ms(boot) + lived_ms) << 16)


def _load(tasks_db: Database, live: LiveSettings) -> tuple[int, int]:
    """Tasks that run here now, and how many may."""
    running = sum(task.state == "running" for task in ledger.Ledger(tasks_db).live(WORKED))
    return running, live.run_settings().slots


def _open_runs(
    home: Home,
    live: LiveSettings,
    database: Database,
    overlay: Overlay,
    replica: Replica,
    identity: Identity,
    sealer: FleetSealer,
) -> AbstractAsyncContextManager[Runs]:
    return open_runs(
        read_settings=live.run_settings,
        database=database,
        channels=overlay,
        directory=replica,
        records=replica,
        signing_key=identity.node,
        mesh=identity.mesh,
        sealer=sealer,
        folder=home.tasks_dir,
        environment=os.environ,
        user=getpass.getuser(),
        clock=read_clock,
        entropy=secrets.token_bytes,
    )


def _start_sessions(nursery: trio.Nursery, watcher: Watcher, fleet: Fleet, knowledge: Hive) -> None:
    """Pass what the watcher sees to both who follow it: the mesh and the hive."""
    to_fleet, for_fleet = trio.open_memory_channel[None](1)
    to_hive, for_hive = trio.open_memory_channel[None](1)
    nursery.start_soon(_run_wakes, watcher.changed, to_fleet, to_hive)
    nursery.start_soon(fleet.run_publishing, for_fleet)
    nursery.start_soon(knowledge.run_learning, for_hive)


def _agents(watcher: Watcher) -> list[ProcessKey]:
    chains = [read_chain(pid) for pid in watcher.pids()]
    return [chain[0].key for chain in chains if chain]


def _facts(machines: Machines) -> dict[str, object]:
    me = machines.replica.me
    return {
        "name": me.name,
        "fingerprint": fingerprint_text(me.public_key),
        "listen": list(machines.listening),
        "advertise": list(machines.advertised()),
        "api": None,
        "warnings": [],
    }


def _verbs(
    machines: Machines, letting_in: PairingVerbs, fleet: Fleet, runs: RunVerbs, knowledge: Hive, access: Access,
    membership: Membership, itself: Itself, recovery: Recovery,
) -> Mapping[str, VerbHandler]:
    return {
        "expel.plan": membership.expel_plan,
        "expel": membership.expel,
        "mesh.renew": membership.renew,
        "leave": membership.leave,
        "status": machines.status,
        "peers": machines.peers,
        "mesh.show": machines.mesh_show,
        "mesh.identity": machines.mesh_identity,
        "mesh.root.apply": machines.root_apply,
        "invite": letting_in.invite,
        "invite.state": letting_in.invite_state,
        "join": letting_in.join,
        "join.open": letting_in.join_open,
        "discover": machines.discover,
        "connect": machines.connect,
        "fleet": fleet.fleet,
        "session.show": fleet.session_show,
        "run": runs.run,
        "tasks": runs.tasks,
        "task": runs.task,
        "logs": runs.logs,
        "wait": runs.wait,
        "cancel": runs.cancel,
        "inbox": runs.inbox,
        "answer": runs.answer,
        "hive.status": knowledge.status,
        "hive.lessons": knowledge.lessons,
        "hive.show": knowledge.show,
        "hive.learn": knowledge.learn,
        "hive.forget": knowledge.forget,
        "access.grant": access.grant,
        "access.list": access.list_grants,
        "access.revoke": access.revoke,
        "config.set": itself.config_set,
        "config.changed": itself.config_changed,
        "doctor": itself.doctor,
        "doctor.accept_restore": recovery.accept,
        "down": itself.down,
    }
