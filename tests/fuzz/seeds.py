"""Valid bodies of every endpoint that takes one, as rich as they get: what mutations begin with."""

from __future__ import annotations

from typing import Any

MODEL = "m"
_WEATHER = {
    "name": "get_weather",
    "description": "Weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z]", "enum": ["Paris", "Rome"]}, "days": {"type": "integer"},
        },
        "required": ["city"],
        "$defs": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}},
    },
}  # fmt: skip
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
_MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "text", "text": "Now."}]},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    {"role": "user", "content": "Thanks", "name": "Ann"},
]
_SAMPLING: dict[str, Any] = {
    "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "n": 2, "stop": ["x", "yz"],
    "stop_token_ids": [3], "logit_bias": {"5": -2}, "presence_penalty": 0.1, "frequency_penalty": 0.1,
    "repetition_penalty": 1.1, "min_tokens": 1, "bad_words": ["bad"], "allowed_token_ids": [1, 2, 3], "priority": 1,
    "ignore_eos": True, "skip_special_tokens": False, "cache_salt": "s", "vllm_xargs": {"a": [1]},
    "repetition_detection": {"max_pattern_size": 3, "min_count": 2}, "truncate_prompt_tokens": 20, "stream": False,
}  # fmt: skip

SEEDS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {
            "model": MODEL, "messages": _MESSAGES, "max_tokens": 2, "stream": True,
            "stream_options": {"include_usage": True},
        },
        {"model": MODEL, "messages": _MESSAGES, **_SAMPLING, "logprobs": True, "top_logprobs": 2, "echo": True},
        {
            "model": MODEL, "messages": _MESSAGES, "max_tokens": 4,
            "tools": [{"type": "function", "function": _WEATHER}],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}}, "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": False}, "documents": [{"title": "t", "text": "x"}],
        },
        {
            "model": MODEL, "messages": _MESSAGES, "max_tokens": 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _WEATHER["parameters"]}},
        },
        {"model": MODEL, "messages": _MESSAGES, "max_tokens": 2, "structured_outputs": {"regex": "[a-z]+(x|y){2,3}"}},
        {
            "model": MODEL, "max_tokens": 2,
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "refusal": "No.", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "Sunny."},
                {
                    "role": "assistant", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
                    "tool_calls": [{"id": "c2", "type": "custom", "custom": {"name": "g", "input": "x"}}, _CALL],
                },
                {"role": "system", "content": [{"type": "text", "text": "Now."}]},
                {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "done"}]},
            ],
        },
    ],
    "/v1/completions": [
        {"model": MODEL, "prompt": "hi", **_SAMPLING, "logprobs": 2, "echo": True},
        {"model": MODEL, "prompt": [[1, 2, 3], [4]], "max_tokens": 2, "stream": True, "n": 2},
    ],
    "/v1/messages": [
        {
            "model": MODEL, "max_tokens": 3, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["x"],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "Sunny."}]},
            ],
            "tools": [{"name": "get_weather", "input_schema": _WEATHER["parameters"]}], "tool_choice": {"type": "auto"},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"}, "stream": True,
        },
        {
            "model": MODEL, "max_tokens": 3,
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "system",
                    "content": [
                        {"type": "text", "text": "New tools."},
                        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "ping"}},
                        {
                            "type": "tool_addition",
                            "tool": {"type": "tool_definition", "definition": {"name": "new", "input_schema": {}}},
                        },
                        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
                        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": "T"}]},
                        {"type": "text", "text": "It is"},
                    ],
                },
            ],
            "tools": [
                {"name": "get_weather", "input_schema": _WEATHER["parameters"]},
                {"name": "ping", "input_schema": {"type": "object"}, "defer_loading": True},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
        },
    ],
    "/v1/messages/count_tokens": [{"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}],
    "/v1/responses": [
        {
            "model": MODEL, "max_output_tokens": 16, "instructions": "Be brief.", "metadata": {"a": "b"}, "store": True,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
            ],
            "tools": [{"type": "function", **_WEATHER}], "tool_choice": "auto",
            "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "stream": False,
        },
        {
            "model": MODEL, "max_output_tokens": 16,
            "input": [
                {"role": "user", "content": "Weather?"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "x"},
                {"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": "1"}]},
                {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "x"},
                {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
                {"role": "system", "content": "Now."},
                {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a"}]},
                {"type": "web_search_call", "id": "w1"},
            ],
        },
    ],
    "/v1/conversations": [
        {"metadata": {"a": "b"}, "items": [{"type": "message", "role": "user", "content": "hi"}]},
    ],
    "/generate": [
        {
            "text": "hi", "sampling_params": {"max_new_tokens": 2, "stop": ["x"], "n": 2, "regex": "a+"},
            "return_logprob": True,
        },
        {"input_ids": [[1, 2], [3]], "sampling_params": {"max_new_tokens": 2}, "stream": True},
    ],
    "/v1/embeddings": [{"model": MODEL, "input": ["a", "b"], "dimensions": 2, "encoding_format": "base64"}],
    "/v1/score": [{"model": MODEL, "queries": "a", "documents": ["b", "c"], "truncate_prompt_tokens": 9}],
    "/v1/rerank": [
        {"model": MODEL, "query": "a", "documents": ["b", {"content": [{"type": "text", "text": "c"}]}], "top_n": 1},
    ],
    "/classify": [{"model": MODEL, "input": [[1, 2], [3]]}],
    "/tokenize": [{"model": MODEL, "prompt": "hi", "return_token_strs": True}, {"model": MODEL, "messages": _MESSAGES}],
    "/detokenize": [{"model": MODEL, "tokens": [1, 2, 3]}],
    "/v1/tokenize": [{"model": MODEL, "prompt": ["a", "b"]}],
    "/v1/detokenize": [{"model": MODEL, "tokens": [[1], [2, 3]]}],
    "/parse/function_call": [
        {
            "text": '<tool_call>{"name": "f"}</tool_call>', "tool_call_parser": "hermes",
            "tools": [{"type": "function", "function": _WEATHER}],
        },
    ],
    "/parse/reasoning": [{"text": "<think>a</think>b", "reasoning_parser": "qwen3"}],
    "/workers": [{"url": "ipc:///proc/none/worker", "model_id": "other", "priority": 3, "labels": {"a": "b"}}],
}  # fmt: skip
