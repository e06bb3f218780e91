"""Engines asked to sleep, to pause, to forget their caches, to profile themselves and to load adapters.

Paths and shapes are those of vLLM 0.32's API server; ``/flush_cache`` and profiling answer as the Rust gateways do.
Everything is asked of every engine of every worker, or of those of ``?model=`` or ``?worker_id=``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smg_trio.api.admin import (
    awake_body,
    cache_reset_body,
    flushed_body,
    is_paused_body,
    is_sleeping_body,
    lora_text,
    parse_cache_reset,
    parse_load_lora,
    parse_pause,
    parse_profile,
    parse_sleep,
    parse_unload_lora,
    parse_wake,
    profiled_body,
    sleeping_body,
    status_body,
)
from smg_trio.core.engines import EngineProtocol
from smg_trio.core.errors import EngineDead, EngineFault, NotFound, NotImplementedByEngine, SmgError, UnsupportedFeature
from smg_trio.gateway.http import Request, Response, json_response, text_response
from smg_trio.routing.administration import Engine, call_all, call_each, engines_of, pause_all
from smg_trio.worker.nursery import Worker

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway

QUICK_LIMIT_S = 30.0
SLEEP_LIMIT_S = 300.0
"""Sleeping and waking copy all weights between the accelerator and memory."""
PROFILE_LIMIT_S = 300.0
"""Stopping a profiler writes its trace."""


async def sleep(gateway: Gateway, request: Request) -> Response:
    """Put engines to sleep; ``level`` 0 pauses, 1 offloads weights, 2 discards them."""
    asked = parse_sleep(request.query)
    limit_s = _draining_limit_s(gateway, asked.mode, SLEEP_LIMIT_S)
    await call_all(_engines(gateway, request), "sleep", asked.level, asked.mode, timeout_s=limit_s)
    _note_sleep(gateway, request, asked.level)
    return json_response(sleeping_body(asked.level))


async def wake_up(gateway: Gateway, request: Request) -> Response:
    """Wake engines up; ``tags`` select what."""
    tags = parse_wake(request.repeated.get("tags", ())).tags
    engines = _engines(gateway, request)
    answers = await call_all(engines, "wake_up", None if tags is None else list(tags), timeout_s=SLEEP_LIMIT_S)
    if None in answers:  # engines before 0.32 do not say
        answers = [not asleep for asleep in await call_all(engines, "is_sleeping", timeout_s=QUICK_LIMIT_S)]
    if all(answers):
        _note_sleep(gateway, request, None)
    return json_response(awake_body(tags, fully=all(answers)))


async def is_sleeping(gateway: Gateway, request: Request) -> Response:
    """Whether any engine sleeps."""
    answers = await call_all(_engines(gateway, request), "is_sleeping", timeout_s=QUICK_LIMIT_S)
    return json_response(is_sleeping_body(any(answers)))


async def pause(gateway: Gateway, request: Request) -> Response:
    """Pause engine scheduling; ``mode`` says what happens to running requests, and (vLLM 0.33) to new ones."""
    asked = parse_pause(request.query)
    limit_s = _draining_limit_s(gateway, asked.mode, QUICK_LIMIT_S)
    await pause_all(_engines(gateway, request), asked.mode, asked.clear_cache, timeout_s=limit_s)
    return json_response(status_body("paused"))


async def resume(gateway: Gateway, request: Request) -> Response:
    """Resume engine scheduling."""
    await call_all(_engines(gateway, request), "resume_scheduler", timeout_s=QUICK_LIMIT_S)
    return json_response(status_body("resumed"))


async def is_paused(gateway: Gateway, request: Request) -> Response:
    """Whether any engine is paused."""
    answers = await call_all(_engines(gateway, request), "is_scheduler_paused", timeout_s=QUICK_LIMIT_S)
    return json_response(is_paused_body(any(answers)))


async def reset_prefix_cache(gateway: Gateway, request: Request) -> Response:
    """Empty the engines' prefix caches; fails while requests run, unless theirs may be reset too."""
    asked = parse_cache_reset(request.query)
    engines = _engines(gateway, request)
    options = (asked.reset_running_requests, asked.reset_external)
    answers = await call_all(engines, "reset_prefix_cache", *options, timeout_s=QUICK_LIMIT_S)
    return json_response(cache_reset_body(all(answers)))


async def reset_mm_cache(gateway: Gateway, request: Request) -> Response:
    """Empty the engines' caches of multimodal inputs."""
    await call_all(_engines(gateway, request), "reset_mm_cache", timeout_s=QUICK_LIMIT_S)
    return text_response("")


async def reset_encoder_cache(gateway: Gateway, request: Request) -> Response:
    """Empty the engines' caches of encoder outputs."""
    await call_all(_engines(gateway, request), "reset_encoder_cache", timeout_s=QUICK_LIMIT_S)
    return text_response("")


async def flush_cache(gateway: Gateway, request: Request) -> Response:
    """Empty the prefix caches of all workers that support it; returns how many did."""
    workers = _workers(gateway, request)
    able = [worker for worker in workers if worker.spec.protocol is EngineProtocol.VLLM]
    outcome = await _by_worker(able or workers, "reset_prefix_cache", timeout_s=QUICK_LIMIT_S)
    flushed = [url for url, problem in outcome.items() if problem is None]
    failed = [(url, problem.message) for url, problem in outcome.items() if problem is not None]
    body = flushed_body(flushed=flushed, skipped=len(workers) - len(able), failed=failed)
    return json_response(body, 206 if failed else 200)


