"""Whom this machine dials by itself: members that are due and sightings nobody has proved, over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh import dialling as room
from tests.fakes.overlays import founder, open_machine, until


async def test_a_sighting_leads_to_a_member_and_a_lie_is_tried_less_and_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with open_machine(tmp_path / "one", founder()) as one:
        goods = await one.invited("two")
        unlisted = goods.__class__(goods.keys, goods.genesis, goods.records, goods.gates, goods.fleet_key)
        async with open_machine(tmp_path / "two", unlisted, addresses=()) as two:
            assert not two.overlay.links
            two.overlay.sighted("an-instance", (one.address,))
            await until(lambda: two.linked(one))
            tries = 0
            listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
            address = f"127.0.0.1:{listener.socket.getsockname()[1]}"

            async def count() -> None:
                nonlocal tries
                while True:
                    stream = await listener.accept()
                    tries += 1
                    await stream.aclose()

            async with trio.open_nursery() as nursery, listener:
                nursery.start_soon(count)
                for _ in range(20):
                    one.overlay.sighted("a-liar", (address,))
                    await trio.sleep(0.05)
                await until(lambda: tries >= 1)
                nursery.cancel_scope.cancel()
            assert tries <= 6
            one.overlay.sighted("a-liar", ())
            assert one.linked(two)


async def test_a_crowd_of_sightings_is_bounded(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder()) as one:
        for number in range(2 * room.SIGHTED_MAX):
            one.overlay.sighted(f"liar-{number}", ("127.0.0.1:1",))
        assert len(one.overlay._dialling._sighted) == room.SIGHTED_MAX
