"""The fake engine without IO: input messages in, output messages out, time passed in. Pure.

States: idle (`due` is None), stepping (`due` is when the step under way ends), doomed (`doom` says why: the
owner sends what is left, then the sentinel, and stops), deaf (`deaf` says why: the owner closes the input and
goes on). A step gives every running sequence its next tick, and all of it goes into one message. What arrives
during a step is admitted at the next one, like in a real engine. Steps keep an absolute schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from smg_trio.core.outputs import EngineError, FinishReason
from smg_trio.testing.commands import (
    Abort,
    Add,
    Command,
    EngineRequest,
    Fatal,
    Malformed,
    StartWave,
    UtilityCall,
)
from smg_trio.testing.engine_utilities import Utilities
from smg_trio.testing.messages import addressed
from smg_trio.testing.prefix_cache import PrefixCache
from smg_trio.testing.script import HANG, FixedScript, ScriptChooser, Tick, play
from smg_trio.testing.sequences import Load, RunningSequence
from smg_trio.testing.vision import Vision, VisionFailed

if TYPE_CHECKING:
    from smg_trio.testing.codec import EngineCodec
    from smg_trio.testing.lockstep import LockstepGroup
    from smg_trio.testing.messages import Message
    from smg_trio.testing.options import EngineOptions

Thing = TypeVar("Thing")

MAX_LAG_S = 1.0
PAUSED = EngineError("Generation is paused. Please retry after it resumes.", "engine_paused", retryable=True)
"""What a vLLM engine since 0.33 says to requests that come while it is paused."""


@dataclass(slots=True)
class EngineRecord:
    """What an engine has been asked, over all its incarnations.

    Attributes:
        received: requests in order of arrival, refused ones included.
        aborts: aborted ids, known or not.
        waves: (wave, exclude rank) of every wake-up, stale ones included.
        utilities: utility calls.
        warnings: what it dropped, and why it died or went deaf.
        finished: ids that ended by themselves.
        steps: steps made; tokens: token ids said.
    """

    received: list[EngineRequest] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    waves: list[tuple[int, int]] = field(default_factory=list)
    utilities: list[UtilityCall] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0


class EngineCore:
    """One engine process from registration to death."""

    def __init__(
        self,
        options: EngineOptions,
        codec: EngineCodec,
        choose_script: ScriptChooser,
        *,
        group: LockstepGroup | None = None,
        record: EngineRecord | None = None,
    ) -> None:
        self.options = options
        self.record = record or EngineRecord()
        self.due: float | None = None
        self.doom: str | None = None
        self.deaf: str | None = None
        self.rank = group.join(options.rank) if group is not None else None
        self._codec = codec
        self._choose_script = choose_script
        self._cache = PrefixCache(capacity_blocks=options.num_gpu_blocks, block_size=options.block_size)
        self.vision = Vision(
            options.vision,
            normalises=options.normalises_pixels,
            budget=options.batched_tokens,
            replaces=options.is_since(0, 32),
        )
        self._utilities = Utilities(self)
        self._sequences: dict[str, RunningSequence] = {}
        self._waiting: deque[RunningSequence] = deque()
        self._running: list[RunningSequence] = []
        self._backlog: deque[Command] = deque()
        self._load = Load()
        self._used_tokens = 0
        self._stirred = False
        self._passed_over = 0
        self._outputs_said = 0
        self._several_fronts = False
        self._capacity_tokens = max(1, options.num_gpu_blocks * options.block_size)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, running and waiting."""
        return len(self._sequences)

    def takes_input(self) -> bool:
        """False once the engine is doomed or deaf."""
        return self.deaf is None and self.doom is None

    def receive(self, frames: Sequence[bytes], now: float) -> list[Message]:
        """Take one input message (frames without identity); returns what is to be sent immediately."""
        command = self._codec.decode(frames, now)
        if isinstance(command, Malformed):
            self.record.warnings.append(command.reason)
            if self._codec.malformed_is_fatal:
                self.deaf = command.reason
            return []
        self._note(command)
        if self._stuck:
            self._backlog.append(command)
            return []
        return self._apply(command, now) + self.wake(now)

    def wake(self, now: float) -> list[Message]:
        """Go on after a change in the group: report waves, take what arrived while stuck, begin a step."""
        messages = self._completed_waves(now)
        while self._backlog and not self._stuck and self.doom is None:
            messages += self._apply(self._backlog.popleft(), now)
        self._begin(now)
        return messages

    def step(self, now: float) -> list[Message]:
        """End the step that is due and begin the next one, if there is work."""
        due, self.due = self.due, None
        if due is None or self._stuck or self._utilities.paused:
            return []
        if self.rank is not None and not self.rank.participates:  # the group paused during the step
            return self.wake(now)
        messages = self._speak(now)
        self.record.steps += 1
        if self.rank is not None:
            self.rank.set_unfinished(bool(self._sequences))
            self.rank.finish_step()
        messages += self._utilities.drained(now)
        messages += self.wake(max(due, now - MAX_LAG_S) if self.options.step_time_s else now)
        return messages

    def end_all(self, now: float) -> list[Message]:
        """End every request with finish ``abort``, said in one message to each front that has some."""
        sequences = list(self._sequences.values())
        if not sequences:
            return []
        for sequence in sequences:
            self._forget(sequence)
        requests = [sequence.request for sequence in sequences]
        load = self._snapshot()
        return [
            addressed(self._codec.ended(own, FinishReason.ABORT, load, now), client_index)
            for client_index, own in _by_front(requests, lambda request: request.client_index)
        ]

    def clear_cache(self) -> None:
        """Empty the prefix cache."""
        self._cache.clear()

    def reply(self, call: UtilityCall, failure: str | None, result: object, now: float) -> Message:
        """The encoded answer to a utility call: for the front that the call names, whoever sent it."""
        return addressed(self._codec.utility_reply(call.call_id, failure, result, now), call.client_index)

    @property
    def _stuck(self) -> bool:
        return self.rank is not None and self.rank.stuck

    def _note(self, command: Command) -> None:
        record = self.record
        if isinstance(command, Add):
            record.received.append(command.request)
        elif isinstance(command, Abort):
            record.aborts.extend(command.request_ids)
        elif isinstance(command, StartWave):
            record.waves.append((command.wave, command.exclude_rank))
        elif isinstance(command, UtilityCall):
            record.utilities.append(command)

    def _apply(self, command: Command, now: float) -> list[Message]:
        if isinstance(command, Add):
            return self._add(command.request, now)
        if isinstance(command, Abort):
            self._abort(command.request_ids)
        elif isinstance(command, StartWave):
            if self.rank is not None and command.exclude_rank != self.options.rank:
                self.rank.start_wave(command.wave)
        elif isinstance(command, UtilityCall):
            return self._utilities.call(command, now)
        elif isinstance(command, Fatal):
            self._die(command.reason)
        return []

    def _add(self, request: EngineRequest, now: float) -> list[Message]:
        if request.request_id in self._sequences:
            self._refuse_duplicate(request.request_id)
            return []
        if request.failure is not None:
            self.record.warnings.append(f"{request.request_id}: {request.failure}")
            return [self._refusal(request, now)]
        if self._utilities.refusing:
            return [self._refusal(request, now, PAUSED)]
        if request.media and not self._sees(request):
            missing = request.sight.missing
            return [self._refusal(request, now, missing=missing)] if missing else []
        self._several_fronts = self._several_fronts or request.client_index != 0
        sequence = RunningSequence(request, self._ticks(request), now)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)
        if self.rank is not None:
            self.rank.set_unfinished(True)
        return []

    def _sees(self, request: EngineRequest) -> bool:
        """Whether the media can be looked at; if not they are missing, or the engine dies of them."""
        try:
            request.sight = self.vision.look(request.media, len(request.prompt_token_ids))
        except VisionFailed as error:
            self._die(f"{request.request_id}: {error}")
            return False
        return not request.sight.missing

    def _refusal(
        self, request: EngineRequest, now: float, error: EngineError | None = None, missing: Sequence[str] = ()
    ) -> Message:
        message = self._codec.ended([request], FinishReason.ERROR, self._snapshot(), now, error, missing=missing)
        return addressed(message, request.client_index)

    def _refuse_duplicate(self, request_id: str) -> None:
        reason = f"duplicate request id {request_id!r}"
        if self._codec.malformed_is_fatal:
            self._die(reason)
        else:
            self.record.warnings.append(reason)

    def _ticks(self, request: EngineRequest) -> Iterator[Tick]:
        if request.pooling is not None:
            return iter((Tick((), FinishReason.STOP),))
        if request.sight.stuck:
            return play(FixedScript((), HANG), request, self.options.max_model_len)
        if request.sight.invalid:
            return iter((Tick((0,), FinishReason.STOP),))
        return play(self._choose_script(request), request, self.options.max_model_len)

    def _abort(self, request_ids: Sequence[str]) -> None:
        if self.options.ignore_aborts:
            return
        for request_id in request_ids:
            sequence = self._sequences.get(request_id)
            if sequence is not None:
                self._forget(sequence)
                self._stirred = True  # a step without outputs follows, so that the statistics get out

    def _forget(self, sequence: RunningSequence) -> None:
        del self._sequences[sequence.request.request_id]
        if sequence in self._waiting:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: RunningSequence) -> None:
        self._used_tokens -= len(sequence.request.prompt_token_ids) + sequence.completion_tokens

    def _die(self, reason: str) -> None:
        self.doom = reason
        self.record.warnings.append(reason)

    def _begin(self, now: float) -> None:
        """Admit what waits and say when the step that starts at ``now`` will end."""
        if self.due is not None or self._utilities.paused or self._stuck:
            return
        prefill_s = self._admit(now)
        if self._stirred or self._has_work():
            self._stirred = False
            self.due = now + self.options.step_time_s + prefill_s

    def _has_work(self) -> bool:
        if self.rank is not None:
            return self.rank.participates
        return not all(sequence.hung for sequence in self._running)

    def _admit(self, now: float) -> float:
        if self._utilities.draining:
            return 0.0
        free = self.options.max_num_seqs - len(self._running)
        prefill_s = 0.0
        while self._waiting and free > 0:
            sequence = self._waiting.popleft()
            prefill_s += self._prefill(sequence, now)
            self._running.append(sequence)
            free -= 1
        self._passed_over = len(self._waiting)
        return prefill_s

    def _prefill(self, sequence: RunningSequence, now: float) -> float:
        options, request = self.options, sequence.request
        prompt = request.prompt_token_ids
        sequence.scheduled_at = now
        if options.prefix_caching:
            read = request.prompt_logprobs is None and not request.skip_prefix_cache
            sequence.cached_tokens = self._cache.take(request.cache_keys, salt=request.cache_salt, read=read)
            self._load.prefix_requests += 1
            self._load.prefix_queries += len(prompt)
            self._load.prefix_hits += sequence.cached_tokens
        self._used_tokens += len(prompt)
        computed = len(prompt) - sequence.cached_tokens
        return options.prefill_time_s + options.prefill_token_time_s * computed

    def _speak(self, now: float) -> list[Message]:
        saying: list[RunningSequence] = []
        finished, tokens = False, 0
        for sequence in self._running:
            before = sequence.completion_tokens
            if sequence.advance():
                saying.append(sequence)
                finished = finished or sequence.finish is not None
            tokens += sequence.completion_tokens - before
        self._used_tokens += tokens
        self.record.tokens += tokens
        if finished:
            self._retire()
        messages = self._messages(saying, now)
        for sequence in saying:
            sequence.first = False
        self._count(len(saying))
        return messages

    def _messages(self, saying: list[RunningSequence], now: float) -> list[Message]:
        """The step's one message to each front, and the empty one, to the first, that follows the last finish."""
        messages = self._step_messages(saying, now) if saying else []
        if not self._sequences or not (saying or self._running):
            idle = self._codec.idle(self._snapshot(), now) if self._had_work(saying) else None
            messages += [idle] if idle is not None else []
        return messages

    def _step_messages(self, saying: list[RunningSequence], now: float) -> list[Message]:
        if not self._several_fronts:
            return [self._codec.step(saying, self._snapshot(), now)]
        messages: list[Message] = []
        load: Load | None = self._snapshot()
        # The front whose request stands first in the step is told the load, and no other one is.
        for client_index, own in _by_front(saying, lambda sequence: sequence.request.client_index):
            messages.append(addressed(self._codec.step(own, load, now), client_index))
            load = None
        return messages

    def _had_work(self, saying: list[RunningSequence]) -> bool:
        return bool(saying) or self.rank is None

    def _retire(self) -> None:
        going: list[RunningSequence] = []
        for sequence in self._running:
            if sequence.finish is None:
                going.append(sequence)
            else:
                del self._sequences[sequence.request.request_id]
                self.record.finished.append(sequence.request.request_id)
                self._release(sequence)
        self._running = going

    def _count(self, outputs: int) -> None:
        self._outputs_said += outputs
        limit = self.options.crash_after_outputs
        if limit is not None and self._outputs_said >= limit and outputs:
            self._die(f"told to crash after {limit} outputs")

    def _snapshot(self) -> Load:
        load, self._load = self._load, Load()
        # What came during the step has not been looked at yet: a real engine does not count it either.
        load.running, load.waiting = len(self._running), min(self._passed_over, len(self._waiting))
        load.kv_usage = min(1.0, self._used_tokens / self._capacity_tokens)
        return load

    def _completed_waves(self, now: float) -> list[Message]:
        if self.rank is None or not self.rank.completed:
            return []
        waves, self.rank.completed = self.rank.completed, []
        return [self._codec.wave_complete(wave, now) for wave in waves]


def _by_front(things: Sequence[Thing], client_index: Callable[[Thing], int]) -> list[tuple[int, list[Thing]]]:
    """The things by the front they are for, in the order in which fronts come first."""
    found: dict[int, list[Thing]] = {}
    for thing in things:
        found.setdefault(client_index(thing), []).append(thing)
    return list(found.items())
