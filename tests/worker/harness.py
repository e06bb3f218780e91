"""A worker with fake engines, in memory (for a mock clock) or on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import trio

from smg_trio.core.engines import EngineProtocol
from smg_trio.core.outputs import GenerationOutput
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.testing.fake_engine import FakeEngine
from smg_trio.testing.lockstep import LockstepGroup
from smg_trio.testing.memory import MemoryNetwork
from smg_trio.testing.options import EngineOptions
from smg_trio.testing.script import LengthScript, ScriptChooser
from smg_trio.testing.zmq_engine import zmq_engine
from smg_trio.worker.nursery import Worker
from smg_trio.worker.zmq_links import open_zmq_transport

_ids = count()


def request(*, max_tokens: int = 4, request_id: str | None = None, **fields: Any) -> GenerationRequest:
    """A small generation request with an id of its own."""
    sampling = SamplingParams(max_tokens=max_tokens, **fields.pop("sampling", {}))
    return GenerationRequest(
        request_id=request_id or f"r{next(_ids)}",
        prompt_token_ids=fields.pop("prompt_token_ids", [1, 2, 3]),
        sampling=sampling,
        **fields,
    )


async def collect(worker: Worker, asked: GenerationRequest) -> list[GenerationOutput]:
    """All outputs of a request."""
    outputs: list[GenerationOutput] = []
    async with worker.generate(asked) as stream:
        while not outputs or outputs[-1].finish_reason is None:
            outputs.extend(output for _, output in await stream.receive_batch())
    return outputs


def tokens(outputs: list[GenerationOutput]) -> list[int]:
    """Their token ids, joined."""
    return [token_id for output in outputs for token_id in output.token_ids]


@dataclass
class Bench:
    """A running worker and a way to give it engines."""

    worker: Worker
    nursery: trio.Nursery
    dial: Callable[[EngineOptions, ScriptChooser, LockstepGroup | None], FakeEngine]
    protocol: EngineProtocol
    group: LockstepGroup | None = None
    memory: MemoryNetwork | None = None
    engines: list[FakeEngine] = field(default_factory=list)
    scopes: dict[int, trio.CancelScope] = field(default_factory=dict)

    @property
    def network(self) -> MemoryNetwork:
        """The network of a bench in memory, for hand-made engines."""
        assert self.memory is not None
        return self.memory

    def start_engine(
        self, rank: int = 0, *, script: ScriptChooser = lambda request: LengthScript(), **options: Any
    ) -> FakeEngine:
        """Start an engine that dials in."""
        defaults: dict[str, Any] = {"protocol": self.protocol, "rank": rank, "step_time_s": 0.01}
        engine = self.dial(EngineOptions(**(defaults | options)), script, self.group)
        self.engines.append(engine)
        scope = self.scopes[id(engine)] = trio.CancelScope()
        self.nursery.start_soon(self._run, engine, scope)
        return engine

    async def _run(self, engine: FakeEngine, scope: trio.CancelScope) -> None:
        with scope:
            await engine.run()

    def kill(self, engine: FakeEngine) -> None:
        """SIGKILL: its links close, nothing is said."""
        self.scopes[id(engine)].cancel()

    async def ready(self, rank: int = 0, **options: Any) -> FakeEngine:
        """Start an engine and wait until the worker serves."""
        engine = self.start_engine(rank, **options)
        await self.worker.wait_state(WorkerState.READY)
        await self.worker.supported_tasks()  # so that the wire is quiet when a test begins
        return engine


def _spec(tmp_path: Path, protocol: EngineProtocol, engine_count: int) -> WorkerSpec:
    return WorkerSpec(
        worker_id="w",
        url=f"ipc://{tmp_path}/sockets/e",
        model_id="m",
        protocol=protocol,
        engine_count=engine_count,
        vocab_size=32000,
    )


@asynccontextmanager
async def memory_bench(
    tmp_path: Path,
    *,
    protocol: EngineProtocol = EngineProtocol.VLLM,
    engine_count: int = 1,
    lockstep: bool = False,
    capacity: int | None = None,
    **limits: Any,
) -> AsyncIterator[Bench]:
    """A worker whose links are in memory."""
    network = MemoryNetwork(capacity=capacity)
    worker = Worker(_spec(tmp_path, protocol, engine_count), network, **limits)

    def dial(options: EngineOptions, script: ScriptChooser, group: LockstepGroup | None) -> FakeEngine:
        return FakeEngine(options, network, worker.addresses.handshake, choose_script=script, group=group)

    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        group = LockstepGroup(engine_count) if lockstep else None
        yield Bench(worker, nursery, dial, protocol, group, network)
        nursery.cancel_scope.cancel()


@contextmanager
def _context() -> Iterator[Any]:
    import zmq

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


@asynccontextmanager
async def socket_bench(
    tmp_path: Path,
    *,
    protocol: EngineProtocol = EngineProtocol.VLLM,
    engine_count: int = 1,
    lockstep: bool = False,
    **limits: Any,
) -> AsyncIterator[Bench]:
    """A worker on real sockets."""
    with _context() as context, open_zmq_transport() as transport:
        worker = Worker(_spec(tmp_path, protocol, engine_count), transport, **limits)

        def dial(options: EngineOptions, script: ScriptChooser, group: LockstepGroup | None) -> FakeEngine:
            return zmq_engine(options, worker.addresses.handshake, choose_script=script, group=group, context=context)

        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            group = LockstepGroup(engine_count) if lockstep else None
            yield Bench(worker, nursery, dial, protocol, group)
            nursery.cancel_scope.cancel()
