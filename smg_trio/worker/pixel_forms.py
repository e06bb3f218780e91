"""Which form of media each engine of a worker takes. Pure.

vLLM normalises pixels in the engine for some models since 0.32, and then wants them raw. It takes what it gets: media
in the wrong form are answered, wrongly, without an error. Its registration does not say which it wants; the module tree
of the model does (utility ``collective_rpc``, method ``get_model_inspection``: one text per worker process), and else
the version is all there is. What an engine said holds for one registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from smg_trio.core.errors import NoReadyWorker, PixelFormMissing
from smg_trio.core.media import PixelForm

if TYPE_CHECKING:
    from smg_trio.core.engines import EngineInfo
    from smg_trio.core.requests import GenerationRequest

INSPECTION: Final[tuple[Any, ...]] = ("collective_rpc", "get_model_inspection", None, [], {})
"""The call that asks: method and arguments."""

_NORMALISES: Final = "FusedMMInputNorm"
"""The module's class (``model_executor/layers/fusion/mm_input_norm.py``)."""
_NORMALISES_SINCE: Final = (0, 32)
_NORMALISED_MODELS: Final = frozenset(
    {
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "kimi_k25",
        "mistral3",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_vl",
        "qwen3_vl_moe",
    }
)
"""Values of ``model_type`` in the configs of models that normalise by default (vLLM 0.32: users of the module)."""


def form_of_inspection(said: Any) -> PixelForm | None:
    """What the module trees say; None if they are none."""
    if not isinstance(said, list) or not said or not all(isinstance(text, str) for text in said):
        return None
    # With pipeline parallelism only the first process has the encoder.
    return PixelForm.UINT8 if any(_NORMALISES in text for text in said) else PixelForm.NORMALISED


def form_of_version(info: EngineInfo, model_type: str) -> PixelForm:
    """What an engine of that version wants unless it was told otherwise."""
    normalises = info.release >= _NORMALISES_SINCE and model_type in _NORMALISED_MODELS
    return PixelForm.UINT8 if normalises else PixelForm.NORMALISED


class PixelFormBook:
    """The forms that the engines of one worker take.

    Args:
        where: the worker's URL, for errors.
        registration: what the engine at a rank registered with.
        fixed: what the operator says that all of them take.
    """

    def __init__(
        self, where: str, registration: Callable[[int], EngineInfo | None], fixed: PixelForm | None = None
    ) -> None:
        self._where = where
        self._registration = registration
        self._fixed = fixed
        self._said: dict[int, tuple[EngineInfo, PixelForm]] = {}

    def note(self, rank: int, info: EngineInfo, form: PixelForm) -> None:
        """The engine that registered with `info` takes `form`."""
        self._said[rank] = (info, form)

    def of(self, rank: int) -> PixelForm | None:
        """The form for the engine that is at `rank` now; None while that is not known."""
        if self._fixed is not None:
            return self._fixed
        said = self._said.get(rank)
        return said[1] if said is not None and said[0] is self._registration(rank) else None

    def among(self, ranks: Iterable[int]) -> frozenset[PixelForm]:
        """The forms that these ranks take, as far as they are known."""
        return frozenset(form for form in map(self.of, ranks) if form is not None)

    def taking(self, request: GenerationRequest, ranks: Sequence[int]) -> list[int]:
        """Those of `ranks` that take the request's media as they were prepared.

        Raises PixelFormMissing if there is none, NoReadyWorker if none has said yet.
        """
        prepared = frozenset.intersection(*(frozenset(feature.tensors) for feature in request.media))
        taking = [rank for rank in ranks if self.of(rank) in prepared]
        if taking:
            return taking
        forms = self.among(ranks)
        if not forms:
            raise NoReadyWorker(f"No engine of {self._where} has said yet in which form it takes media.")
        raise PixelFormMissing(
            f"The media were not prepared in the form that the engines of {self._where} take.", forms
        )

    def in_form_of(self, rank: int, request: GenerationRequest) -> GenerationRequest:
        """The request with its media in nothing but the form for `rank`, which is one of `taking`."""
        form = self.of(rank)
        assert form is not None, "ranks that take media have said how"
        media = [replace(feature, tensors={form: feature.tensors[form]}) for feature in request.media]
        return replace(request, media=tuple(media))
