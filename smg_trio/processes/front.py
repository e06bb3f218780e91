"""A front: a gateway process that answers clients, and asks its keeper for what the gateway must have once.

It inherits the listening sockets and the board, gets its settings over the control channel, and binds a socket pair of
its own for each worker. It obeys the channel, not signals, which service managers send to a whole group; the channel's
end means that the keeper has died.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import SmgError
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.gateway.garbage_collector import calm_garbage_collector
from smg_trio.gateway.observability.logs import set_up_logging
from smg_trio.gateway.role import Listeners, Role, serve_app
from smg_trio.gateway.run import GatewayShutdown, RunningGateway, run_gateway
from smg_trio.gateway.tasks.keep_running import keep_running
from smg_trio.processes import keys
from smg_trio.processes.channel import Channel, PeerGone
from smg_trio.processes.feed import FrontFeed
from smg_trio.processes.forwarding import forward
from smg_trio.processes.history import RemoteHistory, RemoteRelayed
from smg_trio.processes.memory import SharedBoard
from smg_trio.processes.sharing import FrontBackgroundTasks, SharedAdmissionQueue, SharedTurns
from smg_trio.processes.state import GatewayState, Reconciler
from smg_trio.processes.values import settings_of_value
from smg_trio.routing.admission import admission_limit
from smg_trio.routing.http_options import http_worker_options
from smg_trio.routing.registry import Registry
from smg_trio.routing.rules import pixel_form_of, policy_of, rules_of, timeouts_of
from smg_trio.worker.siblings import Siblings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from smg_trio.gateway.http import Headers, Request, Response
    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.gateway.security.file_watcher import FileWatcher
    from smg_trio.gateway.security.key_limits import KeyMeters, KeySlot
    from smg_trio.gateway.security.key_ring import KeyHolder
    from smg_trio.gateway.state import Gateway
    from smg_trio.history.base import HistoryStore
    from smg_trio.http.asgi import App
    from smg_trio.http.settings import ServerLimits
    from smg_trio.http.shutdown import Shutdown
    from smg_trio.processes.channel import Calls, Notices
    from smg_trio.routing.admission import AdmissionQueue
    from smg_trio.settings.settings import Settings
    from smg_trio.worker.links import Transport

logger = logging.getLogger("smg_trio.processes")

_HEARTBEAT_S: Final = 1.0
_TAKE_OVER_LIMIT_S: Final = 5.0
"""How long a front that is started again looks for engines that the keeper says are ready, before it accepts."""


def main(descriptor: int) -> int:
    """Run the front at the other end of the channel whose descriptor this is; the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return trio.run(_run, socket.socket(fileno=descriptor))


async def _run(end: socket.socket) -> int:
    front = FrontRole(end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front.talk)
        code = await front.run_front()
        nursery.cancel_scope.cancel()
    return code


