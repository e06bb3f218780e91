"""What is read of a request body that is relayed: the model, a few figures, what prompts are told apart by. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from smg_trio.api.errors import load_json
from smg_trio.core.errors import InvalidRequest

MAX_ROUTING_BYTES: Final = 64 * 1024
_ROUTED_ON: Final = (
    "system", "instructions", "tools", "messages", "prompt", "input", "text", "input_ids", "query", "documents",
    "text_1", "text_2",
)  # fmt: skip
"""Fields of a body that make its prompt, in the order in which templates put them."""
_ASKED: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_SPACE: Final = " \t\n\r"


@dataclass(frozen=True, slots=True)
class RelayBody:
    """A request body, read as far as the gateway has to.

    Attributes:
        model: as the client wrote it; "" for none.
        stream: server-sent events are asked for.
        asked_tokens: the most tokens that may be generated, as far as it says so.
        value: all of it.
    """

    model: str
    stream: bool
    asked_tokens: int
    value: dict[str, Any]


def read_body(body: bytes) -> RelayBody:
    """Read a body. Raises InvalidRequest for what is no JSON object or has no name as its model."""
    value = load_json(body)
    model = value.get("model")
    if model is not None and not isinstance(model, str):
        raise InvalidRequest("Invalid value for 'model': expected a string.", param="model")
    sampling = value.get("sampling_params")  # SGLang's /generate
    figures = [value.get(name) for name in _ASKED]
    figures.append(sampling.get("max_new_tokens") if isinstance(sampling, dict) else None)
    asked = next((one for one in figures if isinstance(one, int) and one > 0), 0)
    return RelayBody(model or "", value.get("stream") is True, asked, value)


def routing_text(model: str, value: dict[str, Any]) -> bytes:
    """What requests are told apart by: the model and what makes the prompt, parted by zero bytes, at most 64 KiB."""
    size, parts = 0, []
    for part in _parts(model, value):
        data = part.encode("utf-8", "replace")
        parts.append(data)
        size += len(data) + 1
        if size >= MAX_ROUTING_BYTES:
            break
    return b"\0".join(parts)[:MAX_ROUTING_BYTES]


def _parts(model: str, value: dict[str, Any]) -> Iterator[str]:
    yield model
    for name in _ROUTED_ON:
        found = value.get(name)
        if isinstance(found, list):
            for item in found:
                yield from _message(item)
        elif found is not None:
            yield found if isinstance(found, str) else json.dumps(found)


def _message(item: Any) -> Iterator[str]:
    if isinstance(item, dict) and isinstance(item.get("content"), str):
        yield str(item.get("role"))
        yield item["content"]
    else:
        yield item if isinstance(item, str) else json.dumps(item)


def with_model(body: bytes, model: str) -> bytes:
    """The body with another model's name; everything else stays as it is, byte for byte.

    `body` is one that `read_body` has taken, and names a model.
    """
    text = body.decode("utf-8")
    span = _model_span(text)
    if span is None:
        return body
    start, end = span
    return (text[:start] + json.dumps(model, ensure_ascii=False) + text[end:]).encode("utf-8")


def _model_span(text: str) -> tuple[int, int] | None:
    """Where the value of the last ``model`` of the outermost object is: the one that counts."""
    decoder = json.JSONDecoder()
    found = None
    at = text.index("{") + 1
    while True:
        at = _skip(text, at, "," + _SPACE)
        if text[at] == "}":
            return found
        key, at = decoder.raw_decode(text, at)
        start = _skip(text, at, ":" + _SPACE)
        _, at = decoder.raw_decode(text, start)
        if key == "model":
            found = start, at


def _skip(text: str, at: int, what: str) -> int:
    while text[at] in what:
        at += 1
    return at
