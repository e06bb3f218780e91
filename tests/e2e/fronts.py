"""A gateway whose workers are behind HTTP: scripted servers, or other gateways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from smg_trio.core.workers import WorkerState
from smg_trio.upstream.http_worker import HttpWorker
from tests.upstream.scripted import Call, Script, Scripted, scripted
from tests.waiting import until

from .harness import Bench, open_gateway

MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}).encode()
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
ANSWER = json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode()


def serving(answer: Callable[[Call], Awaitable[bool | None]], models: bytes = MODELS) -> Script:
    """A server that is well and serves `m`; everything but probes goes to `answer`."""

    async def script(call: Call) -> bool | None:
        if call.request.path == "/v1/models":
            await call.answer(models)
        elif call.request.path in ("/health", "/metrics"):
            await call.answer(b"")
        else:
            return await answer(call)
        return None

    return script


async def answering(call: Call) -> None:
    """A whole answer."""
    await call.answer(ANSWER)


def asked(server: Scripted) -> list[Any]:
    """What was asked of a server beside probes."""
    return [one for one in server.received if one.path not in ("/health", "/v1/models", "/metrics", "/readiness")]


async def wait_http_ready(front: Bench, count: int) -> list[HttpWorker]:
    """Wait until so many workers behind HTTP are ready, and all others are not pending."""
    workers = front.gateway.registry.http.workers()
    await until(lambda: sum(worker.state is WorkerState.READY for worker in workers) >= count)
    return workers


@asynccontextmanager
async def open_front(tmp_path: Path, *urls: str, ready: int | None = None, **settings: Any) -> AsyncIterator[Bench]:
    """A gateway without engines of its own in front of servers; `ready`: how many are waited for, all unless said."""
    chosen: dict[str, Any] = {
        "worker_urls": urls,
        "model_path": None,
        "served_model_name": (),
        "backend": None,
        "retry_initial_backoff_ms": 1.0,
    }
    (tmp_path / "front").mkdir(exist_ok=True)
    async with open_gateway(tmp_path / "front", workers=0, connect=False, **(chosen | settings)) as front:
        await wait_http_ready(front, len(urls) if ready is None else ready)
        yield front


@asynccontextmanager
async def front_of(
    tmp_path: Path, *answers: Callable[[Call], Awaitable[bool | None]], **settings: Any
) -> AsyncIterator[tuple[Bench, list[Scripted]]]:
    """A front and one scripted server per answer."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(scripted(serving(answer))) for answer in answers]
        front = await stack.enter_async_context(open_front(tmp_path, *[one.url for one in servers], **settings))
        yield front, servers
