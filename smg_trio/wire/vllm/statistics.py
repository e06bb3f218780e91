"""What vLLM's engines say of themselves beside outputs: their load, and what they have counted since.

Mirrors vLLM 0.32.0's `vllm/v1/metrics/stats.py` (``SchedulerStats``, ``PrefixCacheStats``),
`vllm/v1/spec_decode/metrics.py` (``SpecDecodingStats``) and `vllm/v1/engine/__init__.py` (``EngineCoreEvent``). All
counts are since the message before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.engines import EngineCounts, EngineLoad
from smg_trio.wire.packing import Malformed, expect_map

if TYPE_CHECKING:
    from smg_trio.core.outputs import EngineBatch

_QUEUED, _SCHEDULED, _PREEMPTED = 1, 2, 3
_MAX_COUNT: Final = 1 << 40
"""More than a message can count: what is beyond is not a count."""


def note_statistics(batch: EngineBatch, stats: Any) -> None:
    """Set the batch's load and, where there is something, its counts. Raises Malformed."""
    get = expect_map(stats).get
    running, waiting, deferred = get("num_running_reqs", 0), get("num_waiting_reqs", 0), get("num_skipped_waiting_reqs")
    usage = get("kv_cache_usage", 0.0)
    if type(running) is not int or type(waiting) is not int or not isinstance(usage, (int, float)):
        raise Malformed("scheduler statistics hold something other than numbers")
    batch.load = EngineLoad(running, waiting, float(usage), deferred if type(deferred) is int else 0)
    prefix, connector = get("prefix_cache_stats"), get("connector_prefix_cache_stats")
    drafting = get("spec_decoding_stats")
    if type(prefix) is dict and prefix.get("queries"):
        counts = _counts_of(batch)
        counts.prefix_queries, counts.prefix_hits = _count(prefix, "queries"), _count(prefix, "hits")
    if type(connector) is dict:
        counts = _counts_of(batch)
        counts.external_queries, counts.external_hits = _count(connector, "queries"), _count(connector, "hits")
    if type(drafting) is dict:
        _note_drafts(_counts_of(batch), drafting)


def note_events(batch: EngineBatch, request_id: str, events: Any) -> None:
    """Note how long a request was queued, and count its preemptions. Raises Malformed."""
    if type(events) is not list:
        raise Malformed("events are not an array")
    times: dict[int, float] = {}
    for event in events:
        get = expect_map(event).get
        kind, timestamp = get("type"), get("timestamp")
        if kind == _PREEMPTED:
            _counts_of(batch).preemptions += 1
        elif type(kind) is int and isinstance(timestamp, (int, float)):
            times.setdefault(kind, timestamp)  # a request that was preempted is scheduled once more
    if _QUEUED in times and _SCHEDULED in times:
        if batch.queue_times is None:
            batch.queue_times = {}
        batch.queue_times[request_id] = max(0.0, times[_SCHEDULED] - times[_QUEUED])


def _note_drafts(counts: EngineCounts, stats: dict[Any, Any]) -> None:
    counts.drafts = _count(stats, "num_drafts")
    counts.draft_tokens = _count(stats, "num_draft_tokens")
    counts.accepted_tokens = _count(stats, "num_accepted_tokens")
    accepted = stats.get("num_accepted_tokens_per_pos")
    if type(accepted) is list and all(type(one) is int and 0 <= one < _MAX_COUNT for one in accepted):
        counts.accepted_per_position = tuple(accepted)


def _counts_of(batch: EngineBatch) -> EngineCounts:
    if batch.counts is None:
        batch.counts = EngineCounts()
    return batch.counts


def _count(stats: dict[Any, Any], name: str) -> int:
    """A count; 0 where it is none, so that counters never fall."""
    value = stats.get(name)
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0
