"""``POST /v1/responses``: body to `ResponsesRequest`.

Fields, defaults and refusals are those of OpenAI and of vLLM 0.32's ``ResponsesRequest``; beside these, every sampling
field of the chat API works (load tools and frameworks send ``ignore_eos``, ``seed``, ``stop``, ...). Unknown fields are
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from smg_trio.api.errors import load_json
from smg_trio.api.openai.chat.request import EFFORTS, ChatRequest, check_template, read_request_id, refuse_media_options
from smg_trio.api.openai.responses.hosted_items import left_out_notes
from smg_trio.api.openai.responses.item_messages import item_name, messages_of
from smg_trio.api.openai.responses.items import MakeId, make_item_id, parse_input, read_metadata, resolve_references
from smg_trio.api.openai.responses.setting_items import SETTING_ITEMS, configuration_of
from smg_trio.api.openai.responses.text_format import read_text_format
from smg_trio.api.openai.responses.tool_choice import choice_after_call, parse_response_choice
from smg_trio.api.openai.responses.tools import NO_OFFER, OfferedTools, parse_response_tools, shown_tools
from smg_trio.api.parameters.fields import (
    Reader,
    array_of,
    boolean,
    described,
    filled_string,
    integer,
    mapping,
    object_schema,
    one_of,
    read_fields,
    refuse,
    string,
    within,
)
from smg_trio.api.parameters.limits import DEFAULT_LIMITS, RequestLimits
from smg_trio.api.parameters.sampling import SamplingFields, candidates, parse_sampling, shown_candidates
from smg_trio.core.errors import UnsupportedFeature

if TYPE_CHECKING:
    from smg_trio.core.conversations import Item

_INCLUDABLE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
_SERVICE_TIERS = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A validated Responses request.

    Attributes:
        input: what this request brings, as complete items; may hold ``item_reference`` items, to be resolved with
            `items.resolve_references`.
        base: the request in chat terms, without a conversation; see `chat`.
        previous_response_id, conversation: what this request goes on from; at most one is set.
        store: whether the response is kept.
        store_required: whether an answer that cannot be kept is of no use: it was asked for with ``store: true``, in
            the background or for a conversation.
        background: answered immediately, generated on its own; only with ``store``.
        shown: the members of the response object that repeat the request.
        tools: those that ``tools`` declares; items may add more, see `offered`.
        max_tool_calls: how many calls of MCP tools this gateway may make.
        tool_choice: as it came; it may name a tool that an item adds.
        show_raw_messages: whether prompt and output are shown as the model has them (`raw_messages`).
        generate: False only remembers the input, for requests that go on from it (WebSocket mode).
        logprobs: whether log probabilities are shown; how many candidates is ``base.sampling.logprobs``.
        request_id: the client's own id for the response.
    """

    input: list[Item]
    base: ChatRequest
    previous_response_id: str | None = None
    conversation: str | None = None
    instructions: str | None = None
    store: bool = True
    store_required: bool = False
    background: bool = False
    stream: bool = False
    logprobs: bool = False
    show_raw_messages: bool = False
    generate: bool = True
    tools: OfferedTools = NO_OFFER
    max_tool_calls: int | None = None
    tool_choice: Any = None
    request_id: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)

    def chat(
        self,
        history: Sequence[Item] = (),
        own: Sequence[Item] | None = None,
        *,
        listed: OfferedTools = NO_OFFER,
        called: bool = False,
    ) -> ChatRequest:
        """The whole conversation in chat terms.

        Args:
            history: items from before this request, oldest first.
            own: this request's items, if their references go beyond the history and were resolved; else `input`.
            listed: tools of MCP servers.
            called: whether this gateway has called tools for the response: then none is forced any more.

        Raises:
            InvalidRequest: there is nothing to answer, or a reference leads nowhere.
        """
        items = self._items(history, own)
        spoken = [item for item in items if item["type"] not in SETTING_ITEMS]
        messages = messages_of(spoken, self._name_of)
        if self.generate and not messages:
            raise refuse("input", "must not be empty")
        is_continued = bool(spoken) and spoken[-1]["type"] == "message" and _is_unfinished_turn(spoken[-1])
        if self.instructions:
            messages.insert(0, {"role": "system", "content": self.instructions})
        return replace(
            self._configured(items, listed, called=called),
            messages=messages,
            add_generation_prompt=not is_continued,
            continue_final_message=is_continued,
            notes=left_out_notes(items, mcp=bool(self.tools.servers)),
        )

    def _name_of(self, item: Item) -> str:
        """What refusals call an item: by its place, if this request brings it."""
        place = next((index for index, one in enumerate(self.input) if one is item), None)
        return item_name(item) if place is None else f"input[{place}]"

    def offered(self, history: Sequence[Item] = (), own: Sequence[Item] | None = None) -> OfferedTools:
        """All tools of the request: those it declares, and those that items of the conversation add; see `chat`."""
        return self.tools.joined(configuration_of(self._items(history, own)).tools)

    def _items(self, history: Sequence[Item], own: Sequence[Item] | None) -> list[Item]:
        known = {item["id"]: item for item in history}
        return [*history, *resolve_references(self.input if own is None else own, known)]

    def _configured(self, items: Sequence[Item], listed: OfferedTools, *, called: bool) -> ChatRequest:
        """`base` with the settings that items make, and the tools that MCP servers list."""
        configuration = configuration_of(items)
        tools = listed.joined(self.tools).joined(configuration.tools)
        choice = choice_after_call(self.tool_choice) if called else self.tool_choice
        sampling = self.base.sampling
        if configuration.sets_format:
            sampling = replace(sampling, structured_output=configuration.text_format)
        return replace(
            self.base,
            sampling=sampling,
            tools=list(tools.functions),
            tool_choice=parse_response_choice(choice, tools),
            reasoning_effort=configuration.effort or self.base.reasoning_effort,
        )


