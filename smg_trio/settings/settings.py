"""Every setting, once. Command line, environment, file, help and documentation are made from `Settings`.

A field's metadata carries what those need: help text, group, metavar, choices, further flag names, and what must not be
shown. Where values come from is the matter of `sources`, what is refused of `checks`.
Flag names and defaults are the reference gateway's where it has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from smg_trio.settings.choices import LOG_LEVELS, METRICS_COMPAT, MM_FETCH_POLICIES
from smg_trio.settings.flags import option as _option
from smg_trio.settings.routing import RoutingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(RoutingSettings):
    """What one gateway process is told. Checked by `check_settings` before use."""

    model_path: str | None = _option(
        None, "The model: a directory, or a name on the Hugging Face hub (ORG/NAME, ORG/NAME@REVISION), whose small "
        "files are taken from the hub's cache or downloaded, never its weights.", "Model", flags=("--model",),
        metavar="MODEL",
    )  # fmt: skip
    revision: str | None = _option(
        None, "Branch, tag or commit of a --model-path that is a name on the hub. Default: main.", "Model",
        metavar="REVISION",
    )  # fmt: skip
    tokenizer_path: str | None = _option(
        None, "Take the tokenizer from here instead of --model-path: a directory, a tokenizer's file, or a name on "
        "the hub.", "Model", metavar="MODEL",
    )  # fmt: skip
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
    tokenizer_cache_l1_max_memory: int = _option(
        32 * 1024 * 1024,
        "Memory for token ids of pieces of long prompts, which later prompts may share; 0 for none.",
        "Model",
        metavar="BYTES",
    )
    generation_config: str = _option(
        "auto",
        "Sampling defaults: 'auto' reads the model's generation_config.json, 'vllm' uses the engine's own.",
        "Model",
    )
    tool_call_parser: str | None = _option(
        None, "Format of tool calls, which may be an installed plug-in's. Default: by model name and chat template.",
        "Model", metavar="NAME",
    )  # fmt: skip
    reasoning_parser: str | None = _option(
        None, "Reasoning parser, which may be an installed plug-in. Default: by model name and chat template.", "Model",
        metavar="NAME",
    )  # fmt: skip
    mm_fetch: str = _option(
        "off", "From where images that a request names by an http or https URL are fetched: from nowhere, from the "
        "hosts of --mm-fetch-allow, or from any host with a public address. Images in data: URLs are always taken.",
        "Media", choices=MM_FETCH_POLICIES, metavar="POLICY",
    )  # fmt: skip
    mm_fetch_allow: tuple[str, ...] = _option(
        (), "Hosts that --mm-fetch allowlist fetches from: a host name, *.example.com for all names below "
        "example.com, each with :PORT where the port is not 80 or 443 (which also holds for --mm-fetch public). "
        "Redirects must lead to them too.", "Media", metavar="HOST",
    )  # fmt: skip
    mm_fetch_private: bool = _option(
        False, "Hosts of --mm-fetch-allow may have loopback and private addresses: for a media server in your own "
        "network. Link-local addresses stay refused.", "Media", flags=("--mm-allow-private-media-hosts",),
    )  # fmt: skip
    limit_mm: tuple[str, ...] = _option(
        ("image=16", "video=1"), "Most items of a modality in one request, as image=16,video=1. What is not named "
        "keeps its default. The engine's own limit is not asked: do not allow more than --limit-mm-per-prompt of "
        "vLLM.", "Media", metavar="MODALITY=N",
    )  # fmt: skip
    mm_max_pixels: int = _option(
        40_000_000, "Largest image, as width times height before it is resized.", "Media", metavar="PIXELS"
    )
    mm_max_item_bytes: int = _option(
        20 * 1024 * 1024, "Largest image or video as its file is, decoded from base64 or fetched.", "Media",
        metavar="BYTES",
    )  # fmt: skip
    mm_max_inflight_bytes: int = _option(
        256 * 1024 * 1024, "Media that all requests may hold in memory at once, as files and as pixels. A request that "
        "finds no room waits a few seconds, then gets 429; one that is larger than this gets 413.", "Media",
        flags=("--multimodal-max-inflight-bytes",), metavar="BYTES",
    )  # fmt: skip
    mm_resize: str = _option(
        "exact", "How images are resized: exact gives the pixels of vLLM's own front end, byte for byte; fast differs "
        "by 1 or 2 levels in about 1 % of them and saves time only on photos of many megapixels for models with a "
        "bilinear filter (Gemma 3, Llama 4).", "Media", choices=("exact", "fast"), metavar="KIND",
    )  # fmt: skip
    mm_pixels: str = _option(
        "auto", "Pixel values that engines are sent: uint8 (the engine normalises them), model (normalised, in the "
        "model's dtype), or what each engine says that it wants.", "Media", choices=("auto", "uint8", "model"),
        metavar="FORM",
    )  # fmt: skip
    mm_cache_bytes: int = _option(
        256 * 1024 * 1024, "Memory for processed media, so that the images of a long conversation are not processed "
        "again for each turn; 0 for none.", "Media", metavar="BYTES",
    )  # fmt: skip
    host: str = _option("0.0.0.0", "Address to listen on.", "HTTP")  # noqa: S104 - the reference's default
    port: int = _option(30000, "Port to listen on; 0 lets the system choose.", "HTTP")
    max_payload_size: int = _option(64 * 1024 * 1024, "Largest request body in bytes.", "HTTP", metavar="BYTES")
    max_payload_memory: int = _option(
        512 * 1024 * 1024,
        "Bytes of all request bodies that are being read or parsed; at least --max-payload-size.",
        "HTTP",
        metavar="BYTES",
    )
    min_body_rate: float = _option(
        10_000.0,
        "Bytes per second at which a request body must come, after a minute of grace; 0: no limit.",
        "HTTP",
        metavar="BYTES",
    )
    health_check_port: int = _option(
        0, "A further port, plain HTTP, for /liveness, /readiness and /health only; 0: none.", "HTTP", metavar="PORT"
    )
    request_id_headers: tuple[str, ...] = _option(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "Headers a request id is taken from; the first present one wins.",
        "HTTP",
        metavar="NAME",
    )
    cors_allowed_origins: tuple[str, ...] = _option(
        (), "Origins that browsers may call from ('*' for any); none by default.", "HTTP", metavar="ORIGIN"
    )
    allowed_hosts: tuple[str, ...] = _option(
        (), "Names that the Host header may have beside loopback names, where the gateway listens on a loopback "
        "address and needs no API key ('*' for any). Other listeners take any name.", "HTTP", metavar="NAME",
    )  # fmt: skip
    http_lane: str = _option(
        "fast",
        "No effect; accepted for settings of earlier versions: the gateway reads all HTTP/1.1 itself.",
        "HTTP",
        choices=("fast", "hypercorn"),
    )
    request_timeout_secs: float = _option(
        1800.0, "A response that takes longer is ended with an error.", "HTTP", metavar="S"
    )
    sse_keepalive_secs: float = _option(
        15.0,
        "A silent stream gets a comment line after this long (and at most twice as long); an answer that fails after "
        "one has an error event under status 200.",
        "HTTP",
        metavar="S",
    )
    shutdown_grace_period_secs: float = _option(
        180.0, "How long responses in flight may go on after SIGTERM.", "HTTP", metavar="S"
    )
    max_logprobs: int = _option(20, "Most candidates per position a client may ask for; -1: no bound.", "HTTP")
    allow_kv_transfer_params: bool = _option(
        False, "Pass kv_transfer_params of clients to engines. Invalid ones occupy an engine's cache permanently.",
        "HTTP",
    )  # fmt: skip
    mcp_allow: tuple[str, ...] = _option(
        (), "Hosts of MCP servers whose tools this gateway calls for Responses requests (tools of type mcp): a host "
        "name, *.example.com for all names below example.com, each with :PORT where the port is not 80 or 443. None: "
        "such tools are not offered to models. Needs smg-trio[mcp].", "MCP", metavar="HOST",
    )  # fmt: skip
    mcp_private: bool = _option(
        False, "Hosts of --mcp-allow may have loopback and private addresses: for MCP servers in your own network. "
        "Link-local addresses stay refused.", "MCP",
    )  # fmt: skip
    mcp_max_tool_calls: int = _option(
        32, "Calls of MCP tools in one response; a request may lower it (max_tool_calls). Then the model has to answer "
        "without further ones.", "MCP", flags=("--max-tool-calls",), metavar="N",
    )  # fmt: skip
    mcp_timeout_secs: float = _option(
        60.0, "How long connecting to an MCP server, listing its tools, or one call may take.", "MCP", metavar="S"
    )
    mcp_max_result_bytes: int = _option(
        128 * 1024, "Largest text that one call of an MCP tool may give to the model; a call with more fails.", "MCP",
        metavar="BYTES",
    )  # fmt: skip
    history_backend: str = _option(
        "memory", "Where the Responses API keeps responses and conversations: memory, none, sqlite:PATH, or postgres, "
        "which several gateways can share.", "History", metavar="STORE",
    )  # fmt: skip
    history_url: str | None = _option(
        None, "Database of --history-backend postgres, as postgresql://USER@HOST:PORT/DATABASE. Others on this host "
        "can see a command line: better give a password by SMG_TRIO_HISTORY_URL, PGPASSWORD or a settings file.",
        "History", flags=("--postgres-db-url",), metavar="URL", secret=True,
    )  # fmt: skip
    history_pool_max: int = _option(
        16, "postgres: connections to the database that this gateway may have.", "History",
        flags=("--postgres-pool-max",), metavar="N",
    )  # fmt: skip
    history_timeout_secs: float = _option(
        5.0, "postgres: how long one call to the database may take, waiting for a connection included; then its "
        "request is answered as while the database is away.", "History", flags=("--postgres-op-timeout-secs",),
        metavar="S",
    )  # fmt: skip
    history_retention_secs: float = _option(
        0.0, "Responses and conversations that have not been written for this long are forgotten; 0: never for their "
        "age.", "History", flags=("--history-memory-retention-secs",), metavar="S",
    )  # fmt: skip
    api_key: tuple[str, ...] = _option(
        (), "Key(s) of which clients must send one (Authorization: Bearer KEY). Probes stay public. Others on this "
        "host can see a command line: better use --api-key-file.", "Security", metavar="KEY", secret=True, guards=True,
    )  # fmt: skip
    tenant_api_key: tuple[str, ...] = _option(
        (), "Further keys that clients may send, each TENANT:KEY. Stored responses and conversations belong to the "
        "tenant.", "Security", metavar="TENANT:KEY", secret=True, guards=True,
    )  # fmt: skip
    api_key_file: str | None = _option(
        None, "File with further keys: one per line, lines that begin with # are comments; or, if its name ends in "
        ".toml, keys with names, roles and limits. Read again when it changes.", "Security", metavar="FILE",
        guards=True,
    )  # fmt: skip
    control_plane_api_keys: tuple[str, ...] = _option(
        (), "Keys for managing workers and engines, which other keys then cannot: role admin may do everything, role "
        "user may only look.", "Security", metavar="ID:NAME:ROLE:KEY", secret=True, guards=True,
    )  # fmt: skip
    control_plane_audit_enabled: bool = _option(
        False, "One line in the log for each attempt to change workers or engines: who, what, and how it went.",
        "Security",
    )  # fmt: skip
    key_max_concurrent_requests: int = _option(
        0, "Requests that each key may have in flight at once, streams included, unless the key file says otherwise; "
        "0: no limit.", "Security", metavar="N",
    )  # fmt: skip
    key_tokens_per_minute: int = _option(
        0, "Tokens, read and written, that each key may use per minute, unless the key file says otherwise; 0: no "
        "limit.", "Security", metavar="N",
    )  # fmt: skip
    auth: str | None = _option(
        None, "Who looks at tokens that are no key of these settings: jwt, or an installed plug-in. Models and the "
        "control plane then need a token or a key.", "Security", metavar="NAME", guards=True,
    )  # fmt: skip
    jwt_issuer: str | None = _option(
        None, "auth jwt: the issuer (iss) of tokens that are accepted. Without --auth, tokens open the control plane "
        "alone, as with SMG.", "Security", metavar="URL", guards=True,
    )  # fmt: skip
    jwt_audience: str | None = _option(
        None, "auth jwt: the audience (aud) that tokens must be meant for.", "Security", metavar="TEXT", guards=True
    )
    jwt_jwks_uri: str | None = _option(
        None, "auth jwt: where the issuer's keys are, a URL or a file, read again when they change. Default: as the "
        "issuer's /.well-known/openid-configuration says.", "Security", metavar="URI", guards=True,
    )  # fmt: skip
    jwt_leeway_secs: float = _option(
        60.0, "auth jwt: how far the issuer's clock may be ahead or behind.", "Security", metavar="S"
    )
    jwt_name_claim: str = _option(
        "sub", "auth jwt: claim that names whom a token is for, in logs and metrics.", "Security", metavar="CLAIM"
    )
    jwt_role_claim: str = _option(
        "roles", "auth jwt: claim with what a token opens: models, user or admin; a list, or words in one text. Dots "
        "lead into objects (realm_access.roles).", "Security", metavar="CLAIM",
    )  # fmt: skip
    jwt_role_mapping: tuple[str, ...] = _option(
        (), "auth jwt: what other values of that claim stand for, each VALUE=ROLE.", "Security", metavar="VALUE=ROLE"
    )
    jwt_limits_claim: str | None = _option(
        None, "auth jwt: claim with an object of max_concurrent_requests and tokens_per_minute, which limit whom the "
        "token is for. Without: --key-max-concurrent-requests and --key-tokens-per-minute.", "Security",
        metavar="CLAIM",
    )  # fmt: skip
    tls_cert_path: str | None = _option(
        None, "PEM file with the server's certificate: serve HTTPS (HTTP/1.1 and HTTP/2). Read again when it changes.",
        "Security", metavar="FILE", guards=True,
    )  # fmt: skip
    tls_key_path: str | None = _option(
        None, "PEM file with the certificate's private key.", "Security", metavar="FILE", guards=True
    )
    tls_client_ca_path: str | None = _option(
        None, "PEM file with certificates: only clients with a certificate signed by one of them are accepted.",
        "Security", metavar="FILE", guards=True,
    )  # fmt: skip
    hook: tuple[str, ...] = _option(
        (), "Installed plug-in(s) that see requests and answers, in this order.", "Plug-ins", metavar="NAME"
    )
    hook_fault: str = _option(
        "open", "What becomes of a request whose hook fails or takes more than a second: open serves it, closed "
        "answers 503.", "Plug-ins", choices=("open", "closed"),
    )  # fmt: skip
    hook_text: bool = _option(False, "Show hooks the text of answers, too.", "Plug-ins")
    plugin_option: tuple[str, ...] = _option(
        (), "What plug-ins are told, each NAME.key=value.", "Plug-ins", metavar="NAME.KEY=VALUE"
    )
    plugin_file: tuple[str, ...] = _option(
        (), "Python file(s) with tables of plug-ins (tool_parsers = {...}), for trials; others must not be able to "
        "write to them.", "Plug-ins", metavar="FILE",
    )  # fmt: skip
    prometheus_host: str = _option("0.0.0.0", "Address of the metrics listener.", "Observability")  # noqa: S104 - as `host`
    prometheus_port: int = _option(29000, "Port of the metrics listener; 0 lets the system choose.", "Observability")
    prometheus_tls_cert_path: str | None = _option(
        None, "PEM file with the metrics listener's certificate: serve HTTPS there. Read again when it changes.",
        "Observability", metavar="FILE", guards=True,
    )  # fmt: skip
    prometheus_tls_key_path: str | None = _option(
        None, "PEM file with that certificate's private key.", "Observability", metavar="FILE", guards=True
    )
    prometheus_tls_client_ca_path: str | None = _option(
        None, "PEM file with certificates: only scrapers with a certificate signed by one of them are let in.",
        "Observability", metavar="FILE", guards=True,
    )  # fmt: skip
    prometheus_duration_buckets: tuple[str, ...] = _option(
        (), "Upper bounds of the buckets of durations in seconds, ascending; by default 15 from 0.005 to 300. Times "
        "per token have their own.", "Observability", metavar="S",
    )  # fmt: skip
    metrics_compat: str = _option("none", "Metrics by vLLM's names, too.", "Observability", choices=METRICS_COMPAT)
    metrics_on_port: bool = _option(False, "Serve GET /metrics on the HTTP port too.", "Observability")
    log_level: str = _option("info", "How much is logged.", "Observability", choices=LOG_LEVELS)
    log_json: bool = _option(False, "Log as JSON, one object per line.", "Observability")
    log_dir: str | None = _option(
        None, "Write the log to smg-trio.log in this directory too; kept below 100 MB, with five older files.",
        "Observability", metavar="DIR",
    )  # fmt: skip
    access_log: bool = _option(True, "One line per request, at level info.", "Observability")
    dashboard: bool = _option(
        True, "Serve the live page at /dashboard and its feed, which `smg-trio top` reads too.", "Observability"
    )
    usage_log: str | None = _option(
        None, "File that gets one JSON object per generation: whose, which model, tokens, times.", "Observability",
        metavar="FILE",
    )  # fmt: skip
    usage_identities: int = _option(
        100, "Key holders and identities with usage metrics of their own, the first ones seen; later ones are counted "
        "together as other. 0: no such metrics.", "Observability", metavar="N",
    )  # fmt: skip
    enable_trace: bool = _option(
        False, "Trace requests with OpenTelemetry (needs smg-trio[tracing]); OTEL_* variables are honoured.",
        "Observability",
    )  # fmt: skip
    otlp_traces_endpoint: str = _option(
        "localhost:4318", "Collector that takes traces as OTLP over HTTP: host:port, or a URL; over gRPC: "
        "grpc://host:port (needs smg-trio[tracing-grpc]).", "Observability", metavar="ADDRESS",
    )  # fmt: skip
    engine_silence_secs: float = _option(
        300.0, "Seconds without output, while requests are in flight, after which an engine counts as dead.",
        "Limits", metavar="S",
    )  # fmt: skip
    engine_send_timeout_secs: float = _option(
        10.0, "Seconds handing one request to an engine may take before it counts as dead.", "Limits", metavar="S"
    )
    zmq_startup_timeout_secs: float = _option(
        600.0, "Seconds to wait for each handshake message before a warning is logged.", "Limits", metavar="S"
    )


def options() -> Sequence[dataclasses.Field[Any]]:
    """The fields of `Settings` in order, with their metadata."""
    return dataclasses.fields(Settings)
