"""An answer being generated: leases, engine requests and decoders of all its choices, behind one stream of updates.

An answer owns its requests from `open_answer` until `close`; closing never blocks, so it is safe in any `finally`,
cancelled or not, and whatever the engines still do for it is aborted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from secrets import token_hex

from smg_trio.core.errors import SmgError
from smg_trio.core.events import ChoiceUpdate, Usage
from smg_trio.core.outputs import GenerationOutput
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.pipeline.decode import ChoiceDecoder
from smg_trio.pipeline.prepare import PreparedRequest
from smg_trio.routing.lease import Lease
from smg_trio.routing.registry import Registry
from smg_trio.worker.group import AnyDelivery
from smg_trio.worker.outputs import OutputStream
from smg_trio.worker.requests import InFlight

_process_tag = token_hex(4)
_sequence = count()


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
    """One answer of one or more choices; see `open_answer`. One task reads it.

    Choice j of prompt i has index ``i * n + j``.
    """

    __slots__ = ("_choices", "_open_choices", "_outputs", "_prompt_tokens")

    def __init__(self) -> None:
        self._outputs = OutputStream[int]()
        self._choices: list[_Choice] = []
        self._open_choices = 0
        self._prompt_tokens = 0

    def begin(self, prepared: PreparedRequest, registry: Registry) -> None:
        """Start the engine requests of one prompt's choices."""
        tokenizer, token_ids = prepared.model.text.tokenizer, prepared.prompt.token_ids
        self._prompt_tokens += len(token_ids)
        for number in range(prepared.n):
            choice = len(self._choices)
            make_parser = prepared.plan.make_parser
            parser = None if make_parser is None else make_parser()
            decoder = ChoiceDecoder(choice, tokenizer, token_ids, prepared.decode, parser)
            lease = registry.lease(prepared.model.model_id, token_ids)
            try:
                request = _engine_request(prepared, choice, number)
                entry = lease.worker.begin(request, self._outputs.delivery(choice))
            except BaseException:
                lease.close()
                raise
            self._choices.append(_Choice(lease, entry, decoder))
            self._open_choices += 1

    @property
    def finished(self) -> bool:
        """Every choice has ended."""
        return not self._open_choices

    async def next_updates(self) -> list[ChoiceUpdate]:
        """Wait for and return what the engines have said by now, one update per choice that they spoke of.

        Not to be called once `finished`. Raises the SmgError that ends the answer; it is closed then. Cancelled, it
        can be called again.
        """
        try:
            batch = await self._outputs.receive_batch()
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
        except SmgError:
            self.close()
            raise

    def _push(self, index: int, outputs: list[GenerationOutput]) -> ChoiceUpdate:
        choice = self._choices[index]
        update = choice.decoder.push(outputs)
        if update.finish is not None:
            choice.leave()
            self._open_choices -= 1
        return update

    def nudge(self) -> None:
        """Have `next_updates` return, if with nothing new."""
        for index, choice in enumerate(self._choices):
            if not choice.decoder.finished:
                self._outputs.delivery(index).put(GenerationOutput([]))
                return

    def fail(self, error: SmgError) -> None:
        """End the answer with `error`, which `next_updates` raises after what came before it."""
        for index, choice in enumerate(self._choices):
            if not choice.decoder.finished:
                self._outputs.delivery(index).put(error)

    def usage(self) -> Usage:
        """Counts so far."""
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


def open_answer(prepared: Sequence[PreparedRequest], registry: Registry) -> Answer:
    """Choose workers and start generating; the caller owes `Answer.close` on every path.

    Raises NoReadyWorker, ModelNotFound, or the ClientFault that says what the engine could not take; nothing is left
    running then.
    """
    answer = Answer()
    try:
        for one in prepared:
            answer.begin(one, registry)
    except BaseException:
        answer.close()
        raise
    return answer


def _engine_request(prepared: PreparedRequest, choice: int, number: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=unique_request_id(f"{prepared.request_id}-{choice}" if choice else prepared.request_id),
        prompt_token_ids=prepared.prompt.token_ids,
        sampling=with_seed_of(prepared.sampling, number),
        arrival_time=time.time(),
        priority=prepared.priority,
        cache_salt=prepared.cache_salt,
        lora=prepared.model.lora,
        trace_headers=prepared.trace_headers,
        rank=prepared.rank,
        reasoning_ended=prepared.plan.reasoning_ended,
        stream=prepared.stream,
    )


def with_seed_of(sampling: SamplingParams, choice: int) -> SamplingParams:
    """The sampling of choice i: its seed is the asked one plus i, within 64 bits."""
    if sampling.seed is None or choice == 0:
        return sampling
    seed = sampling.seed + choice
    return replace(sampling, seed=seed if seed < 2**63 else seed - 2**64)