def _is_unfinished_turn(item: Item) -> bool:
    """vLLM's rule: an assistant's text that says it is not complete is to be gone on with."""
    return bool(item["role"] == "assistant" and item["status"] != "completed")


def parse_responses_request(
    body: bytes, limits: RequestLimits = DEFAULT_LIMITS, make_id: MakeId = make_item_id
) -> ResponsesRequest:
    """Read and validate a Responses body.

    Raises:
        InvalidRequest: naming the parameter; nothing but `SmgError` is ever raised.
        UnsupportedFeature: for hosted tools and their items, media other than images, prompt templates and beam search.
    """
    obj = load_json(body)
    obj.pop("generate", None)
    return responses_request_from(obj, limits, make_id)


def responses_request_from(
    obj: Mapping[str, Any], limits: RequestLimits = DEFAULT_LIMITS, make_id: MakeId = make_item_id
) -> ResponsesRequest:
    """Validate a Responses body that is already JSON."""
    found = read_fields(obj, READERS)
    _check_combinations(obj, found)
    check_template(found, limits)
    refuse_media_options(obj)
    logprobs = "message.output_text.logprobs" in found.get("include", ())
    sampling = _sampling(obj, found, limits, logprobs=logprobs)
    tools = parse_response_tools(obj.get("tools"), mcp=limits.mcp)
    return ResponsesRequest(
        input=_input(obj, found, make_id),
        base=_base(found, sampling, logprobs=logprobs),
        previous_response_id=found.get("previous_response_id"),
        conversation=found.get("conversation"),
        instructions=found.get("instructions"),
        store=found.get("store", True),
        store_required=any(found.get(field) for field in ("store", "background", "conversation")),
        background=found.get("background", False),
        stream=found.get("stream", False),
        logprobs=logprobs,
        show_raw_messages=found.get("enable_response_messages", False),
        generate=found.get("generate", True),
        tools=tools,
        max_tool_calls=found.get("max_tool_calls"),
        tool_choice=obj.get("tool_choice"),
        request_id=found.get("request_id"),
        shown=_shown(obj, found, tools),
    )


