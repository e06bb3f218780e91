"""The table of all endpoints: what is served where, to whom, and what is mounted in front of Quart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from smg_trio.gateway.endpoints import chat, completions, models, probes, tokenization, workers
from smg_trio.gateway.http import Request, Response
from smg_trio.gateway.state import Gateway

Endpoint = Callable[[Gateway, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    Attributes:
        path: with parameters in Quart's notation, ``/workers/<worker_id>``.
        public: served without a key. Everything else needs one where keys are set.
        hot: also mounted on bare ASGI, where a request costs a fraction.
    """

    method: str
    path: str
    endpoint: Endpoint
    public: bool = False
    hot: bool = False


ROUTES = (
    Route("POST", "/v1/chat/completions", chat.chat_completions, hot=True),
    Route("POST", "/v1/completions", completions.completions, hot=True),
    Route("GET", "/v1/models", models.models),
    Route("GET", "/v1/models/<path:model>", models.model),
    Route("POST", "/tokenize", tokenization.tokenize),
    Route("POST", "/detokenize", tokenization.detokenize),
    Route("POST", "/v1/tokenize", tokenization.tokenize_texts),
    Route("POST", "/v1/detokenize", tokenization.detokenize_batch),
    Route("GET", "/workers", workers.workers),
    Route("GET", "/workers/<worker_id>", workers.worker),
    Route("GET", "/health", probes.liveness, public=True),
    Route("GET", "/liveness", probes.liveness, public=True),
    Route("GET", "/readiness", probes.readiness, public=True),
)
