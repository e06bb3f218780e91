"""What settings are refused, in words that name option, problem and remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from smg_trio.core.errors import ConfigError
from smg_trio.core.http_addresses import is_http_url, parse_http_url
from smg_trio.settings.choices import BACKENDS, CONTROL_PLANE_ROLES
from smg_trio.settings.flags import flag_of
from smg_trio.settings.mcp import mcp_hosts
from smg_trio.settings.media import check_media
from smg_trio.settings.settings import Settings, options
from smg_trio.settings.workers import (
    allowed_networks,
    check_http_workers,
    check_selector,
    discovered_names,
    without_user,
)

_TLS = ("tls", "prometheus_tls")
"""What the names of settings for a listener's certificate begin with."""


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot work. Raises ConfigError naming option, problem and remedy."""
    _check_kinds(settings)
    _check_backend(settings.backend)
    for url in settings.worker_urls:
        check_worker_url(url)
    if settings.zmq_engine_count < 1:
        raise ConfigError("--zmq-engine-count", f"must be at least 1, got {settings.zmq_engine_count}.")
    process_count(settings, 1)
    if settings.dp_aware and settings.zmq_engine_count > 1:
        url = settings.worker_urls[0] if settings.worker_urls else "worker"
        raise ConfigError("--dp-aware", dp_aware_refusal(url, settings.zmq_engine_count))
    if settings.zmq_handshake_address is not None and len(settings.worker_urls) != 1:
        raise ConfigError(
            "--zmq-handshake-address",
            f"is one address ({settings.zmq_handshake_address}), so it needs exactly one worker URL, not "
            f"{len(settings.worker_urls)}.",
            "Leave it out: each worker's address is then made of its URL.",
        )
    _check_kinds_of_workers(settings)
    allowed_networks(settings)
    discovered_names(settings)
    check_selector(settings)
    if settings.revision is not None and settings.model_path is None:
        raise ConfigError("--revision", "needs --model-path.", "Leave it out.")
    for alias in settings.model_alias:
        if not all(alias.partition("=")):
            raise ConfigError("--model-alias", f"{alias!r} is not of the form alias=name.", "Write it as new=served.")
    if not all(key.strip() for key in settings.api_key):
        raise ConfigError("--api-key", "must not be empty: an empty key is the same as none.", "Leave it out for none.")
    for name in _NEVER_EMPTY:
        if getattr(settings, name) == "":
            raise ConfigError(flag_of(name), "must not be empty.", "Leave it out for none.")
    for number, text in enumerate(settings.control_plane_api_keys, 1):
        control_plane_key(text, number)
    for name in settings.allowed_hosts:
        if not name or any(mark in name for mark in "/?#@ "):
            raise ConfigError("--allowed-hosts", f"{name!r} is not a host name.", "Write it as gateway.example.")
    for number, text in enumerate(settings.tenant_api_key, 1):
        tenant_key(text, number)
    for prefix in _TLS:
        _check_tls(settings, prefix)
    _check_auth(settings)
    for name in ("port", "prometheus_port", "health_check_port"):
        if not 0 <= getattr(settings, name) <= 65535:
            raise ConfigError(flag_of(name), f"must be 0..65535, got {getattr(settings, name)}.")
    check_http_workers(settings)
    bucket_bounds(settings.prometheus_duration_buckets)
    _check_traces_endpoint(settings.otlp_traces_endpoint)
    _check_positive(settings)
    _check_ranges(settings)
    check_media(settings)
    mcp_hosts(settings)
    _check_history(settings)


MAX_PROCESSES = 64


def process_count(settings: Settings, cpu_count: int) -> int:
    """How many processes serve, on a host with so many processors. Raises ConfigError."""
    text = settings.processes
    if text == "auto":
        return min(max(cpu_count, 1), MAX_PROCESSES)
    if text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= MAX_PROCESSES:
        return int(text)
    raise ConfigError("--processes", f"must be 1..{MAX_PROCESSES} or auto, got {text!r}.")


def _check_kinds_of_workers(settings: Settings) -> None:
    """What workers with engines need, and what those behind HTTP exclude."""
    zmq_urls = [url for url in settings.worker_urls if not is_http_url(url)]
    if zmq_urls and settings.model_path is None:
        raise ConfigError(
            "--model-path",
            f"ZMQ worker {zmq_urls[0]} has no model identity: EngineCore does not report a served model "
            "name, so --model-path is required.",
        )


def bucket_bounds(texts: Sequence[str]) -> tuple[float, ...]:
    """What `--prometheus-duration-buckets` says, as seconds. Raises ConfigError."""
    try:
        bounds = tuple(float(text) for text in texts)
    except ValueError:
        bounds = (-1.0,)
    if not all(0 < bound < inf for bound in bounds) or any(low >= high for low, high in pairwise(bounds)):
        raise ConfigError(
            "--prometheus-duration-buckets", f"{' '.join(texts)!r} are not ascending numbers above 0.",
            "Write seconds, as 0.1 0.5 1 5.",
        )  # fmt: skip
    return bounds


def _check_traces_endpoint(endpoint: str) -> None:
    scheme, separator, rest = endpoint.partition("://")
    host = (rest if separator else endpoint).partition("/")[0]
    if (
        not host.strip()
        or (separator and scheme not in ("http", "https", "grpc", "grpcs"))
        or not host.isprintable()
        or " " in host
    ):
        raise ConfigError(
            "--otlp-traces-endpoint",
            f"{endpoint!r} is neither host:port nor an http(s) or grpc(s) URL.",
            "Write it as collector:4318, or as grpc://collector:4317.",
        )


_DATABASE_HOST = r"(\[[^\]@/?#\s]*\]|[^:@/?#\s,]*)(:\d*)?"
_DATABASE_URL = re.compile(
    r"postgres(ql)?://"
    r"((%[0-9a-fA-F]{2}|[^%:@/?#\s])*(:(%[0-9a-fA-F]{2}|[^%@/?#\s])*)?@)?"  # user and password
    rf"{_DATABASE_HOST}(,{_DATABASE_HOST})*"
    r"(/[^@?#\s]*)?(\?[^@#\s]*)?"
)


def _check_history(settings: Settings) -> None:
    backend, url = settings.history_backend, settings.history_url
    if "://" in backend and not backend.startswith("sqlite:"):
        raise ConfigError("--history-backend", "is not the place for a URL.", "Write postgres, and give --history-url.")
    if backend == "postgres" and not url:
        remedy = "Write it as postgresql://USER@HOST/DATABASE."
        raise ConfigError("--history-url", "is missing beside --history-backend postgres.", remedy)
    if backend != "postgres" and url is not None:
        remedy = "Give --history-backend postgres too, or leave it out."
        raise ConfigError("--history-url", "has a meaning for --history-backend postgres only.", remedy)
    # Strict, so that no part of a password that is not encoded as it should be is taken for a host and shown.
    if url is not None and not _DATABASE_URL.fullmatch(url):
        remedy = "Write it as postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters percent-encoded."
        raise ConfigError("--history-url", "is not a PostgreSQL URL (not shown).", remedy)


def _check_kinds(settings: Settings) -> None:
    """For those who make settings in Python: a str where several are meant would be taken for its characters."""
    for option in options():
        value, choices = getattr(settings, option.name), option.metadata["choices"]
        if isinstance(option.default, tuple) and not isinstance(value, tuple):
            raise ConfigError(flag_of(option.name), f"must be a tuple, got a {type(value).__name__}.")
        if choices and value not in choices:
            raise ConfigError(flag_of(option.name), f"{value!r} is not among its values.", f"Use {_any_of(choices)}.")


def _any_of(choices: Sequence[str]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else choices[0]


_ABOVE_0 = [
    "max_tree_size",
    "block_size",
    "prefix_token_count",
    "max_idle_secs",
    "queue_timeout_secs",
    "worker_overload_waiting_requests",
    "worker_overload_token_usage",
    "retry_max_retries",
    "retry_max_backoff_ms",
    "cb_failure_threshold",
    "cb_success_threshold",
    "cb_timeout_duration_secs",
    "cb_window_duration_secs",
    "health_failure_threshold",
    "health_success_threshold",
    "health_check_interval_secs",
    "health_check_timeout_secs",
    "mm_max_pixels",
    "mm_max_item_bytes",
    "mm_max_inflight_bytes",
    "mcp_max_tool_calls",
    "mcp_timeout_secs",
    "mcp_max_result_bytes",
    "history_pool_max",
    "history_timeout_secs",
    "upstream_first_byte_secs",
    "upstream_silence_secs",
    "upstream_idle_secs",
    "discover_interval_secs",
]
_FROM_0 = [
    "tokenizer_cache_l1_max_memory",
    "mm_cache_bytes",
    "cache_threshold",
    "balance_abs_threshold",
    "eviction_interval_secs",
    "prefix_hash_balance_abs_threshold",
    "queue_size",
    "retry_initial_backoff_ms",
    "retry_jitter_factor",
    "rate_limit_tokens_per_second",
    "key_max_concurrent_requests",
    "key_tokens_per_minute",
    "history_retention_secs",
    "jwt_leeway_secs",
    "usage_identities",
    "zmq_heartbeat_secs",
]
_FROM_1 = ("balance_rel_threshold", "prefix_hash_load_factor", "retry_backoff_multiplier")
_TO_1 = ("cache_threshold", "worker_overload_token_usage", "retry_jitter_factor")


def _check_ranges(settings: Settings) -> None:
    # Written so that "not a number", which compares false with anything, is refused too.
    rules: tuple[tuple[Sequence[str], Callable[[float], bool], str], ...] = (
        (_ABOVE_0, lambda value: 0 < value < inf, "must be greater than 0"),
        (_FROM_0, lambda value: 0 <= value < inf, "must not be negative"),
        (_FROM_1, lambda value: 1 <= value < inf, "must be at least 1"),
        (_TO_1, lambda value: value <= 1, "must be at most 1"),
        (("max_concurrent_requests",), lambda value: value >= -1, "must be -1, 0 or a number of requests"),
    )
    for names, holds, problem in rules:
        for name in names:
            if not holds(getattr(settings, name)):
                raise ConfigError(flag_of(name), f"{problem}, got {getattr(settings, name)}.")


def _check_positive(settings: Settings) -> None:
    names = (
        "max_payload_size",
        "max_payload_memory",
        "request_timeout_secs",
        "sse_keepalive_secs",
        "engine_silence_secs",
        "engine_send_timeout_secs",
        "zmq_startup_timeout_secs",
    )
    for name in names:
        if not getattr(settings, name) > 0:  # "not a number" too
            raise ConfigError(flag_of(name), f"must be greater than 0, got {getattr(settings, name)}.")
    if not settings.shutdown_grace_period_secs >= 0:
        grace_s = settings.shutdown_grace_period_secs
        raise ConfigError(
            "--shutdown-grace-period-secs", f"must not be negative, got {grace_s}.", "0 ends immediately."
        )
    if not settings.min_body_rate >= 0:
        rate = settings.min_body_rate
        raise ConfigError("--min-body-rate", f"must not be negative, got {rate}.", "0: no limit.")


def dp_aware_refusal(url: str, dp_size: int) -> str:
    """Why a group cannot be expanded into one worker per rank, in the reference's words."""
    return (
        f"ZMQ worker {url} cannot be dp-aware expanded (dp_size={dp_size}); configure a grouped ZMQ worker (`dp_size` "
        "on the worker spec) instead"
    )


