"""Chat answers, streamed: `ChoiceUpdate` to the bytes of SSE events.

Order of events, as vLLM's: per choice a head with the role; then deltas; then one chunk with the finish
reason; then, if asked, one chunk with ``usage`` and no choices; then ``[DONE]``. An update's log
probabilities and token ids ride on its first chunk; if it has none, on a chunk with an empty delta, so
that none are lost while text is held back.

Reasoning is shown under both names that clients look for: ``reasoning`` (vLLM >= 0.12) and
``reasoning_content`` (older vLLM, Rust gateways).
"""

from __future__ import annotations

from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING

from smg_trio.api.chat_events import CallStart, ChatEvents, Delta
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.answer import finish_members, logprob_entries, usage_field
from smg_trio.core.events import ChoiceUpdate, ContentDelta, ReasoningDelta, TokenLogprob, Usage

if TYPE_CHECKING:
    from smg_trio.api.chat_answer import ChatAnswer

_NO_FINISH = ',"finish_reason":null'
_PLAIN_END = '},"logprobs":null,"finish_reason":null}]}\n\n'


class ChatChunkWriter:
    """Writes the events of one streamed chat answer.

    Every method returns whole events, ready to send. One text-only update costs one escape, one
    concatenation and one encode; everything around the text is prepared once per choice.
    """

    __slots__ = ("_answer", "_events", "_prefix", "_shows_ids", "_starts")

    def __init__(self, answer: ChatAnswer, *, n: int = 1) -> None:
        self._answer = answer
        self._prefix = (
            f'data: {{"id":{quote(answer.response_id)},"object":"chat.completion.chunk",'
            f'"created":{answer.created},"model":{quote(answer.model)},'
        )
        if answer.system_fingerprint is not None:
            self._prefix += f'"system_fingerprint":{quote(answer.system_fingerprint)},'
        self._prefix += '"choices":['
        self._starts = [f'{self._prefix}{{"index":{choice},"delta":{{' for choice in range(n)]
        self._events = [ChatEvents(answer) for _ in range(n)]
        self._shows_ids = answer.return_token_ids and answer.show_reasoning

    def head(self, choice: int, usage: Usage | None = None) -> bytes:
        """What opens a choice: its role, the prompt's ids if asked, and the echoed text if any."""
        answer = self._answer
        tail = usage_field(usage)
        if answer.return_token_ids:
            tail += f',"prompt_token_ids":{dump(list(answer.prompt_token_ids))}'
        if answer.prompt_text is not None:
            tail += f',"prompt_text":{quote(answer.prompt_text)}'
        text = self._chunk(choice, f'"role":{quote(answer.role)},"content":""', "", _NO_FINISH, tail)
        if answer.echo:
            text += self._chunk(choice, f'"content":{quote(answer.echo)}', "", _NO_FINISH, usage_field(usage))
        return encode_text(text)

    def update(self, update: ChoiceUpdate, usage: Usage | None = None) -> bytes:
        """All events of one update; ``usage`` only with ``continuous_usage_stats``. May be empty."""
        events, answer = update.events, self._answer
        if len(events) == 1 and usage is None and update.finish is None and not self._shows_ids:
            delta, end = events[0], _PLAIN_END
            if update.logprobs is not None and answer.show_reasoning:
                end = self._end_with(update.logprobs)
            if type(delta) is ContentDelta:
                return encode_text(f'{self._starts[update.choice]}"content":{quote(delta.text)}{end}')
            if type(delta) is ReasoningDelta and answer.show_reasoning:
                return encode_text(f"{self._starts[update.choice]}{_reasoning(delta.text)}{end}")
        return self._full_update(update, usage)

    def _full_update(self, update: ChoiceUpdate, usage: Usage | None) -> bytes:
        state = self._events[update.choice]
        bodies = [_delta_body(delta) for delta in state.deltas(update.events)]
        extras, has_extras = self._extras(update)
        if not bodies and has_extras and update.finish is None:
            bodies.append("")
        tail = usage_field(usage)
        pieces = []
        for body in bodies:
            pieces.append(self._chunk(update.choice, body, extras, _NO_FINISH, tail))
            extras = ""
        if update.finish is not None:
            called = state.ends_in_call(update.finish)
            finish = "," + finish_members(update.finish, called=called)
            pieces.append(self._chunk(update.choice, "", extras, finish, tail))
        return encode_text("".join(pieces))

    @property
    def writes_plain_text(self) -> bool:
        """Whether `text` says all that `update` would."""
        return not self._shows_ids

    def text(self, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        """Content of choice 0, if any, and its log probabilities: what `update` writes for them, at half the cost."""
        if not logprobs or not self._answer.show_reasoning:
            return encode_text(f'{self._starts[0]}"content":{quote(text)}{_PLAIN_END}') if text else b""
        content = f'"content":{quote(text)}' if text else ""
        return encode_text(f"{self._starts[0]}{content}{self._end_with(logprobs)}")

    def _end_with(self, logprobs: Sequence[TokenLogprob]) -> str:
        """The end of a chunk of an answer that goes on."""
        entries = logprob_entries(logprobs, self._answer.top_logprobs, self._answer.tokens_as_ids)
        return f'}},"logprobs":{{"content":[{entries}]}},"finish_reason":null}}]}}\n\n'

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk after the last choice: no choices, only ``usage``."""
        return encode_text(f"{self._prefix}]{usage_field(usage)}}}\n\n")

    def _chunk(self, choice: int, delta: str, extras: str, finish: str, tail: str) -> str:
        """One event: ``extras`` start with the logprobs field, or are "" for none."""
        shown = extras or ',"logprobs":null'
        return f'{self._prefix}{{"index":{choice},"delta":{{{delta}}}{shown}{finish}}}]{tail}}}\n\n'

    def _extras(self, update: ChoiceUpdate) -> tuple[str, bool]:
        """The fields beside the delta, and whether any of them must not be lost."""
        answer = self._answer
        if not answer.show_reasoning:
            return "", False
        shown, must_show = ',"logprobs":null', False
        if update.logprobs is not None:
            entries = logprob_entries(update.logprobs, answer.top_logprobs, answer.tokens_as_ids)
            shown, must_show = f',"logprobs":{{"content":[{entries}]}}', bool(entries)
        if self._shows_ids:
            shown += f',"token_ids":{dump(list(update.token_ids))}'
            must_show = must_show or bool(update.token_ids)
        return shown, must_show


def _delta_body(delta: Delta) -> str:
    """The inside of a ``delta`` object."""
    if isinstance(delta, ContentDelta):
        return f'"content":{quote(delta.text)}'
    if isinstance(delta, ReasoningDelta):
        return _reasoning(delta.text)
    if isinstance(delta, CallStart):
        return (
            f'"tool_calls":[{{"index":{delta.index},"id":{quote(delta.call_id)},"type":"function",'
            f'"function":{{"name":{quote(delta.name)},"arguments":""}}}}]'
        )
    return f'"tool_calls":[{{"index":{delta.index},"function":{{"arguments":{quote(delta.delta)}}}}}]'


def _reasoning(text: str) -> str:
    quoted = quote(text)
    return f'"reasoning":{quoted},"reasoning_content":{quoted}'
