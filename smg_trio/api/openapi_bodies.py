"""What requests hold, as JSON schemas with examples: the main fields of each endpoint. Tables only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smg_trio.api.admin import PAUSE_MODES, WAKE_TAGS

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request body; every example is accepted by a server with one model."""

    schema: Schema
    examples: tuple[Any, ...]
    required: bool = True


def _integer(minimum: int | None = None, maximum: int | None = None) -> Schema:
    return _number("integer", minimum, maximum)


def _number(kind: str = "number", minimum: float | None = None, maximum: float | None = None) -> Schema:
    bounds = {"minimum": minimum, "maximum": maximum}
    return {"type": [kind, "null"], **{name: bound for name, bound in bounds.items() if bound is not None}}


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": ["array", "null"], "items": items, **limits}


def _object(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


TEXT: Schema = {"type": "string"}
FILLED: Schema = {"type": "string", "minLength": 1}
WORD: Schema = {"type": ["string", "null"]}
SWITCH: Schema = {"type": ["boolean", "null"]}
MAP: Schema = {"type": ["object", "null"]}
_TOKEN: Schema = {"type": "integer", "minimum": 0}
_MODEL: Schema = {"type": ["string", "null"], "description": "A name of /v1/models; the only model where left out."}
_IDS: Schema = {"type": "array", "items": _TOKEN, "minItems": 1}
_TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
_PROMPT: Schema = {"anyOf": [FILLED, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}
_ONE_OR_MORE: Schema = {"anyOf": [TEXT, _TEXTS]}
_SAMPLING: Mapping[str, Schema] = {
    "temperature": _number(minimum=0, maximum=2),
    "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _integer(-1),
    "min_p": _number(minimum=0, maximum=1),
    "presence_penalty": _number(minimum=-2, maximum=2),
    "frequency_penalty": _number(minimum=-2, maximum=2),
    "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0},
    "seed": _integer(-(2**63), 2**63 - 1),
    "min_tokens": _integer(0),
    "stop": {"anyOf": [FILLED, {"type": "array", "items": FILLED}, {"type": "null"}]},
    "stop_token_ids": _list(_TOKEN),
    "ignore_eos": SWITCH,
    "skip_special_tokens": SWITCH,
    "include_stop_str_in_output": SWITCH,
    "logit_bias": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
    "n": _integer(1, 128),
}
_ANSWERING: Mapping[str, Schema] = {
    "model": _MODEL,
    "stream": SWITCH,
    "stream_options": {"type": ["object", "null"], "properties": {"include_usage": SWITCH}},
    "max_tokens": _integer(1),
    "response_format": MAP,
    "structured_outputs": MAP,
    "prompt_logprobs": _integer(-1),
    "priority": _integer(),
    "user": WORD,
    **_SAMPLING,
}
_MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": _object(
        ("role",),
        role={"enum": ["system", "developer", "user", "assistant", "tool"]},
        content={"type": ["string", "array", "null"]},
    ),
}
_HI = [{"role": "user", "content": "Hi!"}]
_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}

