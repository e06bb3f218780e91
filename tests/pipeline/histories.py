"""Conversations as agents and chat programs send them, each as a whole request body of one API, in words of our own.

The forms are those of real programs: Claude Code 2.1 (Messages), Codex CLI (Responses), opencode, Cline, Open WebUI,
LangChain and programs on Vercel's AI SDK (chat), with the calls of other servers and models in their histories.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smg_trio.api.anthropic.messages import parse_messages_request
from smg_trio.api.openai.chat.request import ChatRequest, parse_chat_request
from smg_trio.api.openai.responses.request import parse_responses_request

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """A request, and what of it must be in the prompt of every template.

    Attributes:
        texts: said by somebody.
        calls: names and argument values of calls.
        reasoning: of the turn in progress: for templates that show any.
    """

    api: Literal["chat", "responses", "messages"]
    body: Body
    texts: tuple[str, ...]
    calls: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()

    def request(self) -> ChatRequest:
        """The request in chat terms, as the gateway reads it."""
        return _READERS[self.api](json.dumps({"model": "m", **self.body}).encode())


_READERS: Mapping[str, Callable[[bytes], ChatRequest]] = {
    "chat": parse_chat_request,
    "responses": lambda body: parse_responses_request(body).chat(),
    "messages": lambda body: parse_messages_request(body).chat,
}

_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "command": {"description": "What to run", "type": "string", "minLength": 1},
        "timeout": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991, "default": 30000},
        "mode": {"type": "string", "enum": ["run", "dry"], "default": "run"},
        "status": {"anyOf": [{"type": "string", "enum": ["open", "done"]}, {"type": "string", "const": "gone"}]},
        "findings": {
            "maxItems": 32,
            "type": "array",
            "items": {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]},
        },
        "metadata": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}},
        "note": {"type": ["string", "null"]},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


def _chat_tools(*names: str) -> list[Body]:
    tools = [
        {"type": "function", "function": {"name": n, "description": f"Does {n}", "parameters": _SCHEMA}} for n in names
    ]
    return [*tools, {"type": "function", "function": {"name": "noop"}}]


def _claude_tools(*names: str) -> list[Body]:
    tools: list[Body] = [{"name": name, "description": f"Does {name}", "input_schema": _SCHEMA} for name in names]
    return [*tools, {"name": "Noop", "description": "", "input_schema": _EMPTY}]


def _call(call_id: str | None, name: str, **arguments: Any) -> Body:
    text = json.dumps(arguments, separators=(",", ":"))
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _result(call_id: str, content: Any) -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


# --- Claude Code ------------------------------------------------------------------------------------------

_CLAUDE_SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197; cc_entrypoint=cli;"},
    {"type": "text", "text": "CLAUDEIDENTITY", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "\nCLAUDERULES\n", "cache_control": {"type": "ephemeral"}},
]
_CLAUDE_START = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nREMINDER\n</system-reminder>"},
            {"type": "text", "text": "FIRSTTASK", "cache_control": {"type": "ephemeral"}},
        ],
    },
    {"role": "system", "content": "AGENTTYPES\n- one: does it"},
]


def _claude_round(number: int, *, with_text: bool = True) -> list[Body]:
    use = {"type": "tool_use", "id": f"toolu_01Zabc{number}", "name": "Bash", "input": {"command": f"CMD{number}"}}
    thinking = {"type": "thinking", "thinking": f"THOUGHT{number}", "signature": "c2lnbmVk"}
    text = [{"type": "text", "text": f"LOOK{number}"}] if with_text else []
    result = {
        "type": "tool_result",
        "tool_use_id": use["id"],
        "content": [{"type": "text", "text": f"OUT{number}"}],
        "is_error": False,
    }
    return [{"role": "assistant", "content": [thinking, *text, use]}, {"role": "user", "content": [result]}]


def _claude(*turns: Body, **fields: Any) -> Body:
    return {
        "max_tokens": 64000,
        "system": _CLAUDE_SYSTEM,
        "tools": _claude_tools("Bash", "Read"),
        "messages": [*_CLAUDE_START, *turns],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": '{"device_id":"0"}'},
        "stream": True,
        **fields,
    }


_CLAUDE_TEXTS = ("CLAUDEIDENTITY", "CLAUDERULES", "REMINDER", "FIRSTTASK", "AGENTTYPES")
_PARALLEL_USES = [
    {"type": "tool_use", "id": "toolu_a", "name": "Bash", "input": {"command": "CMDA"}},
    {"type": "tool_use", "id": "toolu_b", "name": "Read", "input": {"command": "CMDB"}},
]
_PARALLEL_RESULTS = [
    {"type": "tool_result", "tool_use_id": "toolu_b", "content": "OUTB"},
    {"type": "tool_result", "tool_use_id": "toolu_a", "content": "OUTA", "is_error": True},
    {"type": "text", "text": "INTERRUPTED"},
]
_SEARCH_ADDITION = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "Ping"}}

_CLAUDE = {
    "claude code: start": History("messages", _claude(), _CLAUDE_TEXTS),
    "claude code: title": History(
        "messages",
        {
            "max_tokens": 512,
            "system": [{"type": "text", "text": "TITLERULES"}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "TITLETASK"}]}],
            "thinking": {"type": "disabled"},
        },
        ("TITLERULES", "TITLETASK"),
    ),
    "claude code: rounds": History(
        "messages",
        _claude(*_claude_round(1), *_claude_round(2, with_text=False), {"role": "system", "content": "LATERSYSTEM"}),
        (*_CLAUDE_TEXTS, "LOOK1", "OUT1", "OUT2", "LATERSYSTEM"),
        ("Bash", "CMD1", "CMD2"),
        ("THOUGHT2",),
    ),
    "claude code: parallel calls and an interruption": History(
        "messages",
        _claude({"role": "assistant", "content": _PARALLEL_USES}, {"role": "user", "content": _PARALLEL_RESULTS}),
        (*_CLAUDE_TEXTS, "OUTA", "OUTB", "INTERRUPTED"),
        ("CMDA", "CMDB"),
    ),
    "claude code: later turns": History(
        "messages",
        _claude(
            *_claude_round(1, with_text=False),
            {"role": "assistant", "content": [{"type": "text", "text": "DONE1"}]},
            {"role": "user", "content": "NEXTTASK"},
            {"role": "user", "content": [{"type": "text", "text": "ANDTHIS"}]},
        ),
        (*_CLAUDE_TEXTS, "OUT1", "DONE1", "NEXTTASK", "ANDTHIS"),
        ("CMD1",),
    ),
    "claude code: tool search": History(
        "messages",
        _claude(
            {"role": "system", "content": [{"type": "text", "text": "NEWTOOLS"}, _SEARCH_ADDITION]},
            tools=[*_claude_tools("Bash"), {"name": "Ping", "input_schema": _EMPTY, "defer_loading": True}],
        ),
        (*_CLAUDE_TEXTS, "NEWTOOLS"),
    ),
}

# --- chat: opencode, Cline, Open WebUI, LangChain, the AI SDK -------------------------------------------------

_AI_SDK_ROUNDS: list[Body] = [
    {"role": "system", "content": "AGENTRULES"},
    {"role": "user", "content": [{"type": "text", "text": "PARTONE"}, {"type": "text", "text": "PARTTWO"}]},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "THOUGHT",
        "tool_calls": [_call("call_UmkPVCm6SgzVQ2bLSqVdYz3p", "bash", command="CMD1")],
    },
    _result("call_UmkPVCm6SgzVQ2bLSqVdYz3p", '{"type":"text","value":"OUT1"}'),
]
_ROUND_TEXTS = ("AGENTRULES", "PARTONE", "PARTTWO", "OUT1")

_CHAT = {
    "ai sdk: a round": History(
        "chat",
        {"messages": _AI_SDK_ROUNDS, "tools": _chat_tools("bash")},
        _ROUND_TEXTS,
        ("bash", "CMD1"),
        ("THOUGHT",),
    ),
    "opencode: two system messages, text beside calls, a second round": History(
        "chat",
        {
            "messages": [
                _AI_SDK_ROUNDS[0],
                {"role": "system", "content": "ENVIRONMENT"},
                *_AI_SDK_ROUNDS[1:],
                {
                    "role": "assistant",
                    "content": "TEXTBESIDE",
                    "tool_calls": [
                        _call("chatcmpl-tool-1f0c", "bash", command="CMD2"),
                        _call("functions.read:3", "read", command="CMD3"),
                    ],
                },
                _result("functions.read:3", "OUT3"),
                _result("chatcmpl-tool-1f0c", "OUT2"),
            ],
            "tools": _chat_tools("bash", "read"),
        },
        (*_ROUND_TEXTS, "ENVIRONMENT", "TEXTBESIDE", "OUT2", "OUT3"),
        ("CMD1", "CMD2", "CMD3"),
    ),
    "opencode: context was compressed": History(
        "chat",
        {
            "messages": [
                _AI_SDK_ROUNDS[0],
                {"role": "assistant", "content": "SUMMARY"},
                {"role": "user", "content": "GOON"},
                {"role": "user", "content": "PLEASE"},
                {"role": "assistant", "content": "SURE"},
                {"role": "assistant", "content": "ANDMORE"},
                {"role": "system", "content": "MODECHANGED"},
                {"role": "user", "content": "LAST"},
            ],
            "tools": _chat_tools("bash"),
        },
        ("AGENTRULES", "SUMMARY", "GOON", "PLEASE", "SURE", "ANDMORE", "MODECHANGED", "LAST"),
    ),
    "cline: tools in text, parts": History(
        "chat",
        {
            "messages": [
                {"role": "system", "content": "CLINERULES"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "<task>\nTASK\n</task>"},
                        {"type": "text", "text": "ENVDETAILS"},
                    ],
                },
                {"role": "assistant", "content": [{"type": "text", "text": "<read_file>READIT</read_file>"}]},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "[read_file] Result:"}, {"type": "text", "text": "FILE"}],
                },
            ]
        },
        ("CLINERULES", "TASK", "ENVDETAILS", "READIT", "FILE"),
    ),
    "cline: native calls with reasoning details": History(
        "chat",
        {
            "messages": [
                {"role": "system", "content": "CLINERULES"},
                {"role": "user", "content": [{"type": "text", "text": "TASK"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_details": [{"type": "reasoning.text", "text": "THOUGHT", "index": 0}],
                    "tool_calls": [_call("toolu_vrtx_01", "bash", command="CMD1")],
                },
                _result("toolu_vrtx_01", [{"type": "text", "text": "OUT1"}]),
            ],
            "tools": _chat_tools("bash"),
        },
        ("CLINERULES", "TASK", "OUT1"),
        ("CMD1",),
        ("THOUGHT",),
    ),
    "open webui: a greeting, then a native round and its answer": History(
        "chat",
        {
            "messages": [
                {"role": "assistant", "content": "GREETING"},
                {"role": "user", "content": "QUESTION"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{**_call("call_0", "bash", command="CMD1"), "index": 0}],
                },
                _result("call_0", "OUT1"),
                {"role": "assistant", "content": "ANSWER"},
                {"role": "user", "content": "FOLLOWUP"},
            ],
            "tools": _chat_tools("bash"),
        },
        ("GREETING", "QUESTION", "OUT1", "ANSWER", "FOLLOWUP"),
        ("CMD1",),
    ),
    "open webui: knowledge as a late system message, no tools left": History(
        "chat",
        {
            "messages": [
                {"role": "user", "content": "QUESTION"},
                {"role": "assistant", "content": None, "tool_calls": [_call("", "bash", command="CMD1")]},
                _result("", "OUT1"),
                {"role": "system", "content": "KNOWLEDGE"},
                {"role": "user", "content": "FOLLOWUP"},
            ]
        },
        ("QUESTION", "OUT1", "KNOWLEDGE", "FOLLOWUP"),
        ("CMD1",),
    ),
    "langchain: a developer message, names, a summary, then the deprecated function call": History(
        "chat",
        {
            "messages": [
                {"role": "developer", "content": "DEVRULES"},
                {"role": "system", "content": "MEMORY"},
                {"role": "user", "content": "QUESTION", "name": "eva"},
                {
                    "role": "assistant",
                    "content": None,
                    "function_call": {"name": "bash", "arguments": '{"command": "CMD1"}'},
                },
                {"role": "function", "name": "bash", "content": "OUT1"},
                {"role": "user", "content": "WELL"},
            ],
            "tools": _chat_tools("bash"),
        },
        ("DEVRULES", "MEMORY", "QUESTION", "OUT1", "WELL"),
        ("CMD1",),
    ),
    "empty and null contents": History(
        "chat",
        {
            "messages": [
                {"role": "system", "content": "RULES"},
                {"role": "user", "content": "QUESTION"},
                {"role": "assistant", "content": None, "refusal": "NOPE"},
                {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "WHY"}]},
                {"role": "assistant", "content": "BECAUSE", "tool_calls": []},
                {"role": "user", "content": "OK"},
            ]
        },
        ("RULES", "QUESTION", "NOPE", "WHY", "BECAUSE", "OK"),
    ),
    "only a system message": History("chat", {"messages": [{"role": "system", "content": "RULES"}]}, ("RULES",)),
}

# --- Responses: Codex CLI, the AI SDK's default for OpenAI ----------------------------------------------------

_CODEX_TOOLS = [
    {"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": _SCHEMA},
    {"type": "function", "name": "update_plan", "description": "Plans", "strict": False, "parameters": _EMPTY},
]
_CODEX_START = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "PERMISSIONS"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ENVIRONMENT"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "TASK"}]},
]
_CODEX_TEXTS = ("CODEXRULES", "PERMISSIONS", "ENVIRONMENT", "TASK")


def _codex(*items: Body) -> Body:
    return {
        "instructions": "CODEXRULES",
        "input": [*_CODEX_START, *items],
        "tools": _CODEX_TOOLS,
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
    }


def _codex_call(number: int) -> Body:
    arguments = json.dumps({"command": f"CMD{number}"})
    return {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": f"call_{number}xYz"}


def _codex_output(number: int) -> Body:
    return {"type": "function_call_output", "call_id": f"call_{number}xYz", "output": f"OUT{number}"}


_RESPONSES = {
    "codex: start": History("responses", _codex(), _CODEX_TEXTS),
    "codex: reasoning, two calls, then both outputs": History(
        "responses",
        _codex(
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "THOUGHT"}], "content": None},
            _codex_call(1),
            _codex_call(2),
            _codex_output(1),
            _codex_output(2),
        ),
        (*_CODEX_TEXTS, "OUT1", "OUT2"),
        ("CMD1", "CMD2"),
        ("THOUGHT",),
    ),
    "codex: steered while a call runs": History(
        "responses",
        _codex(
            {"type": "reasoning", "summary": [], "encrypted_content": "Z2FB"},
            _codex_call(1),
            {"role": "user", "content": "STEER"},
            _codex_output(1),
        ),
        (*_CODEX_TEXTS, "STEER", "OUT1"),
        ("CMD1",),
    ),
    "responses: instructions and a system item": History(
        "responses",
        {
            "instructions": "CODEXRULES",
            "input": [{"role": "system", "content": "SYSTEMITEM"}, {"role": "user", "content": "TASK"}],
        },
        ("CODEXRULES", "SYSTEMITEM", "TASK"),
    ),
    "responses: tools of another server": History(
        "responses",
        {
            "input": [
                {"role": "user", "content": "TASK"},
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                {"type": "code_interpreter_call", "code": "CODE1", "outputs": [{"type": "logs", "logs": "OUT1"}]},
                {"role": "assistant", "content": [{"type": "output_text", "text": "ANSWER"}]},
                {"role": "user", "content": "MORE"},
            ]
        },
        ("TASK", "OUT1", "ANSWER", "MORE"),
        ("code_interpreter", "CODE1"),
    ),
}

HISTORIES: Mapping[str, History] = {**_CLAUDE, **_CHAT, **_RESPONSES}
