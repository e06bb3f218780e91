"""The workers of this gateway and the choice among them. Never waits; the registry does.

A worker takes requests while it is ready, its breaker admits one, and it is not overloaded while another one is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core.errors import Conflict, EngineFault, NoReadyWorker, PixelFormMissing
from smg_trio.core.workers import RetryOverrides, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.routing.breaker import Breaker, BreakerState, is_failure
from smg_trio.routing.lease import AnyWorker, Verdict, WorkerLease
from smg_trio.routing.lifecycle import Lifecycle
from smg_trio.routing.overload import WorkersOverloaded
from smg_trio.routing.pending_workers import url_taken
from smg_trio.upstream.http_worker import HttpWorker
from smg_trio.worker.nursery import Worker

if TYPE_CHECKING:
    from smg_trio.core.board import RankCells
    from smg_trio.core.media import PixelForm
    from smg_trio.routing.policies import Policy, RoutingContext
    from smg_trio.routing.retries import RetrySchedule
    from smg_trio.routing.rules import RoutingRules


_LOOK_AGAIN_S = 0.05


class Entry:
    """One worker in the roster.

    Attributes:
        over_http: the worker is a server behind HTTP, not engines that dial in.
        leases: open leases of this process.
        selections: leases so far.
        retry: what is done after it has failed a request.
        errors: code of an engine's fault → how many leases ended with it.
        scope: cancelling it ends the worker; `ended` is set when its sockets are closed.
    """

    def __init__(self, worker: AnyWorker, rules: RoutingRules) -> None:
        self.worker = worker
        self.over_http = isinstance(worker, HttpWorker)
        self._rules = rules
        self.lifecycle = Lifecycle()
        self.breaker: Breaker | None = None
        self.leases = 0
        self._cells = _cells_of(worker)
        self.selections = 0
        self.errors: Counter[str] = Counter()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self._idle: trio.Event | None = None
        self._configure(worker.spec)

    @property
    def name(self) -> str:
        """What errors call the worker: of one behind HTTP, clients are not told where it is."""
        spec = self.worker.spec
        return f"worker {spec.worker_id}" if self.over_http else spec.url

    def _configure(self, spec: WorkerSpec) -> None:
        self.lifecycle.thresholds = self._rules.health.with_overrides(spec.health)
        self._overload = self._rules.overload_of(spec.overload)
        self.retry = self._rules.retry_of(spec.retry)
        limits = self._rules.breaker_of(spec.breaker)
        if limits is None:
            self.breaker = None
        elif self.breaker is None or self.breaker.limits != limits:
            self.breaker = Breaker(limits)

    def update(self, spec: WorkerSpec) -> None:
        """Tell the living worker anew; its identity (see `same_identity`) must not change."""
        self.worker.spec = spec
        self._configure(spec)
        if isinstance(self.worker, HttpWorker):
            self.worker.probe_soon()

    def same_identity(self, spec: WorkerSpec) -> bool:
        """Whether a worker told `spec` could go on with this one's connection."""
        now = self.worker.spec
        names = ("url", "protocol", "engine_count", "handshake_address", "advertise_host", "model_id", "vocab_size")
        return all(getattr(now, name) == getattr(spec, name) for name in names)

    def drain_limit_s(self) -> float:
        """How long its answers may go on once it is to be removed."""
        own = self.worker.spec.health.drain_settle_secs
        return self._rules.drain_limit_s if own is None else own

    def observe(self) -> WorkerState:
        """Its state, after a look at its connection. New engines start with a clean record."""
        if self.lifecycle.observe(self.worker.state) and self.lifecycle.state is WorkerState.READY and self.breaker:
            self.breaker.renew()
        return self.lifecycle.state

    def takes_requests(self, now: float) -> bool:
        """Whether it is ready and its breaker lets a request through."""
        return self.observe() is WorkerState.READY and (self.breaker is None or self.breaker.admits(now))

    def overloaded(self) -> bool:
        """See `overload`."""
        return self._overload.active and self._overload.overloaded(
            self.worker.busy_loads(), self.worker.spec.engine_count
        )

    def reason(self) -> str:
        """Why it takes no requests, as text; empty if it is ready."""
        if self.observe() is WorkerState.READY:
            is_open = self.breaker is not None and self.breaker.statistics().state is not BreakerState.CLOSED
            return "circuit breaker open" if is_open else self.worker.snapshot().reason
        if self.lifecycle.state is WorkerState.DRAINING:
            return "draining"
        return self.worker.snapshot().reason or self.lifecycle.state.value

    def snapshot(self) -> WorkerSnapshot:
        """The worker as it is now, with this room's word on its state."""
        reason = self.reason()
        seen = self.worker.snapshot()
        return WorkerSnapshot(
            spec=seen.spec,
            state=self.lifecycle.state,
            reason=reason,
            in_flight=seen.in_flight,
            lockstep=seen.lockstep,
            wave=seen.wave,
            ranks=seen.ranks,
            handshake_address=seen.handshake_address,
            models=seen.models,
            runtime=seen.runtime,
        )

    def lease(self, now: float) -> WorkerLease[Any]:
        """Count a request in."""
        self.leases += 1
        self.selections += 1
        if self._cells is not None:
            self._cells.set_leases(self.leases)
        breaker = self.breaker
        ticket = 0 if breaker is None else breaker.begins(now)
        return WorkerLease(self.worker, partial(self._close_lease, breaker, ticket))

    def _close_lease(self, breaker: Breaker | None, ticket: int, verdict: Verdict) -> None:
        self.leases -= 1
        if self._cells is not None:
            self._cells.set_leases(self.leases)
        if isinstance(verdict, EngineFault):
            self.errors[verdict.code] += 1
        if not self.leases and self._idle is not None:
            self._idle.set()
            self._idle = None
        if breaker is not None:
            breaker.ends(ticket, _judge(verdict), trio.current_time())

    def load(self) -> int:
        """Open leases of all processes of the gateway."""
        return self.leases if self._cells is None else self._cells.leases()

    async def wait_idle(self) -> None:
        """Wait until no lease is open, in any process."""
        while self._cells is not None and self.load():  # noqa: ASYNC110
            # Nothing wakes this process when another one's last answer has ended.
            await trio.sleep(_LOOK_AGAIN_S)
        while self.leases:
            if self._idle is None:
                self._idle = trio.Event()
            await self._idle.wait()


