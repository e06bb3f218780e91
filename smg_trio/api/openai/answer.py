"""The small JSON pieces that OpenAI-style answers share.

The pieces are written by hand: an encoder for whole objects costs ten times as much per token as joining
prepared text around one escaped string.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring as quote
from typing import TYPE_CHECKING, Any

from smg_trio.api.json_text import dump
from smg_trio.core.outputs import FinishReason

if TYPE_CHECKING:
    from smg_trio.core.events import ChoiceFinish, TokenLogprob, Usage

MIN_LOGPROB = -9999.0
"""What -inf is shown as, since JSON has no infinities (vLLM's number)."""

_LARGEST_LOGPROB = 1e9


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
