"""Settings of workers, of how one is chosen, and of what happens when one fails."""

from __future__ import annotations

from dataclasses import dataclass

from smg_trio.settings.choices import POLICIES
from smg_trio.settings.flags import option as _option
from smg_trio.settings.workers import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings(WorkerSettings):
    """The groups Workers, Processes, Routing, Admission and Resilience of `Settings`."""

    backend: str | None = _option(
        None,
        "Engine protocol of these workers: vllm or tokenspeed. Unset means vllm, with a warning.",
        "Workers",
        metavar="NAME",
    )
    zmq_engine_count: int = _option(
        1, "Engines (data-parallel ranks) behind each of these workers.", "Workers", metavar="N"
    )
    dp_aware: bool = _option(
        False,
        "Accepted for workers of one engine; for a group behind one worker set --zmq-engine-count instead.",
        "Workers",
    )
    zmq_handshake_address: str | None = _option(
        None, "tcp://host:port to bind for the handshake instead of the derived one (one worker only).", "Workers"
    )
    processes: str = _option(
        "1", "Gateway processes that serve the port together, each on a processor of its own; auto: one per processor.",
        "Processes", metavar="N|auto",
    )  # fmt: skip
    policy: str = _option(
        "least_load",
        f"How a worker is chosen among several of one model: {', '.join(POLICIES)}, or an installed plug-in.",
        "Routing",
        metavar="NAME",
    )
    cache_threshold: float = _option(
        0.3, "cache_aware: share of a prompt (0..1) that must match before the worker that has it is preferred.",
        "Routing", flags=("--cache-match-threshold",), metavar="SHARE",
    )  # fmt: skip
    balance_abs_threshold: float = _option(
        64.0, "cache_aware: a matching worker is passed over if its load is above the mean by more than this (in a "
        "small pool: by more than chance makes of it) and by --balance-rel-threshold.", "Routing",
        flags=("--spill-abs-threshold",), metavar="N",
    )  # fmt: skip
    balance_rel_threshold: float = _option(
        1.5, "cache_aware: see --balance-abs-threshold; a multiple of the mean load.", "Routing",
        flags=("--spill-rel-threshold",), metavar="FACTOR",
    )  # fmt: skip
    max_tree_size: int = _option(
        67108864, "cache_aware: size of each model's prefix tree in tokens of four bytes.", "Routing", metavar="TOKENS"
    )
    eviction_interval_secs: float = _option(
        60.0, "No effect; accepted for compatibility with SMG. The prefix tree never exceeds its size, so nothing "
        "waits for a round of eviction.", "Routing", metavar="S",
    )  # fmt: skip
    block_size: int = _option(
        16, "cache_aware: tokens per block; prompts are compared at multiples of it.", "Routing", metavar="TOKENS"
    )
    prefix_token_count: int = _option(
        256, "prefix_hash: how many tokens of a prompt are hashed.", "Routing", metavar="TOKENS"
    )
    prefix_hash_load_factor: float = _option(
        1.25, "prefix_hash: a worker is passed over if its load is above this multiple of the mean and above the mean "
        "by --prefix-hash-balance-abs-threshold.", "Routing", metavar="FACTOR",
    )  # fmt: skip
    prefix_hash_balance_abs_threshold: float = _option(
        10.0, "prefix_hash: see --prefix-hash-load-factor.", "Routing", metavar="N"
    )
    max_idle_secs: float = _option(
        14400.0, "manual, --routing-key-override: an unused routing key is forgotten after this long.", "Routing",
        flags=("--sticky-key-idle-secs",), metavar="S",
    )  # fmt: skip
    assignment_mode: str = _option(
        "random", "manual: how a new routing key finds its worker.", "Routing",
        choices=("random", "min_load", "min_group", "delegate"),
    )  # fmt: skip
    routing_key_override: bool = _option(
        False, "Requests with a routing key stay with one worker, whatever the policy, which chooses for new keys.",
        "Routing", flags=("--sticky-sessions",),
    )  # fmt: skip
    routing_key_headers: tuple[str, ...] = _option(
        ("x-smg-routing-key",), "Headers a routing key is taken from; the first one with a value wins.", "Routing",
        metavar="NAME",
    )  # fmt: skip
    max_concurrent_requests: int = _option(
        -1, "Concurrent requests, streams included. -1: 1024 per processor, at least 4096; 0: no limit.",
        "Admission", metavar="N",
    )  # fmt: skip
    queue_size: int = _option(
        100, "Requests that may wait in the admission queue; 0: refuse immediately.", "Admission", metavar="N"
    )
    queue_timeout_secs: float = _option(60.0, "Longest wait in the admission queue.", "Admission", metavar="S")
    rate_limit_tokens_per_second: float = _option(
        0.0, "Requests (not tokens, in spite of the name) begun per second; after a pause a burst of up to "
        "--max-concurrent-requests. Others wait in the queue. 0: no limit.", "Admission", metavar="N",
    )  # fmt: skip
    worker_overload_protection: bool = _option(
        False, "No effect; accepted for compatibility with SMG. Protection is on unless it is disabled.", "Admission"
    )
    disable_worker_overload_protection: bool = _option(
        False, "Keep routing to overloaded workers.",
        "Admission",
    )  # fmt: skip
    worker_overload_waiting_requests: int = _option(
        8, "Queued requests at which a worker counts as overloaded.", "Admission", metavar="N"
    )
    worker_overload_token_usage: float = _option(
        0.8, "Share of the KV cache in use (0..1) at which a worker counts as overloaded.", "Admission", metavar="SHARE"
    )
    worker_overload_shed: bool = _option(
        False, "Refuse a request (503) if every worker is overloaded, instead of taking the least loaded.", "Admission"
    )
    retry_max_retries: int = _option(
        5, "Attempts per request, the first included, where a retry can help.", "Resilience", metavar="N"
    )
    retry_initial_backoff_ms: float = _option(50.0, "Delay before the second attempt.", "Resilience", metavar="MS")
    retry_max_backoff_ms: float = _option(30000.0, "Longest delay between attempts.", "Resilience", metavar="MS")
    retry_backoff_multiplier: float = _option(
        1.5, "Factor by which the delay grows each time.", "Resilience", metavar="FACTOR"
    )
    retry_jitter_factor: float = _option(
        0.2, "Random share of the delay (0..1), added or subtracted.", "Resilience", metavar="SHARE"
    )
    disable_retries: bool = _option(False, "One attempt per request.", "Resilience")
    cb_failure_threshold: int = _option(
        10, "Failures in a row after which a worker's circuit breaker opens.", "Resilience", metavar="N"
    )
    cb_success_threshold: int = _option(
        3, "Successes after which a half-open breaker closes; also the number of concurrent trial requests.",
        "Resilience", metavar="N",
    )  # fmt: skip
    cb_timeout_duration_secs: float = _option(
        60.0, "How long a breaker stays open before it is tried.", "Resilience", metavar="S"
    )
    cb_window_duration_secs: float = _option(
        120.0, "The failures that open a breaker lie within this time.", "Resilience", metavar="S"
    )
    disable_circuit_breaker: bool = _option(False, "No circuit breakers.", "Resilience")
    health_failure_threshold: int = _option(
        3, "Failed probes before a worker is marked failed: N×10 if it was never ready, N×3 otherwise.",
        "Resilience", metavar="N",
    )  # fmt: skip
    health_success_threshold: int = _option(
        2,
        "Successful probes that make a worker ready; an engine that connects makes it ready immediately.",
        "Resilience",
        metavar="N",
    )
    health_check_interval_secs: float = _option(
        60.0, "Seconds between probes. Deaths and reconnects are noticed without them. http workers are probed every "
        "10 s, or as often as this says if that is more often.", "Resilience", metavar="S",
    )  # fmt: skip
    health_check_timeout_secs: float = _option(
        5.0, "http workers: longest wait for the answer to a probe. No effect on others, where a probe looks at the "
        "connection and cannot time out.", "Resilience", metavar="S",
    )  # fmt: skip
    disable_health_check: bool = _option(
        False,
        "No effect but a warning; accepted for compatibility with SMG. The probe is local and costs the engine "
        "nothing.",
        "Resilience",
    )
    remove_unhealthy_workers: bool = _option(
        False, "Remove a worker when it has failed.", "Resilience", flags=("--worker-auto-recovery",)
    )
