"""Garbage on the control socket: whatever bytes come, in whatever pieces, the node answers the next caller."""

from __future__ import annotations

import json
import os

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.calls import Call
from node.control import open_control_socket, run_control

PIECES = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from([b"\n", b'{"v":1,"verb":"echo","args":{}}\n', b'{"v":1,"verb":"stream"}\n', b'{"signal":"cancel"}\n', b"{" * 3000, b"\0" * 70_000]),
    ),
    max_size=8,
)


async def _echo(call: Call) -> object:
    return dict(call.args)


async def _stream(call: Call) -> object:
    for at in range(50):
        await call.output("stdout", at * 1000, b"x" * 1000)
    return await call.signals.receive()


async def _throw(address: str, pieces: list[bytes], *, reads: bool) -> None:
    """Send the pieces, perhaps read, and leave without a word."""
    with trio.move_on_after(0.05):
        async with await trio.open_unix_socket(address) as stream:
            try:
                for piece in pieces:
                    await stream.send_all(piece)
                    if reads:
                        with trio.move_on_after(0.001):
                            await stream.receive_some(1000)
            except trio.BrokenResourceError:
                return


async def _survives(address: str, callers: list[list[bytes]]) -> None:
    async with open_control_socket(address) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(run_control, listener, {"echo": _echo, "stream": _stream}, lambda verb, caller: None)
        async with trio.open_nursery() as crowd:
            for at, pieces in enumerate(callers):
                crowd.start_soon(lambda p=pieces, r=bool(at % 2): _throw(address, p, reads=r))
        with trio.fail_after(5):
            async with await trio.open_unix_socket(address) as stream:
                await stream.send_all(b'{"v":1,"verb":"echo","args":{"still":"here"}}\n')
                assert json.loads(await stream.receive_some(1000)) == {"result": {"still": "here"}}
        nursery.cancel_scope.cancel()


@given(st.lists(PIECES, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_node_outlives_every_caller(tmp_path, callers):
    trio.run(_survives, str(tmp_path / f"s{os.getpid()}"), callers)
