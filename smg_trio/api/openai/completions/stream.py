"""Completions, streamed: `ChoiceUpdate` to the bytes of SSE events; one chunk per update, as vLLM's."""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring as quote

from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.answer import finish_value, usage_field
from smg_trio.api.openai.completions.pieces import ChoicePieces, CompletionAnswer, Piece
from smg_trio.core.events import ChoiceUpdate, ContentDelta, TokenLogprob, Usage

_PLAIN_END = ',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'


class CompletionChunkWriter:
    """Writes the events of one streamed completions answer; every method returns whole events."""

    __slots__ = ("_answer", "_fast", "_pieces", "_prefix", "_starts")

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._prefix = (
            f'data: {{"id":{quote(answer.response_id)},"object":"text_completion",'
            f'"created":{answer.created},"model":{quote(answer.model)},'
        )
        if answer.system_fingerprint is not None:
            self._prefix += f'"system_fingerprint":{quote(answer.system_fingerprint)},'
        self._prefix += '"choices":['
        total = answer.n * len(answer.prompts)
        self._starts = [f'{self._prefix}{{"index":{choice},"text":' for choice in range(total)]
        self._pieces = [ChoicePieces(answer, choice) for choice in range(total)]
        self._fast = answer.logprobs is None and not answer.return_token_ids

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """The chunk of one update; ``usage`` only with ``continuous_usage_stats``. May be empty."""
        events = update.events
        pieces = self._pieces[update.choice]
        if (
            self._fast
            and pieces.started
            and len(events) == 1
            and usage is None
            and update.finish is None
            and type(events[0]) is ContentDelta
        ):
            return encode_text(f"{self._starts[update.choice]}{quote(events[0].text)}{_PLAIN_END}")
        return self._full_update(update, pieces, usage)

    @property
    def writes_plain_text(self) -> bool:
        """Whether `text` says all that `update` would."""
        return self._fast

    def text(self, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        """A piece of text of choice 0 and nothing else: what `update` writes for it. There are no log probabilities."""
        if not text:
            return b""
        if not self._pieces[0].started:
            return self.update(ChoiceUpdate(0, [ContentDelta(text)]))
        return encode_text(f"{self._starts[0]}{quote(text)}{_PLAIN_END}")

    def _full_update(self, update: ChoiceUpdate, pieces: ChoicePieces, usage: Usage | None) -> bytes:
        piece = pieces.piece(update)
        if not self._has_news(update, piece):
            return b""
        logprobs = None if piece.logprobs is None else piece.logprobs.value()
        fields = {"logprobs": logprobs, **finish_value(update.finish)}
        if self._answer.return_token_ids:
            if piece.is_first:
                fields["prompt_token_ids"] = list(pieces.prompt.token_ids)
            fields["token_ids"] = list(update.token_ids)
        start = f"{self._starts[update.choice]}{quote(piece.text)}"
        return encode_text(f"{start},{dump(fields)[1:]}]{usage_field(usage)}}}\n\n")

    def _has_news(self, update: ChoiceUpdate, piece: Piece) -> bool:
        if piece.text or update.finish is not None:
            return True
        if piece.logprobs is not None and piece.logprobs.tokens:
            return True
        return self._answer.return_token_ids and (piece.is_first or bool(update.token_ids))

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk after the last choice: no choices, only ``usage``."""
        return encode_text(f"{self._prefix}]{usage_field(usage)}}}\n\n")
