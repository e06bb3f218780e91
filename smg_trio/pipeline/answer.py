"""An answer being generated: leases, engine requests and decoders of all its choices, behind one stream of updates.

An answer owns its requests from `begin` until `close`; closing never blocks, so it is safe in any `finally`,
cancelled or not, and whatever the engines still do for it is aborted.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from secrets import token_hex

import trio

from smg_trio.core.errors import SmgError
from smg_trio.core.events import ChoiceUpdate, Usage
from smg_trio.core.outputs import GenerationOutput
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.pipeline.decode import ChoiceDecoder
from smg_trio.pipeline.prepare import PreparedRequest
from smg_trio.routing.lease import Lease
from smg_trio.routing.registry import Registry
from smg_trio.worker.group import AnyDelivery
from smg_trio.worker.ledger import InFlight
from smg_trio.worker.output_stream import OutputStream

_process_tag = token_hex(4)
_sequence = count()


_BEGUN_AT_ONCE = 20_000
"""Prompt tokens of the choices begun before other tasks get their turn: looking through them takes a millisecond."""
_CHOICE_TOKENS = 1_000
"""What a choice costs beside its prompt, in tokens of one."""


def unique_request_id(base: str) -> str:
    """An engine request id that no other request of this process has, and with luck none of an earlier gateway's."""
    return f"{base}-{_process_tag}{next(_sequence):x}"


class _Choice:
    """One choice: the engine request behind it and what decodes it."""

    __slots__ = ("decoder", "entry", "lease")

    def __init__(self, lease: Lease, entry: InFlight[AnyDelivery], decoder: ChoiceDecoder) -> None:
        self.lease = lease
        self.entry = entry
        self.decoder = decoder

    def leave(self) -> None:
        """Abort at the engine unless it has ended there; give the lease back."""
        self.lease.worker.leave(self.entry)
        self.lease.close()


