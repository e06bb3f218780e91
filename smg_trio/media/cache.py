"""Processed items that may come again: a conversation sends its images with every turn."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smg_trio.core.media import PixelForm
    from smg_trio.media.items import ProcessedItem


class MediaCache:
    """The items used last, by identifier, up to a number of bytes.

    Args:
        limit: bytes of all tensors; 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[str, ProcessedItem] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the kept items hold."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._items)

    def get(self, identifier: str, forms: frozenset[PixelForm]) -> ProcessedItem | None:
        """The item, if it is kept with all these forms."""
        item = self._items.get(identifier)
        if item is None or not forms <= item.tensors.keys():
            return None
        self._items.move_to_end(identifier)
        return item

    def put(self, item: ProcessedItem) -> None:
        """Keep an item; forms that are kept already stay beside its own. One larger than the limit is not kept."""
        known = self._items.pop(item.identifier, None)
        if known is not None:
            self._nbytes -= known.nbytes
            item = replace(item, tensors={**known.tensors, **item.tensors})
        if item.nbytes > self._limit:
            return
        self._items[item.identifier] = item
        self._nbytes += item.nbytes
        while self._nbytes > self._limit:
            _, oldest = self._items.popitem(last=False)
            self._nbytes -= oldest.nbytes
