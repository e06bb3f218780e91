"""Requests made to be as dear as a request can be, by name. Each is built when it is sent, for some are large."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "demo"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One request.

    Attributes:
        body: makes the bytes.
        statuses: what it may be answered with.
    """

    path: str
    body: Callable[[], bytes]
    statuses: tuple[int, ...] = (400,)
    headers: Mapping[str, str] = field(default_factory=dict)


def _gzip_bomb() -> bytes:
    return gzip.compress(b'{"messages":' + b" " * (256 * MIB))


def chat(**fields: Any) -> Callable[[], bytes]:
    """A chat body; a value that is callable is called when the body is built."""
    return _body({"model": MODEL, "messages": HI, "max_tokens": 2}, fields)


def completion(**fields: Any) -> Callable[[], bytes]:
    """A completions body."""
    return _body({"model": MODEL, "prompt": "hi", "max_tokens": 2}, fields)


def body(**fields: Any) -> Callable[[], bytes]:
    """A body of these fields alone."""
    return _body({}, fields)


def _body(base: Mapping[str, Any], fields: Mapping[str, Any]) -> Callable[[], bytes]:
    def make() -> bytes:
        made = {name: value() if callable(value) else value for name, value in fields.items()}
        return json.dumps({**base, **made}).encode()

    return make


def inside(field_name: str, filling: Callable[[], bytes]) -> Callable[[], bytes]:
    """A chat body one field of which is the JSON text that `filling` makes."""
    return lambda: (
        b'{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"hi"}],"%b":%b}'
        % (
            field_name.encode(),
            filling(),
        )
    )


def array_text(item: bytes, count: int) -> bytes:
    """The JSON text of an array of `count` times the same."""
    return b"[" + b",".join([item] * count) + b"]"


def tool(name: str, properties: int = 1) -> dict[str, Any]:
    """A tool with so many parameters."""
    parameters = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(properties)}}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


