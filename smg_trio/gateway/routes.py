"""The table of all endpoints: what is served where, to whom, and what is mounted in front of Quart."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from smg_trio import __version__
from smg_trio.api.anthropic.errors import messages_error_response
from smg_trio.api.errors import Headers, error_response, error_view
from smg_trio.api.openapi import Operation, openapi_document
from smg_trio.api.worker_specs import worker_error_response
from smg_trio.gateway.endpoints import (
    chat,
    completions,
    conversations,
    dashboard,
    engine_admin,
    generate,
    messages,
    models,
    parsing,
    pooling,
    probes,
    responses,
    server_info,
    tokenization,
    workers,
)
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.security.key_ring import Access
from smg_trio.gateway.state import Gateway

Endpoint = Callable[[Gateway, Request], Awaitable[Response]]
Failure = Callable[[BaseException, str | None], tuple[int, Headers, bytes]]


def openai_failure(error: BaseException, request_id: str | None) -> tuple[int, Headers, bytes]:
    """OpenAI's error shape, which does not repeat the request id."""
    return error_response(error)


def _worker_failure(error: BaseException, request_id: str | None) -> tuple[int, Headers, bytes]:
    """The reference's own shape, but for who may not ask at all: that looks the same everywhere."""
    return error_response(error) if error_view(error).status in (401, 403) else worker_error_response(error)


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    Attributes:
        path: with parameters in Quart's notation, ``/workers/<worker_id>``.
        public: served without a key. Everything else needs one where keys are set.
        access: whose keys open it, if it is not public.
        metered: counts towards the limits of a key, from its head to the end of its answer. All that have the gateway
            read, tokenize, generate or store; not what looks at kept things, or ends them, while others are in flight.
        hot: also mounted on bare ASGI, where a request costs a fraction.
        failure: the API's error shape: (exception, request id) -> status, headers, body.
    """

    method: str
    path: str
    endpoint: Endpoint
    public: bool = False
    access: Access = Access.MODELS
    metered: bool = False
    hot: bool = False
    failure: Failure = openai_failure

    @property
    def managing(self) -> bool:
        """About workers or engines as a whole: where there are several processes, one of them answers it for all."""
        return self.access in (Access.ADMIN, Access.LOOK)

    @property
    def takes_body(self) -> bool:
        """Whether a request's body is read at all."""
        return self.method in _WITH_BODY and not self.public


_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


_DASHBOARD_PATH: Final = "/dashboard"
_METRICS_PATH: Final = "/metrics"
WEBSOCKET_PATHS: Final = frozenset({"/v1/responses", "/dashboard/feed"})


async def openapi(gateway: Gateway, request: Request) -> Response:
    """The OpenAPI document."""
    settings = gateway.settings
    return json_response(_document(dashboard=settings.dashboard, metrics=settings.metrics_on_port))


@cache
def _document(*, dashboard: bool, metrics: bool) -> bytes:
    operations = map(operation, served_routes(dashboard=dashboard, metrics=metrics))
    return json.dumps(openapi_document(operations, version=__version__)).encode()


def operation(route: Route) -> Operation:
    """What the API's document says of an endpoint."""
    summary = (route.endpoint.__doc__ or "").partition("\n")[0]
    return Operation(
        method=route.method,
        path=route.path,
        summary=summary,
        public=route.public,
        error=_ERROR_SCHEMAS.get(route.failure, "Error"),
    )


