"""What all endpoints share: settings, models, workers, the preparer, metrics, and whether we are draining."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from smg_trio.api.parameters.limits import RequestLimits
from smg_trio.core.errors import NoReadyWorker, ShuttingDown
from smg_trio.core.heavy_json import LIGHT_BYTES
from smg_trio.core.workers import WorkerSnapshot, WorkerState
from smg_trio.gateway.hooks import hooks_of
from smg_trio.gateway.models.adapters import Adapters
from smg_trio.gateway.models.changes import ModelChanges
from smg_trio.gateway.models.loads import ModelLoads
from smg_trio.gateway.models.orders import order_of_settings
from smg_trio.gateway.observability.access_log import AccessLog
from smg_trio.gateway.observability.metrics import Metrics
from smg_trio.gateway.observability.recent_errors import RecentErrors
from smg_trio.gateway.observability.series import LATENCY_BUCKETS_S
from smg_trio.gateway.observability.usage import UsageObserver
from smg_trio.gateway.request_body.incoming import BodyMemory
from smg_trio.gateway.response_ids import ResponseIds
from smg_trio.gateway.security.exposure import is_local
from smg_trio.gateway.security.key_limits import KeyMeters
from smg_trio.gateway.security.origins import OriginPolicy
from smg_trio.gateway.tasks.deadlines import DeadlineQueue
from smg_trio.mcp.sessions import McpAccess
from smg_trio.media.processor import MediaProcessor
from smg_trio.media.reader import MediaReader
from smg_trio.pipeline.encoding_cache import EncodingCache
from smg_trio.pipeline.media import MediaPreparer, WantedMedia
from smg_trio.pipeline.notes import Notes
from smg_trio.pipeline.prepare import Preparer
from smg_trio.routing.rules import routing_key_of
from smg_trio.settings.checks import bucket_bounds

if TYPE_CHECKING:
    from smg_trio.gateway.http import Request
    from smg_trio.gateway.observability.in_flight import InFlightGeneration
    from smg_trio.gateway.observability.tracing import Tracing
    from smg_trio.gateway.observability.usage_log import UsageLog
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.gateway.request_context import RequestContext
    from smg_trio.gateway.security.credentials import Credentials
    from smg_trio.gateway.security.key_ring import Access, KeyHolder
    from smg_trio.gateway.sharing import Sharing
    from smg_trio.history.base import HistoryStore
    from smg_trio.history.relayed import RelayedResponses
    from smg_trio.pipeline.models import ModelCatalog, ServedModel
    from smg_trio.routing.registry import Registry
    from smg_trio.settings.settings import Settings

Parsed = TypeVar("Parsed")


class Readiness(NamedTuple):
    """Whether requests would be served.

    Attributes:
        reason: if not, in words that do not change; `detail` says more, if there is more to say.
        ready_workers: those that an engine has connected to.
    """

    ready: bool
    reason: str
    detail: str
    ready_workers: int
    workers: int


class Gateway:
    """One gateway process.

    Attributes:
        sharing: what it shares with other processes, if there are several.
        keys: that clients may come with.
        auth: looks at what is no key; None where nothing does.
        plugins: that settings and workers name.
        hooks: that see requests and answers; None where there are none.
        media: processes images and videos of requests.
        mcp: the MCP servers whose tools are called; None where none is allowed.
        meters: what their holders use.
        origins: which web pages may send requests.
        access: follows requests to their line in the log.
        bodies: the memory of request bodies.
        history: None where nothing is kept.
        own_model: the id of the model that the settings name, if they do.
        loads: models whose files are being downloaded.
        model_changes: by labels of living workers.
        adapters: LoRA adapters, which are models too.
        background: responses that no client waits for.
        response_ids: those of responses being generated.
        relayed: which worker behind HTTP keeps which response.
        in_flight: answers being generated now, streamed or not, oldest first.
        tool_runs: the scopes of responses that call tools.
        errors: what went wrong lately.
        notes: what the log says only once.
        started: when the gateway was made, on the system's monotonic clock.
        usage_log: gets a line per generation; None where there is none.
        tracing: None where requests are not traced.
        told_of_traces: the log says that a client's trace context is not used.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        catalog: ModelCatalog,
        history: HistoryStore | None,
        credentials: Credentials,
        plugins: PluginSet,
        sharing: Sharing,
        tracing: Tracing | None = None,
        usage_log: UsageLog | None = None,
    ) -> None:
        self.sharing = sharing
        self.settings = settings
        self.keys = credentials.keys
        self.plugins = plugins
        self.auth = credentials.auth
        self.hooks = hooks_of(settings, plugins)
        self.meters = KeyMeters(trio.current_time)
        self.origins = OriginPolicy(
            settings.cors_allowed_origins, settings.allowed_hosts, tls=settings.tls_cert_path is not None
        )
        self.access = AccessLog(enabled=settings.access_log)
        self.tracing = tracing
        self.usage_log = usage_log
        self.told_of_traces = False
        self.registry = registry
        self.catalog = catalog
        self.bodies = BodyMemory(max(settings.max_payload_memory, settings.max_payload_size))
        self.history = history
        self._on_loopback = is_local(settings.host)
        own = order_of_settings(settings)
        self.own_model = None if own is None else own.model_id
        self.loads = ModelLoads(catalog, registry, settings, plugins)
        self.model_changes = ModelChanges(catalog, registry, self.loads, settings)
        registry.model_unused = self._forget_model
        self.adapters = Adapters(catalog, registry)
        self.background = sharing.background()
        self.response_ids = ResponseIds()
        self.relayed: RelayedResponses = sharing.relayed() if history is None else history
        encodings = EncodingCache(settings.tokenizer_cache_l1_max_memory)
        self.limits = _request_limits(settings)
        self.deadlines = DeadlineQueue(settings.request_timeout_secs)
        self.keep_alives = DeadlineQueue(settings.sse_keepalive_secs)
        self.admission = sharing.admission(settings)
        self.in_flight: dict[InFlightGeneration, None] = {}
        self.metrics = self._make_metrics(encodings)
        self.media = MediaProcessor(MediaReader(settings, self.metrics.media.hooks), settings, self.metrics.media.hooks)
        preparer = MediaPreparer(self.media, self._wanted_media, self.metrics.media.hooks)
        self.preparer = Preparer(encodings=encodings, media=preparer)
        self.mcp = McpAccess(settings) if settings.mcp_allow else None
        self.random = Random()
        self.errors = RecentErrors()
        self.notes = Notes()
        self.started = time.monotonic()
        self.tool_runs: set[trio.CancelScope] = set()
        self._no_answers: trio.Event | None = None
        self._drain = trio.Event()

    def _make_metrics(self, encodings: EncodingCache) -> Metrics:
        return Metrics(
            self.registry,
            self.admission,
            encodings,
            self.bodies,
            self.in_flight,
            bucket_bounds(self.settings.prometheus_duration_buckets) or LATENCY_BUCKETS_S,
            self.plugins.calls,
            self.usage_log,
            self.settings.usage_identities,
            vllm_names=self.settings.metrics_compat == "vllm",
        )

    def _forget_model(self, model_id: str) -> None:
        """A model that came with a worker goes with its last one."""
        if model_id != self.own_model:
            self.loads.cancel(model_id)
            self.model_changes.forget(model_id)
            self.catalog.remove(model_id)
            self.metrics.forget_model(model_id)

    @property
    def draining(self) -> bool:
        """Whether the process is about to end and takes no new generations."""
        return self._drain.is_set()

    def start_draining(self) -> None:
        """Not ready from now on; answers in flight go on."""
        self._drain.set()

    async def wait_draining(self) -> None:
        """Wait until the process is about to end."""
        await self._drain.wait()

    @property
    def answers(self) -> int:
        """How many answers are in flight."""
        return len(self.in_flight)

    def answer_begins(self, answer: InFlightGeneration) -> None:
        """An answer is in flight from now on."""
        self.in_flight[answer] = None

    def answer_ends(self, answer: InFlightGeneration) -> None:
        """And no longer."""
        del self.in_flight[answer]
        self._tell_no_answers()

    def _tell_no_answers(self) -> None:
        if not self.in_flight and not self.tool_runs and self._no_answers is not None:
            self._no_answers.set()
            self._no_answers = None

    @contextmanager
    def tools_run(self, scope: trio.CancelScope) -> Iterator[None]:
        """A response that calls tools has not ended, though there are times when nothing of it is in flight.

        `scope`, which it runs in, is cancelled when the grace period is over.
        """
        self.tool_runs.add(scope)
        try:
            yield
        finally:
            self.tool_runs.discard(scope)
            self._tell_no_answers()

    async def wait_no_answers(self) -> None:
        """Wait until nothing is being generated."""
        while self.in_flight or self.tool_runs:
            if self._no_answers is None:
                self._no_answers = trio.Event()
            await self._no_answers.wait()

    async def parse_body(self, request: Request, parse: Callable[..., Parsed], *arguments: Any) -> Parsed:
        """What ``parse(body, *arguments)`` makes of the request's body, which is not kept.

        A large body counts until the generation begins: what was parsed, of images most of all, is as large.

        Raises what `parse` raises.
        """
        body, request.body = request.body, b""
        if len(body) > LIGHT_BYTES:
            request.context.on_generation = request.incoming.release
            return await self.preparer.read(body, parse, *arguments)
        try:
            return await self.preparer.read(body, parse, *arguments)
        finally:
            request.incoming.release()

    async def admit(self, access: Access, headers: Mapping[str, str], path: str = "") -> KeyHolder:
        """Whose a request is, by key or token. Raises Unauthorized, Forbidden, AuthUnavailable."""
        if self.auth is None:
            return self.keys.admit(access, headers)
        return await self.auth.admit(access, headers, "GET", path)

    def account(self, context: RequestContext) -> None:
        """Note what the request's generations cost, where that is noted of its key holder, or of everybody."""
        name, log, metrics = context.holder.name, self.usage_log, self.metrics.usage
        if log is not None or (name and self.settings.usage_identities):
            context.follow(lambda: UsageObserver(metrics, log, name, context.request_id))

    async def show_hooks(
        self, context: RequestContext, body: Mapping[str, Any], path: str, headers: Mapping[str, str]
    ) -> tuple[Mapping[str, Any], str | None]:
        """The body as the hooks want it, and the routing key that they name; its answer will be shown to them, too.

        Raises RefusedByHook, HookUnavailable.
        """
        hooks = self.hooks
        if hooks is None:
            return body, None
        request_id, identity = context.request_id, context.key_name
        changed = await hooks.changed(body, request_id=request_id, path=path, headers=headers, identity=identity)
        if hooks.follows_answers:
            context.follow(lambda: hooks.observer(request_id, identity))
        return changed

    def check_page(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuse a web page that may not send this request; see `OriginPolicy.check`."""
        self.origins.check(method, headers, loopback_only=self._on_loopback and not self.keys.guards_models)

    def routing_key(self, headers: Mapping[str, str]) -> str | None:
        """The session that the request's headers name, for policies that keep sessions together."""
        names = self.settings.routing_key_headers
        return routing_key_of(list(headers.items()), names) if names else None

    def refuse_if_draining(self) -> None:
        """Raises ShuttingDown for new generations while draining."""
        if self.draining:
            raise ShuttingDown("The server is shutting down.")

    def readiness(self) -> Readiness:
        """Whether requests would be served. Of a ready worker without a tokenizer the latter is the reason if not."""
        workers = self.registry.all_workers()
        ready = [
            worker.spec.model_id
            for worker in workers
            if self.registry.snapshot(worker.spec.worker_id).state is WorkerState.READY
            and not self.sharing.worker_ready(worker.spec)
        ]
        awaited = {model.model_id: model for model in self.catalog.all_awaited()}
        reason = detail = ""
        if self.draining:
            reason = "draining"
        elif not any(model not in awaited for model in ready):
            waits_for = awaited.get(ready[0] if ready else self.own_model or "")
            reason = "insufficient healthy workers" if waits_for is None else "tokenizer not yet registered"
            detail = "" if waits_for is None else waits_for.state()
        return Readiness(not reason, reason, detail, len(ready), len(workers))

    def worker_snapshot(self, worker_id: str) -> WorkerSnapshot:
        """A worker as it is now; its reason also says what its model waits for. Raises NotFound."""
        seen = self.registry.snapshot(worker_id)
        if seen.state is WorkerState.READY and (waits := self.sharing.worker_ready(seen.spec)):
            seen = replace(seen, state=WorkerState.NOT_READY, reason=waits)
        awaited = self.catalog.awaited(seen.spec.model_id)
        if awaited is None:
            return seen
        waits = f"tokenizer not yet registered: {awaited.state()}"
        return replace(seen, reason="; ".join(filter(None, (seen.reason, waits))))

    async def _wanted_media(self, model: ServedModel) -> WantedMedia:
        """What the model's engines want media in. Raises NoReadyWorker, or UnsupportedFeature if they take none."""
        forms = await self.registry.pixel_forms(model.model_id, model.text.model_type or "")
        ranks = [rank for worker in self.registry.workers(model.model_id) for rank in worker.snapshot().ranks]
        dtypes = [rank.info.dtype for rank in ranks if rank.info is not None and rank.info.dtype]
        return WantedMedia(forms, dtypes[0].removeprefix("torch.") if dtypes else "bfloat16")

    def context_window(self, model: ServedModel) -> int:
        """The model's context window in tokens, as its engines registered it.

        Raises NoReadyWorker before any engine has.
        """
        window = self.registry.max_model_len(model.model_id)
        if window is None:
            reasons = [
                f"{worker.spec.url}: {worker.snapshot().reason or worker.state}"
                for worker in self.registry.workers(model.model_id)
            ]
            raise NoReadyWorker(
                f"No worker for model `{model.model_id}` is ready ({'; '.join(reasons) or 'none is registered'})."
            )
        return window


def _request_limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        max_logprobs=settings.max_logprobs,
        kv_transfer_params=settings.allow_kv_transfer_params,
        mcp=bool(settings.mcp_allow),
    )
