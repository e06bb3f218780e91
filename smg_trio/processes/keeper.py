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

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.board import SlotBook
from smg_trio.core.errors import ConfigError, GatewayFault
from smg_trio.core.workers import WorkerSpec, WorkerState
from smg_trio.gateway.response_ids import id_in_use
from smg_trio.gateway.role import Role, timeouts_of
from smg_trio.http.client_connection import address_of
from smg_trio.http.statistics import ServerStatistics
from smg_trio.processes.background import BackgroundBook
from smg_trio.processes.channel import PeerGone
from smg_trio.processes.feed import KeeperFeed
from smg_trio.processes.forwarding import answer_forwarded
from smg_trio.processes.front_process import Front
from smg_trio.processes.history import history_calls
from smg_trio.processes.keys import KeyBook
from smg_trio.processes.memory import SharedBoard
from smg_trio.processes.metrics import MergedMetrics, process_metrics
from smg_trio.processes.values import adapter_value, settings_value, spec_value
from smg_trio.routing.registry import Registry
from smg_trio.routing.rules import policy_of, rules_of
from smg_trio.worker.siblings import Siblings

if TYPE_CHECKING:
    from collections.abc import Sequence

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

logger = logging.getLogger("smg_trio.processes")

_BACKOFF_S: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_LIVED_WELL_S: Final = 60.0
"""A front that has lived for so long is started again at once."""
_HANGING_S: Final = 30.0
_LOOK_EVERY_S: Final = 2.0
_CONFIRM_LIMIT_S: Final = 10.0
_METRICS_LIMIT_S: Final = 2.0
_END_LIMIT_S: Final = 5.0
"""After the grace period and what ends it, until a front that has not ended is killed."""


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
        self._count = fronts
        self._shutdown = shutdown
        self._memory = SharedBoard.create(fronts + 1)
        self.board = self._memory.board
        self._slots = SlotBook(self.board.slots)
        self._gone: list[tuple[int, str]] = []
        self._known: set[str] = set()
        self._generation = 0
        self._confirmation = trio.Event()
        self._fronts: dict[int, Front] = {}
        self._ever_ready = False
        self._restarts = 0
        self._ready = trio.Event()
        self._draining = False
        self._sockets: list[int] = []
        self._gateway: Gateway | None = None
        self._background = BackgroundBook()
        self._feed: KeeperFeed | None = None
        self.metrics = MergedMetrics()

    @property
    def gateway(self) -> Gateway:
        """The keeper's own gateway."""
        assert self._gateway is not None, "the gateway is made before fronts are"
        return self._gateway

    def ready_fronts(self) -> list[Front]:
        """Those that accept connections, in order."""
        return [front for _, front in sorted(self._fronts.items()) if front.ready]

    # ---- workers --------------------------------------------------------------------------------------

    def registry(self, settings: Settings, transport: Transport) -> Registry:
        """See `Role.registry`."""
        return Registry(transport, policy_of(settings), timeouts_of(settings), rules_of(settings), self._siblings)

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
        siblings = Siblings(0, self._count + 1, self.board.ranks(slot, spec.engine_count, 0))
        siblings.stalled = self._stalled
        return siblings

    def _stalled(self, index: int) -> None:
        front = self._fronts.get(index)
        if front is not None:
            logger.error("front %d (pid %d) does not take what its engines say; it is killed", index, front.pid)
            front.kill()

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
            for worker in gateway.registry.workers()
        ]
        adapters = [
            adapter_value(model.model_id, model.lora, model.created)
            for model in gateway.catalog.adapters()
            if model.lora is not None
        ]
        return {"generation": self._generation, "workers": workers, "adapters": adapters}

    def _changed(self) -> None:
        """Workers or adapters are others than before: tell every front."""
        self._generation += 1
        now = {worker.spec.worker_id for worker in self.gateway.registry.workers()}
        self._gone += [(self._generation, worker_id) for worker_id in self._known - now]
        self._known = now
        state = self._state()
        for front in self._fronts.values():
            front.notify("state", state)
        self._give_slots_back()

    def _confirmed(self, front: Front, generation: int) -> None:
        front.confirmed = generation
        self._confirmation.set()
        self._confirmation = trio.Event()
        self._give_slots_back()

    def _give_slots_back(self) -> None:
        """Slots of workers that no process has any more are free: until then they are counted in."""
        confirmed = min((front.confirmed for front in self._fronts.values()), default=self._generation)
        for generation, worker_id in [one for one in self._gone if one[0] <= confirmed]:
            self._gone.remove((generation, worker_id))
            if worker_id not in self._known:
                self._slots.give_back(worker_id)

    async def adapters_changed(self) -> None:
        """See `Sharing.adapters_changed`."""
        self._changed()
        wanted = self._generation
        with trio.move_on_after(_CONFIRM_LIMIT_S):
            while any(front.confirmed < wanted for front in self.ready_fronts()):
                await self._confirmation.wait()

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
            restarts=self._restarts,
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
        for front in self._fronts.values():
            front.notify("read_files")

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
        self._sockets = [listener.socket.fileno() for listener in listeners]
        try:
            async with trio.open_nursery() as fronts, trio.open_nursery() as watch:
                for index in range(1, self._count + 1):
                    fronts.start_soon(self._keep_front, index)
                watch.start_soon(self._watch_heartbeats)
                watch.start_soon(self._stop_waiting_when_asked)
                await self._ready.wait()
                task_status.started(serving)
                await end.wait_draining()
                await self._drain(listeners)
                watch.cancel_scope.cancel()
                fronts.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.socket.close()
            if self._feed is not None:
                self._feed.end_now()

    async def _stop_waiting_when_asked(self) -> None:
        await self._shutdown.wait_asked()
        self._ready.set()

    async def _drain(self, listeners: list[trio.SocketListener]) -> None:
        self._draining = True
        for front in self._fronts.values():
            front.notify("drain")
        # The fronts' copies stay open until each has taken what waits; with the last one the port is closed.
        self._sockets = []
        for listener in listeners:
            listener.socket.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cut_when_told)
            with trio.move_on_after(self._settings.shutdown_grace_period_secs + _END_LIMIT_S):
                while self._fronts:
                    await self._confirmation.wait()
            self._note_left()
            nursery.cancel_scope.cancel()

    def _note_left(self) -> None:
        if self._fronts:
            logger.warning("%d process(es) have not ended; they are killed", len(self._fronts))
            self._shutdown.clean = False

    async def _cut_when_told(self) -> None:
        await self._shutdown.wait_cut()
        for front in self._fronts.values():
            front.notify("cut")

    async def _keep_front(self, index: int) -> None:
        """Run a front, and start it again whenever it ends, until the gateway drains."""
        attempt = 0
        while True:
            await self._pause(index, _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
            if self._draining:
                return
            started = trio.current_time()
            front = self._fronts[index] = Front(index, KeyBook(self.gateway.meters))
            code = await self._run_front(front)
            await self._front_ended(front, code)
            attempt = 0 if trio.current_time() - started > _LIVED_WELL_S else attempt + 1

    async def _pause(self, index: int, pause_s: float) -> None:
        """Wait before a front is started again; what engines still do for it is stopped meanwhile."""
        if not pause_s:
            return
        async with trio.open_nursery() as nursery:
            for worker in self.gateway.registry.workers():
                nursery.start_soon(worker.hold_pair, index)
            await trio.sleep(pause_s)
            nursery.cancel_scope.cancel()

    async def _run_front(self, front: Front) -> int:
        inherited = [*self._sockets, self._memory.descriptor]
        started = partial(self._process_started, front.index)
        try:
            return await front.run(self._notices(front), self._calls(front), inherited, started)
        except OSError as error:
            front.failure = f"process {front.index} cannot be started: {error.strerror}"
            logger.warning("%s", front.failure)
            return -1

    def _process_started(self, index: int, pid: int) -> None:
        cells = self.board.process(index)
        cells.heartbeat = time.monotonic()
        cells.pid = pid

    async def _front_ended(self, front: Front, code: int) -> None:
        self.board.clear_process(front.index)
        front.keys.close_all()
        self.metrics.front_ended(str(front.index), front.exposition)
        if self._draining:
            self._shutdown.clean = self._shutdown.clean and code == 0
        elif not self._ever_ready:
            words = front.failure or f"process {front.index} ended with code {code} before it could serve"
            self.announces = False
            self._shutdown.fail(GatewayFault(words))
            self._draining = True
            self._ready.set()
        else:
            logger.error("front %d (pid %d) ended with code %d; it is started again", front.index, front.pid, code)
            self._restarts += 1
            self._ready.set()  # the others serve, whether or not this one can
        del self._fronts[front.index]
        self._confirmation.set()
        self._confirmation = trio.Event()
        await self._background.front_ended(front, self.gateway.history)

    async def _watch_heartbeats(self) -> None:
        while True:
            await trio.sleep(_LOOK_EVERY_S)
            now = time.monotonic()
            for front in list(self._fronts.values()):
                silent_s = now - self.board.process(front.index).heartbeat
                if front.ready and silent_s > _HANGING_S:  # loading a model's files may take longer
                    logger.error(
                        "front %d (pid %d) has hung for %.0f s; it is killed", front.index, front.pid, silent_s
                    )
                    front.kill()

    # ---- what fronts say and ask ----------------------------------------------------------------------

    def _notices(self, front: Front) -> Notices:
        def ready() -> None:
            front.ready = self._ever_ready = True
            if len(self.ready_fronts()) == self._count:
                self._ready.set()

        def workers(report: dict[str, str]) -> None:
            front.workers = report

        def watching(on: bool) -> None:
            front.watching = on
            if self._feed is not None:
                self._feed.watchers_changed()

        def background_ended(response_id: str) -> None:
            front.background.pop(response_id, None)

        return {
            "ready": ready,
            "reconciled": partial(self._confirmed, front),
            "workers": workers,
            "watching": watching,
            "release_response": front.responses.discard,
            "background_started": front.background.__setitem__,
            "background_ended": background_ended,
            "key_use": front.keys.use,
            "key_close": front.keys.close,
        }

    def _calls(self, front: Front) -> Calls:
        async def hello() -> dict[str, Any]:
            return {
                "settings": settings_value(self._settings),
                "index": front.index,
                "processes": self._count + 1,
                "board": self._memory.descriptor,
                "listeners": self._sockets,
                "state": self._state(),
            }

        async def failed(words: str) -> None:
            front.failure = words

        async def background_end(response_id: str) -> bool:
            return await self._end_background(response_id)

        async def claim_response(response_id: str) -> None:
            if any(response_id in one.responses for one in self._fronts.values()):
                raise id_in_use(response_id)
            front.responses.add(response_id)

        async def turn() -> None:
            (await self.gateway.admission.admit()).close()

        calls: Calls = {
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