async def start_profile(gateway: Gateway, request: Request) -> Response:
    """Start profiling of all engines; with ``url`` those of that worker."""
    asked = await gateway.parse_body(request, parse_profile)
    bounds = (asked.delay_iterations, asked.max_iterations)
    # Engines before 0.32 know no bounds.
    arguments = (True, asked.profile_prefix, *(bounds if bounds != (None, None) else ()))
    return await _profile(_with_url(_workers(gateway, request), asked.url), "start", arguments)


async def stop_profile(gateway: Gateway, request: Request) -> Response:
    """Stop profiling and write the traces; with ``url`` those of that worker."""
    asked = await gateway.parse_body(request, parse_profile)
    return await _profile(_with_url(_workers(gateway, request), asked.url), "stop", (False,))


async def load_lora_adapter(gateway: Gateway, request: Request) -> Response:
    """Load a LoRA adapter into every engine of its base model and offer it as a model."""
    asked = await gateway.parse_body(request, parse_load_lora)
    if asked.is_3d_weight:
        raise UnsupportedFeature("'is_3d_lora_weight' is not supported.", param="is_3d_lora_weight")
    assert asked.path is not None, "an adapter that is loaded has a path"
    await gateway.adapters.load(asked.name, asked.path, base_model=asked.base_model, replace=asked.load_inplace)
    await gateway.sharing.models_changed()
    return text_response(lora_text(asked.name, loaded=True))


async def unload_lora_adapter(gateway: Gateway, request: Request) -> Response:
    """Remove a LoRA adapter from the models and the engines."""
    asked = await gateway.parse_body(request, parse_unload_lora)
    await gateway.adapters.unload(asked.name)
    await gateway.sharing.models_changed()
    return text_response(lora_text(asked.name, loaded=False))


def _workers(gateway: Gateway, request: Request) -> list[Worker]:
    worker_id, model = request.query.get("worker_id"), request.query.get("model")
    if worker_id is not None:
        worker = gateway.registry.get(worker_id)
        if not isinstance(worker, Worker):
            raise _behind_http(f"Worker {worker_id} is")
        return [worker]
    if not gateway.registry.workers() and gateway.registry.http:
        raise _behind_http("All workers are")
    return gateway.registry.workers(None if model is None else gateway.catalog.find(model).model_id)


def _behind_http(who: str) -> NotImplementedByEngine:
    return NotImplementedByEngine(f"{who} behind HTTP: engines there are administered at their own server.")


def _engines(gateway: Gateway, request: Request) -> list[Engine]:
    return engines_of(_workers(gateway, request))


def _note_sleep(gateway: Gateway, request: Request, level: int | None) -> None:
    if gateway.metrics.vllm is not None:
        for model in {worker.spec.model_id for worker in _workers(gateway, request)}:
            gateway.metrics.vllm.sleeps(model, level)


def _draining_limit_s(gateway: Gateway, mode: str, limit_s: float) -> float:
    """A mode that waits for what runs waits as long as any answer may take."""
    return limit_s + (gateway.settings.request_timeout_secs if mode == "wait" else 0.0)


def _with_url(workers: list[Worker], url: str | None) -> list[Worker]:
    """Those of that URL, or all if there is none to look for. Raises NotFound."""
    if url is None:
        return workers
    found = [worker for worker in workers if worker.spec.url.rstrip("/") == url.rstrip("/")]
    if not found:
        raise NotFound(f"No worker has the URL '{url[:200]}'; GET /workers lists them.", param="url")
    return found


async def _profile(workers: Sequence[Worker], action: str, arguments: tuple[Any, ...]) -> Response:
    outcome = await _by_worker(workers, "profile", *arguments, timeout_s=PROFILE_LIMIT_S)
    successful = [url for url, problem in outcome.items() if problem is None]
    failed = [(url, problem) for url, problem in outcome.items() if problem is not None]
    if not successful:
        problem = failed[0][1]
        if isinstance(problem, EngineDead):
            raise problem
        raise UnsupportedFeature(f"No engine could {action} profiling: {problem.message}")
    body = profiled_body(action, successful, [(url, problem.message) for url, problem in failed])
    return json_response(body, 206 if failed else 200)


async def _by_worker(
    workers: Sequence[Worker], method: str, *arguments: Any, timeout_s: float
) -> dict[str, SmgError | None]:
    """Each asked worker's URL and what went wrong with it. Raises as `engines_of`."""
    engines = engines_of(workers)
    problems: dict[str, SmgError | None] = dict.fromkeys(worker.spec.url for worker, _ in engines)
    results = await call_each(engines, method, *arguments, timeout_s=timeout_s)
    for (worker, _), result in zip(engines, results, strict=True):
        if isinstance(result, SmgError):
            problems[worker.spec.url] = result
        elif result is False:
            problems[worker.spec.url] = EngineFault(f"engine method {method} did not succeed")
    return problems
