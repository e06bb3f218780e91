"""What the settings mean to this room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from smg_trio.core.errors import ConfigError
from smg_trio.core.workers import BreakerOverrides, OverloadOverrides, RetryOverrides
from smg_trio.routing.breaker import BreakerLimits
from smg_trio.routing.overload import OverloadLimits
from smg_trio.routing.policies import CacheAwareOptions, ManualOptions, ManualSessions, PolicyOptions, PrefixHashOptions
from smg_trio.routing.retries import NO_RETRIES, RetrySchedule
from smg_trio.routing.rules import (
    RoutingRules,
    admission_queue_of,
    policy_of,
    routing_key_of,
    rules_of,
)
from smg_trio.settings.checks import check_settings
from smg_trio.settings.choices import POLICIES
from smg_trio.settings.settings import Settings


def test_the_settings_defaults_are_the_rooms_defaults():
    settings = Settings()
    assert rules_of(settings) == RoutingRules()
    assert admission_queue_of(settings, 2).statistics().limit == 4096
    defaults = PolicyOptions()
    assert defaults.cache_aware == CacheAwareOptions(
        settings.cache_threshold,
        settings.balance_abs_threshold,
        settings.balance_rel_threshold,
        settings.max_tree_size,
        settings.block_size,
    )
    assert defaults.prefix_hash == PrefixHashOptions(
        settings.prefix_token_count, settings.prefix_hash_load_factor, settings.prefix_hash_balance_abs_threshold
    )
    assert defaults.sticky_keys == ManualOptions(settings.max_idle_secs)
    assert defaults.assignment_mode == settings.assignment_mode


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_set(name):
    assert policy_of(Settings(policy=name)).name == name
    sticky = policy_of(Settings(policy=name, routing_key_override=True))
    assert isinstance(sticky, ManualSessions)
    assert sticky.name == name


def test_what_is_disabled_is_off():
    off = Settings(disable_circuit_breaker=True, disable_retries=True, disable_worker_overload_protection=True)
    assert rules_of(off).breaker is None
    assert not rules_of(off).overload.active
    assert rules_of(off).retry is None


def test_a_worker_s_own_word_comes_first():
    rules = RoutingRules()
    assert rules.breaker_of(BreakerOverrides()) == BreakerLimits()
    assert rules.breaker_of(BreakerOverrides(disabled=True)) is None
    own = BreakerOverrides(failure_threshold=1, timeout_duration_secs=2.0)
    assert rules.breaker_of(own) == BreakerLimits(failure_threshold=1, timeout_s=2.0)
    without = replace(rules, breaker=None)
    assert without.breaker_of(own) is None
    assert without.breaker_of(BreakerOverrides(disabled=False)) == BreakerLimits()
    assert rules.retry_of(RetryOverrides()) == RetrySchedule()
    own_retries = RetryOverrides(
        max_retries=2, initial_backoff_ms=0.0, max_backoff_ms=500.0, backoff_multiplier=3.0, jitter_factor=0.0
    )
    assert rules.retry_of(own_retries) == RetrySchedule(2, 0.0, 0.5, 3.0, 0.0)
    assert rules.retry_of(RetryOverrides(disabled=True)) == NO_RETRIES
    assert replace(rules, retry=None).retry_of(own_retries) == NO_RETRIES
    assert replace(rules, retry=None).retry_of(RetryOverrides(disabled=False)) == RetrySchedule()
    assert rules.overload_of(OverloadOverrides(waiting_requests=2)) == OverloadLimits(2, 0.8)
    assert replace(rules, overload=OverloadLimits(None, None)).overload_of(
        OverloadOverrides(token_usage=0.5)
    ) == OverloadLimits(None, 0.5)


def test_the_routing_key_is_the_first_named_header_with_a_value():
    headers = [("X-User", "u"), ("X-SMG-Routing-Key", " k "), ("x-empty", "  ")]
    assert routing_key_of(headers, ["x-smg-routing-key", "x-user"]) == "k"
    assert routing_key_of(headers, ["x-empty", "x-user"]) == "u"
    assert routing_key_of(headers, ["x-nobody"]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_threshold", 1.1),
        ("cache_threshold", -0.1),
        ("cache_threshold", float("nan")),
        ("balance_rel_threshold", 0.9),
        ("max_tree_size", 0),
        ("block_size", 0),
        ("prefix_hash_load_factor", float("inf")),
        ("max_idle_secs", 0),
        ("max_concurrent_requests", -2),
        ("queue_size", -1),
        ("queue_timeout_secs", 0),
        ("worker_overload_token_usage", 1.01),
        ("worker_overload_waiting_requests", 0),
        ("retry_max_retries", 0),
        ("retry_backoff_multiplier", 0.5),
        ("retry_jitter_factor", 2),
        ("cb_failure_threshold", 0),
        ("cb_window_duration_secs", 0),
        ("health_failure_threshold", 0),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(name, value):
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
        check_settings(Settings(**{name: value}))


def test_the_defaults_are_accepted():
    check_settings(Settings())
