"""The keeper: the process that was started, which starts the fronts and owns what must be one.

```
run_gateway, with this role
├─ workers: handshake, own socket pair (client index 0), administration, waves        ─ no request of a user
├─ metrics and probe listeners, signals, followed files, memory history, key meters
└─ serve: per front {process ∥ control channel}, started again with back-off ∥ heartbeats
```
What the gateway is at the moment (workers, adapters) is one value, the state. It is sent to every front as a whole
whenever something of it changes, so a front that is started again needs nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.board import SlotBook
from smg_trio.core.errors import ConfigError, GatewayFault
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.gateway.response_ids import id_in_use
from smg_trio.gateway.role import Role
from smg_trio.http.client_connection import address_of
from smg_trio.http.statistics import ServerStatistics
from smg_trio.processes.background import fail_unfinished
from smg_trio.processes.channel import PeerGone
from smg_trio.processes.feed import KeeperFeed
from smg_trio.processes.forwarding import answer_forwarded
from smg_trio.processes.front_process import Front
from smg_trio.processes.fronts import Fronts
from smg_trio.processes.history import history_calls, relayed_calls
from smg_trio.processes.keys import KeyBook
from smg_trio.processes.memory import SharedBoard
from smg_trio.processes.metrics import MergedMetrics, process_metrics
from smg_trio.processes.values import adapter_value, settings_value, spec_value
from smg_trio.routing.http_options import http_worker_options
from smg_trio.routing.registry import Registry
from smg_trio.routing.rules import pixel_form_of, policy_of, rules_of, timeouts_of
from smg_trio.worker.siblings import Siblings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_trio.gateway.plugin_set import PluginSet
    from smg_trio.gateway.run import GatewayShutdown
    from smg_trio.gateway.security.certificates import Certificate
    from smg_trio.gateway.state import Gateway
    from smg_trio.http.asgi import App
    from smg_trio.http.client_connection import Address
    from smg_trio.http.settings import ServerLimits
    from smg_trio.http.shutdown import Shutdown
    from smg_trio.processes.channel import Calls, Notices
    from smg_trio.settings.settings import Settings
    from smg_trio.worker.links import Transport

_CONFIRM_LIMIT_S: Final = 10.0
_METRICS_LIMIT_S: Final = 2.0


class KeeperServing:
    """See `gateway.sharing.Serving`: the fronts accept, so there is nothing to count here."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self.addresses = addresses

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.addresses[0][1]

    def statistics(self) -> ServerStatistics:
        """Nothing."""
        return ServerStatistics(0, 0, 0, 0, 0, 0, 0)


