"""Which endpoints are relayed, and how; what is missing here is answered by the gateway itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from smg_trio.api.anthropic.errors import messages_error_event
from smg_trio.api.anthropic.models import ANTHROPIC_MODELS
from smg_trio.gateway.relay.dispatch import Relay, RelayKind, relaying
from smg_trio.gateway.relay.responses import create_response, kept_response

_CHAT = relaying(RelayKind(endpoint="chat"))
_MESSAGES = RelayKind(endpoint="messages", stands_in_for=ANTHROPIC_MODELS, failed=messages_error_event)
_COUNT_TOKENS = RelayKind(endpoint="count_tokens", generation=False, stands_in_for=ANTHROPIC_MODELS)
_TOKENIZE = relaying(RelayKind(endpoint="tokenize", generation=False))
_SCORE = relaying(RelayKind(endpoint="score", pooled=True))
_RERANK = relaying(RelayKind(endpoint="rerank", pooled=True))
_CLASSIFY = relaying(RelayKind(endpoint="classify", pooled=True))

RELAYS: Final[Mapping[tuple[str, str], Relay]] = MappingProxyType(
    {
        ("POST", "/v1/chat/completions"): _CHAT,
        ("POST", "/v1/chat/completions/batch"): _CHAT,
        ("POST", "/v1/completions"): relaying(RelayKind(endpoint="completions")),
        ("POST", "/v1/messages"): relaying(_MESSAGES),
        ("POST", "/v1/messages/count_tokens"): relaying(_COUNT_TOKENS),
        ("POST", "/v1/responses"): create_response,
        ("GET", "/v1/responses/<response_id>"): kept_response,
        ("DELETE", "/v1/responses/<response_id>"): kept_response,
        ("POST", "/v1/responses/<response_id>/cancel"): kept_response,
        ("GET", "/v1/responses/<response_id>/input_items"): kept_response,
        ("POST", "/generate"): relaying(RelayKind(endpoint="generate")),
        ("POST", "/v1/embeddings"): relaying(RelayKind(endpoint="embeddings", pooled=True)),
        ("POST", "/v1/score"): _SCORE,
        ("POST", "/score"): _SCORE,
        ("POST", "/v1/rerank"): _RERANK,
        ("POST", "/v2/rerank"): _RERANK,
        ("POST", "/rerank"): _RERANK,
        ("POST", "/classify"): _CLASSIFY,
        ("POST", "/v1/classify"): _CLASSIFY,
        ("POST", "/tokenize"): _TOKENIZE,
        ("POST", "/detokenize"): _TOKENIZE,
    }
)
"""By method and path of the route."""
