"""Tokenizing over HTTP, in two dialects.

``/tokenize`` and ``/detokenize`` are vLLM's: a prompt or a conversation, one at a time.
``/v1/tokenize`` and ``/v1/detokenize`` are the Rust gateways': texts only, one or many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smg_trio.api.errors import load_json
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.chat.messages import Message, parse_messages
from smg_trio.api.openai.chat.request import check_template, settle_generation_prompt
from smg_trio.api.openai.chat.tools import Tool, parse_tools
from smg_trio.api.parameters.fields import (
    Reader,
    array,
    array_of,
    boolean,
    describe,
    mapping,
    read_fields,
    refuse,
    string,
    token_id,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    """What to tokenize: exactly one of ``prompt`` and ``messages`` is set.

    Attributes:
        add_special_tokens: True by default for a prompt, False for a conversation (its template adds them).
        return_token_strs: whether the tokens' texts are wanted too.
    """

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    tools: list[Tool] = field(default_factory=list)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetokenizeRequest:
    """Token ids to be made text: one list, or several if ``is_batch``; ids may be out of vocabulary."""

    model: str
    batch: list[list[int]]
    is_batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeTextsRequest:
    """``/v1/tokenize``: one text, or several if ``is_batch``."""

    model: str
    texts: list[str]
    is_batch: bool = False


def parse_tokenize_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> TokenizeRequest:
    """Read a ``/tokenize`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    found = read_fields(obj, READERS)
    if (found.get("prompt") is None) == (obj.get("messages") is None):
        raise refuse("prompt", "exactly one of 'prompt' and 'messages' is required")
    if "prompt" in found:
        return TokenizeRequest(**found)
    found.setdefault("add_special_tokens", False)
    settle_generation_prompt(found)
    check_template(found, limits)
    messages = parse_messages(obj["messages"])
    return TokenizeRequest(messages=messages, tools=parse_tools(obj.get("tools")), **found)


def tokenize_body(token_ids: Sequence[int], max_model_len: int, token_strs: Sequence[str] | None = None) -> bytes:
    """The answer of ``/tokenize``."""
    strings = "null" if token_strs is None else _long_array(token_strs)
    tokens = _long_array(token_ids)
    text = f'{{"count":{len(token_ids)},"max_model_len":{max_model_len},"tokens":{tokens},"token_strs":{strings}}}'
    return encode_text(text)


def _long_array(values: Sequence[Any]) -> str:
    """JSON of any number of values, made piece by piece, so that other threads get their turn."""
    pieces = (values[start : start + _DUMPED_AT_ONCE] for start in range(0, len(values), _DUMPED_AT_ONCE))
    return f"[{','.join(dump(list(piece))[1:-1] for piece in pieces)}]"


def tokenizer_info_body(
    special_tokens: Mapping[str, str], max_model_len: int | None, chat_template: str | None
) -> bytes:
    """The answer of ``/tokenizer_info``; `special_tokens` by name (``eos_token``, ...), absent ones become null."""
    value: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_model_len}
    value |= dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token")) | {**special_tokens}
    if chat_template is not None:
        value["chat_template"] = chat_template
    return encode_text(dump(value))


def parse_detokenize_request(body: bytes) -> DetokenizeRequest:
    """Read a ``/detokenize`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    return DetokenizeRequest(model=_model(obj), batch=[_ids(_tokens(obj), "tokens")])


def detokenize_body(text: str) -> bytes:
    """The answer of ``/detokenize``."""
    return encode_text(dump({"prompt": text}))


def parse_tokenize_texts_request(body: bytes) -> TokenizeTextsRequest:
    """Read a ``/v1/tokenize`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    prompt = obj.get("prompt")
    if isinstance(prompt, str):
        return TokenizeTextsRequest(model=_model(obj), texts=[prompt])
    if not isinstance(prompt, list) or not prompt:
        raise refuse("prompt", f"expected a string or an array of strings, got {describe(prompt)}")
    texts = array_of(string, maximum=DEFAULT_LIMITS.max_prompts)(prompt, "prompt")
    return TokenizeTextsRequest(model=_model(obj), texts=texts, is_batch=True)


def tokenize_texts_body(request: TokenizeTextsRequest, token_ids: Sequence[Sequence[int]]) -> bytes:
    """The answer of ``/v1/tokenize``; each field is a list if the request was a batch.

    Args:
        request: the request.
        token_ids: one int[T] per text.
    """
    columns: dict[str, list[Any]] = {
        "tokens": [list(ids) for ids in token_ids],
        "count": [len(ids) for ids in token_ids],
        "char_count": [len(text) for text in request.texts],
    }
    if request.is_batch:
        return encode_text(dump(columns))
    return encode_text(dump({name: column[0] for name, column in columns.items()}))


def parse_detokenize_batch_request(body: bytes) -> DetokenizeRequest:
    """Read a ``/v1/detokenize`` body.

    Raises:
        InvalidRequest: naming the parameter.
    """
    obj = load_json(body)
    tokens = _tokens(obj)
    if tokens and isinstance(tokens[0], list):
        batch = array_of(_ids)(tokens, "tokens")
        return DetokenizeRequest(model=_model(obj), batch=batch, is_batch=True)
    return DetokenizeRequest(model=_model(obj), batch=[_ids(tokens, "tokens")])


def detokenize_batch_body(request: DetokenizeRequest, texts: Sequence[str]) -> bytes:
    """The answer of ``/v1/detokenize``: one text, or a list if the request was a batch."""
    return encode_text(dump({"text": list(texts) if request.is_batch else texts[0]}))


def _model(obj: Mapping[str, Any]) -> str:
    model = obj.get("model")
    return "" if model is None else string(model, "model")


def _tokens(obj: Mapping[str, Any]) -> list[Any]:
    if obj.get("tokens") is None:
        raise refuse("tokens", "is required")
    return array(obj["tokens"], "tokens")


_ids = array_of(token_id)
_DUMPED_AT_ONCE = 32_768

READERS: dict[str, Reader] = {
    "model": string,
    "prompt": string,
    "add_special_tokens": boolean,
    "return_token_strs": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "chat_template": string,
    "chat_template_kwargs": mapping,
}
