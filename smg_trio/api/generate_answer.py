"""Answers of ``/generate``, streamed and folded.

A whole answer is a list with one entry per prompt and choice. A stream has one event per update of a choice; its
``text`` is all text so far, its ``output_ids`` and log probabilities are only the new tokens' (as in the Rust
gateways' streams), and the last event of a choice holds its finish reason. ``[DONE]`` ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.answer import shown_logprob
from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, ContentDelta, TokenLogprob, Usage
from smg_trio.core.outputs import FinishReason

WEIGHT_VERSION = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateAnswer:
    """What is the same in every piece of an answer.

    Attributes:
        response_id: the client's ``rid``, or made.
        prompts: int[T] per prompt.
        n: choices per prompt; choice ``c`` answers prompt ``c // n``.
        return_logprob: show log probabilities.
        top_logprobs: candidates shown beside each token; -1 = all there are.
        input_logprobs, logprob_start: whether and from which position on the prompt's are shown.
        elapsed_s: seconds since the request began.
    """

    response_id: str
    prompts: Sequence[Sequence[int]]
    n: int = 1
    return_logprob: bool = False
    top_logprobs: int = 0
    input_logprobs: bool = False
    logprob_start: int = 0
    elapsed_s: Callable[[], float]


class _Choice:
    """One choice: the step that both forms share."""

    __slots__ = ("_answer", "finish", "index", "kv_transfer_params", "prompt", "text", "tokens")

    def __init__(self, answer: GenerateAnswer, index: int) -> None:
        self._answer = answer
        self.index = index
        self.prompt = answer.prompts[index // answer.n]
        self.text = ""
        self.tokens = 0
        self.finish: ChoiceFinish | None = None
        self.kv_transfer_params: dict[str, object] | None = None

    def take(self, update: ChoiceUpdate) -> dict[str, Any]:
        """The log probabilities that an update adds, as members of ``meta_info``."""
        self.text += "".join([event.text for event in update.events if isinstance(event, ContentDelta)])
        self.tokens += len(update.token_ids)
        self.finish = update.finish or self.finish
        self.kv_transfer_params = update.kv_transfer_params or self.kv_transfer_params
        answer = self._answer
        if not answer.return_logprob:
            return {}
        shown = _columns("output", update.logprobs or (), answer.top_logprobs)
        if answer.input_logprobs and update.prompt_logprobs is not None:
            entries = update.prompt_logprobs[answer.logprob_start :]
            shown |= _columns("input", entries, answer.top_logprobs, self.prompt[answer.logprob_start :])
        return shown

    def entry(self, output_ids: Sequence[int], logprobs: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
        """The choice as JSON."""
        meta = {
            "id": self._answer.response_id,
            "finish_reason": None if self.finish is None else _finish_reason(self.finish, self.tokens),
            "prompt_tokens": len(self.prompt),
            "weight_version": WEIGHT_VERSION,
            "completion_tokens": self.tokens,
            "cached_tokens": 0 if usage is None else usage.cached_tokens or 0,
            "reasoning_tokens": 0 if usage is None else usage.reasoning_tokens or 0,
            **logprobs,
        }
        if self.finish is not None:
            meta["e2e_latency"] = self._answer.elapsed_s()
            if self.finish.stop_reason is not None:
                meta["matched_stop"] = self.finish.stop_reason
        if self.kv_transfer_params is not None:
            meta["kv_transfer_params"] = self.kv_transfer_params
        return {"text": self.text, "output_ids": list(output_ids), "meta_info": meta}


class GenerateEventWriter:
    """Writes the events of one streamed answer; every method returns whole events."""

    __slots__ = ("_choices",)

    def __init__(self, answer: GenerateAnswer) -> None:
        self._choices = _choices(answer)

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """The event of one update; ``usage`` says what the prefix cache supplied. May be empty."""
        choice = self._choices[update.choice]
        logprobs = choice.take(update)
        if not update.token_ids and not update.events and update.finish is None:
            return b""
        entry = {**choice.entry(update.token_ids, logprobs, usage), "index": choice.index}
        return encode_text(f"data: {dump(entry)}\n\n")

    def usage_chunk(self, usage: Usage) -> bytes:
        """Nothing: every event has its counts."""
        return b""


class GenerateFold:
    """Gathers the updates of an answer, then writes its body."""

    __slots__ = ("_choices", "_ids", "_logprobs")

    def __init__(self, answer: GenerateAnswer) -> None:
        self._choices = _choices(answer)
        self._ids: list[list[int]] = [[] for _ in self._choices]
        self._logprobs: list[dict[str, list[Any]]] = [{} for _ in self._choices]

    def feed(self, update: ChoiceUpdate) -> None:
        """Add one update."""
        self._ids[update.choice].extend(update.token_ids)
        gathered = self._logprobs[update.choice]
        for name, column in self._choices[update.choice].take(update).items():
            gathered.setdefault(name, []).extend(column)

    def body(self, usage: Usage) -> bytes:
        """The whole answer as JSON: a list, also for one prompt."""
        entries = [
            choice.entry(ids, logprobs, usage)
            for choice, ids, logprobs in zip(self._choices, self._ids, self._logprobs, strict=True)
        ]
        return encode_text(dump(entries))


def _choices(answer: GenerateAnswer) -> list[_Choice]:
    return [_Choice(answer, index) for index in range(answer.n * len(answer.prompts))]


def _finish_reason(finish: ChoiceFinish, tokens: int) -> dict[str, Any]:
    if finish.reason is FinishReason.LENGTH:
        return {"type": "length", "length": tokens}
    if finish.reason in (FinishReason.STOP, FinishReason.REPETITION):
        return {"type": "stop"} if finish.stop_reason is None else {"type": "stop", "matched": finish.stop_reason}
    return {"type": "abort"}


def _columns(
    side: str, entries: Sequence[TokenLogprob | None], top: int, token_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """SGLang's columns: ``[logprob, token id, text]`` per token, and the same for its rivals.

    A prompt's first token has no log probability: it is null, as its rivals are.
    """
    tokens = [
        [None, token_ids[index], None] if entry is None else _triple(entry) for index, entry in enumerate(entries)
    ]
    columns: dict[str, Any] = {f"{side}_token_logprobs": tokens}
    if top:
        count = None if top < 0 else top
        columns[f"{side}_top_logprobs"] = [
            None if entry is None else [_triple(rival) for rival in entry.top[:count]] for entry in entries
        ]
    return columns


def _triple(entry: TokenLogprob) -> list[Any]:
    return [shown_logprob(entry.logprob), entry.token_id, entry.token]
