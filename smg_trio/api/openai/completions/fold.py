"""Completions in one piece: the same updates as a stream, folded into one body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.answer import finish_value, prompt_logprobs_value, usage_value
from smg_trio.api.openai.completions.pieces import ChoicePieces, CompletionAnswer, Logprobs

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, Usage


class _Choice:
    """One choice as far as it has come."""

    __slots__ = ("finish", "logprobs", "pieces", "prompt_logprobs", "text", "token_ids")

    def __init__(self, answer: CompletionAnswer, index: int) -> None:
        self.pieces = ChoicePieces(answer, index)
        self.text: list[str] = []
        self.logprobs = None if answer.logprobs is None else Logprobs()
        self.token_ids: list[int] = []
        self.finish: ChoiceFinish | None = None
        self.prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None


class CompletionFold:
    """Gathers the updates of an answer, then writes its body."""

    __slots__ = ("_answer", "_choices", "_kv_transfer_params")

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        total = answer.n * len(answer.prompts)
        self._choices = [_Choice(answer, index) for index in range(total)]
        self._kv_transfer_params: dict[str, object] | None = None

    def feed(self, update: ChoiceUpdate) -> None:
        """Add one update."""
        choice = self._choices[update.choice]
        piece = choice.pieces.piece(update)
        choice.text.append(piece.text)
        if choice.logprobs is not None and piece.logprobs is not None:
            choice.logprobs.extend(piece.logprobs)
        choice.token_ids.extend(update.token_ids)
        choice.finish = update.finish or choice.finish
        if update.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs_value(update.prompt_logprobs)
        if update.kv_transfer_params is not None:
            self._kv_transfer_params = update.kv_transfer_params

    def body(self, usage: Usage) -> bytes:
        """The whole answer as JSON. A choice that never finished says ``finish_reason: null``."""
        answer = self._answer
        value = {
            "id": answer.response_id,
            "object": "text_completion",
            "created": answer.created,
            "model": answer.model,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "service_tier": None,
            "system_fingerprint": answer.system_fingerprint,
            "usage": usage_value(usage),
            "kv_transfer_params": self._kv_transfer_params,
        }
        return encode_text(dump(value))

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        shows_ids = self._answer.return_token_ids
        return {
            "index": index,
            "text": "".join(choice.text),
            "logprobs": None if choice.logprobs is None else choice.logprobs.value(),
            **finish_value(choice.finish),
            "token_ids": choice.token_ids if shows_ids else None,
            "prompt_logprobs": choice.prompt_logprobs,
            "prompt_token_ids": list(choice.pieces.prompt.token_ids) if shows_ids else None,
        }
