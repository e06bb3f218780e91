"""``GET /v1/models`` and ``GET /v1/models/{model}``: from our own knowledge, whatever the workers do.

OpenAI and Anthropic have the same paths; Anthropic's clients name themselves by the header that their API demands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.api.anthropic import models as anthropic_models
from smg_trio.api.openai import models as openai_models
from smg_trio.api.openai.models import ModelCard, ModelFiles
from smg_trio.gateway.http import Request, Response, json_response

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel

_ANTHROPIC = "anthropic-version"


async def models(gateway: Gateway, request: Request) -> Response:
    """List the models."""
    cards = [_card(gateway, name) for name in gateway.catalog.names()]
    shape = anthropic_models if _ANTHROPIC in request.headers else openai_models
    return json_response(shape.list_models(cards))


async def model(gateway: Gateway, request: Request) -> Response:
    """Show one model. Raises ModelNotFound."""
    card = _card(gateway, request.path_parameters["model"])
    shape = anthropic_models if _ANTHROPIC in request.headers else openai_models
    return json_response(shape.show_model(card))


def _card(gateway: Gateway, name: str) -> ModelCard:
    served = gateway.catalog.find(name)
    window = gateway.registry.max_model_len(served.model_id)
    return ModelCard(
        model_id=name,
        created=served.created,
        max_model_len=window if window is not None else served.text.context_length,
        root=served.root,
        parent=None if served.lora is None else served.model_id,
        modalities=served.modalities,
        files=None if served.lora is not None else _files(served),
    )


def _files(served: ServedModel) -> ModelFiles | None:
    found = served.files
    return None if found is None else ModelFiles(found.source, str(found.path), found.commit)
