import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.door import BODY_BYTES_MAX, HEAD_BYTES_MAX, Admitted, Rejected, admit_untrusted, hosts_of

HOSTS = hosts_of("127.0.0.1")
HEAD = b"POST /v1/projects/p/ask HTTP/1.1\r\nHost: 127.0.0.1:8787\r\n"
GOOD = HEAD + b"Authorization: Bearer x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def test_a_good_request_is_written_anew():
    verdict = admit_untrusted(GOOD + b"next", HOSTS)
    assert isinstance(verdict, Admitted)
    assert verdict.used == len(GOOD)
    assert verdict.data == (
        b"POST /v1/projects/p/ask HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nauthorization: Bearer x\r\n"
        b"content-type: application/json\r\n\r\n{}"
    )


def test_only_named_headers_pass():
    verdict = admit_untrusted(HEAD + b"Cookie: a\r\nX-Forwarded-For: b\r\nhivemesh-close: 1\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n", HOSTS)
    assert isinstance(verdict, Admitted)
    assert verdict.data == b"POST /v1/projects/p/ask HTTP/1.1\r\nhost: localhost\r\nhivemesh-close: 1\r\n\r\n"
    kept = admit_untrusted(HEAD + b"hivemesh-close: 1\r\n\r\n", HOSTS)
    assert isinstance(kept, Admitted)
    assert b"hivemesh" not in kept.data


@given(st.integers(0, len(GOOD) - 1))
def test_every_beginning_of_a_good_request_waits_for_more(at):
    if at:
        assert admit_untrusted(GOOD[:at], HOSTS) is None


BAD = {
    "upgrade": HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\nx",
    "h2c": HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00",
    "origin": HEAD + b"Origin: http://localhost\r\n\r\n",
    "null_origin": HEAD + b"Origin: null\r\n\r\n",
    "no_host": b"GET / HTTP/1.1\r\n\r\n",
    "foreign_host": b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "host_in_front": b"GET / HTTP/1.1\r\nHost: localhost.evil.test\r\n\r\n",
    "two_hosts": HEAD + b"Host: localhost\r\n\r\n",
    "two_lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length_list": HEAD + b"Content-Length: 1, 1\r\n\r\na",
    "negative": HEAD + b"Content-Length: -1\r\n\r\n",
    "plus": HEAD + b"Content-Length: +1\r\n\r\na",
    "too_long": HEAD + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "packed": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
    "folded": HEAD + b"X: a\r\n b\r\n\r\n",
    "bare_newline": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "mixed_newline": HEAD + b"X: a\nContent-Length: 1\r\n\r\na",
    "nul": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "space_name": HEAD + b"X : a\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n",
    "absolute": b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "encoded": b"GET /v1/projects/%2e%2e/ask HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "double_slash": b"GET //v1/projects/p/ask HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "inner_slash": b"GET /v1//p HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "backslash": b"GET /v1\\projects HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "long_target": b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "endless_target": b"GET /" + b"a" * 3000,
    "long_head": HEAD + b"X: " + b"a" * HEAD_BYTES_MAX,
    "many_headers": HEAD + b"X: a\r\n" * 70 + b"\r\n",
    "two_tokens": HEAD + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "lower": b"get / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "blank": b"\r\n\r\n",
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_whatever_else_comes_is_rejected(name):
    """O-T1, O-Q6, and attacks 10, 12 to 17 of QUERY.md section 4."""
    assert admit_untrusted(BAD[name], HOSTS) == Rejected()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:99", "[::1]", "[::1]:8787", "localhost.", "proxy.example.test:443"])
def test_names_of_this_machine_are_answered_with_any_port(host):
    """O-Q6."""
    assert hosts_of("127.0.0.1", ["Proxy.example.test"]).allow(host)


@pytest.mark.parametrize("host", ["", "127.0.0.2", "localhost:x", "localhost:123456", "evil@localhost", "localhost/", "[::1", "a b", "127.0.0.1.evil.test"])
def test_other_names_are_not(host):
    assert not HOSTS.allow(host)


def test_on_every_interface_any_address_but_no_foreign_name():
    hosts = hosts_of("0.0.0.0")
    assert hosts.allow("192.168.1.5:8787")
    assert not hosts.allow("rebound.test")
    assert hosts_of("::").allow("[fe80::1]:1")
    assert hosts_of("192.168.1.5").allow("192.168.1.5:8787")
    assert not hosts_of("192.168.1.5").allow("192.168.1.6")


@given(st.binary(max_size=300) | st.binary(max_size=80).map(lambda tail: HEAD + tail) | st.binary(max_size=80).map(lambda tail: GOOD[:-4] + tail))
def test_any_bytes_get_a_verdict_and_what_passes_is_clean(data):
    verdict = admit_untrusted(data, HOSTS)
    if isinstance(verdict, Admitted):
        head, _, body = verdict.data.partition(b"\r\n\r\n")
        names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
        assert set(names) <= {b"host", b"hivemesh-close", b"content-length", b"authorization", b"content-type"}
        assert len(names) == len(set(names))
        assert len(body) <= BODY_BYTES_MAX
        assert 0 < verdict.used <= len(data)


@pytest.mark.parametrize(("bound", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.1.5", False), ("box", False)])
def test_whether_other_machines_can_reach_it(bound, loopback):
    assert hosts_of(bound).is_loopback is loopback