class Keeper(Role):
    """The keeper's role.

    Args:
        settings: of the gateway.
        fronts: how many of them there are.
        shutdown: by which the gateway is told to end.
    """

    def __init__(self, settings: Settings, fronts: int, shutdown: GatewayShutdown) -> None:
        self._settings = settings
        self._pairs = fronts + 1
        self._memory = SharedBoard.create(self._pairs)
        self.board = self._memory.board
        self._slots = SlotBook(self.board.slots)
        self._gone: list[tuple[int, str]] = []
        self._known: set[str] = set()
        self._generation = 0
        self._fronts = Fronts(self._memory, fronts, shutdown, self)
        self._gateway: Gateway | None = None
        self._feed: KeeperFeed | None = None
        self.metrics = MergedMetrics()

    @property
    def gateway(self) -> Gateway:
        """The keeper's own gateway."""
        assert self._gateway is not None, "the gateway is made before fronts are"
        return self._gateway

    def ready_fronts(self) -> list[Front]:
        """Those that accept connections, in order."""
        return self._fronts.serving()

    # ---- workers --------------------------------------------------------------------------------------

    def registry(self, settings: Settings, transport: Transport, plugins: PluginSet) -> Registry:
        """See `Role.registry`."""
        return Registry(
            transport,
            policy_of(settings, plugin=plugins.policy),
            timeouts_of(settings),
            rules_of(settings),
            pixel_form=pixel_form_of(settings),
            siblings=self._siblings,
            http_options=http_worker_options(settings),
        )

    def _siblings(self, spec: WorkerSpec) -> Siblings:
        slot = self._slots.take(spec.worker_id, spec.engine_count)
        if slot is None:
            raise ConfigError(
                "--processes",
                f"leaves no room for {spec.engine_count} more engine(s): several processes share counts of at most "
                f"{self.board.slots} engines.",
                "Remove a worker first, or use --processes 1.",
            )
        self.board.clear_slots(slot, spec.engine_count)
        siblings = Siblings(0, self._pairs, self.board.ranks(slot, spec.engine_count, 0))
        siblings.stalled = partial(self._fronts.kill, why="does not take what its engines say")
        return siblings

    def _not_added(self, worker_id: str) -> None:
        if worker_id not in self._known:
            self._slots.give_back(worker_id)

    async def add_workers(self, gateway: Gateway) -> None:
        """See `Role.add_workers`."""
        self._gateway = gateway
        gateway.registry.changed = self._changed
        gateway.registry.not_added = self._not_added
        await super().add_workers(gateway)

    def worker_ready(self, worker: WorkerSpec) -> str:
        """See `Sharing.worker_ready`."""
        fronts = self.ready_fronts()
        ready = sum(front.workers.get(worker.worker_id) == WorkerState.READY.value for front in fronts)
        return "" if fronts and ready == len(fronts) else f"ready in {ready} of {len(fronts)} processes"

    def _state(self) -> dict[str, Any]:
        gateway = self.gateway
        workers = [
            {
                "spec": spec_value(worker.spec),
                "slot": self._slots.take(worker.spec.worker_id, worker.spec.engine_count),
                "draining": worker.state is WorkerState.DRAINING,
                "ready": worker.state is WorkerState.READY,
            }
            for worker in gateway.registry.all_workers()
        ]
        adapters = [
            adapter_value(model.model_id, model.lora, model.created)
            for model in gateway.catalog.adapters()
            if model.lora is not None
        ]
        models = gateway.model_changes.in_force
        return {"generation": self._generation, "workers": workers, "models": models, "adapters": adapters}

    def _changed(self) -> None:
        """Workers, models or adapters are others than before: tell every front."""
        self._generation += 1
        now = {worker.spec.worker_id for worker in self.gateway.registry.all_workers()}
        self._gone += [(self._generation, worker_id) for worker_id in self._known - now]
        self._known = now
        state = self._state()
        self._fronts.notify("state", state)
        self._give_slots_back()

    def _confirmed(self, front: Front, generation: int) -> None:
        front.confirmed = generation
        self._fronts.told()
        self._give_slots_back()

    def _give_slots_back(self) -> None:
        """Slots of workers that no process has any more are free: until then they are counted in."""
        confirmed = min((front.confirmed for front in self._fronts.living.values()), default=self._generation)
        for generation, worker_id in [one for one in self._gone if one[0] <= confirmed]:
            self._gone.remove((generation, worker_id))
            if worker_id not in self._known:
                self._slots.give_back(worker_id)

    async def models_changed(self) -> None:
        """See `Sharing.models_changed`."""
        self._changed()
        wanted = self._generation
        with trio.move_on_after(_CONFIRM_LIMIT_S):
            while any(front.confirmed < wanted for front in self.ready_fronts()):
                await self._fronts.news()

    # ---- serving --------------------------------------------------------------------------------------

    def answers(self, own: int) -> int:
        """See `Sharing.answers`."""
        return self.board.answers() + self.board.waiting()

    def feed(self, gateway: Gateway) -> KeeperFeed:
        """See `Role.feed`."""
        self._feed = KeeperFeed(gateway, self.ready_fronts, self.board)
        return self._feed

    async def exposition(self, own: bytes) -> bytes:
        """See `Sharing.exposition`."""
        async with trio.open_nursery() as nursery:
            for front in self.ready_fronts():
                nursery.start_soon(self._ask_for_metrics, front)
        fronts = {str(front.index): front.exposition for front in self.ready_fronts() if front.exposition}
        return (self.metrics.merged(own.decode(), fronts) + self._process_metrics()).encode()

    def _process_metrics(self) -> str:
        fronts = [(str(front.index), self.board.process(front.index)) for front in self.ready_fronts()]
        return process_metrics(
            restarts=self._fronts.restarts,
            connections={index: cells.connections for index, cells in fronts},
            answers={index: cells.answers for index, cells in fronts},
        )

    async def _ask_for_metrics(self, front: Front) -> None:
        assert front.channel is not None, "it is ready"
        with trio.move_on_after(_METRICS_LIMIT_S):
            try:
                front.exposition = await front.channel.call("metrics")
            except GatewayFault:
                return  # what it said last stands

    def hangup(self) -> None:
        """See `Role.hangup`."""
        self._fronts.notify("read_files")

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
        """Have the fronts serve, until `end` has begun and all of them have ended."""
        names = [address_of(listener.socket.getsockname()) for listener in listeners]
        serving = KeeperServing([name for name in names if name is not None])
        self._fronts.sockets = [listener.socket.fileno() for listener in listeners]
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._fronts.serve)
                await self._fronts.ready.wait()
                self.announces = not self._fronts.failed
                task_status.started(serving)
                await end.wait_draining()
                # The fronts' copies stay open until each has taken what waits; with the last one the port is closed.
                for listener in listeners:
                    listener.socket.close()
                await self._fronts.drain(self._settings.shutdown_grace_period_secs)
        finally:
            for listener in listeners:
                listener.socket.close()
            if self._feed is not None:
                self._feed.end_now()

    # ---- what fronts say and ask ----------------------------------------------------------------------

    def make_front(self, index: int) -> Front:
        """See `FrontOwner`."""
        return Front(index, KeyBook(self.gateway.meters))

    async def stand_in(self, index: int) -> None:
        """See `FrontOwner`: what engines still do for the front is stopped."""
        async with trio.open_nursery() as nursery:
            for worker in self.gateway.registry.workers():
                nursery.start_soon(worker.hold_pair, index)

    async def front_ended(self, front: Front) -> None:
        """See `FrontOwner`."""
        front.keys.close_all()
        self.metrics.front_ended(str(front.index), front.exposition)
        await fail_unfinished(front, self.gateway.history)

    def notices(self, front: Front) -> Notices:
        """See `FrontOwner`."""

        def workers(report: dict[str, str]) -> None:
            front.workers = report

        def watching(on: bool) -> None:
            front.watching = on
            if self._feed is not None:
                self._feed.watchers_changed()

        def background_ended(response_id: str) -> None:
            front.background.pop(response_id, None)

        return {
            "ready": partial(self._fronts.became_ready, front),
            "reconciled": partial(self._confirmed, front),
            "workers": workers,
            "watching": watching,
            "release_response": front.responses.discard,
            "background_started": front.background.__setitem__,
            "background_ended": background_ended,
            "key_use": front.keys.use,
            "key_close": front.keys.close,
        }

    def calls(self, front: Front) -> Calls:
        """See `FrontOwner`."""

        async def hello() -> dict[str, Any]:
            return {
                "settings": settings_value(self._settings),
                "index": front.index,
                "processes": self._pairs,
                "board": self._memory.descriptor,
                "listeners": self._fronts.sockets,
                "state": self._state(),
            }

        async def failed(words: str) -> None:
            front.failure = words

        async def background_end(response_id: str) -> bool:
            return await self._end_background(response_id)

        async def claim_response(response_id: str) -> None:
            if any(response_id in one.responses for one in self._fronts.living.values()):
                raise id_in_use(response_id)
            front.responses.add(response_id)

        async def turn() -> None:
            (await self.gateway.admission.admit()).close()

        calls: Calls = relayed_calls(self.gateway.relayed) | {
            "hello": hello,
            "failed": failed,
            "forward": partial(answer_forwarded, self.gateway),
            "background_end": background_end,
            "claim_response": claim_response,
            "key_enter": front.keys.enter,
            "key_headers": front.keys.headers,
            "turn": turn,
        }
        history = self.gateway.history
        return calls if history is None else calls | history_calls(history)

    async def _end_background(self, response_id: str) -> bool:
        for front in self.ready_fronts():
            if response_id in front.background and front.channel is not None:
                try:
                    return bool(await front.channel.call("background_end", response_id))
                except PeerGone:
                    return False
        return False
