"""Tools of type ``mcp`` in the Responses API: what a request says of a server, and what is shown of that.

Fields, defaults and what a response shows of them are those of OpenAI's API (openai-python 3.57,
``types/responses/tool.py``): calls need approval unless ``require_approval`` says ``never``. Headers and the path of a
URL may hold secrets: they are neither shown nor kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from smg_trio.api.parameters.fields import (
    array_of,
    boolean,
    describe,
    filled_string,
    mapping,
    one_of,
    read_fields,
    refuse,
    string,
    take,
)
from smg_trio.core.errors import UnsupportedFeature
from smg_trio.core.mcp import McpServer, ToolFilter

_LABEL: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]{0,8190}[\x21-\x7e])?")
_OWN_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect",
        "host", "keep-alive", "last-event-id", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade",
    }
)  # fmt: skip
_REDACTED: Final = "<redacted>"


def parse_mcp_tool(tool: Mapping[str, Any], param: str) -> McpServer:
    """Read a tool of type ``mcp``.

    Raises:
        InvalidRequest: naming the member.
        UnsupportedFeature: for OpenAI's connectors and tunnels.
    """
    prefix = f"{param}."
    for member in ("connector_id", "tunnel_id"):
        if tool.get(member) is not None:
            problem = f"'{prefix}{member}' is not supported: use 'server_url'."
            raise UnsupportedFeature(problem, param=f"{prefix}{member}")
    for member in ("server_label", "server_url"):
        if tool.get(member) is None:
            raise refuse(f"{prefix}{member}", "is required")
    label = filled_string(tool["server_label"], f"{prefix}server_label")
    if not _LABEL.fullmatch(label):
        problem = "must begin with a letter and have at most 64 letters, digits, '_' and '-'"
        raise refuse(f"{prefix}server_label", problem)
    return McpServer(
        label,
        filled_string(tool["server_url"], f"{prefix}server_url"),
        param,
        _headers(tool, param),
        _allowed(tool.get("allowed_tools"), f"{prefix}allowed_tools"),
        _approved(tool.get("require_approval"), f"{prefix}require_approval"),
    )


def _headers(tool: Mapping[str, Any], param: str) -> tuple[tuple[str, str], ...]:
    given = take(tool, "headers", mapping, prefix=f"{param}.") or {}
    found: dict[str, str] = {}
    for name, value in given.items():
        path = f"{param}.headers.{name[:64]}"
        if not _HEADER.fullmatch(name):
            raise refuse(f"{param}.headers", f"{describe(name)} is not the name of a header")
        if name.lower() in _OWN_HEADERS or name.lower().startswith("mcp-"):
            raise refuse(path, "is a header that the gateway sets itself")
        if not _HEADER_VALUE.fullmatch(string(value, path)):
            raise refuse(path, "must have 1 to 8192 characters, all of printable ASCII")
        found[name.lower()] = value
    token = take(tool, "authorization", filled_string, prefix=f"{param}.")
    if token is not None:
        if "authorization" in found:
            raise refuse(f"{param}.authorization", "cannot be used together with an Authorization header")
        if not _HEADER_VALUE.fullmatch(token):
            raise refuse(f"{param}.authorization", "must have 1 to 8192 characters, all of printable ASCII")
        found["authorization"] = f"Bearer {token}"
    return tuple(found.items())


def _allowed(value: Any, param: str) -> ToolFilter | None:
    if value is None:
        return None
    if isinstance(value, list):
        return ToolFilter(frozenset(array_of(string)(value, param)))
    return _filter(value, param)


def _filter(value: Any, param: str) -> ToolFilter:
    if not isinstance(value, dict):
        raise refuse(param, f"expected an array of names or a filter object, got {describe(value)}")
    found = read_fields(value, {"tool_names": array_of(string), "read_only": boolean}, prefix=f"{param}.")
    names = found.get("tool_names")
    return ToolFilter(None if names is None else frozenset(names), found.get("read_only"))


def _approved(value: Any, param: str) -> ToolFilter | None:
    """The tools that need no approval; None for none of them."""
    if isinstance(value, dict):
        if value.get("always") is not None:
            _filter(value["always"], f"{param}.always")
        never = value.get("never")
        return None if never is None else _filter(never, f"{param}.never")
    if value is None or one_of(("always", "never"))(value, param) == "always":
        return None
    return ToolFilter()


def shown_mcp_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool as the response object repeats it, and as it is kept: without what may be secret."""
    shown = {name: value for name, value in tool.items() if name != "authorization"}
    headers, url = tool.get("headers"), tool.get("server_url")
    if isinstance(headers, dict):
        shown["headers"] = dict.fromkeys(headers, _REDACTED)
    if isinstance(url, str):
        shown["server_url"] = _without_path(url)
    return shown


def _without_path(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return _REDACTED
    if not parts.netloc:
        return _REDACTED
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return (
        f"{origin}/{_REDACTED}" if parts.path.strip("/") or parts.query or parts.fragment else f"{origin}{parts.path}"
    )
