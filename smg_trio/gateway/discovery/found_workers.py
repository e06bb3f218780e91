"""Makes the workers of one source what was found there: adds, drains, and adds again what was lost meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import trio

from smg_trio.core.errors import Conflict, NotFound, SmgError
from smg_trio.core.workers import WorkerSpec, WorkerState

if TYPE_CHECKING:
    from smg_trio.gateway.observability.discovery_metrics import DiscoveryMetrics
    from smg_trio.routing.registry import Registry

logger = logging.getLogger("smg_trio.gateway")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Added:
    worker_id: str
    labels: Labels


class FoundWorkers:
    """The workers that one source has added. It never touches those of others.

    Args:
        source: what the worker API and metrics call it: ``kubernetes``, ``dns``.
        key: what the workers are sent as key.
        metrics: counts.
    """

    def __init__(self, registry: Registry, source: str, *, key: str | None, metrics: DiscoveryMetrics) -> None:
        self._registry = registry
        self._source = source
        self._key = key
        self._metrics = metrics
        self._added: dict[str, _Added] = {}
        self._refused: set[str] = set()
        metrics.follow(source, lambda: len(self._added))

    def failed(self) -> None:
        """Count that the source could not be asked."""
        self._metrics.errors.at(self._source).inc()

    async def settle(self, wanted: Mapping[str, Labels]) -> bool:
        """Have one worker for each of these URLs, with these labels; False if a URL's former worker still drains.

        A worker whose labels are others now is another one: the former is drained first. One that something else has
        removed is added again. Cancelled, what has been done stays, and the next call does the rest.
        """
        began = trio.current_time()
        self._refused &= wanted.keys()
        for url, added in list(self._added.items()):
            if self._lost(added):
                del self._added[url]
            elif wanted.get(url) != added.labels:
                del self._added[url]
                self._drain(url, added)
        done = True
        for url, labels in wanted.items():
            if url not in self._added:
                done &= await self._add(url, labels)
        self._metrics.duration.at(self._source).observe(trio.current_time() - began)
        return done

    def _lost(self, added: _Added) -> bool:
        try:
            self._registry.get(added.worker_id)
        except NotFound:
            return True
        return False

    def _drain(self, url: str, added: _Added) -> None:
        logger.info("%s: worker %s is not found any more and drains", self._source, url)
        self._metrics.deregistrations.at(self._source, "reconciled").inc()
        self._registry.drain(added.worker_id)

    async def _add(self, url: str, labels: Labels) -> bool:
        spec = WorkerSpec(
            worker_id=str(uuid4()), url=url, model_id="", api_key=self._key, labels=labels, source=self._source
        )
        try:
            await self._registry.add(spec)
        except Conflict as error:
            if self._drains(url):
                return False
            self._refuse(url, f"{error}; that one stays as it is")
        except SmgError as error:
            self._refuse(url, str(error))
        else:
            self._added[url] = _Added(spec.worker_id, labels)
            self._refused.discard(url)
            self._metrics.registrations.at(self._source, "success").inc()
            logger.info("%s: added worker %s %s", self._source, url, dict(labels))
        return True

    def _drains(self, url: str) -> bool:
        return any(
            worker.spec.url == url and self._registry.snapshot(worker.spec.worker_id).state is WorkerState.DRAINING
            for worker in self._registry.all_workers()
        )

    def _refuse(self, url: str, why: str) -> None:
        """Say so once; it is tried again whenever the source is looked at."""
        if url not in self._refused:
            self._refused.add(url)
            self._metrics.registrations.at(self._source, "failed").inc()
            logger.warning("%s: worker %s is not added: %s", self._source, url, why)
