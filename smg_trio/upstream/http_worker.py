"""A worker behind HTTP: where it stands, what models it serves, how busy it is; and its requests.

```
HttpWorker.run
├─ client          idle connections closed, silent responses ended
├─ health          GET /health (of another smg-trio: /readiness), then GET /v1/models when it is due
└─ load            GET /v1/loads or /metrics of servers that have them
```
A worker is pending until it has been well once and has named a model. Two probes without an answer, or one that says
it is not ready, make it not ready; one good probe makes it ready. A request that finds no connection has it probed
immediately, so a dead host is known when the first request fails, not at the next probe.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core import log_context
from smg_trio.core.errors import EngineFault, SmgError
from smg_trio.core.http_addresses import parse_http_url
from smg_trio.core.workers import WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.upstream.client import Exchange, UpstreamClient, UpstreamLimits, UpstreamRequest
from smg_trio.upstream.discovery import (
    LOAD_PATHS,
    SMG_TRIO,
    BadBody,
    ServerLoad,
    ServerModel,
    read_loads,
    read_metrics,
    read_models,
    read_refusal,
)
from smg_trio.upstream.errors import UpstreamDisconnected, UpstreamUnreachable

if TYPE_CHECKING:
    import ssl

    from smg_trio.core.board import RankCells
    from smg_trio.core.engines import EngineLoad
    from smg_trio.upstream.connections import Connect

logger = logging.getLogger("smg_trio.upstream")

_MAX_PROBE_BYTES: Final = 4 * 1024 * 1024
_MISSES: Final = 2
"""Probes without an answer, in a row, that make a worker not ready."""
_REFUSED_STATUSES: Final = (401, 403)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWorkerOptions:
    """How workers behind HTTP are reached and asked. Times in seconds.

    Attributes:
        limits: of requests.
        health_path: of the health probe; another smg-trio is asked for ``/readiness``.
        health_interval_s, health_timeout_s: between health probes, and for the answer of any probe.
        models_interval_s: between looks at the models; also before a worker that refuses the key is asked again.
        load_interval_s: between looks at the load.
        tls: for ``https://``; None for the system's roots.
    """

    limits: UpstreamLimits = field(default_factory=UpstreamLimits)
    health_path: str = "/health"
    health_interval_s: float = 10.0
    health_timeout_s: float = 5.0
    models_interval_s: float = 60.0
    load_interval_s: float = 5.0
    tls: ssl.SSLContext | None = field(default=None, repr=False)


class HttpWorker:
    """One worker behind HTTP. `run` it in a nursery; everything else may be called from outside.

    Args:
        spec: what it is told. ValueError for a malformed URL. A spec without a model has the server say what it serves.
        options: see there.
        connect: in place of real connections, for tests.

    Attributes:
        models: names that it serves, as far as is known; they stay while it is away.
        runtime: what the server is: ``smg-trio``, ``vllm``, ``sglang``, ``generic``; empty before it is known.
        listed: the models as the server lists them, by name.
        cells: its row on the board, in a gateway of several processes: what all of them have in flight at the server.
            Everything else each process finds out by itself.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        options: HttpWorkerOptions | None = None,
        *,
        cells: RankCells | None = None,
        connect: Connect | None = None,
    ) -> None:
        self.spec = spec
        self.cells = cells
        self._options = options or HttpWorkerOptions()
        self.client = UpstreamClient(
            parse_http_url(spec.url), spec.worker_id, self._options.limits, tls=self._options.tls, connect=connect
        )
        self.models: frozenset[str] = frozenset(filter(None, [spec.model_id]))
        self.listed: dict[str, ServerModel] = {}
        self.runtime = ""
        self._random = Random()
        self._requests: dict[Exchange, None] = {}
        self._load: tuple[float, ServerLoad] | None = None
        self._load_refused_by = ""
        self._listed_at: float | None = None
        self._well = self._ever_well = self._draining = False
        self._misses = 0
        self._reason = "not probed yet"
        self._next_probe_s = self._options.health_interval_s
        self._change = trio.Event()
        self._suspicion = trio.Event()

    # ---- requests -------------------------------------------------------------------------------------

    def begin(self, request: UpstreamRequest) -> Exchange:
        """A request of a client, counted as load until `leave`; see `Exchange.start`."""
        exchange = self.client.exchange(request)
        self._requests[exchange] = None
        self._count()
        return exchange

    def leave(self, exchange: Exchange) -> None:
        """The request is over or nobody wants its response: ends it at the worker. Never blocks; idempotent."""
        self._requests.pop(exchange, None)
        self._count()
        exchange.close()

    def _count(self) -> None:
        if self.cells is not None:
            self.cells.set_in_flight(0, len(self._requests))

    def with_key(self, request: UpstreamRequest) -> UpstreamRequest:
        """The request with the worker's own key, if it has one."""
        key = self.key_headers()
        return replace(request, headers=[*request.headers, *key]) if key else request

    def key_headers(self) -> list[tuple[str, str]]:
        """The worker's own key, as every request to it and every probe carries it."""
        key = self.spec.api_key
        return [] if key is None else [("authorization", f"Bearer {key}")]

    def probe_soon(self) -> None:
        """Probe now rather than when it is due: the worker was told something new."""
        self._suspicion.set()

    def suspect(self, error: SmgError) -> None:
        """A request failed with `error`: if that looks like a dead host, probe now."""
        if isinstance(error, (UpstreamUnreachable, UpstreamDisconnected)):
            self._suspicion.set()

    def refused_key(self, status: int) -> None:
        """A request was refused for the worker's key."""
        self._not_well(_key_refused(status), self._options.models_interval_s)

    def shuts_down(self) -> None:
        """A request was refused because the server is about to end; what it has begun goes on."""
        self._not_well("the server is shutting down")

    # ---- as other rooms see it ------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState:
        """Where the worker stands in its lifecycle."""
        if self._draining:
            return WorkerState.DRAINING
        if self._well:
            return WorkerState.READY
        return WorkerState.NOT_READY if self._ever_well else WorkerState.PENDING

    @property
    def in_flight(self) -> int:
        """Requests of clients that it has now, by our count: that of all processes together."""
        return len(self._requests) if self.cells is None else self.cells.in_flight(0)

    @property
    def load(self) -> float:
        """Requests per engine: our own, or all that the server tells of, whichever is more."""
        heard = self._fresh_load()
        if heard is None:
            return float(self.in_flight)
        return max(self.in_flight, heard.total.running + heard.total.waiting) / heard.engines

    def busy_loads(self) -> list[EngineLoad]:
        """What the server last told of its load, all engines together, while that is fresh."""
        heard = self._fresh_load()
        return [] if heard is None else [heard.total]

    def _fresh_load(self) -> ServerLoad | None:
        if self._load is None or trio.current_time() - self._load[0] > 3 * self._options.load_interval_s:
            return None
        return self._load[1]

    def snapshot(self) -> WorkerSnapshot:
        """The worker as it is now. It has no ranks: engines are its server's matter."""
        return WorkerSnapshot(
            spec=self.spec,
            state=self.state,
            reason="" if self._well else self._reason,
            in_flight=self.in_flight,
            lockstep=False,
            wave=0,
            ranks=(),
            handshake_address="",
            models=tuple(self.listed) if not self.spec.model_id else (self.spec.model_id,),
            runtime=self.runtime or "generic",
        )

    def fail_everything(self, error: SmgError) -> None:
        """End every request in flight with `error`."""
        for exchange in list(self._requests):
            exchange.fail(error)

    def start_draining(self) -> None:
        """Take no new requests; those in flight go on."""
        self._draining = True
        self._note_change()

    async def wait_change(self) -> None:
        """Wait until the worker's state or its models may have changed."""
        await self._change.wait()

    async def wait_state(self, state: WorkerState) -> None:
        """Wait until the worker is in `state`."""
        while self.state is not state:
            await self._change.wait()

    def _note_change(self) -> None:
        self._change.set()
        self._change = trio.Event()

    # ---- probes ---------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Probe the server until cancelled; then everything in flight is closed."""
        log_context.request_id.set("")
        log_context.worker.set(self.spec.url)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.client.run)
            nursery.start_soon(self._follow_health)
            nursery.start_soon(self._follow_load)
            task_status.started()

    async def _follow_health(self) -> None:
        while True:
            self._next_probe_s = self._options.health_interval_s
            suspicion = self._suspicion = trio.Event()
            await self._probe()
            with trio.move_on_after(self._next_probe_s * self._random.uniform(0.9, 1.1)):
                await suspicion.wait()

    async def _probe(self) -> None:
        try:
            status, body = await self._get(self._health_path())
            if status in _REFUSED_STATUSES:
                self._not_well(_key_refused(status), self._options.models_interval_s)
                return
            if not 200 <= status < 300:
                words = read_refusal(body)[1]
                self._not_well(f"{self._health_path()} answers {status}" + (f": {words[:200]}" if words else ""))
                return
            if not self._well or self._models_due():
                await self._look_at_models()
            else:
                self._misses = 0
        except EngineFault as error:
            self._missed(error.message)

    def _health_path(self) -> str:
        return "/readiness" if self.runtime == SMG_TRIO else self._options.health_path

    def _models_due(self) -> bool:
        since = self._listed_at
        return since is None or trio.current_time() - since >= self._options.models_interval_s

    async def _look_at_models(self) -> None:
        """Learn what is served, then call the worker well. Raises EngineFault."""
        status, body = await self._get("/v1/models")
        if status in _REFUSED_STATUSES:
            self._not_well(_key_refused(status), self._options.models_interval_s)
            return
        problem = ""
        try:
            if status != 200:
                raise BadBody(f"/v1/models answers {status}")
            listed = read_models(body)
            self.listed, self.runtime = {model.name: model for model in listed.models}, listed.runtime
            problem = "" if self.listed else "/v1/models lists no model"
        except BadBody as bad:
            problem = str(bad)
        self._listed_at = trio.current_time()
        self._load_refused_by = ""
        if self.spec.model_id:
            self.models = frozenset([self.spec.model_id])
        elif problem:
            self._not_well(f"{problem}; name the model as model_id if the server has no such list")
            return
        else:
            self.models = frozenset(self.listed)
        self._misses = 0
        self._become_well()

    def _become_well(self) -> None:
        if not self._well:
            logger.info("%s serves %s", self.spec.url, ", ".join(sorted(self.models)))
        self._well = self._ever_well = True
        self._note_change()

    def _missed(self, words: str) -> None:
        """A probe had no answer."""
        self._misses += 1
        if self._misses >= _MISSES or not self._well:
            self._not_well(words)
        else:
            self._next_probe_s = min(1.0, self._next_probe_s)

    def _not_well(self, reason: str, next_probe_s: float | None = None) -> None:
        if next_probe_s is not None:
            self._next_probe_s = next_probe_s
        if self._well or reason != self._reason:
            logger.warning("%s takes no requests: %s", self.spec.url, reason)
        self._reason = reason
        self._well = False
        self._load = None
        self._note_change()

    async def _follow_load(self) -> None:
        while True:
            path = LOAD_PATHS.get(self.runtime, "")
            if self._well and path and path != self._load_refused_by:
                await self._look_at_load(path)
            await trio.sleep(self._options.load_interval_s * self._random.uniform(0.9, 1.1))

    async def _look_at_load(self, path: str) -> None:
        """A server that does not tell its load loses that signal, until its models are looked at again."""
        try:
            status, body = await self._get(path)
            if status != 200:
                self._load_refused_by = path
                return
            heard = read_metrics(body) if path == "/metrics" else read_loads(body)
        except EngineFault as error:
            logger.debug("%s has not told its load: %s", self.spec.url, error.message)
        except BadBody as bad:
            logger.debug("%s has not told its load: %s", self.spec.url, bad)
            self._load_refused_by = path
        else:
            self._load = trio.current_time(), heard

    async def _get(self, path: str) -> tuple[int, bytes]:
        request = UpstreamRequest(method="GET", path=path, headers=[("accept", "*/*"), *self.key_headers()])
        head, body = await self.client.fetch(request, _MAX_PROBE_BYTES, self._options.health_timeout_s)
        return head.status, body


def _key_refused(status: int) -> str:
    return f"the server refuses this worker's key (status {status}); set api_key"
