"""All workers of this gateway: the nursery they run in, and the choice among them.

Workers come and go while the gateway runs. Each runs in a cancel scope of its own inside the registry's nursery,
which the gateway cancels only after its listeners have drained.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from smg_trio.core.errors import Conflict, ModelNotFound, NoReadyWorker, NotFound, SmgError
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.routing.lease import Lease
from smg_trio.routing.policies import LeastLoad, Policy
from smg_trio.worker.links import Transport
from smg_trio.worker.nursery import Worker

logger = logging.getLogger("smg_trio.routing")


@dataclass(frozen=True, slots=True)
class WorkerTimeouts:
    """Limits handed to every worker, in seconds; see `worker` for what each one ends."""

    silence_limit_s: float = 300.0
    send_limit_s: float = 10.0
    handshake_limit_s: float = 600.0


class Registry:
    """The workers, by id. Run it in the app nursery; all other methods are for tasks beside it.

    Args:
        transport: binds the workers' sockets.
        policy: chooses among ready workers of a model.
        timeouts: limits of every worker.
    """

    def __init__(
        self, transport: Transport, policy: Policy | None = None, timeouts: WorkerTimeouts | None = None
    ) -> None:
        self._transport = transport
        self._policy = policy or LeastLoad()
        self._timeouts = timeouts or WorkerTimeouts()
        self._workers: dict[str, Worker] = {}
        self._scopes: dict[str, trio.CancelScope] = {}
        self._leases: Counter[str] = Counter()
        self._selections: Counter[str] = Counter()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the workers' nursery open until cancelled; then every worker aborts, closes and unlinks."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    async def add(self, spec: WorkerSpec) -> Worker:
        """Start a worker and return it once its sockets are bound (or binding has failed, which it goes on trying).

        Raises ConfigError for a malformed URL, Conflict if its URL or handshake address is taken.
        """
        assert self._nursery is not None, "the registry runs before workers are added"
        worker = Worker(
            spec,
            self._transport,
            silence_limit_s=self._timeouts.silence_limit_s,
            send_limit_s=self._timeouts.send_limit_s,
            handshake_limit_s=self._timeouts.handshake_limit_s,
        )
        self._refuse_collision(worker)
        self._workers[spec.worker_id] = worker
        scope = self._scopes[spec.worker_id] = trio.CancelScope()
        await self._nursery.start(self._run_worker, worker, scope)
        return worker

    async def _run_worker(self, worker: Worker, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await worker.run(task_status=task_status)

    def _refuse_collision(self, worker: Worker) -> None:
        for other in self._workers.values():
            if other.spec.url == worker.spec.url:
                raise Conflict(
                    f"Worker already exists at URL '{worker.spec.url}' with ID {other.spec.worker_id}. "
                    f"Use PUT /workers/{other.spec.worker_id} to replace or PATCH /workers/{other.spec.worker_id} "
                    "to update."
                )
            if other.addresses.handshake == worker.addresses.handshake:
                raise Conflict(
                    f"ZMQ worker {worker.spec.url} would bind handshake address {worker.addresses.handshake}, already "
                    f"claimed by worker {other.spec.url}: the derived port is a hash of the ipc path, so rename this "
                    "worker's ipc path or set zmq_handshake_address to a free tcp:// address"
                )

    def remove(self, worker_id: str) -> None:
        """End a worker now: what it has in flight fails, its sockets are closed. Raises NotFound."""
        self.get(worker_id)
        del self._workers[worker_id]
        self._scopes.pop(worker_id).cancel()

    def get(self, worker_id: str) -> Worker:
        """The worker of that id. Raises NotFound."""
        try:
            return self._workers[worker_id]
        except KeyError:
            raise NotFound(f"Worker {worker_id} not found") from None

    def workers(self, model: str | None = None) -> list[Worker]:
        """All workers, or those that serve `model`, in order of registration."""
        workers = self._workers.values()
        return [worker for worker in workers if model is None or worker.spec.model_id == model]

    @property
    def policy_name(self) -> str:
        """The policy's name, as `--policy` spells it."""
        return self._policy.name

    def lease(self, model: str, prompt_token_ids: Sequence[int]) -> Lease:
        """Choose a ready worker for the model. Raises ModelNotFound, NoReadyWorker with the workers' own reasons."""
        workers = self.workers(model)
        if not workers:
            raise ModelNotFound(model)
        ready = [worker for worker in workers if worker.state is WorkerState.READY]
        if not ready:
            reasons = "; ".join(f"{worker.spec.url}: {worker.snapshot().reason or worker.state}" for worker in workers)
            raise NoReadyWorker(f"No worker for model `{model}` is ready ({reasons}).")
        worker = self._policy.choose(ready, prompt_token_ids)
        self._leases[worker.spec.worker_id] += 1
        self._selections[worker.spec.worker_id] += 1
        return Lease(worker, self._close_lease)

    def _close_lease(self, worker: Worker) -> None:
        self._leases[worker.spec.worker_id] -= 1
        if not self._leases[worker.spec.worker_id]:
            del self._leases[worker.spec.worker_id]

    def load(self, worker_id: str) -> int:
        """Open leases on the worker."""
        return self._leases[worker_id]

    def selections(self, worker_id: str) -> int:
        """How often the worker has been chosen."""
        return self._selections[worker_id]

    def max_model_len(self, model: str) -> int | None:
        """The smallest context window among the model's registered engines; None before the first registration."""
        windows = [window for worker in self.workers(model) if (window := worker.max_model_len) is not None]
        return min(windows, default=None)

    def fail_everything(self, error: SmgError) -> None:
        """End every request in flight with `error`, and abort it at its engine."""
        for worker in self._workers.values():
            worker.fail_everything(error)
