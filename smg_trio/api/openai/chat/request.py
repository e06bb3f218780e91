"""``POST /v1/chat/completions``: body to `ChatRequest`.

Fields, defaults and refusals are those of vLLM 0.32's ``ChatCompletionRequest``, with OpenAI's
``allowed_tools`` and the Rust gateways' ``rid`` and ``separate_reasoning`` besides. Unknown fields are
ignored; so are ``user``, ``metadata``, ``store`` and OpenAI's deprecated ``functions`` and
``function_call`` (as vLLM does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from smg_trio.api.errors import load_json
from smg_trio.api.openai.chat.messages import Message, parse_messages
from smg_trio.api.openai.chat.tools import NO_TOOLS, Tool, ToolChoice, parse_tool_choice, parse_tools
from smg_trio.api.parameters.fields import (
    Reader,
    array_of,
    boolean,
    described,
    filled_string,
    mapping,
    one_of,
    read_fields,
    refuse,
    string,
    take,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import SamplingFields, candidates, choices, parse_sampling, shown_candidates
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.records import record

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_MAX_ID_CHARS = 256


@record
class ChatRequest:
    """A validated chat request.

    Attributes:
        model: "" where the client names none; the gateway may have a single model to mean.
        messages: checked, otherwise as the client sent them.
        logprobs: whether log probabilities are shown; how many candidates is ``sampling.logprobs``.
        add_generation_prompt: False by default if the final message is to be continued.
        chat_template: only where the operator trusts requests with templates.
        echo: whether the answer begins with the last message's own text.
        include_reasoning: False hides reasoning, and with them token ids and logprobs.
        separate_reasoning: False leaves reasoning in the content.
        request_id: the client's own id for this request (``request_id`` or ``rid``).
        notes: what was left out of the request and should be said in the log.
    """

    model: str
    messages: list[Message]
    sampling: SamplingFields
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage_stats: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = NO_TOOLS
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    echo: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    separate_reasoning: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    return_prompt_text: bool = False
    request_id: str | None = None
    notes: Sequence[str] = ()


def parse_chat_request(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> ChatRequest:
    """Read and validate a chat body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for beam search and per-request media options.
    """
    return chat_request_from(load_json(body), limits)


def chat_request_from(obj: Mapping[str, Any], limits: RequestLimits = DEFAULT_LIMITS) -> ChatRequest:
    """Validate a chat body that is already JSON."""
    found = {"model": "", **read_fields(obj, READERS)}
    found.update(read_stream(obj, found))
    refuse_media_options(obj)
    settle_request_id(found)
    settle_generation_prompt(found)
    check_template(found, limits)
    tools = parse_tools(obj.get("tools"))
    tool_choice = parse_tool_choice(obj.get("tool_choice"), tools)
    sampling = _sampling(obj, found, limits)
    found["top_logprobs"] = shown_candidates(sampling, found.get("top_logprobs", 0))
    if tool_choice.mode == "named" and obj.get("structured_outputs") is not None:
        raise refuse("tool_choice", "a named tool cannot be combined with 'structured_outputs'")
    return ChatRequest(
        messages=parse_messages(obj.get("messages")),
        sampling=sampling,
        n=choices(obj.get("n"), limits),
        tools=tools,
        tool_choice=tool_choice,
        **found,
    )


def _sampling(obj: Mapping[str, Any], found: dict[str, Any], limits: RequestLimits) -> SamplingFields:
    shown, top = found.get("logprobs", False), found.get("top_logprobs", 0)
    if top and not shown:
        raise refuse("top_logprobs", "needs 'logprobs' to be true")
    sampling = parse_sampling(obj, limits, logprobs=top if shown else None, logprobs_param="top_logprobs")
    check_logprob_extras(sampling, found.get("stream", False))
    if found.get("echo") and sampling.prompt_logprobs is None and not found.get("stream"):
        return replace(sampling, prompt_logprobs=top)  # as vLLM: who wants the prompt's text wants its numbers too
    return sampling


def read_stream(obj: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """``stream_options`` of a body whose ``stream`` is already in ``found``."""
    options = take(obj, "stream_options", mapping)
    if not options:
        return {}
    if not found.get("stream"):
        raise refuse("stream_options", "is only allowed when 'stream' is true")
    return read_fields(options, STREAM_READERS, prefix="stream_options.")


def check_logprob_extras(sampling: SamplingFields, stream: bool) -> None:
    """What vLLM refuses about log probabilities on every endpoint."""
    if sampling.logprob_token_ids is not None and sampling.logprobs is None:
        raise refuse("logprob_token_ids", "needs 'logprobs'")
    if stream and sampling.prompt_logprobs:
        raise refuse("prompt_logprobs", "is not available when 'stream' is true")


def refuse_media_options(obj: Mapping[str, Any]) -> None:
    """Per-request media processing is not ours to do; silence would change the answer."""
    for name in ("mm_processor_kwargs", "media_io_kwargs", "prompt_embeds"):
        if obj.get(name):
            raise UnsupportedFeature(f"'{name}' is not supported.", param=name)


def settle_request_id(found: dict[str, Any]) -> None:
    """``rid`` is another word for ``request_id``."""
    rid = found.pop("rid", None)
    found.setdefault("request_id", rid)


def settle_generation_prompt(found: dict[str, Any]) -> None:
    """A message that is continued gets no generation prompt after it."""
    if not found.get("continue_final_message"):
        return
    if found.setdefault("add_generation_prompt", False):
        raise refuse("continue_final_message", "must not be true together with 'add_generation_prompt'")


def check_template(found: dict[str, Any], limits: RequestLimits) -> None:
    """Refuse a request that brings a template, by either way in, unless the operator trusts these."""
    if limits.trust_chat_template:
        return
    if found.get("chat_template") is not None:
        raise refuse("chat_template", "templates from requests are not trusted by this server")
    if found.get("chat_template_kwargs", {}).get("chat_template") is not None:
        raise refuse("chat_template_kwargs.chat_template", "templates from requests are not trusted by this server")


@described({"type": "string", "minLength": 1, "maxLength": _MAX_ID_CHARS})
def read_request_id(value: Any, param: str) -> str:
    """A client's own request id: printable ASCII (it comes back in headers), at most 256 characters."""
    found = filled_string(value, param)
    if len(found) > _MAX_ID_CHARS or not found.isascii() or not found.isprintable():
        raise refuse(param, f"must be printable ASCII of at most {_MAX_ID_CHARS} characters")
    return found


STREAM_READERS: dict[str, Reader] = {"include_usage": boolean, "continuous_usage_stats": boolean}
READERS: dict[str, Reader] = {
    "model": string,
    "stream": boolean,
    "logprobs": boolean,
    "top_logprobs": candidates,
    "parallel_tool_calls": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "add_special_tokens": boolean,
    "echo": boolean,
    "chat_template": string,
    "chat_template_kwargs": mapping,
    "documents": array_of(mapping),
    "reasoning_effort": one_of(EFFORTS),
    "include_reasoning": boolean,
    "separate_reasoning": boolean,
    "return_token_ids": boolean,
    "return_tokens_as_token_ids": boolean,
    "return_prompt_text": boolean,
    "request_id": read_request_id,
    "rid": read_request_id,
}
