"""``GET /v1/models`` and ``GET /v1/models/{model}``: from our own knowledge, whatever the workers do.

OpenAI and Anthropic have the same paths; Anthropic's clients name themselves by the header that their API demands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smg_trio.api.anthropic import models as anthropic_models
from smg_trio.api.openai import models as openai_models
from smg_trio.api.openai.models import ModelCard, ModelFiles
from smg_trio.core.errors import ModelNotFound
from smg_trio.gateway.http import Request, Response, json_response

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.pipeline.models import ServedModel

_ANTHROPIC = "anthropic-version"


async def models(gateway: Gateway, request: Request) -> Response:
    """List the models."""
    names = list(gateway.catalog.names())
    cards = [_card(gateway, name) for name in names]
    cards += [card for name, card in _cards_behind_http(gateway).items() if name not in names]
    shape = anthropic_models if _ANTHROPIC in request.headers else openai_models
    return json_response(shape.list_models(cards))


async def model(gateway: Gateway, request: Request) -> Response:
    """Show one model. Raises ModelNotFound."""
    name = request.path_parameters["model"]
    try:
        card = _card(gateway, name)
    except ModelNotFound:
        found = _cards_behind_http(gateway).get(name)
        if found is None:
            raise
        card = found
    shape = anthropic_models if _ANTHROPIC in request.headers else openai_models
    return json_response(shape.show_model(card))


def _cards_behind_http(gateway: Gateway) -> dict[str, ModelCard]:
    """What workers behind HTTP serve, by name; of several that serve a model the first one's word counts."""
    cards: dict[str, ModelCard] = {}
    for worker in gateway.registry.http.workers():
        for name in sorted(worker.models):
            told = worker.listed.get(name)
            if told is None:
                cards.setdefault(name, ModelCard(model_id=name, created=0))
            else:
                window, root, parent = told.max_model_len, told.root, told.parent
                card = ModelCard(model_id=name, created=told.created, max_model_len=window, root=root, parent=parent)
                cards.setdefault(name, card)
    return cards


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
