"""Codes at their issuer: three tries, however they come; then burned, also after a crash."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from mesh import store
from mesh.base.clock import Now
from mesh.base.db import Database
from mesh.base.errors import MeshError, Refused, Unreachable
from mesh.codebook import OPEN_MAX, TRIES_MAX, TTL_S, Codebook, open_code
from mesh.codes import Code, code_of, read_code_untrusted, slot_payload
from mesh.invites import BadInvite

INVITE = b"i" * 16


@dataclass
class End:
    """One end of a line between two tests' sides; ``cut`` ends it before that many messages were sent."""

    out: trio.MemorySendChannel[bytes]
    into: trio.MemoryReceiveChannel[bytes]
    remote: str = "10.0.0.9:1"
    cut: int = 99
    sent: list[bytes] = field(default_factory=list)

    async def send(self, message: bytes) -> None:
        if len(self.sent) >= self.cut:
            await self.out.aclose()
            raise Unreachable("cut")
        self.sent.append(message)
        try:
            await self.out.send(message)
        except trio.BrokenResourceError:
            raise Unreachable("gone") from None

    async def receive(self) -> bytes:
        try:
            return await self.into.receive()
        except trio.EndOfChannel:
            raise Unreachable("gone") from None


@dataclass
class Desk:
    """A codebook over a real database, with a clock the test sets."""

    folder: Path
    wall_s: int = 1_800_000_000
    steady_s: float = 0.0
    calls: int = 0

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.database = Database(self.folder / "mesh.db", store.SCHEMA)
        self.codes = Codebook(self.database, lambda: Now(self.wall_s * 1000, self.steady_s), os.urandom)

    async def try_code(self, code: Code, *, cut: int = 99, remote: str | None = None) -> str | MeshError:
        self.calls += 1
        to_issuer, from_joiner = trio.open_memory_channel[bytes](4)
        to_joiner, from_issuer = trio.open_memory_channel[bytes](4)
        joiner = End(to_issuer, from_issuer, cut=cut)
        issuer = End(to_joiner, from_joiner, remote=remote or f"10.0.0.{self.calls % 200}:1")
        outcome: list[str | MeshError] = []

        async def join() -> None:
            try:
                outcome.append(await open_code(joiner, code, os.urandom))
            except MeshError as fault:
                outcome.append(fault)
            await to_issuer.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            with suppress(MeshError):
                await self.codes.serve(await issuer.receive(), issuer)
            await to_joiner.aclose()
        return outcome[0]


@pytest.fixture
def desk(tmp_path: Path):
    made = Desk(tmp_path)
    yield made
    made.database.close()


async def minted(desk: Desk, invite: bytes = INVITE, address: tuple[str, int] | None = None) -> Code:
    made = await desk.codes.mint("hmi_link", invite, address)
    assert read_code_untrusted(made.words) == read_code_untrusted(made.code)
    return read_code_untrusted(made.code)


def other(code: Code) -> Code:
    return code_of(slot_payload(code.slot, int.from_bytes(code.password, "big") ^ 1), long=False)


def reason(outcome: str | MeshError) -> str:
    assert isinstance(outcome, BadInvite), outcome
    return outcome.reason


async def test_a_code_gives_its_link_once(desk: Desk):
    code = await minted(desk)
    assert await desk.try_code(code) == "hmi_link"
    assert desk.codes.state(INVITE).word == "used"
    assert reason(await desk.try_code(code)) == "no_open_code"
    assert b"hmi_link" not in (desk.folder / "mesh.db").read_bytes() + (desk.folder / "mesh.db-wal").read_bytes()[-4096:]


async def test_an_address_code_works_and_only_one_is_open(desk: Desk):
    code = await minted(desk, address=("192.0.2.7", 9847))
    assert code.address == "192.0.2.7:9847"
    with pytest.raises(Refused, match="open already"):
        await minted(desk, b"j" * 16, ("192.0.2.7", 9847))
    assert await desk.try_code(code) == "hmi_link"


async def test_three_wrong_tries_burn_it_and_the_right_one_is_refused_with_that_reason(desk: Desk):
    """O-P3."""
    code = await minted(desk)
    assert [reason(await desk.try_code(other(code))) for _ in range(3)] == ["wrong", "wrong", "burned"]
    assert desk.codes.state(INVITE).word == "burned"
    assert desk.codes.burned() == 1
    assert reason(await desk.try_code(code)) == "no_open_code"
    desk.wall_s += TTL_S + 1
    assert desk.codes.burned() == 0


async def test_a_right_try_between_wrong_ones_is_not_counted(desk: Desk):
    code = await minted(desk)
    await desk.try_code(other(code))
    assert desk.codes.state(INVITE).tries_left == TRIES_MAX - 1
    assert await desk.try_code(code) == "hmi_link"


@pytest.mark.parametrize("cut", [1])
async def test_a_guesser_who_goes_away_after_the_answer_has_used_a_try(desk: Desk, cut: int):
    """It may have learned the answer to its guess; and a restart in between forgets nothing."""
    code = await minted(desk)
    for left in (2, 1, 0):
        assert isinstance(await desk.try_code(code, cut=cut), Unreachable)
        desk.database.close()
        desk.open()
        assert desk.codes.state(INVITE).tries_left == left
    assert reason(await desk.try_code(code)) == "no_open_code"


async def test_many_guesses_at_once_are_three_in_all(desk: Desk):
    code = await minted(desk)
    reasons: list[str] = []

    async def guess(number: int) -> None:
        reasons.append(reason(await desk.try_code(other(code), remote=f"10.1.0.{number}:1")))

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(guess, number)
    assert sum(r in ("wrong", "burned") for r in reasons) == TRIES_MAX
    assert desk.codes.state(INVITE).word == "burned"


async def test_an_expired_code_is_none(desk: Desk):
    code = await minted(desk)
    desk.wall_s += TTL_S + 1
    assert reason(await desk.try_code(code)) == "no_open_code"
    assert desk.codes.state(INVITE).word == "expired"


async def test_only_so_many_codes_are_open(desk: Desk):
    for number in range(OPEN_MAX):
        await minted(desk, bytes([number]) * 16)
    with pytest.raises(Refused, match="too many"):
        await minted(desk, b"x" * 16)
    assert len(store.open_code_slots(desk.database.reader, desk.wall_s)) == OPEN_MAX


async def test_one_address_is_slowed_before_it_can_burn_many(desk: Desk):
    codes = [await minted(desk, bytes([n]) * 16) for n in range(3)]
    reasons = [reason(await desk.try_code(other(code), remote="10.9.9.9:1")) for code in codes for _ in range(3)]
    assert reasons.count("limit") == 4
    assert desk.codes.burned() == 1


async def test_malformed_first_messages_count_nothing(desk: Desk):
    await minted(desk)
    for hello in (b"HC1", b"HC1" + bytes(35), b"HC1" + bytes(2) + b"A" + b"\xff" * 32):
        with pytest.raises(MeshError):
            await desk.codes.serve(hello, End(*trio.open_memory_channel[bytes](1)))
    assert desk.codes.state(INVITE).tries_left == TRIES_MAX
