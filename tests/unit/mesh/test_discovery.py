"""Discovery as the node uses it: real multicast on loopback, and the machine's addresses as the test says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

import pytest
import trio

from mesh import discovery as room
from mesh.discovery import Discovery, Pace, Sighting, open_discovery
from mesh.interfaces import LocalAddress
from mesh.responder import NoMulticast
from mesh.sightings import SERVICE_TYPE

FAST = Pace((0.2, 0.4), (0.5, 1.0), 0.1, (0.1, 0.4), 2.0, 5.0)
LOOPBACK = LocalAddress("lo", 1, "127.0.0.1", 8, True)
TAG = "abcdefghijkl2"


def _open(port: int, *, tag: Callable[[], str] = lambda: TAG, **more: object) -> AbstractAsyncContextManager[Discovery]:
    settings = {"interfaces": ["127.0.0.1"], "advertise": None, "pace": FAST, **more}
    return open_discovery(port, settings.pop("advertise"), tag, **settings)


async def _until(condition: Callable[[], bool], time_s: float = 5.0) -> None:
    with trio.fail_after(time_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread
            await trio.sleep(0.01)


def _find(discovery: Discovery, other: Discovery) -> Sighting | None:
    return next((kept for kept in discovery.current() if kept.instance == other.instance), None)


async def _next_of(discovery: Discovery, other: Discovery) -> Sighting:
    with trio.fail_after(5):
        async for sighting in discovery.sightings:
            if sighting.instance == other.instance:
                return sighting
    raise AssertionError("the channel ended")


async def test_two_nodes_on_one_host_find_each_other_by_loopback() -> None:
    async with _open(7001) as one, _open(7002) as other:
        told = await _next_of(one, other)
        assert told.addresses == (("127.0.0.1", 7002),)
        assert told.tag == TAG
        await _until(lambda: _find(other, one) is not None)
        await _until(lambda: one.state == ("on", "this machine only: no other network interface is up"))
        assert one.addresses == (("127.0.0.1", 7001),)
        assert _find(one, one) is None, "nobody sights itself"
        assert one.instance != other.instance


async def test_leaving_is_quick_says_goodbye_and_ends_the_channel() -> None:
    async with _open(7001) as one:
        async with _open(7002) as other:
            await _next_of(one, other)
            channel = other.sightings.clone()
            started = time.monotonic()
        assert time.monotonic() - started < 1.5
        with channel, trio.fail_after(1):
            assert [sighting async for sighting in channel if sighting.instance == other.instance] == []
        await _until(lambda: _find(one, other) is None)


async def test_leaving_by_cancellation_is_quick_too() -> None:
    with trio.CancelScope() as scope:
        async with _open(7001) as one:
            await _until(lambda: one.state[0] == "on")
            started = time.monotonic()
            scope.cancel()
            await trio.sleep_forever()
    assert time.monotonic() - started < 1.5


async def test_a_new_tag_shows_by_itself_and_at_once_when_asked() -> None:
    tags = {7001: TAG}
    slow = Pace((30.0,), (30.0, 30.0), 30.0)
    async with _open(7001, tag=lambda: tags[7001], pace=slow) as one, _open(7002) as other:
        await _until(lambda: _find(other, one) is not None)
        await _until(lambda: one.state[0] == "on")
        tags[7001] = "bbbbbbbbbbbbb"
        one.update()
        await _until(lambda: (found := _find(other, one)) is not None and found.tag == "bbbbbbbbbbbbb")
    async with _open(7003, tag=lambda: tags[7001]) as one, _open(7004) as other:
        await _until(lambda: _find(other, one) is not None)
        tags[7001] = "ccccccccccccc"
        await _until(lambda: (found := _find(other, one)) is not None and found.tag == "ccccccccccccc")


async def test_browsing_asks_those_that_are_silent() -> None:
    """With rounds far apart, only a question of ours can bring the other back into the book."""
    slow = Pace((30.0,), (30.0, 30.0), 30.0)
    async with _open(7001, pace=slow) as one, _open(7002, pace=slow) as other:
        await _until(lambda: _find(one, other) is not None and one.state[0] == "on")
        one._book.forget(f"{other.instance}.{SERVICE_TYPE}")
        assert _find(one, other) is None
        with trio.fail_after(5):
            while other.instance not in [sighting.instance for sighting in await one.browse(0.3)]:
                pass


async def test_without_an_interface_it_is_off_and_comes_up_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """O-V3: nothing is up at the start; the log says it once, and once that it works."""
    local: list[LocalAddress] = []
    caplog.set_level(logging.INFO, logger="mesh.discovery")
    async with _open(7001, look=lambda: list(local)) as one:
        await _until(lambda: one.state == ("off", "no network interface is up"))
        await trio.sleep(0.5)
        assert one.addresses == ()
        assert await one.browse(0.05) == []
        local.append(LOOPBACK)
        await _until(lambda: one.state[0] == "on")
        local.clear()
        await _until(lambda: one.state[0] == "off")
        local.append(LOOPBACK)
        await _until(lambda: one.state[0] == "on")
    said = [record.message for record in caplog.records]
    assert len(said) == 4
    assert said[0] == "discovery on the local network is off: no network interface is up"
    assert said[1].startswith("discovery on the local network is on")


async def test_a_system_that_does_not_answer_is_no_reason_to_fail() -> None:
    def refuse() -> list[LocalAddress]:
        raise OSError(24, "Too many open files")

    async with _open(7001, look=refuse) as one:
        await _until(lambda: one.state == ("off", "the network interfaces cannot be read: Too many open files"))


async def test_what_multicast_refuses_is_tried_again_with_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-D5: never fatal; a change of addresses is tried at once, browsing as well."""
    tries: list[float] = []

    def refuse(*_: object) -> object:
        tries.append(trio.current_time())
        raise NoMulticast("UDP port 5353: Address already in use")

    monkeypatch.setattr(room, "open_responder", refuse)
    local = [LOOPBACK]
    pace = Pace(poll_s=0.02, back_off_s=(0.1, 30.0))
    async with _open(7001, look=lambda: list(local), pace=pace) as one:
        await _until(lambda: len(tries) == 4)
        assert one.state == ("off", "UDP port 5353: Address already in use")
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert all(pause >= 0.1 * 2**n for n, pause in enumerate(pauses)), "half of each doubled pause is certain"
        local.append(LocalAddress("eth0", 2, "10.0.0.1", 24, True))
        one._only = None
        await _until(lambda: len(tries) == 5, 1.0)
        assert await one.browse(0.2) == []
        assert len(tries) == 6, "once, not in a loop"


