"""An engine as far as routing is concerned: blocks in order of use, prompts computed one after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from routing_simulation.traces import BLOCK

Path = Sequence[tuple[str, int]]
"""Segments of a prompt, each with how many of its blocks belong to it."""


def matched(known: Callable[[str, int], int], path: Path) -> int:
    """Leading blocks of `path` that are known; ``known(segment, 0)`` is how many of a segment are."""
    total = 0
    for segment, blocks in path:
        have = known(segment, 0)
        if have < blocks:
            return total + have
        total += blocks
    return total


class Cache:
    """The KV cache: what is not held by a running request is evicted in order of last use, tails of sequences first.

    Args:
        capacity: blocks.
        changed: called with (segment, blocks) whenever there are more or fewer of a segment.
    """

    def __init__(self, capacity: int, changed: Callable[[str, int], None]) -> None:
        self._changed = changed
        self._held: dict[str, int] = {}
        self._by_use: OrderedDict[str, int] = OrderedDict()
        self._blocks: dict[str, int] = {}
        self.free = capacity
        """Blocks that have no content."""

    def matched(self, path: Path) -> int:
        """Leading blocks of `path` that are here."""
        return matched(self._blocks.get, path)

    def hold(self, path: Path) -> None:
        """Keep the segments of `path` from eviction until `release`."""
        for segment, _ in path:
            self._held[segment] = self._held.get(segment, 0) + 1
            self._by_use.pop(segment, None)

    def release(self, path: Path) -> None:
        """A request has finished: its last segment is the next to go, before those that it shares."""
        for segment, _ in reversed(path):
            left = self._held[segment] - 1
            if left:
                self._held[segment] = left
            else:
                del self._held[segment]
                if segment in self._blocks:
                    self._by_use[segment] = 0

    def take(self, blocks: int) -> bool:
        """Make so many blocks the caller's, evicting what is needed; False, with nothing done, if too many are held."""
        missing = blocks - self.free
        if missing > 0 and missing > sum(self._blocks[one] for one in self._by_use):
            return False
        while missing > 0:
            segment = next(iter(self._by_use))
            gone = min(missing, self._blocks[segment])
            missing -= gone
            self.free += gone
            left = self._blocks[segment] - gone
            if left:
                self._blocks[segment] = left
            else:
                del self._blocks[segment], self._by_use[segment]
            self._changed(segment, left)
        self.free -= blocks
        return True

    def give_back(self, blocks: int) -> None:
        """What was taken and did not become content."""
        self.free += blocks

    def store(self, path: Path) -> int:
        """`path` has been computed into blocks that were taken: how many became content."""
        used = 0
        for segment, blocks in path:
            have = self._blocks.get(segment, 0)
            if have < blocks:
                used += blocks - have
                self._blocks[segment] = blocks
                self._changed(segment, blocks)
        return used


@dataclass(slots=True)
class Request:
    """One prompt on its way.

    Attributes:
        path, prompt, answer: what it is made of; tokens of the prompt and of the answer.
        gateway: the index of the one that it passes.
        arrived, computed: the second when it came, and tokens computed for it once that is known.
        taken: blocks that are its own and not content of the cache yet.
        promised: blocks that the gateway believes its engine must compute for it.
    """

    path: Path
    prompt: int
    answer: int
    arrived: float
    gateway: int = 0
    computed: int = 0
    taken: int = 0
    promised: float = 0.0
    finished: Callable[[float], None] = field(default=lambda now: None)

    def whole(self) -> Path:
        """The path with the answer at its end."""
        segment, _ = self.path[-1]
        shared = sum(blocks for _, blocks in self.path[:-1])
        return [*self.path[:-1], (segment, (self.prompt + self.answer) // BLOCK - shared)]


class Engine:
    """Computes prompts in order of arrival at `rate` tokens per second; answers take `token_s` seconds per token.

    It does not know the time: `start` says how long the next step takes, and the caller comes back then.
    """

    def __init__(self, capacity: int, rate: float, token_s: float, changed: Callable[[str, int], None]) -> None:
        self.cache = Cache(capacity, changed)
        self.waiting: deque[Request] = deque()
        self._rate, self.token_s = rate, token_s
        self._busy = False

    def start(self) -> tuple[Request, float] | None:
        """The next prompt and the seconds that it takes; None if one is under way, none waits, or no block is free."""
        if self._busy or not self.waiting:
            return None
        request = self.waiting[0]
        hit = min(self.cache.matched(request.path), (request.prompt - 1) // BLOCK)
        self.cache.hold(request.path)
        need = -(-(request.prompt + request.answer) // BLOCK) - hit
        if not self.cache.take(need):
            self.cache.release(request.path)
            return None
        self.waiting.popleft()
        self._busy = True
        request.taken = need
        request.computed = request.prompt - hit * BLOCK
        return request, request.computed / self._rate

    def first_token(self, request: Request) -> None:
        """The prompt is computed."""
        self._busy = False
        request.taken -= self.cache.store(request.path)

    def finish(self, request: Request) -> None:
        """The answer is complete."""
        self.cache.give_back(request.taken - self.cache.store(request.whole()))
        self.cache.release(request.path)
