"""A registry whose workers are in memory, and a way to give them engines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio

from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.routing.lease import Lease
from smg_trio.routing.policies import Policy
from smg_trio.routing.registry import Registry
from smg_trio.routing.rules import RoutingRules
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.testing.options import EngineOptions
from smg_trio.wire.addresses import parse_worker_url
from smg_trio.worker.output_stream import OutputStream

_ids = count()


class Fleet:
    """The registry, the network below it, and the engines that dial in."""

    def __init__(self, registry: Registry, network: MemoryNetwork, nursery: trio.Nursery, directory: Path) -> None:
        self.registry = registry
        self.network = network
        self.nursery = nursery
        self.directory = directory
        self._scopes: dict[str, trio.CancelScope] = {}

    def spec(self, name: str, **fields: Any) -> WorkerSpec:
        """A worker's spec; its path is made of its name."""
        defaults = {"worker_id": name, "url": f"ipc://{self.directory}/{name}", "model_id": "m", "vocab_size": 32000}
        return WorkerSpec(**(defaults | fields))

    def start_engine(self, name: str, **options: Any) -> FakeEngine:
        """An engine that dials in at a worker, whether that is there yet or not."""
        address = parse_worker_url(self.spec(name).url).handshake
        engine = FakeEngine(EngineOptions(**({"step_time_s": 0.01} | options)), self.network, address)
        scope = self._scopes[name] = trio.CancelScope()
        self.nursery.start_soon(self._run, engine, scope)
        return engine

    async def _run(self, engine: FakeEngine, scope: trio.CancelScope) -> None:
        with scope:
            await engine.run()

    def kill_engine(self, name: str) -> None:
        """Its links close, nothing is said."""
        self._scopes[name].cancel()

    async def ready(self, name: str, **fields: Any) -> None:
        """Add a worker and wait until it serves."""
        worker = await self.registry.add(self.spec(name, **fields))
        self.start_engine(name)
        await worker.wait_state(WorkerState.READY)

    def lease(self, **options: Any) -> Lease:
        """A lease for a small prompt."""
        return self.registry.lease("m", [1, 2, 3], **options)


async def answer(lease: Lease, max_tokens: int = 3) -> int:
    """Generate on the leased worker; the number of tokens. Judges the lease, does not close it."""
    request = GenerationRequest(
        request_id=f"r{next(_ids)}", prompt_token_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=max_tokens)
    )
    outputs = OutputStream[int]()
    entry = lease.worker.begin(request, outputs.delivery(0))
    tokens = 0
    try:
        while True:
            for _, output in await outputs.receive_batch():
                tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    lease.succeeded()
                    return tokens
    finally:
        lease.worker.leave(entry)


@asynccontextmanager
async def fleet(
    tmp_path: Path, *, policy: Policy | None = None, rules: RoutingRules | None = None
) -> AsyncIterator[Fleet]:
    """A running registry without workers."""
    network = MemoryNetwork()
    registry = Registry(network, policy, rules=rules)
    async with trio.open_nursery() as nursery:
        await nursery.start(registry.run)
        yield Fleet(registry, network, nursery, tmp_path)
        nursery.cancel_scope.cancel()
