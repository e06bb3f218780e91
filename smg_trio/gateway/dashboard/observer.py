"""Reads the gateway for the feed: what its parts say of themselves, and what the system says of the process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from smg_trio import __version__
from smg_trio.gateway.dashboard.rates import RateMeter, Rates, TokenCount
from smg_trio.gateway.dashboard.snapshot import (
    MAX_REQUESTS,
    WINDOW_S,
    AnswerSeen,
    LatencySample,
    ModelFilesSeen,
    Observation,
    WorkerSeen,
)

if TYPE_CHECKING:
    from smg_trio.gateway.observability.generation_metrics import GenerationMetrics
    from smg_trio.gateway.observability.in_flight import InFlightGeneration
    from smg_trio.gateway.state import Gateway

Item = TypeVar("Item")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Observer:
    """One series of observations; what is measured between two of them is measured from the first one on."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._meter = RateMeter()
        self._observed_at = 0.0
        self._cpu_s: float | None = None
        self._wall_s = 0.0

    def observe(self, now: float, loop_lag_s: float | None) -> tuple[Observation, Rates | None]:
        """The gateway at `now`, a time of the loop's clock, and the rates since the observation before."""
        gateway = self._gateway
        readiness = gateway.readiness()
        rates = self._rates(now)
        self._observed_at = now
        observation = Observation(
            time=time.time(),
            version=__version__,
            uptime_s=time.monotonic() - gateway.started,
            ready=readiness.ready,
            reason=": ".join(filter(None, (readiness.reason, readiness.detail))),
            draining=gateway.draining,
            ready_workers=readiness.ready_workers,
            policy=gateway.registry.policy_name,
            models=sorted(gateway.catalog.names()),
            model_files=[
                ModelFilesSeen(model.model_id, model.files.source, str(model.files.path), model.files.commit)
                for model in gateway.catalog
                if model.files is not None
            ],
            memory_bytes=resident_bytes(),
            cpu_share=self._cpu_share(),
            loop_lag_s=loop_lag_s,
            admission=gateway.admission.statistics(),
            workers=self._workers(),
            applications=gateway.registry.applications(),
            in_flight=gateway.answers,
            answers=[_answer_seen(generation, now) for generation in islice(gateway.in_flight, MAX_REQUESTS)],
            ended=[_sample(ended) for ended in self._ended_since(now - WINDOW_S)],
            in_flight_ttft_s=self._first_outputs_since(now - WINDOW_S),
            errors=gateway.errors.all(),
        )
        return observation, rates

    def _workers(self) -> list[WorkerSeen]:
        registry = self._gateway.registry
        seen = []
        for worker in registry.all_workers():
            worker_id = worker.spec.worker_id
            breaker = registry.breaker(worker_id)
            seen.append(
                WorkerSeen(
                    snapshot=self._gateway.worker_snapshot(worker_id),
                    load=registry.load(worker_id),
                    circuit_breaker=None if breaker is None else breaker.state.value,
                    overloaded=registry.overloaded(worker_id),
                )
            )
        return seen

    def _rates(self, now: float) -> Rates | None:
        in_flight = [
            TokenCount(one.metrics, one.answer.engines, one.answer.usage(), one.phase == "generating")
            for one in self._gateway.in_flight
        ]
        ended = [
            TokenCount(one, one.engines, one.usage, one.ttft_s is not None or not one.failure)
            for one in self._ended_since(self._observed_at)
        ]
        return self._meter.look(now, in_flight, ended)

    def _ended_since(self, then: float) -> list[GenerationMetrics]:
        """Answers that ended after `then`, the newest first."""
        return list(_taken_while_after(reversed(self._gateway.metrics.recent), then))

    def _first_outputs_since(self, then: float) -> list[float]:
        """Times to first token of answers in flight that had it after `then`."""
        measured = (generation.metrics for generation in self._gateway.in_flight)
        return [
            one.ttft_s
            for one in measured
            if one.ttft_s is not None and one.first_at is not None and one.first_at > then
        ]

    def _cpu_share(self) -> float | None:
        before, wall_before = self._cpu_s, self._wall_s
        self._cpu_s, self._wall_s = time.process_time(), time.monotonic()
        if before is None or self._wall_s <= wall_before:
            return None
        return (self._cpu_s - before) / (self._wall_s - wall_before)


def _taken_while_after(answers: Iterable[GenerationMetrics], then: float) -> Iterable[GenerationMetrics]:
    for answer in answers:
        if answer.ended_at <= then:
            return
        yield answer


def _answer_seen(generation: InFlightGeneration, now: float) -> AnswerSeen:
    answer = generation.answer
    return AnswerSeen(
        request_id=answer.request_id,
        model=answer.model_id,
        endpoint=generation.endpoint,
        phase=generation.phase,
        age_s=now - generation.started,
        worker_urls=sorted(answer.worker_urls),
        usage=answer.usage(),
    )


def _sample(ended: GenerationMetrics) -> LatencySample:
    return LatencySample(
        failed=bool(ended.failure),
        ttft_s=ended.ttft_s,
        inter_token_s=ended.inter_token_s,
        end_to_end_s=ended.duration_s,
    )


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