_CHAT = Body(
    schema=_object(
        ("messages",),
        messages=_MESSAGES,
        tools=_list({"type": "object"}),
        tool_choice={"type": ["string", "object", "null"]},
        parallel_tool_calls=SWITCH,
        reasoning_effort=WORD,
        logprobs=SWITCH,
        top_logprobs=_integer(-1),
        max_completion_tokens=_integer(1),
        chat_template_kwargs=MAP,
        **_ANSWERING,
    ),
    examples=(
        {"messages": _HI, "max_tokens": 8},
        {"messages": _HI, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": _HI, "tools": [_TOOL], "tool_choice": "auto", "temperature": 0},
    ),
)
_CHAT_BATCH = Body(
    schema=_object(
        ("messages",),
        messages={"type": "array", "minItems": 1, "items": _MESSAGES},
        reasoning_effort=WORD,
        logprobs=SWITCH,
        top_logprobs=_integer(-1),
        max_completion_tokens=_integer(1),
        chat_template_kwargs=MAP,
        **{name: schema for name, schema in _ANSWERING.items() if name not in ("stream", "stream_options", "n")},
    ),
    examples=({"messages": [_HI, [{"role": "user", "content": "And you?"}]], "max_tokens": 8},),
)
_COMPLETION = Body(
    schema=_object(
        ("prompt",), prompt=_PROMPT, echo=SWITCH, logprobs=_integer(-1), return_token_ids=SWITCH, **_ANSWERING
    ),
    examples=({"prompt": "Once upon a time"}, {"prompt": [[1, 2, 3], [4]], "n": 2, "logprobs": 1}),
)
_GENERATE = Body(
    schema=_object(
        (),
        model=_MODEL,
        text={"anyOf": [FILLED, _TEXTS, {"type": "null"}]},
        input_ids={"anyOf": [_IDS, {"type": "array", "items": _IDS, "minItems": 1}, {"type": "null"}]},
        stream=SWITCH,
        rid=WORD,
        return_logprob=SWITCH,
        top_logprobs_num=_integer(0),
        logprob_start_len=_integer(-1),
        data_parallel_rank=_integer(0),
        sampling_params={
            "type": ["object", "null"],
            "properties": {"max_new_tokens": _integer(1), "min_new_tokens": _integer(0), **_SAMPLING},
        },
    ),
    examples=(
        {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}},
        {"input_ids": [1, 2, 3], "return_logprob": True, "stream": True},
    ),
)
_ANTHROPIC_TURNS: Schema = {
    "type": "array",
    "minItems": 1,
    "items": _object(("role", "content"), role={"enum": ["user", "assistant"]}, content={"type": ["string", "array"]}),
}
_COUNTED: Mapping[str, Schema] = {
    "model": FILLED,
    "messages": _ANTHROPIC_TURNS,
    "system": {"type": ["string", "array", "null"]},
    "tools": _list({"type": "object"}),
    "tool_choice": MAP,
    "thinking": MAP,
}
_MESSAGES_BODY = Body(
    schema=_object(
        ("model", "messages", "max_tokens"),
        **_COUNTED,
        max_tokens={"type": "integer", "minimum": 1},
        stop_sequences=_list(FILLED),
        stream=SWITCH,
        temperature=_number(minimum=0, maximum=1),
        top_p={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        top_k=_integer(-1),
    ),
    examples=({"model": "$model", "messages": _HI, "max_tokens": 8},),
)
_RESPONSE = Body(
    schema=_object(
        ("input",),
        model=_MODEL,
        input={"type": ["string", "array"], "minLength": 1, "minItems": 1},
        instructions=WORD,
        stream=SWITCH,
        background=SWITCH,
        store=SWITCH,
        previous_response_id=WORD,
        conversation={"type": ["string", "object", "null"]},
        max_output_tokens=_integer(1),
        temperature=_number(minimum=0, maximum=2),
        top_p={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        reasoning=MAP,
        text=MAP,
        tools=_list({"type": "object"}),
        tool_choice={"type": ["string", "object", "null"]},
        enable_response_messages=SWITCH,
        metadata=MAP,
    ),
    examples=({"input": "Hi!"}, {"input": _HI, "stream": True, "store": False}),
)
_ITEMS: Schema = _list({"type": "object"})
_POOLED: Mapping[str, Schema] = {
    "model": _MODEL,
    "input": {"anyOf": [*_PROMPT["anyOf"], {"type": "null"}]},
    "messages": {"anyOf": [_MESSAGES, {"type": "null"}]},
    "use_activation": SWITCH,
    "truncate_prompt_tokens": _integer(-1),
    "user": WORD,
}
_EMBEDDINGS = Body(
    schema=_object(
        (),
        **_POOLED,
        dimensions=_integer(1),
        encoding_format={"enum": ["float", "base64", None]},
        late_chunking_params=MAP,
    ),
    examples=({"input": "a text"}, {"input": ["a", "b"], "encoding_format": "base64"}),
)
_CLASSIFY = Body(schema=_object((), **_POOLED), examples=({"input": ["a text", "another"]},))
_PAIRED: Mapping[str, Schema] = {
    "model": _MODEL,
    "use_activation": SWITCH,
    "truncate_prompt_tokens": _integer(-1),
    "instruction": WORD,
}
_SCORE = Body(
    schema=_object(("queries", "documents"), queries=_ONE_OR_MORE, documents=_ONE_OR_MORE, **_PAIRED),
    examples=({"queries": "What is a panda?", "documents": ["A bear.", "A car."]},),
)
_RERANK = Body(
    schema=_object(("query", "documents"), query=TEXT, documents=_ONE_OR_MORE, top_n=_integer(0), **_PAIRED),
    examples=({"query": "What is a panda?", "documents": ["A bear.", "A car."], "top_n": 1},),
)
_PARSE_CALLS = Body(
    schema=_object(("text", "tool_call_parser"), text=TEXT, tool_call_parser=FILLED, tools=_list({"type": "object"})),
    examples=({"text": '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "tool_call_parser": "hermes"},),
)
_PARSE_THOUGHT = Body(
    schema=_object(("text", "reasoning_parser"), text=TEXT, reasoning_parser=FILLED),
    examples=({"text": "<think>hm</think>Yes.", "reasoning_parser": "qwen3"},),
)

_WORKER = _object(
    ("url",),
    url={"type": "string", "pattern": "^ipc://."},
    models=_list({"type": "object"}),
    runtime_type=WORD,
    dp_size=_integer(1),
    zmq_handshake_address=WORD,
    labels=MAP,
    priority=_integer(0),
    cost=_number(minimum=0),
    api_key=WORD,
    health=MAP,
)

BODIES: Mapping[str, Body] = {
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/batch": _CHAT_BATCH,
    "/v1/completions": _COMPLETION,
    "/generate": _GENERATE,
    "/v1/messages": _MESSAGES_BODY,
    "/v1/messages/count_tokens": Body(
        schema=_object(("model", "messages"), **_COUNTED), examples=({"model": "$model", "messages": _HI},)
    ),
    "/v1/responses": _RESPONSE,
    "/v1/conversations": Body(schema=_object((), items=_ITEMS, metadata=MAP), examples=({},), required=False),
    "/v1/conversations/<conversation_id>": Body(
        schema=_object(("metadata",), metadata={"type": "object"}), examples=({"metadata": {"topic": "pandas"}},)
    ),
    "/v1/conversations/<conversation_id>/items": Body(
        schema=_object(("items",), items={"type": "array", "items": {"type": "object"}, "minItems": 1}),
        examples=({"items": [{"type": "message", **_HI[0]}]},),
    ),
    "/v1/embeddings": _EMBEDDINGS,
    "/classify": _CLASSIFY,
    "/v1/classify": _CLASSIFY,
    "/score": _SCORE,
    "/v1/score": _SCORE,
    "/rerank": _RERANK,
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/tokenize": Body(
        schema=_object(
            (),
            model=_MODEL,
            prompt=WORD,
            messages={"anyOf": [_MESSAGES, {"type": "null"}]},
            add_special_tokens=SWITCH,
            return_token_strs=SWITCH,
        ),
        examples=({"prompt": "a text"}, {"messages": _HI}),
    ),
    "/detokenize": Body(
        schema=_object(("tokens",), model=_MODEL, tokens={"type": "array", "items": _TOKEN}),
        examples=({"tokens": [1, 2]},),
    ),
    "/v1/tokenize": Body(
        schema=_object(("prompt",), model=_MODEL, prompt=_ONE_OR_MORE), examples=({"prompt": ["a", "b"]},)
    ),
    "/v1/detokenize": Body(
        schema=_object(
            ("tokens",),
            model=_MODEL,
            tokens={"type": "array", "items": {"anyOf": [_TOKEN, {"type": "array", "items": _TOKEN}]}},
        ),
        examples=({"tokens": [1, 2]}, {"tokens": [[1], [2]]}),
    ),
    "/parse/function_call": _PARSE_CALLS,
    "/v1/parse/function_call": _PARSE_CALLS,
    "/parse/reasoning": _PARSE_THOUGHT,
    "/v1/parse/reasoning": _PARSE_THOUGHT,
    "/start_profile": Body(
        schema=_object((), url=WORD, profile_prefix=WORD, delay_iterations=_integer(0), max_iterations=_integer(0)),
        examples=({},),
        required=False,
    ),
    "/stop_profile": Body(schema=_object((), url=WORD), examples=({},), required=False),
    "/workers": Body(schema=_WORKER, examples=()),
    "PUT /workers/<worker_id>": Body(schema=_WORKER, examples=()),
    "PATCH /workers/<worker_id>": Body(
        schema=_object((), priority=_integer(0), cost=_number(minimum=0), labels=MAP, api_key=WORD, health=MAP),
        examples=(),
    ),
    "/v1/load_lora_adapter": Body(
        schema=_object(
            ("lora_name", "lora_path"),
            lora_name=FILLED,
            lora_path=FILLED,
            base_model_name=_MODEL,
            load_inplace=SWITCH,
        ),
        examples=({"lora_name": "poet", "lora_path": "/adapters/poet"},),
    ),
    "/v1/unload_lora_adapter": Body(
        schema=_object(("lora_name",), lora_name=FILLED), examples=({"lora_name": "poet"},)
    ),
}
"""Request bodies by path, or by method and path. ``$model`` in an example stands for a served model's name."""

_PAGE: Mapping[str, Schema] = {
    "after": FILLED,
    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
    "order": {"enum": ["asc", "desc"]},
}
_TARGET: Mapping[str, Schema] = {"model": TEXT, "worker_id": TEXT}
_BOOLEAN: Schema = {"type": "boolean"}
_MODE: Schema = {"enum": list(PAUSE_MODES)}

QUERIES: Mapping[tuple[str, str], Mapping[str, Schema]] = {
    ("GET", "/v1/responses/<response_id>/input_items"): _PAGE,
    ("GET", "/v1/conversations/<conversation_id>/items"): _PAGE,
    ("GET", "/workers"): {"model": TEXT},
    ("GET", "/get_model_info"): {"model": TEXT},
    ("GET", "/v1/loads"): {"model": TEXT},
    ("GET", "/get_loads"): {"model": TEXT},
    ("GET", "/is_sleeping"): _TARGET,
    ("GET", "/is_paused"): _TARGET,
    ("POST", "/flush_cache"): _TARGET,
    ("POST", "/reset_prefix_cache"): {**_TARGET, "reset_running_requests": _BOOLEAN, "reset_external": _BOOLEAN},
    ("POST", "/reset_mm_cache"): _TARGET,
    ("POST", "/reset_encoder_cache"): _TARGET,
    ("POST", "/sleep"): {**_TARGET, "level": {"type": "integer", "minimum": 0, "maximum": 2}, "mode": _MODE},
    ("POST", "/wake_up"): {**_TARGET, "tags": {"type": "array", "items": {"enum": list(WAKE_TAGS)}}},
    ("POST", "/pause"): {**_TARGET, "mode": _MODE, "clear_cache": _BOOLEAN},
    ("POST", "/resume"): _TARGET,
    ("POST", "/start_profile"): _TARGET,
    ("POST", "/stop_profile"): _TARGET,
}

STREAMED = frozenset({"/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages", "/v1/responses"})
TEXTS = frozenset(
    {
        "/health",
        "/liveness",
        "/ping",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
"""Routes that answer plain text."""
PAGES = frozenset({"/dashboard"})
"""Routes that answer HTML."""