def _check_combinations(obj: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    if obj.get("prompt") is not None:
        raise UnsupportedFeature("Prompt templates are not supported.", param="prompt")
    if obj.get("previous_input_messages") is not None:
        problem = "'previous_input_messages' is not supported; put earlier turns into 'input'."
        raise UnsupportedFeature(problem, param="previous_input_messages")
    if found.get("background") and not found.get("store", True):
        raise refuse("background", "can only be used when 'store' is true")
    if "conversation" in found and "previous_response_id" in found:
        raise refuse("previous_response_id", "cannot be used together with 'conversation'")


def _input(obj: Mapping[str, Any], found: Mapping[str, Any], make_id: MakeId) -> list[Item]:
    value = obj.get("input")
    if value is None and found.keys().isdisjoint(("previous_response_id", "conversation")):
        raise refuse("input", "is required")
    return [] if value is None else parse_input(value, make_id)


def _base(found: Mapping[str, Any], sampling: SamplingFields, *, logprobs: bool) -> ChatRequest:
    return ChatRequest(
        model=found.get("model", ""),
        messages=[],
        sampling=sampling,
        stream=found.get("stream", False),
        logprobs=logprobs,
        top_logprobs=shown_candidates(sampling, found.get("top_logprobs", 0)),
        parallel_tool_calls=found.get("parallel_tool_calls", True),
        chat_template_kwargs=found.get("chat_template_kwargs", {}),
        reasoning_effort=found.get("reasoning", {}).get("effort"),
        include_reasoning=found.get("include_reasoning", True),
    )


def _sampling(
    obj: Mapping[str, Any], found: Mapping[str, Any], limits: RequestLimits, *, logprobs: bool
) -> SamplingFields:
    fields = {name: value for name, value in obj.items() if name not in _NOT_SAMPLING}
    fields["max_tokens"] = found.get("max_output_tokens")
    if found.get("truncation") == "auto":
        fields.setdefault("truncate_prompt_tokens", -1)
    sampling = parse_sampling(
        fields,
        limits,
        logprobs=found.get("top_logprobs", 0) if logprobs else None,
        logprobs_param="top_logprobs",
    )
    sampling = replace(sampling, max_tokens_param="max_output_tokens")
    format_ = read_text_format(found.get("text", {}))
    if format_ is None:
        return sampling
    if sampling.structured_output is not None:
        raise refuse("text.format", "only one structured output constraint is allowed")
    return replace(sampling, structured_output=format_)


_TEXT_READERS: dict[str, Reader] = {"format": mapping, "verbosity": one_of(("low", "medium", "high"))}
_REASONING_READERS: dict[str, Reader] = {
    "effort": one_of(EFFORTS),
    "summary": one_of(("auto", "concise", "detailed")),
    "generate_summary": one_of(("auto", "concise", "detailed")),
}


@described(object_schema(_TEXT_READERS))
def _text(value: Any, param: str) -> dict[str, Any]:
    return {**mapping(value, param), **read_fields(value, _TEXT_READERS, prefix=f"{param}.")}


@described(object_schema(_REASONING_READERS))
def _reasoning(value: Any, param: str) -> dict[str, Any]:
    found = read_fields(mapping(value, param), _REASONING_READERS, prefix=f"{param}.")
    return {"effort": None, "summary": None, **found}


@described({"type": ["string", "object"], "minLength": 1})
def _conversation(value: Any, param: str) -> str:
    if isinstance(value, dict):
        return filled_string(value.get("id"), f"{param}.id")
    return filled_string(value, param)


def _shown(obj: Mapping[str, Any], found: Mapping[str, Any], tools: OfferedTools) -> dict[str, Any]:
    """The request as the response object repeats it; sampling is added once it is resolved."""
    choice = obj.get("tool_choice")
    conversation = found.get("conversation")
    return {
        "background": found.get("background", False),
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": found.get("instructions"),
        "max_tool_calls": found.get("max_tool_calls"),
        "metadata": found.get("metadata", {}),
        "parallel_tool_calls": found.get("parallel_tool_calls", True),
        "previous_response_id": found.get("previous_response_id"),
        "prompt_cache_key": found.get("prompt_cache_key"),
        "reasoning": found.get("reasoning", {"effort": None, "summary": None}),
        "safety_identifier": found.get("safety_identifier"),
        "service_tier": found.get("service_tier", "auto"),
        "store": found.get("store", True),
        "text": {"format": {"type": "text"}, **found.get("text", {})},
        "tool_choice": ("auto" if tools or tools.servers else "none") if choice in (None, "auto") else choice,
        "tools": shown_tools(obj.get("tools")),
        "top_logprobs": found.get("top_logprobs", 0),
        "truncation": found.get("truncation", "disabled"),
        "user": found.get("user"),
    }


_NOT_SAMPLING = frozenset({"max_tokens", "max_completion_tokens", "response_format", "logprobs", "text", "input"})
READERS: dict[str, Reader] = {
    "model": string,
    "background": boolean,
    "chat_template_kwargs": mapping,
    "conversation": _conversation,
    "enable_response_messages": boolean,
    "generate": boolean,
    "include": array_of(one_of(_INCLUDABLE)),
    "include_reasoning": boolean,
    "instructions": string,
    "max_output_tokens": within(integer, 1),
    "max_tool_calls": within(integer, 1),
    "metadata": read_metadata,
    "parallel_tool_calls": boolean,
    "previous_response_id": filled_string,
    "prompt_cache_key": string,
    "reasoning": _reasoning,
    "request_id": read_request_id,
    "safety_identifier": string,
    "service_tier": one_of(_SERVICE_TIERS),
    "store": boolean,
    "stream": boolean,
    "text": _text,
    "top_logprobs": candidates,
    "truncation": one_of(("auto", "disabled")),
    "user": string,
}