def schema(value: Any) -> dict[str, Any]:
    """A response_format of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value}}


def nested(depth: int) -> dict[str, Any]:
    """A schema of that depth."""
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}}
    return made


def _requests() -> dict[str, HostileRequest]:
    either = (200, 400, 413)
    made: dict[str, HostileRequest] = {}

    def add(
        name: str, path: str, make: Callable[[], bytes], statuses: tuple[int, ...] = either, **headers: str
    ) -> None:
        made[name] = HostileRequest(path, make, statuses, headers)

    add("json: 100,000 nested arrays", CHAT, inside("x", lambda: b"[" * 100_000 + b"]" * 100_000), (400,))
    add("json: 2 M empty arrays, unread field", CHAT, inside("x", lambda: array_text(b"[]", 2_000_000)))
    add("json: 2 M empty arrays, messages", CHAT, inside("messages", lambda: array_text(b"[]", 2_000_000)))
    add("json: 20 M empty arrays", CHAT, inside("x", lambda: array_text(b"[]", 20_000_000)))
    add("json: 10 M integers", CHAT, inside("x", lambda: array_text(b"1", 10_000_000)))
    add("json: 5 M empty strings", CHAT, inside("x", lambda: array_text(b'""', 5_000_000)))
    add("json: 1 M keys", CHAT, inside("x", lambda: json.dumps({f"k{i}": i for i in range(1_000_000)}).encode()))
    add("json: 64 MiB of text escapes", CHAT, inside("x", lambda: b'"' + b"\\n" * (32 * MIB) + b'"'))
    add(
        "json: 64 MiB of surrogate pairs",
        CHAT,
        inside("x", lambda: b'"' + b"\\ud83d\\ude00" * (64 * MIB // 12) + b'"'),
    )
    add("json: number of 4 M digits", CHAT, inside("max_tokens", lambda: b"9" * 4_000_000), (400,))
    add("json: float of 4 M digits", CHAT, inside("temperature", lambda: b"0." + b"1" * 4_000_000))
    add("json: 1 M floats of 300 digits", CHAT, inside("x", lambda: array_text(b"0." + b"1" * 300, 200_000)))
    add("json: 100 k integers of 4,000 digits", CHAT, inside("x", lambda: array_text(b"7" * 4000, 10_000)))
    add("messages: 1 M", CHAT, chat(messages=lambda: HI * 1_000_000))
    add(
        "messages: one of 64 MiB", CHAT, chat(messages=lambda: [{"role": "user", "content": "word " * (64 * MIB // 5)}])
    )
    add("messages: one of 64 MiB, tokenize", "/tokenize", body(prompt=lambda: "word " * (64 * MIB // 5)))
    add("messages: one of 8 MiB, tokenize", "/tokenize", body(prompt=lambda: "word " * (8 * MIB // 5)))
    add("messages: one word of 4 MiB", "/tokenize", body(prompt=lambda: "x" * (4 * MIB)))
    add(
        "messages: 200 k parts",
        CHAT,
        chat(messages=lambda: [{"role": "user", "content": [{"type": "text", "text": "a"}] * 200_000}]),
    )
    add(
        "messages: 200 k tool calls",
        CHAT,
        chat(
            messages=lambda: [
                *HI,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
                    * 200_000,
                },
            ]
        ),
    )
    add(
        "messages: arguments nested deeply",
        CHAT,
        chat(
            messages=lambda: [
                *HI,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a":' * 50_000 + "1" + "}" * 50_000},
                        }
                    ],
                },
            ]
        ),
    )
    add(
        "messages: arguments of 2 M arrays",
        CHAT,
        chat(
            messages=lambda: [
                *HI,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {
                                "name": "f",
                                "arguments": '{"a":' + array_text(b"[]", 2_000_000).decode() + "}",
                            },
                        }
                    ],
                },
            ]
        ),
    )
    add("tools: 10,000", CHAT, chat(tools=lambda: [tool(f"t{i}") for i in range(10_000)]))
    add(
        "tools: 10,000, required",
        CHAT,
        chat(tools=lambda: [tool(f"t{i}") for i in range(10_000)], tool_choice="required"),
    )
    add(
        "tools: one of 200 k properties, required",
        CHAT,
        chat(tools=lambda: [tool("t", 200_000)], tool_choice="required"),
    )
    add(
        "tools: 1,000 odd names, required",
        CHAT,
        chat(tools=lambda: [tool(f'"\\\n<|im_end|>{i}' * 20) for i in range(1_000)], tool_choice="required"),
    )
    add("template kwargs: 500 k entries", CHAT, chat(chat_template_kwargs=lambda: {f"k{i}": i for i in range(500_000)}))
    add("template kwargs: nested 120", CHAT, inside("chat_template_kwargs", lambda: b'{"a":' * 120 + b"1" + b"}" * 120))
    add("template of the request", CHAT, chat(chat_template="{% for i in range(10**9) %}x{% endfor %}"), (400,))
    add(
        "schema: 100,000 enum values",
        CHAT,
        chat(response_format=lambda: schema({"enum": [f"v{i}" for i in range(100_000)]})),
    )
    add(
        "schema: 100,000 properties",
        CHAT,
        chat(
            response_format=lambda: schema(
                {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100_000)}}
            )
        ),
    )
    add(
        "schema: 16 MiB text",
        CHAT,
        chat(response_format=lambda: schema({"description": "x" * 16 * MIB, "type": "object"})),
    )
    add("schema: nested 63", CHAT, chat(response_format=lambda: schema(nested(30))))
    add("schema: nested 100", CHAT, chat(response_format=lambda: schema(nested(50))), (400,))
    add("schema: ref cycle", CHAT, chat(response_format=schema({"$ref": "#"})))
    add("schema: maxLength 10**18", CHAT, chat(response_format=schema({"type": "string", "maxLength": 10**18})))
    add(
        "schema: 10,000 patterns",
        CHAT,
        chat(
            response_format=lambda: schema(
                {
                    "type": "object",
                    "properties": {
                        f"p{i}": {"type": "string", "pattern": f"^({i}|a|b|[a-z]+x)*$" + "(a|b)" * 50}
                        for i in range(10_000)
                    },
                }
            )
        ),
    )
    add("regex: nested repeats", CHAT, chat(structured_outputs={"regex": "(((a{1000}){1000}){1000}){1000}"}))
    add("regex: 1,000 chars of alternation", CHAT, chat(structured_outputs={"regex": "(a|" * 300 + "b" + ")" * 300}))
    add("regex: big class ranges", CHAT, chat(structured_outputs={"regex": "(?i)" + "[\\u0000-\\U0010ffff]" * 90}))
    add("regex: 8 MiB", CHAT, chat(structured_outputs=lambda: {"regex": "a" * 8 * MIB}))
    add(
        "grammar: 8 MiB",
        CHAT,
        chat(structured_outputs=lambda: {"grammar": "root ::= " + '"a" | ' * (8 * MIB // 6) + '"b"'}),
    )
    add("grammar: left recursion", CHAT, chat(structured_outputs={"grammar": "root ::= root root | root"}))
    add("choice: 200 k", CHAT, chat(structured_outputs=lambda: {"choice": [f"c{i}" for i in range(200_000)]}))
    add(
        "structural tag: 100 k structures",
        CHAT,
        chat(
            response_format=lambda: {
                "type": "structural_tag",
                "structures": [{"begin": f"<{i}>", "schema": {}, "end": "</>"} for i in range(100_000)],
                "triggers": ["<"],
            }
        ),
    )
    add("stop: 4 of 4 MiB", CHAT, chat(stop=lambda: ["ab" * 2 * MIB] * 2 + ["ba" * 2 * MIB] * 2))
    add("stop: 1 M", CHAT, chat(stop=lambda: ["a"] * 1_000_000))
    add("stop_token_ids: 1 M", CHAT, chat(stop_token_ids=lambda: list(range(1_000_000))))
    add("stop_token_ids: 1 M the same", CHAT, chat(stop_token_ids=lambda: [1] * 1_000_000))
    add("logit_bias: 500 k", CHAT, chat(logit_bias=lambda: {str(i): 1 for i in range(500_000)}))
    add("allowed_token_ids: 1 M", CHAT, chat(allowed_token_ids=lambda: list(range(1_000_000))))
    add("bad_words: 128 of 64 KiB", CHAT, chat(bad_words=lambda: [f"{i}" + " word" * 13_000 for i in range(128)]))
    add("vllm_xargs: 1 M entries", CHAT, chat(vllm_xargs=lambda: {"a": [1] * 1_000_000}))
    add("metadata: 1 M", CHAT, chat(metadata=lambda: {f"k{i}": "v" for i in range(1_000_000)}))
    add("n: 128", CHAT, chat(n=128))
    add("n: 10**9", CHAT, chat(n=10**9), (400,))
    add(
        "n: 128, prompt of 7,000 tokens",
        CHAT,
        chat(n=128, messages=lambda: [{"role": "user", "content": "a " * 7_000}]),
    )
    add("prompts: 1,024 with n 128", COMPLETIONS, completion(prompt=lambda: ["hi"] * 1024, n=128))
    add("prompts: 1,024 of 4,000 tokens", COMPLETIONS, completion(prompt=lambda: ["a " * 4_000] * 1024))
    add("prompts: 1,024 of 4,000 ids", COMPLETIONS, completion(prompt=lambda: [[7] * 4_000] * 1024))
    add("prompts: 1,024 of 4,000 ids, echo", COMPLETIONS, completion(prompt=lambda: [[7] * 4_000] * 1024, echo=True))
    add("prompt: 5 M ids", COMPLETIONS, completion(prompt=lambda: [7] * 5_000_000))
    add("prompt: ids out of range", COMPLETIONS, completion(prompt=[10**30, 1]), (400,))
    add("prompt: 64 MiB text", COMPLETIONS, completion(prompt=lambda: "word " * (64 * MIB // 5)))
    add(
        "prompt: 64 MiB text, truncated",
        COMPLETIONS,
        completion(prompt=lambda: "word " * (64 * MIB // 5), truncate_prompt_tokens=10),
    )
    add("detokenize: 2 M ids", "/detokenize", body(model=MODEL, tokens=lambda: [7] * 2_000_000))
    add("detokenize: 500 k lists", "/v1/detokenize", body(model=MODEL, tokens=lambda: [[7]] * 500_000))
    add("v1/tokenize: 500 k texts", "/v1/tokenize", body(model=MODEL, prompt=lambda: ["a"] * 500_000))
    add(
        "tokenize: 2 MiB with token_strs",
        "/tokenize",
        body(prompt=lambda: "word " * (2 * MIB // 5), return_token_strs=True),
    )
    add(
        "embeddings: 1,024 of 4,000 ids",
        "/v1/embeddings",
        body(model=MODEL, input=lambda: [[7] * 4_000] * 1024),
        (200, 400, 501),
    )
    add(
        "rerank: 1,024 of 16 KiB",
        "/v1/rerank",
        body(model=MODEL, query="q", documents=lambda: ["a " * 8192] * 1024),
        (200, 400, 501),
    )
    add(
        "parse: 8 MiB of call openings",
        "/parse/function_call",
        body(text=lambda: "<tool_call>" * (8 * MIB // 11), tool_call_parser="hermes"),
    )
    add(
        "parse: 8 MiB of half markers",
        "/parse/function_call",
        body(text=lambda: "<tool_cal" * (8 * MIB // 9), tool_call_parser="hermes"),
    )
    add(
        "parse: 200 k calls",
        "/parse/function_call",
        body(text=lambda: '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 200_000, tool_call_parser="hermes"),
    )
    add(
        "parse: arguments nested",
        "/parse/function_call",
        body(text=lambda: '<tool_call>{"name": "f", "arguments": ' + "[" * MIB, tool_call_parser="hermes"),
    )
    add(
        "parse: 8 MiB thought",
        "/parse/reasoning",
        body(text=lambda: "<think>" * (8 * MIB // 7), reasoning_parser="qwen3"),
    )
    add(
        "messages api: 1 M blocks",
        "/v1/messages",
        body(
            model=MODEL,
            max_tokens=2,
            messages=lambda: [{"role": "user", "content": [{"type": "text", "text": "a"}] * 500_000}],
        ),
    )
    add(
        "messages api: 10,000 tools",
        "/v1/messages",
        body(
            model=MODEL,
            max_tokens=2,
            messages=HI,
            tools=lambda: [{"name": f"t{i}", "input_schema": {"type": "object"}} for i in range(10_000)],
        ),
    )
    add(
        "responses: 500 k items",
        "/v1/responses",
        body(model=MODEL, max_output_tokens=16, input=lambda: [{"role": "user", "content": "a"}] * 500_000),
    )
    add(
        "responses: 8 MiB input kept",
        "/v1/responses",
        body(model=MODEL, max_output_tokens=16, input=lambda: "a " * 4 * MIB),
    )
    add(
        "conversations: 200 k items",
        "/v1/conversations",
        body(items=lambda: [{"type": "message", "role": "user", "content": "a"}] * 200_000),
    )
    add("generate: 1 M ids", "/generate", body(model=MODEL, input_ids=lambda: [7] * 1_000_000))
    add(
        "generate: 1,024 lists",
        "/generate",
        body(model=MODEL, input_ids=lambda: [[7] * 2_000] * 1024, sampling_params={"max_new_tokens": 2}),
    )
    add("gzip bomb", CHAT, _gzip_bomb, (400, 415), **{"content-encoding": "gzip"})
    add("gzip bomb, tokenize", "/tokenize", _gzip_bomb, (400, 415), **{"content-encoding": "gzip"})
    add(
        "multipart", CHAT, lambda: b"--x\r\n" * 1_000_000, (415,), **{"content-type": "multipart/form-data; boundary=x"}
    )
    return made


REQUESTS = _requests()
