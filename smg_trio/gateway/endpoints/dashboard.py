"""``GET /dashboard``: the live page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.gateway.dashboard.page import page
from smg_trio.gateway.http import Request, Response

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway


async def dashboard(gateway: Gateway, request: Request) -> Response:
    """The live page: workers, load, latency, requests, errors, and a chat to try a model."""
    body, headers = page()
    return Response(200, body, list(headers))
