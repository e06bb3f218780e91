"""An answer being generated: decoders over the engine requests of all its choices, one stream of updates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from smg_trio.core.errors import SmgError
from smg_trio.core.events import ChoiceUpdate, ContentDelta, Usage
from smg_trio.core.requests import GenerationRequest, SamplingParams
from smg_trio.pipeline.decode import ChoiceDecoder
from smg_trio.pipeline.engine_requests import (
    Batch,
    EngineRequests,
    HeldRequest,
    PlainText,
    RequestCounts,
    unique_request_id,
)
from smg_trio.pipeline.prepared_media import AnswerMedia, answer_media
from smg_trio.routing.policies.media_tokens import with_media

if TYPE_CHECKING:
    from smg_trio.core.outputs import GenerationOutput
    from smg_trio.pipeline.prepare import PreparedRequest
    from smg_trio.routing.lease import Lease
    from smg_trio.worker.group import AnyDelivery
    from smg_trio.worker.ledger import InFlight


class _Choice(HeldRequest):
    """One choice: the engine request behind it and what decodes it."""

    __slots__ = ("decoder",)

    def __init__(self, lease: Lease, entry: InFlight[AnyDelivery], decoder: ChoiceDecoder) -> None:
        super().__init__(lease, entry)
        self.decoder = decoder

    @property
    def finished(self) -> bool:
        """See `HeldRequest`."""
        return self.decoder.finished


class Answer(EngineRequests[_Choice, ChoiceUpdate]):
    """One answer of one or more choices. Choice j of prompt i has index ``i * n + j``."""

    __slots__ = ("_prepared", "_texts")

    def __init__(self, prepared: Sequence[PreparedRequest], media: AnswerMedia | None = None) -> None:
        """Not yet begun.

        Args:
            prepared: one per prompt, of the same model and with the same `n`.
            media: those of the prompts, as the attempt before left them.
        """
        self._texts: list[list[str]] | None = None
        first = prepared[0]
        prompt_tokens = sum([len(one.prompt.token_ids) for one in prepared])
        media = media or answer_media(first.model, [one.media for one in prepared])
        super().__init__(first.model.model_id, first.request_id, prompt_tokens, first.n * len(prepared), media)
        self._prepared = prepared

    def _prompts(self) -> Iterable[Sequence[int]]:
        return [prompt for one in self._prepared for prompt in [_as_routed(one)] * one.n]

    def _begin_one(self, index: int, lease: Lease) -> _Choice:
        prompt, number = divmod(index, self._prepared[0].n)
        prepared = self._prepared[prompt]
        make_parser = prepared.plan.make_parser
        decoder = ChoiceDecoder(
            index,
            prepared.model.text.tokenizer,
            prepared.prompt.token_ids,
            prepared.decode,
            None if make_parser is None else make_parser(),
        )
        request = _engine_request(prepared, index, number)
        return _Choice(lease, lease.worker.begin(request, self._outputs.delivery(index)), decoder)

    def again(self) -> Answer:
        """See `EngineRequests`."""
        another = Answer(self._prepared, self._media)
        if self._texts is not None:
            another.keep_text()
        return another

    def keep_text(self) -> None:
        """See `EngineRequests`."""
        self._texts = [[] for _ in range(self.choices)]

    @property
    def kept_text(self) -> Sequence[str]:
        """See `EngineRequests`."""
        return ["".join(pieces) for pieces in self._texts or ()]

    @property
    def sampling(self) -> SamplingParams:
        """See `EngineRequests`; that of the first prompt."""
        return self._prepared[0].sampling

    @property
    def choices(self) -> int:
        """See `EngineRequests`."""
        return sum(one.n for one in self._prepared)

    @property
    def asked_tokens(self) -> int:
        """See `EngineRequests`."""
        return sum(one.n * (one.asked_tokens or 0) for one in self._prepared)

    @property
    def finish_reasons(self) -> list[str]:
        """See `EngineRequests`."""
        return [reason.value for choice in self._held if (reason := choice.decoder.finish_reason) is not None]

    @property
    def adapter(self) -> str:
        """See `EngineRequests`."""
        lora = self._prepared[0].model.lora
        return "" if lora is None else lora.name

    def request_counts(self) -> list[RequestCounts]:
        """See `EngineRequests`."""
        n, counts = self._prepared[0].n, []
        for index, choice in enumerate(self._held):
            prompt, decoder = index // n, choice.decoder
            tokens, cached = len(self._prepared[prompt].prompt.token_ids), decoder.cached_tokens or 0
            reason = decoder.finish_reason
            counts.append(
                RequestCounts(prompt, reason, tokens, decoder.completion_tokens, cached, choice.entry.queue_s)
            )
        return counts

    def plain_text(self) -> PlainText | None:
        """See `EngineRequests`: there is one where detokenizing is all that the text of the only choice needs."""
        if self._texts is None and len(self._held) == 1 and (decoder := self._held[0].decoder).plain:
            return decoder.push_plain
        return None

    def take(self, batch: Batch) -> list[ChoiceUpdate]:
        """See `EngineRequests`: one update per choice that the engines spoke of."""
        try:
            if len(self._held) == 1:
                return [self._push(0, [output for _, output in batch])]
            by_choice: dict[int, list[GenerationOutput]] = {}
            for choice, output in batch:
                by_choice.setdefault(choice, []).append(output)
            choices = self._held
            return [
                self._push(choice, outputs)
                for choice, outputs in by_choice.items()
                if not choices[choice].decoder.finished
            ]
        except SmgError as error:
            self.fail_leases(error)
            raise

    def _push(self, index: int, outputs: list[GenerationOutput]) -> ChoiceUpdate:
        choice = self._held[index]
        update = choice.decoder.push(outputs)
        if self._texts is not None:
            self._texts[index] += [event.text for event in update.events if isinstance(event, ContentDelta)]
        if update.finish is not None:
            choice.lease.succeeded()
            choice.leave()
            self._open -= 1
        return update

    def usage(self) -> Usage:
        """See `EngineRequests`."""
        if len(self._held) == 1:
            only = self._held[0].decoder
            return Usage(self.prompt_tokens, only.completion_tokens, only.cached_tokens, only.reasoning_tokens)
        decoders = [choice.decoder for choice in self._held]
        reasoning = [decoder.reasoning_tokens for decoder in decoders if decoder.reasoning_tokens is not None]
        cached = [decoder.cached_tokens for decoder in decoders if decoder.cached_tokens is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=sum(decoder.completion_tokens for decoder in decoders),
            cached_tokens=max(cached, default=None),
            reasoning_tokens=sum(reasoning) if reasoning else None,
        )


def _as_routed(prepared: PreparedRequest) -> Sequence[int]:
    """The prompt as policies see it."""
    ids = prepared.prompt.token_ids
    return ids if prepared.media is None else with_media(ids, prepared.media.features)


def _engine_request(prepared: PreparedRequest, choice: int, number: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=unique_request_id(f"{prepared.request_id}-{choice}" if choice else prepared.request_id),
        prompt_token_ids=prepared.prompt.token_ids,
        media=() if prepared.media is None else prepared.media.features,
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