def _tls_names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}_cert_path", f"{prefix}_key_path", f"{prefix}_client_ca_path"


def _check_tls(settings: Settings, prefix: str) -> None:
    cert, key, client_ca = _tls_names(prefix)
    has_cert, has_key = getattr(settings, cert) is not None, getattr(settings, key) is not None
    if has_cert and not has_key:
        raise ConfigError(flag_of(key), f"is required with {flag_of(cert)}.", "Give the certificate's key.")
    if has_key and not has_cert:
        raise ConfigError(flag_of(cert), f"is required with {flag_of(key)}.", "Give the key's certificate.")
    if getattr(settings, client_ca) is not None and not has_cert:
        remedy = f"Give {flag_of(cert)} and {flag_of(key)} too, or leave it out."
        raise ConfigError(flag_of(client_ca), "needs TLS.", remedy)


_NEVER_EMPTY = (
    "api_key_file", "auth", "jwt_issuer", "jwt_audience", "jwt_jwks_uri", "usage_log",
    *(name for prefix in _TLS for name in _tls_names(prefix)),
)  # fmt: skip
KEY_ROLES = ("models", "user", "admin")


def uses_jwt(settings: Settings) -> bool:
    """Whether tokens of the issuer are accepted, for everything or (without --auth) for the control plane alone."""
    return settings.auth == "jwt" or (settings.auth is None and settings.jwt_issuer is not None)


