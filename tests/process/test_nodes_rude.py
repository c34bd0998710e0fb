"""Whatever reaches a node's ports and socket, it stays up, stays linked, and lets a member in a moment later."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.home import control_address, find_home
from tests.process.nodes import Network, Node, open_network, until

WS = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: hivemesh.1\r\n"


@dataclass
class Pair:
    """Two linked machines, and where the first one listens."""

    network: Network
    node: Node
    peer: Node

    @property
    def port(self) -> int:
        return int(self.node.facts["listen"][0].rpartition(":")[2])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with open_network(tmp_path_factory.mktemp("rude")) as network:
        node, peer = network.mesh("stout", "friend")
        yield Pair(network, node, peer)


def rude_inputs(port: int) -> dict[str, bytes]:
    host = b"Host: 127.0.0.1:%d\r\n" % port
    mesh, join = b"GET /mesh HTTP/1.1\r\n" + host, b"GET /join HTTP/1.1\r\n" + host
    return {
        "nothing": b"",
        "noise": os.urandom(5_000),
        "zeros": bytes(70_000),
        "one long line": b"GET /" + b"a" * 300_000,
        "many headers": mesh + b"X: y\r\n" * 5_000 + b"\r\n",
        "one long header": mesh + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        "half a request": b"GET /me",
        "half a header": mesh + WS[:40],
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "upgrade and a byte": mesh + WS + b"\r\nx",
        "upgrade and a frame": mesh + WS + b"\r\n\x81\x83\0\0\0\0abc",
        "upgrade with a body": mesh + WS + b"Content-Length: 3\r\n\r\nabc",
        "upgrade without a hello": mesh + WS + b"\r\n",
        "upgrade with a false hello": mesh + WS + b"X-Hivemesh-Hello: " + b"A" * 120 + b"\r\n\r\n",
        "another version": mesh + WS.replace(b"Version: 13", b"Version: 99") + b"\r\n",
        "no key": mesh + WS.replace(b"AAAAAAAAAAAAAAAAAAAAAA==", b"!") + b"\r\n",
        "a page of the web": mesh + WS + b"Origin: https://evil.example\r\n\r\n",
        "another host": b"GET /mesh HTTP/1.1\r\nHost: evil.example\r\n" + WS + b"\r\n",
        "no host": b"GET /mesh HTTP/1.1\r\n" + WS + b"\r\n",
        "join without an invite": join + WS + b"\r\n",
        "chunks": b"POST /mesh HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
        "less than nothing": b"POST /mesh HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
        "a null byte": b"GET /mesh\0 HTTP/1.1\r\n" + host + b"\r\n",
        "pipelined": (mesh + b"\r\n") * 200,
        "bare line feeds": b"GET /mesh HTTP/1.1\n" + host.replace(b"\r", b"") + b"\n",
    }


def shout(port: int, data: bytes, *, reset: bool = False) -> bytes:
    """Say something rude; gives what came back within a moment."""
    with socket.create_connection(("127.0.0.1", port), 5) as rude:
        rude.settimeout(1.5)
        answer = b""
        with suppress(OSError):
            rude.sendall(data)
            if reset:
                rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            rude.shutdown(socket.SHUT_WR)
            while more := rude.recv(65_536):
                answer += more
        return answer


def alive(pair: Pair) -> None:
    """The node runs, answers, and its link is the one that was there before."""
    assert pair.node.process is not None
    assert pair.node.process.poll() is None
    assert pair.node.sees(pair.peer)
    assert pair.peer.run("run", "stout", "--", "true").out == ""


def since(pair: Pair) -> str:
    return str(pair.node.ask("status")["links"][0]["since"])


def test_rude_clients_get_the_same_nothing_and_change_nothing(pair: Pair) -> None:
    """O-T1, SECURITY 27: no answer tells that there is more here than a server that has nothing."""
    before = since(pair)
    answers = {name: shout(pair.port, data) for name, data in rude_inputs(pair.port).items()}
    told = {answer for answer in answers.values() if answer}
    assert len(told) == 1, {name: answer[:60] for name, answer in answers.items()}
    assert told.pop().startswith(b"HTTP/1.1 404 ")
    assert all(b"hivemesh" not in answer.lower() for answer in answers.values())
    assert since(pair) == before
    alive(pair)


def test_many_that_break_off_or_say_nothing_keep_nobody_out(pair: Pair) -> None:
    """O-T2: two hundred at once, reset or left half open; then a member runs something, and a new one joins."""
    inputs = list(rude_inputs(pair.port).values())
    before = since(pair)
    with ExitStack() as idle:
        for number in range(200):
            connection = idle.enter_context(socket.create_connection(("127.0.0.1", pair.port), 5))
            with suppress(OSError):
                connection.sendall(inputs[number % len(inputs)][:100])
        for data in inputs:
            shout(pair.port, data, reset=True)
        alive(pair)
        fresh = pair.network.node("fresh").up()
        pair.network.pair(pair.node, fresh)
        fresh.end()
    assert before in {link["since"] for link in pair.node.ask("status")["links"]}
    alive(pair)


def test_a_member_that_stops_and_goes_on_is_linked_afterwards(pair: Pair) -> None:
    """O-T4 in small: a stopped process keeps its sockets; the other side stays up, and both go on afterwards."""
    assert pair.peer.process is not None
    pair.peer.process.send_signal(signal.SIGSTOP)
    try:
        assert pair.node.ask("status")["node"]["name"] == "stout"
        assert pair.node.ask("peers")
    finally:
        pair.peer.process.send_signal(signal.SIGCONT)
    until("linked", lambda: pair.node.sees(pair.peer) and pair.peer.sees(pair.node))
    alive(pair)


def test_the_control_socket_takes_everything_and_answers_the_next(pair: Pair) -> None:
    address = control_address(find_home(str(pair.node.home), {}))
    with ExitStack() as idle:
        for data in (b"", b"\n", b"\xff" * 3_000, b"{" * 400_000, b"[" * 100_000 + b"\n", b'{"v":1,"verb":"status"', b'{"v":1,"verb":"nope"}\n',
                     b'{"v":1,"verb":"run","args":{"node":7}}\n', b'{"v":1,"verb":"invite","args":{"uses":true}}\n', b'{"v":NaN}\n'):  # fmt: skip
            connection = idle.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(address)
            with suppress(OSError):
                connection.sendall(data)
        assert pair.node.ask("status")["node"]["name"] == "stout"
        for _ in range(50):
            idle.enter_context(socket.socket(socket.AF_UNIX)).connect(address)
        ran = pair.node.run("--json", "status", code=None)
        assert ran.code in (0, 5), ran
    until("served again", lambda: pair.node.run("status", code=None).code == 0)
    assert Path(address).stat().st_mode & 0o077 == 0
    alive(pair)


def test_nothing_is_left_open_by_rude_clients(pair: Pair) -> None:
    """O-T3: descriptors come back."""
    assert pair.node.process is not None
    folder = Path(f"/proc/{pair.node.process.pid}/fd")
    base = len(list(folder.iterdir()))
    for data in rude_inputs(pair.port).values():
        shout(pair.port, data, reset=True)
        shout(pair.port, data)
    until("they came back", lambda: len(list(folder.iterdir())) <= base + 3)


def test_a_home_has_one_node_and_says_who_it_is(pair: Pair) -> None:
    """O-B5: a second start, in the foreground or the background, is refused at once and names the first; nothing changes."""
    assert pair.node.process is not None
    before = since(pair)
    for detach in ((), ("-d",)):
        error = pair.node.fault("up", *detach, "--listen", "127.0.0.1:0", "--no-discovery", code=5)
        assert (error["reason"], str(pair.node.process.pid) in error["message"]) == ("already_running", True)
    assert since(pair) == before
    alive(pair)


def test_a_node_ends_when_told_to_and_a_killed_one_leaves_nothing_in_the_way(pair: Pair) -> None:
    assert pair.node.process is not None
    assert pair.node.ask("down")["stopped"] is True
    assert pair.node.end(None) == 0
    pair.node.fault("down", code=3)
    until("its friend sees that it left", lambda: pair.peer.peer("stout")["link"] is None)
    pair.node.up("--runs", "mine")
    pair.node.kill()
    assert Path(control_address(find_home(str(pair.node.home), {}))).exists(), "a socket file that nobody serves"
    pair.node.fault("status", code=3)
    pair.node.up("--runs", "mine")
    until("linked again", lambda: pair.node.sees(pair.peer) and pair.peer.sees(pair.node))
    alive(pair)
