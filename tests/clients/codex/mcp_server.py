"""An MCP server on stdin and stdout with one tool: the smallest that an agent can be given."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "locate",
    "description": "Say where a city is.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """The result of one request."""
    match message["method"]:
        case "initialize":
            version = message["params"]["protocolVersion"]
            server = {"name": "geo", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            city = message["params"]["arguments"]["city"]
            return {"content": [{"type": "text", "text": f"{city} is in the north"}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": answer(request)}), flush=True)
