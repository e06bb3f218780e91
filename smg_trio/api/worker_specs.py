"""Bodies of the worker API: what ``POST``, ``PUT`` and ``PATCH /workers`` are told, and what they answer.

Field names, statuses and texts are the reference gateway's; unknown keys are ignored. What a body says wrongly is
refused immediately (400). What is well formed but no ZMQ worker can be is refused by `worker_spec` (which the gateway
calls in the background, after 202), so that ``GET /workers/{id}`` can show the reason.

Errors of the worker API have a shape of their own: ``{"error": "<text>", "code": "BAD_REQUEST"}``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from smg_trio.api.errors import error_headers, error_view, load_json
from smg_trio.api.parameters.fields import (
    INT64_MAX,
    Reader,
    described,
    filled_string,
    integer,
    mapping,
    number,
    object_schema,
    one_of,
    read_fields,
    string,
    within,
)
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import ConfigError, InvalidRequest
from smg_trio.core.http_addresses import is_http_url
from smg_trio.core.workers import (
    BreakerOverrides,
    HealthOverrides,
    OverloadOverrides,
    RetryOverrides,
    WorkerPatch,
    WorkerSpec,
)
from smg_trio.settings.checks import check_worker_url

RUNTIME_TYPES = ("unspecified", "sglang", "vllm", "trtllm", "mlx", "tokenspeed", "generic", "external")
WORKER_TYPES = ("regular", "prefill", "decode", "encode")
BREAKER_NAMES = {
    "cb_failure_threshold": "failure_threshold",
    "cb_success_threshold": "success_threshold",
    "cb_timeout_duration_secs": "timeout_duration_secs",
    "cb_window_duration_secs": "window_duration_secs",
    "disable_circuit_breaker": "disabled",
}
RETRY_NAMES = {
    "max_retries": "max_retries",
    "initial_backoff_ms": "initial_backoff_ms",
    "max_backoff_ms": "max_backoff_ms",
    "backoff_multiplier": "backoff_multiplier",
    "jitter_factor": "jitter_factor",
    "disable_retry": "disabled",
}
"""What ``resilience`` has → attributes of `BreakerOverrides` and `RetryOverrides`."""
MAX_ENGINES = 65536
"""An engine's identity is its index in two bytes."""

