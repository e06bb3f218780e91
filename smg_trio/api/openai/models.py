"""``GET /v1/models`` and ``GET /v1/models/{id}``: what can be asked for, in vLLM's shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from smg_trio.api.json_text import dump, encode_text

OWNER = "self_hosted"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where the gateway has a model's small files from.

    Attributes:
        source: ``directory`` (one that was named), ``cache`` (of the hub) or ``download`` (into it, at this start).
        directory: where they are.
        revision: the repository's commit; None for a directory that is no snapshot of one.
    """

    source: str
    directory: str
    revision: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """One name a client may ask for.

    Attributes:
        model_id: the name.
        created: seconds since the epoch.
        max_model_len: context window in tokens, or None if no engine has said.
        root: path or name of the weights; the model's own name if not said.
        parent: the base model, for a LoRA adapter.
        modalities: what prompts may hold (``text``, ``image``).
        files: None for an adapter, which has none that the gateway reads.
    """

    model_id: str
    created: int
    max_model_len: int | None = None
    root: str | None = None
    parent: str | None = None
    modalities: Sequence[str] = ("text",)
    files: ModelFiles | None = None


def list_models(cards: Iterable[ModelCard]) -> bytes:
    """The body of the list."""
    return encode_text(dump({"object": "list", "data": [_value(card) for card in cards]}))


def show_model(card: ModelCard) -> bytes:
    """The body of one model."""
    return encode_text(dump(_value(card)))


def _value(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.model_id,
        "object": "model",
        "created": card.created,
        "owned_by": OWNER,
        "root": card.root or card.model_id,
        "parent": card.parent,
        "max_model_len": card.max_model_len,
        "architecture": {"input_modalities": list(card.modalities), "output_modalities": ["text"]},
        "files": None if card.files is None else asdict(card.files),
        "permission": [_permission(card)],
    }


def _permission(card: ModelCard) -> dict[str, Any]:
    """OpenAI's long-gone permission record, which vLLM still gives; old clients read it."""
    return {
        "id": f"modelperm-{card.model_id}",
        "object": "model_permission",
        "created": card.created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
