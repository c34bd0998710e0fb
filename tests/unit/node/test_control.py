"""The control socket, real: rights, stale files, guards, bounds."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC240 - short blocking calls on local files are what is tested here

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from mesh.base.errors import Damaged, OurFault, Refused, Usage
from node import control
from node.calls import Call, Caller, Then
from node.control import CONNECTIONS_MAX, open_control_socket, run_control
from node.wire import OUTPUT_BYTES_MAX, REQUEST_BYTES_MAX


def admit_all(verb: str, caller: Caller) -> None:
    assert caller.uid == os.getuid()
    assert caller.pid == os.getpid()


@asynccontextmanager
async def serving(tmp_path, verbs, admit=admit_all):
    address = str(tmp_path / "s")
    async with open_control_socket(address) as listener, trio.open_nursery() as nursery:
        nursery.start_soon(run_control, listener, verbs, admit)
        yield address
        nursery.cancel_scope.cancel()


async def say(address: str, data: bytes, *, half: bool = False) -> bytes:
    """Send bytes, and read everything until the node closes."""
    with trio.fail_after(10):
        async with await trio.open_unix_socket(address) as stream:
            try:
                await stream.send_all(data)
                if half:
                    await stream.send_eof()
            except trio.BrokenResourceError:
                pass
            got = b""
            try:
                async for piece in stream:
                    got += piece
            except trio.BrokenResourceError:
                pass
            return got


def request(verb: str, **args: object) -> bytes:
    return json.dumps({"v": 1, "verb": verb, "args": args}).encode() + b"\n"


async def ask(address: str, verb: str, **args: object) -> dict:
    return json.loads((await say(address, request(verb, **args))).splitlines()[-1])


async def echo(call: Call) -> object:
    return call.args


async def test_a_verb_is_asked_and_answered_and_unknown_ones_are_said(tmp_path):
    async with serving(tmp_path, {"echo": echo}) as address:
        assert await ask(address, "echo", a=[1, "é"]) == {"result": {"a": [1, "é"]}}
        assert (await ask(address, "nothing"))["error"]["kind"] == "refused"


async def test_only_this_user_can_open_the_socket_from_its_first_moment(tmp_path):
    before = os.umask(0)
    try:
        async with serving(tmp_path, {}) as address:
            assert stat.S_IMODE(os.stat(address).st_mode) == 0o600
            assert os.umask(0) == 0, "the umask is given back"
    finally:
        os.umask(before)
    assert not os.path.exists(address)


async def test_a_stale_socket_file_is_replaced_but_never_a_live_one(tmp_path):
    script = "import socket, sys, os; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    assert stat.S_ISSOCK(os.stat(tmp_path / "s").st_mode)
    async with serving(tmp_path, {"echo": echo}) as address:
        assert await ask(address, "echo") == {"result": {}}
        with pytest.raises(Refused, match="another node answers"):
            async with open_control_socket(address):
                pytest.fail("bound twice")
        assert await ask(address, "echo") == {"result": {}}


async def test_what_is_no_socket_stays(tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(Damaged):
        async with open_control_socket(str(tmp_path / "s")):
            pytest.fail("bound")
    assert (tmp_path / "s").read_text() == "precious"


async def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(OurFault, match="cannot be bound"):
        async with open_control_socket(str(tmp_path / "no" / "s")):
            pytest.fail("bound")


async def test_the_end_removes_only_its_own_file(tmp_path):
    async with serving(tmp_path, {}) as address:
        os.unlink(address)
        other = socket.socket(socket.AF_UNIX)
        other.bind(address)
    with other:
        assert os.path.exists(address)


async def test_events_and_output_come_in_order_and_in_pieces(tmp_path):
    body = os.urandom(OUTPUT_BYTES_MAX * 2 + 10)

    async def verb(call: Call) -> object:
        await call.event({"kind": "state", "state": "running"})
        await call.output("stderr", 7, body)
        return "end"

    async with serving(tmp_path, {"verb": verb}) as address:
        got = await say(address, request("verb"))
    head, rest = got.split(b"\n", 1)
    assert json.loads(head) == {"event": {"kind": "state", "state": "running"}}
    data, offset = b"", 7
    for _ in range(3):
        head, rest = rest.split(b"\n", 1)
        event = json.loads(head)["event"]
        assert (event["kind"], event["stream"], event["offset"]) == ("output", "stderr", offset)
        data += rest[: event["bytes"]]
        rest = rest[event["bytes"] :]
        offset += event["bytes"]
    assert data == body
    assert json.loads(rest) == {"result": "end"}


async def test_errors_of_the_product_are_told_alone_or_in_groups(tmp_path):
    async def plain(call: Call) -> object:
        raise Usage("do it so", hint="like this")

    async def grouped(call: Call) -> object:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise Usage("do it so", hint="like this")

    async with serving(tmp_path, {"plain": plain, "grouped": grouped}) as address:
        for verb in ("plain", "grouped"):
            assert await ask(address, verb) == {"error": {"kind": "usage", "message": "do it so", "hint": "like this", "exit": 2}}


async def test_whatever_breaks_in_a_verb_is_logged_and_the_node_stays_up(tmp_path, caplog):
    async def broken(call: Call) -> object:
        async with trio.open_nursery():
            raise ZeroDivisionError("the secret detail")

    async def unspeakable(call: Call) -> object:
        return {"a": object()}

    async with serving(tmp_path, {"broken": broken, "unspeakable": unspeakable, "echo": echo}) as address:
        for verb in ("broken", "unspeakable"):
            got = await ask(address, verb)
            assert got["error"]["kind"] == "our_fault"
            assert "secret" not in json.dumps(got)
        assert await ask(address, "echo") == {"result": {}}
    assert "the secret detail" in caplog.text


async def test_an_admission_is_asked_first(tmp_path):
    def admit(verb: str, caller: Caller) -> None:
        raise Refused(f"not {verb}")

    async def never(call: Call) -> object:
        pytest.fail("ran")

    async with serving(tmp_path, {"invite": never}, admit) as address:
        assert (await ask(address, "invite"))["error"]["message"] == "not invite"


async def test_what_comes_after_the_answer_is_done_after_it_also_when_nobody_reads(tmp_path):
    done: list[str] = []

    async def verb(call: Call) -> object:
        if call.flag("wait"):
            await trio.sleep(0.1)
        return Then("yes", lambda: done.append("then"))

    async with serving(tmp_path, {"verb": verb}) as address:
        assert await ask(address, "verb") == {"result": "yes"}
        assert done == ["then"]


async def test_signals_reach_the_verb_also_when_they_came_with_the_request(tmp_path):
    async def verb(call: Call) -> object:
        return [await call.signals.receive(), await call.signals.receive()]

    async with serving(tmp_path, {"verb": verb}) as address, await trio.open_unix_socket(address) as stream:
        await stream.send_all(request("verb") + b'{"signal":"cancel"}\nnonsense\n{"sig')
        await stream.send_all(b'nal":"more"}\n')
        with trio.fail_after(5):
            assert json.loads(await stream.receive_some(1000)) == {"result": ["cancel", "more"]}


async def test_a_caller_that_leaves_cancels_its_verb_and_nothing_else(tmp_path):
    cancelled, started = trio.Event(), trio.Event()

    async def verb(call: Call) -> object:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with serving(tmp_path, {"verb": verb, "echo": echo}) as address:
        stream = await trio.open_unix_socket(address)
        await stream.send_all(request("verb"))
        await started.wait()
        await stream.aclose()
        with trio.fail_after(5):
            await cancelled.wait()
        assert await ask(address, "echo") == {"result": {}}


async def test_a_caller_that_reads_nothing_holds_up_nobody(tmp_path):
    async def flood(call: Call) -> object:
        while True:
            await call.output("stdout", 0, b"x" * OUTPUT_BYTES_MAX)

    async with serving(tmp_path, {"flood": flood, "echo": echo}) as address, await trio.open_unix_socket(address) as stream:
        await stream.send_all(request("flood"))
        assert await ask(address, "echo") == {"result": {}}


async def test_oversized_and_half_open_requests_are_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "REQUEST_S", 0.2)
    async with serving(tmp_path, {"echo": echo}) as address:
        got = await say(address, b"x" * (REQUEST_BYTES_MAX + 100_000))
        assert json.loads(got)["error"]["kind"] == "refused"
        assert await say(address, b'{"v":1,') == b"", "a request that never ends"
        assert await say(address, b'{"v":1,', half=True) == b""
        assert await ask(address, "echo") == {"result": {}}


async def test_callers_beyond_the_bound_are_told_and_places_come_free(tmp_path, caplog):
    async def wait(call: Call) -> object:
        await call.event({})
        await trio.sleep_forever()

    caplog.set_level(logging.INFO)
    async with serving(tmp_path, {"wait": wait, "echo": echo}) as address:
        held = [await trio.open_unix_socket(address) for _ in range(CONNECTIONS_MAX)]
        for stream in held:
            await stream.send_all(request("wait"))
            await stream.receive_some(100)
        assert "already serves" in (await ask(address, "echo"))["error"]["message"]
        for stream in held:
            await stream.aclose()
        with trio.fail_after(5):
            while "error" in await ask(address, "echo"):
                await trio.sleep(0.01)


async def test_another_user_gets_no_word(tmp_path, monkeypatch, caplog):
    """SECURITY 3: peer credentials, also where the file's rights were opened."""
    monkeypatch.setattr(control, "peer_of", lambda connection: (12345, 1))
    async with serving(tmp_path, {"echo": echo}) as address:
        assert await say(address, request("echo")) == b""
    assert "uid 12345" in caplog.text
