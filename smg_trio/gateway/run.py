"""The gateway process: one trio task tree from settings to exit code.

```
run_gateway
└─ workers (registry)                       cancelled last
   └─ serving: HTTP listener ∥ metrics listener ∥ signal watcher ∥ key and certificate files
```
Shutdown: immediately not ready, and no new generations; answers in flight go on until they end or the grace period
does; what is left gets an error event and ``[DONE]``; sockets are cut a moment later, read or not; then the workers
abort, close and unlink. A second signal cuts immediately.
"""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import trio

from smg_trio.core.errors import ConfigError, ShuttingDown, SmgError
from smg_trio.gateway.apps.hot_routes import HotRoutes
from smg_trio.gateway.apps.metrics_app import MetricsApp
from smg_trio.gateway.apps.probes_app import ProbesApp
from smg_trio.gateway.apps.quart_app import make_app
from smg_trio.gateway.models.orders import Located, ModelOrder, is_complete, load, locate, order_of_settings
from smg_trio.gateway.observability.usage_log import UsageLog
from smg_trio.gateway.plugin_set import PluginSet
from smg_trio.gateway.role import Listeners, Role, Serving, serve_app
from smg_trio.gateway.security.credentials import Credentials, open_credentials
from smg_trio.gateway.security.exposure import exposure_line, exposures
from smg_trio.gateway.state import Gateway
from smg_trio.gateway.tasks.keep_running import keep_running
from smg_trio.history.retention import keep_forgetting
from smg_trio.http.settings import ServerLimits
from smg_trio.http.shutdown import Shutdown
from smg_trio.pipeline.models import ModelCatalog
from smg_trio.routing.http_options import http_worker_options
from smg_trio.settings.checks import check_settings
from smg_trio.settings.workers import allowed_networks
from smg_trio.worker.access import PRIVATE_NETWORKS
from smg_trio.worker.address_checks import check_worker_addresses
from smg_trio.worker.zmq_links import open_zmq_transport

if TYPE_CHECKING:
    from smg_trio.gateway.dashboard.feed import LiveFeed
    from smg_trio.gateway.observability.tracing import Tracing
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.gateway.security.file_watcher import FileWatcher
    from smg_trio.http.asgi import App
    from smg_trio.settings.settings import Settings
    from smg_trio.worker.links import Transport

logger = logging.getLogger("smg_trio.gateway")

_SETTLE_S = 5.0
"""While answers are in flight the listener stays open this long (at most half the grace period), so that load
balancers see 503 on the readiness probe instead of refused connections (as the reference does)."""
_CUT_AFTER_S = 1.0
"""Between the error events at the end of the grace period and cutting the connections of those who do not read."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """What `run_gateway` reports as started; `feed` is None without the live page."""

    gateway: Gateway
    server: Serving
    metrics_server: Serving
    shutdown: GatewayShutdown
    files: FileWatcher
    feed: LiveFeed | None


class GatewayShutdown:
    """How a running gateway is told to end."""

    def __init__(self) -> None:
        self._asked = trio.Event()
        self._cut = trio.Event()
        self.clean = True
        self.failure: SmgError | None = None

    def fail(self, failure: SmgError) -> None:
        """End now: `run_gateway` raises the failure when all is closed."""
        self.failure = self.failure or failure
        self._asked.set()
        self._cut.set()

    def ask(self) -> None:
        """Drain and end; asked again, end now."""
        if self._asked.is_set():
            self.clean = False
            self._cut.set()
        self._asked.set()

    async def wait_asked(self) -> None:
        """Wait for the first `ask`."""
        await self._asked.wait()

    async def wait_cut(self) -> None:
        """Wait for the second `ask`."""
        await self._cut.wait()


async def run_gateway(
    settings: Settings,
    *,
    plugins: PluginSet | None = None,
    open_transport: Callable[[float], AbstractContextManager[Transport]] = open_zmq_transport,
    shutdown: GatewayShutdown | None = None,
    role: Role | None = None,
    watch_signals: bool = False,
    task_status: trio.TaskStatus[RunningGateway] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Run a gateway until it is told to end; the exit code: 0 after a drain, 1 if it was cut.

    Args:
        settings: checked here.
        plugins: what the settings name, if that has been loaded.
        open_transport: for the workers' sockets, with the time between heartbeats; closed when all of them are.
        shutdown: how the caller ends it, beside signals.
        role: which of a gateway's processes this is; the only one if not given.
        watch_signals: whether SIGTERM and SIGINT end it, and SIGHUP has it read keys and certificate again.
        task_status: started once it listens.

    Raises ConfigError before anything is bound, or later, when everything is closed again, if the model cannot be
    downloaded. Cancelled, everything is closed immediately.
    """
    check_settings(settings)
    check_worker_addresses(settings)
    http_worker_options(settings)  # refuses files that cannot be read before anything is bound
    plugins = plugins or PluginSet(settings)
    shutdown, role = shutdown or GatewayShutdown(), role or Role()
    credentials = await open_credentials(settings, plugins)
    async with _tracing(settings) as tracing, _usage_log(settings) as usage_log:
        order = order_of_settings(settings)
        catalog = ModelCatalog()
        located = await _load_from_disk(order, catalog, plugins)
        sockets = await role.open_listeners(settings)
        async with role.open_history(settings) as history:
            with open_transport(settings.zmq_heartbeat_secs) as transport:
                registry = role.registry(settings, transport, plugins)
                gateway = Gateway(settings, registry, catalog, history, credentials, plugins, role, tracing, usage_log)
                if order is not None and located is not None:
                    gateway.loads.begin(order, located, shutdown.fail)
                async with trio.open_nursery() as workers:
                    await workers.start(transport.guard, allowed_networks(settings) or PRIVATE_NETWORKS)
                    await workers.start(registry.run)
                    await role.add_workers(gateway)
                    workers.start_soon(role.discover_workers, gateway)
                    await _serve(gateway, role, credentials, sockets, shutdown, watch_signals, task_status)
                    workers.cancel_scope.cancel()
    logger.log(_level(role), "gateway ended")
    if shutdown.failure is not None:
        raise shutdown.failure
    return 0 if shutdown.clean else 1


