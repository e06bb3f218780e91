"""Envelopes of the WebSocket mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from smg_trio.api.openai.responses.socket import parse_socket_message, socket_error
from smg_trio.core.errors import InvalidRequest, Overloaded, SmgError, UnsupportedFeature

EVENTS: TypeAdapter[ResponsesServerEvent] = TypeAdapter(ResponsesServerEvent)


def parse(**message: Any) -> Any:
    return parse_socket_message(json.dumps(message).encode())


def test_a_create_message_holds_a_body_flat_or_wrapped() -> None:
    flat = parse(type="response.create", stream_id="s", model="m", input="hi", stream=False)
    assert flat.stream_id == "s"
    wrapped = parse(type="response.create", stream_id="s", response={"model": "m", "input": "hi"})
    for message in (flat, wrapped):
        request = message.request()
        assert request.stream
        assert request.chat().messages == [{"role": "user", "content": "hi"}]
        assert request.generate


def test_a_turn_may_only_prepare_and_go_on_from_another() -> None:
    request = parse(type="response.create", model="m", generate=False, previous_response_id="r").request()
    assert not request.generate
    assert request.previous_response_id == "r"
    assert request.input == []


def test_a_cancel_may_name_its_response() -> None:
    assert parse(type="response.cancel", response_id="r").response_id == "r"
    assert parse(type="response.cancel").response_id is None


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"nope", InvalidRequest),
        (b"[]", InvalidRequest),
        (b"{}", InvalidRequest),
        (b'{"type":"session.update"}', InvalidRequest),
        (b'{"type":"response.steer"}', UnsupportedFeature),
    ],
)
def test_other_messages_are_refused(message: bytes, error: type[SmgError]) -> None:
    with pytest.raises(error):
        parse_socket_message(message)


def test_errors_are_events_of_the_official_shape() -> None:
    value = json.loads(socket_error(InvalidRequest("bad", param="input"), "s"))
    EVENTS.validate_python(value, strict=True)
    assert value == {
        "type": "error",
        "status": 400,
        "error": {"type": "invalid_request_error", "code": "invalid_value", "message": "bad", "param": "input"},
        "stream_id": "s",
    }
    assert json.loads(socket_error(Overloaded("full")))["status"] == 429


def test_a_stream_id_that_would_stand_in_every_event_is_short() -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_socket_message(json.dumps({"type": "response.create", "stream_id": "x" * 257}).encode())
    assert raised.value.param == "stream_id"