class Answer:
    """One answer of one or more choices. One task reads it; whoever calls `begin` owes a `close` on every path.

    Choice j of prompt i has index ``i * n + j``.

    Attributes:
        outputs: what the engines say, tagged with the choice's index; for `next_updates`.
    """

    __slots__ = ("_choices", "_open_choices", "_prepared", "_prompt_tokens", "outputs")

    def __init__(self, prepared: Sequence[PreparedRequest]) -> None:
        self._prepared = prepared
        self._prompt_tokens = sum(len(one.prompt.token_ids) for one in prepared)
        self._choices: list[_Choice] = []
        self._open_choices = sum(one.n for one in prepared)
        self.outputs: OutputStream[int] = OutputStream()

    async def begin(self, registry: Registry, *, routing_key: str | None = None, avoid: Collection[str] = ()) -> None:
        """Choose workers and start generating. Other tasks get their turn while many choices are begun.

        Raises NoReadyWorker, WorkersOverloaded, or the ClientFault that says what the engine could not take; nothing
        is left running then, nor when cancelled.
        """
        begun = 0
        try:
            for one in self._prepared:
                for number in range(one.n):
                    if begun > _BEGUN_AT_ONCE:
                        begun = 0
                        await trio.lowlevel.checkpoint()
                    lease = registry.lease(
                        one.model.model_id, one.prompt.token_ids, routing_key=routing_key, avoid=avoid
                    )
                    self._choices.append(self._begin_choice(one, number, lease))
                    begun += _CHOICE_TOKENS + len(one.prompt.token_ids)
        except BaseException:
            self.close()
            raise

    def _begin_choice(self, prepared: PreparedRequest, number: int, lease: Lease) -> _Choice:
        index = len(self._choices)
        make_parser = prepared.plan.make_parser
        try:
            decoder = ChoiceDecoder(
                index,
                prepared.model.text.tokenizer,
                prepared.prompt.token_ids,
                prepared.decode,
                None if make_parser is None else make_parser(),
            )
            request = _engine_request(prepared, index, number)
            return _Choice(lease, lease.worker.begin(request, self.outputs.delivery(index)), decoder)
        except BaseException:
            lease.close()
            raise

    @property
    def finished(self) -> bool:
        """Every choice has ended."""
        return not self._open_choices

    @property
    def plain_decoder(self) -> ChoiceDecoder | None:
        """The decoder of the only choice, if detokenizing is all its text needs; see `ChoiceDecoder.push_plain`."""
        if len(self._choices) == 1 and self._choices[0].decoder.plain:
            return self._choices[0].decoder
        return None

    @property
    def worker_ids(self) -> set[str]:
        """The workers that answer."""
        return {choice.lease.worker.spec.worker_id for choice in self._choices}

    @property
    def worker_urls(self) -> set[str]:
        """Those workers' URLs."""
        return {choice.lease.worker.spec.url for choice in self._choices}

    @property
    def finish_reasons(self) -> list[str]:
        """How the choices ended, of those that have."""
        return [reason.value for choice in self._choices if (reason := choice.decoder.finish_reason) is not None]

    async def next_updates(self) -> list[ChoiceUpdate]:
        """Wait for and return what the engines have said by now, one update per choice that they spoke of.

        Not to be called once `finished`. Raises the SmgError that ends the answer; it is closed then. Cancelled, it
        can be called again.
        """
        try:
            batch = await self.outputs.receive_batch()
        except SmgError as error:
            self.fail_leases(error)
            raise
        return self.take(batch)

    def take(self, batch: Sequence[tuple[int, GenerationOutput]]) -> list[ChoiceUpdate]:
        """The updates that a batch of `outputs` makes. Raises EngineRejected; the answer is closed then."""
        try:
            if len(self._choices) == 1:
                return [self._push(0, [output for _, output in batch])]
            by_choice: dict[int, list[GenerationOutput]] = {}
            for choice, output in batch:
                by_choice.setdefault(choice, []).append(output)
            choices = self._choices
            return [
                self._push(choice, outputs)
                for choice, outputs in by_choice.items()
                if not choices[choice].decoder.finished
            ]
        except SmgError as error:
            self.fail_leases(error)
            raise

    def _push(self, index: int, outputs: list[GenerationOutput]) -> ChoiceUpdate:
        choice = self._choices[index]
        update = choice.decoder.push(outputs)
        if update.finish is not None:
            choice.lease.succeeded()
            choice.leave()
            self._open_choices -= 1
        return update

    def wake_reader(self) -> None:
        """Have `next_updates` return, if with nothing new."""
        self.outputs.wake()

    def fail(self, error: SmgError) -> None:
        """End the answer with `error`, which `next_updates` raises after what came before it."""
        self.outputs.fail(error)

    def fail_leases(self, error: SmgError) -> None:
        """Tell the workers that the answer failed with `error`, and close."""
        for choice in self._choices:
            if not choice.decoder.finished:
                choice.lease.failed(error)
        self.close()

    def usage(self) -> Usage:
        """Counts so far."""
        if len(self._choices) == 1:
            only = self._choices[0].decoder
            return Usage(self._prompt_tokens, only.completion_tokens, only.cached_tokens, only.reasoning_tokens)
        decoders = [choice.decoder for choice in self._choices]
        reasoning = [decoder.reasoning_tokens for decoder in decoders if decoder.reasoning_tokens is not None]
        cached = [decoder.cached_tokens for decoder in decoders if decoder.cached_tokens is not None]
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=sum(decoder.completion_tokens for decoder in decoders),
            cached_tokens=max(cached, default=None),
            reasoning_tokens=sum(reasoning) if reasoning else None,
        )

    def close(self) -> None:
        """Leave every request and give the workers back; idempotent, never blocks."""
        for choice in self._choices:
            choice.leave()


def _engine_request(prepared: PreparedRequest, choice: int, number: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=unique_request_id(f"{prepared.request_id}-{choice}" if choice else prepared.request_id),
        prompt_token_ids=prepared.prompt.token_ids,
        sampling=with_seed_of(prepared.sampling, number),
        arrival_time=time.time(),
        priority=prepared.priority,
        cache_salt=prepared.cache_salt,
        lora=prepared.model.lora,
        trace_headers=prepared.hints.trace_headers,
        rank=prepared.hints.rank,
        reasoning_ended=prepared.plan.reasoning_ended,
        stream=prepared.stream,
    )


def with_seed_of(sampling: SamplingParams, choice: int) -> SamplingParams:
    """The sampling of choice i: its seed is the asked one plus i, within 64 bits."""
    if sampling.seed is None or choice == 0:
        return sampling
    seed = sampling.seed + choice
    return replace(sampling, seed=seed if seed < 2**63 else seed - 2**64)
