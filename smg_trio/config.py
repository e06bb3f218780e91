"""Every setting, once. The command line, its help and the documentation are made from `Settings`.

A field's metadata carries what the command line needs: help text, group, metavar, choices and further flag names.
Flag names and defaults are the reference gateway's where it has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_trio.core.errors import ConfigError

BACKENDS = ("vllm", "tokenspeed")
LOG_LEVELS = ("debug", "info", "warn", "error")


def _option(
    default: Any,
    help: str,
    group: str,
    *,
    flags: Sequence[str] = (),
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    metadata: Mapping[str, Any] = {
        "help": help,
        "group": group,
        "flags": tuple(flags),
        "metavar": metavar,
        "choices": choices,
    }
    if isinstance(default, (list, tuple)):
        return field(default=tuple(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one gateway process is told. Checked by `check_settings` before use."""

    worker_urls: tuple[str, ...] = _option(
        (), "Workers to start with, each ipc://<path>; engines dial in there.", "Workers", metavar="URL"
    )
    backend: str | None = _option(
        None,
        "Engine protocol of these workers: vllm or tokenspeed. Unset means vllm, with a warning.",
        "Workers",
        metavar="NAME",
    )
    zmq_engine_count: int = _option(
        1, "Engines (data-parallel ranks) behind each of these workers.", "Workers", metavar="N"
    )
    zmq_handshake_address: str | None = _option(
        None, "tcp://host:port to bind for the handshake instead of the derived one (one worker only).", "Workers"
    )
    policy: str = _option(
        "least_load",
        "How a worker is chosen among several of one model.",
        "Workers",
        choices=("least_load", "round_robin", "passthrough"),
    )
    model_path: str | None = _option(
        None, "Directory of the model: tokenizer, chat template, defaults.", "Model", flags=("--model",), metavar="DIR"
    )
    tokenizer_path: str | None = _option(
        None, "Take the tokenizer from here instead of --model-path.", "Model", metavar="DIR"
    )
    chat_template: str | None = _option(
        None, "Jinja file to use instead of the model's own chat template.", "Model", metavar="FILE"
    )
    served_model_name: tuple[str, ...] = _option(
        (),
        "Name(s) clients ask for; the first is the model's id. Default: --model-path as given.",
        "Model",
        metavar="NAME",
    )
    model_alias: tuple[str, ...] = _option(
        (), "Further client-facing names, each alias=name.", "Model", metavar="ALIAS=NAME"
    )
    generation_config: str = _option(
        "auto",
        "Sampling defaults: 'auto' reads the model's generation_config.json, 'vllm' uses the engine's own.",
        "Model",
    )
    tool_call_parser: str | None = _option(
        None, "Format of tool calls. Default: by model name and chat template.", "Model", metavar="NAME"
    )
    reasoning_parser: str | None = _option(
        None, "Format of thoughts. Default: by model name and chat template.", "Model", metavar="NAME"
    )
    host: str = _option("0.0.0.0", "Address to listen on.", "HTTP")
    port: int = _option(30000, "Port to listen on; 0 lets the system choose.", "HTTP")
    api_key: str | None = _option(
        None, "Key that clients must send (Authorization: Bearer KEY). Probes stay public.", "HTTP", metavar="KEY"
    )
    max_payload_size: int = _option(512 * 1024 * 1024, "Largest request body in bytes.", "HTTP", metavar="BYTES")
    request_id_headers: tuple[str, ...] = _option(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "Headers a request id is taken from; the first present one wins.",
        "HTTP",
        metavar="NAME",
    )
    cors_allowed_origins: tuple[str, ...] = _option(
        (), "Origins that browsers may call from ('*' for any); none by default.", "HTTP", metavar="ORIGIN"
    )
    http_lane: str = _option(
        "fast",
        "'fast' reads plain HTTP/1.1 itself; 'hypercorn' leaves everything to hypercorn.",
        "HTTP",
        choices=("fast", "hypercorn"),
    )
    request_timeout_secs: float = _option(
        1800.0, "An answer that takes longer is ended with an error.", "HTTP", metavar="S"
    )
    shutdown_grace_period_secs: float = _option(
        180.0, "How long answers in flight may go on after SIGTERM.", "HTTP", metavar="S"
    )
    max_logprobs: int = _option(20, "Most candidates per position a client may ask for; -1: no bound.", "HTTP")
    prometheus_host: str = _option("0.0.0.0", "Address of the metrics listener.", "Observability")
    prometheus_port: int = _option(29000, "Port of the metrics listener; 0 lets the system choose.", "Observability")
    log_level: str = _option("info", "How much is logged.", "Observability", choices=LOG_LEVELS)
    engine_silence_secs: float = _option(
        300.0,
        "Seconds without output, while requests are in flight, after which an engine counts as dead.",
        "Limits",
        metavar="S",
    )
    engine_send_timeout_secs: float = _option(
        10.0, "Seconds handing one request to an engine may take before it counts as dead.", "Limits", metavar="S"
    )
    zmq_startup_timeout_secs: float = _option(
        600.0, "Seconds each handshake message is waited for before the log says so.", "Limits", metavar="S"
    )


