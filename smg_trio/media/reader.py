"""From what a client sent to the bytes of a file: the only way in for media."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import SmgError
from smg_trio.media.budget import MediaBudget, MediaHold
from smg_trio.media.fetch import FetchPolicy, MediaFetcher
from smg_trio.media.hooks import MediaHooks
from smg_trio.media.sources import InlineData, check_counts, check_size, decode_base64, inline_data
from smg_trio.settings.media import media_limits

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource, Modality
    from smg_trio.settings.settings import Settings

_IN_THE_LOOP_BYTES: Final = 1 << 16
"""Data that is decoded where it is: a tenth of a millisecond, which is less than a thread costs."""
_DECODED_AT_ONCE: Final = 2


class MediaReader:
    """Reads the media of requests, within the limits of the settings.

    Args:
        settings: those of the group Media.
        hooks: told what was read and refused.
        fetcher: for another resolver or other authorities than the system's.

    Attributes:
        budget: what all requests may hold in memory; a request reads within ``with reader.budget.hold() as hold:`` and
            keeps the hold until its media are sent to the engine.
        limits: most items of each modality in one request.
    """

    def __init__(
        self, settings: Settings, hooks: MediaHooks | None = None, *, fetcher: MediaFetcher | None = None
    ) -> None:
        self._hooks = hooks or MediaHooks()
        self.budget = MediaBudget(
            settings.mm_max_inflight_bytes, bytes_in_flight=self._hooks.bytes_in_flight, waiting=self._hooks.waiting
        )
        self.limits: Mapping[Modality, int] = media_limits(settings.limit_mm)
        self._item_limit = settings.mm_max_item_bytes
        self._fetcher = fetcher or MediaFetcher(FetchPolicy.of(settings), self._item_limit)
        self._threads = trio.CapacityLimiter(_DECODED_AT_ONCE)

    async def read(self, source: MediaSource, hold: MediaHold) -> bytes:
        """The file of one source, see `read_all`."""
        [read] = await self.read_all([source], hold)
        return read

    async def read_all(self, sources: Sequence[MediaSource], hold: MediaHold) -> list[bytes]:
        """The files of all sources of a request, in their order, read at the same time.

        Their sizes are added to `hold`. The first that fails ends the others; then, and if this is cancelled, `hold`
        may have any part of them until it ends.

        Raises:
            InvalidMedia: too many, not base64, not a URL, or an answer of status 4xx.
            MediaNotAllowed: a URL, or where it leads, that is not fetched from.
            MediaTooLarge: an item, or all together.
            MediaMemoryFull: no room for them in time.
            MediaUnavailable, MediaTimeout: the server of a URL failed or took too long.
            UnsupportedFeature: fetching needs an extra that is not installed.
        """
        try:
            check_counts(sources, self.limits)
            inline = await self._reserved(sources, hold)
        except SmgError as error:
            self._hooks.refused(sources[0].modality, error.code)
            raise
        read = [b""] * len(sources)
        failures: list[SmgError] = []

        async def one(place: int) -> None:
            source, data = sources[place], inline[place]
            began = trio.current_time()
            try:
                read[place] = await (self._decode(data, hold) if data else self._fetch(source, hold))
            except SmgError as error:
                self._hooks.refused(source.modality, error.code)
                failures.append(error)
                nursery.cancel_scope.cancel()
            else:
                elapsed = trio.current_time() - began
                self._hooks.read(source.modality, "inline" if data else "fetched", len(read[place]), elapsed)

        async with trio.open_nursery() as nursery:
            for place in range(len(sources)):
                nursery.start_soon(one, place)
        if failures:
            raise failures[0]
        return read

    async def _reserved(self, sources: Sequence[MediaSource], hold: MediaHold) -> list[InlineData | None]:
        """The data that came in the request, with room for all of it; None for URLs."""
        inline = [inline_data(source) for source in sources]
        total = 0
        for data in inline:
            if data:
                check_size(data, self._item_limit)
                total += data.most_bytes
                # Whoever is too much is named, so the sum is checked item by item.
                hold.check(total, data.where)
        await hold.add(total, sources[0].where if sources else "")
        return inline

    async def _decode(self, data: InlineData, hold: MediaHold) -> bytes:
        if data.most_bytes <= _IN_THE_LOOP_BYTES:
            decoded = decode_base64(data, self._item_limit)
        else:
            # Not abandoned if cancelled: its memory is in use until it ends, a matter of milliseconds.
            decoded = await trio.to_thread.run_sync(decode_base64, data, self._item_limit, limiter=self._threads)
        hold.give_back(data.most_bytes - len(decoded))
        return decoded

    async def _fetch(self, source: MediaSource, hold: MediaHold) -> bytes:
        taken = 0

        async def take(size: int) -> None:
            nonlocal taken
            await hold.add(size, source.where)
            taken += size

        fetched = await self._fetcher.fetch(source, take)
        hold.give_back(taken - len(fetched))
        return fetched
