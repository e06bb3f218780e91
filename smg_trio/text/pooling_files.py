"""What a model directory says about pooling: classes, normalizing, dimensions, how two texts become one prompt.

vLLM's own front end reads the same and decides by it before the wire, where an engine has no defaults of its own
(0.32: ``config/model.py``, ``transformers_utils/config.py:get_pooling_config``, ``pooling_params.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smg_trio.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingTraits:
    """What is known of a model that pools; the defaults are those of a model that says nothing.

    Attributes:
        normalizes: whether embeddings are made unit vectors (a sentence-transformers model without a normalizing
            module says no).
        labels: names of classes by number.
        separates_pairs: two texts are tokenized as a pair; else they are joined.
        tells_texts_apart: the model embeds which of two texts a token belongs to.
        embedding_size: elements of an embedding, None if not stated.
        matryoshka: whether embeddings may be shortened; the sizes, if only some are possible.
    """

    normalizes: bool = True
    labels: Mapping[int, str] = field(default_factory=dict)
    separates_pairs: bool = True
    tells_texts_apart: bool = False
    embedding_size: int | None = None
    matryoshka: bool | tuple[int, ...] = False

    def label(self, number: int) -> str:
        """A class's name; one without a name is called as Hugging Face does."""
        return self.labels.get(number, f"LABEL_{number}")

    def check_dimensions(self, dimensions: int, model: str) -> None:
        """Raises InvalidRequest if embeddings cannot be of this size."""
        if not self.matryoshka:
            problem = "does not support Matryoshka embeddings, so dimensions must not be set"
        elif isinstance(self.matryoshka, tuple) and dimensions not in self.matryoshka:
            problem = f"supports only the dimensions {', '.join(map(str, self.matryoshka))}, got {dimensions}"
        elif self.embedding_size is not None and dimensions > self.embedding_size:
            problem = f"supports only dimensions in 1..{self.embedding_size}, got {dimensions}"
        else:
            return
        raise InvalidRequest(f"The model `{model}` {problem}.", param="dimensions")


def read_pooling_traits(model_dir: Path, config: Mapping[str, Any]) -> PoolingTraits:
    """Read them from ``config.json``'s content and ``modules.json``. Blocking; what makes no sense is not there."""
    kinds = _module_kinds(model_dir / "modules.json")
    sizes = config.get("matryoshka_dimensions")
    listed = isinstance(sizes, list) and sizes and all(type(size) is int for size in sizes)
    type_count = config.get("type_vocab_size")
    return PoolingTraits(
        normalizes="Normalize" in kinds if "Pooling" in kinds else True,
        labels=_labels(config.get("id2label")),
        separates_pairs=bool(config.get("use_pad_token", config.get("use_sep_token", True))),
        tells_texts_apart=type(type_count) is int and type_count > 1,
        embedding_size=None if "Dense" in kinds else _size(config),
        matryoshka=tuple(sizes) if listed and isinstance(sizes, list) else config.get("is_matryoshka") is True,
    )


def _module_kinds(path: Path) -> set[str]:
    """The class names of a sentence-transformers model's modules."""
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return {str(module["type"]).rpartition(".")[2] for module in modules}
    except (OSError, ValueError, TypeError, KeyError):
        return set()


def _labels(value: Any) -> dict[int, str]:
    if not isinstance(value, dict):
        return {}
    return {int(key): name for key, name in value.items() if key.isdecimal() and isinstance(name, str)}


def _size(config: Mapping[str, Any]) -> int | None:
    found = config.get("embedding_size", config.get("hidden_size"))
    return found if type(found) is int else None
