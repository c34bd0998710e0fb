"""The outsiders' server as a real process on loopback, met by polite and rude clients."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from mesh.base.clock import read_clock
from mesh.base.errors import OurFault
from mesh.base.names import base32
from query.indexer import index_repository
from query.register import Register
from query.serve import CONNECTIONS_MAX, run_serve

SERVER = """
import sys
from pathlib import Path
from query.serve import run_serve
run_serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], on_ready=lambda address: print(address, flush=True))
"""
GUIDE = "# Guide\n\n## Boiling water\n\nTo boil water, press the red lever.\n\n## Cleaning\n\nDescale with vinegar every month.\n"
PATH = "/v1/projects/kettle/ask"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int
    home: Path
    register: Register
    repository: Path

    def grant(self, **changes) -> tuple[str, str]:
        values = {"life_s": 3600, "rate_per_min": 6000, "per_day": 100_000, "now": read_clock(), **changes}
        project = values.pop("project", "kettle")
        row, token = self.register.grant(project, values.pop("scopes", ["query"]), **values)
        return base32(row.grant), token

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def exchange(self, data: bytes) -> bytes:
        """Send bytes and read to the end; the Date header is taken out."""
        with self.connect() as peer:
            with contextlib.suppress(OSError):
                peer.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := peer.recv(65536):
                    received += piece
        head, mark, body = received.partition(b"\r\n\r\n")
        return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"date:")) + mark + body

    def ask(self, token: str | None, body: object, path: str = PATH, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        values = {"content-type": "application/json", **({"authorization": f"Bearer {token}"} if token else {}), **headers}
        try:
            connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), values)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def is_alive(self) -> bool:
        return self.process.poll() is None and self.exchange(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 404")


@contextlib.contextmanager
def running(home: Path, repository: Path):
    with (home / "stderr").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVER, str(home / "index"), str(home / "grants.db"), "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
        )  # fmt: skip
    register = Register(home / "grants.db")
    try:
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), (home / "stderr").read_text()
        yield Server(process, int(line.rsplit(":", 1)[1]), home, register, repository)
    finally:
        register.close()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("r") / "kettle"
    folder.mkdir()
    (folder / "guide.md").write_text(GUIDE)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.test", "-C", str(folder)]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *arguments], check=True)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory, repository):
    home = tmp_path_factory.mktemp("home")
    index_repository(repository, "kettle", home / "index")
    index_repository(repository, "pot", home / "index")
    with running(home, repository) as started:
        yield started
        assert started.process.poll() is None
        assert "Traceback" not in (home / "stderr").read_text()


def test_a_cited_answer_checks_against_a_clone(server):
    _, token = server.grant()
    status, headers, body = server.ask(token, {"question": "how do I boil water?", "limit": 1})
    answer = json.loads(body)
    assert (status, answer["status"]) == (200, "ok")
    citation = answer["answers"][0]["citation"]
    blob = subprocess.run(["git", "-C", str(server.repository), "cat-file", "blob", citation["blob"]], capture_output=True, check=True).stdout
    low, high = citation["bytes"]
    assert hashlib.sha256(blob[low:high]).hexdigest() == citation["sha256"]
    assert blob[low:high].decode() == answer["answers"][0]["text"]
    assert not [name for name in headers if name.startswith("access-control")]
    assert answer["budget"]["used"] == 1


def test_a_revoked_grant_is_refused_at_the_next_request_on_the_same_connection(server):
    """O-R1 for single questions."""
    grant, token = server.grant()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    connection.request("POST", PATH, '{"question":"boil"}', headers)
    response = connection.getresponse()
    assert response.status == 200
    response.read()
    server.register.revoke(grant, read_clock())
    connection.request("POST", PATH, '{"question":"boil"}', headers)
    assert connection.getresponse().status == 404
    connection.close()


def request(token: str = "", path: str = PATH, body: bytes = b'{"question":"boil"}', *, method: str = "POST", extra: str = "", host: str = "localhost") -> bytes:
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{bearer}Content-Type: application/json\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_every_failure_is_the_same_bytes(server):
    """O-R2, O-R3, O-R4, O-Q4, O-Q6: no token, no project, no verb, no host, no malformed thing looks different."""
    _, token = server.grant()
    gone, revoked = server.grant()
    server.register.revoke(gone, read_clock())
    _, docs = server.grant(scopes=["docs"])
    _, pot = server.grant(project="pot")
    unknown = "hmq_aaaaaaaaaaaaaaaa_" + token.split("_")[2] + "_000000"
    other_check = token[:-1] + ("0" if token[-1] != "0" else "1")
    cases = {
        "no token": request(), "garbage token": request("x"), "unknown": request(unknown), "check": request(other_check), "revoked": request(revoked),
        "scope": request(docs), "project": request(pot), "no such project": request(token, "/v1/projects/none/ask"), "prefix": request(token, "/v1/projects/kettl/ask"),
        "longer": request(token, "/v1/projects/kettle-private/ask"), "case": request(token, "/v1/projects/Kettle/ask"), "walk": request(token, "/v1/projects/../ask"),
        "encoded": request(token, "/v1/projects/%6bettle/ask"), "star": request(token, "/v1/projects/*/ask"), "slash": request(token, PATH + "/"), "root": request(token, "/"),
        "query": request(token, PATH + "?x=1"), "token in query": request("", PATH + f"?token={token}"), "double": request(token, "//v1/projects/kettle/ask"),
        "get": request(token, method="GET"), "put": request(token, method="PUT"), "delete": request(token, method="DELETE"), "patch": request(token, method="PATCH"),
        "options": request(token, method="OPTIONS"), "origin": request(token, extra="Origin: http://evil.test\r\n"), "null origin": request(token, extra="Origin: null\r\n"),
        "own origin": request(token, extra="Origin: http://localhost\r\n"), "host": request(token, host="evil.test"), "no json before auth": request("x", body=b"{"),
        "close": request(extra="Connection: close\r\n"), "two tokens": request(token, extra="Authorization: Bearer x\r\n"), "chunked": request(token, extra="Transfer-Encoding: chunked\r\n"),
        "packed": request(token, extra="Content-Encoding: gzip\r\n"), "big": request(token, body=b"x" * 20_000), "claudectl": request(token, "/api/v1/project/kettle/query"),
        "text": request(token).replace(b"application/json", b"text/plain"), "head too long": request(token, extra="X: " + "a" * 17_000 + "\r\n"),
        "target too long": request(token, "/" + "a" * 3000), "bare newline": request(token).replace(b"\r\n", b"\n"), "old": request(token).replace(b"HTTP/1.1", b"HTTP/1.0"),
    }  # fmt: skip
    answers = {name: server.exchange(data) for name, data in cases.items()}
    first = answers["no token"]
    assert first.startswith(b"HTTP/1.1 404")
    assert {name for name, answer in answers.items() if answer != first} == set()
    assert server.ask(token, {"question": "boil"})[0] == 200


def test_a_head_request_gets_the_same_head(server):
    whole = server.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert server.exchange(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n") == whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def test_a_proven_token_learns_what_to_mend_and_when_to_come_again(server):
    _, token = server.grant(rate_per_min=3)
    status, _, body = server.ask(token, b"{")
    assert status == 400
    assert json.loads(body)["detail"]
    assert server.ask(token, {"question": " "})[0] == 400
    assert server.ask(token, {"question": "boil", "limit": 99})[0] == 400
    status, headers, _ = server.ask(token, {"question": "boil"})
    assert status == 429
    assert 1 <= int(headers["retry-after"]) <= 60


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:{port}", "[::1]:{port}"])
def test_names_of_this_machine_are_answered(server, host):
    """O-Q6."""
    _, token = server.grant()
    answer = server.exchange(request(token, host=host.format(port=server.port), extra="Connection: close\r\n"))
    assert answer.startswith(b"HTTP/1.1 200")


TEXTS = ["multi-agent", "don't", "grammar::fa", "C++", '"unbalanced', "a AND", "NEAR(", "*", "-x", "(", "AND", "nu\0l", "title:x", "^x", "'; DROP TABLE docs;--", "\U0001f600", "%", "_", "(" * 5000]


def test_no_question_is_a_fault(server):
    """O-Q1, O-Q3."""
    _, token = server.grant()
    for text in [*TEXTS, "x'; VACUUM INTO '/tmp/out.db';--", "\ud83d"]:
        began = time.monotonic()
        assert server.ask(token, {"question": text})[0] == 200, text
        assert time.monotonic() - began < 5
    for limit in ("x", -1, 1e9, None, [], "1; DROP"):
        assert server.ask(token, {"question": "boil", "limit": limit})[0] == 400


UPGRADE = b"GET /any HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
RUDE = {
    "upgrade and a byte": UPGRADE + b"\r\nx", "upgrade with a body": UPGRADE + b"Content-Length: 3\r\n\r\nabc", "upgrade and a frame": UPGRADE + b"\r\n\x81\x83\0\0\0\0abc",
    "upgrade alone": UPGRADE + b"\r\n", "upgrade of the route": UPGRADE.replace(b"/any", PATH.encode()) + b"\r\nx", "bad key": UPGRADE.replace(b"AAAA", b"!") + b"\r\n",
    "h2c": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0", "tls": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + b"\0" * 64, "noise": bytes(range(256)) * 40,
    "no host": b"GET / HTTP/1.1\r\n\r\n", "bad chunk": b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n", "nul": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "negative": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", "two lengths": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "smuggled": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n", "newlines": b"\n" * 1000,
    "large body": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\n\r\n" + b"x" * 300_000, "proxy": b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RUDE))
def test_a_rude_client_ends_only_its_own_connection(server, name):
    """O-T1: the process lives, other connections go on, and the answer is the one refusal."""
    _, token = server.grant()
    polite = http.client.HTTPConnection("127.0.0.1", server.port, timeout=15)
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    polite.request("POST", PATH, '{"question":"boil"}', headers)
    polite.getresponse().read()
    answer = server.exchange(RUDE[name])
    assert answer.startswith(b"HTTP/1.1 404"), answer[:80]
    polite.request("POST", PATH, '{"question":"boil"}', headers)
    assert polite.getresponse().status == 200
    polite.close()
    assert server.is_alive()


def test_clients_that_leave_or_reset_do_no_harm(server):
    """O-T2."""
    _, token = server.grant()
    for cut in range(1, 400, 23):
        with server.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.sendall(request(token)[:cut])
    for _ in range(20):
        with server.connect() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.sendall(request(token) * 5)
    assert server.is_alive()


def test_requests_glued_together_are_answered_in_order(server):
    _, token = server.grant()
    data = request(token, body=b'{"question":"boil water"}') + request(token, body=b'{"question":"descale vinegar"}', extra="Connection: close\r\n")
    answer = server.exchange(data)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b"red lever") < answer.index(b"Descale with")


def test_a_slow_request_is_cut_off(server):
    with server.connect() as peer, server.connect() as dripping:
        peer.sendall(request()[:30])
        began = time.monotonic()
        dripping.sendall(request(body=b"x" * 100)[:-100])
        dripping.settimeout(0.2)
        while True:
            try:
                dripping.sendall(b"x")
                if dripping.recv(100) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - began < 9
            except OSError:
                break
        assert 3 < time.monotonic() - began < 9
        assert peer.recv(100) == b""


def test_more_connections_than_the_limit_are_closed(server):
    peers = []
    try:
        for _ in range(CONNECTIONS_MAX + 20):
            peers.append(server.connect())
        closed = 0
        deadline = time.monotonic() + 5
        for peer in reversed(peers):
            peer.settimeout(0.05)
            try:
                closed += peer.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionResetError:
                closed += 1
            if closed >= 20 or time.monotonic() > deadline:
                break
        assert closed >= 10
    finally:
        for peer in peers:
            peer.close()
    deadline = time.monotonic() + 5
    while not server.is_alive():
        assert time.monotonic() < deadline


def test_costly_questions_do_not_stop_the_others(server):
    """O-Q9: many long questions at once, while plain ones are answered."""
    _, token = server.grant()
    long = {"question": " ".join(f"water boil w{n} (a* OR b*)" for n in range(250)), "limit": 20}
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(server.ask(token, long)[0])) for _ in range(30)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        assert server.ask(token, {"question": "boil"})[0] in (200, 429)
        slowest = max(slowest, time.monotonic() - began)
    for thread in threads:
        thread.join()
    assert set(codes) <= {200, 429}
    assert len(codes) == 30
    assert slowest < 8


def test_an_index_taken_away_or_renewed_counts_from_the_next_question(server, repository):
    """O-Q7."""
    _, token = server.grant(project="fleeting")
    assert server.ask(token, {"question": "boil"}, "/v1/projects/fleeting/ask")[0] == 404
    index_repository(repository, "fleeting", server.home / "index")
    assert server.ask(token, {"question": "boil"}, "/v1/projects/fleeting/ask")[0] == 200
    (server.home / "index/fleeting.db").unlink()
    assert server.ask(token, {"question": "boil"}, "/v1/projects/fleeting/ask")[0] == 404


def test_the_process_is_locked_up_or_says_that_it_is_not(server):
    said = (server.home / "stderr").read_text()
    state = Path(f"/proc/{server.process.pid}/status")
    if not state.exists():
        assert "not locked up" in said
        return
    locked = "NoNewPrivs:\t1" in state.read_text()
    assert locked != ("not locked up" in said)


def test_no_token_or_question_is_in_the_log(server):
    _, token = server.grant()
    server.ask(token, {"question": "canaryquestion boil"})
    server.ask(token, {"question": "canaryquestion boil"}, "/v1/projects/none/ask")
    said = (server.home / "stderr").read_text()
    assert token.split("_")[2] not in said
    assert "canaryquestion" not in said


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order_with_open_connections(tmp_path, repository, sign):
    """O-T10: idle, half-sent and just answered connections do not hold it up."""
    index_repository(repository, "kettle", tmp_path / "index")
    with running(tmp_path, repository) as server:
        _, token = server.grant()
        idle, half, kept = server.connect(), server.connect(), http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        half.sendall(request(token)[:50])
        kept.request("POST", PATH, '{"question":"boil"}', {"content-type": "application/json", "authorization": f"Bearer {token}"})
        assert kept.getresponse().status == 200
        began = time.monotonic()
        server.process.send_signal(sign)
        assert server.process.wait(timeout=10) == 0
        assert time.monotonic() - began < 5
        for peer in (idle, half, kept):
            peer.close()
        assert (tmp_path / "stderr").read_text() in ("", (tmp_path / "stderr").read_text().partition("\n")[0] + "\n")


def test_charges_survive_a_kill(tmp_path, repository):
    index_repository(repository, "kettle", tmp_path / "index")
    with running(tmp_path, repository) as server:
        _, token = server.grant()
        for _ in range(5):
            assert server.ask(token, {"question": "boil"})[0] == 200
        server.process.kill()
        server.process.wait()
        assert server.register.list()[0].budget.used == 5
        assert server.register.audit_break() is None


def test_a_taken_port_is_said_so(tmp_path, server):
    with pytest.raises(OurFault, match="cannot be listened on"):
        run_serve(tmp_path / "index", tmp_path / "grants.db", f"127.0.0.1:{server.port}", on_ready=print)
    open_files = Path("/proc/self/fd")
    if open_files.exists():
        links = [os.readlink(path) for path in open_files.iterdir() if path.is_symlink()]
        assert not [link for link in links if link.startswith(str(tmp_path))]
