"""What a gateway process is made of: by itself, when it is the only one, and with others otherwise.

`Role` is that of the only process. `smg_trio.processes` has two others, for a gateway of several processes: those of
the keeper and of a front.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from smg_trio.gateway.apps.refusals import ServerRefusals
from smg_trio.gateway.dashboard.feed import LiveFeed
from smg_trio.gateway.discovery.dns import DnsWorkers
from smg_trio.gateway.discovery.found_workers import FoundWorkers
from smg_trio.gateway.discovery.kubernetes import kubernetes_workers
from smg_trio.gateway.own_workers import add_own_workers
from smg_trio.gateway.sharing import Sharing
from smg_trio.gateway.tasks.keep_running import keep_running
from smg_trio.history import history_options, open_history
from smg_trio.http.listener import open_listeners, serve
from smg_trio.routing.http_options import http_worker_options, worker_api_key
from smg_trio.routing.registry import Registry
from smg_trio.routing.rules import pixel_form_of, policy_of, rules_of, timeouts_of
from smg_trio.settings.workers import discovered_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.gateway.state import Gateway
    from smg_trio.history.base import HistoryStore
    from smg_trio.http.asgi import App
    from smg_trio.http.client_connection import Address
    from smg_trio.http.listener import Turns
    from smg_trio.http.settings import ServerLimits
    from smg_trio.http.shutdown import Shutdown
    from smg_trio.http.statistics import ServerStatistics
    from smg_trio.settings.settings import Settings
    from smg_trio.worker.links import Transport


@dataclass(frozen=True, slots=True)
class Listeners:
    """What a gateway listens on; each may be empty."""

    http: list[trio.SocketListener]
    metrics: list[trio.SocketListener]
    probes: list[trio.SocketListener]


class Serving(Protocol):
    """A server that runs; see `RunningServer`."""

    addresses: Sequence[Address]

    @property
    def port(self) -> int:
        """The port of the first listener."""
        ...

    def statistics(self) -> ServerStatistics:
        """The server's counts at this moment."""
        ...


class Role(Sharing):
    """The only process's role: everything is its own.

    Attributes:
        announces: whether the log tells of listeners and what protects them: once per gateway.
    """

    announces = True

    async def open_listeners(self, settings: Settings) -> Listeners:
        """What clients, Prometheus and probes connect to. Raises ConfigError."""
        http = await open_listeners(settings.host, settings.port)
        metrics = await open_listeners(settings.prometheus_host, settings.prometheus_port)
        probes = await open_listeners(settings.host, settings.health_check_port) if settings.health_check_port else []
        return Listeners(http, metrics, probes)

    def open_history(self, settings: Settings) -> AbstractAsyncContextManager[HistoryStore | None]:
        """The store of responses and conversations. Raises ConfigError."""
        return open_history(settings.history_backend, history_options(settings))

    def registry(self, settings: Settings, transport: Transport, plugins: PluginSet) -> Registry:
        """The workers, none yet."""
        return Registry(
            transport,
            policy_of(settings, plugin=plugins.policy),
            timeouts_of(settings),
            rules_of(settings),
            pixel_form=pixel_form_of(settings),
            http_options=http_worker_options(settings),
        )

    def feed(self, gateway: Gateway) -> LiveFeed:
        """What the live page is told."""
        return LiveFeed(gateway)

    async def add_workers(self, gateway: Gateway) -> None:
        """Start with the workers that there are to begin with. Raises ConfigError, Conflict."""
        await add_own_workers(gateway)

    async def discover_workers(self, gateway: Gateway) -> None:
        """Have workers come and go as what the settings name says, until cancelled."""
        settings = gateway.settings
        make = partial(FoundWorkers, gateway.registry, key=worker_api_key(settings), metrics=gateway.metrics.discovery)
        async with trio.open_nursery() as nursery:
            for address in discovered_names(settings):
                named = DnsWorkers(make("dns"), address, refresh_s=settings.discover_interval_secs)
                nursery.start_soon(keep_running, f"looking {address.host} up", named.run)
            if settings.service_discovery:
                pods = kubernetes_workers(make("kubernetes"), settings)
                if pods is not None:
                    nursery.start_soon(keep_running, "following pods", pods.run)

    async def run(self, gateway: Gateway) -> None:
        """What goes on beside serving; cancelled after it."""

    def hangup(self) -> None:
        """Keys and certificates are to be read anew, on SIGHUP."""

    async def serve(
        self,
        gateway: Gateway,
        app: App,
        listeners: list[trio.SocketListener],
        limits: ServerLimits,
        end: Shutdown,
        certificate: Certificate | None,
        *,
        task_status: trio.TaskStatus[Any],
    ) -> None:
        """Serve clients until `end` has run its course."""
        await serve_app(gateway, app, listeners, limits, end, certificate, task_status=task_status)


async def serve_app(
    gateway: Gateway,
    app: App,
    listeners: list[trio.SocketListener],
    limits: ServerLimits,
    end: Shutdown,
    certificate: Certificate | None = None,
    turns: Turns | None = None,
    *,
    task_status: trio.TaskStatus[Any],
) -> None:
    """Serve one app until `end` has run its course, in the gateway's own words where there is no app to answer."""
    refusals = ServerRefusals(gateway)
    await serve(
        app,
        listeners,
        limits=limits,
        shutdown=end,
        ssl_context=None if certificate is None else certificate.context,
        answer_fault=refusals.answer,
        on_fault=refusals.note,
        turns=turns,
        task_status=task_status,
    )
