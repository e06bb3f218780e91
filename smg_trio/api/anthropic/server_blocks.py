"""Blocks that Anthropic's own servers put into a turn: calls of tools that ran there, and what came of them.

A conversation that began there holds them. They are read as calls and results of ordinary tools, which is what they
were to the model; what only Anthropic can read (``encrypted_content``) is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

SERVER_CALLS: Final = frozenset({"server_tool_use", "mcp_tool_use"})
SERVER_RESULTS: Final = frozenset(
    {
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "mcp_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
_UNREADABLE: Final = frozenset({"encrypted_content", "encrypted_index", "encrypted_stdout", "cache_control"})


def server_result_text(content: Any) -> str:
    """The content of a server tool's result as text: its text blocks, else JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(_is_text(block) for block in content):
        return "\n".join([block["text"] for block in content])
    return json.dumps(_readable(content), ensure_ascii=False)


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _readable(value: Any) -> Any:
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items() if key not in _UNREADABLE}
    return value
