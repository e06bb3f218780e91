"""Engines' own figures decide who is overloaded."""

from __future__ import annotations

from smg_trio.core.engines import EngineLoad
from smg_trio.routing.overload import OverloadLimits


def overloaded(limits: OverloadLimits, *busy: EngineLoad, engine_count: int = 0) -> bool:
    """Whether a worker is whose busy engines (all, unless there are more) have these loads."""
    return limits.overloaded(busy, engine_count or len(busy))


def test_thresholds_are_inclusive():
    limits = OverloadLimits()
    assert not overloaded(limits, EngineLoad(waiting=7, kv_usage=0.79))
    assert overloaded(limits, EngineLoad(waiting=8))
    assert overloaded(limits, EngineLoad(kv_usage=0.8))


def test_waiting_requests_of_all_ranks_count_together_and_cache_use_on_average():
    limits = OverloadLimits()
    assert overloaded(limits, EngineLoad(waiting=4), EngineLoad(waiting=4))
    assert not overloaded(limits, EngineLoad(kv_usage=0.9), EngineLoad(kv_usage=0.6))
    assert overloaded(limits, EngineLoad(kv_usage=0.9), EngineLoad(kv_usage=0.8))


def test_an_idle_engine_has_room():
    assert not overloaded(OverloadLimits(), engine_count=1)
    assert not overloaded(OverloadLimits(), EngineLoad(kv_usage=0.9), engine_count=2)


def test_a_threshold_can_be_switched_off():
    assert not overloaded(OverloadLimits(None, 0.8), EngineLoad(waiting=50))
    assert not overloaded(OverloadLimits(8, None), EngineLoad(kv_usage=1.0))
    assert not OverloadLimits(None, None).active
