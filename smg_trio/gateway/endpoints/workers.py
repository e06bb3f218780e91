"""``GET /workers`` and ``GET /workers/{worker_id}``: what the workers are and why they are not ready."""

from __future__ import annotations

import json

from smg_trio.api.workers import worker_value, workers_value
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.state import Gateway


async def workers(gateway: Gateway, request: Request) -> Response:
    """All workers, or those of one model (``?model=``)."""
    found = gateway.registry.workers(request.query.get("model"))
    values = [worker_value(worker.snapshot(), gateway.registry.load(worker.spec.worker_id)) for worker in found]
    return json_response(json.dumps(workers_value(values)).encode())


async def worker(gateway: Gateway, request: Request) -> Response:
    """One worker by its id. Raises NotFound."""
    found = gateway.registry.get(request.path_parameters["worker_id"])
    value = worker_value(found.snapshot(), gateway.registry.load(found.spec.worker_id))
    return json_response(json.dumps(value).encode())
