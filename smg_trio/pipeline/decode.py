"""One choice's outputs → `ChoiceUpdate`s: detokenizer, stop matcher, parser, in that order. Pure and synchronous.

Stop strings are looked for in all text, reasoning included, as vLLM does. A match ends the choice here, whatever the
engine says in the same breath, and counts the tokens up to the output that completed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, ContentDelta, ParserEvent, TokenLogprob
from smg_trio.core.outputs import FinishReason, GenerationOutput, PositionLogprobs
from smg_trio.core.records import record
from smg_trio.pipeline.logprobs import LogprobTranslator, translate_prompt
from smg_trio.pipeline.rejections import rejection
from smg_trio.text.detokenizer import Detokenizer
from smg_trio.text.stops import StopMatcher

if TYPE_CHECKING:
    from smg_trio.parsers.answer import AnswerParser
    from smg_trio.text.tokenizer import Tokenizer


@record
class DecodeOptions:
    """What a request wants of its text.

    Attributes:
        stop_token_ids: the client's own; ending on one is reported, ending on EOS is not.
        logprobs, prompt_logprobs: candidates to show; None = none asked; -1 = all there are.
        constraint_param: what the client calls the constraint on its output; "" for none.
        counts_reasoning: the answer may hold reasoning, so several tokens at once are read one by one.
        prompt_only: nothing was to be generated (the engine makes one token all the same, which is not shown).
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint_param: str = ""
    counts_reasoning: bool = False
    prompt_only: bool = False