def _cells_of(worker: AnyWorker) -> RankCells | None:
    if isinstance(worker, HttpWorker):
        return worker.cells
    return None if worker.siblings is None else worker.siblings.cells


def _judge(verdict: Verdict) -> bool | None:
    if verdict is None or isinstance(verdict, bool):
        return verdict
    return False if is_failure(verdict) else None


def _taking_media(model: str, able: list[Entry], forms: frozenset[PixelForm]) -> list[Entry]:
    known = {entry: entry.worker.known_pixel_forms for entry in able if isinstance(entry.worker, Worker)}
    taking = [entry for entry in known if not forms.isdisjoint(known[entry])]
    wanted = frozenset(form for taken in known.values() for form in taken)
    if taking or not wanted:  # of whom nothing is known, the worker itself says why
        return taking or able
    raise PixelFormMissing(f"The media were not prepared in a form that the engines of model `{model}` take.", wanted)


class Roster:
    """All entries by worker id, in order of registration.

    Attributes:
        shed: requests refused because all workers were overloaded.
        overload_fallbacks: requests that the least loaded worker took though all were.
        probes: good (True) and bad (False) probes of all workers.
        behind_http: whether any worker is.
    """

    def __init__(self, policy: Policy, rules: RoutingRules) -> None:
        self.policy = policy
        self._rules = rules
        self.entries: dict[str, Entry] = {}
        self.shed = self.overload_fallbacks = 0
        self.probes = {True: 0, False: 0}
        self.behind_http = False

    def refuse_collision(self, worker: AnyWorker) -> None:
        """Raises Conflict if another worker has the URL or the handshake address."""
        for entry in self.entries.values():
            other = entry.worker
            if other.spec.url == worker.spec.url:
                raise url_taken(worker.spec.url, other.spec.worker_id)
            if not isinstance(worker, Worker) or not isinstance(other, Worker):
                continue
            if other.addresses.handshake == worker.addresses.handshake:
                raise Conflict(
                    f"ZMQ worker {worker.spec.url} would bind handshake address {worker.addresses.handshake}, already "
                    f"claimed by worker {other.spec.url}: the derived port is a hash of the ipc path, so rename this "
                    "worker's ipc path or set zmq_handshake_address to a free tcp:// address"
                )

    def add(self, entry: Entry) -> None:
        """A worker comes."""
        self.entries[entry.worker.spec.worker_id] = entry
        self.behind_http |= entry.over_http

    def remove(self, worker_id: str) -> None:
        """It goes; nothing happens if there is none of that id."""
        self.entries.pop(worker_id, None)
        self.behind_http = any(entry.over_http for entry in self.entries.values())

    def of_model(self, model: str, *, over_http: bool | None = False) -> list[Entry]:
        """The entries that serve the model: with engines that dial in, behind HTTP, or (None) both."""
        if over_http is None:
            return [entry for entry in self.entries.values() if model in entry.worker.models]
        return [
            entry for entry in self.entries.values() if model in entry.worker.models and entry.over_http is over_http
        ]

    def choose(
        self,
        model: str,
        context: RoutingContext,
        avoid: Collection[str],
        now: float,
        forms: frozenset[PixelForm] | None = None,
        *,
        over_http: bool | None = False,
    ) -> Entry:
        """The worker for a request; see `of_model`. Those of `avoid` are taken only if there is no other.

        Raises NoReadyWorker with the workers' own reasons, WorkersOverloaded if the rules say so, PixelFormMissing if
        all that is known of the workers is that they take media in none of `forms`.
        """
        entries = self.of_model(model, over_http=over_http)
        if not entries:
            raise NoReadyWorker(f"No worker for model `{model}` is ready (none is registered).")
        able = [entry for entry in entries if entry.takes_requests(now)]
        if not able:
            reasons = "; ".join(f"{entry.name}: {entry.reason()}" for entry in entries)
            raise NoReadyWorker(f"No worker for model `{model}` is ready ({reasons}).")
        if forms is not None:
            able = _taking_media(model, able, forms)
        if avoid:
            able = [entry for entry in able if entry.worker.spec.worker_id not in avoid] or able
        if len(able) > 1 or self._rules.shed_overload:
            able = self._spare_overloaded(model, able)
        if len(able) == 1 and len(entries) == 1:
            return able[0]
        chosen = self.policy.choose([entry.worker for entry in able], context, now)
        return self.entries[chosen.spec.worker_id]

    def retry_schedule(self, worker_ids: Collection[str]) -> RetrySchedule:
        """What is done after these workers have failed a request; of several, the one of the fewest attempts.

        A worker that is gone counts as one without settings of its own.
        """
        found = [self.entries[one].retry for one in worker_ids if one in self.entries]
        schedules = found or [self._rules.retry_of(RetryOverrides())]
        return min(schedules, key=lambda schedule: schedule.max_attempts)

    def _spare_overloaded(self, model: str, able: list[Entry]) -> list[Entry]:
        spared = [entry for entry in able if not entry.overloaded()]
        if spared:
            return spared
        if self._rules.shed_overload:
            self.shed += 1
            raise WorkersOverloaded(f"Every worker for model `{model}` is overloaded.")
        self.overload_fallbacks += 1
        return [min(able, key=lambda entry: entry.worker.load)]