_ERROR_SCHEMAS = {
    messages_error_response: "MessagesError",
    parsing.parse_failure: "ParseError",
    _worker_failure: "WorkerError",
}


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", chat.chat_completions, metered=True, hot=True),
    Route("POST", "/v1/chat/completions/batch", chat.chat_batch, metered=True),
    Route("POST", "/v1/completions", completions.completions, metered=True, hot=True),
    Route("POST", "/v1/messages", messages.messages, metered=True, hot=True, failure=messages_error_response),
    Route("POST", "/v1/messages/count_tokens", messages.count_tokens, metered=True, failure=messages_error_response),
    Route("POST", "/v1/responses", responses.create_response, metered=True, hot=True),
    Route("GET", "/v1/responses/<response_id>", responses.get_response),
    Route("DELETE", "/v1/responses/<response_id>", responses.delete_response),
    Route("POST", "/v1/responses/<response_id>/cancel", responses.cancel_response),
    Route("GET", "/v1/responses/<response_id>/input_items", responses.list_input_items),
    Route("POST", "/v1/conversations", conversations.create_conversation, metered=True),
    Route("GET", "/v1/conversations/<conversation_id>", conversations.get_conversation),
    Route("POST", "/v1/conversations/<conversation_id>", conversations.update_conversation, metered=True),
    Route("DELETE", "/v1/conversations/<conversation_id>", conversations.delete_conversation),
    Route("GET", "/v1/conversations/<conversation_id>/items", conversations.list_items),
    Route("POST", "/v1/conversations/<conversation_id>/items", conversations.add_items, metered=True),
    Route("GET", "/v1/conversations/<conversation_id>/items/<item_id>", conversations.get_item),
    Route("DELETE", "/v1/conversations/<conversation_id>/items/<item_id>", conversations.delete_item),
    Route("GET", "/v1/models", models.models, access=Access.ANY_KEY),
    Route("GET", "/v1/models/<path:model>", models.model, access=Access.ANY_KEY),
    Route("POST", "/generate", generate.generate, metered=True, hot=True),
    Route("POST", "/v1/embeddings", pooling.embeddings, metered=True, hot=True),
    Route("POST", "/v1/score", pooling.score, metered=True),
    Route("POST", "/score", pooling.score, metered=True),
    Route("POST", "/v1/rerank", pooling.rerank, metered=True),
    Route("POST", "/v2/rerank", pooling.rerank, metered=True),
    Route("POST", "/rerank", pooling.rerank, metered=True),
    Route("POST", "/classify", pooling.classify, metered=True),
    Route("POST", "/v1/classify", pooling.classify, metered=True),
    Route("POST", "/tokenize", tokenization.tokenize, metered=True),
    Route("POST", "/detokenize", tokenization.detokenize, metered=True),
    Route("GET", "/tokenizer_info", tokenization.tokenizer_info),
    Route("POST", "/v1/tokenize", tokenization.tokenize_texts, metered=True),
    Route("POST", "/v1/detokenize", tokenization.detokenize_batch, metered=True),
    Route("POST", "/parse/function_call", parsing.parse_function_call, metered=True, failure=parsing.parse_failure),
    Route("POST", "/parse/reasoning", parsing.parse_reasoning, metered=True, failure=parsing.parse_failure),
    Route("POST", "/v1/parse/function_call", parsing.parse_function_call, metered=True, failure=parsing.parse_failure),
    Route("POST", "/v1/parse/reasoning", parsing.parse_reasoning, metered=True, failure=parsing.parse_failure),
    Route("POST", "/flush_cache", engine_admin.flush_cache, access=Access.ADMIN),
    Route("POST", "/reset_prefix_cache", engine_admin.reset_prefix_cache, access=Access.ADMIN),
    Route("POST", "/reset_mm_cache", engine_admin.reset_mm_cache, access=Access.ADMIN),
    Route("POST", "/reset_encoder_cache", engine_admin.reset_encoder_cache, access=Access.ADMIN),
    Route("POST", "/sleep", engine_admin.sleep, access=Access.ADMIN),
    Route("POST", "/wake_up", engine_admin.wake_up, access=Access.ADMIN),
    Route("GET", "/is_sleeping", engine_admin.is_sleeping, access=Access.LOOK),
    Route("POST", "/pause", engine_admin.pause, access=Access.ADMIN),
    Route("POST", "/resume", engine_admin.resume, access=Access.ADMIN),
    Route("GET", "/is_paused", engine_admin.is_paused, access=Access.LOOK),
    Route("POST", "/start_profile", engine_admin.start_profile, access=Access.ADMIN),
    Route("POST", "/stop_profile", engine_admin.stop_profile, access=Access.ADMIN),
    Route("POST", "/v1/load_lora_adapter", engine_admin.load_lora_adapter, access=Access.ADMIN),
    Route("POST", "/v1/unload_lora_adapter", engine_admin.unload_lora_adapter, access=Access.ADMIN),
    Route("GET", "/get_model_info", server_info.model_info, access=Access.ANY_KEY),
    Route("GET", "/get_server_info", server_info.server_info, access=Access.LOOK),
    Route("GET", "/server_info", server_info.server_info, access=Access.LOOK),
    Route("GET", "/v1/loads", server_info.loads, access=Access.LOOK),
    Route("GET", "/get_loads", server_info.loads, access=Access.LOOK),
    Route("GET", "/load", server_info.server_load, access=Access.LOOK),
    Route("GET", "/openapi.json", openapi, access=Access.ANY_KEY),
    Route("GET", "/version", server_info.show_version, access=Access.ANY_KEY),
    Route("GET", "/ping", server_info.ping, public=True),
    Route("POST", "/ping", server_info.ping, public=True),
    Route("GET", "/workers", workers.list_workers, access=Access.LOOK, failure=_worker_failure),
    Route("POST", "/workers", workers.add_worker, access=Access.ADMIN, failure=_worker_failure),
    Route("GET", "/workers/<worker_id>", workers.show_worker, access=Access.LOOK, failure=_worker_failure),
    Route("PUT", "/workers/<worker_id>", workers.replace_worker, access=Access.ADMIN, failure=_worker_failure),
    Route("PATCH", "/workers/<worker_id>", workers.change_worker, access=Access.ADMIN, failure=_worker_failure),
    Route("DELETE", "/workers/<worker_id>", workers.remove_worker, access=Access.ADMIN, failure=_worker_failure),
    Route("GET", _METRICS_PATH, server_info.metrics, access=Access.LOOK),
    Route("GET", _DASHBOARD_PATH, dashboard.dashboard, public=True),
    Route("GET", "/health", probes.liveness, public=True),
    Route("GET", "/liveness", probes.liveness, public=True),
    Route("GET", "/readiness", probes.readiness, public=True),
)


@cache
def served_routes(*, dashboard: bool, metrics: bool) -> tuple[Route, ...]:
    """The routes of a gateway with or without the live page, and metrics on the HTTP port."""
    missing = {path for path, there in ((_DASHBOARD_PATH, dashboard), (_METRICS_PATH, metrics)) if not there}
    return tuple(route for route in ROUTES if route.path not in missing)


def find_route(method: str, path: str) -> Route | None:
    """The route that serves a request, for those who answer in its place; None if there is none."""
    return next((route for pattern, route in _patterns().get(method, ()) if pattern.fullmatch(path)), None)


@cache
def _patterns() -> dict[str, list[tuple[re.Pattern[str], Route]]]:
    found: dict[str, list[tuple[re.Pattern[str], Route]]] = {}
    for route in ROUTES:
        parts = _PARAMETER.split(route.path)
        # Every second part is the kind of a parameter: a path may hold slashes, anything else may not.
        pattern = "".join(
            re.escape(part or "") if index % 2 == 0 else ".+" if part else "[^/]+" for index, part in enumerate(parts)
        )
        found.setdefault(route.method, []).append((re.compile(pattern), route))
    return found


_PARAMETER: Final = re.compile(r"<(path:)?\w+>")
