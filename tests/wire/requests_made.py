"""Requests for the tests of this room."""

from __future__ import annotations

from typing import Any

from smg_trio.core.engines import EngineInfo
from smg_trio.core.errors import ClientFault
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.wire.codec import EngineCodec

INFO = EngineInfo(max_model_len=100, supports_lora=True)
VOCAB = 50


def asked(changes: dict[str, Any] | None = None, /, **fields: Any) -> GenerationRequest:
    """A small valid request with some sampling values and some fields changed."""
    base: dict[str, Any] = {
        "request_id": "r",
        "prompt_token_ids": [1, 2, 3],
        "sampling": SamplingParams(**{"max_tokens": 16, **(changes or {})}),
    }
    return GenerationRequest(**{**base, **fields})


def refusal(codec: EngineCodec, request: GenerationRequest) -> ClientFault | None:
    """The fault a codec finds in a request, if it finds one."""
    try:
        codec.check(request, INFO, VOCAB)
    except ClientFault as fault:
        return fault
    return None
