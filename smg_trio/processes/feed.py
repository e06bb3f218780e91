"""The live page of several processes: the keeper asks all fronts once a second while somebody watches anywhere.

A front that has watchers says so, and gets each snapshot that the keeper makes of what it and all fronts observe.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import GatewayFault
from smg_trio.core.events import Usage
from smg_trio.gateway.dashboard.feed import LiveFeed
from smg_trio.gateway.dashboard.observer import Observer
from smg_trio.gateway.dashboard.rates import Rates, TokenRate
from smg_trio.gateway.dashboard.snapshot import (
    MAX_REQUESTS,
    AnswerSeen,
    LatencySample,
    Observation,
    snapshot_value,
)
from smg_trio.gateway.observability.recent_errors import REMEMBERED, ErrorSeen
from smg_trio.routing.admission import AdmissionStatistics

if TYPE_CHECKING:
    from smg_trio.core.board import Board
    from smg_trio.gateway.state import Gateway
    from smg_trio.processes.channel import Channel
    from smg_trio.processes.front_process import Front

MAX_SAMPLES: Final = 2000
"""Of answers that have ended, from one front and second: percentiles of more are no better."""
_ANSWER_LIMIT_S: Final = 0.5


def observed_value(seen: Observation, rates: Rates | None) -> dict[str, Any]:
    """What a front has seen, as a message has it; what it only repeats after the keeper is left out."""
    return {
        "ready": seen.ready,
        "reason": seen.reason,
        "memory_bytes": seen.memory_bytes,
        "cpu_share": seen.cpu_share,
        "loop_lag_s": seen.loop_lag_s,
        "admission": dataclasses.asdict(seen.admission),
        "breakers": {one.snapshot.spec.url: one.circuit_breaker for one in seen.workers},
        "in_flight": seen.in_flight,
        "answers": [
            [
                one.request_id,
                one.model,
                one.endpoint,
                one.phase,
                one.age_s,
                list(one.worker_urls),
                one.usage.prompt_tokens,
                one.usage.completion_tokens,
            ]
            for one in seen.answers
        ],
        "ended": [
            [one.failed, one.ttft_s, one.inter_token_s, one.end_to_end_s] for one in islice(seen.ended, MAX_SAMPLES)
        ],
        "ttft": list(islice(seen.in_flight_ttft_s, MAX_SAMPLES)),
        "errors": [list(dataclasses.astuple(one)) for one in seen.errors],
        "rates": None
        if rates is None
        else [
            [rates.total.input, rates.total.output, rates.finished],
            [[url, rank, rate.input, rate.output] for (url, rank), rate in rates.by_engine.items()],
        ],
    }


def merged(own: Observation, fronts: dict[int, dict[str, Any]], in_flight: int) -> tuple[Observation, Rates | None]:
    """The gateway at one moment, of what its keeper and its fronts have seen."""
    values = list(fronts.values())
    answers = sorted(chain.from_iterable(map(_answers, values)), key=lambda one: -one.age_s)
    errors = sorted([*own.errors, *chain.from_iterable(map(_errors, values))], key=lambda one: -one.time)
    lags = [one["loop_lag_s"] for one in values if one["loop_lag_s"] is not None]
    shares = [one["cpu_share"] for one in values if one["cpu_share"] is not None]
    observation = dataclasses.replace(
        own,
        ready=own.ready and any(one["ready"] for one in values),
        reason=own.reason or next((one["reason"] for one in values if one["reason"]), "" if values else "starting"),
        memory_bytes=own.memory_bytes + sum(one["memory_bytes"] for one in values),
        cpu_share=sum(shares, own.cpu_share or 0.0) if shares else own.cpu_share,
        loop_lag_s=max(lags, default=own.loop_lag_s),
        admission=_admission(own.admission, [AdmissionStatistics(**one["admission"]) for one in values]),
        workers=[
            dataclasses.replace(one, circuit_breaker=_worst(values, one.snapshot.spec.url)) for one in own.workers
        ],
        in_flight=in_flight,
        answers=answers[:MAX_REQUESTS],
        ended=[_sample(*sample) for one in values for sample in one["ended"]],
        in_flight_ttft_s=[ttft_s for one in values for ttft_s in one["ttft"]],
        errors=errors[: 2 * REMEMBERED],
    )
    return observation, _rates([one["rates"] for one in values if one["rates"] is not None])


def _sample(failed: bool, ttft_s: float | None, inter_token_s: float | None, end_to_end_s: float) -> LatencySample:
    return LatencySample(failed=failed, ttft_s=ttft_s, inter_token_s=inter_token_s, end_to_end_s=end_to_end_s)


def _answers(value: dict[str, Any]) -> list[AnswerSeen]:
    return [
        AnswerSeen(
            request_id=request_id,
            model=model,
            endpoint=endpoint,
            phase=phase,
            age_s=age_s,
            worker_urls=worker_urls,
            usage=Usage(prompt_tokens, completion_tokens),
        )
        for request_id, model, endpoint, phase, age_s, worker_urls, prompt_tokens, completion_tokens in value["answers"]
    ]


def _errors(value: dict[str, Any]) -> list[ErrorSeen]:
    return [ErrorSeen(*fields) for fields in value["errors"]]


def _worst(values: list[dict[str, Any]], url: str) -> str | None:
    states = {value["breakers"].get(url) for value in values}
    return next((state for state in ("open", "half_open", "closed") if state in states), None)


def _admission(own: AdmissionStatistics, fronts: list[AdmissionStatistics]) -> AdmissionStatistics:
    return AdmissionStatistics(
        limit=own.limit,
        queue_size=own.queue_size,
        in_flight=sum(one.in_flight for one in fronts),
        waiting=sum(one.waiting for one in fronts),
        admitted=sum(one.admitted for one in fronts),
        refused_full=sum(one.refused_full for one in fronts),
        refused_timeout=sum(one.refused_timeout for one in fronts),
    )


def _rates(values: list[Any]) -> Rates | None:
    if not values:
        return None
    total, by_engine, finished = TokenRate(), dict[tuple[str, int], TokenRate](), 0.0
    for (tokens_in, tokens_out, answers), engines in values:
        total.add(tokens_in, tokens_out)
        finished += answers
        for url, rank, engine_in, engine_out in engines:
            by_engine.setdefault((url, rank), TokenRate()).add(engine_in, engine_out)
    return Rates(total, by_engine, finished)


class FrontFeed(LiveFeed):
    """A front's feed: what the keeper sends, while there are watchers here."""

    def __init__(self, gateway: Gateway, keeper: Channel) -> None:
        super().__init__(gateway)
        self._keeper = keeper
        self._observer: Observer | None = None
        self._due = 0.0

    async def _run_watched(self) -> None:
        """See `LiveFeed.run`: say that somebody watches; snapshots come by `take`."""
        self._keeper.notify("watching", True)
        try:
            while self.watchers:
                await self.watchers_gone()
        finally:
            self._keeper.notify("watching", False)

    def take(self, snapshot: str) -> None:
        """The keeper has made a snapshot."""
        self.snapshot = snapshot
        self.sequence += 1
        self._tell()

    def observe(self, *, first: bool) -> dict[str, Any]:
        """What this front sees, for the keeper; `first`: nobody has watched before, so there are no rates yet."""
        now = trio.current_time()
        if first or self._observer is None:
            self._observer = Observer(self._gateway)
        seen, rates = self._observer.observe(now, None)
        return observed_value(seen, rates)


