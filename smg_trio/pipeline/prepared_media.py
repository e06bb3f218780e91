"""The media of a prepared prompt, their memory, and the way to have them in another form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.errors import PixelFormMissing
    from smg_trio.core.media import MediaFeature, MediaSource, PixelForm
    from smg_trio.media.budget import MediaHold
    from smg_trio.pipeline.models import ServedModel
    from smg_trio.routing.registry import Registry

    Prepare = Callable[[frozenset[PixelForm]], Awaitable[tuple[MediaFeature, ...]]]


class PreparedMedia:
    """Media at their places in the expanded prompt.

    They take memory for as long as another attempt at the answer may have to be made; whoever has them calls `release`
    when none will be.

    Attributes:
        features: what engines get, all of them in the same forms; empty once they are released.
    """

    __slots__ = ("_hold", "_prepare", "_sources", "features")

    def __init__(self, sources: Sequence[MediaSource], prepare: Prepare, hold: MediaHold) -> None:
        """Holds nothing before `prepare`.

        Args:
            sources: what they are made of.
            prepare: makes the features in the forms that are named, always at the same places.
            hold: what they take of the memory for media.
        """
        self._sources = sources
        self._prepare = prepare
        self._hold = hold
        self.features: tuple[MediaFeature, ...] = ()

    @property
    def forms(self) -> frozenset[PixelForm]:
        """The forms that all of them are there in."""
        return frozenset.intersection(*(frozenset(feature.tensors) for feature in self.features))

    async def prepare(self, forms: frozenset[PixelForm]) -> None:
        """Have the features in `forms`, and in no other. Raises what preparing them raises, released then."""
        self._drop_features()
        try:
            self.features = await self._prepare(forms)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """They are not needed any more; idempotent."""
        self._drop_features()
        for source in self._sources:
            source.forget()

    def _drop_features(self) -> None:
        self.features = ()
        self._hold.give_back(self._hold.held)

    def __del__(self) -> None:
        # Between here and the generation that owns it a request can end in many places.
        self.release()


class AnswerMedia:
    """The media of all prompts of one answer, in whichever form its engines take, over all attempts at it.

    Attributes:
        forms: that all of them are there in.
    """

    __slots__ = ("_media", "_model", "_wanted", "forms")

    def __init__(self, model: ServedModel, media: Sequence[PreparedMedia]) -> None:
        self._model = model
        self._media = media
        self._wanted: frozenset[PixelForm] | None = None
        self.forms = self._common_forms()

    def _common_forms(self) -> frozenset[PixelForm]:
        return frozenset.intersection(*(one.forms for one in self._media))

    async def prepare(self, registry: Registry) -> None:
        """Before an attempt: have those anew that no engine takes as they are now.

        Engines may have come since the media were prepared, and other ones than before.
        """
        wanted = await registry.pixel_forms(self._model.model_id, self._model.text.model_type or "")
        if self._wanted is not None:  # by the engine that the request names
            wanted = self._wanted
        for one in self._media:
            if wanted.isdisjoint(one.forms):
                await one.prepare(wanted)
        self.forms = self._common_forms()

    def refused(self, error: PixelFormMissing) -> None:
        """The engine of the last attempt takes them in other forms."""
        self._wanted = error.forms

    def release(self) -> None:
        """See `PreparedMedia.release`."""
        for one in self._media:
            one.release()


def answer_media(model: ServedModel, media: Iterable[PreparedMedia | None]) -> AnswerMedia | None:
    """The media of an answer's prompts; None where there are none."""
    found = [one for one in media if one is not None]
    return AnswerMedia(model, found) if found else None


@contextmanager
def released_on_failure(media: Iterable[PreparedMedia | None]) -> Iterator[None]:
    """Release these media if the block fails."""
    try:
        yield
    except BaseException:
        for one in media:
            if one is not None:
                one.release()
        raise
