"""Exceptions become bodies here, and nowhere else; bodies become JSON objects here too.

The shape is OpenAI's, on every endpoint: ``{"error": {"message", "type", "param", "code"}}``.

========================  ======================  ====================================
status                    ``type``                ``code``
========================  ======================  ====================================
400, 404, 409, 413        invalid_request_error   the exception's word (``invalid_value`` …)
401                       authentication_error    invalid_api_key, plus ``WWW-Authenticate``
429                       rate_limit_error        overloaded, plus ``Retry-After``
5xx                       server_error            the exception's word
========================  ======================  ====================================

``code`` is a stable word (vLLM repeats the HTTP status there). It is also sent as the header
``x-smg-error-code``, so that a proxy can count refusals without reading bodies.
"""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple, NoReturn

from smg_trio.api.sse import data_event
from smg_trio.core.errors import InvalidRequest, Overloaded, SmgError
from smg_trio.core.heavy_json import MAX_DEPTH, check_counts, contains, decode_heavy, is_heavy

_ENCODED_AT_ONCE = 1 << 20
_SHOWN_MESSAGE_CHARS = 4_000
_SHOWN_PARAM_CHARS = 256

Headers = list[tuple[str, str]]

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class MalformedJson(InvalidRequest):
    """The body is no JSON object."""

    code = "json_parse_error"


class ErrorView(NamedTuple):
    """What a client may know of an exception; every API's error shape is made of these five."""

    status: int
    type: str
    code: str
    param: str | None
    message: str


def error_view(exc: BaseException) -> ErrorView:
    """Look at any exception as an API error.

    Of an exception group the first `SmgError` leaf counts. What is not an `SmgError` says nothing of
    itself: status 500, ``internal error``.
    """
    fault = _find_fault(exc)
    if fault is None:
        return ErrorView(500, "server_error", "internal_error", None, "internal error")
    kind = _TYPES.get(fault.status) or ("invalid_request_error" if fault.status < 500 else "server_error")
    param = getattr(fault, "param", None)
    return ErrorView(
        fault.status,
        kind,
        fault.code,
        param if param is None else _shortened(param, _SHOWN_PARAM_CHARS),
        _shortened(fault.message, _SHOWN_MESSAGE_CHARS),
    )


def _shortened(text: str, limit: int) -> str:
    """A client's own words may stand in it, and there is no end to them."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def error_body(exc: BaseException) -> bytes:
    """The OpenAI-shaped JSON body of an exception."""
    view = error_view(exc)
    error = {"message": view.message, "type": view.type, "param": view.param, "code": view.code}
    return json.dumps({"error": error}, separators=(",", ":")).encode("ascii")


def error_headers(exc: BaseException) -> Headers:
    """The headers that belong to an exception, whatever the API's body shape."""
    fault = _find_fault(exc)
    headers = [("content-type", "application/json"), ("x-smg-error-code", error_view(exc).code)]
    if isinstance(fault, Overloaded):
        # HTTP knows whole seconds only; 0 would invite an immediate retry.
        headers.append(("retry-after", str(max(1, math.ceil(fault.retry_after_s)))))
    if fault is not None:
        headers += fault.headers.items()
    return headers


def error_response(exc: BaseException) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an answer that fails before its first byte."""
    return error_view(exc).status, error_headers(exc), error_body(exc)


def error_event(exc: BaseException) -> bytes:
    """The SSE event of an answer that fails after its first byte; ``[DONE]`` follows it."""
    return data_event(error_body(exc))


def _find_fault(exc: BaseException) -> SmgError | None:
    if isinstance(exc, SmgError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((fault for leaf in exc.exceptions if (fault := _find_fault(leaf))), None)
    return None


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedJson(f"The request body is not valid JSON: {name} is not a JSON value.")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)
decode_json = _decoder.decode
"""JSON text to values, as `json.loads`, but without its NaN and Infinity (`MalformedJson`)."""


def load_json(body: bytes) -> dict[str, Any]:
    """Read a request body.

    UTF-8 (a byte order mark is skipped); ``NaN`` and ``Infinity`` are refused; of duplicate keys the last
    wins; at most `MAX_DEPTH` levels; no lone surrogates (no tokenizer and no wire can carry them). Heavy
    bodies (`heavy_json.is_heavy`) belong into a thread.

    Raises:
        MalformedJson: for anything that is not such a JSON object.
        TooManyValues: for one of more values than fit.
    """
    heavy = is_heavy(body)
    if heavy:
        check_counts(body)
    try:
        text = body.decode("utf-8").removeprefix("\ufeff")
        loaded = decode_heavy(text, _decoder, MAX_DEPTH) if heavy else decode_json(text)
    except UnicodeDecodeError as exc:
        raise MalformedJson("The request body is not valid UTF-8.") from exc
    except json.JSONDecodeError as exc:
        raise MalformedJson(f"The request body is not valid JSON: {exc}.") from exc
    except RecursionError as exc:
        raise MalformedJson("The request body is nested too deeply.") from exc
    except ValueError as exc:  # an integer of more digits than Python converts
        raise MalformedJson("The request body is not valid JSON: a number is too long.") from exc
    if not isinstance(loaded, dict):
        raise MalformedJson("The request body must be a JSON object.")
    if (heavy or body.count(b"[") + body.count(b"{") > MAX_DEPTH) and nests_deeper(loaded, MAX_DEPTH):
        raise MalformedJson("The request body is nested too deeply.")
    if contains(body, b"\\ud", b"\\uD") if heavy else b"\\ud" in body or b"\\uD" in body:
        _refuse_lone_surrogates(loaded)
    return loaded


def nests_deeper(value: object, limit: int) -> bool:
    """Whether arrays and objects nest more than ``limit`` levels. Walks level by level, so never recurses."""
    level = _children([value])
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return bool(level)


def _children(node: dict[str, Any] | list[Any]) -> list[Any]:
    values = node.values() if isinstance(node, dict) else node
    return [child for child in values if isinstance(child, (dict, list))]


def _refuse_lone_surrogates(loaded: dict[str, Any]) -> None:
    # Text after text, so that other threads get their turn; a key is a text too.
    pending: list[Any] = [loaded]
    try:
        while pending:
            node = pending.pop()
            if isinstance(node, str):
                if not node.isascii():
                    for start in range(0, len(node), _ENCODED_AT_ONCE):
                        node[start : start + _ENCODED_AT_ONCE].encode("utf-8")
            elif isinstance(node, dict):
                pending.extend(node)
                pending.extend(node.values())
            elif isinstance(node, list):
                pending.extend(node)
    except UnicodeEncodeError as exc:
        raise MalformedJson("The request body holds a lone surrogate, which is not text.") from exc
