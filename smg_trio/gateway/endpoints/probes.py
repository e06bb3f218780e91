"""Probes: open to everyone, no secrets, always fast."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from smg_trio.gateway.http import Request, Response, json_response, text_response

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway


async def liveness(gateway: Gateway, request: Request) -> Response:
    """The process runs: 200 ``OK``, also while draining. Further lines say what it has to do without."""
    return text_response("\n".join(["OK", *_degraded(gateway)]))


async def readiness(gateway: Gateway, request: Request) -> Response:
    """200 while requests would be served; 503 with the reason, from the moment draining begins."""
    seen = gateway.readiness()
    body: dict[str, object] = {"status": "ready" if seen.ready else "not ready"}
    if not seen.ready:
        body["reason"] = seen.reason
    if seen.detail:
        body["detail"] = seen.detail
    if degraded := _degraded(gateway):
        body["degraded"] = degraded
    body |= {"healthy_workers": seen.ready_workers, "total_workers": seen.workers}
    return json_response(json.dumps(body).encode(), 200 if seen.ready else 503)


def _degraded(gateway: Gateway) -> list[str]:
    return [f"degraded: {calls} is off: {calls.off}" for calls in gateway.plugins.calls if calls.off]
