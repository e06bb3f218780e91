"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: body to `MessagesRequest`.

Fields are Anthropic's; beside them those of vLLM (``chat_template_kwargs``, ``cache_salt``, ...) and every sampling
field that the chat API has. Unknown fields are ignored, among them ``service_tier``,
``cache_control`` (prefixes are cached anyway), ``container`` and ``metadata`` but for its ``user_id``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smg_trio.api.anthropic.content import Conversation, parse_system, parse_turns
from smg_trio.api.anthropic.tools import offered_tools, parse_choice, parse_tools
from smg_trio.api.errors import load_json
from smg_trio.api.json_text import dump, encode_text
from smg_trio.api.openai.chat.request import ChatRequest, check_template
from smg_trio.api.parameters.constraints import read_schema
from smg_trio.api.parameters.fields import (
    Reader,
    array_of,
    boolean,
    filled_string,
    integer,
    mapping,
    one_of,
    read_fields,
    refuse,
    string,
    take,
    within,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import SamplingFields, parse_sampling
from smg_trio.core.requests import StructuredOutput

if TYPE_CHECKING:
    from smg_trio.api.openai.chat.messages import Message

MIN_THINKING_BUDGET = 1024
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest:
    """A validated Messages request.

    Attributes:
        chat: the same request in chat terms; all of the pipeline works on it. A last assistant turn (prefill)
            is continued. ``stop_sequences`` are its ``sampling.stop``.
        show_thinking: False leaves the text of reasoning out (``thinking.display`` is ``omitted``).
        user_id: ``metadata.user_id``, an opaque word of the client's.
    """

    chat: ChatRequest
    show_thinking: bool = True
    user_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thinking:
    """``thinking`` in chat terms."""

    effort: str | None = None
    budget: int | None = None
    template_kwargs: Mapping[str, Any] | None = None
    shown: bool = True


def parse_messages_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> MessagesRequest:
    """Read and validate a Messages body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for media other than images, tools that only Anthropic's models know, and beam search.
    """
    obj = load_json(body)
    if obj.get("max_tokens") is None:
        raise refuse("max_tokens", "is required")
    sampling = _sampling(obj, limits)
    thinking = _thinking(obj)
    if thinking.budget is not None:
        if thinking.budget >= (sampling.max_tokens or 0):
            raise refuse("thinking.budget_tokens", "must be less than 'max_tokens'")
        sampling = replace(sampling, thinking_token_budget=thinking.budget)
    metadata = take(obj, "metadata", mapping) or {}
    return MessagesRequest(
        chat=_chat(obj, sampling, thinking, limits),
        show_thinking=thinking.shown,
        user_id=take(metadata, "user_id", string, prefix="metadata."),
    )


def parse_count_tokens_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> ChatRequest:
    """Read a token counting body: the chat whose prompt is to be counted.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for media other than images and tools that only Anthropic's models know.
    """
    obj = load_json(body)
    return _chat(obj, SamplingFields(), _thinking(obj), limits)


def count_tokens_body(input_tokens: int) -> bytes:
    """The answer of ``/v1/messages/count_tokens``."""
    return encode_text(dump({"input_tokens": input_tokens}))


def _chat(obj: Mapping[str, Any], sampling: SamplingFields, thinking: _Thinking, limits: RequestLimits) -> ChatRequest:
    found = read_fields(obj, READERS)
    check_template(found, limits)
    if found.get("model") is None:
        raise refuse("model", "is required")
    conversation = parse_turns(obj.get("messages"))
    messages, is_prefilled = _messages(conversation, obj)
    declared = parse_tools(obj.get("tools"))
    tools = offered_tools(declared, conversation.changes, conversation.named_tools)
    tool_choice, parallel = parse_choice(obj.get("tool_choice"), tools)
    kwargs = {**(thinking.template_kwargs or {}), **found.pop("chat_template_kwargs", {})}
    return ChatRequest(
        messages=messages,
        sampling=sampling,
        tools=tools,
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        add_generation_prompt=not is_prefilled,
        continue_final_message=is_prefilled,
        chat_template_kwargs=kwargs,
        reasoning_effort=thinking.effort or _effort(obj),
        notes=[f"tools of type {kind} run on Anthropic's servers only: not offered" for kind in declared.left_out],
        **found,
    )


def _messages(conversation: Conversation, obj: Mapping[str, Any]) -> tuple[list[Message], bool]:
    """The messages, system prompt first, and whether the last one is to be continued."""
    messages = conversation.messages
    if messages and messages[-1]["role"] == "assistant":
        last = messages[-1]
        if "tool_calls" in last:
            raise refuse("messages", "the last turn's 'tool_use' blocks need their 'tool_result' blocks after them")
        if not last.get("content"):  # an empty last turn is no prefill
            messages.pop()
    if not messages:
        raise refuse("messages", "must hold a message that is not empty")
    is_prefilled = messages[-1]["role"] == "assistant"
    if (system := parse_system(obj.get("system"))) is not None:
        messages.insert(0, {"role": "system", "content": system})
    return messages, is_prefilled


def _sampling(obj: Mapping[str, Any], limits: RequestLimits) -> SamplingFields:
    fields = {name: value for name, value in obj.items() if name != "stop"}
    if (stop := take(obj, "stop_sequences", _stop_sequences(limits))) is not None:
        fields["stop"] = stop
    sampling = parse_sampling(fields, limits, logprobs=None, may_be_empty=True)
    # Agents have to give a number and give that of Anthropic's models, whatever window this one has.
    sampling = replace(sampling, max_tokens_is_bound=True)
    format_ = _output_format(obj)
    if format_ is None:
        return sampling
    if sampling.structured_output is not None:
        raise refuse("output_config.format", "only one structured output constraint is allowed")
    return replace(sampling, structured_output=format_)


def _stop_sequences(limits: RequestLimits) -> Reader:
    return array_of(filled_string, maximum=limits.max_stop_strings)


def _output_config(obj: Mapping[str, Any]) -> dict[str, Any]:
    return take(obj, "output_config", mapping) or {}


def _effort(obj: Mapping[str, Any]) -> str | None:
    return take(_output_config(obj), "effort", one_of(_EFFORTS), prefix="output_config.")


def _output_format(obj: Mapping[str, Any]) -> StructuredOutput | None:
    format_ = take(_output_config(obj), "format", mapping, prefix="output_config.")
    if format_ is None:
        return None
    one_of(("json_schema",))(format_.get("type"), "output_config.format.type")
    if format_.get("schema") is None:
        raise refuse("output_config.format.schema", "is required")
    return StructuredOutput(kind="json", value=read_schema(format_["schema"], "output_config.format.schema"))


def _thinking(obj: Mapping[str, Any]) -> _Thinking:
    thinking = take(obj, "thinking", mapping)
    if thinking is None:
        return _Thinking()
    kind = one_of(_THINKING)(thinking.get("type"), "thinking.type")
    display = take(thinking, "display", one_of(("summarized", "omitted", "updates")), prefix="thinking.")
    shown = display != "omitted"
    if kind == "disabled":
        return _Thinking(effort="none", shown=shown)
    if kind != "enabled":
        return _Thinking(shown=shown)
    budget = take(thinking, "budget_tokens", within(integer, MIN_THINKING_BUDGET), prefix="thinking.")
    if budget is None:
        raise refuse("thinking.budget_tokens", "is required")
    # The two names under which templates know the switch; some of them think only if told to.
    return _Thinking(budget=budget, template_kwargs={"enable_thinking": True, "thinking": True}, shown=shown)


READERS: dict[str, Reader] = {
    "model": filled_string,
    "stream": boolean,
    "chat_template_kwargs": mapping,
}
