"""The request bodies and queries of each endpoint, as JSON schemas with examples.

Schemas are made from the tables of readers that read the bodies. What is read without a table (messages, tools,
prompts) is described here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smg_trio.api import admin, generate, pooling, tokenize, worker_specs
from smg_trio.api.anthropic import messages as anthropic
from smg_trio.api.openai import embeddings, pooled_prompts
from smg_trio.api.openai.chat import request as chat
from smg_trio.api.openai.completions import request as completions
from smg_trio.api.openai.responses import request as responses
from smg_trio.api.openai.responses import stored
from smg_trio.api.parameters import sampling
from smg_trio.api.parameters.fields import Reader, Schema, filled_string, object_schema, schema_of, string, token_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A request body; every example is accepted by a server with one model."""

    schema: Schema
    examples: tuple[Any, ...]
    required: bool = True


TEXT: Schema = schema_of(string)
FILLED: Schema = schema_of(filled_string)
BOOLEAN: Schema = {"type": "boolean"}
MAP: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": MAP}
_TOKEN = schema_of(token_id)
_IDS: Schema = {"type": "array", "items": _TOKEN, "minItems": 1}
_ID_LISTS: Schema = {"type": "array", "items": _IDS, "minItems": 1}
_TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}
_PROMPT: Schema = {"anyOf": [FILLED, _TEXTS, _IDS, _ID_LISTS]}
_ONE_OR_MORE: Schema = {"anyOf": [TEXT, _TEXTS]}
_CHOICE: Schema = {"type": ["string", "object"]}
_MODEL: Mapping[str, Schema] = {
    "model": {"type": "string", "description": "A name of /v1/models; the only model where left out."}
}
_N: Schema = {"type": "integer", "minimum": 1, "maximum": 128}
_LENGTH: Schema = {"type": "integer", "minimum": 1}
_GENERATED: Mapping[str, Schema] = {"max_tokens": _LENGTH, "response_format": MAP, "structured_outputs": MAP}
_STREAMED: Mapping[str, Schema] = {"n": _N, "stream_options": object_schema(chat.STREAM_READERS)}


def _without(readers: Mapping[str, Reader], *names: str) -> dict[str, Reader]:
    return {name: reader for name, reader in readers.items() if name not in names}


def _messages(*roles: str, required: tuple[str, ...], content: list[str]) -> Schema:
    message = object_schema({}, required, role={"enum": list(roles)}, content={"type": content})
    return {"type": "array", "minItems": 1, "items": message}


_MESSAGES = _messages(
    "system", "developer", "user", "assistant", "tool", required=("role",), content=["string", "array"]
)
_HI = [{"role": "user", "content": "Hi!"}]
_TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
_CHAT_READERS = {**chat.READERS, **sampling.READERS}

