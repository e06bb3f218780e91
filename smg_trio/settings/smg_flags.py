"""Flags of the reference gateway (SMG 1.11 and 1.13) that have no effect here, so that its users' scripts start us.

They concern gRPC workers, meshes, prefill/decode splits and stores that this gateway does
not have, or knobs of policies and limits that work differently here. Values are not looked at. What only says in other
words what one of our flags says (`TRANSLATED`) has effect.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

NOTE: Final = "No effect; accepted for compatibility with SMG."

_SWITCHES: Final = """
    disable-load-monitoring disable-tokenizer-autoload dp-minimum-tokens-scheduler enable-igw enable-mesh enable-rl
    enable-wasm epd-disaggregation log-mm-timing mm-pixel-rdma oracle-external-auth
    pd-disaggregation priority-scheduler-enabled tenant-rate-limit-enabled
    tokenizer-cache-enable-l0 tokenizer-cache-enable-l1 trust-tenant-header upstream-http2
"""
_WITH_VALUE: Final = """
    balance-token-usage-threshold bucket-adjust-interval-secs cache-boundaries cache-index cache-ttl-secs
    client-cert-path client-key-path decode decode-policy discovery-check-interval-secs discovery-file
    discovery-provider encode-policy header-read-timeout-secs history-memory-max-items
    history-memory-max-responses idle-connection-timeout-secs jemalloc-prof-dir
    job-queue-capacity job-queue-concurrency kv-connector-annotation
    kv-engine-id-annotation kv-index least-load-default-throughput least-load-kv-pressure-weight
    least-load-max-waiting-requests least-load-mean-prefill-tokens load-monitor-interval max-background-responses
    max-buffered-request-bytes mcp-config-path mesh-advertise-host mesh-host mesh-port mesh-server-name
    mesh-tls-ca-cert mesh-tls-cert mesh-tls-key mm-processing model-id-from multimodal-shm-min-bytes
    multimodal-tensor-transport oracle-connect-descriptor oracle-password oracle-pool-max oracle-pool-min
    oracle-pool-timeout-secs oracle-tns-alias oracle-username oracle-wallet-path overlap-decay
    overload-token-usage-threshold parser pd-admission-wait-secs
    power-of-two-load-metric prefill-max-inflight-requests-per-worker prefill-policy
    prefill-queue-size prefill-queue-timeout-secs priority-scheduler-config priority-scheduler-default-max-class
    priority-scheduler-tenant-metric-top-n rdma-listen-ip rdma-slot-ttl-s redis-op-timeout-secs redis-pool-max
    redis-retention-days redis-url rl-control-timeout-secs rl-fanout-concurrency schema-config
    selection-accounting-ttl-ms selection-policy selection-temperature
    storage-hook-wasm-path stream-body-stall-timeout-secs tenant-header-name
    tenant-rate-limit-config tokenizer-cache-l0-max-entries tokenizer-cache-l0-max-memory
    worker-stale-secs worker-stall-secs worker-startup-check-interval
    worker-startup-delay worker-startup-timeout-secs worker-warmup-blocks worker-warmup-divert-every
    worker-warmup-secs worker-warmup-share worker-warmup-thin-ratio worker-wedge-secs
"""
_WITH_VALUES: Final = """
    ca-cert-paths decode-selector encode encode-selector mesh-peer-urls prefill prefill-selector
    router-selector storage-context-headers
"""
SWITCHES: Final = tuple(_SWITCHES.split())
"""Names of flags without a value."""
WITH_VALUE: Final = tuple(_WITH_VALUE.split())
WITH_VALUES: Final = tuple(_WITH_VALUES.split())
"""Names of flags with any number of values."""


def _as_fetch_allow(domains: str) -> Mapping[str, Any]:
    return {"mm_fetch": "allowlist", "mm_fetch_allow": [name for name in domains.split(",") if name.strip()]}


class Translation(NamedTuple):
    """A flag of the reference's that stands for settings of ours."""

    metavar: str
    kind: Callable[[str], Any]
    settings: Callable[[Any], Mapping[str, Any]]
    meaning: str


TRANSLATED: Final[Mapping[str, Translation]] = {
    "mm-allowed-media-domains": Translation(
        "HOSTS", str, _as_fetch_allow, "As --mm-fetch allowlist --mm-fetch-allow HOSTS; separated by commas."
    ),
    "mm-per-request-image-limit": Translation(
        "N", int, lambda most: {"limit_mm": [f"image={most}"]}, "As --limit-mm image=N."
    ),
    "mm-pixel-cache-mb": Translation(
        "N", int, lambda size: {"mm_cache_bytes": size << 20}, "As --mm-cache-bytes, in MiB."
    ),
}


class _Translated(argparse.Action):
    """Sets the settings that the flag stands for; `--mm-fetch` itself wins wherever it stands."""

    def __init__(self, *arguments: Any, translation: Translation, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._translation = translation

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        for name, value in self._translation.settings(values).items():
            if isinstance(value, list):
                setattr(namespace, name, [*getattr(namespace, name, ()), *value])
            elif name != "mm_fetch" or not hasattr(namespace, name):
                setattr(namespace, name, value)


class _Noted(argparse.Action):
    """Remembers that the flag was given, under its own name."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        given = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*given, self.option_strings[-1]))


def add_smg_flags(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """Have `parser` take the flags; `prefix` stands in front of their names (``router-``)."""
    names = sorted((*SWITCHES, *WITH_VALUE, *WITH_VALUES))
    listed = ", ".join(f"--{prefix}{name}" for name in names)
    group = parser.add_argument_group("Compatibility", f"{NOTE} {listed}")
    for flags, arity in ((SWITCHES, 0), (WITH_VALUE, None), (WITH_VALUES, "*")):
        for name in flags:
            group.add_argument(
                f"--{prefix}{name}",
                action=_Noted,
                nargs=arity,
                dest="smg_flags",
                default=argparse.SUPPRESS,
                help=argparse.SUPPRESS,
            )
    for name, translation in TRANSLATED.items():
        group.add_argument(
            f"--{prefix}{name}",
            action=_Translated,
            translation=translation,
            type=translation.kind,
            metavar=translation.metavar,
            dest="smg_translated",
            default=argparse.SUPPRESS,
            help=translation.meaning,
        )


def given_smg_flags(parsed: argparse.Namespace, prefix: str = "") -> list[str]:
    """The flags that a command line gave, without their prefix, each once."""
    given: Sequence[str] = getattr(parsed, "smg_flags", ())
    return list(dict.fromkeys(f"--{flag.removeprefix(f'--{prefix}')}" for flag in given))


def notes_on(flags: Sequence[str]) -> list[str]:
    """Warnings about these flags of the reference's."""
    return [f"No effect here, accepted for compatibility with SMG: {', '.join(flags)}"] if flags else []
