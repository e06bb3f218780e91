"""From a request's media to what an engine is sent: read, looked up, made by a helper process."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from smg_trio.core.errors import InvalidRequest, SmgError, UnsupportedFeature
from smg_trio.core.media import PixelForm
from smg_trio.media.cache import MediaCache
from smg_trio.media.errors import InvalidMedia
from smg_trio.media.helper_process import HelperPool, ItemRefused
from smg_trio.media.hooks import MediaHooks
from smg_trio.media.identity import identifier
from smg_trio.media.items import ProcessedItem

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource
    from smg_trio.media.budget import MediaBudget, MediaHold
    from smg_trio.media.families import Family
    from smg_trio.media.reader import MediaReader
    from smg_trio.settings.settings import Settings

__all__ = ["MediaProcessor", "ProcessedItem"]

_DTYPES: Final = ("bfloat16", "float16", "float32")
_HASHED_INLINE: Final = 1 << 17
"""Bytes whose hash takes a tenth of a millisecond; for more a thread costs less."""
_PROCESSES: Final = 2 if (os.cpu_count() or 1) >= 4 else 1


class MediaProcessor:
    """Makes processed items of sources, within the limits of the settings.

    `run` must run in the gateway's nursery; items asked for before wait for it.

    Args:
        reader: where the files come from.
        settings: those of the group Media.
        hooks: told of lookups and of items processed.

    Attributes:
        budget: the reader's; a request keeps a hold on it for as long as it has its media.
        cache: items processed before.
        helpers: the processes.
    """

    def __init__(self, reader: MediaReader, settings: Settings, hooks: MediaHooks | None = None) -> None:
        self._reader = reader
        self._hooks = hooks or MediaHooks()
        self._fast = settings.mm_resize == "fast"
        self.budget: MediaBudget = reader.budget
        self.cache = MediaCache(settings.mm_cache_bytes)
        self.helpers = HelperPool(max_pixels=settings.mm_max_pixels, processes=_PROCESSES)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the helper processes until cancelled. None is started before the first image."""
        await self.helpers.run(task_status)

    async def process(
        self,
        sources: Sequence[MediaSource],
        family: Family,
        forms: frozenset[PixelForm],
        model: str,
        *,
        hold: MediaHold,
        dtype: str = "bfloat16",
    ) -> list[ProcessedItem]:
        """Read, decode and resize, all at once, in the sources' order; equal files are processed once.

        Args:
            forms: which pixel values to prepare.
            model: takes part in the identifiers.
            hold: gets the bytes of the tensors; those of the files are given back.
            dtype: of the engine, for normalised values: ``bfloat16``, ``float16`` or ``float32``.

        Raises:
            InvalidMedia: a source cannot be read or decoded; names it.
            UnsupportedFeature: numpy or Pillow is not installed, or the dtype is none of the three.
            MediaTooLarge, MediaMemoryFull, GatewayFault: see `MediaReader.read_all` and `HelperPool.ask`.
        """
        if dtype not in _DTYPES:
            raise UnsupportedFeature(f"images cannot be normalised to {dtype}: only to {', '.join(_DTYPES)}")
        files = await self._reader.read_all(sources, hold)
        recipe = self._recipe(family)
        wanted = _Wanted(family, recipe, {form: "uint8" if form is PixelForm.UINT8 else dtype for form in forms})
        keys = [
            await _identifier(
                file, modality=source.modality, family=family.name, recipe=recipe, model=model, dtype=dtype
            )
            for file, source in zip(files, sources, strict=True)
        ]
        made: dict[str, ProcessedItem] = {}

        async def one(place: int) -> None:
            made[keys[place]] = await self._item(keys[place], sources[place], files[place], wanted, hold)

        await _together([partial(one, keys.index(key)) for key in dict.fromkeys(keys)])
        hold.give_back(sum(map(len, files)))
        return [made[key] for key in keys]

    async def measure(self, sources: Sequence[MediaSource], family: Family, *, hold: MediaHold) -> list[ProcessedItem]:
        """Only the layouts, for token counts. The items have no tensors and no identifier. Raises as `process`."""
        files = await self._reader.read_all(sources, hold)
        items: dict[int, ProcessedItem] = {}
        wanted = _Wanted(family, {}, {})

        async def one(place: int) -> None:
            items[place] = await self._made("", sources[place], files[place], wanted, hold)

        await _together([partial(one, place) for place in range(len(sources))])
        return [items[place] for place in range(len(sources))]

    def _recipe(self, family: Family) -> Mapping[str, Any]:
        if self._fast and family.recipe["kernel"] == "torchvision":
            return {**family.recipe, "kernel": "pillow_passes"}
        return family.recipe

    async def _item(
        self, key: str, source: MediaSource, file: bytes, wanted: _Wanted, hold: MediaHold
    ) -> ProcessedItem:
        """One of the cache, or made and put there."""
        known = self.cache.get(key, frozenset(wanted.dtypes))
        self._hooks.looked_up(known is not None)
        if known is not None:
            return known
        began = trio.current_time()
        item = await self._made(key, source, file, wanted, hold)
        self._hooks.processed(source.modality, trio.current_time() - began)
        self.cache.put(item)
        return item

    async def _made(
        self, key: str, source: MediaSource, file: bytes, wanted: _Wanted, hold: MediaHold
    ) -> ProcessedItem:
        """By a helper process, which takes no other item before this one's bytes are in `hold`."""
        family, dtypes = wanted.family, wanted.dtypes
        try:
            async with self.helpers.ask(file, recipe=wanted.recipe, dtypes=sorted(set(dtypes.values()))) as answer:
                layout = family.layout(source.modality, answer.width, answer.height)
                tensors = {form: family.media_tensors(layout, answer.tensors[dtypes[form]]) for form in dtypes}
                item = ProcessedItem(source.modality, key, layout, tensors)
                await hold.add(item.nbytes, source.where)
                return item
        except (ItemRefused, InvalidRequest) as problem:
            error = InvalidMedia(source.where, str(problem))
            self._hooks.refused(source.modality, error.code)
            raise error from None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is made of each item of a request.

    Attributes:
        dtypes: for each form.
    """

    family: Family
    recipe: Mapping[str, Any]
    dtypes: Mapping[PixelForm, str]


async def _identifier(file: bytes, **inputs: Any) -> str:
    work = partial(identifier, file, **inputs)
    if len(file) <= _HASHED_INLINE:
        return work()
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)


async def _together(tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """All at once; the first that fails ends the others and is raised."""
    failures: list[SmgError] = []

    async def guarded(task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except SmgError as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(guarded, task)
    if failures:
        raise failures[0]
