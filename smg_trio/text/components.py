"""What a loaded tokenizer is made of: the steps of its normalizer, pre-tokenizer, post-processor and decoder. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tokenizers


def component_steps(backend: tokenizers.Tokenizer, part: str) -> list[dict[str, Any]]:
    """A tokenizer's ``part`` (normalizer, pre_tokenizer, post_processor, decoder) as the steps that its file names."""
    component = getattr(backend, part)
    if component is None:
        return []
    try:
        # Nowhere documented to be JSON, but the alternative writes the whole vocabulary.
        state: dict[str, Any] = json.loads(component.__getstate__())
        kind = state["type"]
    except (AttributeError, KeyError, TypeError, ValueError):
        state = json.loads(backend.to_str())[part]
        kind = state["type"]
    if kind != "Sequence":
        return [state]
    (members,) = (value for value in state.values() if isinstance(value, list))
    return [*members]