async def _load_from_disk(order: ModelOrder | None, catalog: ModelCatalog, plugins: PluginSet) -> Located | None:
    """Put the model that the settings name into the catalog, unless files have to be downloaded: then what is there.

    Raises ConfigError.
    """
    if order is None:
        return None
    located = await locate(order)
    if not is_complete(order, located):
        return located
    catalog.add(await load(order, located, plugins))
    return None


@asynccontextmanager
async def _tracing(settings: Settings) -> AsyncIterator[Tracing | None]:
    if not settings.enable_trace:
        yield None
        return
    try:
        # Imported here, so that it costs nothing where requests are not traced, and need not be installed.
        from smg_trio.gateway.observability.tracing import open_tracing
    except ImportError as error:
        raise ConfigError(
            "--enable-trace", f"needs OpenTelemetry ({error}).", "Install smg-trio[tracing], or leave it out."
        ) from None
    tracing = open_tracing(settings.otlp_traces_endpoint, "https" if settings.tls_cert_path else "http")
    try:
        yield tracing
    finally:
        await tracing.close()


@asynccontextmanager
async def _usage_log(settings: Settings) -> AsyncIterator[UsageLog | None]:
    """Whatever ends a generation, its line is written before the process ends."""
    if settings.usage_log is None:
        yield None
        return
    log = UsageLog(Path(settings.usage_log))
    await trio.to_thread.run_sync(log.check)
    try:
        yield log
    finally:
        await log.finish()


async def _serve(
    gateway: Gateway,
    role: Role,
    credentials: Credentials,
    sockets: Listeners,
    shutdown: GatewayShutdown,
    watch_signals: bool,
    task_status: trio.TaskStatus[RunningGateway],
) -> None:
    settings = gateway.settings
    limits = ServerLimits(max_body_bytes=settings.max_payload_size, min_body_rate=settings.min_body_rate)
    feed = role.feed(gateway) if settings.dashboard else None
    app = HotRoutes(gateway, cast("App", make_app(gateway, feed)))
    http_end, metrics_end, probes_end = Shutdown(), Shutdown(), Shutdown()
    async with trio.open_nursery() as serving:
        _keep_up(serving, gateway, credentials, feed)
        await serving.start(gateway.background.run)
        await serving.start(gateway.loads.run)
        await serving.start(gateway.media.run)
        if watch_signals:
            await serving.start(_watch_signals, shutdown)
            if credentials.files.follows:
                await serving.start(credentials.files.read_on_hangup, role.hangup)
        serving.start_soon(role.run, gateway)
        metrics_server: Serving = await serving.start(
            serve_app, gateway, MetricsApp(gateway), sockets.metrics, ServerLimits(), metrics_end,
            credentials.metrics_certificate,
        )  # fmt: skip
        if sockets.probes:
            probes: Serving = await serving.start(
                serve_app, gateway, ProbesApp(gateway), sockets.probes, ServerLimits(), probes_end
            )
            logger.info("probes on %s", ", ".join(f"{host}:{port}" for host, port in probes.addresses))
        async with trio.open_nursery() as http:
            server: Serving = await http.start(
                role.serve, gateway, app, sockets.http, limits, http_end, credentials.certificate
            )
            gateway.metrics.follow_server(server.statistics)
            if role.announces:
                gateway.metrics.follow_certificates(credentials.certificates)
                serving.start_soon(keep_running, "watching certificates", credentials.watch_expiry)
                _announce(settings, credentials, server, metrics_server)
            task_status.started(RunningGateway(gateway, server, metrics_server, shutdown, credentials.files, feed))
            http.start_soon(_shut_down, gateway, shutdown, http_end, feed)
            serving.start_soon(_cut_when_told, shutdown, http_end)
        if gateway.hooks is not None:
            with trio.move_on_after(_CUT_AFTER_S):
                await gateway.wait_no_answers()
            await gateway.hooks.finish()
        metrics_end.cut()
        probes_end.cut()
        serving.cancel_scope.cancel()


