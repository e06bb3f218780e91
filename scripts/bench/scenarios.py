"""The loads that are measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One kind of load.

    Attributes:
        name: for tables and ``--scenarios``.
        connections: kept busy by the client; a connection sends its next request when the last is answered.
        requests: in all; equal to `connections` for streams, which then begin together.
        max_tokens: of each answer, which has exactly that many.
        stream: whether answers are streamed.
        step_ms: the engine gives each running sequence one token per step.
        prompt_words: about as many tokens, different words in each request.
        asks: further fields of the request.
    """

    name: str
    connections: int
    requests: int
    max_tokens: int
    stream: bool
    step_ms: float
    prompt_words: int = 32
    asks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paced(self) -> bool:
        """Whether the engine sets the pace, so that CPU per token and times tell more than throughput."""
        return self.max_tokens > 1


def scenarios(tokens: int, requests: int, *, short: bool) -> list[Scenario]:
    """All of them, or the three of the short form.

    Args:
        tokens: per streamed answer.
        requests: number of one-token requests.
    """
    streams = [_streams(count, tokens) for count in ((32, 128) if short else (1, 32, 128, 256, 512))]
    one_token = _one_token("one-token", 64, requests)
    if short:
        return [*streams, one_token]
    return [
        *streams,
        one_token,
        _one_token("one-token-sse", 64, requests, stream=True),
        _one_token("prompt-1k", 16, max(16, requests // 20), prompt_words=1000),
        _one_token("prompt-32k", 4, max(4, requests // 200), prompt_words=32000),
        replace(_streams(1024, tokens), step_ms=20),
        *(replace(_streams(128, tokens), name=f"{name}-128", asks=asks) for name, asks in _FEATURES.items()),
    ]


_FEATURES: dict[str, dict[str, Any]] = {
    "stops": {"stop": ["###", "\n\nUser:"]},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "logprobs": {"logprobs": True, "top_logprobs": 5},
}
"""What makes a token pass through more than the detokenizer."""


def _streams(count: int, tokens: int) -> Scenario:
    return Scenario(
        name=f"streams-{count}", connections=count, requests=count, max_tokens=tokens, stream=True, step_ms=10
    )


def _one_token(name: str, clients: int, requests: int, *, stream: bool = False, prompt_words: int = 32) -> Scenario:
    return Scenario(
        name=name,
        connections=clients,
        requests=requests,
        max_tokens=1,
        stream=stream,
        step_ms=1,
        prompt_words=prompt_words,
    )
