"""The constant part of one answer, and the small JSON pieces that every OpenAI-style answer shares.

The pieces are written by hand: an encoder for whole objects costs ten times as much per token as joining
prepared text around one escaped string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quote
from math import isfinite
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from smg_trio.core.outputs import FinishReason
from smg_trio.core.records import record

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceFinish, TokenLogprob, Usage

MIN_LOGPROB = -9999.0
"""What -inf is shown as, since JSON has no infinities (vLLM's number)."""

_LARGEST_LOGPROB = 1e9


def make_tool_call_id() -> str:
    """A new tool call id as OpenAI's look: ``call_`` and 24 hex digits. The room's only randomness."""
    return f"call_{token_hex(12)}"


@record
class ChatAnswer:
    """What is the same in every chunk of a chat answer, and what the request wants shown.

    Attributes:
        response_id: ``chatcmpl-...``.
        model: the name the client asked for.
        created: seconds since the epoch.
        role: of the answering message.
        named_tool: the tool choice named a function; such a call ends in ``stop`` (OpenAI, vLLM).
        parallel_tool_calls: False shows only the first call.
        show_reasoning: False hides thoughts, and token ids and logprobs with them, since these would
            give the thought away.
        top_logprobs: candidates shown per token; -1 = all there are. Logprobs are shown if updates have them.
        tokens_as_ids: show tokens as ``token_id:<n>`` instead of their text.
        return_token_ids: show token ids.
        prompt_token_ids: of the prompt; shown if ``return_token_ids``.
        prompt_text: the rendered prompt, if it is to be shown.
        echo: text the content begins with.
        system_fingerprint: shown if not None.
        make_call_id: makes ids for calls whose format carries none.
    """

    response_id: str
    model: str
    created: int
    role: str = "assistant"
    named_tool: bool = False
    parallel_tool_calls: bool = True
    show_reasoning: bool = True
    top_logprobs: int = 0
    tokens_as_ids: bool = False
    return_token_ids: bool = False
    prompt_token_ids: Sequence[int] = ()
    prompt_text: str | None = None
    echo: str = ""
    system_fingerprint: str | None = None
    make_call_id: Callable[[], str] = make_tool_call_id


def encode_text(text: str) -> bytes:
    """JSON text to UTF-8. A lone surrogate (a model can make one) becomes ``?``: it is no text."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def dump(value: Any) -> str:
    """Any JSON value as text, compact, characters as they are; a float that JSON has no number for is ``null``."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_finite(value))


def _finite(value: Any) -> Any:
    """The value with null for infinities and NaN: an engine, or a client whose words are repeated, may send some."""
    if isinstance(value, dict):
        return {key: _finite(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(member) for member in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def dump_or_null(value: Any) -> str:
    """As `dump`, without a cost for what is nearly always None."""
    return "null" if value is None else dump(value)


def finish_word(finish: ChoiceFinish, *, called: bool = False) -> str:
    """The API's ``finish_reason``.

    A cut answer stays ``length`` even if calls were made. OpenAI has no word for vLLM's ``repetition``,
    and typed clients refuse unknown words, so it is ``stop`` (with the engine's ``stop_reason``).
    """
    if finish.reason in (FinishReason.STOP, FinishReason.REPETITION):
        return "tool_calls" if called and finish.reason is FinishReason.STOP else "stop"
    return finish.reason.value


def finish_value(finish: ChoiceFinish | None, *, called: bool = False) -> dict[str, Any]:
    """The fields that say how a choice ended; ``matched_stop`` is the Rust gateways' ``stop_reason``."""
    if finish is None:
        return {"finish_reason": None, "stop_reason": None}
    value: dict[str, Any] = {
        "finish_reason": finish_word(finish, called=called),
        "stop_reason": finish.stop_reason,
    }
    if finish.stop_reason is not None:
        value["matched_stop"] = finish.stop_reason
    return value


def finish_members(finish: ChoiceFinish | None, *, called: bool = False) -> str:
    """`finish_value` as JSON text, without its braces."""
    if finish is None or finish.stop_reason is not None:
        return dump(finish_value(finish, called=called))[1:-1]
    return f'"finish_reason":"{finish_word(finish, called=called)}","stop_reason":null'


def usage_value(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object; details are there only where they are known."""
    value: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        value["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        value["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return value


def usage_text(usage: Usage) -> str:
    """`usage_value` as JSON text."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    text = f'{{"prompt_tokens":{prompt},"total_tokens":{prompt + completion},"completion_tokens":{completion}'
    if usage.cached_tokens is not None:
        text += f',"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens}}}'
    if usage.reasoning_tokens is not None:
        text += f',"completion_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens}}}'
    return text + "}"


def usage_field(usage: Usage | None) -> str:
    """The ``usage`` member of a chunk as text that follows another member, or nothing."""
    return "" if usage is None else f',"usage":{usage_text(usage)}'


def shown_logprob(logprob: float) -> float:
    """A log probability that JSON can carry."""
    return logprob if MIN_LOGPROB < logprob < _LARGEST_LOGPROB else MIN_LOGPROB


def shown_token(entry: TokenLogprob, as_id: bool) -> str:
    """A token's text, or its placeholder where ids are wanted."""
    return f"token_id:{entry.token_id}" if as_id else entry.token


def logprob_entries(entries: Sequence[TokenLogprob], top: int, as_ids: bool) -> str:
    """The items of a chat ``logprobs.content`` array, without brackets.

    Args:
        entries: one per token.
        top: candidates shown per token; -1 = all there are.
        as_ids: show tokens as ids.
    """
    pieces = []
    for entry in entries:
        # vLLM's order: the token itself, then the others by rank, all together as many as were asked for.
        own, own_id = _logprob(entry, as_ids), entry.token_id
        if not entry.top or not top:
            pieces.append(f'{{{own},"top_logprobs":[]}}')
            continue
        rivals = [rival for rival in entry.top if rival.token_id != own_id]
        if 0 < top <= len(rivals):
            del rivals[top - 1 :]
        others = "".join([f",{{{_logprob(rival, as_ids)}}}" for rival in rivals])
        pieces.append(f'{{{own},"top_logprobs":[{{{own}}}{others}]}}')
    return ",".join(pieces)


def _logprob(entry: TokenLogprob, as_ids: bool) -> str:
    before, after = _quoted(shown_token(entry, True) if as_ids else entry.token, entry.raw)
    logprob = entry.logprob
    if not MIN_LOGPROB < logprob < _LARGEST_LOGPROB:
        logprob = MIN_LOGPROB
    return f"{before}{logprob!r}{after}"


@lru_cache(maxsize=8_192)
def _quoted(token: str, raw: bytes) -> tuple[str, str]:
    """What stands around a token's log probability. The candidates of an answer are mostly the same few thousand."""
    return f'"token":{quote(token)},"logprob":', f',"bytes":[{",".join(map(str, raw))}]'


def prompt_logprobs_value(
    entries: Sequence[TokenLogprob | None] | None,
) -> list[dict[str, dict[str, Any]] | None] | None:
    """vLLM's ``prompt_logprobs``: per position an object of token id -> logprob, the prompt's token first."""
    if entries is None:
        return None
    return [None if entry is None else _prompt_position(entry) for entry in entries]


def _prompt_position(entry: TokenLogprob) -> dict[str, dict[str, Any]]:
    position: dict[str, dict[str, Any]] = {}
    for candidate in (entry, *entry.top):
        position.setdefault(
            str(candidate.token_id),
            {
                "logprob": shown_logprob(candidate.logprob),
                "rank": candidate.rank or None,
                "decoded_token": candidate.token,
            },
        )
    return position
