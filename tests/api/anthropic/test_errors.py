"""Errors in Anthropic's shape."""

from __future__ import annotations

import json

import pytest
from anthropic.types import ErrorResponse

from smg_trio.api.anthropic.errors import messages_error_body, messages_error_event, messages_error_response
from smg_trio.core.errors import (
    Conflict,
    EngineDead,
    EngineRejected,
    GatewayFault,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    SmgError,
    Unauthorized,
)
from smg_trio.http.faults import RequestTooLarge


class Late(GatewayFault):
    """A fault of its own status."""

    status = 504


@pytest.mark.parametrize(
    ("exc", "status", "kind"),
    [
        (InvalidRequest("no", param="n"), 400, "invalid_request_error"),
        (Unauthorized("key"), 401, "authentication_error"),
        (ModelNotFound("x"), 404, "not_found_error"),
        (Conflict("taken"), 409, "invalid_request_error"),
        (Overloaded("full"), 429, "rate_limit_error"),
        (EngineRejected("bad"), 500, "api_error"),
        (EngineDead("gone"), 503, "overloaded_error"),
        (Late("late"), 504, "timeout_error"),
        (SmgError("x"), 500, "api_error"),
        (ValueError("secret"), 500, "api_error"),
    ],
)
def test_every_error_has_anthropics_type(exc: Exception, status: int, kind: str) -> None:
    found, headers, body = messages_error_response(exc, "req_1")
    value = json.loads(body)
    ErrorResponse.model_validate(value, strict=True)
    assert found == status
    assert value["error"]["type"] == kind
    assert value["request_id"] == "req_1"
    assert "secret" not in value["error"]["message"]
    assert ("content-type", "application/json") in headers


def test_a_body_that_is_too_large_has_its_documented_type() -> None:
    assert json.loads(messages_error_body(RequestTooLarge(10)))["error"]["type"] == "request_too_large"


def test_the_event_is_named() -> None:
    assert messages_error_event(SmgError("x")).startswith(b'event: error\ndata: {"type":"error"')