def options() -> Sequence[dataclasses.Field[Any]]:
    """The fields of `Settings` in order, with their metadata."""
    return dataclasses.fields(Settings)


def flag_of(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot work. Raises ConfigError naming option, problem and remedy."""
    _check_backend(settings.backend)
    for url in settings.worker_urls:
        check_worker_url(url)
    if settings.zmq_engine_count < 1:
        raise ConfigError("--zmq-engine-count", f"must be at least 1, got {settings.zmq_engine_count}.")
    if settings.zmq_handshake_address is not None and len(settings.worker_urls) != 1:
        raise ConfigError("--zmq-handshake-address", "is one address, so it needs exactly one worker URL.")
    if settings.worker_urls and settings.model_path is None:
        raise ConfigError(
            "--model-path",
            f"ZMQ worker {settings.worker_urls[0]} has no model identity: EngineCore does not report a served model "
            "name, so --model-path is required.",
        )
    for alias in settings.model_alias:
        if not all(alias.partition("=")):
            raise ConfigError("--model-alias", f"{alias!r} is not of the form alias=name.")
    for name in ("port", "prometheus_port"):
        if not 0 <= getattr(settings, name) <= 65535:
            raise ConfigError(flag_of(name), f"must be 0..65535, got {getattr(settings, name)}.")
    _check_positive(settings)


def _check_positive(settings: Settings) -> None:
    names = ("max_payload_size", "request_timeout_secs", "engine_silence_secs", "engine_send_timeout_secs",
             "zmq_startup_timeout_secs")  # fmt: skip
    for name in names:
        if getattr(settings, name) <= 0:
            raise ConfigError(flag_of(name), f"must be greater than 0, got {getattr(settings, name)}.")
    if settings.shutdown_grace_period_secs < 0:
        raise ConfigError("--shutdown-grace-period-secs", "must not be negative.")


def _check_backend(backend: str | None) -> None:
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(
            "--backend",
            f"ZMQ direct backend has no engine implementation for runtime {backend}; "
            "only vllm and tokenspeed are supported.",
        )


def check_worker_url(url: str) -> None:
    """Refuse what is no ipc:// URL with a path, in the reference's words. Raises ConfigError."""
    scheme, separator, path = url.partition("://")
    if not separator or scheme not in ("http", "https", "grpc", "grpcs", "ipc"):
        raise ConfigError(
            "--worker-urls",
            f"Invalid value for field 'worker_url': {url} - URL must start with a lowercase http://, https://, "
            "grpc://, grpcs://, or ipc:// scheme",
        )
    if scheme != "ipc":
        raise ConfigError(
            "--worker-urls",
            f"ZMQ worker URL must be ipc://<path>, got '{url}'.",
            "This gateway speaks to engines on the same host only.",
        )
    if not path:
        raise ConfigError("--worker-urls", "ipc:// worker URL must include a socket path")