def _keep_up(serving: trio.Nursery, gateway: Gateway, credentials: Credentials, feed: LiveFeed | None) -> None:
    """Start what goes on for as long as the gateway serves, and is started again where it fails."""
    settings = gateway.settings
    tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("watching request deadlines", gateway.deadlines.run),
        ("sending keep-alives", gateway.keep_alives.run),
        ("watching key and certificate files", credentials.files.run),
        ("measuring event loop lag", gateway.metrics.watch_loop),
    ]
    if credentials.issuer_keys is not None:
        tasks.append(("fetching the issuer's keys", credentials.issuer_keys.run))
    if gateway.usage_log is not None:
        tasks.append(("writing the usage log", gateway.usage_log.run))
    if gateway.hooks is not None:
        tasks.append(("telling hooks of answers", gateway.hooks.run))
    if feed is not None:
        tasks.append(("the live feed", feed.run))
    if gateway.history is not None and settings.history_retention_secs:
        forget = functools.partial(keep_forgetting, gateway.history, settings.history_retention_secs)
        tasks.append(("forgetting stored responses", forget))
    for name, run in tasks:
        serving.start_soon(keep_running, name, run)


def _announce(settings: Settings, credentials: Credentials, server: Serving, metrics_server: Serving) -> None:
    level = logging.WARNING if exposures(settings, credentials.keys) else logging.INFO
    logger.log(level, "%s", exposure_line(settings, credentials.keys))
    logger.info("listening on %s", _shown(server, credentials.certificate))
    logger.info("metrics on %s", _shown(metrics_server, credentials.metrics_certificate))


def _shown(server: Serving, certificate: Certificate | None) -> str:
    scheme = "" if certificate is None else "https://"
    return ", ".join(f"{scheme}{host}:{port}" for host, port in server.addresses)


def _level(role: Role) -> int:
    return logging.INFO if role.announces else logging.DEBUG


async def _watch_signals(shutdown: GatewayShutdown, *, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            logger.info("received %s, shutting down", signal.Signals(number).name)
            shutdown.ask()


async def _shut_down(gateway: Gateway, shutdown: GatewayShutdown, http_end: Shutdown, feed: LiveFeed | None) -> None:
    await shutdown.wait_asked()
    gateway.start_draining()
    grace_s = gateway.settings.shutdown_grace_period_secs
    deadline = trio.current_time() + grace_s
    with trio.move_on_at(deadline):
        with trio.move_on_after(min(_SETTLE_S, grace_s / 2) if gateway.sharing.settles else 0):
            await gateway.wait_no_answers()
        # Answers that have been generated are still being sent: slow readers too have until the deadline.
        http_end.begin(deadline + _CUT_AFTER_S - trio.current_time())
        await gateway.wait_no_answers()
    if outlived := gateway.answers or len(gateway.tool_runs):
        logger.warning("ending %d answers that outlived the grace period", outlived)
        gateway.registry.fail_everything(ShuttingDown("The server is shutting down."))
        for scope in gateway.tool_runs:
            scope.cancel()
        http_end.begin(_CUT_AFTER_S)
    # Watchers see answers end; then they are what the listener would wait for.
    if feed is not None:
        feed.end()


async def _cut_when_told(shutdown: GatewayShutdown, http_end: Shutdown) -> None:
    await shutdown.wait_cut()
    http_end.cut()
