"""Engine methods called on every engine of some workers: all at once, all of them or an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import NoReadyWorker, NotImplementedByEngine, SmgError
from smg_trio.core.workers import RankPhase
from smg_trio.worker.nursery import Worker

Engine = tuple[Worker, int]
"""A worker and the rank of one of its engines."""


def engines_of(workers: Sequence[Worker]) -> list[Engine]:
    """Every engine that can be asked now.

    Raises NotImplementedByEngine if one of the workers speaks a protocol without methods, NoReadyWorker if there is
    no engine.
    """
    for worker in workers:
        if worker.spec.protocol is not EngineProtocol.VLLM:
            raise NotImplementedByEngine(
                f"The engine protocol of {worker.spec.url} ({worker.spec.protocol}) has no way to administer an engine."
            )
    engines = [
        (worker, rank.rank) for worker in workers for rank in worker.snapshot().ranks if rank.phase is RankPhase.READY
    ]
    if not engines:
        reasons = "; ".join(f"{worker.spec.url}: {worker.snapshot().reason or worker.state}" for worker in workers)
        raise NoReadyWorker(f"No engine is ready ({reasons or 'no worker is registered'}).")
    return engines


async def pause_all(engines: Sequence[Engine], mode: str, clear_cache: bool, *, timeout_s: float) -> None:
    """Pause several engines concurrently, as a user's pause. Raises the first error once all have answered.

    vLLM has a method of that name since 0.33: engines then refuse what comes meanwhile, unless the mode is ``keep``.
    Older ones let it wait.
    """
    methods = ["pause_generation" if _release(engine) >= (0, 33) else "pause_scheduler" for engine in engines]
    calls = [(engine, method, (mode, clear_cache)) for engine, method in zip(engines, methods, strict=True)]
    _raise_first(await _call(calls, timeout_s))


def _release(engine: Engine) -> tuple[int, ...]:
    worker, rank = engine
    info = worker.snapshot().ranks[rank].info
    return () if info is None else info.release


async def call_each(engines: Sequence[Engine], method: str, *arguments: Any, timeout_s: float) -> list[Any | SmgError]:
    """Call a method of several engines at once; the result, or the error, of each.

    Cancelled, calls may still take effect; their replies are dropped.
    """
    return await _call([(engine, method, arguments) for engine in engines], timeout_s)


async def _call(calls: Sequence[tuple[Engine, str, tuple[Any, ...]]], timeout_s: float) -> list[Any | SmgError]:
    results: list[Any | SmgError] = [None] * len(calls)

    async def call(index: int) -> None:
        (worker, rank), method, arguments = calls[index]
        try:
            results[index] = await worker.call_utility(method, *arguments, rank=rank, timeout_s=timeout_s)
        except SmgError as error:
            results[index] = error

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(call, index)
    return results


async def call_all(engines: Sequence[Engine], method: str, *arguments: Any, timeout_s: float) -> list[Any]:
    """As `call_each`; raises the first error once all have answered."""
    results = await call_each(engines, method, *arguments, timeout_s=timeout_s)
    _raise_first(results)
    return results


def _raise_first(results: Sequence[Any | SmgError]) -> None:
    for result in results:
        if isinstance(result, SmgError):
            raise result
