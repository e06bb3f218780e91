"""All workers of this gateway: the nursery they run in, how they come and go, and the choice among them.

Workers come and go while the gateway runs. Each runs in a cancel scope of its own inside the registry's nursery,
which the gateway cancels only after its listeners have drained. What is slow about a change (loading a model's files,
draining) happens in tasks of that nursery too, so callers return immediately.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from smg_trio.core.errors import (
    ConfigError,
    EngineDead,
    NoReadyWorker,
    NotFound,
    SmgError,
    UnsupportedFeature,
)
from smg_trio.core.workers import PendingWorker, WorkerPatch, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.routing.http_choice import HttpChoice
from smg_trio.routing.pending_workers import PendingWorkers, url_taken
from smg_trio.routing.policies import LeastLoad, Policy, RoutingContext
from smg_trio.routing.roster import Entry, Roster
from smg_trio.routing.rules import RoutingRules, WorkerTimeouts
from smg_trio.routing.worker_maker import WorkerMaker
from smg_trio.worker.nursery import Worker

if TYPE_CHECKING:
    from smg_trio.core.media import PixelForm
    from smg_trio.routing.breaker import BreakerStatistics
    from smg_trio.routing.lease import AnyWorker, Lease
    from smg_trio.routing.policies.base import PolicyStatistics
    from smg_trio.routing.retries import RetrySchedule
    from smg_trio.upstream.http_worker import HttpWorkerOptions
    from smg_trio.worker.links import Transport
    from smg_trio.worker.siblings import Siblings

logger = logging.getLogger("smg_trio.routing")

_WATCH_PAUSE_S = 1.0
"""Before a worker is looked at again that could not be: what fails must not take the whole loop."""

MakeSpec = Callable[[], Awaitable[WorkerSpec]]


class Registry:
    """The workers, by id. Run it in the app nursery; all other methods are for tasks beside it.

    Args:
        transport: binds the workers' sockets.
        policy: chooses among ready workers of a model.
        timeouts: limits of every worker.
        rules: breaker, overload protection, health thresholds, draining.
        pixel_form: the form in which all engines take media; None to ask each of them.
        siblings: a worker's part in a gateway of several processes. May raise ConfigError.
        http_options: of workers behind HTTP.

    Attributes:
        http: the choice among these.
        not_added: called with the id of a worker that `siblings` was asked for, and that was refused after all.
        changed: called when there is another worker, one less, or one was told something else or changed its state.
        model_unused: called with a model's id when its last worker is gone, or was refused.
    """

    def __init__(
        self,
        transport: Transport,
        policy: Policy | None = None,
        timeouts: WorkerTimeouts | None = None,
        rules: RoutingRules | None = None,
        *,
        pixel_form: PixelForm | None = None,
        siblings: Callable[[WorkerSpec], Siblings | None] = lambda spec: None,
        http_options: HttpWorkerOptions | None = None,
    ) -> None:
        self._make = WorkerMaker(transport, timeouts or WorkerTimeouts(), pixel_form, siblings, http_options).make
        self._rules = rules or RoutingRules()
        self._roster = Roster(policy or LeastLoad(), self._rules)
        self.http = HttpChoice(self._roster)
        self._applications = PendingWorkers()
        self._jobs: dict[str, trio.CancelScope] = {}
        self._closing: set[Entry] = set()
        self._nursery: trio.Nursery | None = None
        self.model_unused: Callable[[str], None] = lambda model: None
        self.changed: Callable[[], None] = lambda: None
        self.not_added: Callable[[str], None] = lambda worker_id: None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the workers' nursery open until cancelled; then every worker aborts, closes and unlinks."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    # ---- coming ---------------------------------------------------------------------------------------

    async def add(self, spec: WorkerSpec) -> AnyWorker:
        """Start a worker and return it once its sockets are bound (or binding has failed, which it goes on trying).

        Raises ConfigError for a malformed URL, Conflict if its URL or handshake address is taken.
        """
        assert self._nursery is not None, "the registry runs before workers are added"
        worker = self._make(spec)
        roster, entry = self._roster, Entry(worker, self._rules)
        try:
            if isinstance(worker, Worker):
                await self._wait_closed(worker)
            roster.refuse_collision(worker)
            roster.add(entry)
            self._applications.close(spec.worker_id)
            await self._nursery.start(self._run_worker, entry)
        except BaseException:
            if roster.entries.get(spec.worker_id) is entry:
                roster.remove(spec.worker_id)
            self.not_added(spec.worker_id)
            raise
        self.changed()
        return worker

    async def _wait_closed(self, worker: Worker) -> None:
        """Wait until removed workers have let go of what this one is going to bind."""
        for entry in list(self._closing):
            if not isinstance(entry.worker, Worker):
                continue
            old = entry.worker.addresses
            if old.path == worker.addresses.path or old.handshake == worker.addresses.handshake:
                await entry.ended.wait()

    async def _run_worker(self, entry: Entry, *, task_status: trio.TaskStatus[None]) -> None:
        started = False
        try:
            with entry.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(entry.worker.run)
                    nursery.start_soon(self._watch, entry)
                    started = True
                    task_status.started()
        except* Exception:
            if not started:
                raise  # to the caller that adds it
            # All workers share the registry's nursery: one that cannot go on is removed, the others stay.
            logger.exception("worker %s failed; it is removed", entry.worker.spec.url)
            self._remove_failed(entry)
        finally:
            entry.ended.set()
            self._closing.discard(entry)
        if not started:  # removed while it was being bound: its adder need not know
            task_status.started()

    async def wait_closed(self, url: str) -> None:
        """Wait until a removed worker of that URL has closed its sockets.

        Nobody is told to start engines before: a HELLO to those sockets would be lost, and an engine sends only one.
        """
        for entry in list(self._closing):
            if entry.worker.spec.url == url:
                await entry.ended.wait()

    def apply(self, application: PendingWorker, make_spec: MakeSpec) -> None:
        """Add a worker in the background, visible as pending from now on.

        `make_spec` may take its time (loading a model's files); it is cancelled if the worker is removed meanwhile. An
        SmgError out of it, or out of adding, makes the application failed, with the error's words as the reason.
        Raises Conflict immediately if the URL is taken.
        """
        assert self._nursery is not None, "the registry runs before workers are added"
        for entry in self._roster.entries.values():
            if entry.worker.spec.url == application.url:
                raise url_taken(application.url, entry.worker.spec.worker_id)
        self._applications.open(application)
        scope = self._jobs[application.worker_id] = trio.CancelScope()
        self._nursery.start_soon(self._take_in, application, make_spec, scope)

    async def _take_in(self, application: PendingWorker, make_spec: MakeSpec, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self.add(await make_spec())
        except SmgError as error:
            self._refuse(application, error.problem if isinstance(error, ConfigError) else error.message)
        except Exception:
            logger.exception("adding worker %s failed", application.url)
            self._refuse(application, "internal error")
        finally:
            self._jobs.pop(application.worker_id, None)
            self._look_for_use(application.model_id)

    def _refuse(self, application: PendingWorker, reason: str) -> None:
        logger.warning("Failed job: type=AddWorker, worker=%s, error=%s", application.url, reason)
        self._applications.refuse(application.worker_id, reason)

    def refuse(self, worker_id: str, reason: str) -> None:
        """End a worker, or one that is being prepared, because it cannot be after all.

        The reason is visible as with `apply`. Nothing happens if there is none of that id any more.
        """
        application = self._applications.get(worker_id)
        entry = self._roster.entries.get(worker_id)
        if entry is not None:
            spec = entry.worker.spec
            self._end(entry)
            application = PendingWorker(
                worker_id=worker_id, url=spec.url, model_id=spec.model_id, runtime_type=spec.protocol.value
            )
            self._applications.open(application)
        elif worker_id in self._jobs:
            self._jobs[worker_id].cancel()
        if application is not None:
            self._refuse(application, reason)
            self._look_for_use(application.model_id)

    def learn_vocab_size(self, model: str, vocab_size: int | None) -> None:
        """Tell the model's workers its vocabulary, where its files came after they did."""
        for worker in self.workers(model):
            worker.learn_vocab_size(vocab_size)

    # ---- changing -------------------------------------------------------------------------------------

    def update(self, worker_id: str, patch: WorkerPatch) -> None:
        """Tell a living worker what has changed; its connection stays. Raises NotFound."""
        entry = self._entry(worker_id)
        entry.update(patch.applied(entry.worker.spec))
        self.changed()

    async def replace(self, spec: WorkerSpec) -> None:
        """Tell a worker everything anew, by its id.

        It keeps its connection if nothing about its engines has changed (see `Entry.same_identity`). Otherwise it is
        ended and a new one started in the background under the same id; should that fail, the reason is visible as
        with `apply`. Returns after `wait_closed`; cancelled while it waits, the worker is replaced all the same. Raises
        NotFound.
        """
        assert self._nursery is not None, "the registry runs before workers are replaced"
        entry = self._entry(spec.worker_id)
        if entry.same_identity(spec):
            entry.update(spec)
            self.changed()
            return
        self._end(entry)
        application = PendingWorker(
            worker_id=spec.worker_id, url=spec.url, model_id=spec.model_id, runtime_type=spec.protocol.value
        )

        async def make_spec() -> WorkerSpec:
            return spec

        self.apply(application, make_spec)
        self._look_for_use(entry.worker.spec.model_id)
        await self.wait_closed(spec.url)

    # ---- going ----------------------------------------------------------------------------------------

    def remove(self, worker_id: str) -> None:
        """End a worker now: what it has in flight fails, its sockets are closed. Raises NotFound."""
        entry = self._entry(worker_id)
        self._end(entry)
        self._look_for_use(entry.worker.spec.model_id)

    def _remove_failed(self, entry: Entry) -> None:
        worker_id = entry.worker.spec.worker_id
        if self._roster.entries.get(worker_id) is entry:
            self._end(entry)
            self._look_for_use(entry.worker.spec.model_id)

    def _end(self, entry: Entry) -> None:
        worker_id = entry.worker.spec.worker_id
        self._roster.remove(worker_id)
        self._roster.policy.forget(worker_id)
        entry.worker.fail_everything(EngineDead("the worker has been removed"))
        self._closing.add(entry)
        entry.scope.cancel()
        self.changed()

    def _look_for_use(self, model: str) -> None:
        wanted = any(one.model_id == model and one.state is WorkerState.PENDING for one in self.applications())
        if not wanted and not self._roster.of_model(model):
            try:
                self.model_unused(model)
            except Exception:
                logger.exception("model %s could not be forgotten", model)

    def drain(self, worker_id: str) -> None:
        """Remove a worker once its answers have ended, but not later than its drain limit.

        One that is not ready, an idle one, or one that is only applied for goes immediately. Raises NotFound.
        """
        assert self._nursery is not None, "the registry runs before workers are drained"
        if self._withdraw(worker_id):
            return
        entry = self._entry(worker_id)
        limit_s = entry.drain_limit_s()
        if not entry.load() or limit_s <= 0:
            self.remove(worker_id)
        elif self.stop_using(worker_id):
            self._nursery.start_soon(self._remove_when_idle, entry, limit_s)

    def stop_using(self, worker_id: str) -> bool:
        """Give a worker no new requests; False if it has been told before. Raises NotFound."""
        entry = self._entry(worker_id)
        if began := entry.lifecycle.drain():
            entry.worker.start_draining()
            self.changed()
        return began

    def _withdraw(self, worker_id: str) -> bool:
        job = self._jobs.get(worker_id)
        if job is not None and worker_id not in self._roster.entries:
            job.cancel()
        return self._applications.close(worker_id)

    async def _remove_when_idle(self, entry: Entry, limit_s: float) -> None:
        with trio.move_on_after(limit_s):
            await entry.wait_idle()
        worker_id = entry.worker.spec.worker_id
        if entry.load():
            logger.warning("worker %s is removed with %d answers in flight", entry.worker.spec.url, entry.load())
        if self._roster.entries.get(worker_id) is entry:
            try:
                self.remove(worker_id)
            except Exception:
                logger.exception("worker %s cannot be removed", entry.worker.spec.url)

    async def _watch(self, entry: Entry) -> None:
        """Follow a worker's connection, and probe it at intervals."""
        url = entry.worker.spec.url
        state = entry.observe()
        while True:
            probe_due = True
            with trio.move_on_after(entry.lifecycle.thresholds.interval_s):
                await entry.worker.wait_change()
                probe_due = False
            try:
                state = self._look_at(entry, state, probe_due=probe_due)
            except Exception:
                logger.exception("worker %s cannot be watched; trying again", url)
                await trio.sleep(_WATCH_PAUSE_S)

    def _look_at(self, entry: Entry, before: WorkerState, *, probe_due: bool) -> WorkerState:
        """Take note of a worker's state, and act on what has changed since it was `before`."""
        worker_id, url = entry.worker.spec.worker_id, entry.worker.spec.url
        if probe_due:
            alive = entry.worker.state is WorkerState.READY
            self._roster.probes[alive] += 1
            entry.lifecycle.probed(alive)
        state = entry.observe()
        if state is before:
            return state
        logger.info("worker %s: %s -> %s", url, before, state)
        if before is WorkerState.READY and state is not WorkerState.DRAINING:
            self._roster.policy.cache_lost(worker_id)
        if state is WorkerState.FAILED and probe_due and self._rules.remove_failed:
            logger.warning("removing worker %s: %s", url, entry.reason())
            self.remove(worker_id)
        self.changed()
        return state

    # ---- what there is --------------------------------------------------------------------------------

    def _entry(self, worker_id: str) -> Entry:
        try:
            return self._roster.entries[worker_id]
        except KeyError:
            raise NotFound(f"Worker {worker_id} not found") from None

    def get(self, worker_id: str) -> AnyWorker:
        """The worker of that id. Raises NotFound."""
        return self._entry(worker_id).worker

    def workers(self, model: str | None = None) -> list[Worker]:
        """The workers with engines that dial in, or those of them that serve `model`, in order of registration."""
        return [worker for worker in self.all_workers(model) if isinstance(worker, Worker)]

    def all_workers(self, model: str | None = None) -> list[AnyWorker]:
        """Workers of both kinds, or those that serve `model`."""
        entries = self._roster.entries.values() if model is None else self._roster.of_model(model, over_http=None)
        return [entry.worker for entry in entries]

    def snapshot(self, worker_id: str) -> WorkerSnapshot:
        """A worker as it is now: `Worker.snapshot`, with the lifecycle's state and reason. Raises NotFound."""
        return self._entry(worker_id).snapshot()

    def application(self, worker_id: str) -> PendingWorker | None:
        """The worker of that id if it is only applied for, or was refused."""
        return self._applications.get(worker_id)

    def applications(self) -> list[PendingWorker]:
        """Workers that are being prepared, or were refused."""
        return self._applications.all()

    def breaker(self, worker_id: str) -> BreakerStatistics | None:
        """The worker's circuit breaker; None if it has none. Raises NotFound."""
        breaker = self._entry(worker_id).breaker
        return None if breaker is None else breaker.statistics()

    def overloaded(self, worker_id: str) -> bool:
        """Whether the worker is above its overload thresholds. Raises NotFound."""
        return self._entry(worker_id).overloaded()

    @property
    def shed(self) -> int:
        """Requests refused so far because every worker was overloaded."""
        return self._roster.shed

    @property
    def overload_fallbacks(self) -> int:
        """Requests that the least loaded worker took though every worker was overloaded."""
        return self._roster.overload_fallbacks

    @property
    def probes(self) -> Mapping[bool, int]:
        """Good (True) and bad (False) probes so far."""
        return self._roster.probes

    def errors(self, worker_id: str) -> Mapping[str, int]:
        """Code of an engine's fault → how many requests at the worker ended with it. Raises NotFound."""
        return self._entry(worker_id).errors

    def policy_statistics(self) -> PolicyStatistics:
        """What the policy remembers."""
        return self._roster.policy.statistics()

    @property
    def policy_name(self) -> str:
        """The policy's name, as `--policy` spells it."""
        return self._roster.policy.name

    def lease(
        self,
        model: str,
        prompt_token_ids: Sequence[int],
        *,
        routing_key: str | None = None,
        avoid: Collection[str] = (),
        forms: frozenset[PixelForm] | None = None,
    ) -> Lease:
        """Choose a worker with engines for a request on the model.

        Args:
            model: the model's id.
            prompt_token_ids: int[T].
            routing_key: the client's session, for policies that keep sessions together.
            avoid: ids of workers that have failed this request already; taken only if there is no other.
            forms: the forms that the request's media were prepared in; None without media.

        Raises NoReadyWorker with the workers' own reasons, WorkersOverloaded, PixelFormMissing.
        """
        now = trio.current_time()
        context = RoutingContext(prompt_token_ids, routing_key)
        return self._roster.choose(model, context, avoid, now, forms).lease(now)

    async def pixel_forms(self, model: str, model_type: str = "") -> frozenset[PixelForm]:
        """The forms in which the model's engines take media, for those to be prepared in; see `Worker.pixel_forms`.

        Raises NoReadyWorker, UnsupportedFeature if none of its engines takes any.
        """
        forms: set[PixelForm] = set()
        refusal: SmgError = NoReadyWorker(f"No worker for model `{model}` is ready.")
        for worker in self.workers(model):
            if worker.state is not WorkerState.READY:
                continue
            try:
                forms |= await worker.pixel_forms(model_type)
            except (NoReadyWorker, UnsupportedFeature) as error:
                refusal = error
        if not forms:
            raise refusal
        return frozenset(forms)

    def retry_schedule(self, worker_ids: Collection[str]) -> RetrySchedule:
        """See `Roster.retry_schedule`."""
        return self._roster.retry_schedule(worker_ids)

    def load(self, worker_id: str) -> int:
        """Open leases on the worker, of all processes; 0 if there is no such worker."""
        entry = self._roster.entries.get(worker_id)
        return 0 if entry is None else entry.load()

    def selections(self, worker_id: str) -> int:
        """How often the worker has been chosen."""
        return 0 if (entry := self._roster.entries.get(worker_id)) is None else entry.selections

    def max_model_len(self, model: str) -> int | None:
        """The smallest context window among the model's registered engines; None before the first registration."""
        windows = [window for worker in self.workers(model) if (window := worker.max_model_len) is not None]
        return min(windows, default=None)

    def fail_everything(self, error: SmgError) -> None:
        """End every request in flight with `error`, and abort it at its engine."""
        for worker in self.all_workers():
            worker.fail_everything(error)
