"""Media of a request as vLLM's ``mm_features``: one map per item, in the order of their places in the prompt.

Structure, names and order of keys are those of vLLM's own front end (``MultiModalFeatureSpec``, 0.27.1 and 0.32.0
alike): the same tensors give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from smg_trio.core.tensors import TensorValue

if TYPE_CHECKING:
    from smg_trio.core.media import MediaFeature, MediaTensor, Modality
    from smg_trio.core.requests import GenerationRequest

_Group = tuple["Modality", str]
"""Modality and name of a tensor: an engine puts together what the items of a request have under it."""


def features(request: GenerationRequest) -> list[dict[str, Any]] | None:
    """The list for the wire, with `TensorValue`s where tensors go; None without media.

    Each item must hold the one form that the engine wants. Tensors are put in by whatever packs the list, in its order.
    """
    media = request.media
    if not media:
        return None
    groups = _groups(media)
    return [_feature(request, index, groups) for index in range(len(media))]


def tensors_of(feature: MediaFeature) -> Sequence[MediaTensor]:
    """The tensors of an item in its one form."""
    [tensors] = feature.tensors.values()
    return tensors


def _groups(media: Sequence[MediaFeature]) -> dict[_Group, dict[int, TensorValue]]:
    """Which items have each tensor, by their index."""
    groups: dict[_Group, dict[int, TensorValue]] = {}
    for index, feature in enumerate(media):
        for tensor in tensors_of(feature):
            groups.setdefault((feature.modality, tensor.name), {})[index] = tensor.value
    return groups


def _feature(
    request: GenerationRequest, index: int, groups: Mapping[_Group, Mapping[int, TensorValue]]
) -> dict[str, Any]:
    feature = request.media[index]
    data = {
        tensor.name: {"data": tensor.value, "field": _field(tensor, groups[feature.modality, tensor.name])}
        for tensor in tensors_of(feature)
    }
    mask = feature.is_embed
    identifier = feature.identifier
    if request.lora is not None:
        # An adapter may change the encoder too; an engine caches what the encoder made by this name alone.
        identifier = f"{request.lora.name}:{identifier}"
    return {
        "data": data,
        "modality": feature.modality,
        "identifier": identifier,
        "mm_position": {
            "offset": feature.offset,
            "length": feature.length,
            "is_embed": None if mask is None else TensorValue("bool", (len(mask),), mask),
        },
        "mm_hash": feature.identifier,
    }


def _field(tensor: MediaTensor, group: Mapping[int, TensorValue]) -> list[Any]:
    options: dict[str, Any] = {"keep_on_cpu": tensor.keep_on_cpu}
    if tensor.field == "flat":
        ends = accumulate((value.shape[0] for value in group.values()), initial=0)
        options |= {"slices": [[[start, stop, None]] for start, stop in pairwise(ends)], "dim": 0}
    elif tensor.field == "shared":
        options["batch_size"] = len(group)
    return [tensor.field, options]
