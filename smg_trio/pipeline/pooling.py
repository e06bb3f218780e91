"""Pooling requests at the engines: one per prompt, all at once, each answered with one vector."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from smg_trio.core.errors import EngineRejected, NoReadyWorker, SmgError
from smg_trio.core.outputs import FinishReason, GenerationOutput
from smg_trio.core.requests import GenerationRequest
from smg_trio.core.workers import WorkerState
from smg_trio.pipeline.answer import unique_request_id
from smg_trio.pipeline.models import ServedModel
from smg_trio.pipeline.pooling_inputs import PoolingPrompt, scoring_task
from smg_trio.routing.lease import Lease
from smg_trio.routing.registry import Registry
from smg_trio.worker.group import AnyDelivery
from smg_trio.worker.ledger import InFlight
from smg_trio.worker.output_stream import OutputStream

_Held = tuple[Lease, InFlight[AnyDelivery]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingJob:
    """What one HTTP request wants pooled.

    Attributes:
        request_id: engine ids are made from it and made unique.
        prompts: at least one.
    """

    model: ServedModel
    request_id: str
    prompts: Sequence[PoolingPrompt]
    priority: int = 0
    cache_salt: str | None = None
    trace_headers: Mapping[str, str] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)


async def supported_tasks(model: ServedModel, registry: Registry) -> frozenset[str]:
    """What every ready engine of the model was started for. Raises NoReadyWorker, EngineFault."""
    ready = [worker for worker in registry.workers(model.model_id) if worker.state is WorkerState.READY]
    if not ready:
        raise NoReadyWorker(f"No worker for model `{model.model_id}` is ready.")
    return frozenset.intersection(*[await worker.supported_tasks() for worker in ready])


async def require_task(task: str, model: ServedModel, registry: Registry) -> None:
    """Raises UnsupportedFeature, or NotImplementedByEngine, if the model's engines were not started for the task.

    Also raises NoReadyWorker, EngineFault.
    """
    tasks = await supported_tasks(model, registry)
    if task not in tasks:
        raise registry.workers(model.model_id)[0].missing_task(task, tasks)


async def find_scoring_task(model: ServedModel, registry: Registry) -> str:
    """What the model's engines are asked for to score pairs of texts. Raises as `require_task`."""
    tasks = await supported_tasks(model, registry)
    task = scoring_task(tasks, model)
    if task is None:
        raise registry.workers(model.model_id)[0].missing_task("score", tasks)
    return task


async def pool(
    job: PoolingJob,
    registry: Registry,
    *,
    routing_key: str | None = None,
    avoid: Collection[str] = (),
    tried: set[str] | None = None,
) -> list[list[float]]:
    """Pool every prompt and return float[…] of each, flat, in order.

    Args:
        job: what is wanted.
        registry: where the workers are.
        routing_key, avoid: see `Registry.lease`.
        tried: the ids of the workers that were asked are added to it.

    Raises SmgError of the first request that fails; left for any reason, the others are aborted.
    """
    outputs = OutputStream[int]()
    held: list[_Held] = []
    try:
        for index, prompt in enumerate(job.prompts):
            lease = registry.lease(job.model.model_id, prompt.token_ids, routing_key=routing_key, avoid=avoid)
            if tried is not None:
                tried.add(lease.worker.spec.worker_id)
            try:
                entry = lease.worker.begin(_engine_request(job, prompt), outputs.delivery(index))
            except BaseException:
                lease.close()
                raise
            held.append((lease, entry))
        return await _gather(outputs, held)
    finally:
        for lease, entry in held:
            lease.worker.leave(entry)
            lease.close()


async def _gather(outputs: OutputStream[int], held: Sequence[_Held]) -> list[list[float]]:
    pooled: dict[int, list[float]] = {}
    try:
        while len(pooled) < len(held):
            for index, output in await outputs.receive_batch():
                if output.finish_reason is not None:
                    pooled[index] = _vector(output)
                    held[index][0].succeeded()
    except SmgError as error:
        for index, (lease, _) in enumerate(held):
            if index not in pooled:
                lease.failed(error)
        raise
    return [pooled[index] for index in range(len(held))]


def _vector(output: GenerationOutput) -> list[float]:
    if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT) or output.pooled is None:
        raise EngineRejected(output.error or f"The engine ended the request ({output.finish_reason}).")
    return output.pooled


def _engine_request(job: PoolingJob, prompt: PoolingPrompt) -> GenerationRequest:
    return GenerationRequest(
        request_id=unique_request_id(job.request_id),
        prompt_token_ids=prompt.token_ids,
        pooling=prompt.pooling,
        arrival_time=time.time(),
        priority=job.priority,
        cache_salt=job.cache_salt,
        lora=job.model.lora,
        trace_headers=job.trace_headers,
        stream=False,
    )
