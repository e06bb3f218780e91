"""``GET /v1/models`` in Anthropic's shape, for clients that send ``anthropic-version``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from smg_trio.api.json_text import dump, encode_text

if TYPE_CHECKING:
    from smg_trio.api.openai.models import ModelCard


ANTHROPIC_MODELS: Final = "claude-"
"""How the names of Anthropic's models begin: its agents ask for several of them, whatever server they talk to. Where a
single model is served, that is what they mean."""


def list_models(cards: Sequence[ModelCard]) -> bytes:
    """The body of the list: one page that holds all."""
    ids = [card.model_id for card in cards]
    return encode_text(
        dump(
            {
                "data": [_value(card) for card in cards],
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )
    )


def show_model(card: ModelCard) -> bytes:
    """The body of one model."""
    return encode_text(dump(_value(card)))


def _value(card: ModelCard) -> dict[str, Any]:
    created = datetime.fromtimestamp(card.created, UTC)
    return {
        "type": "model",
        "id": card.model_id,
        "display_name": card.model_id,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": card.max_model_len,
        "max_tokens": card.max_model_len,
    }
