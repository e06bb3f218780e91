"""Pooling requests at the engines: one per prompt, all at once, each answered with one vector."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.core.errors import NoReadyWorker, SmgError
from smg_trio.core.events import Usage
from smg_trio.core.outputs import FinishReason, GenerationOutput
from smg_trio.core.requests import GenerationRequest
from smg_trio.core.workers import WorkerState
from smg_trio.pipeline.engine_requests import Batch, EngineRequests, HeldRequest, RequestCounts, unique_request_id
from smg_trio.pipeline.pooling_inputs import PoolingPrompt, scoring_task
from smg_trio.pipeline.prepared_media import AnswerMedia, answer_media
from smg_trio.pipeline.rejections import rejection
from smg_trio.routing.policies.media_tokens import with_media

if TYPE_CHECKING:
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.routing.lease import Lease
    from smg_trio.routing.registry import Registry
    from smg_trio.worker.group import AnyDelivery
    from smg_trio.worker.ledger import InFlight


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


class _PooledRequest(HeldRequest):
    """One prompt: the engine request behind it and the vector that it was answered with."""

    __slots__ = ("vector",)

    def __init__(self, lease: Lease, entry: InFlight[AnyDelivery]) -> None:
        super().__init__(lease, entry)
        self.vector: list[float] | None = None

    @property
    def finished(self) -> bool:
        """See `HeldRequest`."""
        return self.vector is not None


class PooledAnswer(EngineRequests[_PooledRequest, list[list[float]]]):
    """The vectors of all prompts of a job. Its only update is float[…] of each prompt, flat, in order."""

    __slots__ = ("_job",)
    pooled = True

    def __init__(self, job: PoolingJob, media: AnswerMedia | None = None) -> None:
        """`media`: those of the prompts, as the attempt before left them."""
        media = media or answer_media(job.model, [prompt.media for prompt in job.prompts])
        super().__init__(job.model.model_id, job.request_id, job.prompt_tokens, len(job.prompts), media)
        self._job = job

    def _prompts(self) -> Iterable[Sequence[int]]:
        return [
            prompt.token_ids if prompt.media is None else with_media(prompt.token_ids, prompt.media.features)
            for prompt in self._job.prompts
        ]

    def _begin_one(self, index: int, lease: Lease) -> _PooledRequest:
        request = _engine_request(self._job, self._job.prompts[index])
        return _PooledRequest(lease, lease.worker.begin(request, self._outputs.delivery(index)))

    def again(self) -> PooledAnswer:
        """See `EngineRequests`."""
        return PooledAnswer(self._job, self._media)

    async def next_updates(self) -> list[list[list[float]]]:
        """See `EngineRequests`: waits for every vector, so that the job can be tried again until all are there."""
        updates: list[list[list[float]]] = []
        while not updates:
            updates = await super().next_updates()
        return updates

    def take(self, batch: Batch) -> list[list[list[float]]]:
        """See `EngineRequests`; nothing until the last vector has come."""
        try:
            for index, output in batch:
                if output.finish_reason is not None:
                    held = self._held[index]
                    held.vector = _vector(output)
                    held.lease.succeeded()
                    self._open -= 1
        except SmgError as error:
            self.fail_leases(error)
            raise
        return [] if self._open else [[held.vector for held in self._held if held.vector is not None]]

    @property
    def adapter(self) -> str:
        """See `EngineRequests`."""
        lora = self._job.model.lora
        return "" if lora is None else lora.name

    def request_counts(self) -> list[RequestCounts]:
        """See `EngineRequests`."""
        return [
            RequestCounts(
                index, FinishReason.STOP if held.finished else None, len(prompt.token_ids), queue_s=held.entry.queue_s
            )
            for index, (held, prompt) in enumerate(zip(self._held, self._job.prompts, strict=False))
        ]

    def usage(self) -> Usage:
        """See `EngineRequests`."""
        return Usage(self.prompt_tokens, 0)


def _vector(output: GenerationOutput) -> list[float]:
    if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT) or output.pooled is None:
        raise rejection(output.error, output.finish_reason or FinishReason.ERROR)
    return output.pooled


def _engine_request(job: PoolingJob, prompt: PoolingPrompt) -> GenerationRequest:
    return GenerationRequest(
        request_id=unique_request_id(job.request_id),
        prompt_token_ids=prompt.token_ids,
        media=() if prompt.media is None else prompt.media.features,
        pooling=prompt.pooling,
        arrival_time=time.time(),
        priority=job.priority,
        cache_salt=job.cache_salt,
        lora=job.model.lora,
        trace_headers=job.trace_headers,
        stream=False,
    )