def _check_auth(settings: Settings) -> None:
    if not uses_jwt(settings):
        for name in ("jwt_issuer", "jwt_audience", "jwt_jwks_uri", "jwt_limits_claim", "jwt_role_mapping"):
            if getattr(settings, name):
                raise ConfigError(flag_of(name), "is for --auth jwt.", "Add --auth jwt, or leave it out.")
        return
    for name in ("jwt_issuer", "jwt_audience"):
        if getattr(settings, name) is None:
            raise ConfigError(flag_of(name), "is missing: --auth jwt accepts tokens of one issuer for one audience.")
    if settings.jwt_jwks_uri is None and not str(settings.jwt_issuer).startswith(("https://", "http://")):
        raise ConfigError(
            "--jwt-jwks-uri", f"is missing, and the issuer {settings.jwt_issuer!r} is not a URL to look it up at.",
            "Name the issuer's key set, a URL or a file.",
        )  # fmt: skip
    role_mapping(settings.jwt_role_mapping)


def role_mapping(texts: Sequence[str]) -> dict[str, str]:
    """What `--jwt-role-mapping` says: value of the claim → role. Raises ConfigError."""
    mapping: dict[str, str] = {}
    for text in texts:
        value, separator, role = text.rpartition("=")
        if not separator or not value.strip() or role.strip() not in KEY_ROLES:
            raise ConfigError(
                "--jwt-role-mapping", f"{text!r} is not of the form VALUE=ROLE.", f"ROLE is {_any_of(KEY_ROLES)}."
            )
        mapping[value.strip()] = role.strip()
    return mapping


