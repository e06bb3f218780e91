"""What the server says of itself: version, models, workers, loads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CONTENT_TYPE_LATEST

from smg_trio import __version__
from smg_trio.api.server_info import loads_body, model_info_body, server_info_body, server_load_body, version_body
from smg_trio.api.workers import worker_value
from smg_trio.core.errors import SmgError
from smg_trio.core.workers import WorkerState
from smg_trio.gateway.http import Request, Response, json_response, text_response
from smg_trio.text.chat_template import ChatTemplate

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.text.mistral_chat import MistralChat


async def show_version(gateway: Gateway, request: Request) -> Response:
    """The gateway's version."""
    return json_response(version_body(__version__))


async def metrics(gateway: Gateway, request: Request) -> Response:
    """All metrics as Prometheus text."""
    return Response(200, gateway.metrics.exposition(), [("content-type", CONTENT_TYPE_LATEST)])


async def ping(gateway: Gateway, request: Request) -> Response:
    """Empty: 200 while requests would be served, else 503."""
    return text_response("", 200 if gateway.readiness().ready else 503)


async def server_load(gateway: Gateway, request: Request) -> Response:
    """Number of generations in progress."""
    return json_response(server_load_body(gateway.sharing.answers(gateway.answers)))


async def loads(gateway: Gateway, request: Request) -> Response:
    """Load reported by the engines."""
    workers = [worker.snapshot() for worker in gateway.registry.workers(request.query.get("model"))]
    timestamp = datetime.now(UTC).isoformat()
    return json_response(loads_body(workers, version=__version__, timestamp=timestamp))


async def model_info(gateway: Gateway, request: Request) -> Response:
    """Show a model (``?model=``; optional if there is only one)."""
    model = gateway.catalog.find(request.query.get("model", ""))
    body = model_info_body(
        root=model.root,
        tokenizer=gateway.settings.tokenizer_path,
        generates=await _generates(gateway, model),
        context_length=gateway.registry.max_model_len(model.model_id) or model.text.context_length,
        architectures=model.text.architectures,
        modalities=model.modalities,
    )
    return json_response(body)


async def _generates(gateway: Gateway, model: ServedModel) -> bool | None:
    for worker in gateway.registry.workers(model.model_id):
        if worker.state is WorkerState.READY:
            try:
                return "generate" in await worker.supported_tasks()
            except SmgError:
                continue
    return None


def _traits(template: ChatTemplate | MistralChat | None) -> dict[str, Any] | None:
    """What a chat template takes of a conversation, as was found out when it was loaded."""
    return template.traits.as_json() if isinstance(template, ChatTemplate) else None


async def server_info(gateway: Gateway, request: Request) -> Response:
    """Version, policy, kind of history, models and workers."""
    registry = gateway.registry
    found = {name: gateway.catalog.find(name) for name in gateway.catalog.names()}
    models = [
        {
            "id": name,
            "root": model.root,
            "parent": None if model.lora is None else model.model_id,
            "max_model_len": registry.max_model_len(model.model_id) or model.text.context_length,
            "modalities": model.modalities,
            "chat_template": _traits(model.text.chat_template),
            "tool_chat_template": _traits(model.text.tool_chat_template),
        }
        for name, model in found.items()
    ]
    workers = [
        worker_value(worker.snapshot(), registry.load(worker.spec.worker_id)) for worker in registry.all_workers()
    ]
    body = server_info_body(
        version=__version__,
        policy=registry.policy_name,
        history=gateway.settings.history_backend.partition(":")[0],
        models=models,
        workers=workers,
    )
    return json_response(body)
