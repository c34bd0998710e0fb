import json

import pytest

from mesh.base.errors import OurFault
from query.answer import Answered, AskedBadly, NotThere, TryLater
from query.http import make_app

PATH = "/v1/projects/p/ask"
JSON = {"content-type": "application/json"}


class Desk:
    """Gives one outcome and keeps what it was asked."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.asked = []

    async def ask_untrusted(self, authorization, project, body, remote):
        self.asked.append((authorization, project, body))
        return self.outcome


async def call(outcome, method="POST", path=PATH, headers=JSON, data=b"{}"):
    desk = Desk(outcome)
    client = make_app(desk).test_client()
    response = await client.open(path, method=method, headers=headers, data=data)
    return desk, response, await response.get_data()


async def test_an_answer_is_json_and_never_stored():
    desk, response, body = await call(Answered({"status": "ok", "text": "\u00e9"}), headers={**JSON, "authorization": "Bearer t"})
    assert desk.asked == [("Bearer t", "p", b"{}")]
    assert (response.status_code, json.loads(body)) == (200, {"status": "ok", "text": "\u00e9"})
    assert response.headers["cache-control"] == "no-store"


REFUSALS = [
    ("POST", PATH, JSON), ("POST", PATH, {"content-type": "text/plain"}), ("POST", PATH, {}), ("POST", PATH + "?a=b", JSON), ("POST", PATH + "/", JSON),
    ("POST", "/v1/projects//ask", JSON), ("POST", "//v1/projects/p/ask", JSON), ("POST", "/v1/projects/p/q/ask", JSON), ("GET", PATH, JSON), ("PUT", PATH, JSON),
    ("PATCH", PATH, JSON), ("DELETE", PATH, JSON), ("OPTIONS", PATH, JSON), ("OPTIONS", "/", {}), ("GET", "/", {}), ("GET", "/static/x", {}), ("GET", "/openapi.json", {}),
    ("TRACE", PATH, JSON), ("POST", "/api/v1/project/p/query", JSON),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "headers"), REFUSALS)
async def test_every_refusal_is_the_same(method, path, headers):
    """O-R5 and QUERY.md attack 11: no verb, path or type tells what exists."""
    _, response, body = await call(NotThere(), method, path, headers)
    assert response.status_code == 404
    assert body == b'{"type":"about:blank","title":"Not Found","status":404}'
    assert {name.lower(): value for name, value in response.headers.items()} == {
        "cache-control": "no-store", "x-content-type-options": "nosniff", "connection": "close", "content-type": "application/problem+json", "content-length": "55",
    }  # fmt: skip


async def test_our_own_faults_tell_nothing_outside_and_something_inside(caplog):
    _, response, body = await call(NotThere(OurFault("disk is gone")))
    assert (response.status_code, body[:30]) == (404, b'{"type":"about:blank","title":')
    assert "disk is gone" in caplog.text


async def test_a_proven_holder_is_told_to_wait_or_to_mend():
    _, response, _ = await call(TryLater(7))
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    _, response, body = await call(AskedBadly("the question is empty"))
    assert (response.status_code, json.loads(body)["detail"]) == (400, "the question is empty")


async def test_there_is_one_route_and_no_header_for_other_origins():
    app = make_app(Desk(NotThere()))
    assert [(rule.rule, rule.methods) for rule in app.url_map.iter_rules()] == [("/v1/projects/<project>/ask", {"POST"})]
    _, response, _ = await call(Answered({}), headers={**JSON, "origin": "http://x"})
    assert not [name for name in dict(response.headers) if name.lower().startswith("access-control")]
