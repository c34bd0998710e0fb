"""What every implementation of the Records and Directory ports must do: the replica over real links, and the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio

from mesh.base.errors import Refused
from mesh.base.ports import Directory, Records
from tests.fakes.overlays import open_two
from tests.fakes.records import FakeMesh

KIND = 48
DEADLINE_S = 10


@dataclass(frozen=True)
class End:
    """One machine under test.

    Attributes:
        body: Makes a body of KIND that the implementation admits, different for different texts.
    """

    records: Records
    directory: Directory
    body: Callable[[bytes], bytes]


Factory = Callable[[], AbstractAsyncContextManager[tuple[End, End]]]


@asynccontextmanager
async def fake_pair() -> AsyncIterator[tuple[End, End]]:
    mesh = FakeMesh()
    one, other = mesh.node("one", "me"), mesh.node("other", "me")
    yield (
        End(one.records, one.directory, one.sealer.seal),
        End(other.records, other.directory, other.sealer.seal),
    )


@asynccontextmanager
async def real_pair() -> AsyncIterator[tuple[End, End]]:
    with TemporaryDirectory() as folder:
        async with open_two(Path(folder)) as (one, other):
            yield End(one.replica, one.replica, one.sealer.seal), End(other.replica, other.replica, other.sealer.seal)


FACTORIES: dict[str, Factory] = {"fake": fake_pair, "real": real_pair}
"""A factory opens two linked machines of one person, both with the role member."""


@pytest.fixture(params=sorted(FACTORIES))
def pair(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param]


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - whatever the implementation, its state is all we can watch
            await trio.sleep(0.005)


def bodies(end: End) -> dict[bytes, bytes]:
    return {entry.key: entry.body for entry in end.records.entries(KIND)}


async def test_what_is_published_is_listed_here_at_once_and_there_soon(pair: Factory) -> None:
    async with pair() as (a, b):
        body = a.body(b"one")
        record_id = await a.records.publish(KIND, b"k" * 16, body)
        (entry,) = a.records.entries(KIND)
        assert (entry.key, entry.body, entry.record_id, entry.kind) == (b"k" * 16, body, record_id, KIND)
        assert (entry.author, entry.owner) == (a.directory.me.node, a.directory.me.owner)
        assert len(record_id) == 32
        await until(lambda: bodies(b) == bodies(a))
        (there,) = b.records.entries(KIND)
        assert (there.author, there.owner, there.version, there.record_id) == (
            entry.author, entry.owner, entry.version, record_id,
        )  # fmt: skip


async def test_a_register_holds_only_its_newest_body(pair: Factory) -> None:
    async with pair() as (a, b):
        first = await a.records.publish(KIND, b"k" * 16, a.body(b"one"))
        second = await a.records.publish(KIND, b"k" * 16, a.body(b"two"))
        assert first != second
        assert [entry.record_id for entry in a.records.entries(KIND)] == [second]
        await until(lambda: [entry.record_id for entry in b.records.entries(KIND)] == [second])


async def test_entries_are_newest_version_first_and_of_one_kind(pair: Factory) -> None:
    async with pair() as (a, _):
        for key in (b"a" * 16, b"b" * 16, b"c" * 16):
            await a.records.publish(KIND, key, a.body(key))
        listed = a.records.entries(KIND)
        assert [entry.key for entry in listed] == [b"c" * 16, b"b" * 16, b"a" * 16]
        assert [entry.version for entry in listed] == sorted((e.version for e in listed), reverse=True)
        assert a.records.entries(KIND + 1) == []


async def test_two_authors_of_one_key_are_two_registers(pair: Factory) -> None:
    async with pair() as (a, b):
        await a.records.publish(KIND, b"k" * 16, a.body(b"of a"))
        await b.records.publish(KIND, b"k" * 16, b.body(b"of b"))
        for end in (a, b):
            await until(lambda end=end: len(end.records.entries(KIND)) == 2)


async def test_a_withdrawn_register_is_gone_everywhere_and_known_to_be_withdrawn_by_its_author(pair: Factory) -> None:
    async with pair() as (a, b):
        await a.records.publish(KIND, b"k" * 16, a.body(b"one"))
        await until(lambda: len(b.records.entries(KIND)) == 1)
        (entry,) = a.records.entries(KIND)
        assert a.records.withdrawn(KIND) == {}
        await a.records.withdraw(KIND, b"k" * 16)
        assert a.records.entries(KIND) == []
        await until(lambda: b.records.entries(KIND) == [])
        (key,) = a.records.withdrawn(KIND)
        assert key == b"k" * 16
        assert a.records.withdrawn(KIND)[key] > entry.version
        assert b.records.withdrawn(KIND) == {}


async def test_a_withdrawn_register_can_be_published_again(pair: Factory) -> None:
    async with pair() as (a, b):
        await a.records.publish(KIND, b"k" * 16, a.body(b"one"))
        await a.records.withdraw(KIND, b"k" * 16)
        record_id = await a.records.publish(KIND, b"k" * 16, a.body(b"two"))
        assert a.records.withdrawn(KIND) == {}
        await until(lambda: [entry.record_id for entry in b.records.entries(KIND)] == [record_id])


async def test_withdrawing_what_is_not_there_does_nothing(pair: Factory) -> None:
    async with pair() as (a, b):
        await b.records.publish(KIND, b"k" * 16, b.body(b"of b"))
        await until(lambda: len(a.records.entries(KIND)) == 1)
        await a.records.withdraw(KIND, b"k" * 16)
        assert a.records.withdrawn(KIND) == {}
        assert len(a.records.entries(KIND)) == 1


async def test_a_body_over_the_limit_is_refused_and_changes_nothing(pair: Factory) -> None:
    async with pair() as (a, _):
        with pytest.raises(Refused):
            await a.records.publish(KIND, b"k" * 16, b"x" * 4096)
        assert a.records.entries(KIND) == []


async def test_a_change_wakes_those_who_wait_for_its_kind_once(pair: Factory) -> None:
    async with pair() as (a, b):
        here, there, elsewhere = (
            a.records.changes({KIND}), b.records.changes({KIND, KIND + 1}), b.records.changes({KIND + 1}),
        )  # fmt: skip
        for number in range(5):
            await a.records.publish(KIND, b"k" * 16, a.body(b"%d" % number))
        with trio.fail_after(DEADLINE_S):
            await here.receive()
            await there.receive()
        await until(lambda: bodies(a) == bodies(b))
        with pytest.raises(trio.WouldBlock):
            elsewhere.receive_nowait()


async def test_the_directory_names_me_and_the_others(pair: Factory) -> None:
    async with pair() as (a, b):
        await until(lambda: [m.node for m in a.directory.members()] == [b.directory.me.node])
        assert a.directory.me.mine
        assert a.directory.me.node not in {m.node for m in a.directory.members()}
        other = a.directory.member(b.directory.me.node)
        assert other is not None
        assert other.owner == a.directory.me.owner
        assert other.mine
        assert a.directory.member(b"\0" * 16) is None  # type: ignore[arg-type]
