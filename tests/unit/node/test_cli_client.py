"""The command's side of the socket: whom it talks to, and what it makes of odd answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from mesh.base.errors import NotRunning, OurFault, Refused, Usage
from node.cli import client
from node.cli.client import Answered, call, stream
from node.home import Home, find_home
from node.lock import make_home
from tests.fakes.daemon import FakeDaemon


@pytest.fixture
def home(tmp_path) -> Home:
    found = find_home(str(tmp_path), {})
    make_home(found)
    return found


@contextmanager
def answering(home: Home, *answers: bytes) -> Iterator[list[bytes]]:
    """A listener that says the same bytes to whoever calls, and keeps what it was told."""
    told: list[bytes] = []
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(home.run_dir / "control.sock"))
    listening.listen()

    def serve() -> None:
        for answer in answers:
            served, _ = listening.accept()
            with served, suppress(BrokenPipeError, ConnectionResetError):
                told.append(served.recv(100_000))
                served.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield told
        thread.join(10)
        assert not thread.is_alive()
    finally:
        listening.close()


def test_without_a_node_the_hint_starts_one(home, tmp_path):
    with pytest.raises(NotRunning) as error:
        call(home, "status")
    assert error.value.hint == "hivemesh up -d"
    assert str(tmp_path) in error.value.message


def test_a_socket_file_that_a_killed_node_left_is_no_node(home):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(home.run_dir / "control.sock"))
    with pytest.raises(NotRunning):
        call(home, "status")


def test_a_squatted_socket_is_told_nothing(home, monkeypatch):
    """SECURITY 14: the command checks the listener's uid before it sends anything."""
    monkeypatch.setattr(client, "peer_of", lambda connection: (os.getuid() + 1, 1))
    with answering(home, b"") as told, pytest.raises(Refused, match="another user"):
        call(home, "join", {"invite": "secret"})
    assert told == [b""]


@pytest.mark.parametrize("answer", [b"", b'{"result":1', b"nonsense\n", b"[]\n", b"1\n", b"{}\n", b'{"event":1}\n', b"\xff\n", b'{"error":1}\n', b'{"event":{"kind":"output","bytes":"x"}}\n'])
def test_an_answer_that_cannot_be_read_is_our_fault_in_one_line(home, answer):
    with answering(home, answer), pytest.raises(OurFault) as fault:
        call(home, "status")
    assert "\n" not in fault.value.message


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever(home):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home.run_dir / "control.sock"))
        listening.listen()
        with pytest.raises(OurFault, match="does not answer"):
            call(home, "status", timeout_s=0.1)


def test_the_node_s_error_is_passed_on_with_its_exit_code(home):
    with FakeDaemon(home, {"status": Usage("so", hint="thus")}), pytest.raises(Answered) as error:
        call(home, "status")
    assert (error.value.kind, error.value.message, error.value.hint, error.value.exit_code) == ("usage", "so", "thus", 2)


def test_an_oversized_request_is_refused_by_its_answer(home):
    with FakeDaemon(home, {"status": {}}), pytest.raises(Answered, match="longer than"):
        call(home, "status", {"x": "y" * 300_000})


def test_output_comes_byte_for_byte(home):
    body = os.urandom(300_000)

    async def verb(call):
        await call.output("stdout", 0, body)
        await call.event({"kind": "state", "state": "done"})
        return "end"

    with FakeDaemon(home, {"run": verb}), stream(home, "run", {}) as conversation:
        events = list(conversation.events())
        assert b"".join(data for _, data in events) == body
        assert events[-1][0]["kind"] == "state"
        assert conversation.result == "end"


def test_node_and_command_talk_over_a_moved_socket(tmp_path):
    """O-V2: a home whose path is too long for a socket."""
    home = find_home(str(tmp_path / ("한" * 60)), {})
    with FakeDaemon(home, {"status": "here"}) as daemon:
        assert call(home, "status") == "here"
        assert not daemon.address.startswith(str(tmp_path))
    with pytest.raises(NotRunning):
        call(home, "status")
