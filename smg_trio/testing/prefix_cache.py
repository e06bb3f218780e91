"""The fake engine's prefix cache: which full blocks of prompts it has seen, least recently used out. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence


class PrefixCache:
    """Remembers chains of full blocks; a chain starts anew for each salt."""

    def __init__(self, *, capacity_blocks: int, block_size: int) -> None:
        self._capacity = capacity_blocks
        self._block_size = block_size
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def take(self, prompt: Sequence[Hashable], *, salt: str | None = None, read: bool = True) -> int:
        """Number of leading prompt tokens already held; then hold all full blocks of the prompt.

        At least one token is always computed, so a hit is shorter than the prompt. ``read`` False finds nothing.
        """
        hits, unbroken = 0, read
        for key in self._chain(prompt, salt):
            if key in self._blocks:
                self._blocks.move_to_end(key)
                hits += unbroken
            else:
                unbroken = False
                self._blocks[key] = None
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return min(hits, (len(prompt) - 1) // self._block_size) * self._block_size

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _chain(self, prompt: Sequence[Hashable], salt: str | None) -> Iterator[int]:
        key, size = hash(salt), self._block_size
        for start in range(0, len(prompt) - size + 1, size):
            key = hash((key, tuple(prompt[start : start + size])))
            yield key
