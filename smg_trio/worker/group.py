"""The state of one worker's engines and the decisions about it. Never waits; the shells in `nursery` do.

Everything that can happen is a method: a request comes (`begin`) or is left (`leave`), a message came (`apply`), an
engine is gone (`lose`). What must be sent as a consequence goes into the command channel.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from smg_trio.core.engines import EngineCounts, EngineInfo, EngineLoad, EngineProtocol
from smg_trio.core.errors import EngineDead, EngineFault, InvalidRequest, MediaMismatch, NoReadyWorker, SmgError
from smg_trio.core.outputs import EngineBatch, FinishReason, GenerationOutput, UtilityReply
from smg_trio.core.workers import RankPhase, RankSnapshot, WorkerSpec
from smg_trio.wire.addresses import TCP_SCHEME
from smg_trio.wire.codec import check_client_index
from smg_trio.worker.commands import (
    Command,
    SendAbort,
    SendAdd,
    SendOrphanAbort,
    SendSign,
    SendUtility,
    SendWave,
    UtilityCall,
)
from smg_trio.worker.handshake import GroupHandshake
from smg_trio.worker.ledger import InFlight, Ledger
from smg_trio.worker.liveness import SIGN_PREFIX, GivenUp, SilenceClock, connection_error, sign_request
from smg_trio.worker.log_throttle import LogThrottle, Refusals
from smg_trio.worker.output_stream import Delivery
from smg_trio.worker.pixel_forms import PixelFormBook
from smg_trio.worker.ranks import RankSelector
from smg_trio.worker.relayed_ids import RelayedIds
from smg_trio.worker.siblings import CALL_ID_BITS, SharedLedger, SharedRankSelector, SharedSilenceClock, Siblings
from smg_trio.worker.tasks import TOKENSPEED_TASKS, TaskBook
from smg_trio.worker.waves import WaveClock, epoch_us

if TYPE_CHECKING:
    from smg_trio.core.media import PixelForm
    from smg_trio.core.requests import GenerationRequest
    from smg_trio.wire.codec import EngineCodec

logger = logging.getLogger("smg_trio.worker")

AnyDelivery = Delivery[Any]

_MAX_ORPHANS = 100_000


class Group:
    """All ranks of one worker: handshake phases, ledger, scores, waves, silence clock, open utility calls.

    Args:
        spec: what the worker was told. Its ``vocab_size`` may change later: see `learn_vocab_size`.
        codec: its engines' protocol.
        commands: where consequences for the input socket go; unbounded.
        changed: called after every change of a rank's phase.
        silence_limit_s: seconds of silence, while something is owed, that mean death.
        pixel_form: the form in which all engines take media, where the operator says so.
        siblings: the other processes of the gateway, if there are any.

    Attributes:
        remote: whether its engines may be on other hosts, so that a connection that ends is not their end.
        disconnected_engines: by rank, what those had registered with that may come back without a HELLO.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        codec: EngineCodec,
        commands: trio.MemorySendChannel[Command],
        changed: Callable[[], None],
        silence_limit_s: float,
        pixel_form: PixelForm | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self._spec = spec
        self._vocab_size = spec.vocab_size
        self._codec = codec
        self._commands = commands
        self._changed = changed
        self.handshake = GroupHandshake(spec.engine_count, lockstep_capable=spec.protocol is EngineProtocol.VLLM)
        self.waves = WaveClock()
        self.tasks = TaskBook(TOKENSPEED_TASKS if spec.protocol is EngineProtocol.TOKENSPEED else None)
        self.pixel_forms = PixelFormBook(spec.url, self.handshake.info, pixel_form)
        self._process = 0 if siblings is None else siblings.index
        self.ledger: Ledger[AnyDelivery]
        if siblings is None:
            self.ledger = Ledger(spec.engine_count)
            self.selector = RankSelector(spec.engine_count, self.ledger.in_flight)
            self.silence = SilenceClock(silence_limit_s)
        else:
            cells = siblings.cells
            self.ledger = SharedLedger(spec.engine_count, cells)
            self.selector = SharedRankSelector(spec.engine_count, cells, siblings.monotonic)
            self.silence = SharedSilenceClock(silence_limit_s, cells, trio.current_time, siblings.monotonic)
        self.refusals = Refusals()
        self.owing = trio.Event()
        self.remote = spec.url.startswith(TCP_SCHEME)
        self.disconnected_engines: dict[int, EngineInfo] = {}
        self._given_up: dict[int, tuple[EngineInfo, GivenUp]] = {}
        self._losses = [0] * spec.engine_count
        self._counts = [EngineCounts() for _ in range(spec.engine_count)]
        self.gave_up = trio.Event()
        self._orphans: dict[int, set[str]] = {}
        self._adopted: set[int] = set()
        self.relayed_ids = RelayedIds()
        self._utility_calls: dict[int, UtilityCall] = {}
        self._last_call_id = self._process << CALL_ID_BITS

    @property
    def engine_count(self) -> int:
        """How many ranks there are, present or not."""
        return self._spec.engine_count

    @property
    def can_be_asked(self) -> bool:
        """Whether engines of this protocol have methods to call."""
        return self._spec.protocol is EngineProtocol.VLLM

    def learn_vocab_size(self, vocab_size: int | None) -> None:
        """Refuse ids beyond the model's vocabulary from now on."""
        self._vocab_size = vocab_size

    # ---- requests -------------------------------------------------------------------------------------

    def begin(self, request: GenerationRequest, delivery: AnyDelivery, now: float) -> InFlight[AnyDelivery]:
        """Check the request, choose a rank, enter it in the ledger and have it sent.

        Raises NoReadyWorker, PixelFormMissing, MediaMismatch, or the ClientFault that says why the engine could not
        take it.
        """
        rank = self._choose_rank(request)
        info = self.handshake.info(rank)
        assert info is not None, "serving ranks have registered"
        self.tasks.check(request, rank, info)
        if request.media and self.can_be_asked:
            request = self.pixel_forms.in_form_of(rank, request)
        self._check(request, info)
        client_index = self._client_index(info) if self._process else 0
        entry = self.ledger.open(request.request_id, rank, delivery)
        if self.silence.submitted(now):
            self.owing.set()
        lockstep = self.handshake.lockstep
        self._commands.send_nowait(SendAdd(entry, request, self.waves.current if lockstep else 0, client_index))
        if lockstep:
            self._wake_ranks()
        return entry

    def _check(self, request: GenerationRequest, info: EngineInfo) -> None:
        try:
            self._codec.check(request, info, self._vocab_size)
        except MediaMismatch as error:
            logger.error("request %s is not sent: %s", request.request_id, error.detail)  # noqa: TRY400 - all is said
            raise

    def _client_index(self, info: EngineInfo) -> int:
        """Which of the engine's pairs this process hears: its own, or the keeper's, who passes on what comes there."""
        if info.relayed:
            return 0
        check_client_index(self._process, info)
        return self._process

    def _wake_ranks(self) -> None:
        """Have every rank of a lockstep group take part in the next collective."""
        self._commands.send_nowait(SendWave(self.waves.wake(epoch_us())))

    def _choose_rank(self, request: GenerationRequest) -> int:
        serving = self.handshake.serving_ranks
        if request.rank is not None:
            count = self._spec.engine_count
            if not 0 <= request.rank < count:
                message = f"data parallel rank {request.rank} is out of range for {count} engine(s)"
                raise InvalidRequest(message, param="data_parallel_rank")
            serving = [request.rank] if request.rank in serving else []
        if not serving:
            reason = self.handshake.summary() or "not connected"
            raise NoReadyWorker(f"The engine behind model `{self._spec.model_id}` is not ready: {reason}.")
        if request.media and self.can_be_asked:
            serving = self.pixel_forms.taking(request, serving)
        return self.selector.select(serving)

    def leave(self, entry: InFlight[AnyDelivery]) -> None:
        """The consumer has left the request's scope: abort it at the engine unless it has ended."""
        if self._end(entry):
            self._commands.send_nowait(SendAbort(entry))

    def fail(self, entry: InFlight[AnyDelivery], error: SmgError) -> None:
        """End the request with an error to its consumer."""
        if self._end(entry):
            entry.delivery.fail(error)

    def _end(self, entry: InFlight[AnyDelivery]) -> bool:
        if not self.ledger.end(entry):
            return False
        if not self.ledger.in_flight(entry.rank):
            self.selector.idle(entry.rank)
            if not self.ledger.entries:
                self.silence.nothing_owed()
                self.owing = trio.Event()
        return True

    # ---- output messages ------------------------------------------------------------------------------

    def apply(self, batch: EngineBatch, now: float, *, lagging: bool = False) -> None:
        """Take in one output message: hand outputs to their requests, note load and waves. Unknown ids are ignored.

        `lagging`: further messages are at hand; see `Delivery.put`.
        """
        if not batch.only_wave_notice:  # which shows that the ranks step, not that they work on what is in flight
            self.silence.heard(now)
        rank = batch.rank
        if batch.load is not None and 0 <= rank < self._spec.engine_count:
            self.selector.report(rank, batch.load)
        if batch.counts is not None and 0 <= rank < self._spec.engine_count:
            self._counts[rank].add(batch.counts)
        if rank in self._given_up:
            self._hear_given_up(batch)
        entries = self.ledger.entries
        if batch.queue_times is not None:
            for request_id, queue_s in batch.queue_times.items():
                if request_id in entries:
                    entries[request_id].queue_s = queue_s
        for request_id, output in batch.outputs:
            entry = entries.get(request_id)
            if entry is None:
                if rank in self._orphans:
                    self._hear_unknown(rank, request_id, ended=output.finish_reason is not None)
                continue
            if output.finish_reason is not None:
                self._end(entry)
                entry.delivery.put(output, lagging=lagging)
            elif not entry.delivery.put(output, lagging=lagging):
                self.leave(entry)
        if batch.finished_request_ids:
            self._end_named(batch.finished_request_ids)
        if batch.utility is not None:
            self._answer_utility(batch.utility)
        if batch.wave_complete is not None or batch.start_wave is not None:
            self._take_wave_notice(batch, now)

    def expects(self, batch: EngineBatch) -> bool:
        """Whether the message answers something that its rank was asked: only that rank's engine can know of it."""
        rank, entries = batch.rank, self.ledger.entries
        if batch.utility is not None:
            call = self._utility_calls.get(batch.utility.call_id)
            if call is not None and call.rank == rank:
                return True
        return any(id_ in entries and entries[id_].rank == rank for id_, _ in batch.outputs)

    def refuse(self, log: LogThrottle, reason: str, now: float) -> None:
        """Count a message that is ignored, and tell of it unless there have been many."""
        for line in log.note(reason, now):
            logger.warning("%s: %s", self._spec.url, line)

    def _end_named(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            entry = self.ledger.entries.get(request_id)
            if entry is not None:
                self._end(entry)
                entry.delivery.put(GenerationOutput([], FinishReason.ABORT))

    def _take_wave_notice(self, batch: EngineBatch, now: float) -> None:
        if not self.handshake.lockstep:
            self.refuse(self.refusals.output, f"ignoring a wave notice of independent rank {batch.rank}", now)
            return
        if batch.wave_complete is not None:
            self.waves.completed(batch.wave_complete)
            if self.ledger.anywhere():
                # The wake-up of a request may reach one rank before the ranks agree to pause and the other after it.
                # The first has used its number up, the second waits in the collective alone until all are woken again.
                self._wake_ranks()
        if batch.start_wave is not None:
            self._commands.send_nowait(SendWave(self.waves.asked_to_start(batch.start_wave, epoch_us())))

    # ---- engines lost and found -------------------------------------------------------------------------

    def lose(self, ranks: Iterable[int], error: EngineFault, *, connected: GivenUp | None = None) -> None:
        """These ranks' engines are gone: fail what they had and wait for their HELLO.

        A lockstep group goes as a whole. Engines that are still ``connected`` are taken back when they give the sign
        that fits how they were given up.
        """
        lost = set(ranks)
        if lost and self.handshake.lockstep:
            lost = set(range(self._spec.engine_count))
        for rank in sorted(lost):
            self._orphans.pop(rank, None)
            self._adopted.discard(rank)
            info = self.handshake.info(rank)
            if info is not None:
                self._losses[rank] += 1
                self._give_up(rank, info, connected)
            logger.warning("rank %d of %s is lost: %s", rank, self._spec.url, error.message)
            self.handshake.lost(rank, error.message)
            self.selector.forget(rank)
            for entry in self.ledger.of_rank(rank):
                if connected is not None:
                    self._commands.send_nowait(SendAbort(entry))
                self.fail(entry, error)
            self._fail_utility_calls(rank, error)
        if lost:
            self._changed()

    def lose_all(self, error: EngineFault, *, connected: GivenUp | None = None) -> None:
        """Every rank is gone; see `lose`."""
        self.lose(range(self._spec.engine_count), error, connected=connected)

    def fail_everything(self, error: SmgError) -> None:
        """End every request with `error` and abort it at its engine; phases stay."""
        for entry in list(self.ledger.entries.values()):
            self._commands.send_nowait(SendAbort(entry))
            self.fail(entry, error)

    def ranks_owing(self) -> list[int]:
        """Ranks with something in flight."""
        return [rank for rank in range(self._spec.engine_count) if self.ledger.in_flight(rank)]

    def busy_loads(self) -> list[EngineLoad]:
        """The last load report of each rank with something in flight: an idle engine's last word may be old."""
        return [self.selector.load(rank) for rank in range(self._spec.engine_count) if self.selector.in_flight(rank)]

    def disconnected(self, reason: str) -> EngineDead:
        """The error of a request whose engine's connection has ended."""
        return connection_error(reason, remote=self.remote)

    def _give_up(self, rank: int, info: EngineInfo, connected: GivenUp | None) -> None:
        self._given_up.pop(rank, None)
        if connected is None:
            self.disconnected_engines[rank] = info
        else:
            self._given_up[rank] = (info, connected)
            self.gave_up.set()

    def _hear_given_up(self, batch: EngineBatch) -> None:
        rank = batch.rank
        info, how = self._given_up[rank]
        answers = batch.utility is not None or any(id_.startswith(SIGN_PREFIX) for id_, _ in batch.outputs)
        if how is GivenUp.DEAF and not answers:
            return
        del self._given_up[rank]
        logger.info("rank %d of %s is responding again", rank, self._spec.url)
        # What it could not be told to stop goes on there, and is stopped when it speaks.
        self._stop_orphans(rank, info)
        self.handshake.taken_back(rank, info)
        self._changed()

    def ask_for_signs(self) -> bool:
        """Ask every engine that was given up and is still connected for a sign of life; False if there is none."""
        for rank in self._given_up:
            self._last_call_id += 1
            request = None if self.can_be_asked else sign_request()
            client_index = self._client_index(self._given_up[rank][0]) if self._process else 0
            self._commands.send_nowait(SendSign(rank, self._last_call_id, request, client_index))
        if not self._given_up:
            self.gave_up = trio.Event()
        return bool(self._given_up)

    def gone_for_good(self, rank: int) -> None:
        """A rank that was given up has no connection any more."""
        given_up = self._given_up.pop(rank, None)
        if given_up is not None:
            self.disconnected_engines[rank] = given_up[0]
            self._changed()

    def adopt(self, rank: int, info: EngineInfo) -> None:
        """Take over a living engine that an earlier gateway had connected; what it still does for that one ends."""
        self.disconnected_engines.pop(rank, None)
        self._stop_orphans(rank, info)
        self._adopted.add(rank)
        self.handshake.taken_back(rank, info)
        if self.handshake.lockstep:
            # Engines stand at a wave of the earlier gateway's, whose numbers came from the same clock.
            self.waves.completed(epoch_us())
        self._changed()

    def _stop_orphans(self, rank: int, info: EngineInfo) -> None:
        """Have requests stopped that the rank works on for nobody here, when it speaks of them.

        Not where this process hears it through the keeper's pair: it may work for others.
        """
        if not info.relayed:
            self._orphans[rank] = set()

    def _hear_unknown(self, rank: int, request_id: str, *, ended: bool) -> None:
        if self.relayed_ids.known(request_id, ended=ended) or ended:
            return
        orphans = self._orphans[rank]
        if request_id not in orphans and len(orphans) < _MAX_ORPHANS:
            orphans.add(request_id)
            self._commands.send_nowait(SendOrphanAbort(rank, request_id))

    def registered(self, rank: int, info: EngineInfo) -> None:
        """In a front: an engine has registered on this process's pair, which is all that it is told of one.

        Whatever was there as this rank before is gone.
        """
        adopted = rank in self._adopted
        self._adopted.discard(rank)
        if self.handshake.phase(rank) is RankPhase.READY:
            if adopted and self.handshake.info(rank) == info:
                return  # the same engine: it was found before its registration was read
            self.lose([rank], EngineDead("the engine restarted"))
        self._given_up.pop(rank, None)
        self.disconnected_engines.pop(rank, None)
        self.handshake.taken_back(rank, info)
        self._changed()

    def vanished_while_loading(self, rank: int) -> None:
        """A rank that has registered but not said READY closed its connection."""
        if self.handshake.phase(rank) is RankPhase.LOADING:
            self.handshake.lost(rank, "vanished while loading")
            self._changed()

    def hello_taken(self, rank: int) -> None:
        """A new engine has said HELLO as `rank`: whatever was there before is history."""
        self._given_up.pop(rank, None)
        self.disconnected_engines.pop(rank, None)

    # ---- utility calls ----------------------------------------------------------------------------------

    async def call_utility(
        self, rank: int, method: str, arguments: tuple[Any, ...], info: EngineInfo | None = None
    ) -> Any:
        """Call an engine's method and wait for its result (any msgpack value).

        ``info``: what it registered with, if the rank is not known to have an engine yet.

        Raises EngineFault with the engine's words if it failed, EngineDead if the rank is lost or has no engine. Waits
        without limit: the caller owns the deadline. Cancelled, the late reply is dropped.
        """
        info = info or self.handshake.info(rank)
        if info is None:
            raise self.disconnected("the engine is not connected")
        client_index = self._client_index(info) if self._process else 0
        self._last_call_id += 1
        call_id = self._last_call_id
        call = self._utility_calls[call_id] = UtilityCall(rank, trio.Event())
        self._commands.send_nowait(SendUtility(rank, call_id, method, arguments, client_index))
        try:
            await call.answered.wait()
        finally:
            del self._utility_calls[call_id]
        if call.failure is not None:
            raise call.failure
        assert call.reply is not None, "answered calls have a reply or a failure"
        if call.reply.failure is not None:
            raise EngineFault(f"engine method {method} failed: {call.reply.failure}")
        return call.reply.result

    def _answer_utility(self, reply: UtilityReply) -> None:
        call = self._utility_calls.get(reply.call_id)
        if call is not None:
            call.reply = reply
            call.answered.set()

    def fail_utility(self, call_id: int, error: SmgError) -> None:
        """The call could not be sent."""
        call = self._utility_calls.get(call_id)
        if call is not None:
            call.failure = error
            call.answered.set()

    def _fail_utility_calls(self, rank: int, error: EngineFault) -> None:
        for call_id, call in list(self._utility_calls.items()):
            if call.rank == rank:
                self.fail_utility(call_id, error)

    # ---- from outside -----------------------------------------------------------------------------------

    def rank_snapshots(self) -> tuple[RankSnapshot, ...]:
        """All ranks as they are now."""
        handshake = self.handshake
        return tuple(
            RankSnapshot(
                rank=rank,
                phase=handshake.phase(rank),
                reason=handshake.reason(rank),
                in_flight=self.selector.in_flight(rank),
                load=self.selector.load(rank),
                info=handshake.info(rank),
                losses=self._losses[rank],
                counts=replace(self._counts[rank]),
            )
            for rank in range(self._spec.engine_count)
        )