class KeeperFeed(LiveFeed):
    """The feed of all processes. Nobody watches it but fronts, on behalf of their watchers."""

    def __init__(self, gateway: Gateway, fronts: Callable[[], list[Front]], board: Board) -> None:
        super().__init__(gateway)
        self._fronts = fronts
        self._board = board

    def end(self) -> None:
        """The keeper has no answers of its own to wait for: watchers go on seeing those of the fronts."""

    def end_now(self) -> None:
        """Every front has ended."""
        super().end()

    def watchers_changed(self) -> None:
        """A front has watchers now, or none any more."""
        self.watchers = sum(front.watching for front in self._fronts())
        if self.watchers:
            self._watched.set()
        else:
            self._watched = trio.Event()

    async def _run_watched(self) -> None:
        observer, first, due = Observer(self._gateway), True, trio.current_time()
        while self.watchers:
            values = await self._ask_all(first)
            seen, rates = merged(
                observer.observe(trio.current_time(), None)[0], values, self._board.answers() + self._board.waiting()
            )
            self.sequence += 1
            value = snapshot_value(seen, rates, sequence=self.sequence, interval_s=self.interval_s)
            value["gateway"]["processes"] = self._processes()
            self.snapshot = json.dumps(value, separators=(",", ":"))
            for front in self._fronts():
                if front.watching:
                    front.notify("snapshot", self.snapshot)
            first = False
            due = max(due + self.interval_s, trio.current_time() + self.interval_s / 2)
            await trio.sleep_until(due)
            self.watchers_changed()

    def _processes(self) -> list[dict[str, int]]:
        cells = {front.index: self._board.process(front.index) for front in self._fronts()}
        return [
            {"process": index, "pid": one.pid, "connections": one.connections, "answers": one.answers}
            for index, one in cells.items()
        ]

    async def _ask_all(self, first: bool) -> dict[int, dict[str, Any]]:
        values: dict[int, dict[str, Any]] = {}

        async def ask(front: Front) -> None:
            assert front.channel is not None, "it is ready"
            with trio.move_on_after(_ANSWER_LIMIT_S):
                try:
                    values[front.index] = await front.channel.call("observe", first)
                except GatewayFault:
                    return

        async with trio.open_nursery() as nursery:
            for front in self._fronts():
                nursery.start_soon(ask, front)
        return values