async def test_configured_addresses_replace_the_machines_own() -> None:
    async with _open(7001, advertise=["127.0.0.9:4000", "box.example.net:4000"]) as one, _open(7002) as other:
        await _until(lambda: _find(other, one) is not None)
        found = _find(other, one)
        assert found is not None
        assert found.addresses == (("127.0.0.9", 4000),)
        assert one.addresses == found.addresses


async def test_with_nothing_to_announce_it_still_hears() -> None:
    async with _open(7001, advertise=["box.example.net:4000"]) as one, _open(7002) as other:
        await _next_of(one, other)
        await _until(lambda: one.state[0] == "on")
        assert one.addresses == ()
        assert _find(other, one) is None


async def test_sightings_that_nobody_takes_are_bounded_and_the_newest_stay() -> None:
    async with _open(7001) as one:
        for number in range(room.WAITING_MAX + 10):
            one._tell(Sighting(f"n{number}", (("10.0.0.1", 1),), None, 0.0))
        waiting = [one.sightings.receive_nowait() for _ in range(room.WAITING_MAX)]
        assert [sighting.instance for sighting in waiting][-1] == f"n{room.WAITING_MAX + 9}"
        assert one.sightings.statistics().current_buffer_used == 0


async def test_an_announcement_it_cannot_hear_itself_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """O-D5: packets that do not come back mean that multicast does not work, whatever the socket said."""
    monkeypatch.setattr(room.Inbox, "put", lambda *_: None)
    async with _open(7001, pace=Pace((0.1,), (0.1, 0.2), 0.1, first_echo_s=0.6)) as one:
        await _until(lambda: one.state[0] == "off" and "multicast does not come through" in one.state[1])
        one._echoed, one._echo_by = True, trio.current_time() + 60
        await _until(lambda: one.state[0] == "on")
