"""What a machine says of itself, and when, over real links."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from mesh import speaking as room
from mesh.kinds import PRESENCE
from mesh.presence import PERIOD_S_MIN
from tests.fakes.overlays import founder, open_machine, until


async def test_what_this_machine_says_of_itself_reaches_the_others_also_its_name(tmp_path: Path):
    async with open_machine(tmp_path / "one", founder(), name="renamed") as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: two.linked(one))
            await until(lambda: two.replica.member(one.id).name == "renamed")  # type: ignore[union-attr]
            assert one.replica.me.name == "renamed"
            member = two.replica.member(one.id)
            assert member is not None
            assert (member.addresses, member.version) == ((one.address,), "test 1")


@pytest.mark.parametrize("addresses", [("x" * 200 + ".example:9847",), tuple(f"10.0.0.{n}:1" for n in range(9))], ids=["long", "many"])
async def test_addresses_that_do_not_fit_are_left_out_and_nothing_else_suffers(tmp_path: Path, addresses: tuple[str, ...]):
    async with open_machine(tmp_path / "one", founder(), addresses=addresses) as one:
        goods = await one.invited("two")
        async with open_machine(tmp_path / "two", goods) as two:
            await until(lambda: one.linked(two) and two.replica.boot_of(one.id) is not None)
            one.overlay.speak()
            assert one.linked(two)


async def test_presence_is_said_again_when_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The period is what a peer reckons with; nothing else keeps a machine live through a relay of others."""
    assert PERIOD_S_MIN >= 1
    monkeypatch.setattr(room, "period_s", lambda members: 1)
    async with open_machine(tmp_path / "one", founder()) as one:
        versions: set[int] = set()

        def look() -> bool:
            versions.update(entry.version for entry in one.replica.entries(PRESENCE))
            return len(versions) >= 2

        await until(look, 10)


async def test_changes_in_a_row_are_told_together_and_then_only_now_and_then(tmp_path: Path):
    """SECURITY 21: what a machine says is bounded, however often something changes."""
    async with open_machine(tmp_path / "one", founder()) as one:
        versions: set[int] = set()
        began_s = trio.current_time()

        def look() -> int:
            one.overlay.speak()
            versions.update(entry.version for entry in one.replica.entries(PRESENCE))
            return len(versions)

        await until(lambda: look() >= 1 + room.PRESENCE_BURST)
        with trio.move_on_after(1):
            while True:
                look()
                await trio.sleep(0.02)
        # The first word and three changes in a row; from then on one a quarter of a period.
        quarters = (trio.current_time() - began_s) * room.BURSTS_A_PERIOD / PERIOD_S_MIN
        assert len(versions) <= 2 + room.PRESENCE_BURST + quarters
