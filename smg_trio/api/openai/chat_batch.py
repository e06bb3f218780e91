"""``POST /v1/chat/completions/batch`` (vLLM 0.32, ``BatchChatCompletionRequest``): many conversations, one answer each.

All fields but ``messages`` are the chat API's and hold for every conversation. Streams, tools, beam search and several
choices are refused, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from smg_trio.api.errors import load_json
from smg_trio.api.openai.chat.messages import Message, parse_messages
from smg_trio.api.openai.chat.request import ChatRequest, chat_request_from
from smg_trio.api.parameters.fields import array, boolean, refuse, take
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits


def parse_chat_batch_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> list[ChatRequest]:
    """Read and validate a batch: a chat request for each conversation, in order.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: see `chat.parse_chat_request`.
    """
    obj = load_json(body)
    conversations = _conversations(obj.get("messages"), limits)
    if take(obj, "stream", boolean):
        raise refuse("stream", "a batch cannot be streamed")
    for name in ("tools", "tool_choice"):
        if obj.get(name) not in (None, [], "none"):
            raise refuse(name, "a batch takes no tools")
    first = chat_request_from(_shared(obj) | {"messages": conversations[0]}, limits)
    if first.n != 1:
        raise refuse("n", "a batch has one choice per conversation")
    return [replace(first, messages=messages) for messages in conversations]


def _conversations(value: Any, limits: RequestLimits) -> list[list[Message]]:
    if value is None:
        raise refuse("messages", "is required")
    listed = array(value, "messages")
    if not 0 < len(listed) <= limits.max_prompts:
        raise refuse("messages", f"must be 1 to {limits.max_prompts} conversations, got {len(listed)}")
    return [parse_messages(messages, f"messages[{index}]") for index, messages in enumerate(listed)]


def _shared(obj: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in obj.items() if name not in ("messages", "tools", "tool_choice")}
