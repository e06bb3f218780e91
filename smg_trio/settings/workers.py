"""Where workers are, and how those behind HTTP are reached; what of that is refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from smg_trio.core.errors import ConfigError
from smg_trio.core.http_addresses import HttpAddress, parse_http_url
from smg_trio.settings.flags import option as _option


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The part of `Settings` that is about workers of both kinds, or about those behind HTTP."""

    worker_urls: tuple[str, ...] = _option(
        (), "Workers to start with: ipc://<path>, where engines of this host dial in, tcp://host:port, where engines "
        "of other hosts do, or http(s)://host:port of a server with the OpenAI API, such as another smg-trio or vllm "
        "serve.", "Workers", metavar="URL",
    )  # fmt: skip
    discover: tuple[str, ...] = _option(
        (), "Names whose addresses are http workers, as dns://name:port: those of a headless Service, for one. Workers "
        "come and go as addresses do.", "Workers", metavar="URL",
    )  # fmt: skip
    discover_interval_secs: float = _option(
        10.0, "Time between two looks at the names of --discover.", "Workers", metavar="S"
    )
    service_discovery: bool = _option(
        False, "Have pods of Kubernetes be http workers, as --selector names them.", "Workers"
    )
    selector: tuple[str, ...] = _option(
        (), "Labels that the pods of --service-discovery have, as name=value.", "Workers", metavar="LABEL"
    )
    service_discovery_port: int = _option(
        80, "Port of pods without the annotation smg.ai/worker-ports.", "Workers", metavar="PORT"
    )
    service_discovery_namespace: str | None = _option(
        None, "Namespace of the pods, instead of the gateway's own.", "Workers", metavar="NAME"
    )
    zmq_advertise_host: str | None = _option(
        None, "tcp workers: the host by which engines reach this one, where it is not that of the URL (a wildcard, or "
        "a tunnel).", "Workers", metavar="HOST",
    )  # fmt: skip
    zmq_allow_peers: tuple[str, ...] = _option(
        (), "tcp workers: networks whose hosts may connect, such as 10.1.0.0/16; by default loopback, private and "
        "link-local ones.", "Workers", metavar="CIDR",
    )  # fmt: skip
    zmq_heartbeat_secs: float = _option(
        2.0, "tcp workers: time between two heartbeats; a host that has died is noticed after three times that. 0: "
        "none.", "Workers", metavar="S",
    )  # fmt: skip
    worker_api_key: str | None = _option(
        None, "Key that the http(s) workers of --worker-urls are sent; a client's own key never is. Others on this "
        "host can see a command line: better use --worker-api-key-file.", "Workers", metavar="KEY", secret=True,
        guards=True,
    )  # fmt: skip
    worker_api_key_file: str | None = _option(
        None, "File whose first line is that key.", "Workers", metavar="FILE", guards=True
    )
    upstream_ca: str | None = _option(
        None, "PEM file of the authorities whose certificates https workers may have, instead of the system's.",
        "Workers", metavar="FILE", guards=True,
    )  # fmt: skip
    upstream_first_byte_secs: float = _option(
        600.0, "http workers: longest wait for the head of a response, queueing and prefill included.", "Workers",
        metavar="S",
    )  # fmt: skip
    upstream_silence_secs: float = _option(
        300.0, "http workers: longest silence in the middle of a response.", "Workers", metavar="S"
    )
    upstream_idle_secs: float = _option(
        3.0, "http workers: an idle connection is closed after this long; keep it below the servers' keep-alive.",
        "Workers", flags=("--upstream-pool-idle-timeout-secs",), metavar="S",
    )  # fmt: skip
    forward_headers: tuple[str, ...] = _option(
        (), "http workers: further request headers that are passed on, beside content type, trace context, routing "
        "key and anthropic-*.", "Workers", metavar="NAME",
    )  # fmt: skip
    health_check_endpoint: str = _option(
        "/health", "http workers: path of the health probe. Another smg-trio is asked for /readiness.", "Workers",
        metavar="PATH",
    )  # fmt: skip


HEADERS_NEVER_FORWARDED: Final = (
    "authorization", "cookie", "x-api-key", "proxy-authorization", "host", "connection", "content-length",
    "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "expect",
)  # fmt: skip
"""Credentials of the client, which are this gateway's business, and what belongs to one connection or one body."""


def discovered_names(settings: WorkerSettings) -> tuple[HttpAddress, ...]:
    """What `--discover` names. Raises ConfigError."""
    names = []
    for url in settings.discover:
        scheme, _, rest = url.partition("://")
        if scheme != "dns" or ":" not in rest.rpartition("]")[2]:
            raise ConfigError("--discover", f"{url!r} is not of the form dns://name:port.", "Name the port of the API.")
        try:
            names.append(parse_http_url(f"http://{rest}"))
        except ValueError as error:
            raise ConfigError("--discover", f"{url!r} {error}.", "Write it as dns://name:port.") from None
    return tuple(names)


def check_selector(settings: WorkerSettings) -> None:
    """Refuse labels and a port that no pod can have. Raises ConfigError."""
    for label in settings.selector:
        name, equals, value = label.partition("=")
        if not name or not equals or set(label) & set(" ,()!"):
            raise ConfigError("--selector", f"{label!r} is not of the form name=value.", f"Write it as app={value}.")
    if not 0 < settings.service_discovery_port < 65536:
        raise ConfigError("--service-discovery-port", f"must be 1..65535, got {settings.service_discovery_port}.")


def allowed_networks(settings: WorkerSettings) -> tuple[IPv4Network | IPv6Network, ...]:
    """What `--zmq-allow-peers` names; empty for the default. Raises ConfigError."""
    networks = []
    for text in settings.zmq_allow_peers:
        try:
            networks.append(ip_network(text.strip()))
        except ValueError as error:
            raise ConfigError("--zmq-allow-peers", f"{error}.", "Write it as 10.1.0.0/16, or fd00::/8.") from None
    return tuple(networks)


def check_http_workers(settings: WorkerSettings) -> None:
    """Refuse what cannot work with workers behind HTTP. Raises ConfigError."""
    for name in settings.forward_headers:
        if not name or not all(mark.isalnum() or mark in "-_" for mark in name) or not name.isascii():
            raise ConfigError("--forward-headers", f"{name!r} is not a header's name.", "Write it as x-tenant.")
        if name.lower() in HEADERS_NEVER_FORWARDED:
            raise ConfigError(
                "--forward-headers",
                f"{name} is never sent to a worker.",
                "A worker has a key of its own: --worker-api-key, or api_key in the worker API.",
            )
    if settings.worker_api_key == "" or settings.worker_api_key_file == "":
        name = "--worker-api-key" if settings.worker_api_key == "" else "--worker-api-key-file"
        raise ConfigError(name, "must not be empty.", "Leave it out for none.")
    if settings.worker_api_key is not None and settings.worker_api_key_file is not None:
        raise ConfigError("--worker-api-key-file", "and --worker-api-key are both given.", "Give one of them.")
    if settings.upstream_ca == "":
        raise ConfigError("--upstream-ca", "must not be empty.", "Leave it out for the system's authorities.")
    if not settings.health_check_endpoint.startswith("/") or " " in settings.health_check_endpoint:
        endpoint = settings.health_check_endpoint
        raise ConfigError("--health-check-endpoint", f"{endpoint!r} is not a path.", "Write it as /health.")


def without_user(url: str) -> str:
    """The URL fit to be shown: a password in it is nobody's business."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