_MODEL_NAMES = ("served_model_name", "model_id")
_CODES = {404: "WORKER_NOT_FOUND", 409: "WORKER_ALREADY_EXISTS"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBody:
    """A worker as an operator describes it; None where nothing was said.

    Attributes:
        runtime_type: None for none or ``unspecified``; then it is vLLM, with a warning (`runtime_warning`).
        named_model: what the body itself calls the model, apart from its labels.
    """

    url: str
    runtime_type: str | None = None
    worker_type: str = "regular"
    engine_count: int = 1
    handshake_address: str | None = None
    advertise_host: str | None = None
    named_model: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 50
    cost: float = 1.0
    api_key: str | None = field(default=None, repr=False)
    health: HealthOverrides = field(default_factory=HealthOverrides)
    overload: OverloadOverrides = field(default_factory=OverloadOverrides)
    breaker: BreakerOverrides = field(default_factory=BreakerOverrides)
    retry: RetryOverrides = field(default_factory=RetryOverrides)

    @property
    def model_id(self) -> str | None:
        """The model's id: of the labels served_model_name, model_id, model_path, else what the body names."""
        for label in (*_MODEL_NAMES, "model_path"):
            if self.labels.get(label):
                return self.labels[label]
        return self.named_model


def parse_worker_body(body: bytes) -> WorkerBody:
    """The body of ``POST /workers`` and ``PUT /workers/{id}``. Raises InvalidRequest."""
    loaded = load_json(body)
    if loaded.get("url") is None:
        raise InvalidRequest("missing field `url`", param="url")
    found = _read(loaded, BODY_READERS)
    _check_url(found["url"])
    models = found.pop("models", None)
    runtime = found.pop("runtime", None)
    named = found.pop("model_id", None) or models
    if found.get("runtime_type") is None and runtime is not None:
        found["runtime_type"] = runtime
    if found.get("runtime_type") == "unspecified":
        del found["runtime_type"]
    renamed = {_NAMES.get(name, name): value for name, value in found.items()}
    return WorkerBody(named_model=named, **renamed)


def parse_worker_patch(body: bytes) -> WorkerPatch:
    """The body of ``PATCH /workers/{id}``. Raises InvalidRequest."""
    return WorkerPatch(**_read(load_json(body), PATCH_READERS))


def parse_worker_id(worker_id: str) -> str:
    """The id of a path, in its usual spelling. Raises InvalidRequest if it is no UUID."""
    try:
        return str(UUID(worker_id))
    except ValueError as error:
        raise InvalidRequest(f"Invalid worker_id '{worker_id}' (expected UUID). Error: {error}") from None


def check_same_url(current: str, asked: str) -> None:
    """``PUT`` cannot move a worker. Raises InvalidRequest."""
    if current != asked:
        raise InvalidRequest(
            f"URL mismatch: worker has URL '{current}' but request body has '{asked}'. URL changes are not supported "
            "via PUT. Use DELETE + POST instead."
        )


def check_same_model(spec: WorkerSpec, labels: Mapping[str, str]) -> None:
    """``PATCH`` cannot make a worker serve another model. Raises InvalidRequest."""
    for label in _MODEL_NAMES:
        name = labels.get(label, spec.model_id)
        if name not in (spec.model_id, spec.labels.get(label)):
            raise InvalidRequest(
                f"Label '{label}' would rename the model '{spec.model_id}' of worker {spec.url} to '{name}', which "
                "PATCH does not do. Use PUT instead.",
                param=f"labels.{label}",
            )


def worker_spec(
    body: WorkerBody,
    worker_id: str,
    *,
    model_id: str | None,
    default_protocol: EngineProtocol | None = None,
    vocab_size: int | None = None,
    tool_parsers: Collection[str] | None = None,
    reasoning_parsers: Collection[str] | None = None,
) -> WorkerSpec:
    """The worker that a body describes.

    Args:
        body: from `parse_worker_body`.
        worker_id: its id.
        model_id: the gateway's own model, for a body that names none.
        default_protocol: what `--backend` says, for a body that names no runtime.
        vocab_size: of the model's tokenizer.
        tool_parsers, reasoning_parsers: names that labels may use; None leaves them unchecked.

    Raises InvalidRequest with the reference's text for what no ZMQ worker can be; with words of its own for what no
    worker behind HTTP can be.
    """
    if is_http_url(body.url):
        return _http_spec(body, worker_id)
    model = body.model_id or model_id
    if not model:
        raise InvalidRequest(
            f"ZMQ worker {body.url} has no model identity: EngineCore does not report a served model name, so "
            "--model-path (or a model_id label) is required"
        )
    _check_type(body)
    check_parser_labels(body.url, body.labels, model, tool_parsers, reasoning_parsers)
    return WorkerSpec(
        worker_id=worker_id,
        url=body.url,
        model_id=model,
        protocol=_protocol(body, default_protocol),
        engine_count=body.engine_count,
        handshake_address=body.handshake_address,
        advertise_host=body.advertise_host,
        vocab_size=vocab_size,
        labels=body.labels,
        priority=body.priority,
        cost=body.cost,
        api_key=body.api_key,
        health=body.health,
        overload=body.overload,
        breaker=body.breaker,
        retry=body.retry,
    )


def _http_spec(body: WorkerBody, worker_id: str) -> WorkerSpec:
    """A worker behind HTTP: without a model of its own it says itself what it serves."""
    if body.worker_type != "regular":
        raise InvalidRequest(
            f"HTTP worker {body.url} cannot serve worker type {body.worker_type}: encode/prefill/decode disaggregation "
            "over HTTP is not supported; leave worker_type out"
        )
    zmq_only = (
        ("zmq_handshake_address", body.handshake_address),
        ("zmq_advertise_host", body.advertise_host),
        ("dp_size", body.engine_count > 1),
    )
    for name, given in zmq_only:
        if given:
            raise InvalidRequest(f"HTTP worker {body.url} takes no {name}: its engines are its server's matter")
    return WorkerSpec(
        worker_id=worker_id,
        url=body.url,
        model_id=body.model_id or "",
        labels=body.labels,
        priority=body.priority,
        cost=body.cost,
        api_key=body.api_key,
        health=body.health,
        overload=body.overload,
        breaker=body.breaker,
    )


def runtime_warning(body: WorkerBody, default_protocol: EngineProtocol | None) -> str:
    """What to log about a body whose engine protocol is a guess; empty if it is not."""
    if is_http_url(body.url):
        return ""
    if body.runtime_type is not None or default_protocol is not None:
        return ""
    return (
        "runtime_type unspecified for ZMQ worker; defaulting to vLLM EngineCore. A TokenSpeed engine must declare its "
        f"runtime to speak the correct wire protocol: set runtime_type to tokenspeed for {body.url} if it is one"
    )


def _protocol(body: WorkerBody, default: EngineProtocol | None) -> EngineProtocol:
    if body.runtime_type is None:
        return default or EngineProtocol.VLLM
    try:
        return EngineProtocol(body.runtime_type)
    except ValueError:
        raise InvalidRequest(
            f"ZMQ worker {body.url} has unsupported runtime {body.runtime_type}: only vllm and tokenspeed are "
            "supported over the ZMQ direct backend"
        ) from None


def _check_type(body: WorkerBody) -> None:
    if body.worker_type != "regular":
        raise InvalidRequest(
            f"ZMQ worker {body.url} cannot serve worker type {body.worker_type}: the direct-ZMQ backend carries no "
            "KV-transfer metadata and has no encode path, so encode/prefill/decode disaggregation requires a gRPC "
            "worker"
        )


def check_parser_labels(
    url: str,
    labels: Mapping[str, str],
    model: str,
    tool_parsers: Collection[str] | None,
    reasoning_parsers: Collection[str] | None,
) -> None:
    """Raises InvalidRequest for a label that names a parser which is not known; None as names leaves it unchecked."""
    for label, known in (("tool_parser", tool_parsers), ("reasoning_parser", reasoning_parsers)):
        name = labels.get(label)
        if name and known is not None and name not in known:
            raise InvalidRequest(f"worker {url} declares unknown {label} '{name}' for model '{model}'")


# ---- answers ----------------------------------------------------------------------------------------------


def accepted_value(worker_id: str, action: str, url: str | None = None) -> dict[str, Any]:
    """The body of a 202. ``action``: addition, update or removal; the answer to an addition also names the ``url``."""
    value = {"status": "accepted", "worker_id": worker_id}
    if url is not None:
        value |= {"url": url, "location": worker_location(worker_id)}
    return value | {"message": f"Worker {action} queued for background processing"}


def worker_location(worker_id: str) -> str:
    """Where a worker can be looked at (`Location` header)."""
    return f"/workers/{worker_id}"


def worker_error_response(exc: BaseException) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers and body of a refusal, in the worker API's own shape."""
    view = error_view(exc)
    fallback = "BAD_REQUEST" if view.status < 500 else "INTERNAL_SERVER_ERROR"
    body = {"error": view.message, "code": _CODES.get(view.status, fallback)}
    return view.status, error_headers(exc), json.dumps(body, separators=(",", ":")).encode("ascii")


# ---- readers ----------------------------------------------------------------------------------------------


def _check_url(url: str) -> None:
    try:
        check_worker_url(url)
    except ConfigError as error:
        raise InvalidRequest(error.problem, param="url") from None


@described({"type": "object", "additionalProperties": {"type": "string"}})
def _labels(value: Any, param: str) -> dict[str, str]:
    return {key: string(item, f"{param}.{key}") for key, item in mapping(value, param).items()}


@described({"type": "array", "items": {"type": "object"}})
def _first_model(value: Any, param: str) -> str | None:
    if not isinstance(value, list):
        raise InvalidRequest(f"Invalid value for '{param}': expected an array.", param=param)
    if not value:
        return None
    card = mapping(value[0], f"{param}[0]")
    return filled_string(card.get("id"), f"{param}[0].id")


@described({"type": "boolean"})
def _strict_boolean(value: Any, param: str) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidRequest(f"Invalid value for '{param}': expected a boolean.", param=param)


_count = within(integer, 1, INT64_MAX)
_seconds = within(number, above=0)
_HEALTH_READERS = {
    "failure_threshold": _count,
    "success_threshold": _count,
    "check_interval_secs": _seconds,
    "timeout_secs": _seconds,
    "disable_health_check": _strict_boolean,
    "drain_settle_secs": within(number, 0),
}
_OVERLOAD_READERS = {"waiting_requests": _count, "token_usage": within(number, maximum=1, above=0)}
_BREAKER_READERS = {
    "cb_failure_threshold": _count,
    "cb_success_threshold": _count,
    "cb_timeout_duration_secs": _seconds,
    "cb_window_duration_secs": _seconds,
    "disable_circuit_breaker": _strict_boolean,
}
_RETRY_READERS = {
    "max_retries": _count,
    "initial_backoff_ms": within(number, 0),
    "max_backoff_ms": within(number, above=0),
    "backoff_multiplier": within(number, 1),
    "jitter_factor": within(number, 0, 1),
    "disable_retry": _strict_boolean,
}


@described(object_schema(_HEALTH_READERS))
def _health(value: Any, param: str) -> HealthOverrides:
    return HealthOverrides(**read_fields(mapping(value, param), _HEALTH_READERS, f"{param}."))


@described(object_schema(_OVERLOAD_READERS))
def _overload(value: Any, param: str) -> OverloadOverrides:
    return OverloadOverrides(**read_fields(mapping(value, param), _OVERLOAD_READERS, f"{param}."))


@described(object_schema(_BREAKER_READERS | _RETRY_READERS))
def _resilience(value: Any, param: str) -> tuple[BreakerOverrides, RetryOverrides]:
    fields = mapping(value, param)
    breaker = read_fields(fields, _BREAKER_READERS, f"{param}.")
    retry = read_fields(fields, _RETRY_READERS, f"{param}.")
    return (
        BreakerOverrides(**{BREAKER_NAMES[name]: setting for name, setting in breaker.items()}),
        RetryOverrides(**{RETRY_NAMES[name]: setting for name, setting in retry.items()}),
    )


def _read(loaded: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    found = read_fields(loaded, readers)
    if "resilience" in found:
        found["breaker"], found["retry"] = found.pop("resilience")
    return found


_runtime_type = one_of(RUNTIME_TYPES)
PATCH_READERS = {
    "priority": within(integer, 0),
    "cost": within(number, 0),
    "labels": _labels,
    "api_key": string,
    "health": _health,
    "overload": _overload,
    "resilience": _resilience,
}
BODY_READERS = {
    **PATCH_READERS,
    "url": string,
    "runtime_type": _runtime_type,
    "runtime": _runtime_type,
    "worker_type": one_of(WORKER_TYPES),
    "dp_size": within(integer, 1, MAX_ENGINES),
    "zmq_handshake_address": filled_string,
    "zmq_advertise_host": filled_string,
    "model_id": filled_string,
    "models": _first_model,
}
_NAMES = {
    "dp_size": "engine_count",
    "zmq_handshake_address": "handshake_address",
    "zmq_advertise_host": "advertise_host",
}
