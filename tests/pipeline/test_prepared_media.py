"""Media are given back when nobody can need them any more, however a request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from smg_trio.core.media import MediaFeature, MediaSource, PixelForm
from smg_trio.media.budget import MediaBudget
from smg_trio.pipeline.prepared_media import PreparedMedia, released_on_failure

if TYPE_CHECKING:
    from smg_trio.media.budget import MediaHold

UINT8, MODEL = frozenset({PixelForm.UINT8}), frozenset({PixelForm.NORMALISED})


def feature(forms: frozenset[PixelForm]) -> MediaFeature:
    return MediaFeature(
        modality="image",
        identifier="a",
        offset=0,
        length=1,
        is_embed=None,
        embeds=1,
        tensors=dict.fromkeys(forms, ()),
    )


class Media:
    """Prepared media of ten bytes, the budget that they are of, and the forms that they were prepared in."""

    def __init__(self) -> None:
        self.budget = MediaBudget(100)
        self.source = MediaSource("image", "data:,", "messages[0].content[0]")
        self.asked: list[frozenset[PixelForm]] = []
        self.fails = False
        self.prepared = PreparedMedia([self.source], self._prepare(hold := self.budget.hold()), hold)

    def _prepare(self, hold: MediaHold):  # type: ignore[no-untyped-def]
        async def prepare(forms: frozenset[PixelForm]) -> tuple[MediaFeature, ...]:
            self.asked.append(forms)
            assert self.source.location, "what it is made of is still there"
            await hold.add(10, "x")
            if self.fails:
                raise ValueError("broken")
            return (feature(forms),)

        return prepare


async def test_they_are_held_until_they_are_released_and_then_forgotten() -> None:
    media = Media()
    await media.prepared.prepare(UINT8)
    assert media.budget.used == 10
    assert media.prepared.forms == UINT8
    await media.prepared.prepare(MODEL)
    assert media.budget.used == 10, "the other form is gone"
    assert media.asked == [UINT8, MODEL]
    for _ in range(2):
        media.prepared.release()
        assert media.budget.used == 0
        assert media.prepared.features == ()
        assert media.source.location == ""


async def test_what_fails_holds_nothing() -> None:
    media = Media()
    media.fails = True
    with pytest.raises(ValueError, match="broken"):
        await media.prepared.prepare(UINT8)
    assert media.budget.used == 0


async def test_a_request_that_ends_in_between_gives_them_back() -> None:
    media = Media()
    await media.prepared.prepare(UINT8)
    with pytest.raises(KeyError), released_on_failure([None, media.prepared]):
        raise KeyError
    assert media.budget.used == 0


async def test_what_nobody_refers_to_any_more_is_given_back() -> None:
    budget = MediaBudget(100)
    hold = budget.hold()

    async def prepare(forms: frozenset[PixelForm]) -> tuple[MediaFeature, ...]:
        await hold.add(10, "x")
        return (feature(forms),)

    prepared = PreparedMedia([], prepare, hold)
    await prepared.prepare(UINT8)
    assert budget.used == 10
    del prepared
    assert budget.used == 0