_CHAT = Body(
    schema=object_schema(
        _CHAT_READERS, ("messages",), messages=_MESSAGES, tools=OBJECTS, tool_choice=_CHOICE,
        **_STREAMED, **_GENERATED, **_MODEL,
    ),
    examples=(
        {"messages": _HI, "max_tokens": 8},
        {"messages": _HI, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": _HI, "tools": [_TOOL], "tool_choice": "auto", "temperature": 0},
    ),
)  # fmt: skip
_CHAT_BATCH = Body(
    schema=object_schema(
        _without(_CHAT_READERS, "stream"), ("messages",),
        messages={"type": "array", "minItems": 1, "items": _MESSAGES}, **_GENERATED, **_MODEL,
    ),
    examples=({"messages": [_HI, [{"role": "user", "content": "And you?"}]], "max_tokens": 8},),
)  # fmt: skip
_COMPLETION = Body(
    schema=object_schema(
        _without({**completions.READERS, **sampling.READERS}, "suffix"), ("prompt",), prompt=_PROMPT,
        **_STREAMED, **_GENERATED, **_MODEL,
    ),
    examples=({"prompt": "Once upon a time"}, {"prompt": [[1, 2, 3], [4]], "n": 2, "logprobs": 1}),
)  # fmt: skip
_GENERATE = Body(
    schema=object_schema(
        generate.READERS,
        text={"anyOf": [FILLED, _TEXTS]},
        input_ids={"anyOf": [_IDS, _ID_LISTS]},
        image_data={"type": ["string", "array"]},
        sampling_params=object_schema(
            {**{name: sampling.READERS[other] for name, other in generate.OWN_NAMES.items()}, **sampling.READERS},
            max_new_tokens=_LENGTH,
            n=_N,
        ),
        **_MODEL,
    ),
    examples=(
        {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}},
        {"input_ids": [1, 2, 3], "return_logprob": True, "stream": True},
    ),
)
_COUNTED: Mapping[str, Schema] = {
    "model": FILLED,
    "messages": _messages("user", "assistant", required=("role", "content"), content=["string", "array"]),
    "system": {"type": ["string", "array"]},
    "tools": OBJECTS,
    "tool_choice": MAP,
    "thinking": MAP,
    "output_config": MAP,
}
_ANTHROPIC = Body(
    schema=object_schema(
        {**anthropic.READERS, **_without(sampling.READERS, "stop", "max_completion_tokens")},
        ("model", "messages", "max_tokens"),
        stop_sequences={"type": "array", "items": FILLED},
        metadata=MAP,
        max_tokens=_LENGTH,
        **_COUNTED,
    ),
    examples=({"model": "$model", "messages": _HI, "max_tokens": 8},),
)
_RESPONSE = Body(
    schema=object_schema(
        {
            **_without(responses.READERS, "generate"),
            **_without(sampling.READERS, "max_tokens", "max_completion_tokens"),
        },
        ("input",),
        input={"type": ["string", "array"], "minLength": 1, "minItems": 1},
        tools=OBJECTS,
        tool_choice=_CHOICE,
        structured_outputs=MAP,
        **_MODEL,
    ),
    examples=({"input": "Hi!"}, {"input": _HI, "stream": True, "store": False}),
)
_SETTINGS = {name: sampling.READERS[name] for name in pooled_prompts.SETTINGS}
_POOLED: Mapping[str, Schema] = {"input": _PROMPT, "messages": _MESSAGES, **_MODEL}
_EMBEDDINGS = Body(
    schema=object_schema({**embeddings.READERS, **pooled_prompts.READERS, **_SETTINGS}, **_POOLED),
    examples=({"input": "a text"}, {"input": ["a", "b"], "encoding_format": "base64"}),
)
_CLASSIFY = Body(
    schema=object_schema(_without({**pooled_prompts.READERS, **_SETTINGS}, "dimensions"), **_POOLED),
    examples=({"input": ["a text", "another"]},),
)
_PAIR_READERS = {**pooling.PAIR_READERS, **_SETTINGS}
_SCORE = Body(
    schema=object_schema(
        _without(_PAIR_READERS, "top_n"), ("queries", "documents"), queries=_ONE_OR_MORE, documents=_ONE_OR_MORE,
        **_MODEL,
    ),
    examples=({"queries": "What is a panda?", "documents": ["A bear.", "A car."]},),
)  # fmt: skip
_RERANK = Body(
    schema=object_schema(_PAIR_READERS, ("query", "documents"), query=TEXT, documents=_ONE_OR_MORE, **_MODEL),
    examples=({"query": "What is a panda?", "documents": ["A bear.", "A car."], "top_n": 1},),
)
_PARSE_CALLS = Body(
    schema=object_schema({}, ("text", "tool_call_parser"), text=TEXT, tool_call_parser=FILLED, tools=OBJECTS),
    examples=({"text": '<tool_call>{"name": "f", "arguments": {}}</tool_call>', "tool_call_parser": "hermes"},),
)
_PARSE_REASONING = Body(
    schema=object_schema({}, ("text", "reasoning_parser"), text=TEXT, reasoning_parser=FILLED),
    examples=({"text": "<think>hm</think>Yes.", "reasoning_parser": "qwen3"},),
)
_WORKER = Body(
    schema=object_schema(
        worker_specs.BODY_READERS, ("url",), url={"type": "string", "pattern": "^(ipc|tcp|https?)://."}
    ),
    examples=(),
)

