"""The Responses API over a WebSocket: one JSON message a turn in, one JSON message an event out.

In: ``response.create`` with the members of a create body beside ``type``, and ``response.cancel``. Out: the events of a
stream (`responses_stream` with ``as_messages``) and error events. ``stream_id``, if the client gave one, comes back in
every event of its turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smg_trio.api.errors import error_view, load_json
from smg_trio.api.openai.responses.items import MakeId, make_item_id
from smg_trio.api.openai.responses.request import ResponsesRequest, responses_request_from
from smg_trio.api.parameters.fields import describe, filled_string, refuse, take
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.core.errors import UnsupportedFeature

_MAX_STREAM_ID_CHARS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketMessage:
    """A message of the client's, before its body is validated.

    Attributes:
        kind: ``response.create`` or ``response.cancel``.
        body: the create body, or what a cancel names.
        stream_id: comes back in every event of the turn.
        response_id: which response to cancel; None is the one in progress.
    """

    kind: str
    body: Mapping[str, Any]
    stream_id: str | None = None
    response_id: str | None = None

    def request(self, limits: RequestLimits = DEFAULT_LIMITS, make_id: MakeId = make_item_id) -> ResponsesRequest:
        """The create body, validated; it is always streamed.

        Raises:
            InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
            UnsupportedFeature: see `responses.parse_responses_request`.
        """
        return responses_request_from({**self.body, "stream": True}, limits, make_id)


def parse_socket_message(message: bytes) -> SocketMessage:
    """Read a message's envelope.

    Raises:
        InvalidRequest: no JSON object, or no type that is known.
        UnsupportedFeature: ``response.steer``.
    """
    obj = load_json(message)
    kind = take(obj, "type", filled_string)
    if kind is None:
        raise refuse("type", "is required")
    if kind == "response.steer":
        raise UnsupportedFeature("'response.steer' is not supported.", param="type")
    if kind not in ("response.create", "response.cancel"):
        raise refuse("type", f"must be 'response.create' or 'response.cancel', got {describe(kind)}")
    # Some clients wrap the body, as the Realtime API does.
    body = obj["response"] if isinstance(obj.get("response"), dict) else obj
    return SocketMessage(
        kind=kind,
        body={name: value for name, value in body.items() if name not in ("type", "stream_id")},
        stream_id=take(obj, "stream_id", _stream_id),
        response_id=take(obj, "response_id", filled_string),
    )


def _stream_id(value: Any, param: str) -> str:
    """It stands in every event, so it must be short."""
    if len(filled_string(value, param)) > _MAX_STREAM_ID_CHARS:
        raise refuse(param, f"at most {_MAX_STREAM_ID_CHARS} characters are allowed")
    return str(value)


def socket_error(exc: BaseException, stream_id: str | None = None) -> bytes:
    """The error event of a message that could not become a response, or of the connection itself."""
    view = error_view(exc)
    error = {"type": view.type, "code": view.code, "message": view.message, "param": view.param}
    value: dict[str, Any] = {"type": "error", "status": view.status, "error": error}
    if stream_id is not None:
        value["stream_id"] = stream_id
    return json.dumps(value, separators=(",", ":")).encode("ascii")
