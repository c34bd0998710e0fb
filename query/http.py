"""The routes of the outsiders' server. One route answers; everything else is the same "not found".

Refusals are one constant: unknown path, wrong verb, bad or missing token, foreign project, missing scope, expired,
revoked, malformed. They also close the connection, so that not even its fate tells them apart. No CORS header exists.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from query.answer import Answered, AskedBadly, Desk, NotThere, TryLater
from query.door import BODY_BYTES_MAX, CLOSE_HEADER

ANSWER_TIME_S = 15
BODY_TIME_S = 5

_LOG = logging.getLogger(__name__)
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_NOT_FOUND = b'{"type":"about:blank","title":"Not Found","status":404}'


def make_app(desk: Desk) -> QuartTrio:
    """Make the web application.

    Args:
        desk: Answers the questions.
    """
    app = QuartTrio("query", static_folder=None, template_folder=None)
    app.config.update(MAX_CONTENT_LENGTH=BODY_BYTES_MAX, BODY_TIMEOUT=BODY_TIME_S, RESPONSE_TIMEOUT=ANSWER_TIME_S, PROVIDE_AUTOMATIC_OPTIONS=False)
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True

    @app.post("/v1/projects/<project>/ask", provide_automatic_options=False)
    async def ask(project: str) -> Response:
        """Answer a question about one project: JSON ``{question, limit?}``, ``Authorization: Bearer``."""
        exact = request.scope["path"] == f"/v1/projects/{project}/ask"
        if not exact or request.query_string or request.mimetype != "application/json":
            return not_found()
        body = await request.get_data()
        assert isinstance(body, bytes)
        outcome = await desk.ask_untrusted(request.headers.get("authorization"), project, body, request.remote_addr or "")
        response = _respond(outcome)
        if CLOSE_HEADER in request.headers:
            response.headers["connection"] = "close"
        return response

    @app.errorhandler(HTTPException)
    async def failed(error: HTTPException) -> Response:
        """Turn every way of the framework to fail into the one refusal; it has logged its own faults by now."""
        del error
        return not_found()

    return app


def not_found() -> Response:
    """Make the one refusal."""
    return Response(_NOT_FOUND, 404, {**_HEADERS, "connection": "close"}, content_type="application/problem+json")


def _respond(outcome: Answered | NotThere | TryLater | AskedBadly) -> Response:
    if isinstance(outcome, Answered):
        return _json(200, outcome.body, "application/json")
    if isinstance(outcome, TryLater):
        problem = {"type": "about:blank", "title": "Too Many Requests", "status": 429}
        response = _json(429, problem, "application/problem+json")
        response.headers["retry-after"] = str(outcome.retry_after_s)
        return response
    if isinstance(outcome, AskedBadly):
        problem = {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": outcome.message}
        return _json(400, problem, "application/problem+json")
    if outcome.fault:
        _LOG.error("a question could not be answered: %s (%s)", outcome.fault.message, outcome.fault.kind)
    return not_found()


def _json(status: int, body: dict[str, Any], content_type: str) -> Response:
    return Response(json.dumps(body, ensure_ascii=False, separators=(",", ":")), status, _HEADERS, content_type=content_type)
