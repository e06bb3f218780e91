"""The rules workers are chosen and kept by, and what the settings mean to this room. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from smg_trio.core.media import PixelForm
from smg_trio.routing.admission import AdmissionQueue, admission_limit
from smg_trio.routing.breaker import BreakerLimits
from smg_trio.routing.lifecycle import HealthThresholds
from smg_trio.routing.overload import OverloadLimits
from smg_trio.routing.policies import (
    CacheAwareOptions,
    ManualOptions,
    Policy,
    PolicyOptions,
    PolicyPlugin,
    PrefixHashOptions,
    make_policy,
)
from smg_trio.routing.retries import NO_RETRIES, RetrySchedule

if TYPE_CHECKING:
    from smg_trio.core.workers import BreakerOverrides, OverloadOverrides, RetryOverrides
    from smg_trio.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """Limits handed to every worker, in seconds; see `worker` for what each one ends."""

    silence_limit_s: float = 300.0
    send_limit_s: float = 10.0
    handshake_limit_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRules:
    """When workers are left out, and when they are removed.

    Attributes:
        breaker: limits of every worker's circuit breaker; None for none.
        retry: attempts and delays after a worker has failed a request; None for no retries.
        overload: thresholds above which a worker is left out while another one is below.
        shed_overload: refuse a request when every worker is above them.
        health: when waiting for an engine becomes failure.
        remove_failed: whether a worker that has failed is removed.
        drain_limit_s: how long the answers of a worker that is to be removed may go on.
    """

    breaker: BreakerLimits | None = field(default_factory=BreakerLimits)
    retry: RetrySchedule | None = field(default_factory=RetrySchedule)
    overload: OverloadLimits = field(default_factory=OverloadLimits)
    shed_overload: bool = False
    health: HealthThresholds = field(default_factory=HealthThresholds)
    remove_failed: bool = False
    drain_limit_s: float = 180.0

    def breaker_of(self, own: BreakerOverrides) -> BreakerLimits | None:
        """A worker's breaker limits, its own word first."""
        if own.disabled or (self.breaker is None and own.disabled is None):
            return None
        base = self.breaker or BreakerLimits()
        return BreakerLimits(
            failure_threshold=own.failure_threshold or base.failure_threshold,
            success_threshold=own.success_threshold or base.success_threshold,
            timeout_s=base.timeout_s if own.timeout_duration_secs is None else own.timeout_duration_secs,
            window_s=base.window_s if own.window_duration_secs is None else own.window_duration_secs,
        )

    def retry_of(self, own: RetryOverrides) -> RetrySchedule:
        """What is done after a worker has failed a request, its own settings first."""
        if own.disabled or (self.retry is None and own.disabled is None):
            return NO_RETRIES
        base = self.retry or RetrySchedule()
        initial_ms, max_ms = own.initial_backoff_ms, own.max_backoff_ms
        return RetrySchedule(
            max_attempts=own.max_retries or base.max_attempts,
            initial_s=base.initial_s if initial_ms is None else initial_ms / 1000,
            max_s=base.max_s if max_ms is None else max_ms / 1000,
            multiplier=own.backoff_multiplier or base.multiplier,
            jitter=base.jitter if own.jitter_factor is None else own.jitter_factor,
        )

    def overload_of(self, own: OverloadOverrides) -> OverloadLimits:
        """A worker's overload thresholds, its own word first."""
        waiting, usage = own.waiting_requests, own.token_usage
        return OverloadLimits(
            waiting_requests=self.overload.waiting_requests if waiting is None else waiting,
            token_usage=self.overload.token_usage if usage is None else usage,
        )


def rules_of(settings: Settings) -> RoutingRules:
    """The rules of a gateway."""
    breaker = BreakerLimits(
        failure_threshold=settings.cb_failure_threshold,
        success_threshold=settings.cb_success_threshold,
        timeout_s=settings.cb_timeout_duration_secs,
        window_s=settings.cb_window_duration_secs,
    )
    retry = RetrySchedule(
        max_attempts=settings.retry_max_retries,
        initial_s=settings.retry_initial_backoff_ms / 1000,
        max_s=settings.retry_max_backoff_ms / 1000,
        multiplier=settings.retry_backoff_multiplier,
        jitter=settings.retry_jitter_factor,
    )
    return RoutingRules(
        breaker=None if settings.disable_circuit_breaker else breaker,
        retry=None if settings.disable_retries else retry,
        overload=OverloadLimits(None, None)
        if settings.disable_worker_overload_protection
        else OverloadLimits(settings.worker_overload_waiting_requests, settings.worker_overload_token_usage),
        shed_overload=settings.worker_overload_shed,
        health=HealthThresholds(
            failure_threshold=settings.health_failure_threshold,
            success_threshold=settings.health_success_threshold,
            interval_s=settings.health_check_interval_secs,
        ),
        remove_failed=settings.remove_unhealthy_workers,
        drain_limit_s=settings.shutdown_grace_period_secs,
    )


def timeouts_of(settings: Settings) -> WorkerTimeouts:
    """The limits of every worker."""
    return WorkerTimeouts(
        settings.engine_silence_secs, settings.engine_send_timeout_secs, settings.zmq_startup_timeout_secs
    )


def policy_of(settings: Settings, random: Random | None = None, plugin: PolicyPlugin | None = None) -> Policy:
    """The policy of a gateway, with its options; the plug-in's, where the setting names one."""
    options = PolicyOptions(
        cache_aware=CacheAwareOptions(
            cache_threshold=settings.cache_threshold,
            balance_abs_threshold=settings.balance_abs_threshold,
            balance_rel_threshold=settings.balance_rel_threshold,
            max_tree_size=settings.max_tree_size,
            block_size=settings.block_size,
        ),
        prefix_hash=PrefixHashOptions(
            prefix_token_count=settings.prefix_token_count,
            load_factor=settings.prefix_hash_load_factor,
            balance_abs_threshold=settings.prefix_hash_balance_abs_threshold,
        ),
        sticky_keys=ManualOptions(max_idle_s=settings.max_idle_secs),
        assignment_mode=settings.assignment_mode,
        sticky=settings.routing_key_override,
    )
    return make_policy(settings.policy, options, random, plugin)


def admission_queue_of(settings: Settings, cpu_count: int) -> AdmissionQueue:
    """The admission queue of a gateway on a host with so many processors."""
    limit = admission_limit(settings.max_concurrent_requests, cpu_count)
    rate_per_s = settings.rate_limit_tokens_per_second or None
    return AdmissionQueue(limit, settings.queue_size, settings.queue_timeout_secs, rate_per_s=rate_per_s)


def pixel_form_of(settings: Settings) -> PixelForm | None:
    """The form in which all engines are sent media (``--mm-pixels``); None to ask each of them."""
    return {"uint8": PixelForm.UINT8, "model": PixelForm.NORMALISED}.get(settings.mm_pixels)


def routing_key_of(headers: Sequence[tuple[str, str]], names: Sequence[str]) -> str | None:
    """The routing key of a request: the first of `names` (lower case) that a header has a value for."""
    for name in names:
        for header, value in headers:
            if header.lower() == name and value.strip():
                return value.strip()
    return None