class FrontRole(Role):
    """A front's role.

    Args:
        end: of the control channel.
    """

    forwards = True
    announces = False

    def __init__(self, end: socket.socket) -> None:
        self._shutdown = GatewayShutdown()
        self._hangup = trio.Event()
        self._gateway: Gateway | None = None
        self._feed: FrontFeed | None = None
        self._state = GatewayState()
        self._reconciler: Reconciler | None = None
        self._files: FileWatcher | None = None
        self.index = 0
        self.keeper = Channel(end, self._notices(), self._calls())

    async def talk(self) -> None:
        """Hold the channel open; when it ends, the keeper has died: end too, once what is in flight has ended."""
        await self.keeper.run()
        logger.error("the keeper is gone: front %d drains and ends", self.index)
        self.settles = False
        self._shutdown.ask()

    async def run_front(self) -> int:
        """Ask for everything, then run the gateway; the exit code."""
        try:
            welcome = await self.keeper.call("hello")
        except PeerGone:
            return 1
        self.index = welcome["index"]
        settings = settings_of_value(welcome["settings"])
        self._descriptors: list[int] = welcome["listeners"]
        self._processes: int = welcome["processes"]
        self.board = SharedBoard(welcome["board"], self._processes).board
        self._state.take(welcome["state"])
        try:
            set_up_logging(
                settings.log_level, as_json=settings.log_json, directory=settings.log_dir, process=self.index
            )
            calm_garbage_collector()
            return await run_gateway(settings, shutdown=self._shutdown, role=self, task_status=self)
        except SmgError as error:
            await self._failed(error.message)
            return 2
        except Exception as error:
            logger.exception("front %d failed", self.index)
            await self._failed(f"process {self.index} failed: {error!r}")
            return 1

    def started(self, value: RunningGateway | None = None) -> None:
        """The gateway runs: see `trio.TaskStatus`."""
        assert value is not None, "a gateway reports itself"
        self._files = value.files

    async def _failed(self, words: str) -> None:
        if not self.keeper.closed:
            await self.keeper.call("failed", words)

    # ---- what the gateway is made of ------------------------------------------------------------------

    async def open_listeners(self, settings: Settings) -> Listeners:
        """See `Role.open_listeners`: the keeper's, inherited."""
        sockets = [socket.socket(fileno=descriptor) for descriptor in self._descriptors]
        return Listeners([trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in sockets], [], [])

    def open_history(self, settings: Settings) -> AbstractAsyncContextManager[HistoryStore | None]:
        """See `Role.open_history`."""
        return _remote(self.keeper) if settings.history_backend == "memory" else super().open_history(settings)

    def relayed(self) -> RemoteRelayed:
        """See `Sharing.relayed`."""
        return RemoteRelayed(self.keeper)

    def registry(self, settings: Settings, transport: Transport, plugins: PluginSet) -> Registry:
        """See `Role.registry`."""
        # Which workers there are is the keeper's to say.
        rules = replace(rules_of(settings), remove_failed=False)
        return Registry(
            transport,
            policy_of(settings, plugin=plugins.policy),
            timeouts_of(settings),
            rules,
            pixel_form=pixel_form_of(settings),
            siblings=self._siblings,
            http_options=http_worker_options(settings),
        )

    def _siblings(self, spec: WorkerSpec) -> Siblings:
        slot = self._state.slots[spec.worker_id]
        return Siblings(self.index, self._processes, self.board.ranks(slot, spec.engine_count, self.index))

    def admission(self, settings: Settings) -> AdmissionQueue:
        """See `Sharing.admission`."""
        turn = functools.partial(self.keeper.call, "turn") if settings.rate_limit_tokens_per_second else None
        return SharedAdmissionQueue(
            admission_limit(settings.max_concurrent_requests, os.cpu_count() or 1),
            settings.queue_size,
            settings.queue_timeout_secs,
            self.board,
            self.index,
            turn,
        )

    def background(self) -> FrontBackgroundTasks:
        """See `Sharing.background`."""
        return FrontBackgroundTasks(self.keeper)

    def feed(self, gateway: Gateway) -> FrontFeed:
        """See `Role.feed`."""
        self._feed = FrontFeed(gateway, self.keeper)
        return self._feed

    # ---- workers --------------------------------------------------------------------------------------

    async def discover_workers(self, gateway: Gateway) -> None:
        """See `Role.discover_workers`: the keeper does."""

    async def add_workers(self, gateway: Gateway) -> None:
        """See `Role.add_workers`: those that the keeper has, and their engines as far as they are ready."""
        self._gateway = gateway
        self._reconciler = Reconciler(gateway, self._state)
        gateway.registry.changed = self._report
        await self._reconcile()
        with trio.move_on_after(_TAKE_OVER_LIMIT_S):
            for worker in gateway.registry.all_workers():
                if worker.spec.worker_id in self._state.ready:
                    await worker.wait_state(WorkerState.READY)
        self._report()

    async def _reconcile(self) -> None:
        assert self._reconciler is not None, "there is a gateway"
        generation = await self._reconciler.run()
        self.keeper.notify("reconciled", generation)

    def _report(self) -> None:
        """Tell the keeper what this front knows of each worker."""
        if self._gateway is not None:
            registry = self._gateway.registry
            ids = [worker.spec.worker_id for worker in registry.all_workers()]
            self.keeper.notify("workers", {one: registry.snapshot(one).state.value for one in ids})

    async def run(self, gateway: Gateway) -> None:
        """See `Role.run`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_running, "the heartbeat", self._beat)
            nursery.start_soon(keep_running, "following the keeper", self._follow)
            nursery.start_soon(keep_running, "reading files on SIGHUP", self._read_on_hangup)

    async def _beat(self) -> None:
        cells = self.board.process(self.index)
        while True:
            cells.heartbeat = time.monotonic()
            await trio.sleep(_HEARTBEAT_S)

    async def _read_on_hangup(self) -> None:
        while True:
            await self._hangup.wait()
            self._hangup = trio.Event()
            if self._files is not None:
                await self._files.read_all()

    async def _follow(self) -> None:
        while True:
            await self._state.wait_news()
            await self._reconcile()

    # ---- requests -------------------------------------------------------------------------------------

    async def key_slot(self, meters: KeyMeters, holder: KeyHolder) -> KeySlot:
        """See `Sharing.key_slot`."""
        return await keys.enter(self.keeper, holder)

    async def key_headers(self, meters: KeyMeters, holder: KeyHolder) -> Headers:
        """See `Sharing.key_headers`; none if the keeper cannot be asked."""
        try:
            return await keys.headers(self.keeper, holder)
        except PeerGone:
            return []

    async def claim_response(self, response_id: str) -> Callable[[], None]:
        """See `Sharing.claim_response`."""
        await self.keeper.call("claim_response", response_id)
        return functools.partial(self.keeper.notify, "release_response", response_id)

    async def forward(self, template: str, request: Request) -> Response:
        """See `Sharing.forward`."""
        return await forward(self.keeper, template, request)

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
        """See `Role.serve`."""
        turns = SharedTurns(self.board, self.index)
        async with trio.open_nursery() as nursery:
            serving = await nursery.start(serve_app, gateway, app, listeners, limits, end, certificate, turns)
            self.keeper.notify("ready")
            task_status.started(serving)

    # ---- what the keeper says and asks ----------------------------------------------------------------

    def _notices(self) -> Notices:
        def snapshot(text: str) -> None:
            if self._feed is not None:
                self._feed.take(text)

        return {
            "state": self._state.take,
            "drain": self._shutdown.ask,
            "cut": self._shutdown.ask,
            "snapshot": snapshot,
            "read_files": lambda: self._hangup.set(),  # noqa: PLW0108 - another event each time
        }

    def _calls(self) -> Calls:
        async def background_end(response_id: str) -> bool:
            return self._gateway is not None and self._gateway.background.cancel(response_id)

        async def metrics() -> str:
            return "" if self._gateway is None else self._gateway.metrics.exposition().decode()

        async def observe(first: bool) -> dict[str, Any]:
            assert self._feed is not None, "a front that is ready has a feed"
            return self._feed.observe(first=first)

        return {"background_end": background_end, "metrics": metrics, "observe": observe}


@asynccontextmanager
async def _remote(keeper: Channel) -> AsyncIterator[HistoryStore | None]:
    yield RemoteHistory(keeper)