BODIES: Mapping[str, Body] = {
    "/v1/chat/completions": _CHAT,
    "/v1/chat/completions/batch": _CHAT_BATCH,
    "/v1/completions": _COMPLETION,
    "/generate": _GENERATE,
    "/v1/messages": _ANTHROPIC,
    "/v1/messages/count_tokens": Body(
        schema=object_schema(anthropic.READERS, ("model", "messages"), **_COUNTED),
        examples=({"model": "$model", "messages": _HI},),
    ),
    "/v1/responses": _RESPONSE,
    "/v1/conversations": Body(schema=object_schema({}, items=OBJECTS, metadata=MAP), examples=({},), required=False),
    "/v1/conversations/<conversation_id>": Body(
        schema=object_schema({}, ("metadata",), metadata=MAP), examples=({"metadata": {"topic": "pandas"}},)
    ),
    "/v1/conversations/<conversation_id>/items": Body(
        schema=object_schema({}, ("items",), items={**OBJECTS, "minItems": 1}),
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
        schema=object_schema(tokenize.READERS, messages=_MESSAGES, tools=OBJECTS, **_MODEL),
        examples=({"prompt": "a text"}, {"messages": _HI}),
    ),
    "/detokenize": Body(
        schema=object_schema({}, ("tokens",), tokens={"type": "array", "items": _TOKEN}, **_MODEL),
        examples=({"tokens": [1, 2]},),
    ),
    "/v1/tokenize": Body(
        schema=object_schema({}, ("prompt",), prompt=_ONE_OR_MORE, **_MODEL), examples=({"prompt": ["a", "b"]},)
    ),
    "/v1/detokenize": Body(
        schema=object_schema(
            {},
            ("tokens",),
            **_MODEL,
            tokens={"type": "array", "items": {"anyOf": [_TOKEN, {"type": "array", "items": _TOKEN}]}},
        ),
        examples=({"tokens": [1, 2]}, {"tokens": [[1], [2]]}),
    ),
    "/parse/function_call": _PARSE_CALLS,
    "/v1/parse/function_call": _PARSE_CALLS,
    "/parse/reasoning": _PARSE_REASONING,
    "/v1/parse/reasoning": _PARSE_REASONING,
    "/start_profile": Body(schema=object_schema(admin.PROFILE_READERS), examples=({},), required=False),
    "/stop_profile": Body(schema=object_schema({}, url=FILLED), examples=({},), required=False),
    "/workers": _WORKER,
    "PUT /workers/<worker_id>": _WORKER,
    "PATCH /workers/<worker_id>": Body(schema=object_schema(worker_specs.PATCH_READERS), examples=()),
    "/v1/load_lora_adapter": Body(
        schema=object_schema(admin.LORA_READERS, ("lora_name", "lora_path")),
        examples=({"lora_name": "poet", "lora_path": "/adapters/poet"},),
    ),
    "/v1/unload_lora_adapter": Body(
        schema=object_schema({}, ("lora_name",), lora_name=FILLED), examples=({"lora_name": "poet"},)
    ),
}
"""Request bodies by path, or by method and path. ``$model`` in an example stands for a served model's name."""

_TARGET: Mapping[str, Schema] = {"model": TEXT, "worker_id": TEXT}


def _query(readers: Mapping[str, Reader]) -> Mapping[str, Schema]:
    return {name: schema_of(reader) for name, reader in readers.items()}


QUERIES: Mapping[tuple[str, str], Mapping[str, Schema]] = {
    ("GET", "/v1/responses/<response_id>/input_items"): _query(stored.PAGE_READERS),
    ("GET", "/v1/conversations/<conversation_id>/items"): _query(stored.PAGE_READERS),
    ("GET", "/workers"): {"model": TEXT},
    ("GET", "/get_model_info"): {"model": TEXT},
    ("GET", "/v1/loads"): {"model": TEXT},
    ("GET", "/get_loads"): {"model": TEXT},
    ("GET", "/is_sleeping"): _TARGET,
    ("GET", "/is_paused"): _TARGET,
    ("POST", "/flush_cache"): _TARGET,
    ("POST", "/reset_prefix_cache"): {**_TARGET, **_query(admin.RESET_READERS)},
    ("POST", "/reset_mm_cache"): _TARGET,
    ("POST", "/reset_encoder_cache"): _TARGET,
    ("POST", "/sleep"): {**_TARGET, **_query(admin.SLEEP_READERS)},
    ("POST", "/wake_up"): {**_TARGET, "tags": {"type": "array", "items": {"enum": list(admin.WAKE_TAGS)}}},
    ("POST", "/pause"): {**_TARGET, **_query(admin.PAUSE_READERS)},
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
