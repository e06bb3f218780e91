"""Errors become bodies in one shape; bodies become JSON objects or a 400."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smg_trio.api.errors import MAX_DEPTH, error_event, error_response, load_json, nests_deeper
from smg_trio.core.errors import (
    ConfigError,
    Conflict,
    ContextLengthExceeded,
    EngineDead,
    EngineRejected,
    EngineSilent,
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    NoReadyWorker,
    Overloaded,
    ProtocolViolation,
    ShuttingDown,
    SmgError,
    Unauthorized,
)
from smg_trio.http.faults import RequestTooLarge


def body_of(exc: BaseException) -> dict[str, object]:
    body = json.loads(error_response(exc)[2])
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    return body["error"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("exc", "status", "kind", "code", "param"),
    [
        (InvalidRequest("no", param="n"), 400, "invalid_request_error", "invalid_value", "n"),
        (ContextLengthExceeded("long"), 400, "invalid_request_error", "context_length_exceeded", None),
        (ModelNotFound("x"), 404, "invalid_request_error", "model_not_found", "model"),
        (Conflict("taken"), 409, "invalid_request_error", "conflict", None),
        (RequestTooLarge(10), 413, "invalid_request_error", "request_too_large", None),
        (Unauthorized("key"), 401, "authentication_error", "invalid_api_key", None),
        (Overloaded("full"), 429, "rate_limit_error", "overloaded", None),
        (EngineRejected("bad"), 500, "server_error", "engine_rejected", None),
        (EngineUnavailable("paused"), 503, "server_error", "engine_unavailable", None),
        (ProtocolViolation("output", "x"), 502, "server_error", "protocol_violation", None),
        (EngineDead("gone"), 503, "server_error", "engine_dead", None),
        (EngineSilent(300), 503, "server_error", "engine_silent", None),
        (NoReadyWorker("none"), 503, "server_error", "no_available_workers", None),
        (ShuttingDown("bye"), 503, "server_error", "shutting_down", None),
        (ConfigError("--x", "bad"), 500, "server_error", "config_error", None),
        (SmgError("x"), 500, "server_error", "internal_error", None),
    ],
)
def test_every_error_has_status_type_code_and_param(
    exc: SmgError, status: int, kind: str, code: str, param: str | None
) -> None:
    assert error_response(exc)[0] == status
    assert body_of(exc) == {"message": exc.message, "type": kind, "param": param, "code": code}
    assert ("x-smg-error-code", code) in error_response(exc)[1]
    assert ("content-type", "application/json") in error_response(exc)[1]


def test_an_unknown_exception_says_nothing_of_itself() -> None:
    status, _, body = error_response(KeyError("secret prompt"))
    assert status == 500
    assert json.loads(body)["error"]["message"] == "internal error"
    assert b"secret" not in body
    assert b"KeyError" not in body


def test_an_exception_group_speaks_through_its_first_own_leaf() -> None:
    inner = ExceptionGroup("inner", [InvalidRequest("no", param="n")])
    assert body_of(ExceptionGroup("outer", [ValueError("x"), inner]))["param"] == "n"
    assert body_of(ExceptionGroup("outer", [ValueError("x")]))["message"] == "internal error"


@pytest.mark.parametrize(("wait", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.5, "2"), (30.0, "30")])
def test_an_overload_says_when_to_come_back_in_whole_seconds(wait: float, header: str) -> None:
    assert ("retry-after", header) in error_response(Overloaded("full", retry_after_s=wait))[1]


def test_a_missing_key_is_told_how_to_authenticate() -> None:
    assert ("www-authenticate", "Bearer") in error_response(Unauthorized("no key"))[1]


def test_an_error_event_is_one_sse_event_of_the_same_body() -> None:
    exc = EngineDead("line\nbreak \ud800")
    event = error_event(exc)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert event == b"data: " + error_response(exc)[2] + b"\n\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"1",
        b"null",
        b"\xff",
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": "\\ud800"}',
        b'{"\\uDC00": 1}',
        b'{"a": 1} x',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"a": ' + b"[" * 200_000,
        b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}",
        b'{"a":' * 200 + b"1" + b"}" * 200,
    ],
)
def test_what_is_no_json_object_is_a_400(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_json(body)
    assert error_response(caught.value)[0] == 400
    assert body_of(caught.value)["code"] == "json_parse_error"


def test_good_json_is_read() -> None:
    assert load_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00 \xc3\xa9"}') == {"a": "😀 é"}
    assert load_json(b'{"a": 1, "a": 2}') == {"a": 2}
    assert load_json(b'{"a": [[[1]]], "b": 1e999}')["a"] == [[[1]]]


def test_many_shallow_arrays_are_not_deep() -> None:
    value = {"a": [[1]] * 1000}
    assert load_json(json.dumps(value).encode()) == value


@given(st.integers(0, 40), st.integers(0, 40))
def test_depth_is_counted_in_levels(depth: int, limit: int) -> None:
    value: object = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value, "l": 2}
    assert nests_deeper(value, limit) == (depth > limit)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_an_invalid_request(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        load_json(body)
