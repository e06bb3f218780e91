"""Metrics of media: what was read and processed, how long it took, what was refused, and what it holds of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from smg_trio.gateway.observability.series import CounterFamily, HistogramFamily
from smg_trio.media.hooks import MediaHooks

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from smg_trio.core.media import Modality
    from smg_trio.media.hooks import Origin

_STAGE_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class MediaMetrics(Collector):
    """All of them. `hooks` are what the room `media` tells.

    Labels: ``modality``; ``origin`` is ``inline`` (base64) or ``fetched``; ``stage`` is ``read`` (to the file's bytes)
    or ``process`` (decoding and resizing, the wait for the helper process included); ``reason`` is the code of the
    error that the client got.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._items = CounterFamily(
            registry, "smg_media_items", "Images and videos that were read.", ("modality", "origin")
        )
        self._bytes = CounterFamily(registry, "smg_media_bytes", "Bytes of their files.", ("modality", "origin"))
        self._refused = CounterFamily(
            registry, "smg_media_refused", "Images and videos that were refused.", ("modality", "reason")
        )
        self._seconds = HistogramFamily(
            registry, "smg_media_stage_seconds", "Time that an item takes.", ("modality", "stage"), _STAGE_BUCKETS_S
        )
        self._lookups = CounterFamily(
            registry, "smg_media_cache_lookups", "Items looked up among those processed before.", ("result",)
        )
        self._held = self._waiting = 0
        self.hooks = MediaHooks(
            read=self._read,
            refused=self._refuse,
            looked_up=self._look_up,
            processed=self._process,
            bytes_in_flight=self._hold,
            waiting=self._wait,
        )
        registry.register(self)

    def _read(self, modality: Modality, origin: Origin, size: int, seconds: float) -> None:
        self._items.at(modality, origin).inc()
        self._bytes.at(modality, origin).inc(size)
        self._seconds.at(modality, "read").observe(seconds)

    def _refuse(self, modality: Modality, reason: str) -> None:
        self._refused.at(modality, reason).inc()

    def _look_up(self, hit: bool) -> None:
        self._lookups.at("hit" if hit else "miss").inc()

    def _process(self, modality: Modality, seconds: float) -> None:
        self._seconds.at(modality, "process").observe(seconds)

    def _hold(self, held: int) -> None:
        self._held = held

    def _wait(self, waiting: int) -> None:
        self._waiting = waiting

    def lookups(self) -> tuple[float, float]:
        """Items looked up among those processed before, and those of them that were there."""
        hits = self._lookups.at("hit").value
        return hits + self._lookups.at("miss").value, hits

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield GaugeMetricFamily("smg_media_in_flight_bytes", "Memory that media of requests hold.", self._held)
        yield GaugeMetricFamily("smg_media_waiting", "Items that wait for memory.", self._waiting)
