"""One run: sessions arrive, a rule sends each request to an engine, the engines compute."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from routing_simulation.engine import Engine, Request
from routing_simulation.rules import Arrival, Rule, View
from routing_simulation.traces import BLOCK, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What the engines are.

    Attributes:
        engines: how many.
        blocks: of each one's KV cache.
        rate: tokens of prompts that each computes per second.
        token_s: seconds from one token of an answer to the next.
        event_s: seconds until the gateway knows of a change in a cache.
        lost: share of the events that never arrive.
        provisional: whether a gateway counts what it has sent as matching before the events tell so.
        gateways: that route alike, each knowing all events but only the requests of its own.
    """

    engines: int = 8
    blocks: int = 6_000
    rate: float = 10_000.0
    token_s: float = 0.02
    event_s: float = 0.002
    lost: float = 0.0
    provisional: bool = True
    gateways: int = 1


@dataclass(slots=True)
class Outcome:
    """What a run has shown.

    Attributes:
        prompt, computed: tokens of all prompts, and of those the ones that were computed.
        first_tokens: seconds from each request's arrival to its first token.
        per_engine: tokens computed by each engine.
    """

    prompt: int = 0
    computed: int = 0
    first_tokens: list[float] = field(default_factory=list)
    per_engine: list[int] = field(default_factory=list)

    @property
    def hit(self) -> float:
        """Share of the prompts' tokens that were in the cache."""
        return 1 - self.computed / self.prompt

    def quantile(self, share: float) -> float:
        """Milliseconds to the first token that this share of the requests had at most."""
        ordered = sorted(self.first_tokens)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def mean(self) -> float:
        """Mean milliseconds to the first token."""
        return 1000 * sum(self.first_tokens) / len(self.first_tokens)

    @property
    def imbalance(self) -> float:
        """Tokens computed by the busiest engine, as a multiple of the mean."""
        return max(self.per_engine) * len(self.per_engine) / sum(self.per_engine)


class Run:
    """A simulation in which nothing but the queue of things to come has a clock."""

    def __init__(self, fleet: Fleet, make_rule: Callable[[], Rule], seed: int) -> None:
        self._fleet = fleet
        self._random = Random(seed)
        self._rules = [make_rule() for _ in range(fleet.gateways)]
        self._views = [[View(fleet.blocks) for _ in range(fleet.engines)] for _ in range(fleet.gateways)]
        self._engines = [
            Engine(fleet.blocks, fleet.rate, fleet.token_s, self._event_of(index)) for index in range(fleet.engines)
        ]
        self._coming: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._now = self._warm_up = 0.0
        self._outcome = Outcome(per_engine=[0] * fleet.engines)

    def _at(self, when: float, then: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._coming, (when, self._order, then))

    def _event_of(self, index: int) -> Callable[[str, int], None]:
        def changed(segment: str, blocks: int) -> None:
            if self._fleet.lost and self._random.random() < self._fleet.lost:
                return
            self._at(self._now + self._fleet.event_s, lambda: self._learn(index, segment, blocks))

        return changed

    def _learn(self, index: int, segment: str, blocks: int) -> None:
        for views in self._views:
            views[index].changed(segment, blocks)

    def run(self, sessions: Sequence[Session], warm_up: float = 0.0) -> Outcome:
        """All sessions to their end; requests that arrive before `warm_up` seconds are not counted."""
        self._warm_up = warm_up
        for number, session in enumerate(sessions):
            context = sum(blocks for _, blocks in session.prefix) * BLOCK
            self._at(session.at, self._turn(session, f"session{number}", 0, context))
        while self._coming:
            self._now, _, then = heapq.heappop(self._coming)
            then()
        return self._outcome

    def _turn(self, session: Session, name: str, index: int, context: int) -> Callable[[], None]:
        def ask() -> None:
            turn = session.turns[index]
            prompt = context + turn.added
            shared = sum(blocks for _, blocks in session.prefix)
            path = [*session.prefix, (name, prompt // BLOCK - shared)]
            request = Request(path, prompt, turn.answer, self._now, self._random.randrange(self._fleet.gateways))
            if index + 1 < len(session.turns):
                after = self._turn(session, name, index + 1, prompt + turn.answer)
                pause = session.turns[index + 1].pause
                request.finished = lambda now: self._at(now + pause, after)
            self._route(request)

        return ask

    def _route(self, request: Request) -> None:
        views = self._views[request.gateway]
        blocks = -(-request.prompt // BLOCK)
        chosen = self._rules[request.gateway](Arrival(views, request.path, blocks, self._now, self._random))
        view = views[chosen]
        request.promised = blocks - view.matched(request.path)
        view.backlog += request.promised
        view.stored.add(request.promised, self._now)
        view.active += 1
        if self._fleet.provisional:
            view.expect(request.path)
        for segment, count in request.path:
            view.sent[segment] = max(view.sent.get(segment, 0), count)
        self._engines[chosen].waiting.append(request)
        self._step(chosen)

    def _step(self, index: int) -> None:
        started = self._engines[index].start()
        if started is not None:
            request, seconds = started
            self._at(self._now + seconds, lambda: self._first_token(index, request))

    def _first_token(self, index: int, request: Request) -> None:
        engine = self._engines[index]
        engine.first_token(request)
        view = self._views[request.gateway][index]
        view.backlog -= request.promised
        if self._fleet.provisional:
            self._at(self._now + self._fleet.event_s, lambda: view.settle(request.path))
        if request.arrived >= self._warm_up:
            self._outcome.prompt += request.prompt
            self._outcome.computed += request.computed
            self._outcome.first_tokens.append(self._now - request.arrived)
            self._outcome.per_engine[index] += request.computed
        self._at(self._now + request.answer * self._fleet.token_s, lambda: self._finish(index, request))
        self._step(index)

    def _finish(self, index: int, request: Request) -> None:
        self._engines[index].finish(request)
        self._views[request.gateway][index].active -= 1
        request.finished(self._now)
        self._step(index)
