"""What apps on bare ASGI share: a request's headers as text, and responses in one piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.gateway.http import WEBSOCKET

if TYPE_CHECKING:
    from smg_trio.gateway.http import Headers, Response
    from smg_trio.http.asgi import Scope, Send


def method_of(scope: Scope) -> str:
    """The HTTP method, or `WEBSOCKET`."""
    method: str = scope["method"] if scope["type"] == "http" else WEBSOCKET
    return method


def headers_of(scope: Scope) -> dict[str, str]:
    """By lower-case name; of repeated ones the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def raw_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """As ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]


async def send_whole(send: Send, response: Response, body: bytes, extra: Headers) -> None:
    """Send `response` with this body and `extra` headers."""
    headers = raw_headers([*response.headers, *extra, ("content-length", str(len(body)))])
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_refusal(send: Send, method: str, response: Response) -> None:
    """Send the answer of `refusals.refuse`, also to a WebSocket handshake, and close the connection after it."""
    assert isinstance(response.body, bytes), "refusals have a body"
    kind = "websocket.http.response" if method == WEBSOCKET else "http.response"
    headers = raw_headers([*response.headers, ("content-length", str(len(response.body))), ("connection", "close")])
    await send({"type": f"{kind}.start", "status": response.status, "headers": headers})
    await send({"type": f"{kind}.body", "body": response.body})
