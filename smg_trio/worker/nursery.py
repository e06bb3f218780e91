"""One worker: the nursery that owns its sockets, and the supervisor that opens it again.

```
Worker.run (supervisor) ── bind, then one nursery:
    handshake listener   handshake ROUTER: HELLO → INIT, READY          (bound for the worker's life)
    registrations        input ROUTER, receiving side
    input owner          input ROUTER, sending side: commands → frames
    dispatcher           output PULL: frames → batches → each request's memory channel; never waits for a consumer
    peer watch           socket monitors: an engine that vanishes is known within milliseconds, idle or busy
    silence watchdog     the last resort for an engine that is connected and says nothing
```
An engine's death ends what it had in flight, not the nursery: all sockets stay bound, so its next HELLO is answered
immediately. The nursery itself ends only if a socket fails (or on an error of ours); then everything in flight fails
and the supervisor binds again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core import log_context
from smg_trio.core.errors import (
    ConfigError,
    EngineDead,
    EngineFault,
    NoReadyWorker,
    ShuttingDown,
    SmgError,
    UnsupportedFeature,
)
from smg_trio.core.workers import RankPhase, WorkerSnapshot, WorkerSpec, WorkerState
from smg_trio.wire.addresses import parse_worker_url
from smg_trio.wire.codec import codec_for
from smg_trio.wire.tokenspeed.limits import NO_MEDIA
from smg_trio.worker.absent_pairs import AbsentPairs
from smg_trio.worker.access import is_public
from smg_trio.worker.adoption import adopt_engines, take_back
from smg_trio.worker.bound_sockets import bound_pair, bound_worker
from smg_trio.worker.commands import Command
from smg_trio.worker.dispatcher import dispatch
from smg_trio.worker.front_registrations import take_registrations
from smg_trio.worker.group import AnyDelivery, Group
from smg_trio.worker.handshake_listener import HANDSHAKE_MESSAGE_LIMIT_S, HandshakeListener
from smg_trio.worker.input_owner import SEND_LIMIT_S, InputOwner
from smg_trio.worker.links import Link, LinkClosed, OutputLink, Transport
from smg_trio.worker.liveness import SILENCE_LIMIT_S
from smg_trio.worker.output_stream import OutputStream
from smg_trio.worker.peer_watch import PeerWatch, reclaim, watch_silence
from smg_trio.worker.pixel_form_question import ask_pixel_forms
from smg_trio.worker.registrations import RegistrationFile
from smg_trio.worker.relay import Relay
from smg_trio.worker.socket_directory import default_socket_directory

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo, EngineLoad
    from smg_trio.core.media import PixelForm
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.worker.ledger import InFlight
    from smg_trio.worker.siblings import Siblings

logger = logging.getLogger("smg_trio.worker")

_REBIND_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)


class GenerationScope:
    """A request's life at an engine: ``async with worker.generate(request) as outputs`` (tagged 0).

    Leaving the block for any reason aborts the request at the engine, once, and only if it has not ended there.
    Entering and leaving never block, so leaving works under cancellation without a shield.
    """

    __slots__ = ("_entry", "_request", "_worker")

    def __init__(self, worker: Worker, request: GenerationRequest) -> None:
        self._worker = worker
        self._request = request
        self._entry: InFlight[AnyDelivery] | None = None

    async def __aenter__(self) -> OutputStream[int]:
        outputs = OutputStream[int]()
        self._entry = self._worker.begin(self._request, outputs.delivery(0))
        return outputs

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None:
            self._worker.leave(self._entry)


class Worker:
    """One worker, from its URL to its engines. `run` it in a nursery; everything else may be called from outside.

    Args:
        spec: what it is told; ConfigError for a malformed URL or handshake address.
        transport: binds its sockets.
        siblings: the other processes of the gateway, if there are any. In a front there is no handshake listener: its
            engines are those that register on its own socket pair.
        silence_limit_s, send_limit_s, handshake_limit_s: see the module constants; tests shorten them.
        pixel_form: the form in which its engines take media; None to ask each of them.

    Attributes:
        models: the one that it serves.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        transport: Transport,
        *,
        pixel_form: PixelForm | None = None,
        siblings: Siblings | None = None,
        silence_limit_s: float = SILENCE_LIMIT_S,
        send_limit_s: float = SEND_LIMIT_S,
        handshake_limit_s: float = HANDSHAKE_MESSAGE_LIMIT_S,
    ) -> None:
        self.spec = spec
        self.models = frozenset([spec.model_id])
        self.siblings = siblings
        self._pairs = 1 if siblings is None else siblings.pairs
        self._process = 0 if siblings is None else siblings.index
        self.addresses = parse_worker_url(
            spec.url, handshake=spec.handshake_address, pairs=self._pairs, advertise=spec.advertise_host
        )
        if self.addresses.remote:
            directory = default_socket_directory(os.environ, os.getuid())
            self.addresses = replace(self.addresses, path=f"{directory}/{self.addresses.path}")
            if is_public(self.addresses.input):
                logger.warning("%s is a public address, and engines' sockets are neither encrypted nor authenticated; "
                               "use a private network or a tunnel", spec.url)  # fmt: skip
        self._codec = codec_for(spec.protocol)
        self._transport = transport
        self._send_limit_s = send_limit_s
        self._handshake_limit_s = handshake_limit_s
        self._command_sender, self._command_receiver = trio.open_memory_channel[Command](float("inf"))
        self._group = Group(
            spec, self._codec, self._command_sender, self._note_change, silence_limit_s, pixel_form, siblings
        )
        self._change = trio.Event()
        self._registrations = RegistrationFile(self.addresses.path, spec.protocol)
        self._asking_tasks = trio.Lock()
        self._asking_forms = trio.Lock()
        self._bound = False
        self._failure = ""
        self._draining = False

    # ---- for other rooms ------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> GenerationScope:
        """A scope for one request; see `GenerationScope`.

        Entering raises NoReadyWorker, or the ClientFault that names what the engine could not take.
        """
        return GenerationScope(self, request)

    def begin(self, request: GenerationRequest, delivery: AnyDelivery) -> InFlight[AnyDelivery]:
        """Start a request whose outputs go to `delivery`; the caller owes a `leave`, once, on every path.

        The unscoped form of `generate`, for answers made of several requests on one stream. Same errors.
        """
        if self._draining:
            raise NoReadyWorker(f"The worker {self.spec.url} is draining.")
        return self._group.begin(request, delivery, trio.current_time())

    def leave(self, entry: InFlight[AnyDelivery]) -> None:
        """End a request's scope: aborts it at the engine unless it has ended. Never blocks; idempotent."""
        self._group.leave(entry)

    async def supported_tasks(self) -> frozenset[str]:
        """The tasks that every engine of this worker that serves now was started for, such as ``generate``.

        Each engine is asked once. Raises NoReadyWorker, EngineFault.
        """
        group = self._group
        async with self._asking_tasks:
            ranks = group.handshake.serving_ranks
            if not ranks:
                raise NoReadyWorker(f"No engine of {self.spec.url} is ready.")
            tasks = [await self._tasks_of(rank) for rank in ranks]
        return frozenset.intersection(*tasks)

    async def _tasks_of(self, rank: int) -> frozenset[str]:
        info = self._group.handshake.info(rank)
        if info is None:
            raise NoReadyWorker(f"Rank {rank} of {self.spec.url} is not ready.")
        known = self._group.tasks.of(rank, info)
        if known is None:
            said = await self.call_utility("get_supported_tasks", rank=rank)
            known = frozenset(map(str, said)) if isinstance(said, list) else frozenset()
            self._group.tasks.note(rank, info, known)
        return known

    def missing_task(self, task: str, tasks: frozenset[str]) -> SmgError:
        """The refusal of a task that is not among its `tasks`."""
        return self._group.tasks.missing_task(task, tasks)

    @property
    def known_pixel_forms(self) -> frozenset[PixelForm]:
        """The forms in which its engines that serve now take media, as far as they have said; see `pixel_forms`."""
        return self._group.pixel_forms.among(self._group.handshake.serving_ranks)

    async def pixel_forms(self, model_type: str = "") -> frozenset[PixelForm]:
        """The forms in which its engines that serve now take media; to be called before media are prepared.

        Each engine is asked once, when this is first called: engines that get text alone are never asked. One that
        cannot say is taken for what engines of its version are, where the model's config says `model_type`. Raises
        NoReadyWorker, UnsupportedFeature (TokenSpeed takes no media). Cancelled, what was said is kept.
        """
        if not self._group.can_be_asked:
            raise UnsupportedFeature(NO_MEDIA, param="messages")
        async with self._asking_forms:
            await ask_pixel_forms(self._group, self.spec.url, model_type)
        forms = self.known_pixel_forms
        if not forms:
            raise NoReadyWorker(f"No engine of {self.spec.url} is ready.")
        return forms

    async def _learn_tasks(self) -> None:
        """Ask each engine that comes what it was started for, until cancelled."""
        while True:
            changed = self._change
            if self._group.handshake.serving_ranks:
                try:
                    await self.supported_tasks()
                except SmgError as error:
                    logger.debug("%s has not said which tasks it supports: %s", self.spec.url, error.message)
            await changed.wait()

    async def call_utility(self, method: str, *arguments: Any, rank: int = 0, timeout_s: float = 30.0) -> Any:
        """Call a method of the engine at `rank` and return its result.

        Raises UnsupportedFeature (TokenSpeed has none), NoReadyWorker, EngineFault with the engine's words, EngineDead.
        Cancelled or timed out (EngineFault), a late reply is dropped.
        """
        if self._group.handshake.phase(rank) is not RankPhase.READY:
            raise NoReadyWorker(f"Rank {rank} of {self.spec.url} is not ready.")
        with trio.move_on_after(timeout_s):
            return await self._group.call_utility(rank, method, arguments)
        raise EngineFault(f"engine method {method} did not answer within {timeout_s:g}s")

    def fail_everything(self, error: SmgError) -> None:
        """End every request in flight with `error` to its consumer, and abort it at its engine."""
        self._group.fail_everything(error)

    def learn_vocab_size(self, vocab_size: int | None) -> None:
        """Take note of the model's vocabulary, where its files came after the worker did."""
        self.spec = replace(self.spec, vocab_size=vocab_size)
        self._group.learn_vocab_size(vocab_size)

    def start_draining(self) -> None:
        """Take no new requests; those in flight go on."""
        self._draining = True
        self._note_change()

    @property
    def state(self) -> WorkerState:
        """Where the worker stands in its lifecycle."""
        if self._draining:
            return WorkerState.DRAINING
        if self._group.handshake.serving_ranks:
            return WorkerState.READY
        if self._failure:
            return WorkerState.FAILED
        return WorkerState.NOT_READY if self._group.handshake.ever_complete else WorkerState.PENDING

    @property
    def in_flight(self) -> int:
        """Requests at its engines now, of all processes of the gateway."""
        return sum(map(self._group.selector.in_flight, range(self.spec.engine_count)))

    def busy_loads(self) -> list[EngineLoad]:
        """What the engines last said of their load, of those only that have something in flight."""
        return self._group.busy_loads()

    @property
    def load(self) -> float:
        """How busy it is, per engine: the mean of its ranks' scores (see `ranks`)."""
        count = self.spec.engine_count
        return sum(self._group.selector.score(rank) for rank in range(count)) / count

    @property
    def max_model_len(self) -> int | None:
        """The smallest context window among its registered engines; None while there is none."""
        return self._group.handshake.smallest_window

    def snapshot(self) -> WorkerSnapshot:
        """The worker as it is now."""
        reason = self._failure or self._group.handshake.summary()
        return WorkerSnapshot(
            spec=self.spec,
            state=self.state,
            reason=reason,
            in_flight=self.in_flight,
            lockstep=self._group.handshake.lockstep,
            wave=self._group.waves.current,
            ranks=self._group.rank_snapshots(),
            handshake_address=self.addresses.handshake,
            refused=self._group.refusals.totals(),
        )

    async def wait_change(self) -> None:
        """Wait until the worker's state may have changed."""
        await self._change.wait()

    async def wait_state(self, state: WorkerState) -> None:
        """Wait until the worker is in `state`."""
        while self.state is not state:
            await self._change.wait()

    def _note_change(self) -> None:
        self._keep_registrations()
        self._change.set()
        self._change = trio.Event()

    def _kept_registrations(self) -> dict[int, EngineInfo]:
        kept = {rank: info for rank, info in self._registrations.load().items() if rank < self.spec.engine_count}
        if not self._process:
            return kept
        return {rank: replace(info, relayed=info.pairs <= self._process) for rank, info in kept.items()}

    def _keep_registrations(self) -> None:
        if not self._bound or self._process:
            return
        handshake = self._group.handshake
        engines = {rank: info for rank in handshake.ready_ranks() if (info := handshake.info(rank)) is not None}
        try:
            if engines:
                self._registrations.save(engines)
        except OSError as error:
            logger.warning("registrations of %s cannot be kept: %s", self.spec.url, error.strerror)

    # ---- supervisor -----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then aborts what is in flight at the engines, closes and removes its sockets.

        `task_status` is started when the sockets are bound for the first time or binding has failed once.
        """
        log_context.request_id.set("")
        log_context.worker.set(self.spec.url)
        attempt = 0
        started = False
        while True:
            await trio.sleep(_REBIND_BACKOFF_S[min(attempt, len(_REBIND_BACKOFF_S) - 1)])
            # The reference's words for whatever keeps engines from being let in.
            failed = "ZMQ backend handshake failed for"
            try:
                async with self._bound_sockets() as sockets:
                    failed = "Lost the sockets of ZMQ worker"
                    self._set_failure("")
                    attempt = 0
                    if not started:
                        started = True
                        task_status.started()
                    await self._serve(*sockets)
            except* (OSError, LinkClosed, ConfigError) as group:
                reason = "; ".join(_words(error) for error in _leaves(group))
                logger.warning("%s %s: %s; binding again", failed, self.spec.url, reason)
                self._set_failure(reason)
            except* Exception as group:
                logger.exception("ZMQ worker %s failed; binding again", self.spec.url, exc_info=group)
                self._set_failure("internal error")
            self._group.lose_all(EngineDead("the worker's sockets failed"))
            attempt += 1
            if not started:
                started = True
                task_status.started()

    def _set_failure(self, reason: str) -> None:
        self._failure = reason
        self._note_change()

    @asynccontextmanager
    async def _bound_sockets(self) -> AsyncIterator[tuple[Link, OutputLink, Link | None]]:
        if self._process:
            async with bound_pair(self.addresses.pair(self._process), self._transport) as pair:
                with self._being_bound():
                    yield *pair, None
        else:
            async with bound_worker(self.spec, self.addresses, self._pairs, self._transport) as links:
                with self._being_bound():
                    yield links

    @contextmanager
    def _being_bound(self) -> Iterator[None]:
        self._bound = True
        try:
            yield
        finally:
            self._bound = False

    async def _serve(self, input_link: Link, output_link: OutputLink, handshake_link: Link | None) -> None:
        group, codec = self._group, self._codec
        owner = InputOwner(input_link, group, codec, self._command_receiver, self._send_limit_s)
        try:
            async with trio.open_nursery() as nursery:
                peers = PeerWatch(input_link, group, codec, nursery)
                nursery.start_soon(adopt_engines, group, peers, self.spec.protocol, self._kept_registrations())
                if group.remote:
                    nursery.start_soon(take_back, group, peers, self.spec.protocol, self.wait_change)
                if handshake_link is None:
                    nursery.start_soon(take_registrations, input_link, group, self.spec, self._pairs)
                else:
                    self._start_listening(handshake_link, input_link, peers, nursery)
                nursery.start_soon(owner.run)
                relay = self._make_relay()
                if relay is not None:
                    nursery.start_soon(relay.run)
                if not self._process:
                    nursery.start_soon(self._absent_pairs().run)
                nursery.start_soon(dispatch, output_link, group, codec, peers, nursery, relay)
                nursery.start_soon(peers.watch_inputs)
                nursery.start_soon(peers.watch_outputs, output_link)
                nursery.start_soon(peers.watch_gone)
                nursery.start_soon(watch_silence, group)
                nursery.start_soon(reclaim, group)
                nursery.start_soon(self._learn_tasks)
        finally:
            if trio.current_effective_deadline() == float("-inf"):
                group.fail_everything(ShuttingDown("the gateway is shutting down"))
            owner.flush_aborts()

    async def hold_pair(self, index: int) -> None:
        """In the keeper: stand in for a process that is away, until cancelled. See `AbsentPairs`."""
        if self._bound:
            await self._absent_pairs().hold(index)

    def _absent_pairs(self) -> AbsentPairs:
        return AbsentPairs(
            self._transport,
            self.addresses,
            self._pairs,
            self._group,
            self._codec,
            self._command_sender,
            self.wait_change,
        )

    def _make_relay(self) -> Relay | None:
        """In the keeper: for engines that know fewer socket pairs than there are."""
        siblings = self.siblings
        if siblings is None or siblings.index:
            return None
        return Relay(
            self._transport,
            self.addresses,
            siblings.pairs,
            self._group,
            self._command_sender,
            self.wait_change,
            siblings.stalled,
        )

    def _start_listening(self, handshake_link: Link, input_link: Link, peers: PeerWatch, nursery: trio.Nursery) -> None:
        listener = HandshakeListener(
            self.spec,
            self.addresses,
            self._pairs,
            handshake_link,
            self._group,
            peers,
            self._note_change,
            self.wait_change,
        )
        nursery.start_soon(listener.listen, nursery)
        nursery.start_soon(listener.take_registrations, input_link, nursery)
        nursery.start_soon(listener.shed_peers)
        nursery.start_soon(listener.answer_refused)
        nursery.start_soon(listener.note_slow_handshake, self._handshake_limit_s)


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    leaves: list[Exception] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return leaves


def _words(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return error.problem
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) or type(error).__name__
