"""What requests for pooled outputs of prompts (embeddings, classes) share, and the frame of their answers.

A prompt is that of a completion or a conversation; what tokenizes these tokenizes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.chat.request import ChatRequest, chat_request_from, read_request_id, refuse_media_options
from smg_trio.api.openai.completions.request import CompletionRequest, parse_prompts
from smg_trio.api.parameters.fields import Reader, boolean, integer, read_fields, refuse, string, within
from smg_trio.api.parameters.sampling import parse_sampling
from smg_trio.core.requests import PoolingParams

if TYPE_CHECKING:
    from smg_trio.api.parameters.limits import RequestLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingRequest:
    """A validated request; exactly one of ``completion`` (prompts) and ``chat`` (one conversation) is set.

    Attributes:
        pooling: what the engine is asked for; every prompt gets its own engine request.
    """

    model: str
    pooling: PoolingParams
    completion: CompletionRequest | None = None
    chat: ChatRequest | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingAnswer:
    """What answers have in common; ``prompt_tokens`` counts all inputs together."""

    response_id: str
    model: str
    created: int
    prompt_tokens: int


def pooling_request(obj: Mapping[str, Any], limits: RequestLimits, task: str) -> PoolingRequest:
    """Read what all requests for pooled outputs of prompts share.

    Raises:
        InvalidRequest: naming the parameter.
        UnsupportedFeature: for media.
    """
    found = read_fields(obj, READERS)
    if "normalize" in obj:
        raise refuse("normalize", "was removed; use 'use_activation' instead")
    pooling = PoolingParams(task=task, dimensions=found.get("dimensions"), use_activation=found.get("use_activation"))
    model, request_id = found.get("model", ""), found.get("request_id")
    if (obj.get("input") is None) == (obj.get("messages") is None):
        raise refuse("input", "exactly one of 'input' and 'messages' is required")
    if obj.get("messages") is not None:
        chat = chat_request_from({"add_generation_prompt": False, **obj}, limits)
        return PoolingRequest(model=model, pooling=pooling, chat=chat, request_id=request_id)
    refuse_media_options(obj)
    completion = CompletionRequest(
        model=model,
        prompts=parse_prompts(obj["input"], limits, "input"),
        sampling=parse_sampling(pooling_settings(obj), limits, logprobs=None),
        add_special_tokens=found.get("add_special_tokens", True),
    )
    return PoolingRequest(model=model, pooling=pooling, completion=completion, request_id=request_id)


def pooling_settings(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that `parse_sampling` reads."""
    return {name: obj[name] for name in SETTINGS if name in obj}


def pooling_usage(prompt_tokens: int) -> dict[str, Any]:
    """The ``usage`` object of answers without generated tokens."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


def list_body(answer: PoolingAnswer, data: Sequence[Mapping[str, Any]]) -> bytes:
    """The frame of all these answers but rerank's; ``data`` gets its indices here."""
    value = {
        "id": answer.response_id,
        "object": "list",
        "created": answer.created,
        "model": answer.model,
        "data": [{"index": index, **entry} for index, entry in enumerate(data)],
        "usage": pooling_usage(answer.prompt_tokens),
    }
    return encode_text(dump(value))


SETTINGS = ("truncate_prompt_tokens", "truncation_side", "priority", "cache_salt")
READERS: dict[str, Reader] = {
    "model": string,
    "request_id": read_request_id,
    "dimensions": within(integer, 1),
    "use_activation": boolean,
    "add_special_tokens": boolean,
}