class ControlPlaneKey(NamedTuple):
    """One entry of --control-plane-api-keys; `key` is the only secret."""

    id: str
    name: str
    role: str
    key: str


def control_plane_key(text: str, number: int) -> ControlPlaneKey:
    """The parts of the `number`-th entry. Raises ConfigError, which does not repeat the key."""
    parts = [part.strip() for part in text.split(":", 3)]
    if len(parts) < 4 or not all(parts):
        problem = f"entry {number} is not of the form id:name:role:key."
        raise ConfigError("--control-plane-api-keys", problem, "For example ops:On call:admin:KEY.")
    entry = ControlPlaneKey(*parts)
    if entry.role not in CONTROL_PLANE_ROLES:
        problem = f"entry {number} ({entry.id}) has an unknown role."
        raise ConfigError("--control-plane-api-keys", problem, f"Use {_any_of(CONTROL_PLANE_ROLES)}.")
    return entry


class TenantKey(NamedTuple):
    """One entry of --tenant-api-key."""

    tenant: str
    key: str


def tenant_key(text: str, number: int) -> TenantKey:
    """The parts of the `number`-th entry. Raises ConfigError, which does not repeat the key."""
    tenant, _, key = text.partition(":")
    if not tenant.strip() or not key.strip():
        raise ConfigError("--tenant-api-key", f"entry {number} is not of the form tenant:key.", "For example acme:KEY.")
    return TenantKey(tenant.strip(), key.strip())


def _check_backend(backend: str | None) -> None:
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(
            "--backend",
            f"ZMQ direct backend has no engine implementation for runtime {backend}; "
            "only vllm and tokenspeed are supported.",
        )


def check_worker_url(url: str) -> None:
    """Refuse what is neither an ipc:// or tcp:// URL nor an http(s):// URL of a host. Raises ConfigError."""
    scheme, separator, path = url.partition("://")
    if not separator or scheme not in ("http", "https", "grpc", "grpcs", "ipc", "tcp"):
        raise ConfigError(
            "--worker-urls",
            f"Invalid value for field 'worker_url': {url} - URL must start with a lowercase http://, https://, "
            "grpc://, grpcs://, tcp://, or ipc:// scheme",
        )
    if scheme in ("http", "https"):
        try:
            parse_http_url(url)
        except ValueError as error:
            raise ConfigError("--worker-urls", f"The worker URL {without_user(url)!r} {error}.") from None
        return
    if scheme == "tcp":
        return
    if scheme != "ipc":
        raise ConfigError(
            "--worker-urls",
            f"ZMQ worker URL must be ipc://<path> or tcp://<host>:<port>, got '{url}'.",
            "Servers on other hosts are reached by http:// or https://, not by gRPC.",
        )
    if not path:
        raise ConfigError("--worker-urls", "ipc:// worker URL must include a socket path")
