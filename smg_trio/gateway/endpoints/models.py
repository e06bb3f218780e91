"""``GET /v1/models`` and ``GET /v1/models/{model}``: from our own knowledge, whatever the workers do."""

from __future__ import annotations

from smg_trio.api.openai.models import ModelCard, list_models, show_model
from smg_trio.gateway.http import Request, Response, json_response
from smg_trio.gateway.state import Gateway


async def models(gateway: Gateway, request: Request) -> Response:
    """Every name a client may ask for."""
    return json_response(list_models([_card(gateway, name) for name in gateway.catalog.names()]))


async def model(gateway: Gateway, request: Request) -> Response:
    """One model by its name. Raises ModelNotFound."""
    return json_response(show_model(_card(gateway, request.path_parameters["model"])))


def _card(gateway: Gateway, name: str) -> ModelCard:
    served = gateway.catalog.find(name)
    window = gateway.registry.max_model_len(served.model_id)
    return ModelCard(
        model_id=name,
        created=served.created,
        max_model_len=window if window is not None else served.text.context_length,
        root=served.root,
        parent=None if served.lora is None else served.model_id,
    )
