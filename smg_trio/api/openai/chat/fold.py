"""Chat answers in one piece: the same updates as a stream, folded into one body.

The fold goes through the same `ChatEvents` as the stream, so text, reasoning, calls, finish reason and
log probabilities cannot differ from what the stream would have said.
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from smg_trio.api.chat_events import CallStart, ChatEvents, Delta
from smg_trio.api.json_text import dump, dump_or_null, encode_text
from smg_trio.api.openai.answer import finish_members, logprob_entries, prompt_logprobs_value, usage_text
from smg_trio.core.events import ChoiceFinish, ChoiceUpdate, ContentDelta, ReasoningDelta, Usage

if TYPE_CHECKING:
    from smg_trio.api.chat_answer import ChatAnswer


class _Choice:
    """One choice as far as it has come."""

    __slots__ = ("arguments", "calls", "content", "events", "finish", "logprobs", "reasoning", "token_ids")

    def __init__(self, answer: ChatAnswer, echo: str) -> None:
        self.events = ChatEvents(answer)
        self.content = [echo] if echo else []
        self.reasoning: list[str] = []
        self.calls: dict[int, CallStart] = {}
        self.arguments: dict[int, list[str]] = {}
        self.logprobs: list[str] | None = None
        self.token_ids: list[int] = []
        self.finish: ChoiceFinish | None = None

    def add(self, delta: Delta) -> None:
        if isinstance(delta, ContentDelta):
            self.content.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self.reasoning.append(delta.text)
        elif isinstance(delta, CallStart):
            self.calls[delta.index] = delta
        else:
            self.arguments.setdefault(delta.index, []).append(delta.delta)

    def tool_calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": "".join(self.arguments.get(index, ()))},
            }
            for index, call in sorted(self.calls.items())
        ]


class ChatFold:
    """Gathers the updates of an answer, then writes its body."""

    __slots__ = ("_answer", "_choices", "_kv_transfer_params", "_prompt_logprobs")

    def __init__(self, answer: ChatAnswer, *, n: int = 1, echoes: Sequence[str] = ()) -> None:
        """`echoes`: what each choice's content begins with, where choices are of different conversations."""
        self._answer = answer
        self._choices = [_Choice(answer, echo) for echo in echoes or [answer.echo] * n]
        self._prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None = None
        self._kv_transfer_params: dict[str, object] | None = None

    def feed(self, update: ChoiceUpdate) -> None:
        """Add one update, in the order in which the stream would have shown it."""
        choice = self._choices[update.choice]
        for delta in choice.events.deltas(update.events):
            choice.add(delta)
        if self._answer.show_reasoning:
            self._feed_tokens(choice, update)
        if update.finish is not None:
            choice.finish = update.finish
        if update.prompt_logprobs is not None and self._prompt_logprobs is None:
            self._prompt_logprobs = prompt_logprobs_value(update.prompt_logprobs)
        if update.kv_transfer_params is not None:
            self._kv_transfer_params = update.kv_transfer_params

    def _feed_tokens(self, choice: _Choice, update: ChoiceUpdate) -> None:
        answer = self._answer
        if answer.return_token_ids:
            choice.token_ids.extend(update.token_ids)
        if update.logprobs is None:
            return
        if choice.logprobs is None:
            choice.logprobs = []
        if entries := logprob_entries(update.logprobs, answer.top_logprobs, answer.tokens_as_ids):
            choice.logprobs.append(entries)

    def body(self, usage: Usage) -> bytes:
        """The whole answer as JSON. A choice that never finished says ``finish_reason: null``."""
        answer = self._answer
        choices = ",".join([self._choice(index, choice) for index, choice in enumerate(self._choices)])
        ids = list(answer.prompt_token_ids) or None if answer.return_token_ids else None
        shown_text = "" if answer.prompt_text is None else f',"prompt_text":{quote(answer.prompt_text)}'
        return encode_text(
            f'{{"id":{quote(answer.response_id)},"object":"chat.completion","created":{answer.created},'
            f'"model":{quote(answer.model)},"choices":[{choices}],"service_tier":null,'
            f'"system_fingerprint":{dump_or_null(answer.system_fingerprint)},"usage":{usage_text(usage)},'
            f'"prompt_logprobs":{dump_or_null(self._prompt_logprobs)},"prompt_token_ids":{dump_or_null(ids)},'
            f'"kv_transfer_params":{dump_or_null(self._kv_transfer_params)}{shown_text}}}'
        )

    def _choice(self, index: int, choice: _Choice) -> str:
        """One choice as JSON text; log probabilities are text already, there can be very many."""
        logprobs = "null" if choice.logprobs is None else f'{{"content":[{",".join(choice.logprobs)}]}}'
        finish = finish_members(choice.finish, called=choice.events.ends_in_call(choice.finish))
        ids = dump_or_null(choice.token_ids if self._shows_ids else None)
        message = self._message(choice)
        return f'{{"index":{index},"message":{message},"logprobs":{logprobs},{finish},"token_ids":{ids}}}'

    @property
    def _shows_ids(self) -> bool:
        return self._answer.return_token_ids and self._answer.show_reasoning

    def _message(self, choice: _Choice) -> str:
        calls = choice.tool_calls() if choice.calls else None
        content, reasoning = "".join(choice.content), "".join(choice.reasoning)
        shown = "null" if not content and (calls or reasoning) else quote(content)
        thinking = quote(reasoning) if reasoning else "null"
        called = f',"tool_calls":{dump(calls)}' if calls else ""
        return (
            f'{{"role":{quote(self._answer.role)},"content":{shown},"refusal":null,"annotations":null,"audio":null,'
            f'"function_call":null,"reasoning":{thinking},"reasoning_content":{thinking}{called}}}'
        )