class ChoiceDecoder:
    """Decodes one choice.

    Attributes:
        completion_tokens: counted so far, the stop token included.
        reasoning_tokens: of these, those of the reasoning; None without a reasoning parser.
        cached_tokens: prompt tokens from the engine's prefix cache, once it has said so.
        finished: nothing more will come.
        finish_reason: how it ended, once it has.
    """

    __slots__ = (
        "_choice",
        "_detokenizer",
        "_logprobs",
        "_options",
        "_parser",
        "_prompt_positions",
        "_stops",
        "_tokenizer",
        "cached_tokens",
        "completion_tokens",
        "finish_reason",
        "finished",
        "reasoning_tokens",
    )

    def __init__(
        self,
        choice: int,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        options: DecodeOptions,
        parser: AnswerParser | None = None,
    ) -> None:
        self._choice = choice
        self._options = options
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=options.skip_special_tokens,
            spaces_between_special_tokens=options.spaces_between_special_tokens,
        )
        self._stops = StopMatcher(options.stop, include_stop=options.include_stop) if options.stop else None
        self._parser = parser
        self._logprobs = None if options.logprobs is None else LogprobTranslator(tokenizer, options.logprobs)
        self._prompt_positions: list[PositionLogprobs] | None = None if options.prompt_logprobs is None else []
        self.completion_tokens = 0
        self.reasoning_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finished = False
        self.finish_reason: FinishReason | None = None

    @property
    def plain(self) -> bool:
        """Whether text needs nothing but detokenizing: no stops, no parser, no log probabilities of the prompt."""
        return (
            self._stops is None
            and self._parser is None
            and self._prompt_positions is None
            and not self._options.prompt_only
        )

    def push_plain(self, batch: Sequence[tuple[int, GenerationOutput]]) -> tuple[str, list[TokenLogprob] | None] | None:
        """Text and log probabilities (None unless asked for) of these outputs, for a `plain` choice in mid-stream.

        What most tokens are, at a fraction of an update's cost. None if `push` must see them: the choice has ended.
        """
        for _, output in batch:
            if output.finish_reason is not None:
                return None
        text, logprobs = "", None
        for _, output in batch:
            token_ids = output.token_ids
            self.completion_tokens += len(token_ids)
            if output.cached_tokens is not None:
                self.cached_tokens = output.cached_tokens
            text += self._detokenizer.push(token_ids)
            if output.logprobs and self._logprobs is not None:
                entries = self._logprobs.translate(output.logprobs)
                logprobs = logprobs + entries if logprobs else entries
        return text, logprobs

    def push(self, outputs: Sequence[GenerationOutput]) -> ChoiceUpdate:
        """What these outputs add, in one update. Outputs after the end are dropped.

        Raises:
            EngineRejected, EngineUnavailable, InvalidRequest: the engine ended the choice with an error, or aborted it
                unasked; see `rejections`.
        """
        update = ChoiceUpdate(self._choice)
        if len(outputs) == 1 and not self.finished:
            self._take(outputs[0], update)
            return update
        for output in outputs:
            if not self.finished:
                self._take(output, update)
        return update

    def _take(self, output: GenerationOutput, update: ChoiceUpdate) -> None:
        reason, token_ids = output.finish_reason, output.token_ids
        if reason is FinishReason.ERROR or reason is FinishReason.ABORT:
            raise rejection(
                output.error,
                reason,
                param=self._options.constraint_param or None,
                before_output=not self.completion_tokens,
            )
        if self._options.prompt_only:
            output = GenerationOutput([], FinishReason.LENGTH, None, None, output.prompt_logprobs, output.cached_tokens)
            reason, token_ids = output.finish_reason, output.token_ids
        self.completion_tokens += len(token_ids)
        if output.cached_tokens is not None:
            self.cached_tokens = output.cached_tokens
        update.token_ids = [*update.token_ids, *token_ids] if update.token_ids else token_ids
        if self._logprobs is not None or self._prompt_positions is not None:
            self._take_logprobs(output, update)
        hide_last = reason is FinishReason.STOP and not self._options.include_stop
        if self._stops is not None and len(token_ids) > 1:
            token_ids = self._show_unarmed(token_ids, update)
        if self._options.counts_reasoning and len(token_ids) > 1:
            token_ids = self._show_each(token_ids, update)
        thinking = self._parser is not None and self._parser.in_reasoning
        text = self._detokenizer.push(token_ids, hide_last=hide_last) if token_ids else ""
        if reason is not None:
            text += self._detokenizer.flush()
        if text and not self.finished:
            self._show(text, update)
        self._count_reasoning(len(token_ids), thinking)
        if reason is not None:
            self._finish(output, reason, update)

    def _show_each(self, token_ids: list[int], update: ChoiceUpdate) -> list[int]:
        """Of several tokens at once, show all but the last one by one: reasoning may begin or end at any of them.

        The last is returned, unless a stop string has ended the choice before it.
        """
        parser = self._parser
        for token_id in token_ids[:-1]:
            thinking = parser is not None and parser.in_reasoning
            text = self._detokenizer.push([token_id])
            if text:
                self._show(text, update)
            self._count_reasoning(1, thinking)
            if self.finished:
                return []
        return token_ids[-1:]

    def _count_reasoning(self, count: int, was_thinking: bool) -> None:
        """Count the latest tokens if they were reasoning, or ended it: a parser that has ended no longer says so."""
        if self._parser is not None and (self._parser.in_reasoning or (was_thinking and self.finished)):
            self.reasoning_tokens = (self.reasoning_tokens or 0) + count

    def _show_unarmed(self, token_ids: list[int], update: ChoiceUpdate) -> list[int]:
        """Of several tokens at once, those within min_tokens cannot complete a stop; the rest is returned."""
        first = self._options.min_tokens - (self.completion_tokens - len(token_ids))
        if first <= 0 or first >= len(token_ids) or self._stops is None:
            return token_ids
        thinking = self._parser is not None and self._parser.in_reasoning
        text, _ = self._stops.push(self._detokenizer.push(token_ids[:first]), armed=False)
        self._emit(text, update)
        self._count_reasoning(first, thinking)
        return token_ids[first:]

    def _show(self, text: str, update: ChoiceUpdate) -> None:
        """Pass text on through stop matcher and parser."""
        if self._stops is not None:
            text, matched = self._stops.push(text, armed=self.completion_tokens > self._options.min_tokens)
            if matched is not None:
                self._emit(text, update)
                self._close(ChoiceFinish(FinishReason.STOP, matched), update)
                return
        self._emit(text, update)

    def _emit(self, text: str, update: ChoiceUpdate) -> None:
        if not text:
            return
        if self._parser is None:
            self._add(update, [ContentDelta(text)])
        else:
            self._add(update, self._parser.feed(text))

    def _add(self, update: ChoiceUpdate, events: list[ParserEvent]) -> None:
        if isinstance(update.events, list):
            update.events.extend(events)  # the first list was made for this update: it is not shared
        else:
            update.events = events

    def _finish(self, output: GenerationOutput, reason: FinishReason, update: ChoiceUpdate) -> None:
        if not self.finished:
            if self._stops is not None:
                self._emit(self._stops.finish(), update)
            self._close(ChoiceFinish(reason, self._stop_reason(output, reason)), update)
        update.kv_transfer_params = output.kv_transfer_params

    def _stop_reason(self, output: GenerationOutput, reason: FinishReason) -> int | str | None:
        """The client's own stop token, also where the engine does not say (TokenSpeed); never an EOS id."""
        stop_reason = output.stop_reason
        if isinstance(stop_reason, str) or reason is not FinishReason.STOP:
            return stop_reason
        last = stop_reason if stop_reason is not None else (output.token_ids[-1] if output.token_ids else None)
        return last if last in self._options.stop_token_ids else None

    def _close(self, finish: ChoiceFinish, update: ChoiceUpdate) -> None:
        if self._parser is not None:
            self._add(update, self._parser.finish())
        update.finish = finish
        self.finish_reason = finish.reason
        self.finished = True

    def _take_logprobs(self, output: GenerationOutput, update: ChoiceUpdate) -> None:
        if self._logprobs is not None and output.logprobs:
            entries: list[TokenLogprob] = self._logprobs.translate(output.logprobs)
            update.logprobs = [*update.logprobs, *entries] if update.logprobs else entries
        positions = self._prompt_positions
        if positions is not None:
            positions.extend(output.prompt_logprobs or ())
            if output.token_ids or output.finish_reason is not None:
                top = self._options.prompt_logprobs
                assert top is not None, "positions are gathered only if asked"
                update.prompt_logprobs = translate_prompt(self._tokenizer, positions, top)
                self._prompt_positions = None
